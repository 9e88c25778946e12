// Sorting by radix: every value becomes an unsigned key with the same order, so one sort serves all dtypes,
// both directions and NaN; it is stable and takes the same time for any input.
#include "kernels/index/sort.h"

#include "kernels/dispatch.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::cpu {
namespace {

// Key types: 32 bits hold every dtype but int64 and float64.
template <class T>
using KeyOf = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>;

template <class T>
WT_INLINE KeyOf<T> key_of(T value) {
  using K = KeyOf<T>;
  constexpr K kTop = K(1) << (8 * sizeof(K) - 1);
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {  // the bits as float's upper ones
    constexpr uint16_t kInf = std::is_same_v<T, Half> ? 0x7c00 : 0x7f80;
    const uint16_t magnitude = value.bits & 0x7fff;
    if (magnitude > kInf) return ~K(0);
    if (magnitude == 0) return kTop;
    const K bits = K(value.bits) << 16;
    return bits & kTop ? ~bits : bits | kTop;
  } else if constexpr (is_floating(dtype_of<T>)) {
    const auto v = static_cast<Compute<T>>(value);
    if (v != v) return ~K(0);
    if (v == 0) return kTop;  // both zeros are equal
    K bits;
    std::memcpy(&bits, &v, sizeof(K));
    return bits & kTop ? ~bits : bits | kTop;
  } else if constexpr (std::is_same_v<T, Bool> || std::is_same_v<T, uint8_t>) {
    return K(value);
  } else {
    return K(static_cast<std::conditional_t<(sizeof(T) > 4), int64_t, int32_t>>(value)) ^ kTop;
  }
}

template <class K>
struct Entry {
  K key;
  uint32_t index;
};

template <class K>
WT_INLINE void insertion_sort(Entry<K>* a, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    const Entry<K> e = a[i];
    int64_t j = i;
    for (; j > 0 && e.key < a[j - 1].key; --j) a[j] = a[j - 1];
    a[j] = e;
  }
}

// Sorts a[0, n) by key, least significant byte first; `other` is as long. Returns where the result lies. A
// byte that all keys share costs nothing but its count.
template <class K>
Entry<K>* radix_sort(Entry<K>* a, Entry<K>* other, int64_t n) {
  constexpr int kBytes = sizeof(K);
  uint32_t counts[kBytes][256] = {};
  in_pieces(n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int b = 0; b < kBytes; ++b) ++counts[b][a[i].key >> (8 * b) & 255];
  });
  for (int b = 0; b < kBytes; ++b) {
    uint32_t* start = counts[b];
    if (start[a[0].key >> (8 * b) & 255] == n) continue;
    uint32_t sum = 0;
    for (int v = 0; v < 256; ++v) {
      const uint32_t count = start[v];
      start[v] = sum;
      sum += count;
    }
    in_pieces(n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) other[start[a[i].key >> (8 * b) & 255]++] = a[i];
    });
    Entry<K>* swap = a;
    a = other;
    other = swap;
  }
  return a;
}

template <class K>
Entry<K>* sort_entries(Entry<K>* a, Entry<K>* other, int64_t n) {
  if (n > 64) return radix_sort(a, other, n);
  insertion_sort(a, n);
  return a;
}

// The entries of a row, in its order.
template <class T>
void enter(Entry<KeyOf<T>>* to, const T* row, int64_t n, KeyOf<T> flip) {
  in_pieces(n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = {key_of(row[i]) ^ flip, uint32_t(i)};
  });
}

template <class T>
void emit(const Entry<KeyOf<T>>* from, int64_t count, const T* row, T* values, int64_t* indices) {
  in_pieces(count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) indices[i] = from[i].index;
    if (values)
      for (int64_t i = begin; i < end; ++i) values[i] = row[from[i].index];
  });
}

inline constexpr int64_t kSlots = 32;  // tasks, each with scratch of its own

// Cuts the rows into at most kSlots tasks and calls f(row, scratch of that task: `entries` entries).
template <class K, class F>
void for_rows(const LaunchContext& ctx, int64_t outer, int64_t n, int64_t entries, F&& f) {
  int64_t grain = 4096 / (n + 1) + 1;
  if (grain * kSlots < outer) grain = (outer + kSlots - 1) / kSlots;
  const int64_t tasks = (outer + grain - 1) / grain;
  auto* scratch = static_cast<Entry<K>*>(ctx.scratch((tasks * entries + 1) * sizeof(Entry<K>)));
  parallel_for(tasks, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task)
      for (int64_t row = task * grain; row < outer && row < (task + 1) * grain; ++row)
        f(row, scratch + task * entries);
  });
}

void sort(const LaunchContext& ctx, const View& values, const View& indices, const View& x, int64_t outer,
          int64_t n, bool descending) {
  dispatch(AllTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using K = KeyOf<T>;
    const K flip = descending ? ~K(0) : K(0);
    for_rows<K>(ctx, outer, n, 2 * n, [&](int64_t r, Entry<K>* scratch) {
      const T* row = x.as<T>() + r * n;
      enter(scratch, row, n, flip);
      T* v = values.data ? values.as<T>() + r * n : nullptr;
      emit<T>(sort_entries(scratch, scratch + n, n), n, row, v, indices.as<int64_t>() + r * n);
    });
  });
}

// Of two entries, which leaves the heap first: the larger key; of equal ones the later index.
template <class K>
WT_INLINE bool worse(const Entry<K>& a, const Entry<K>& b) {
  return a.key > b.key || (a.key == b.key && a.index > b.index);
}

template <class K>
void sift_down(Entry<K>* heap, int64_t k, int64_t i) {
  const Entry<K> e = heap[i];
  for (int64_t child = 2 * i + 1; child < k; child = 2 * i + 1) {
    if (child + 1 < k && worse(heap[child + 1], heap[child])) ++child;
    if (!worse(heap[child], e)) break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = e;
}

// A heap of the k smallest keys, its worst on top; then put in order by taking the worst away again and
// again.
template <class T>
void topk_row(const T* row, int64_t n, int64_t k, KeyOf<T> flip, Entry<KeyOf<T>>* heap) {
  for (int64_t i = 0; i < k; ++i) heap[i] = {key_of(row[i]) ^ flip, uint32_t(i)};
  for (int64_t i = k / 2 - 1; i >= 0; --i) sift_down(heap, k, i);
  in_pieces(n - k, [&](int64_t begin, int64_t end) {
    for (int64_t i = k + begin; i < k + end; ++i) {
      const auto key = key_of(row[i]) ^ flip;
      if (key >= heap[0].key) continue;
      heap[0] = {key, uint32_t(i)};
      sift_down(heap, k, 0);
    }
  });
  for (int64_t left = k - 1; left > 0; --left) {
    const auto top = heap[0];
    heap[0] = heap[left];
    heap[left] = top;
    sift_down(heap, left, 0);
  }
}

void topk(const LaunchContext& ctx, const View& values, const View& indices, const View& x, int64_t outer,
          int64_t n, int64_t k, bool largest) {
  if (k == 0) return;
  dispatch(AllTypes{}, x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using K = KeyOf<T>;
    const K flip = largest ? ~K(0) : K(0);
    const bool by_heap = k <= n / 8 + 16;
    for_rows<K>(ctx, outer, n, by_heap ? k : 2 * n, [&](int64_t r, Entry<K>* scratch) {
      const T* row = x.as<T>() + r * n;
      const Entry<K>* result = scratch;
      if (by_heap) {
        topk_row(row, n, k, flip, scratch);
      } else {
        enter(scratch, row, n, flip);
        result = sort_entries(scratch, scratch + n, n);
      }
      emit<T>(result, k, row, values.as<T>() + r * k, indices.as<int64_t>() + r * k);
    });
  });
}

// How many of n sorted keys are below `key`, or not above it. Every search takes the same steps, without
// branches, so that the processor overlaps them.
template <class K, class F>
WT_INLINE int64_t place_of(K key, int64_t n, bool right, F&& key_at) {
  const auto before = [&](int64_t i) __attribute__((always_inline)) {
    const K found = key_at(i);
    return bool((found < key) | (right & (found == key)));
  };
  int64_t low = 0;
  for (; n > 1; n -= n / 2) low += -int64_t(before(low + n / 2 - 1)) & (n / 2);
  return low + (n == 1 && before(low));
}

void searchsorted(const LaunchContext&, const View& out, const View& sorted, const View& values,
                  int64_t outer, int64_t n, int64_t m, bool shared, bool right) {
  dispatch(AllTypes{}, sorted.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using K = KeyOf<T>;
    // Values [begin, end) of one row.
    const auto search = [&](const T* row, int64_t begin, int64_t end) {
      const bool keyed = n <= end - begin;  // else few of the row are looked at
      K* keys = keyed ? static_cast<K*>(thread_scratch(size_t(n + 1) * sizeof(K))) : nullptr;
      for (int64_t i = 0; keyed && i < n; ++i) keys[i] = key_of(row[i]);
      for (int64_t p = begin; p < end; ++p) {
        const K key = key_of(values.as<T>()[p]);
        const int64_t place = keyed ? place_of(key, n, right, [&](int64_t i) { return keys[i]; })
                                    : place_of(key, n, right, [&](int64_t i) { return key_of(row[i]); });
        if (out.dtype == DType::Int64)
          out.as<int64_t>()[p] = place;
        else
          out.as<int32_t>()[p] = int32_t(place);
      }
    };
    parallel_for(outer * m, 4096, [&](int64_t begin, int64_t end) {
      for (int64_t next; begin < end; begin = next) {
        next = shared || (begin / m + 1) * m > end ? end : (begin / m + 1) * m;
        search(sorted.as<T>() + (shared ? 0 : begin / m * n), begin, next);
      }
    });
  });
}

}  // namespace

WT_KERNEL(sort, sort);
WT_KERNEL(topk, topk);
WT_KERNEL(searchsorted, searchsorted);

}  // namespace warptape::kernels::cpu
