// Sums and means over bags of a table's rows: a piece of a bag's columns stays in registers while its rows
// pass.
#include "kernels/cpu/index/fault.h"
#include "kernels/cpu/vector/rows.h"
#include "kernels/nn/embedding.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

template <class T>
struct Bag {
  using C = Compute<T>;
  const BagPlan& p;
  const T *table, *weights;
  int64_t begin, end;

  bool counts(int64_t i) const { return p.indices[i] != p.padding_idx; }

  // kWide vectors of the columns from `first` on; `count` divides them.
  template <int kWide, class Lanes>
  WT_FN void sum(T* out, int64_t first, C count, Lanes lanes) const {
    constexpr int kLanes = Vec<C>::kLanes;
    Vec<C> sums[kWide];
    for (Vec<C>& s : sums) s = Vec<C>(C(0));
    cpu::in_pieces(end - begin, [&](int64_t from, int64_t to) {
      for (int64_t i = begin + from; i < begin + to; ++i) {
        if (!counts(i)) continue;
        const T* row = table + p.indices[i] * p.dim + first;
        const Vec<C> w(weights ? C(Compute<T>(weights[i])) : C(1));
        for (int k = 0; k < kWide; ++k) sums[k] = fma(w, load(row + k * kLanes, lanes), sums[k]);
      }
    });
    for (int k = 0; k < kWide; ++k) store(out + first + k * kLanes, sums[k] / Vec<C>(count), lanes);
  }

  void run(const LaunchContext& ctx, T* out) const {
    constexpr int kLanes = Vec<C>::kLanes;
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
      if (p.indices[i] < 0 || p.indices[i] >= p.vocab) return cpu::report_index(ctx, p.indices[i], p.vocab);
      count += counts(i);
    }
    const C by = p.mean && count ? C(count) : C(1);
    int64_t first = 0;
    for (; first + 8 * kLanes <= p.dim; first += 8 * kLanes) sum<8>(out, first, by, AllLanes{});
    for (; first + 4 * kLanes <= p.dim; first += 4 * kLanes) sum<4>(out, first, by, AllLanes{});
    for (; first + kLanes <= p.dim; first += kLanes) sum<1>(out, first, by, AllLanes{});
    if (first < p.dim) sum<1>(out, first, by, FirstLanes{int(p.dim - first)});
  }
};

void embedding_bag(const LaunchContext& ctx, const BagPlan& p, void* out, const void* table,
                   const void* weights) {
  const int64_t indices = p.bags ? p.starts[p.bags] - p.starts[0] : 0;
  dispatch(FloatTypes{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    cpu::parallel_for(p.bags, row_grain(indices / (p.bags + 1) * p.dim), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        Bag<T>{p, static_cast<const T*>(table), static_cast<const T*>(weights), p.starts[b], p.starts[b + 1]}
            .run(ctx, static_cast<T*>(out) + b * p.dim);
    });
  });
}

}  // namespace

WT_KERNEL(embedding_bag, embedding_bag);

}  // namespace warptape::kernels::WARPTAPE_ISA
