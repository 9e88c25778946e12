// Attention by tensor cores: tiles in shared memory and the two products of a warp. See attention_mma.cu.
//
// A tile is rows of D numbers of 16 bits, D = 64 or 128; narrower heads are filled up with zeros. Pieces of
// 16 bytes are exchanged within a row (a swizzle), so that 8 rows of a matrix lie in different banks.
#pragma once

#include "kernels/cuda/attention_problem.cuh"
#include "kernels/cuda/fragments.cuh"

namespace warptape::kernels::cuda {

inline constexpr int kMmaWarps = 4, kMmaThreads = kMmaWarps * kWarp;
inline constexpr int kMmaRows = 16 * kMmaWarps;  // of a block: 16 a warp
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <int D>
WT_DEVICE int tile_at(int row, int piece) {
  return row * D + (piece ^ (row % 8)) * kPiece;
}

// Asks for rows first.. of x; zeros outside.
template <int Count, int D, class T>
WT_DEVICE void fetch_rows(T* tile, const Rows<T>& x, int64_t first) {
  constexpr int kAcross = D / kPiece;
#pragma unroll
  for (int i = threadIdx.x; i < Count * kAcross; i += kMmaThreads) {
    const int r = i / kAcross, c = i % kAcross;
    const bool inside = first + r < x.count && c * kPiece < x.width;
    copy_async<16>(tile + tile_at<D>(r, c), inside ? x.data + (first + r) * x.stride + c * kPiece : x.data,
                   inside ? 16 : 0);
  }
}

// sums [16, N] = X Y^T over D: 16 rows of `x` from `row` on, N rows of `y`.
template <int N, int D, class T>
WT_DEVICE void multiply_rows(float (&sums)[N / 8][4], const T* x, int row, const T* y) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (auto& sum : sums)
#pragma unroll
    for (float& value : sum) value = 0;
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t a[4];
    load_matrices(a, x + tile_at<D>(row + lane % 16, d / kPiece + lane / 16));
#pragma unroll
    for (int j = 0; j < N; j += 16) {
      uint32_t b[4];  // rows 0-7 of y: both halves of the 16 columns, then rows 8-15
      load_matrices(b, y + tile_at<D>(j + lane / 16 * 8 + lane % 8, d / kPiece + lane / 8 % 2));
      mma_16x8x16<T>(sums[j / 8], a, b[0], b[1]);
      mma_16x8x16<T>(sums[j / 8 + 1], a, b[2], b[3]);
    }
  }
}

// sums [16, D] += P Z: P [16, N] as multiply_rows left it, rounded to T; N rows of `z`.
template <int N, int D, class T>
WT_DEVICE void add_product(float (&sums)[D / 8][4], const float (&p)[N / 8][4], const T* z) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int s = 0; s < N; s += 16) {
    const float (&left)[4] = p[s / 8], (&right)[4] = p[s / 8 + 1];
    const uint32_t a[4] = {pack_two<T>(left[0], left[1]), pack_two<T>(left[2], left[3]),
                           pack_two<T>(right[0], right[1]), pack_two<T>(right[2], right[3])};
#pragma unroll
    for (int e = 0; e < D; e += 16) {
      uint32_t b[4];
      load_matrices_transposed(b, z + tile_at<D>(s + lane % 16, e / kPiece + lane / 16));
      mma_16x8x16<T>(sums[e / 8], a, b[0], b[1]);
      mma_16x8x16<T>(sums[e / 8 + 1], a, b[2], b[3]);
    }
  }
}

// Rows row.. of `to`, a warp's 16, times a factor for each of the lane's two rows.
template <int D, class T>
WT_DEVICE void store_rows(T* to, int64_t stride, int64_t count, int64_t width, int64_t row,
                          const float (&sums)[D / 8][4], const float (&factors)[2]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = 0; j < D / 8; j += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        words[i] =
            pack_two<T>(sums[j + i][2 * half] * factors[half], sums[j + i][2 * half + 1] * factors[half]);
      exchange_in_fours(words);
      const int64_t r = row + lane / 4 + 8 * half, c = (j + lane % 4) * kPiece;
      if (r < count && c < width)
        store_packed(reinterpret_cast<uint32_t*>(to + r * stride + c),
                     Packed<uint32_t, 4>{{words[0], words[1], words[2], words[3]}});
    }
}

// Whether all of these queries see all of these keys, unchanged by a mask.
WT_DEVICE bool sees_all(const Problem& p, int64_t t0, int queries, int64_t s0, int keys) {
  return !p.mask.data && t0 + queries <= p.n.queries && s0 + keys <= p.n.keys &&
         !(p.causal && s0 + keys > t0 + 1);
}

// Calls f(D) with 64 or 128, whichever holds both head sizes.
template <class F>
void with_head_size(const Sizes& n, F&& f) {
  if (n.d <= 64 && n.e <= 64) return f(std::integral_constant<int, 64>{});
  f(std::integral_constant<int, 128>{});
}

}  // namespace warptape::kernels::cuda
