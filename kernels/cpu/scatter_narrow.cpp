// Scatter's sums, products and extremes of Float16 and BFloat16, rounded after every element: with the
// instructions that convert, which the code for all machines cannot use.
#include "kernels/cpu/common/scatter.h"
#include "kernels/cpu/rows.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

// Rows that lie side by side are added by vectors.
struct AddNarrow : Add {
  template <class T>
  WT_FN void row(T* to, const T* from, int64_t n) const {
    constexpr int L = VFloat::kLanes;
    for (; n >= L; n -= L, to += L, from += L)
      store(to, load(to, AllLanes{}) + load(from, AllLanes{}), AllLanes{});
    const FirstLanes part{int(n)};
    if (n > 0) store(to, load(to, part) + load(from, part), part);
  }
};

void scatter_narrow(const LaunchContext&, const View& self, const View& index, const View& src, int dim,
                    ScatterMode mode, double alpha) {
  dispatch(Types<Half, BFloat16>{}, self.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (alpha == 1)
      scatter_mode<T, AddNarrow>(self, index, src, dim, mode);
    else
      scatter_typed<T>(self, index, src, dim, AddScaled<double>{alpha});
  });
}
WT_KERNEL(scatter_narrow, scatter_narrow);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
