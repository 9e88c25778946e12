// From a chain to the text of its kernel. No CUDA is needed for it.
#pragma once

#include <string>

#include "kernels/fused/chain.h"

namespace warptape::kernels {

enum class RowKernel : uint8_t { None, LayerNorm, RmsNorm, LayerNormBackward, RmsNormBackward };

struct ChainFormula {
  const char* name;  // in kernels/elementwise/formulas.h; null for copies
  DType compute;
  // Every step of it is rounded as IEEE 754 says, so that any compiler's code gives the same bits.
  bool exact;
  RowKernel rows = RowKernel::None;
};

namespace cuda {

inline bool is_backward(RowKernel k) {
  return k == RowKernel::LayerNormBackward || k == RowKernel::RmsNormBackward;
}
inline bool is_centered(RowKernel k) {
  return k == RowKernel::LayerNorm || k == RowKernel::LayerNormBackward;
}
// The places of a kernel's tensors, see kernels/norm/norm.h: x, weight, bias -> y, mean, rstd; of backward
// dy, x, mean, rstd, weight -> dx, dweight, dbias.
struct RowPlaces {
  int x, weight, bias, mean, rstd;
};
inline RowPlaces places_of(RowKernel k) {
  return is_backward(k) ? RowPlaces{1, 4, -1, 2, 3} : RowPlaces{0, 1, 2, 1, 2};
}

struct ChainKernel : PreparedChain {
  std::string source, text;                        // of the kernel, of its problem
  int device, width;                               // width: as chain_width()
  bool exact = true;                               // all of its formulas are
  const void *element = nullptr, *wide = nullptr;  // cudaKernel_t
};

// Chains with equal keys have one kernel: addresses, sizes, numbers and most strides are arguments.
std::string chain_key(const ChainPlan& plan);

// How many elements along the last dim a thread may take at once, of chains without rows: 16 bytes of the
// widest dtype; 1 where some operand has them neither next to each other nor all the same.
int chain_width(const ChainPlan& plan);
bool is_packed(const ChainPlan& plan, const Operand& operand);

// Dims that the kernel is made for, at least those of the plan; 0: too many.
int chain_dims(const ChainPlan& plan);

// The dtype of the rows.
DType row_type(const ChainPlan& plan);

// One kernel, "chain", or two, "chain" for elements and, if chain_width() is above 1, "chain_wide" for groups
// of so many.
std::string chain_source(const ChainPlan& plan);

// The groups that a thread of it works on.
int chain_loads(const ChainPlan& plan);

// As which a number comes: what its step computes in or, if that is a copy, gives. One step takes it.
DType number_type(const ChainPlan& plan, int input);

}  // namespace cuda
}  // namespace warptape::kernels
