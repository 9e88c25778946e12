#include "kernels/quant_linear.h"
#include "ops/compose.h"
#include "ops/packed_linear.h"
#include "ops/quant_linear.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::Float8LinearFn> float8_slot{"float8_linear"};

constexpr const char* kFloat8 = "_float8_linear";
constexpr int64_t kStep = 16;  // what sizes on CUDA are multiples of

void check_float8(const Tensor& input, const Tensor& weight) {
  WT_CHECK(input.dtype() == DType::Float8E4M3FN && weight.dtype() == DType::Float8E4M3FN, DtypeError, kFloat8,
           ": expected input and weight of float8_e4m3fn, got ", input.dtype(), " and ", weight.dtype(),
           "; convert them with .to(dtype)");
  check_same_device(kFloat8, input, weight, "weight");
  WT_CHECK(weight.ndim() == 2, ShapeError, kFloat8, ": weight must be [out, in], got shape ", weight.sizes());
  const Shape& sizes = weight.sizes();
  WT_CHECK(!weight.device().is_cuda() || (sizes[0] % kStep == 0 && sizes[1] % kStep == 0), ShapeError,
           kFloat8, ": on CUDA a weight's sizes must be multiples of 16, got shape ", sizes,
           "; keep the layer in another dtype");
}

Tensor float8_linear_impl(const Tensor& input, const Tensor& weight) {
  check_float8(input, weight);
  const int64_t outputs = weight.sizes()[0], inputs = weight.sizes()[1];
  const Shape sizes = linear_sizes(kFloat8, input, inputs, outputs);
  if (weight.device().is_cpu() && !weight.is_meta()) {  // the same numbers, not the speed
    const Tensor packed = pack_linear_weight(raw_cast(weight, DType::Float32));
    return packed_linear(raw_cast(input, DType::Float32), packed, outputs, std::nullopt);
  }
  const Tensor out = empty(sizes, {DType::Float32, input.device()});
  if (out.numel() == 0 || out.is_meta()) return out;
  if (inputs == 0) {
    raw_fill(out, 0);
    return out;
  }
  const Tensor x = raw_contiguous(input), w = raw_contiguous(weight);
  float8_slot(Launch(out.device()),
              kernels::Float8LinearPlan{out.numel() / outputs, inputs, outputs, x.planned_data(),
                                        w.planned_data(), out.data_as<float>()});
  return out;
}

}  // namespace

decltype(float8_linear) float8_linear{
    kFloat8,
    float8_linear_impl,
    kPrivate,
    {"input", "weight"},
    "linear(input, weight) of float8_e4m3fn, summed in float32, for inference: [..., in], [out, in] -> [..., "
    "out] of float32. On CUDA by cuBLASLt, by one algorithm for every number of rows; sizes of the weight "
    "are "
    "multiples of 16 there."};

}  // namespace warptape::ops
