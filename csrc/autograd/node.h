// The tape's node: one recorded op. A struct with a pointer to a stateless backward function, not a closure.
#pragma once

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace warptape {

class Node;

// Where a gradient goes: input `index` of `node` (that is, output `index` of the op that node records).
struct Edge {
  Ref<Node> node;
  uint32_t index = 0;
  explicit operator bool() const { return static_cast<bool>(node); }
};

// What backward() is given and fills. Gradients may be undefined (nothing flowed into that output).
class Gradients {
 public:
  Gradients(std::span<Tensor> outputs, std::span<Tensor> inputs, const bool* wanted, bool last)
      : outputs_(outputs), inputs_(inputs), wanted_(wanted), last_(last) {}
  // Gradient of the op's output j; may be undefined when the op has several outputs.
  const Tensor& operator[](size_t j) const { return outputs_[j]; }
  size_t outputs() const { return outputs_.size(); }
  size_t inputs() const { return inputs_.size(); }
  // Whether the gradient of the op's input i is wanted now. Setting one that is not wanted is allowed and
  // wasteful.
  bool wants(size_t i) const { return wanted_[i]; }
  // Whether what the node saved is freed after this.
  bool last() const { return last_; }
  Gradients retained() const { return {outputs_, inputs_, wanted_, false}; }
  // May have a shape that broadcasts from the input's, or another dtype: the engine reduces and casts.
  void set(size_t i, Tensor gradient) { inputs_[i] = std::move(gradient); }
  const Tensor& result(size_t i) const { return inputs_[i]; }

 private:
  std::span<Tensor> outputs_, inputs_;
  const bool* wanted_;
  bool last_;
};

using BackwardFn = void (*)(Node& node, Gradients& g);

struct NodeType {
  const char* name;  // "MulBackward0", as PyTorch calls it
  BackwardFn backward;
  void (*release)(Node& node) = nullptr;  // frees what the node holds beside its saved tensors
  const void* (*python_part)(Node& node) =
      nullptr;  // Python objects in the node's data, for the bindings' collector
};

// What a saved-tensors hook made of a tensor, by TapeFrontend::pack (autograd/tape.h).
struct WT_API PackedTensor : RefCounted<PackedTensor> {
  virtual ~PackedTensor();
  virtual Tensor unpack() = 0;
  static void destroy(PackedTensor* p) { delete p; }
  Edge history;  // of the tensor that was packed: what a hook gives back need not have any
};

// A tensor kept for backward, with the version it was saved at. An output of the node itself is kept as an
// alias without history (a handle would be a reference cycle) and gets its history back when it is unpacked.
class WT_API SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(const Tensor& t, bool is_output, uint32_t output);
  // Throws a RuntimeError that names op, shape and both versions when the tensor was changed in place since,
  // and when the graph was freed.
  Tensor unpack(Node& owner) const;
  bool defined() const { return tensor_.defined() || packed_; }
  // For the garbage collector's walk.
  const Tensor& raw() const { return tensor_; }
  const PackedTensor* packed() const { return packed_.get(); }

 private:
  Tensor tensor_;
  Ref<PackedTensor> packed_;
  uint32_t version_ = 0;
  uint32_t output_ = 0;
  bool is_output_ = false;
};

// Shape, dtype and device of one output of a recorded op: its gradient must fit.
struct OutputMeta {
  Shape sizes;
  DType dtype;
  Device device;
};

// Hooks are few and come from Python; the bindings derive from these.
struct WT_API TensorHook {  // may replace the gradient of one output
  virtual ~TensorHook();
  virtual void call(Tensor& gradient) = 0;
  virtual void tensor_gone() {}  // the tensor that the hook writes to is being destroyed
};
struct WT_API NodeHook {  // may replace the gradients of the inputs (post) or of the outputs (pre)
  virtual ~NodeHook();
  virtual void call(std::span<Tensor> inputs, std::span<Tensor> outputs) = 0;
};

// The rare part of a node.
struct WT_API NodeExtras {
  struct OutputHook {
    uint32_t output;
    std::shared_ptr<TensorHook> hook;
  };
  std::vector<OutputHook> tensor_hooks;  // in order of registration
  std::vector<OutputHook> retain_grad;   // after every tensor hook
  std::vector<std::shared_ptr<NodeHook>> pre_hooks, post_hooks;
  std::shared_ptr<void> metadata;  // a dict of Python's, which the node keeps
  std::string traceback;           // of the forward call, under anomaly detection
  Ref<Node> parent;                // the node during whose backward this one was recorded, likewise
};

// The sequence number of the next node.
WT_API uint64_t next_node_sequence();

class WT_API Node : public RefCounted<Node, true> {  // weak: AutogradMeta::accumulator
 public:
  explicit Node(const NodeType* type);
  static void destroy(Node* n);  // iterative: a chain of a million nodes is freed without recursion
  static void* operator new(size_t size);
  static void operator delete(void* p);

  const NodeType* type;
  uint64_t sequence;           // grows with every node made; an edge always leads to a smaller number
  SmallVector<Edge, 2> edges;  // one per differentiable input
  SmallVector<OutputMeta, 1> outputs;
  bool released = false;   // saved tensors were freed by a backward pass
  bool noted = false;      // recorded in a compiled region
  void* python = nullptr;  // the Python object that stands for this node; it owns a reference to us
  std::unique_ptr<NodeExtras> extras;

  void save(const Tensor& input) { saved_.emplace_back(input, false, 0u); }
  // Call after set_history of that output.
  void save_output(const Tensor& output, uint32_t index = 0) { saved_.emplace_back(output, true, index); }
  Tensor saved(size_t i) { return saved_[i].unpack(*this); }
  size_t saved_count() const { return saved_.size(); }
  const SavedTensor& saved_raw(size_t i) const { return saved_[i]; }
  void release_saved();
  SmallVector<SavedTensor, 2> exchange_saved(SmallVector<SavedTensor, 2> saved) {
    return std::exchange(saved_, std::move(saved));
  }
  NodeExtras& more() {
    if (!extras) extras = std::make_unique<NodeExtras>();
    return *extras;
  }

  // Small plain values that backward needs.
  template <class T, class... A>
  T& emplace(A&&... args) {
    drop_data();
    void* at = data_;
    if constexpr (sizeof(T) > sizeof data_ || alignof(T) > 16) {
      at = ::operator new(sizeof(T), std::align_val_t(alignof(T)));
      *reinterpret_cast<void**>(data_) = at;
      destroy_data_ = [](void* d) {
        auto* p = static_cast<T*>(*static_cast<void**>(d));
        p->~T();
        ::operator delete(p, std::align_val_t(alignof(T)));
      };
    } else if constexpr (!std::is_trivially_destructible_v<T>) {
      destroy_data_ = [](void* d) { static_cast<T*>(d)->~T(); };
    }
    return *new (at) T{std::forward<A>(args)...};
  }
  template <class T>
  T& data() {
    if constexpr (sizeof(T) > sizeof data_ || alignof(T) > 16) return **reinterpret_cast<T**>(data_);
    return *reinterpret_cast<T*>(data_);
  }

  // The engine's: which backward pass works on this node, and its place in that pass's table.
  std::atomic<void*> task{nullptr};
  uint32_t task_index = 0;

 private:
  ~Node();
  void drop_data() {
    if (destroy_data_) std::exchange(destroy_data_, nullptr)(data_);
  }
  SmallVector<SavedTensor, 2> saved_;
  void (*destroy_data_)(void*) = nullptr;
  alignas(16) unsigned char data_[64];
};

}  // namespace warptape
