// The memory of a graph's runs: recorded in the first for inputs of some sizes, one block in later ones.
#pragma once

#include <functional>
#include <map>
#include <mutex>

#include "core/memory/memory_plan.h"
#include "tensor/tensor.h"

namespace warptape::graph {

// For runs without gradients: these would keep pieces, and with them the block. Threads may share it.
class WT_API RunMemory {
 public:
  std::vector<Tensor> run(std::span<const Tensor> inputs, const std::function<std::vector<Tensor>()>& f);
  // Of the largest block that is planned.
  size_t bytes() const;

 private:
  static constexpr size_t kMostPlans = 16;  // inputs of more sizes run without
  static constexpr int kMostMisses = 8;     // so many runs that allocated otherwise: no more plans

  mutable std::mutex mutex_;
  std::map<std::vector<int64_t>, std::shared_ptr<const MemoryPlan>> plans_;  // by sizes and strides
  int misses_ = 0;
};

}  // namespace warptape::graph
