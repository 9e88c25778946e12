// The types in which sums of a type are made.
#pragma once

#include "c10/core/ScalarType.h"

namespace at {

// Half, BFloat16: float; on the host, float: double and integers: int64_t.
template <class T, bool is_cuda>
struct AccumulateType {
  static constexpr bool kNarrow = std::is_same<T, c10::Half>::value || std::is_same<T, c10::BFloat16>::value;
  using Wide = std::conditional_t<std::is_same<T, float>::value && !is_cuda, double, T>;
  using type = std::conditional_t<
      kNarrow, float,
      std::conditional_t<std::is_integral<T>::value && !std::is_same<T, bool>::value, int64_t, Wide>>;
};
template <class T, bool is_cuda>
using acc_type = typename AccumulateType<T, is_cuda>::type;

template <class T>
struct OpMathType {
  using type = std::conditional_t<AccumulateType<T, true>::kNarrow, float, T>;
};
template <class T>
using opmath_type = typename OpMathType<T>::type;

}  // namespace at
