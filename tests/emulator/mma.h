// The part of nvcuda::wmma that kernels use: 16 x 16 x 16 products of 16-bit types with float sums. CUDA
// leaves open which lane has which element; here a lane has 8 in a row.
#pragma once

#include <cstring>
#include <type_traits>

#include "asynchronous.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16);
  static constexpr int num_elements = 8;
  float x[num_elements];
};

namespace emulated {
inline void check(const void* p, unsigned ld, unsigned bytes) {
  if (reinterpret_cast<uintptr_t>(p) % 32 || ld * bytes % 16)
    emulator::die("wmma: %p is not aligned to 32 bytes, or the leading dim %u not to 16", p, ld);
}
template <class F>
void for_elements(F f) {
  const int lane = emulator::lane();
  for (int i = 0; i < 8; ++i) f(i, lane / 2, lane % 2 * 8 + i);
}
struct Call {
  float* d;
  const float *a, *b, *c;
};
inline void multiply(void* const* lanes) {
  auto call = [&](int r, int c) -> const Call& { return *static_cast<const Call*>(lanes[r * 2 + c / 8]); };
  float sums[16][16];
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      sums[i][j] = call(i, j).c[j % 8];
      for (int k = 0; k < 16; ++k) sums[i][j] += call(i, k).a[k % 8] * call(k, j).b[j % 8];
    }
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) call(i, j).d[j % 8] = sums[i][j];
}
}  // namespace emulated

template <class F>
void fill_fragment(F& f, float value) {
  for (float& x : f.x) x = value;
}
template <class Use, class T, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& f, const T* p, unsigned ld) {
  emulated::check(p, ld, sizeof(T));
  __syncwarp();
  emulated::for_elements([&](int i, int r, int c) {
    const T* at = std::is_same_v<Layout, row_major> ? p + r * int(ld) + c : p + c * int(ld) + r;
    f.x[i] = emulator::half_at(at, std::is_same_v<T, __nv_bfloat16>);
  });
}
template <class A, class B, class C>
void mma_sync(C& d, const A& a, const B& b, const C& c) {
  emulated::Call call{d.x, a.x, b.x, c.x};
  emulator::call_warp(emulated::multiply, &call);
}
template <class F>
void store_matrix_sync(float* p, const F& f, unsigned ld, layout_t layout) {
  emulated::check(p, ld, sizeof(float));
  __syncwarp();
  emulated::for_elements(
      [&](int i, int r, int c) { p[layout == mem_row_major ? r * int(ld) + c : c * int(ld) + r] = f.x[i]; });
}

}  // namespace nvcuda::wmma
