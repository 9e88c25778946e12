// What the transforms of one length share: how the length is cut, and roots of unity. Plans are made once and
// kept (common/fft_plan.cpp).
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::cpu {

inline constexpr int kLargestRadix = 127;
inline constexpr int kMaxFftSteps = 64;

struct FftStep {
  int radix;
  int64_t rest;       // of the length that is left to cut, after this step
  int64_t twiddles;   // where the step's factors begin in `roots`: [rest][radix - 1] pairs (re, im)
  int64_t own_roots;  // an odd radix: its cosines, then its sines
};

// Roots are exp(-2 pi i k / n), as pairs of T where nothing else is said.
template <class T>
struct FftPlan {
  int64_t n = 0;
  const T* roots = nullptr;  // of the steps
  int steps = 0;             // 0 where n has a prime factor above kLargestRadix
  FftStep step[kMaxFftSteps] = {};

  const T* half = nullptr;  // exp(-pi i k / n) for k <= n / 2: of a real transform of twice the length

  // A long line is a matrix [rows, columns]: transforms of its columns, factors, transforms of its rows.
  int64_t rows = 0, columns = 0;  // 0 where a line is not cut
  const FftPlan *of_columns = nullptr, *of_rows = nullptr;
  const T *turn_re = nullptr, *turn_im = nullptr;  // the factors, [rows, columns] each

  // A line of any length by a convolution of a convenient one (Bluestein 1970, "A linear filtering approach
  // to the computation of discrete Fourier transform").
  const FftPlan* padded = nullptr;  // null where n has steps
  const T* chirp = nullptr;         // exp(-pi i k^2 / n)
  const T* filter = nullptr;        // the transform of the conjugate chirp, over the padded length
};

// Keeps a plan alive; others may use it at the same time.
template <class T>
class FftPlanOf {
 public:
  explicit FftPlanOf(int64_t n);
  ~FftPlanOf();
  FftPlanOf(const FftPlanOf&) = delete;
  FftPlanOf& operator=(const FftPlanOf&) = delete;
  WT_INLINE const FftPlan<T>& operator*() const { return *plan_; }

 private:
  const FftPlan<T>* plan_;
  void* owner_;
};

}  // namespace warptape::kernels::cpu
