#include "core/context.h"

#include <cxxabi.h>
#include <pthread.h>

#include <climits>
#include <new>
#include <utility>

#include "kernels/runtime/parallel.h"

namespace warptape {

extern "C" void* __dso_handle;

namespace {
constexpr CoreLocals shared_locals() {
  CoreLocals l;
  for (FreeObjects& free : l.free_objects) free.count = INT_MAX;  // full: nothing is put here
  return l;
}
constinit CoreLocals unbegun = shared_locals();

void end_thread_locals(void* p) {
  auto* ended = static_cast<CoreLocals*>(p);
  ended->destroy_variables();
  thread_locals_pointer = &unbegun;
  for (FreeObjects& l : ended->free_objects)
    while (l.head) ::operator delete(std::exchange(l.head, *static_cast<void**>(l.head)));
  delete ended;
}
}  // namespace

constinit thread_local ThreadLocals* thread_locals_pointer = &unbegun;

// What other objects of the thread use after the end of its variables begins new ones, which end likewise.
ThreadLocals& begin_thread_locals() {
  auto* locals = new CoreLocals;
  locals->begun = true;
  thread_locals_pointer = locals;
  abi::__cxa_thread_atexit(end_thread_locals, locals, &__dso_handle);
  return *locals;
}

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
  if (!thread_state().rank) own_thread_state().rank = &process_context();
  return *thread_state().rank;
}

void set_rank_context(RankContext* context) {
  own_thread_state().rank = context;
  kernels::cpu::bind_num_threads(context ? &context->num_threads : nullptr);
}

}  // namespace warptape
