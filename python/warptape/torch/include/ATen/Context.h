// Settings of the runtime.
#pragma once

#include "c10/util/Exception.h"

namespace at {

struct Context {
  bool deterministicAlgorithms() const { return wtx::api().deterministic() != 0; }
  bool hasCUDA() const { return wtx::api().device_count() > 0; }
};
inline Context& globalContext() {
  static Context one;
  return one;
}

}  // namespace at
