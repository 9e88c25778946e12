// Recording one call of a compiled function, so that it can be replayed: see Note [Replays].
#pragma once

#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "graph/run/replay.h"

namespace warptape::graph {

class Memories;

class WT_API Recording {
 public:
  // `known`: tensors that calls before this one came upon and that are still there.
  Recording(std::vector<Tensor> arguments, std::vector<Tensor> known);
  virtual ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // What the region tells. The call cannot be replayed; the first reason stays.
  void refuse(std::string why);
  // Python calls an op, and has its result.
  void observe(const OpInfo& op, std::span<const Value> args);
  void produced(Result& out);
  // What was recorded is about to run.
  void capture_program(const std::shared_ptr<Executable>& program, const std::vector<Call>& calls,
                       const Memories& memories);

  // The function has returned these tensors; what is pending runs now.
  void end(std::vector<Tensor> results);
  // All has run. Null where the call cannot be replayed: see why(), or met tensors that may have been made in
  // it: see is_complete().
  std::shared_ptr<Recorded> finish();
  const std::string& why() const { return why_; }
  bool is_complete() const { return complete_; }
  bool is_on_device() const { return on_device_; }
  // Tensors that were there and still are.
  std::vector<Tensor> known() const;

 private:
  struct Before {
    Tensor tensor, grad;
    ViewSpec view;
    Storage* storage;
    uint32_t version;
    bool requires_grad;
    Node* node = nullptr;
  };
  static Before before(const Tensor& t);

  void find_sources(const Memories& memories);
  void check_sources();
  void retain_observed();
  uint32_t add_memory(const Tensor& t, ReplayMemory::From from, size_t index);
  void record_calls(const std::vector<Call>& calls);
  void record_results();
  std::optional<uint32_t> add_output(const Tensor& t);
  std::optional<uint32_t> memory_of(const Tensor& t);
  void check_unchanged();
  void check_draws(const std::vector<Call>& calls);
  void count_changes();

  std::string why_;
  bool complete_ = true, ended_ = false, on_device_ = false;
  std::vector<uint8_t> generator_;  // its state before the call
  std::vector<Before> arguments_, known_;
  std::vector<Tensor> results_;
  std::deque<Tensor> observed_;
  std::unordered_set<const void*> observed_impls_, produced_impls_, argument_impls_;
  std::shared_ptr<Recorded> out_;
  std::unordered_map<const Storage*, uint32_t> numbers_;  // of memories
  std::vector<Ref<Storage>> storages_;                    // by memory, of those from outside
  std::unordered_map<const void*, uint32_t> retained_;    // by impl: its number
  std::vector<std::pair<Tensor, uint32_t>> outputs_;      // and its number
};

// For what a thread's region does not see: the call that it records, if it does, cannot be replayed.
WT_API void refuse_replay(const char* why);

}  // namespace warptape::graph
