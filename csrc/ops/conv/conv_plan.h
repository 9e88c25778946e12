// What conv.cpp and conv_frozen.cpp share.
#pragma once

#include "kernels/conv/conv.h"
#include "kernels/fused/chain.h"
#include "ops/conv/conv.h"
#include "tensor/memory_format.h"

namespace warptape::ops {

// Depthwise, which works with channels last, and Planes, which is the same in row-major order, are the CPU's.
enum class ConvKernel : uint8_t { RowMajor, ChannelsLast, Depthwise, Planes };

struct ConvPlan : kernels::ConvPlan {
  MemoryFormat format;     // of the results
  ConvKernel kernel_used;  // where it works in another layout, the results are copied
  MemoryFormat kernel_format() const {
    const bool row_major = kernel_used == ConvKernel::RowMajor || kernel_used == ConvKernel::Planes;
    return row_major ? MemoryFormat::Contiguous : MemoryFormat::ChannelsLast;
  }
  // Whether the forward kernel computes the result where it stays, and runs elementwise ops on it.
  bool takes_epilogue() const { return format == kernel_format() && kernel_used <= ConvKernel::ChannelsLast; }
};

// What is computed with a convolution's result, without gradients; and the packed weight.
struct ConvTail {
  Tensor residual;
  bool inplace = false;  // the sum is written onto the convolution's result, as add_ does
  bool relu = false;
  Tensor packed;
  // relu(out + residual) by ops.
  Tensor after(const Tensor& out) const;
  // The same, of one size, onto `out`, which is dense, as is `residual`, in the same order.
  kernels::ChainPlan plan(const Tensor& out, const Tensor& dense_residual) const;
};

// conv2d of a batch on the CPU, then the tail.
Tensor conv2d_with(const ConvTail& tail, const Tensor& x, const Tensor& w, const OptTensor& bias,
                   IntList stride, IntList padding, IntList dilation, int64_t groups);
// Dtype, channels, groups, kernel and layout of conv2d with the weight.
ConvPlan plan_of_weight(const Tensor& w, int64_t groups);

}  // namespace warptape::ops
