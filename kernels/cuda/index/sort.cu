// Sorting rows: every value becomes an unsigned key with the same order (NaN the largest, both zeros equal),
// and (row, key) pairs are sorted together by kernels/cuda/index/order.cuh; topk takes the first k of each
// row.
#include "kernels/index/sort.h"

#include "kernels/cuda/common/memory.cuh"
#include "kernels/cuda/index/order.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int kThreads = 256;
dim3 blocks_for(int64_t n) { return dim3(unsigned(ceil_div(n, kThreads))); }

// As many bits as the dtype has, right-aligned.
template <class T>
WT_DEVICE uint64_t key_of(T value) {
  constexpr int kBits = 8 * sizeof(T);
  constexpr uint64_t kTop = uint64_t{1} << (kBits - 1), kAll = kTop | (kTop - 1);
  if constexpr (is_floating(dtype_of<T>)) {
    const auto v = widen<Compute<T>>(value);
    if (v != v) return kAll;
    if (v == 0) return kTop;
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return bits & kTop ? ~bits & kAll : bits | kTop;
  } else if constexpr (std::is_same_v<T, Bool> || std::is_same_v<T, uint8_t>) {
    return uint64_t(value);
  } else {
    return (uint64_t(int64_t(value)) & kAll) ^ kTop;
  }
}

struct RowKeys {
  FastDivide n;  // of a row
  bool wide;
  int row_shift;  // rows go above the keys from this bit on; 64: not at all
  uint64_t flip;  // all of a key's bits, for the largest first

  WT_DEVICE int64_t row(int64_t i) const { return wide ? n.quotient<true>(i) : n.quotient<false>(i); }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    sort_keys_kernel(Sorted pairs, const T* x, int64_t count, RowKeys r) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const uint64_t key = key_of(x[i]) ^ r.flip;
  pairs.keys[i] = r.row_shift < 64 ? key | uint64_t(r.row(i)) << r.row_shift : key;
  pairs.positions[i] = uint32_t(i);
}

// A second sort, by row, where keys have no room for it.
__global__ void __launch_bounds__(kThreads) row_keys_kernel(Sorted pairs, int64_t count, RowKeys r) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) pairs.keys[i] = uint64_t(r.row(pairs.positions[i]));
}

// The first k of each row.
template <class U>
__global__ void __launch_bounds__(kThreads)
    pick_kernel(U* values, int64_t* indices, const U* x, const uint32_t* positions, int64_t count, int64_t n,
                FastDivide k, bool wide) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = wide ? k.quotient<true>(i) : k.quotient<false>(i);
  const int64_t position = positions[row * n + (i - row * k.divisor)];
  indices[i] = position - row * n;
  if (values) values[i] = x[position];
}

// Rows [0, outer) together, outer * n below 2^31.
void sort_some(const LaunchContext& ctx, const char* op, char* values, int64_t* indices, const char* x,
               DType dtype, int64_t outer, int64_t n, int64_t k, bool descending) {
  const int64_t count = outer * n;
  const int key_bits = dtype == DType::Bool ? 1 : 8 * int(itemsize(dtype));
  const int row_bits = outer > 1 ? bits_of(uint64_t(outer - 1)) : 0;
  const bool fits = key_bits + row_bits <= 64;
  const uint64_t all = key_bits < 64 ? (uint64_t{1} << key_bits) - 1 : ~uint64_t{0};
  const RowKeys r{FastDivide(n), count > INT32_MAX, fits && row_bits ? key_bits : 64, descending ? all : 0};
  Sorted pairs = make_pairs(ctx, count);
  dispatch(AllTypes{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    launch(ctx, op, sort_keys_kernel<T>, blocks_for(count), dim3(kThreads), 0, pairs,
           reinterpret_cast<const T*>(x), count, r);
  });
  pairs = sort_pairs(ctx, op, pairs, count, fits ? key_bits + row_bits : key_bits);
  if (!fits) {
    launch(ctx, op, row_keys_kernel, blocks_for(count), dim3(kThreads), 0, pairs, count, r);
    pairs = sort_pairs(ctx, op, pairs, count, row_bits);
  }
  dispatch_size(SizeTypes{}, itemsize(dtype), [&](auto t) {
    using U = typename decltype(t)::type;
    launch(ctx, op, pick_kernel<U>, blocks_for(outer * k), dim3(kThreads), 0, reinterpret_cast<U*>(values),
           indices, reinterpret_cast<const U*>(x), pairs.positions, outer * k, n, FastDivide(k),
           outer * k > INT32_MAX);
  });
}

void sort_rows(const LaunchContext& ctx, const char* op, const View& values, const View& indices,
               const View& x, int64_t outer, int64_t n, int64_t k, bool descending) {
  if (outer == 0 || n == 0 || k == 0) return;
  if (n > int64_t{1} << 32)  // positions have 32 bits
    raise_library_error(std::string(op) +
                        ": rows of more than 2^32 elements are not supported on CUDA, got " +
                        std::to_string(n) + "; split the row");
  const int64_t item = int64_t(itemsize(x.dtype));
  const int64_t together = n < kMostPositions ? kMostPositions / n : 1;  // rows
  for (int64_t row = 0; row < outer; row += together) {
    char* to = values.as<char>();
    sort_some(ctx, op, to ? to + row * k * item : nullptr, indices.as<int64_t>() + row * k,
              x.as<const char>() + row * n * item, x.dtype, outer - row < together ? outer - row : together,
              n, k, descending);
  }
}

void sort(const LaunchContext& ctx, const View& values, const View& indices, const View& x, int64_t outer,
          int64_t n, bool descending) {
  sort_rows(ctx, "sort", values, indices, x, outer, n, n, descending);
}

void topk(const LaunchContext& ctx, const View& values, const View& indices, const View& x, int64_t outer,
          int64_t n, int64_t k, bool largest) {
  sort_rows(ctx, "topk", values, indices, x, outer, n, k, largest);
}

// ---- searchsorted ----

struct SearchArgs {
  const void *sorted, *values;
  void* out;
  bool narrow;  // out is int32
  int64_t count, n;
  FastDivide m;
  bool wide, shared, right;
};

template <class T>
__global__ void __launch_bounds__(kThreads) searchsorted_kernel(const __grid_constant__ SearchArgs a) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.count) return;
  const int64_t row = a.shared ? 0 : a.wide ? a.m.quotient<true>(i) : a.m.quotient<false>(i);
  const T* sorted = static_cast<const T*>(a.sorted) + row * a.n;
  const uint64_t key = key_of(static_cast<const T*>(a.values)[i]);
  int64_t low = 0, high = a.n;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    const uint64_t found = key_of(sorted[middle]);
    if (found < key || (a.right && found == key))
      low = middle + 1;
    else
      high = middle;
  }
  if (a.narrow)
    static_cast<int32_t*>(a.out)[i] = int32_t(low);
  else
    static_cast<int64_t*>(a.out)[i] = low;
}

void searchsorted(const LaunchContext& ctx, const View& out, const View& sorted, const View& values,
                  int64_t outer, int64_t n, int64_t m, bool shared, bool right) {
  const SearchArgs a{sorted.data, values.data, out.data,      out.dtype == DType::Int32,
                     outer * m,   n,           FastDivide(m), outer * m > INT32_MAX,
                     shared,      right};
  dispatch(AllTypes{}, sorted.dtype, [&](auto t) {
    launch(ctx, "searchsorted", searchsorted_kernel<typename decltype(t)::type>, blocks_for(a.count),
           dim3(kThreads), 0, a);
  });
}

}  // namespace

WT_KERNEL(sort, sort);
WT_KERNEL(topk, topk);
WT_KERNEL(searchsorted, searchsorted);

}  // namespace warptape::kernels::cuda
