#include "kernels/quant/quant_linear.h"
#include "ops/elementwise/elementwise.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/matmul.h"
#include "ops/quant/packed_linear.h"
#include "ops/quant/quant_linear.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::Float8LinearFn> float8_slot{"float8_linear"};

constexpr const char* kFloat8 = "_float8_linear";
constexpr const char* kScaled = "_scaled_mm";
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
  if (weight.device().is_host() && !weight.is_meta()) {  // the same numbers, not the speed
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

// A scale for the whole matrix, or one for each of its rows (of its columns: each column).
void check_scales(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b) {
  const int64_t rows = a.sizes()[0], columns = b.sizes()[1];
  const bool whole = scale_a.numel() == 1 && scale_b.numel() == 1;
  WT_CHECK(scale_a.dtype() == DType::Float32 && scale_b.dtype() == DType::Float32, DtypeError, kScaled,
           ": expected scales of float32, got ", scale_a.dtype(), " and ", scale_b.dtype());
  WT_CHECK(whole || (scale_a.sizes() == Shape{rows, 1} && scale_b.sizes() == Shape{1, columns}), ValueError,
           kScaled, ": Invalid scaling configuration: expected scales of one element, or of shapes (", rows,
           ", 1) and (1, ", columns, "), got ", scale_a.sizes(), " and ", scale_b.sizes());
}

bool is_float8(const Tensor& t) { return t.dtype() == DType::Float8E4M3FN || t.dtype() == DType::Float8E5M2; }

Tensor scaled_mm_impl(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                      const OptTensor& bias, const OptTensor& scale_result, std::optional<DType> out_dtype,
                      bool /*use_fast_accum: sums are float32*/) {
  WT_CHECK(a.ndim() == 2 && b.ndim() == 2 && a.sizes()[1] == b.sizes()[0], ShapeError, kScaled,
           ": expected matrices (m, k) and (k, n), got ", a.sizes(), " and ", b.sizes());
  WT_CHECK(is_float8(a) && is_float8(b), DtypeError, kScaled,
           ": expected matrices of float8_e4m3fn or float8_e5m2, got ", a.dtype(), " and ", b.dtype());
  check_scales(a, b, scale_a, scale_b);
  WT_CHECK(!scale_result, NotImplementedError, kScaled,
           ": there is no scale_result, by which PyTorch divides on the CPU and multiplies on CUDA");
  const bool fast = a.dtype() == DType::Float8E4M3FN && b.dtype() == DType::Float8E4M3FN &&
                    (a.device().is_host() || (b.sizes()[0] % kStep == 0 && b.sizes()[1] % kStep == 0));
  Tensor out = fast ? float8_linear_impl(a, transpose(b, 0, 1))
                    : matmul(raw_cast(a, DType::Float32), raw_cast(b, DType::Float32));
  const bool whole = scale_a.numel() == 1;
  out = whole ? out * reshape(scale_a * scale_b, Shape{}) : out * scale_a * scale_b;
  if (bias) out = out + cast(*bias, DType::Float32);
  return cast(out, out_dtype.value_or(a.dtype()));
}
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const OptTensor&,
                const OptTensor&, std::optional<DType>, bool)>
    scaled_mm{kScaled,
              scaled_mm_impl,
              kFunction,
              {"self",
               "mat2",
               "scale_a",
               "scale_b",
               {"bias", none},
               {"scale_result", none},
               {"out_dtype", none},
               {"use_fast_accum", false}},
              "self (m, k) mat2 (k, n) of float8_e4m3fn or float8_e5m2, summed in float32, times the scales "
              "(of one element, or (m, 1) and (1, n)), plus bias (n), in out_dtype (self's unless given)."};

}  // namespace

decltype(float8_linear) float8_linear{
    kFloat8,
    float8_linear_impl,
    kPrivate | kChecked,
    {"input", "weight"},
    "linear(input, weight) of float8_e4m3fn, summed in float32, for inference: [..., in], [out, in] -> [..., "
    "out] of float32. On CUDA by cuBLASLt, by one algorithm for every number of rows; sizes of the weight "
    "are "
    "multiples of 16 there."};

}  // namespace warptape::ops
