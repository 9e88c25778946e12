// Elementwise kernels: one plan (shape, strides, dtypes of up to six inputs and one output) and one function
// type for every elementwise op, whatever its number of inputs. Slots: the op's name ("add", "gelu",
// "gelu_backward", ...).
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

inline constexpr int kMaxOperands = 7;  // the output and up to six inputs

struct Operand {
  char* data;
  DType dtype;
  bool host_scalar;           // one value in host memory (a Python scalar or a CPU 0-dim tensor)
  int64_t strides[kMaxDims];  // in bytes, 0 where broadcast
};

// Dims are ordered so that the last one is the fastest of the output, and merged where all operands allow it;
// a plan of contiguous operands has one dim. Operand 0 is the output. Inputs are converted to `compute` when
// loaded, the result (of type `compute`, or a truth value for predicates) to the output's dtype when stored.
struct ElementwisePlan {
  int ndim;
  int count;      // operands, output included
  DType compute;  // Float32, Float64, Int64 or complex: narrower types are computed in these
  int64_t numel;
  int64_t sizes[kMaxDims];
  Operand operands[kMaxOperands];
};

// Implemented in csrc/core: throws a DtypeError.
[[noreturn]] WT_API void refuse_compute_dtype(DType compute);

using ElementwiseFn = void(const LaunchContext&, const ElementwisePlan&);

}  // namespace warptape::kernels
