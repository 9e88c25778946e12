// Linear layers on signs, for inference: weights of one bit (kernels/include/kernels/quant/binary_linear.h).
#include "kernels/quant/binary_linear.h"

#include "ops/kernel_inputs.h"
#include "ops/quant/packed_linear.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::PackSignsFn> pack_slot{"pack_signs"};
kernels::Slot<kernels::BinaryLinearFn> binary_slot{"binary_linear"};

constexpr const char *kPack = "_pack_signs", *kLinear = "_binary_linear";
constexpr int64_t kPanel = kernels::kPanelOutputs;

void check_signed(const char* op, const Tensor& t) {
  WT_CHECK(t.dtype() == DType::Float32 || t.dtype() == DType::BFloat16, DtypeError, op,
           ": expected float32 or bfloat16, got ", t, "; convert it with .to(dtype)");
}

Tensor pack_impl(const Tensor& weight) {
  WT_CHECK(weight.ndim() == 2, ShapeError, kPack, ": weight must be [out, in], got shape ", weight.sizes());
  check_signed(kPack, weight);
  check_inference(kPack, weight, std::nullopt);
  const int64_t outputs = weight.sizes()[0], inputs = weight.sizes()[1];
  const Tensor words = empty(Shape{(outputs + kPanel - 1) / kPanel, (inputs + 31) / 32, kPanel},
                             {DType::Int32, weight.device()});
  if (words.numel() && !words.is_meta())
    pack_slot(Launch(words.device()), weight.dtype(), outputs, inputs, raw_contiguous(weight).planned_data(),
              static_cast<int32_t*>(words.data()));
  return words;
}

Tensor binary_linear_impl(const Tensor& input, const Tensor& words, const Tensor& scale,
                          const OptTensor& bias, bool scale_input) {
  check_inference(kLinear, input, bias);
  check_signed(kLinear, input);
  check_same_device(kLinear, input, words, "words");
  check_same_device(kLinear, input, scale, "scale");
  WT_CHECK(scale.dtype() == DType::Float32 && scale.ndim() == 1 && scale.is_contiguous(), ShapeError, kLinear,
           ": expected a scale of float32 for each output, contiguous, got ", scale);
  WT_CHECK(input.ndim() > 0, ShapeError, kLinear, ": input must have at least one dim");
  const int64_t outputs = scale.numel(), inputs = input.sizes().back();
  WT_CHECK(words.dtype() == DType::Int32 && words.ndim() == 3 && words.is_contiguous() &&
               words.sizes()[2] == kPanel && words.sizes()[0] == (outputs + kPanel - 1) / kPanel,
           ShapeError, kLinear, ": expected words that _pack_signs made of a weight of ", outputs,
           " outputs, got ", words);
  WT_CHECK(words.sizes()[1] == (inputs + 31) / 32 && inputs <= kernels::kMostBinaryInputs, ShapeError,
           kLinear, ": input has shape ", input.sizes(), ", but the weight is of ", words.sizes()[1],
           " words of 32 inputs, at most ", kernels::kMostBinaryInputs, " inputs");
  const Tensor out = empty(linear_sizes(kLinear, input, inputs, outputs), options_of(input));
  const Tensor row = linear_bias(kLinear, input, bias, outputs);
  if (out.numel() == 0 || out.is_meta()) return out;
  const Tensor x = raw_contiguous(input);
  binary_slot(
      Launch(out.device()),
      kernels::BinaryLinearPlan{input.dtype(), out.numel() / outputs, inputs, outputs, x.planned_data(),
                                static_cast<const int32_t*>(words.planned_data()),
                                static_cast<const float*>(scale.planned_data()),
                                row.defined() ? row.planned_data() : nullptr, scale_input, out.data()});
  return out;
}

const Op<Tensor(const Tensor&)> pack_signs{
    kPack,
    pack_impl,
    kPrivate | kChecked,
    {"weight"},
    "The signs of weight [out, in] as _binary_linear reads them: [ceil(out / 16), ceil(in / 32), 16] of "
    "int32, a bit 1 where the weight is below 0."};
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const OptTensor&, bool)> binary_linear{
    kLinear,
    binary_linear_impl,
    kPrivate | kChecked,
    {"input", "words", "scale", {"bias", none}, {"scale_input", true}},
    "scale * mean |input| * (sign(input) sign(weight)^T) + bias, for words that _pack_signs made of the "
    "weight and a scale for each output; without the mean unless scale_input. For inference."};

}  // namespace
}  // namespace warptape::ops
