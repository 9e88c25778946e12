// For code that writes into memory which was there before, where check_inplace() does not see it.
#pragma once

#include "core/context.h"
#include "tensor/tensor.h"

namespace warptape {

// Calls that read the tensor's contents later, in a region of another thread or for backward (Note
// [Promises], graph/record/promise.h), are made now. A region of this thread sees what is written itself.
inline void before_write(const Tensor& t) {
  if (t.defined() && t.storage().pending() && !thread_state().deferral) force_storage(t.storage());
}

}  // namespace warptape
