// The orders of dims in memory that have a name: row-major, and with the channels of a batch of images (4
// dims) or volumes (5 dims) innermost.
#pragma once

#include <string_view>

#include "tensor/factory.h"

namespace warptape {

enum class MemoryFormat : uint8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };

// "torch.channels_last" and its kin, `otherwise` where none is given; TypeError for another text.
WT_API MemoryFormat memory_format(const char* op, std::optional<std::string_view> name,
                                  MemoryFormat otherwise);
// Strides without gaps. ShapeError where the format is of tensors with other dims.
WT_API Shape strides_in(const char* op, IntList sizes, MemoryFormat format);
WT_API bool is_contiguous_in(const Tensor& t, MemoryFormat format);
// The format that the strides speak of, gaps allowed; Contiguous where sizes of 1 leave it open.
WT_API MemoryFormat suggested_format(const Tensor& t);
inline bool suggests_channels_last(const Tensor& t) {
  return suggested_format(t) != MemoryFormat::Contiguous;
}
// Whether the elements fill a block without gaps or overlap, in some order of the dims.
WT_API bool is_dense(const Tensor& t);

WT_API Tensor empty_in(IntList sizes, TensorOptions options, MemoryFormat format);
// As a new tensor of t's sizes; Preserve keeps t's strides where its elements fill a block, else their order.
WT_API Tensor empty_like_in(const char* op, const Tensor& t, TensorOptions options, MemoryFormat format);
// t itself when it is contiguous in the format.
WT_API Tensor raw_in(const Tensor& t, MemoryFormat format);
// Strides of a dense tensor whose dims lie in the order of the operands' strides: the first that knows
// decides; none of 0 is asked.
WT_API Shape ordered_strides(IntList sizes, std::span<const Shape> operands);

}  // namespace warptape
