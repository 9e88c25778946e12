#include "ops/quant/quant_linear.h"

#include "kernels/quant/quant_linear.h"
#include "ops/kernel_inputs.h"
#include "ops/quant/packed_linear.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::QuantizeLinearWeightFn> quantize_slot{"quantize_linear_weight"};
kernels::Slot<kernels::PackLinearCodesFn> pack_slot{"pack_linear_codes"};
kernels::Slot<kernels::QuantLinearFn> quant_slot{"quant_linear"};

constexpr const char *kQuantize = "_quantize_linear_weight", *kLinear = "_quant_linear";
constexpr const char* kPack = "_pack_linear_codes";
constexpr int64_t kPanel = kernels::kPanelOutputs;

kernels::QuantFormat format_of(const char* op, int64_t bits, int64_t group) {
  WT_CHECK(bits == 4 || bits == 8, ValueError, op, ": expected bits 4 or 8, got ", bits);
  WT_CHECK(group == 0 || group == 32 || group == 64 || group == 128, ValueError, op,
           ": expected group 32, 64 or 128, or 0 for one scale an output, got ", group);
  return {bits, group};
}

Shape codes_sizes(const kernels::QuantFormat& format, int64_t outputs, int64_t inputs) {
  return {(outputs + kPanel - 1) / kPanel, format.panel_bytes(inputs) / (4 * kPanel), kPanel, 4};
}
Shape scales_sizes(const kernels::QuantFormat& format, int64_t outputs, int64_t inputs) {
  return {(outputs + kPanel - 1) / kPanel, format.group ? format.groups(inputs) : 1, kPanel};
}
DType scales_dtype(const kernels::QuantFormat& format) {
  return format.group ? DType::Float16 : DType::Float32;
}

Tensor zeros_of(const Shape& sizes, DType dtype, const Tensor& like) {
  const Tensor out = empty(sizes, {dtype, like.device()});
  if (!out.is_meta()) raw_fill(out, 0);
  return out;
}

Tensor copy_on(Device device, const Tensor& t) {
  const Tensor out = empty(t.sizes(), {t.dtype(), device});
  raw_copy(out, t);
  return out;
}

std::vector<Tensor> quantize_impl(const Tensor& weight, int64_t bits, int64_t group, bool symmetric) {
  const kernels::QuantFormat format = format_of(kQuantize, bits, group);
  WT_CHECK(weight.ndim() == 2, ShapeError, kQuantize, ": weight must be [out, in], got shape ",
           weight.sizes());
  check_floating(kQuantize, weight);
  check_inference(kQuantize, weight, std::nullopt);
  if (!weight.is_meta() && !weight.device().is_host()) {  // done once for a weight: by the CPU
    std::vector<Tensor> parts = quantize_impl(copy_on(Device{}, weight), bits, group, symmetric);
    for (Tensor& part : parts) part = copy_on(weight.device(), part);
    return parts;
  }
  const int64_t outputs = weight.sizes()[0], inputs = weight.sizes()[1];
  const Shape sizes = scales_sizes(format, outputs, inputs);
  std::vector<Tensor> out{zeros_of(codes_sizes(format, outputs, inputs), DType::UInt8, weight),
                          zeros_of(sizes, scales_dtype(format), weight)};
  if (!symmetric) out.push_back(zeros_of(sizes, scales_dtype(format), weight));
  if (weight.is_meta() || weight.numel() == 0) return out;
  const Tensor floats = raw_contiguous(raw_cast(weight, DType::Float32));
  const bool finite =
      quantize_slot(Launch(weight.device()),
                    kernels::QuantizePlan{format, outputs, inputs, floats.data_as<float>(), out[0].data(),
                                          out[1].data(), symmetric ? nullptr : out[2].data()});
  WT_CHECK(finite, ValueError, kQuantize, ": weight has values that are not finite or too large for ",
           scales_dtype(format), " scales; it has no codes of ", bits, " bits");
  return out;
}

Tensor pack_impl(const Tensor& codes, int64_t bits, int64_t half) {
  WT_CHECK(bits == 8 ? half == 0 : bits == 4 && half >= 0 && half % 8 == 0, ValueError, kPack,
           ": expected bits 4, or 8 with half 0, and half a multiple of 8, got bits ", bits, " and half ",
           half);
  WT_CHECK(codes.ndim() == 2, ShapeError, kPack, ": codes must be [out, in] or [out, in / 2], got shape ",
           codes.sizes());
  WT_CHECK(codes.dtype() == DType::UInt8, DtypeError, kPack, ": expected codes of uint8, got ",
           codes.dtype());
  WT_CHECK(codes.device().is_host(), DeviceError, kPack, ": expected codes on the CPU, got ", codes.device());
  const int64_t outputs = codes.sizes()[0], inputs = codes.sizes()[1] * (half ? 2 : 1);
  const int64_t unit = half ? 2 * half : 8;
  WT_CHECK(inputs % unit == 0, ShapeError, kPack, ": expected a multiple of ", unit, " inputs, got ", inputs);
  const Tensor packed =
      zeros_of({(outputs + kPanel - 1) / kPanel, inputs * bits / 32, kPanel, 4}, DType::UInt8, codes);
  if (packed.numel() == 0) return packed;
  const Tensor from = raw_contiguous(codes);
  pack_slot(Launch(codes.device()),
            kernels::PackCodesPlan{bits, half, outputs, inputs, from.data_as<uint8_t>(),
                                   packed.data_as<uint8_t>()});
  return packed;
}

// Throws unless the parts of the weight fit each other and the input.
void check_parts(const kernels::QuantFormat& format, const Tensor& input, const Tensor& packed,
                 const Tensor& scales, const OptTensor& minima, int64_t out_features) {
  const int64_t inputs = input.sizes().back();
  auto check = [&](const char* what, const Tensor& t, const Shape& sizes, DType dtype) {
    check_same_device(kLinear, input, t, what);
    WT_CHECK(t.dtype() == dtype, DtypeError, kLinear, ": expected ", what, " of ", dtype, ", got ",
             t.dtype());
    WT_CHECK(t.sizes() == sizes && t.is_contiguous(), ShapeError, kLinear, ": expected ", what, " ", sizes,
             " for ", inputs, " inputs and ", out_features, " outputs in ", format.bits,
             " bits by groups of ", format.group, ", got shape ", t.sizes(),
             t.is_contiguous() ? "" : ", which is not contiguous");
  };
  check("packed", packed, codes_sizes(format, out_features, inputs), DType::UInt8);
  check("scales", scales, scales_sizes(format, out_features, inputs), scales_dtype(format));
  if (minima) check("minima", *minima, scales_sizes(format, out_features, inputs), scales_dtype(format));
}

Tensor quant_linear_impl(const Tensor& input, const Tensor& packed, const Tensor& scales,
                         const OptTensor& minima, int64_t out_features, int64_t bits, int64_t group,
                         const OptTensor& bias) {
  const kernels::QuantFormat format = format_of(kLinear, bits, group);
  check_inference(kLinear, input, bias);
  WT_CHECK(input.dtype() == DType::Float32 || input.dtype() == DType::BFloat16, DtypeError, kLinear,
           ": expected an input of float32 or bfloat16, got ", input.dtype(), "; convert it with .to(dtype)");
  WT_CHECK(input.ndim() > 0, ShapeError, kLinear, ": input must have at least one dim");
  WT_CHECK(out_features >= 0, ValueError, kLinear, ": out_features must not be negative, got ", out_features);
  check_parts(format, input, packed, scales, minima, out_features);
  const int64_t inputs = input.sizes().back();
  const Tensor out = empty(linear_sizes(kLinear, input, inputs, out_features), options_of(input));
  const Tensor row = linear_bias(kLinear, input, bias, out_features);
  if (out.numel() == 0 || out.is_meta()) return out;
  const Tensor x = raw_contiguous(input);
  quant_slot(Launch(out.device()),
             kernels::QuantLinearPlan{format, input.dtype(), out.numel() / out_features, inputs, out_features,
                                      x.planned_data(), packed.planned_data(), scales.planned_data(),
                                      minima ? minima->planned_data() : nullptr,
                                      row.defined() ? row.planned_data() : nullptr, out.data()});
  return out;
}

}  // namespace

decltype(quantize_linear_weight) quantize_linear_weight{
    kQuantize,
    quantize_impl,
    kPrivate | kChecked,
    {"weight", "bits", "group", {"symmetric", false}},
    "weight [out, in] rounded to 4 or 8 bits and packed for _quant_linear: codes, scales and, unless "
    "symmetric, "
    "minima. A group of 32, 64 or 128 inputs has one scale, of float16; group 0 is one scale an output, of "
    "float32."};
decltype(pack_linear_codes) pack_linear_codes{
    kPack,
    pack_impl,
    kPrivate | kChecked,
    {"codes", "bits", "half"},
    "codes [out, in] of 4 or 8 bits, packed for _quant_linear. With `half` they are [out, in / 2] bytes in "
    "blocks of 2 * half codes of 4 bits, the first half of them in the low halves of bytes."};
decltype(quant_linear) quant_linear{
    kLinear,
    quant_linear_impl,
    kPrivate | kChecked,
    {"input", "packed", "scales", "minima", "out_features", "bits", "group", {"bias", none}},
    "linear(input, weight, bias) of a weight that _quantize_linear_weight made, for inference. The input is "
    "rounded to 8 bits by row and group (by 128 inputs where group is 0). A row of the result is the same to "
    "the "
    "bit on every machine, whatever other rows are in the call and however many threads run."};

}  // namespace warptape::ops
