#include "core/context.h"

#include <pthread.h>

#include <new>

#include "kernels/cpu/parallel.h"

namespace warptape {

constinit thread_local ThreadState thread_state;

namespace {
RankContext& process_context() {
  static auto* context = [] {
    // A forked child has one thread. What another one was drawing at the fork is not there to release its
    // lock.
    pthread_atfork(nullptr, nullptr, [] { new (&rank_context().generator->mutex) std::mutex; });
    return new RankContext;
  }();
  return *context;
}
}  // namespace

Ref<Generator> CudaGenerators::of(int index) {
  std::lock_guard lock(mutex_);
  Ref<Generator>& g = made_[index];
  if (!g)
    g = Ref<Generator>::adopt(new Generator(Device{DeviceType::CUDA, static_cast<int8_t>(index)}, seed_));
  return g;
}

void CudaGenerators::manual_seed(uint64_t seed) {
  std::lock_guard lock(mutex_);
  seed_ = seed;
  for (auto& [index, g] : made_) {
    std::lock_guard draws(g->mutex);
    g->manual_seed(seed);
  }
}

RankContext& rank_context() {
  if (!thread_state.rank) thread_state.rank = &process_context();
  return *thread_state.rank;
}

void set_rank_context(RankContext* context) {
  thread_state.rank = context;
  kernels::cpu::bind_num_threads(context ? &context->num_threads : nullptr);
}

}  // namespace warptape
