// Paged attention by mma.sync (sm_80), for queries of bfloat16. A block is a warp, which has one token and up
// to 16 query heads that share a key head as the rows of its tiles: keys and values are read once for all of
// them, 16 bytes a lane past the registers, a page ahead of the one that it works on. No warp waits for
// another. The scores of a page stay in registers and are the left operand of the second product.
//
// A page has its keys by columns and its values by rows, so that both are right operands by transposed
// ldmatrix. Codes of int8 are loaded as pairs: a product takes the even ones of 16 and the next the odd ones,
// and so columns of the results, and the rows of values, come in that order (Columns).
#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/attention/paged_rows.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr int kHeads = 16;  // rows of a tile

// Bytes from the start of a tile with P pieces of 16 bytes a row. Pieces are exchanged so that ldmatrix finds
// those of 8 rows in different banks. Of rows and pieces that have no bit in common, places may be joined by
// xor.
template <int P>
WT_DEVICE constexpr int place(int row, int piece) {
  return (row * P + (piece ^ (P >= 8 ? row % 8 : row / (8 / P) % P))) * 16;
}

// Memory of a warp for heads of up to D elements in pages of T.
template <class T, int D>
struct PagedTiles {
  static constexpr bool kCodes = sizeof(T) == 1;
  static constexpr int kKeyPieces = kPage * int(sizeof(T)) / 16, kValuePieces = D * int(sizeof(T)) / 16;
  static constexpr int kQueryPieces = D * 2 / 16;
  struct alignas(16) Page {
    T keys[D * kPage], values[kPage * D];
    float scales[kCodes ? 2 * kPage : 4];  // of keys, of values
  };
  alignas(16) BFloat16 q[kHeads * D];
  Page pages[2];
  float total[D / 8][4][kWarp];  // sums of the splits before, as lanes have them; not there where one is all
};

// Where a lane's columns are: c = 0, 1 of the n-th 8 columns of a product.
template <class T>
struct Columns {
  WT_DEVICE static int at(int n, int c) {
    const int t = threadIdx.x % 4;
    return sizeof(T) == 1 ? n / 2 * 16 + 4 * t + 2 * c + n % 2 : 8 * n + 2 * t + c;
  }
  // The row of a page's values in shared memory: the order in which the first product has its keys.
  WT_DEVICE static constexpr int row(int key) {
    return sizeof(T) == 1 ? key / 16 * 16 + key % 2 * 8 + key % 16 / 2 : key;
  }
};

// Bytes 0 and 2 as two numbers of bfloat16, exactly: 128 and the lower seven bits, less 128 or 256.
WT_DEVICE uint32_t widen_codes(uint32_t word) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(result)
      : "r"((word & 0x007f007fu) | 0x43004300u), "r"(0x3f803f80u), "r"((word & 0x00800080u) | 0xc300c300u));
  return result;
#else
  return pack_two<BFloat16>(float(int8_t(word)), float(int8_t(word >> 16)));
#endif
}

// Calls multiply(n, b0, b1) for the products that the four matrices of a lane are right operands of: the
// upper and the lower 8 rows of some columns, then those of the next ones.
template <class T, class F>
WT_DEVICE void each_operand(const uint32_t (&words)[4], F&& multiply) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t above = words[2 * i], below = words[2 * i + 1];
    if constexpr (sizeof(T) == 1) {
      multiply(2 * i, widen_codes(above), widen_codes(below));
      multiply(2 * i + 1, widen_codes(above >> 8), widen_codes(below >> 8));
    } else {
      multiply(i, above, below);
    }
  }
}

// One token, some query heads, and their way through the keys.
template <class T, int D>
struct PagedRows {
  using Tiles = PagedTiles<T, D>;
  static constexpr int kEights = sizeof(T) == 1 ? 4 : 2;  // 8 columns each, by one ldmatrix
  static constexpr int kUnrolled = D > 128 ? 2 : 16;      // the sums of 256 columns leave few registers

  const PagedArgs& a;
  Tiles& tiles;
  const SeenKeys seen;
  const int64_t head;  // the first query head
  const int heads, steps;
  float result[D / 8][4];
  Softmax softmax;
  RunningSum total[2];

  WT_DEVICE PagedRows(const PagedArgs& args, Tiles& memory, int64_t token, int64_t key_head, int first)
      : a(args),
        tiles(memory),
        seen(args, token, key_head),
        head(key_head * args.group + first),
        heads(min(args.group - first, kHeads)),
        steps(int(ceil_div(args.d, 16))) {
    begin_split();
  }
  WT_DEVICE void begin_split() {
#pragma unroll
    for (auto& sum : result)
#pragma unroll
      for (float& value : sum) value = 0;
    softmax = Softmax{};
  }

  // Heads that are not there, and elements beyond the last, are 0. By pieces: queries have such addresses.
  WT_DEVICE void load_queries(int64_t token, bool by_pieces) {
    constexpr int P = Tiles::kQueryPieces;
    const auto* from = a.query<BFloat16>(token, head);
#pragma unroll 4
    for (int i = threadIdx.x; i < kHeads * P; i += kWarp) {
      const int row = i / P, column = i % P * kPiece;
      char* to = reinterpret_cast<char*>(tiles.q) + place<P>(row, i % P);
      const bool there = row < heads && column < a.d;
      if (by_pieces) {
        copy_async<16>(to, from + row * a.q_head + column, there ? 16 : 0);
        continue;
      }
#pragma unroll
      for (int j = 0; j < kPiece; ++j)
        reinterpret_cast<BFloat16*>(to)[j] = there ? from[row * a.q_head + column + j] : BFloat16(0.f);
    }
  }

  // Keys lie as in the page, with zeros for elements beyond the last; of values that are not seen, which may
  // be NaN, zeros take the place. A lane's first place is worked out, the others follow by constants.
  WT_DEVICE void fetch(const NextPage& next, int turn) {
    constexpr int KP = Tiles::kKeyPieces, VP = Tiles::kValuePieces, kRun = 16 / int(sizeof(T));
    const int lane = threadIdx.x, row = lane / KP, key = lane / VP, column = lane % VP * kRun;
    const int64_t at = next.place(seen, a.faults), from = at < 0 ? 0 : at * a.d * kPage;
    const int d = at < 0 ? 0 : a.d, begin = seen.begin_in(next.walk.page);
    const int count = at < 0 ? 0 : seen.end_in(next.walk.page) - begin;
    auto& page = tiles.pages[turn];
    char *keys = reinterpret_cast<char*>(page.keys), *values = reinterpret_cast<char*>(page.values);
    const T* of_keys = static_cast<const T*>(a.keys) + from + row * kPage + lane % KP * kRun;
    const T* of_values = static_cast<const T*>(a.values) + from + key * a.d + column;
    const int to_keys = place<KP>(row, lane % KP), to_values = place<VP>(Columns<T>::row(key), lane % VP);
#pragma unroll kUnrolled
    for (int i = 0; i < D; i += kWarp / KP)
      copy_async<16>(keys + (to_keys ^ place<KP>(i, 0)), of_keys + i * kPage, row + i < d ? 16 : 0);
    if (column < a.d)
#pragma unroll kUnrolled
      for (int i = 0; i < kPage; i += kWarp / VP)
        copy_async<16>(values + (to_values ^ place<VP>(Columns<T>::row(i), 0)), of_values + i * a.d,
                       unsigned(key + i - begin) < unsigned(count) ? 16 : 0);
    if constexpr (Tiles::kCodes) {
      const int i = lane % 8 * 4;
      if (lane < 16)
        copy_async<16>(page.scales + lane * 4, (lane < 8 ? a.key_scales : a.value_scales) + at * kPage + i,
                       at < 0 ? 0 : 16);
    }
  }

  WT_DEVICE void scores(float (&s)[kPage / 8][4], const typename Tiles::Page& page) const {
    const int lane = threadIdx.x, low = lane / 8 % 2 * 8 + lane % 8, late = lane / 16;
    const char *q = reinterpret_cast<const char*>(tiles.q), *keys = reinterpret_cast<const char*>(page.keys);
    const int of_q = place<Tiles::kQueryPieces>(low, late), of_keys = place<Tiles::kKeyPieces>(low, late);
#pragma unroll
    for (auto& sum : s)
#pragma unroll
      for (float& value : sum) value = 0;
#pragma unroll kUnrolled
    for (int k = 0; k < D / 16; ++k) {
      if (k >= steps) break;
      uint32_t left[4];
      load_matrices(left, q + (of_q ^ place<Tiles::kQueryPieces>(0, 2 * k)));
#pragma unroll
      for (int j = 0; j < kPage / 8; j += kEights) {
        uint32_t right[4];
        load_matrices_transposed(right, keys + (of_keys ^ place<Tiles::kKeyPieces>(16 * k, j)));
        each_operand<T>(
            right, [&](int n, uint32_t b0, uint32_t b1) { mma_16x8x16<BFloat16>(s[j + n], left, b0, b1); });
      }
    }
  }

  // Products become exponents of two, minus infinity where hidden.
  WT_DEVICE void scale_scores(float (&s)[kPage / 8][4], const typename Tiles::Page& page, int index) const {
    const int begin = seen.begin_in(index), end = seen.end_in(index);
#pragma unroll
    for (int n = 0; n < kPage / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int key = Columns<T>::at(n, c);
        const float scale = Tiles::kCodes ? __fmul_rn(a.scale, page.scales[key]) : a.scale;
        const bool shown = key >= begin && key < end;
        s[n][c] = shown ? __fmul_rn(s[n][c], scale) : kLowest;
        s[n][c + 2] = shown ? __fmul_rn(s[n][c + 2], scale) : kLowest;
      }
    if (a.cap <= 0) return;
#pragma unroll
    for (int n = 0; n < kPage / 8; ++n)
#pragma unroll
      for (float& score : s[n])
        if (score != kLowest) score = a.capped(score);
  }
  // The weights of values have their scales, too; those of hidden keys may be NaN.
  WT_DEVICE void scale_weights(float (&s)[kPage / 8][4], const typename Tiles::Page& page, int index) const {
    const int begin = seen.begin_in(index), end = seen.end_in(index);
#pragma unroll
    for (int n = 0; n < kPage / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int key = Columns<T>::at(n, c);
        const float scale = key >= begin && key < end ? page.scales[kPage + key] : 0.f;
        s[n][c] = __fmul_rn(s[n][c], scale);
        s[n][c + 2] = __fmul_rn(s[n][c + 2], scale);
      }
  }

  WT_DEVICE void add_values(const float (&s)[kPage / 8][4], const typename Tiles::Page& page) {
    const int lane = threadIdx.x, low = lane / 8 % 2 * 8 + lane % 8, late = lane / 16;
    const char* values = reinterpret_cast<const char*>(page.values);
    const int of_values = place<Tiles::kValuePieces>(low, late);
#pragma unroll
    for (int k = 0; k < kPage / 16; ++k) {
      const float (&left)[4] = s[2 * k], (&right)[4] = s[2 * k + 1];
      const uint32_t weights[4] = {pack_two<BFloat16>(left[0], left[1]), pack_two<BFloat16>(left[2], left[3]),
                                   pack_two<BFloat16>(right[0], right[1]),
                                   pack_two<BFloat16>(right[2], right[3])};
#pragma unroll
      for (int e = 0; e < D / 8; e += kEights) {
        if (e * 8 >= a.d) break;
        uint32_t operands[4];
        load_matrices_transposed(operands,
                                 values + (of_values ^ place<Tiles::kValuePieces>(16 * k, e / kEights * 2)));
        each_operand<T>(operands, [&](int n, uint32_t b0, uint32_t b1) {
          mma_16x8x16<BFloat16>(result[e + n], weights, b0, b1);
        });
      }
    }
  }

  WT_DEVICE void take_page(int turn, int index) {
    const auto& page = tiles.pages[turn];
    float s[kPage / 8][4], shrink[2];
    scores(s, page);
    scale_scores(s, page, index);
    softmax.advance(s, shrink);
    if (__any_sync(kAllLanes, shrink[0] != 1 || shrink[1] != 1)) rescale(result, shrink);
    if constexpr (Tiles::kCodes) scale_weights(s, page, index);
    add_values(s, page);
  }

  // ---- what splits leave ----

  WT_DEVICE void store_split(int64_t token, int split) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = reduce_four(softmax.sum[half], SumOf{});
      const int row = threadIdx.x / 4 + 8 * half;
      if (row >= heads) continue;
      float* to = a.partial_of(token, head + row, split);
      if (threadIdx.x % 4 == 0) to[0] = softmax.top[half], to[1] = sum;
      store_row(to + kPartialHead, half, [](float value) { return value; });
    }
  }
  WT_DEVICE void merge_split() {
    MergeWeights weights[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      weights[half] = total[half].merge(softmax.top[half], reduce_four(softmax.sum[half], SumOf{}));
#pragma unroll
    for (int e = 0; e < D / 8; ++e)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float before = a.splits > 1 ? tiles.total[e][c][threadIdx.x] : 0.f;
        result[e][c] = weights[c / 2].merge(before, result[e][c]);
        if (a.splits > 1) tiles.total[e][c][threadIdx.x] = result[e][c];
      }
  }
  WT_DEVICE void clear_total() {
    if (a.splits == 1) return;
#pragma unroll
    for (int e = 0; e < D / 8; ++e)
#pragma unroll
      for (int c = 0; c < 4; ++c) tiles.total[e][c][threadIdx.x] = 0;
  }
  WT_DEVICE void store(int64_t token) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = threadIdx.x / 4 + 8 * half;
      if (row >= heads) continue;
      const float factor = total[half].factor(a.sink(head + row));
      store_row(a.output<BFloat16>(token, head + row), half,
                [&](float value) { return finished<BFloat16>(value, factor); });
    }
  }
  // A lane's sums of a row: 4 neighbouring ones of codes, else 2.
  template <class Q, class F>
  WT_DEVICE void store_row(Q* to, int half, F&& value) const {
    constexpr int kRun = sizeof(T) == 1 ? 4 : 2;
#pragma unroll
    for (int e = 0; e < D / 8; e += kRun / 2) {
      const int column = Columns<T>::at(e, 0);
      if (column >= a.d) continue;
      Packed<Q, kRun> run;
#pragma unroll
      for (int i = 0; i < kRun; ++i)
        run[i] = value(kRun == 4 ? result[e + i % 2][2 * half + i / 2] : result[e][2 * half + i]);
      store_packed(to + column, run);
    }
  }
};

// Blocks: tokens by x, key heads and 16 of their query heads by y, and those that share the splits by z.
template <class T, int D>
__global__ void __launch_bounds__(kWarp)
    paged_mma(const __grid_constant__ PagedArgs a, const __grid_constant__ bool queries_by_pieces) {
  auto& tiles = *dynamic_shared<PagedTiles<T, D>>();
  const int64_t token = blockIdx.x;
  const int key_head = int(blockIdx.y % a.key_heads), first = int(blockIdx.y / a.key_heads) * kHeads;
  PagedRows<T, D> rows(a, tiles, token, key_head, first);
  PageWalk walk(rows.seen, int(blockIdx.z), int(gridDim.z));
  if (a.partial && !walk.has_page()) return;
  NextPage next(walk, rows.seen);
  auto fetch = [&](int turn) {
    if (next.walk.has_page()) rows.fetch(next, turn);
    commit_copies();
    next.next(rows.seen);
  };
  rows.load_queries(token, queries_by_pieces);
  fetch(0), fetch(1);
  if (!a.partial) rows.clear_total();
  for (int turn = 0; walk.has_page(); turn ^= 1) {
    wait_copies<1>();
    __syncwarp();  // all lanes' copies of this page are there
    rows.take_page(turn, walk.page);
    __syncwarp();  // before its memory is filled again
    fetch(turn);
    const bool ends = walk.ends_split();
    if (ends && a.partial) rows.store_split(token, walk.split());
    if (ends && !a.partial) rows.merge_split();
    walk.next();
    if (ends && walk.has_page()) rows.begin_split();
  }
  wait_copies<0>();
  if (!a.partial) rows.store(token);
}

template <class T, int D>
void launch_mma(const LaunchContext& ctx, PagedArgs a, int64_t tokens) {
  const int64_t blocks = a.key_heads * ceil_div(a.group, kHeads);
  const unsigned sharing = share_splits(ctx, a, tokens, blocks);
  using Tiles = PagedTiles<T, D>;
  const size_t shared = a.splits > 1 && !a.partial ? sizeof(Tiles) : offsetof(Tiles, total);
  const bool by_pieces = is_aligned(a.q, 16) && a.q_token % kPiece == 0 && a.q_head % kPiece == 0;
  launch(ctx, "_paged_attention", paged_mma<T, D>, dim3(unsigned(tokens), unsigned(blocks), sharing), kWarp,
         shared, a, by_pieces);
  if (a.partial) merge_splits(ctx, a, DType::BFloat16, tokens);
}

template <class T>
bool attend_in(const LaunchContext& ctx, const PagedArgs& a, int64_t tokens) {
  const bool fits = a.d <= 256 && size_t(a.d) * sizeof(T) % 16 == 0 && is_aligned(a.keys, 16) &&
                    is_aligned(a.values, 16) && is_aligned(a.key_scales, 16) &&
                    is_aligned(a.value_scales, 16);
  if (!fits) return false;
  if (a.d <= 64)
    launch_mma<T, 64>(ctx, a, tokens);
  else if (a.d <= 128)
    launch_mma<T, 128>(ctx, a, tokens);
  else
    launch_mma<T, 256>(ctx, a, tokens);
  return true;
}

}  // namespace

bool attend_by_mma(const LaunchContext& ctx, const PagedArgs& a, DType queries, DType pages, int64_t tokens) {
  if (queries != DType::BFloat16) return false;
  return pages == DType::Int8 ? attend_in<int8_t>(ctx, a, tokens) : attend_in<BFloat16>(ctx, a, tokens);
}

}  // namespace warptape::kernels::cuda
