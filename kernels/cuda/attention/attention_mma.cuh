// Attention by tensor cores: tiles in shared memory and the two products of a warp. See attention_mma.cu.
//
// A tile is rows of D numbers of 16 bits, D = 64 or 128; narrower heads are filled up with zeros. Pieces of
// 16 bytes are exchanged within a row (a swizzle), so that 8 rows of a matrix lie in different banks.
#pragma once

#include "kernels/cuda/attention/attention_problem.cuh"
#include "kernels/cuda/common/fragments.cuh"

namespace warptape::kernels::cuda {

inline constexpr int kMmaWarps = 4, kMmaThreads = kMmaWarps * kWarp;
inline constexpr int kMmaRows = 16 * kMmaWarps;  // of a block: 16 a warp
// Blocks on a multiprocessor, where shared memory has no room for more heads of 128: a bound for registers.
template <int D> inline constexpr int kBlocks = D == 64 ? 3 : 2;
inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <int D>
WT_DEVICE int tile_at(int row, int piece) {
  return row * D + (piece ^ (row % 8)) * kPiece;
}

// Tiles of `Count` rows, one below the other, from row `first` of x on.
template <int Count, int D, class T>
struct RowCopies : TileCopies<T, Count, D, kMmaThreads> {
  WT_DEVICE RowCopies(const Rows<T>& x, int64_t first)
      : TileCopies<T, Count, D, kMmaThreads>(x.data, x.stride, x.count, x.width, first, 0, tile_at<D>) {}
  WT_DEVICE void next(T* tile) {
    this->fetch(tile);
    this->move_down();
  }
};

// A lane's places of fragments of a tile: the four matrices of 8 x 8 from row 16 i, piece 2 j on, those below
// each other first, or (`Across`) those beside each other. The swizzle gives the same in all such rows and
// from the fourth j on again; between, bits of the first place change.
template <int D, bool Across>
struct Fragments {
  int place;

  WT_DEVICE Fragments() {
    const int lane = threadIdx.x % kWarp, odd = lane / 8 % 2, late = lane / 16;
    place = tile_at<D>((Across ? late : odd) * 8 + lane % 8, Across ? odd : late);
    forget(place);
  }
  WT_DEVICE int at(int i, int j) const { return (place ^ j % 4 * 2 * kPiece) + i * 16 * D + j / 4 * 64; }
};

// sums [16, N] = X Y^T over D: 16 rows of `x` from `row` on, N rows of `y`.
template <int N, int D, class T>
WT_DEVICE void multiply_rows(float (&sums)[N / 8][4], const T* x, int row, const T* y) {
  const Fragments<D, false> of_x;
  const Fragments<D, true> of_y;
#pragma unroll
  for (auto& sum : sums)
#pragma unroll
    for (float& value : sum) value = 0;
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    uint32_t a[4];
    load_matrices(a, x + row * D + of_x.at(0, d));
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
      uint32_t b[4];  // rows 0-7 of y: both halves of the 16 columns, then rows 8-15
      load_matrices(b, y + of_y.at(j, d));
      mma_16x8x16<T>(sums[2 * j], a, b[0], b[1]);
      mma_16x8x16<T>(sums[2 * j + 1], a, b[2], b[3]);
    }
  }
}

// sums [16, D] += P Z: P [16, N] as multiply_rows left it, rounded to T; N rows of `z`.
template <int N, int D, class T>
WT_DEVICE void add_product(float (&sums)[D / 8][4], const float (&p)[N / 8][4], const T* z) {
  const Fragments<D, false> of_z;
#pragma unroll
  for (int s = 0; s < N / 16; ++s) {
    const float (&left)[4] = p[2 * s], (&right)[4] = p[2 * s + 1];
    const uint32_t a[4] = {pack_two<T>(left[0], left[1]), pack_two<T>(left[2], left[3]),
                           pack_two<T>(right[0], right[1]), pack_two<T>(right[2], right[3])};
#pragma unroll
    for (int e = 0; e < D / 16; ++e) {
      uint32_t b[4];
      load_matrices_transposed(b, z + of_z.at(s, e));
      mma_16x8x16<T>(sums[2 * e], a, b[0], b[1]);
      mma_16x8x16<T>(sums[2 * e + 1], a, b[2], b[3]);
    }
  }
}

// Rows row.. of `to`, a warp's 16, times a factor for each of the lane's two rows.
template <int D, class T>
WT_DEVICE void store_rows(const Rows<T>& to, int64_t row, const float (&sums)[D / 8][4],
                          const float (&factors)[2]) {
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
      if (r < to.count && c < to.width)
        store_packed(reinterpret_cast<uint32_t*>(to.data + r * to.stride + c),
                     Packed<uint32_t, 4>{{words[0], words[1], words[2], words[3]}});
    }
}

// Over the four lanes that share a row.
template <class Op>
WT_DEVICE float reduce_four(float value, Op op) {
  value = op(value, __shfl_xor_sync(kAllLanes, value, 1));
  return op(value, __shfl_xor_sync(kAllLanes, value, 2));
}

// The softmax so far of a lane's two rows, in powers of two: scores are multiplied with `scale`, above 0, to
// be their exponents. A NaN loses against a number and is one as a probability.
struct Softmax {
  float scale = 1, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  // Scores become probabilities by the largest score so far. What was summed before shrinks when that grows,
  // and what was made with the probabilities before is to by `shrink`.
  template <int N>
  WT_DEVICE void advance(float (&s)[N][4], float (&shrink)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float found = top[half];
#pragma unroll
      for (auto& value : s) found = fmaxf(found, fmaxf(value[2 * half], value[2 * half + 1]));
      found = reduce_four(found, [](float a, float b) { return fmaxf(a, b); });
      // While a query has seen no key its powers are to be 0, not NaN.
      const float shift = found == -INFINITY ? 0.0f : found * scale;
      shrink[half] = power_of_two(top[half] * scale - shift);
      top[half] = found;
      sum[half] *= shrink[half];
#pragma unroll
      for (auto& value : s)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c)
          sum[half] += value[c] = power_of_two(value[c] * scale - shift);
    }
  }

  // What the rows of the output are to be multiplied with; their log-sum-exp goes to lse[t] and lse[t + 8].
  WT_DEVICE void finish(float (&factors)[2], float* lse, int64_t t, int64_t queries) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = reduce_four(sum[half], SumOf{});
      factors[half] = all == 0 ? 0.0f : 1 / all;
      if (lse && threadIdx.x % 4 == 0 && t + 8 * half < queries)
        lse[t + 8 * half] = all == 0 ? -INFINITY : top[half] * scale * kLn2 + logf(all);
    }
  }
};

template <int N>
WT_DEVICE void rescale(float (&sums)[N][4], const float (&shrink)[2]) {
#pragma unroll
  for (auto& value : sums)
#pragma unroll
    for (int c = 0; c < 4; ++c) value[c] *= shrink[c / 2];
}

// Which query and key a lane's s[j][c] is of: queries t and t + 8 by keys s, s + 1, s + 8 .., or (ByKeys)
// keys s and s + 8 by queries t, t + 1, t + 8 ..
template <bool ByKeys>
struct Places {
  int64_t b;
  int h, t, s;

  // What is made of them is made again for each tile, and keeps no registers.
  WT_DEVICE void forget_places() { forget(t), forget(s); }
  WT_DEVICE int query(int j, int c) const { return t + (ByKeys ? j * 8 + c % 2 : c / 2 * 8); }
  WT_DEVICE int key(int j, int c) const { return s + (ByKeys ? c / 2 * 8 : j * 8 + c % 2); }
};

// What is neither a number of a tile nor a sum is a bit here: 4 j + c that of s[j][c]. Bits are worked out in
// loops, which have few registers, beside the tile's, which are named and so unrolled.
template <int Eights>
struct PairBits {
  using Word = std::conditional_t<Eights <= 8, uint32_t, uint64_t>;
  Word seen = 0, kept = ~Word(0);

  template <bool ByKeys>
  WT_DEVICE void find(const Problem& p, const Part& part, Places<ByKeys> at) {
    if (!ByKeys) at.forget_places();
    seen = 0;
#pragma unroll 4
    for (int i = 0; i < 4 * Eights; ++i)
      if (p.is_seen(part, at.h, at.query(i / 4, i % 4), at.key(i / 4, i % 4))) seen |= Word(1) << i;
    if (p.threshold == 0) return;
    kept = 0;
    constexpr int kStep = ByKeys ? 1 : 2;
#pragma unroll 1
    for (int i = 0; i < 4 * Eights; i += kStep) {
      const int64_t t = at.query(i / 4, i % 4), key = at.key(i / 4, i % 4);
      const uint32_t found = ByKeys ? p.keeps(at.b, at.h, t, key) : p.keeps_two(at.b, at.h, t, key);
      kept |= Word(found) << i;
    }
  }
  WT_DEVICE bool sees(int j, int c) const { return seen >> (4 * j + c) & 1; }
  WT_DEVICE bool keeps(int j, int c) const { return kept >> (4 * j + c) & 1; }
};

// Products become scores in powers of two, minus infinity where hidden.
template <class T, int Eights, bool ByKeys>
WT_DEVICE void mask_scores(float (&s)[Eights][4], const Problem& p, const Part& part, Places<ByKeys> at,
                           const PairBits<Eights>& bits) {
  const float scale = float(p.scale) * kLog2E;
#pragma unroll
  for (int j = 0; j < Eights; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[j][c] = bits.sees(j, c) ? s[j][c] * scale : -INFINITY;
  if (!p.adds_mask()) return;
  if (!ByKeys) at.forget_places();
#pragma unroll
  for (int j = 0; j < Eights; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (bits.sees(j, c)) s[j][c] += p.added<T>(part, at.h, at.query(j, c), at.key(j, c)) * kLog2E;
    if (j % 4 == 3) forget_memory();  // more loads at once would take more registers than there are
  }
}
// Those of the probabilities that dropout takes become zero.
template <int Eights>
WT_DEVICE void drop_scores(float (&s)[Eights][4], const Problem& p, const PairBits<Eights>& bits) {
  const float keep = float(p.keep);
#pragma unroll
  for (int j = 0; j < Eights; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[j][c] = bits.keeps(j, c) ? s[j][c] * keep : 0.0f;
}

// What backward knows of a query: the log-sum-exp in powers of two, infinity (its probabilities are 0) where
// it saw no key and outside.
struct Query {
  float lse = INFINITY, delta = 0;
};
WT_DEVICE Query query_of(const float* lse, const float* delta, int64_t line) {
  const float found = lse[line];
  return {found == -INFINITY ? INFINITY : found * kLog2E, delta[line]};
}

// With F dropout's factor: the product of query and key becomes P F, that of dout and value P (G F - delta).
// Plain: the query sees the key, and nothing is dropped.
WT_DEVICE void make_plain_slope(float& product, float& up, float scale, const Query& q) {
  product = power_of_two(product * scale - q.lse);
  up = product * (up - q.delta);
}
WT_DEVICE void make_slope(float& score, float& up, float factor, const Query& q) {
  const float probability = power_of_two(score - q.lse);
  score = probability * factor;
  up = probability * (up * factor - q.delta);
}

// Calls f(D) with 64 or 128, whichever holds both head sizes.
template <class F>
void with_head_size(const Sizes& n, F&& f) {
  if (n.d <= 64 && n.e <= 64) return f(std::integral_constant<int, 64>{});
  f(std::integral_constant<int, 128>{});
}

}  // namespace warptape::kernels::cuda
