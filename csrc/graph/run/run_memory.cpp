#include "graph/run/run_memory.h"

namespace warptape::graph {

std::vector<Tensor> RunMemory::run(std::span<const Tensor> inputs,
                                   const std::function<std::vector<Tensor>()>& f) {
  std::vector<int64_t> key;
  for (const Tensor& t : inputs) {
    key.insert(key.end(), t.sizes().begin(), t.sizes().end());
    key.insert(key.end(), t.strides().begin(), t.strides().end());
  }
  std::shared_ptr<const MemoryPlan> plan;
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = plans_.find(key); at != plans_.end()) plan = at->second;
    if (!plan && (misses_ >= kMostMisses || plans_.size() >= kMostPlans)) return f();
  }
  if (!plan) {
    PlannedRun run;
    std::vector<Tensor> out = f();
    plan = run.recorded();
    const std::lock_guard lock(mutex_);
    plans_[key] = std::move(plan);
    return out;
  }
  PlannedRun run(plan);
  std::vector<Tensor> out = f();
  if (!run.as_planned()) {  // recorded anew: a first run fills caches
    const std::lock_guard lock(mutex_);
    plans_.erase(key);
    ++misses_;
  }
  return out;
}

size_t RunMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  size_t most = 0;
  for (const auto& [key, plan] : plans_) most = std::max(most, plan->bytes());
  return most;
}

}  // namespace warptape::graph
