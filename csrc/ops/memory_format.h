// memory_format: the order in which a tensor's dims lie in memory, as Python names it
// ("torch.channels_last").
#pragma once

#include "ops/op.h"

namespace warptape::ops {

using Format = std::optional<std::string_view>;

// The strides that a format asks for; none for torch.preserve_format. Error where the format is of another
// number of dims.
std::optional<Shape> format_strides(const char* op, const Shape& sizes, const Format& format);
// Whether the elements lie as these strides say; those of dims of one element do not matter.
bool has_strides(const Tensor& x, const Shape& strides);
// The format that PyTorch takes a tensor to have: channels last where its strides say so, else contiguous.
const char* suggested_format(const Tensor& x);

}  // namespace warptape::ops
