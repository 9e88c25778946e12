// The names of at:: in torch::.
#pragma once

#include "ATen/ATen.h"
#include "torch/version.h"

namespace torch {

using namespace at;
using Dtype = at::ScalarType;

}  // namespace torch
