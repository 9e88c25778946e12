// What combines Float16 and BFloat16 by index: with the instructions that convert, which the code for all
// machines cannot use.
#include "kernels/cpu/common/scatter.h"
#include "kernels/cpu/vector/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

void scatter_narrow(const LaunchContext&, const View& self, const View& index, const View& src, int dim,
                    ScatterMode mode) {
  dispatch(Types<Half, BFloat16>{}, self.dtype,
           [&](auto t) { scatter_mode<typename decltype(t)::type>(self, index, src, dim, mode); });
}
WT_KERNEL(scatter_narrow, scatter_narrow);

struct Sum {
  float alpha;
  template <class V>
  WT_FN V operator()(V a, V b) const {
    return alpha == 1 ? a + b : a + V(alpha) * b;
  }
};
struct Product {
  template <class V>
  WT_FN V operator()(V a, V b) const {
    return a * b;
  }
};

// n elements side by side: `to` op= each of the rows from + offsets[i].
template <class T, class Op, class Lanes>
WT_FN void combine_lanes(T* to, const T* from, const int64_t* offsets, int64_t rows, Lanes lanes, Op op) {
  auto sum = load(to, lanes);
  for (int64_t i = 0; i < rows; ++i) sum = op(sum, load(from + offsets[i], lanes));
  store(to, sum, lanes);
}

template <class T, class Op>
WT_FN void combine_run(T* to, const T* from, const int64_t* offsets, int64_t rows, int64_t n, int64_t to_step,
                       int64_t from_step, Op op) {
  constexpr int L = VFloat::kLanes;
  if (to_step == 1 && from_step == 1 && n > 1) {
    for (; n >= L; n -= L, to += L, from += L) combine_lanes(to, from, offsets, rows, AllLanes{}, op);
    if (n > 0) combine_lanes(to, from, offsets, rows, FirstLanes{int(n)}, op);
    return;
  }
  for (int64_t j = 0; j < n; ++j) {
    float sum = float(to[j * to_step]);
    for (int64_t i = 0; i < rows; ++i) sum = op(sum, float(from[offsets[i] + j * from_step]));
    to[j * to_step] = T(sum);
  }
}

// Tasks are cut across the elements of a row where there are many, else across the groups.
template <class T, class Op>
void combine_rows(const View& self, const View& src, const GroupedRows& rows, Op op) {
  const Walk<2> w = make_walk<2>(self, 0, self.ndim, {&self, &src});
  const int64_t elements = w.numel(), count = rows.start[rows.groups];
  const auto group = [&](int64_t g, int64_t begin, int64_t end) {
    const int64_t* from = rows.from + rows.start[g];
    walk(w, begin, end, [&](const int64_t (&at)[2], int64_t n, const int64_t*) {
      combine_run(self.as<T>() + rows.to[g] + at[0], src.as<T>() + at[1], from,
                  rows.start[g + 1] - rows.start[g], n, w.inner(0), w.inner(1), op);
    });
  };
  if (elements >= 256) {
    const int64_t grain = kWalkGrain / count < 64 ? 64 : kWalkGrain / count;
    return parallel_for(elements, grain, [&](int64_t begin, int64_t end) {
      for (int64_t g = 0; g < rows.groups; ++g) {
        if (g % 1024 == 0) poll_interrupt();
        group(g, begin, end);
      }
    });
  }
  const int64_t of_a_group = count / rows.groups * (elements + 1) + 1;
  parallel_for(rows.groups, kWalkGrain / of_a_group + 1, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      if ((g - begin) % 1024 == 0) poll_interrupt();
      group(g, 0, elements);
    }
  });
}

void combine_narrow(const LaunchContext&, const View& self, const View& src, const GroupedRows& rows,
                    ScatterMode mode, double alpha) {
  dispatch(Types<Half, BFloat16>{}, self.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (mode == ScatterMode::Multiply) return combine_rows<T>(self, src, rows, Product{});
    combine_rows<T>(self, src, rows, Sum{float(alpha)});
  });
}
WT_KERNEL(combine_narrow, combine_narrow);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
