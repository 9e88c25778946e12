// One run of the engine: see engine.cpp; in two halves: split_backward.cpp.
#pragma once

#include <queue>
#include <unordered_map>

#include "autograd/engine.h"
#include "autograd/inplace_view.h"

namespace warptape {

class Pass {
 public:
  // Notes in `rest`, if given, what it leaves: autograd/split_backward.h.
  explicit Pass(const BackwardOptions& options, DeferredBackward* rest = nullptr)
      : options_(options), rest_(rest) {}
  ~Pass() {
    for (State& s : states_)
      if (s.node->task.load(std::memory_order_relaxed) == this)
        s.node->task.store(nullptr, std::memory_order_release);
  }

  void discover(std::span<const Edge> roots);
  void capture(const Edge& edge, size_t slot);
  void keep_only_needed();
  void deliver(const Edge& edge, Tensor gradient);
  void seed(const Edge& edge, Tensor gradient);
  void resume(const DeferredBackward& rest);
  void run();
  const int64_t number = next_number();  // of this pass among all of the process
  std::vector<Tensor> results;
  std::vector<std::function<void()>> callbacks;  // for the end
  bool noted = false;                            // some node was recorded in a compiled region

 private:
  static int64_t next_number();

  struct Capture {
    uint32_t output;  // of the node
    size_t slot;      // in the result
  };

  struct State {
    Node* node;
    int waiting = 0;  // edges of this pass that still have to deliver
    bool needed = true;
    const SmallVector<bool, 16>* left = nullptr;  // of a node that an earlier pass began: what it left
    SmallVector<Tensor, 1> gradients;
    std::vector<Capture> captures;
  };

  // A node is claimed by writing this pass into it; when another pass holds it, a map of our own knows its
  // index.
  State& state(Node* n);
  State* find(Node* n);
  // Whether this pass goes along edge i of the node.
  bool follows(const State& s, size_t i) {
    const Edge& e = s.node->edges[i];
    return e && (!s.left || (*s.left)[i]) && find(e.node.get())->needed;
  }
  void run_node(State& s);
  bool defer(const State& s);
  void defer_roots();
  void walk(std::vector<Node*> open);
  SmallVector<Tensor, 4> backward(Node& node, State& s, bool last);
  void check_nan(Node& node, std::span<const Tensor> gradients);

  struct Older {
    bool operator()(const std::pair<uint64_t, size_t>& a, const std::pair<uint64_t, size_t>& b) const {
      return a.first < b.first;
    }
  };
  static uint64_t priority(const Node& n) { return is_accumulator(n) ? UINT64_MAX : n.sequence; }

  const BackwardOptions& options_;
  DeferredBackward* rest_;  // where to note edges that are not followed, or null
  std::vector<State> states_;
  std::vector<Ref<Node>> keep_;  // the roots: everything else hangs on them
  std::unordered_map<Node*, size_t> elsewhere_;
  std::priority_queue<std::pair<uint64_t, size_t>, std::vector<std::pair<uint64_t, size_t>>, Older> ready_;
};

}  // namespace warptape
