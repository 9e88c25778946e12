// Connectionist temporal classification: samples on the pool.
#include <cmath>

#include "kernels/ctc.h"

#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::cpu {
namespace {

void ctc_loss(const LaunchContext&, const CtcPlan& p, void* loss, void* grad, const void* log_probs) {
  dispatch(Types<float, double>{}, p.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    parallel_for(p.batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n)
        ctc::Sample<T>(p, n, static_cast<const T*>(log_probs))
            .run(static_cast<T*>(loss), static_cast<T*>(grad));
    });
  });
}

}  // namespace

WT_KERNEL(ctc_loss, ctc_loss);

}  // namespace warptape::kernels::cpu
