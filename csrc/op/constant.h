// Arguments that take no gradient although the op has one.
#pragma once

#include "autograd/tape.h"
#include "core/errors.h"

namespace warptape::ops {

// Error where a gradient would be missing silently. What a transform of functions wraps is looked at when the
// op is called on what is inside.
inline void check_constant(const char* op, const char* argument, const Tensor& t) {
  WT_CHECK(!needs_grad(t) || is_opaque(t), Error, op,
           ": the function is not differentiable with respect to argument '", argument,
           "'. This input cannot have requires_grad True; detach() it");
}
inline void check_constant(const char* op, const char* argument, const OptTensor& t) {
  if (t) check_constant(op, argument, *t);
}

}  // namespace warptape::ops
