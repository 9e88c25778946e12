#pragma once

#include "c10/macros/Macros.h"

namespace at {

template <class T>
C10_HOST_DEVICE T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

}  // namespace at
