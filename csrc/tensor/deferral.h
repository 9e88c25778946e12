// Where raw computation asks whether it is to be noted instead of run: see Note [Deferred memory].
#pragma once

#include <span>

#include "core/context.h"
#include "tensor/plan.h"

namespace warptape {

class Gradients;
class Node;
struct KernelInfo;
struct KernelFunction;

// The region of a thread that records. Implemented by graph/.
class WT_API Deferral {
 public:
  virtual ~Deferral();
  // Notes an elementwise launch into `out`, which is new or is written over.
  virtual void elementwise(ElementwiseSlot& slot, DType compute, const Tensor& out,
                           std::span<const ElementwiseInput> inputs) = 0;
  // Notes a sum over the dims that `out` has with size 1.
  virtual void sum_to(const Tensor& out, const Tensor& t) = 0;
  // Notes a kernel, by itself: tensors that are not defined keep their places.
  virtual void kernel(const KernelInfo& info, std::span<const Tensor> in, std::span<const Tensor> out,
                      int64_t rows, const KernelFunction& f) = 0;
  // Calls the node's backward, noted where it can be. `last`: what the node saved goes when it has run.
  virtual void backward(Node& node, Gradients& g, bool last) = 0;
  // A storage was made whose memory is deferred.
  virtual void made(Storage& s) = 0;
  // How many tensors of noted calls are on the storage.
  virtual size_t held(const Storage& s) const = 0;
  // Runs what is pending: who comes next reads or writes memory in a way of its own.
  virtual void flush() = 0;
};

// What is kept of deferred calls between regions, and on all threads. Implemented by graph/, which hands it
// down when it starts; nothing is deferred before.
class WT_API DeferredCalls {
 public:
  virtual ~DeferredCalls();
  // Runs what is pending on the storage.
  virtual void force(Storage& s) = 0;
  // A storage whose promise is set goes away.
  virtual void storage_gone(Storage& s) = 0;
  // Around a backward pass that comes to nodes of a compiled region, outside of one.
  virtual void begin_backward() = 0;
  virtual void end_backward() = 0;
};
WT_API void install(DeferredCalls& calls);
WT_API DeferredCalls* installed_deferred_calls();  // null before

// Whether one tensor alone is on the storage, but for noted calls.
inline bool only_own(const Storage& s) {
  return s.use_count() == 1 + (thread_state().deferral ? thread_state().deferral->held(s) : 0);
}

// New storages get no memory in this scope if the thread records a region.
class DeferMemory : Restore<bool> {
 public:
  DeferMemory() : Restore(own_thread_state().defers_memory, thread_state().deferral != nullptr) {}
};

}  // namespace warptape
