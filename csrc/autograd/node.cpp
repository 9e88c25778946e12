#include "autograd/node.h"

#include "autograd/engine.h"
#include "autograd/tape.h"
#include "core/context.h"
#include "core/errors.h"
#include "core/memory/free_list.h"

namespace warptape {

PackedTensor::~PackedTensor() = default;
TensorHook::~TensorHook() = default;
NodeHook::~NodeHook() = default;

void* Node::operator new(size_t size) { return FreeList<Node, Pooled::Node>::allocate(size); }
void Node::operator delete(void* p) { FreeList<Node, Pooled::Node>::deallocate(p); }

namespace {
std::atomic<uint64_t> next_sequence{1};

// Nodes whose last reference went while another node was being destroyed on this thread.
struct DeferredDeletion {
  std::vector<Node*> waiting;
  bool running = false;
};
PerThread<DeferredDeletion> deferred_deletion;
}  // namespace

uint64_t next_node_sequence() { return next_sequence.load(std::memory_order_relaxed); }

Node::Node(const NodeType* t) : type(t), sequence(next_sequence.fetch_add(1, std::memory_order_relaxed)) {}

Node::~Node() { drop_data(); }

void Node::destroy(Node* n) {
  DeferredDeletion& g = *deferred_deletion;
  if (g.running) {
    g.waiting.push_back(n);
    return;
  }
  g.running = true;
  delete n;
  while (!g.waiting.empty()) {
    Node* next = g.waiting.back();
    g.waiting.pop_back();
    delete next;
  }
  g.running = false;
}

void Node::release_saved() {
  released |= saved_.size() > 0;
  saved_.clear();
}

void check_not_released(const Node& node) {
  WT_CHECK(
      !node.released, Error, node.type->name,
      ": Trying to backward through the graph a second time (or directly access saved tensors after they "
      "have "
      "already been freed). Saved intermediate values of the graph are freed when you call .backward() or "
      "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time.");
}

SavedTensor::SavedTensor(const Tensor& t, bool is_output, uint32_t output)
    : output_(output), is_output_(is_output) {
  if (!t.defined()) return;
  WT_CHECK(!t->inference, Error,
           "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference "
           "mode in computation tracked by autograd; clone() them outside of inference mode");
  version_ = t.version();
  tensor_ = is_output ? detach(t) : t;
  if (thread_state().saved_tensor_hooks) {
    packed_ = tape_frontend()->pack(is_output ? tensor_ : t);
    if (packed_) {
      tensor_ = Tensor();
      if (!is_output) packed_->history = gradient_edge(t);
    }
  }
}

Tensor SavedTensor::unpack(Node& owner) const {
  Tensor out = tensor_;
  if (packed_) {
    out = packed_->unpack();
    if (packed_->history && thread_state().grad_mode) {
      out = alias(out);
      set_gradient_edge(out, packed_->history);
    }
  } else if (out.defined()) {
    WT_CHECK(
        out.version() == version_, Error, owner.type->name,
        ": one of the variables needed for gradient computation has been modified by an inplace operation: ",
        out, " is at version ", out.version(), "; expected version ", version_,
        " instead. Clone it before the in-place change, or enable anomaly detection to find the forward "
        "call");
  }
  if (is_output_ && out.defined() && (thread_state().grad_mode || has_dispatch(out))) {
    out = detach(out);
    set_gradient_edge(out, {Ref<Node>::share(&owner), output_});
  }
  return out;
}

}  // namespace warptape
