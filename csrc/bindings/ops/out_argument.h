// out=: the result goes into tensors that the caller has.
#pragma once

#include "bindings/ops/parse.h"

namespace warptape::bindings {

// Before the op runs: refuses an out= that the op cannot write to and takes options from it.
void prepare_out(const OpInfo& op, Frame& frame);
// After it: the result goes into what out= is, which comes back.
PyObject* finish_out(const OpInfo& op, const Frame& frame, Result& result);

}  // namespace warptape::bindings
