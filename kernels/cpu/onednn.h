// oneDNN for what it does better than the built-in product: bfloat16 on processors with AMX tiles. The
// library is opened on first use, so that neither import nor machines without tiles pay for it. Twins:
// onednn.cpp, onednn_none.cpp.
#pragma once

#include <cstdint>

namespace warptape::kernels::cpu {

// Whether bfloat16 products should go to onednn_matmul. WARPTAPE_ONEDNN=0 or 1 in the environment decides for
// all processors.
bool onednn_bf16();

// One matrix product of bfloat16, of which one of each operand's strides is 1: c = a b + bias.
struct OneDnnMatmul {
  int64_t m, n, k;
  int64_t a_row, a_col, b_row, b_col, c_row;
  bool has_bias;
};

// Runs it on the calling thread alone. False when the library refuses: nothing is written then.
bool onednn_matmul(const OneDnnMatmul& shape, const void* a, const void* b, const void* bias, void* c);

}  // namespace warptape::kernels::cpu
