// Groups of threads that share one row or one output, and rows cut into pieces of 16 bytes.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <initializer_list>
#endif

#include "kernels/cuda/common/block.cuh"
#include "kernels/cuda/common/memory.cuh"

namespace warptape::kernels::cuda {

constexpr int ceil_power_of_2(int64_t n) {
  int p = 1;
  while (p < n && p < (1 << 30)) p *= 2;
  return p;
}

// Shuffles of any trivial type that is made of 32-bit words.
template <class V, class Shuffle>
WT_DEVICE V shuffle_words(V value, Shuffle shuffle) {
  constexpr int kWords = sizeof(V) / 4;
  static_assert(sizeof(V) % 4 == 0);
  uint32_t words[kWords];
  __builtin_memcpy(words, &value, sizeof(V));
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = shuffle(words[i]);
  __builtin_memcpy(&value, words, sizeof(V));
  return value;
}
template <class V>
WT_DEVICE V shuffle_xor(V value, int step) {
  return shuffle_words(value, [=](uint32_t w) { return __shfl_xor_sync(kAllLanes, w, step); });
}
template <class V>
WT_DEVICE V shuffle_up(V value, int step) {
  return shuffle_words(value, [=](uint32_t w) { return __shfl_up_sync(kAllLanes, w, step); });
}
template <class V>
WT_DEVICE V shuffle_from(V value, int lane) {
  return shuffle_words(value, [=](uint32_t w) { return __shfl_sync(kAllLanes, w, lane); });
}

// Joins the values of `lanes` neighbouring threads, a power of two; every one gets the result, to the bit,
// for operands are taken in the threads' order. All threads of the block call; `shared` has room for one
// value a warp. May be called again at once.
template <class V, class Join>
WT_DEVICE V group_join(V value, int lanes, V identity, Join join, V* shared) {
  const int lane = threadIdx.x % kWarp;
  auto join_lanes = [&](int width) {
    for (int step = 1; step < width; step *= 2) {
      const V other = shuffle_xor(value, step);
      value = lane & step ? join(other, value) : join(value, other);
    }
  };
  join_lanes(min(lanes, kWarp));
  if (lanes <= kWarp) return value;
  const int warps = lanes / kWarp, warp = threadIdx.x / kWarp;
  __syncthreads();  // the last call's reads are over
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = lane < warps ? shared[warp / warps * warps + lane] : identity;
  join_lanes(warps);
  return shuffle_from(value, 0);
}

// Joins what N values of each thread at (t % across, t / across) of the block lie above each other, in order;
// all threads of a column get the result. Uses dynamic shared memory for N values of half the threads.
template <class V, int N, class Join>
WT_DEVICE void columns_join(V (&values)[N], int across, Join join) {
  V* shared = dynamic_shared<V>();
  const int rows = blockDim.x / across, ty = threadIdx.x / across, at = threadIdx.x % across * N;
  for (int step = rows / 2; step > 0; step /= 2) {
    __syncthreads();
    if (ty >= step && ty < 2 * step)
#pragma unroll
      for (int w = 0; w < N; ++w) shared[(ty - step) * across * N + at + w] = values[w];
    __syncthreads();
    if (ty < step)
#pragma unroll
      for (int w = 0; w < N; ++w) values[w] = join(values[w], shared[ty * across * N + at + w]);
  }
  if (rows == 1) return;
  __syncthreads();
  if (ty == 0)
#pragma unroll
    for (int w = 0; w < N; ++w) shared[at + w] = values[w];
  __syncthreads();
#pragma unroll
  for (int w = 0; w < N; ++w) values[w] = shared[at + w];
}

// A row of n values of T as pieces of W that begin at multiples of 16 bytes: the first and the last one may
// stick out of the row. Piece c begins at element first(c).
template <class T>
struct Pieces {
  static constexpr int W = kPackedWidth<T>;
  int64_t n;
  int off;       // elements of piece 0 that lie before the row
  bool vectors;  // whole pieces may be accessed at once

  WT_DEVICE Pieces(const T* row, int64_t n, bool vectors)
      : n(n), off(vectors ? int(reinterpret_cast<uintptr_t>(row) / sizeof(T) % W) : 0), vectors(vectors) {}
  WT_DEVICE int64_t first(int64_t c) const { return c * W - off; }
  WT_DEVICE bool whole(int64_t at) const { return vectors && at >= 0 && at + W <= n; }
  WT_DEVICE bool has(int64_t i) const { return uint64_t(i) < uint64_t(n); }
};

// Calls many(at) with the places of U or 1 runs of W elements that may be accessed at once, one(i) for the
// elements of a row that belong to none; by a group's thread `lane` of `lanes`.
template <int U, class T, class Many, class One>
WT_DEVICE void for_row(const Pieces<T>& p, int lane, int lanes, Many&& many, One&& one) {
  constexpr int W = kPackedWidth<T>;
  const int64_t head = p.vectors ? min(p.n, int64_t((W - p.off) % W)) : p.n;
  const int64_t runs = (p.n - head) / W;
#pragma unroll 1
  for (int64_t i = lane; i < head; i += lanes) one(i);
  int64_t c = lane;
  if constexpr (U > 1) {
    for (; c + int64_t(U - 1) * lanes < runs; c += int64_t(U) * lanes) {
      int64_t at[U];
#pragma unroll
      for (int u = 0; u < U; ++u) at[u] = head + (c + int64_t(u) * lanes) * W;
      many(at);
    }
  }
#pragma unroll 1
  for (; c < runs; c += lanes) {
    const int64_t at[1] = {head + c * W};
    many(at);
  }
#pragma unroll 1
  for (int64_t i = head + runs * W + lane; i < p.n; i += lanes) one(i);
}

// Runs of W elements at `at`, as values of C.
template <class C, int U, class T>
WT_DEVICE void load_runs(C (&x)[U * kPackedWidth<T>], const T* row, const int64_t (&at)[U]) {
  constexpr int W = kPackedWidth<T>;
  Packed<T, W> raw[U];
#pragma unroll
  for (int u = 0; u < U; ++u) raw[u] = load_packed<W>(row + at[u]);
#pragma unroll
  for (int i = 0; i < U * W; ++i) x[i] = widen<C>(raw[i / W][i % W]);
}
template <class C, int U, class T>
WT_DEVICE void store_runs(T* row, const int64_t (&at)[U], const C (&x)[U * kPackedWidth<T>]) {
  constexpr int W = kPackedWidth<T>;
#pragma unroll
  for (int u = 0; u < U; ++u) {
    Packed<T, W> raw;
#pragma unroll
    for (int j = 0; j < W; ++j) raw[j] = narrow<T>(x[u * W + j]);
    store_packed(row + at[u], raw);
  }
}

// A row that a group of threads holds in registers: K pieces of each thread.
inline constexpr int kRowPieces = 4;
template <class T, int K = kRowPieces>
struct RowTile {
  static constexpr int W = kPackedWidth<T>;
  using Raw = Packed<T, W>;
  int n, off, lane, lanes;
  bool vectors;

  // n is 0 for threads without a row.
  WT_DEVICE RowTile(const T* row, int64_t n, bool vectors, int lanes)
      : n(int(n)),
        off(Pieces<T>(row, n, vectors).off),
        lane(threadIdx.x % lanes),
        lanes(lanes),
        vectors(vectors) {}
  WT_DEVICE int first(int k) const { return (lane + k * lanes) * W - off; }
  WT_DEVICE bool has(int i) const { return unsigned(i) < unsigned(n); }
  WT_DEVICE bool whole(int at) const { return vectors && at >= 0 && at + W <= n; }
  WT_DEVICE bool touches(int at) const { return at < n && at + W > 0; }

  // What is not there becomes `fill`.
  WT_DEVICE void load(Raw (&raw)[K], const T* row, T fill) const {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (whole(first(k))) raw[k] = load_packed<W>(row + first(k));
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (whole(first(k))) continue;
#pragma unroll
      for (int j = 0; j < W; ++j) raw[k][j] = fill;
      if (!touches(first(k))) continue;
#pragma unroll
      for (int j = 0; j < W; ++j)
        if (has(first(k) + j)) raw[k][j] = row[first(k) + j];
    }
  }
  WT_DEVICE void store(T* row, int k, const Raw& raw) const {
    if (whole(first(k))) return store_packed(row + first(k), raw);
#pragma unroll
    for (int j = 0; j < W; ++j)
      if (has(first(k) + j)) row[first(k) + j] = raw[j];
  }
};

#if !defined(__CUDACC_RTC__)
// On the host: whether pieces of all these rows begin at the same elements, and how many a row of n has.
template <class T>
bool in_step(std::initializer_list<const void*> rows) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(*rows.begin());
  for (const void* p : rows)
    if ((reinterpret_cast<uintptr_t>(p) - first) % 16 || first % sizeof(T)) return false;
  return true;
}
// How rows of n elements are given to groups: `lanes` threads each, in blocks of `threads`. A thread may hold
// `held` pieces.
struct RowGrid {
  bool vectors, fits;  // fits: in registers
  int lanes, threads;
  int64_t blocks;
};
template <class T>
RowGrid row_grid(std::initializer_list<const void*> bases, int64_t rows, int64_t n, int most_threads,
                 int held = kRowPieces) {
  constexpr int64_t W = kPackedWidth<T>;
  RowGrid g;
  g.vectors = in_step<T>(bases);
  const bool aligned = g.vectors && is_aligned(*bases.begin(), 16) && n % W == 0;
  const int64_t pieces = ceil_div(n + (aligned ? 0 : W - 1), W);
  g.fits = pieces <= int64_t(held) * most_threads;
  g.lanes = g.fits ? ceil_power_of_2(ceil_div(pieces, int64_t(held))) : most_threads;
  g.threads = g.lanes > 256 ? g.lanes : 256;
  g.blocks = ceil_div(rows, g.threads / g.lanes);
  return g;
}
#endif

}  // namespace warptape::kernels::cuda
