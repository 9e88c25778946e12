// The windows of images as columns, and columns added up to images.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// kernel_size, dilation, padding, stride
extern WT_API const Op<Tensor(const Tensor&, IntList, IntList, IntList, IntList)> unfold_columns;
// output_size, kernel_size, dilation, padding, stride
extern WT_API const Op<Tensor(const Tensor&, IntList, IntList, IntList, IntList, IntList)> fold_columns;

}  // namespace warptape::ops
