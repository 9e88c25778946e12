#include "kernels/elementwise/special.h"

#include "kernels/dispatch.h"
#include "kernels/elementwise/formulas_special.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::cpu {
namespace {

void special_unary(const LaunchContext&, SpecialFunction f, DType dtype, int64_t n, void* out,
                   const void* x) {
  dispatch(Types<float, double>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    parallel_for(n, 512, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        static_cast<T*>(out)[i] = T(special::evaluate(f, double(static_cast<const T*>(x)[i])));
    });
  });
}

void special_pair(const LaunchContext&, SpecialPairFunction f, DType dtype, int64_t n, void* out,
                  const void* a, const void* b) {
  dispatch(Types<float, double>{}, dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    parallel_for(n, 512, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        static_cast<T*>(out)[i] =
            T(special::evaluate(f, double(static_cast<const T*>(a)[i]), double(static_cast<const T*>(b)[i])));
    });
  });
}

}  // namespace

WT_KERNEL(special_unary, special_unary);
WT_KERNEL(special_pair, special_pair);

}  // namespace warptape::kernels::cpu
