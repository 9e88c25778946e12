// Sums and products of Float16 and BFloat16 by index. Rounded after every element a sum stops growing: 256 +
// 1 is 256 in BFloat16. So the elements that go to one position are brought together, keeping their order,
// and are combined in float and rounded once (the slot "combine_narrow").
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cpu/common/walk.h"
#include "kernels/index/index.h"
#include "kernels/slot.h"

namespace warptape::kernels::cpu {

inline Slot<CombineNarrowFn> combine_narrow_slot{"combine_narrow"};

// `count` rows of elements: each goes from an offset in one tensor to one in another.
class NarrowRows {
 public:
  NarrowRows(const LaunchContext& ctx, int64_t count)
      : ctx_(ctx), count_(count), to_(numbers()), from_(numbers()), start_(numbers(1)) {}

  int64_t* to() const { return to_; }
  int64_t* from() const { return from_; }

  // `self` and `src` have the dims of a row.
  void combine(const View& self, const View& src, ScatterMode mode, double alpha) {
    if (count_ == 0) return;
    if (!std::is_sorted(to_, to_ + count_)) sort();
    int64_t groups = 0;
    for (int64_t i = 0; i < count_; ++i)
      if (i == 0 || to_[i] != to_[i - 1]) to_[groups] = to_[i], start_[groups++] = i;
    start_[groups] = count_;
    combine_narrow_slot(ctx_, self, src, GroupedRows{to_, from_, start_, groups}, mode, alpha);
  }

 private:
  int64_t* numbers(int64_t more = 0) const {
    return static_cast<int64_t*>(ctx_.scratch(size_t(count_ + more) * sizeof(int64_t)));
  }

  // By counting where the targets are few steps apart, else by comparing.
  void sort() {
    int64_t* order = numbers();
    const auto [low, high] = std::minmax_element(to_, to_ + count_);
    const int64_t least = *low, most = *high;
    int64_t step = 0;
    for (int64_t i = 0; i < count_ && step != 1; ++i) step = std::gcd(step, to_[i] - least);
    const int64_t buckets = (most - least) / step + 1;
    if (buckets <= 8 * count_ + 1024) {
      auto* begin = static_cast<int64_t*>(ctx_.scratch(size_t(buckets + 1) * sizeof(int64_t)));
      std::memset(begin, 0, size_t(buckets + 1) * sizeof(int64_t));
      for (int64_t i = 0; i < count_; ++i) ++begin[(to_[i] - least) / step + 1];
      for (int64_t b = 1; b <= buckets; ++b) begin[b] += begin[b - 1];
      for (int64_t i = 0; i < count_; ++i) order[begin[(to_[i] - least) / step]++] = i;
    } else {
      std::iota(order, order + count_, int64_t{0});
      std::stable_sort(order, order + count_, [&](int64_t a, int64_t b) { return to_[a] < to_[b]; });
    }
    to_ = moved(to_, order);
    from_ = moved(from_, order);
  }
  int64_t* moved(const int64_t* x, const int64_t* order) const {
    int64_t* out = numbers();
    for (int64_t i = 0; i < count_; ++i) out[i] = x[order[i]];
    return out;
  }

  const LaunchContext& ctx_;
  int64_t count_;
  int64_t *to_, *from_, *start_;
};

// As "scatter", by Add or Multiply; the indices are valid. src times alpha is added.
inline void scatter_narrow_rows(const LaunchContext& ctx, const View& self, const View& index,
                                const View& src, int dim, ScatterMode mode, double alpha) {
  const int64_t n = index.ndim ? index.sizes[dim] : 1, step = self.ndim ? self.strides[dim] : 0;
  bool one_index = true;  // for all that lies across dim
  for (int d = 0; d < index.ndim; ++d)
    one_index = one_index && (d == dim || index.sizes[d] == 1 || index.strides[d] == 0);
  const int64_t* indices = index.as<int64_t>();
  if (one_index) {
    NarrowRows rows(ctx, n);
    for (int64_t i = 0; i < n; ++i) {
      rows.to()[i] = indices[index.ndim ? i * index.strides[dim] : 0] * step;
      rows.from()[i] = src.ndim ? i * src.strides[dim] : 0;
    }
    return rows.combine(WithoutDim(self, src, dim).view, WithoutDim(src, src, dim).view, mode, alpha);
  }
  NarrowRows rows(ctx, index.numel());
  Walk<3> w = make_walk<3>(index, 0, index.ndim, {&self, &src, &index});
  w.strides[0][dim] = 0;
  parallel_for(index.numel(), kWalkGrain, [&](int64_t begin, int64_t end) {
    int64_t i = begin;
    walk(w, begin, end, [&](const int64_t (&at)[3], int64_t run, const int64_t*) {
      for (int64_t j = 0; j < run; ++j, ++i) {
        rows.to()[i] = at[0] + j * w.inner(0) + indices[at[2] + j * w.inner(2)] * step;
        rows.from()[i] = at[1] + j * w.inner(1);
      }
    });
  });
  const View element{self.data, nullptr, nullptr, 0, self.dtype};
  rows.combine(element, View{src.data, nullptr, nullptr, 0, src.dtype}, mode, alpha);
}

}  // namespace warptape::kernels::cpu
