// Convolutions and linear layers on bytes, for inference: what a statically quantised net calls. Layouts:
// kernels/quant/int8_conv.h.
#include "kernels/quant/int8_conv.h"

#include <limits>

#include "ops/kernel_inputs.h"
#include "ops/quant/packed_linear.h"
#include "tensor/memory_format.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::Int8ConvFn> conv_slot{"int8_conv"};
kernels::Slot<kernels::QuantizeBytesFn> quantize_slot{"quantize_bytes"};

kernels::Slot<kernels::MaxPoolBytesFn> pool_slot{"max_pool_bytes"};

constexpr const char *kConv = "_int8_conv2d", *kPool = "_max_pool_bytes", *kQuantizeBytes = "_quantize_bytes";

void check_part(const Tensor& x, const char* what, const Tensor& t, DType dtype, const Shape& sizes) {
  check_same_device(kConv, x, t, what);
  WT_CHECK(t.dtype() == dtype, DtypeError, kConv, ": expected ", what, " of ", dtype, ", got ", t.dtype());
  WT_CHECK(t.sizes() == sizes, ShapeError, kConv, ": expected ", what, " ", sizes, ", got shape ", t.sizes());
}

// Sizes and steps of windows over [N, C, H, W].
template <class Plan>
void set_windows(const char* op, Plan& p, const Tensor& x, IntList kernel, IntList stride, IntList padding,
                 IntList dilation) {
  WT_CHECK(x.dtype() == DType::UInt8, DtypeError, op, ": expected an input of uint8, got ", x.dtype());
  WT_CHECK(x.ndim() == 4, ShapeError, op, ": expected an input [N, C, H, W], got shape ", x.sizes());
  for (const IntList* list : {&kernel, &stride, &padding, &dilation})
    WT_CHECK(list->size() == 2, ShapeError, op,
             ": expected two numbers for kernel, stride, padding and dilation, got ", list->size());
  p.batch = x.sizes()[0];
  for (size_t d = 0; d < 2; ++d) {
    WT_CHECK(kernel[d] > 0 && stride[d] > 0 && padding[d] >= 0 && dilation[d] > 0, ValueError, op,
             ": kernel, stride and dilation must be positive, padding not negative");
    p.in[d] = x.sizes()[2 + d], p.kernel[d] = kernel[d], p.stride[d] = stride[d];
    p.padding[d] = padding[d], p.dilation[d] = dilation[d];
    const int64_t room = p.in[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1;
    WT_CHECK(room >= 0, ShapeError, op, ": an input of shape ", x.sizes(), " is smaller than the kernel");
    p.out[d] = room / stride[d] + 1;
  }
}

Tensor conv_impl(const Tensor& x, const Tensor& packed, const Tensor& scale, const Tensor& bias,
                 int64_t out_channels, IntList kernel, IntList stride, IntList padding, IntList dilation,
                 int64_t zero_point, double low, const OptTensor& residual, double residual_scale,
                 bool floats) {
  kernels::Int8ConvPlan p{};
  set_windows(kConv, p, x, kernel, stride, padding, dilation);
  WT_CHECK(out_channels > 0, ValueError, kConv, ": out_channels must be positive, got ", out_channels);
  p.in_channels = x.sizes()[1], p.out_channels = out_channels;
  const int64_t panel = kernels::kPanelOutputs, panels = (out_channels + panel - 1) / panel;
  const int64_t words = p.kernel[0] * p.kernel[1] * ((p.in_channels + 3) / 4);
  check_part(x, "packed", packed, DType::Int8, {panels, words, panel, 4});
  check_part(x, "scale", scale, DType::Float32, {panels * panel});
  check_part(x, "bias", bias, DType::Float32, {panels * panel});
  WT_CHECK(zero_point >= 0 && zero_point <= 255, ValueError, kConv,
           ": zero_point must be from 0 to 255, got ", zero_point);
  const Shape sizes{p.batch, out_channels, p.out[0], p.out[1]};
  if (residual) check_part(x, "residual", *residual, DType::UInt8, sizes);
  const Tensor out =
      empty_in(sizes, {floats ? DType::Float32 : DType::UInt8, x.device()}, MemoryFormat::ChannelsLast);
  if (out.numel() == 0 || out.is_meta()) return out;
  const Tensor image = raw_in(x, MemoryFormat::ChannelsLast), w = raw_contiguous(packed),
               factors = raw_contiguous(scale), row = raw_contiguous(bias),
               added = residual ? raw_in(*residual, MemoryFormat::ChannelsLast) : Tensor();
  p.x = image.data_as<uint8_t>(), p.weight = w.data_as<int8_t>();
  p.scale = factors.data_as<float>(), p.bias = row.data_as<float>();
  p.residual = residual ? added.data_as<uint8_t>() : nullptr;
  p.residual_scale = static_cast<float>(residual_scale), p.pad = static_cast<uint8_t>(zero_point);
  p.low = static_cast<float>(low), p.floats = floats, p.out_data = out.data();
  conv_slot(Launch(out.device()), p);
  return out;
}

Tensor max_pool_impl(const Tensor& x, IntList kernel, IntList stride, IntList padding, IntList dilation) {
  kernels::BytePoolPlan p{};
  set_windows(kPool, p, x, kernel, stride, padding, dilation);
  p.channels = x.sizes()[1];
  const Tensor out = empty_in(Shape{p.batch, p.channels, p.out[0], p.out[1]}, {DType::UInt8, x.device()},
                              MemoryFormat::ChannelsLast);
  if (out.numel() == 0 || out.is_meta()) return out;
  const Tensor image = raw_in(x, MemoryFormat::ChannelsLast);
  p.x = image.data_as<uint8_t>(), p.out_data = out.data_as<uint8_t>();
  pool_slot(Launch(out.device()), p);
  return out;
}

Tensor quantize_bytes_impl(const Tensor& x, double scale, int64_t zero_point, bool channels_last) {
  check_floating(kQuantizeBytes, x);
  WT_CHECK(scale > 0 && scale < std::numeric_limits<double>::infinity(), ValueError, kQuantizeBytes,
           ": scale must be positive, got ", scale);
  WT_CHECK(zero_point >= 0 && zero_point <= 255, ValueError, kQuantizeBytes,
           ": zero_point must be from 0 to 255, got ", zero_point);
  check_inference(kQuantizeBytes, x, std::nullopt);
  const MemoryFormat format =
      channels_last && x.ndim() == 4 ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
  const MemoryFormat given = x.ndim() == 4 ? suggested_format(x) : MemoryFormat::Contiguous;
  const Tensor out = empty_in(x.sizes(), {DType::UInt8, x.device()}, given);
  if (out.numel() && !out.is_meta()) {
    const Tensor from = raw_in(raw_cast(x, DType::Float32), given);
    quantize_slot(Launch(out.device()), out.numel(), from.data_as<float>(), static_cast<float>(1 / scale),
                  static_cast<float>(zero_point), out.data_as<uint8_t>());
  }
  return given == format ? out : raw_in(out, format);
}

}  // namespace

const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, IntList, IntList,
                IntList, IntList, int64_t, double, const OptTensor&, double, bool)>
    int8_conv2d{kConv,
                conv_impl,
                kPrivate | kChecked,
                {"input",
                 "packed",
                 "scale",
                 "bias",
                 "out_channels",
                 "kernel",
                 "stride",
                 "padding",
                 "dilation",
                 "zero_point",
                 "low",
                 {"residual", none},
                 {"residual_scale", 1.0},
                 {"floats", false}},
                "A convolution of bytes [N, C, H, W] with packed weights int8 [P, KH * KW * ceil(C / 4), 16, "
                "4], P = ceil(out_channels / 16): sum * scale + bias + residual * residual_scale, at least "
                "low, rounded to bytes unless floats. Outside of the image the input is zero_point. Results "
                "lie with channels last."};
const Op<Tensor(const Tensor&, IntList, IntList, IntList, IntList)> max_pool_bytes{
    kPool,
    max_pool_impl,
    kPrivate | kChecked,
    {"input", "kernel", "stride", "padding", "dilation"},
    "max_pool2d of bytes [N, C, H, W], outside of which is 0. Results lie with channels last."};
const Op<Tensor(const Tensor&, double, int64_t, bool)> quantize_bytes{
    kQuantizeBytes,
    quantize_bytes_impl,
    kPrivate | kChecked,
    {"input", "scale", "zero_point", {"channels_last", false}},
    "input / scale + zero_point, rounded to nearest even and limited to uint8; NaN is 0. With channels_last "
    "images [N, C, H, W] are laid out so."};

}  // namespace warptape::ops
