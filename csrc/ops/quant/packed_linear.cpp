#include "ops/quant/packed_linear.h"

#include "kernels/quant/packed_linear.h"
#include "ops/kernel_inputs.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::PackLinearWeightFn> pack_slot{"pack_linear_weight"};
kernels::Slot<kernels::PackedLinearFn> packed_slot{"packed_linear"};

constexpr const char *kPack = "_pack_linear_weight", *kLinear = "_packed_linear";
constexpr int64_t kPanel = kernels::kPanelOutputs;

bool is_packable(DType dtype) { return dtype == DType::Float32 || dtype == DType::BFloat16; }

Tensor pack_impl(const Tensor& weight) {
  WT_CHECK(weight.ndim() == 2, ShapeError, kPack, ": weight must be [out, in], got shape ", weight.sizes());
  WT_CHECK(is_packable(weight.dtype()), DtypeError, kPack, ": expected float32 or bfloat16, got ", weight,
           "; convert it with .to(dtype)");
  check_inference(kPack, weight, std::nullopt);
  const int64_t outputs = weight.sizes()[0], inputs = weight.sizes()[1];
  const int64_t panels = (outputs + kPanel - 1) / kPanel;
  const Tensor packed = empty(weight.dtype() == DType::Float32 ? Shape{panels, inputs, kPanel}
                                                               : Shape{panels, (inputs + 1) / 2, kPanel, 2},
                              options_of(weight));
  if (packed.numel() && !packed.is_meta())
    pack_slot(Launch(packed.device()), weight.dtype(), outputs, inputs, raw_contiguous(weight).planned_data(),
              packed.data());
  return packed;
}

void check_packed(const Tensor& input, const Tensor& packed, int64_t out_features) {
  WT_CHECK(is_packable(input.dtype()) && packed.dtype() == input.dtype(), DtypeError, kLinear,
           ": expected input and packed weight of one dtype, float32 or bfloat16, got ", input.dtype(),
           " and ", packed.dtype(), "; convert one with .to(dtype)");
  check_same_device(kLinear, input, packed, "packed");
  const bool whole =
      packed.dtype() == DType::Float32 ? packed.ndim() == 3 : packed.ndim() == 4 && packed.sizes()[3] == 2;
  WT_CHECK(whole && packed.sizes()[2] == kPanel && packed.is_contiguous(), ShapeError, kLinear,
           ": expected a weight packed by _pack_linear_weight, got shape ", packed.sizes());
  WT_CHECK(out_features >= 0 && packed.sizes()[0] == (out_features + kPanel - 1) / kPanel, ShapeError,
           kLinear, ": out_features is ", out_features, ", but the packed weight has ", packed.sizes()[0],
           " panels of ", kPanel);
}

Tensor packed_linear_impl(const Tensor& input, const Tensor& packed, int64_t out_features,
                          const OptTensor& bias) {
  check_inference(kLinear, input, bias);
  check_packed(input, packed, out_features);
  WT_CHECK(input.ndim() > 0, ShapeError, kLinear, ": input must have at least one dim");
  // Of bfloat16 the packed weight does not tell whether the last pair is whole.
  const int64_t given = input.sizes().back(), steps = packed.sizes()[1];
  const int64_t inputs = packed.dtype() == DType::Float32 ? steps
                         : given == 2 * steps - 1         ? given
                                                          : 2 * steps;
  const Tensor out = empty(linear_sizes(kLinear, input, inputs, out_features), options_of(input));
  const Tensor row = linear_bias(kLinear, input, bias, out_features);
  if (out.numel() == 0 || out.is_meta()) return out;
  const Tensor x = raw_contiguous(input);
  packed_slot(Launch(out.device()),
              kernels::PackedLinearPlan{input.dtype(), out.numel() / out_features, inputs, out_features,
                                        x.planned_data(), packed.planned_data(),
                                        row.defined() ? row.planned_data() : nullptr, out.data()});
  return out;
}

}  // namespace

void check_inference(const char* op, const Tensor& input, const OptTensor& bias) {
  WT_CHECK(!needs_grad(input, bias), NotImplementedError, op,
           ": has no gradient, but an argument requires one; call it under inference_mode() or no_grad(), or "
           "keep the layer as nn.Linear");
}

Shape linear_sizes(const char* op, const Tensor& input, int64_t in_features, int64_t out_features) {
  WT_CHECK(input.ndim() > 0 && input.sizes().back() == in_features, ShapeError, op, ": input has shape ",
           input.sizes(), ", layer expects ", in_features, " features in its last dim");
  Shape sizes = input.sizes();
  sizes.back() = out_features;
  return sizes;
}

Tensor linear_bias(const char* op, const Tensor& input, const OptTensor& bias, int64_t out_features) {
  if (!bias) return Tensor();
  WT_CHECK(bias->dtype() == input.dtype(), DtypeError, op, ": expected bias of the input's dtype, ",
           input.dtype(), ", got ", bias->dtype());
  check_same_device(op, input, *bias, "bias");
  WT_CHECK(bias->ndim() == 1 && bias->numel() == out_features, ShapeError, op, ": bias must be [",
           out_features, "], got shape ", bias->sizes());
  return raw_contiguous(*bias);
}

decltype(pack_linear_weight) pack_linear_weight{
    kPack,
    pack_impl,
    kPrivate | kChecked,
    {"weight"},
    "weight [out, in] in the order in which _packed_linear reads it: [ceil(out / 16), in, 16] of float32, "
    "[ceil(out / 16), ceil(in / 2), 16, 2] of bfloat16."};
decltype(packed_linear) packed_linear{
    kLinear,
    packed_linear_impl,
    kPrivate | kChecked,
    {"input", "packed", "out_features", {"bias", none}},
    "linear(input, weight, bias) of a weight that _pack_linear_weight made, for inference. A row of the "
    "result is the same to the bit whatever other rows are in the call and however many threads run."};

}  // namespace warptape::ops
