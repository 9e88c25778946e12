// What PyTorch's own Python code asserts of arguments.
#pragma once

#include "core/errors.h"

namespace warptape {

class WT_API AssertionError : public Error {
 public:
  using Error::Error;
  ~AssertionError() override;
};

}  // namespace warptape
