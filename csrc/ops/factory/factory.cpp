// Tensors from nothing.
#include "ops/factory/factory.h"
#include "op/forms.h"

#include <cmath>
#include <complex>

#include "kernels/elementwise/sequence.h"
#include "kernels/runtime/parallel.h"
#include "ops/elementwise/elementwise.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "tensor/memory_format.h"

namespace warptape::ops {
namespace {

// The bits of uint64's largest are those of -1.
int64_t largest_integer(DType t) {
  const bool is_unsigned =
      t == DType::UInt8 || t == DType::UInt16 || t == DType::UInt32 || t == DType::UInt64;
  return static_cast<int64_t>(~uint64_t{0} >> (64 - 8 * itemsize(t) + !is_unsigned));
}

}  // namespace

void fill_unset(const Tensor& t) {
  const RankContext& context = rank_context();
  if (!context.deterministic_algorithms || !context.fill_uninitialized_memory || t.is_meta()) return;
  const DType type = t.dtype();
  raw_fill(t, is_floating(type) || is_complex(type) ? Scalar(std::numeric_limits<double>::quiet_NaN())
              : type == DType::Bool                 ? Scalar(true)
                                                    : Scalar(largest_integer(type)));
}

namespace {

TensorOptions options(std::optional<DType> dtype, std::optional<Device> device, DType otherwise) {
  return {dtype.value_or(otherwise), device ? *device : default_device()};
}
using Format = std::optional<std::string_view>;
DType default_dtype() { return rank_context().default_dtype; }

Tensor finish(Tensor out, bool needs_grad) {
  if (needs_grad) set_requires_grad(out, true);
  return out;
}

Tensor unset(Tensor out, bool needs_grad) {
  fill_unset(out);
  return finish(std::move(out), needs_grad);
}

Tensor empty_impl(IntList size, std::optional<DType> dtype, std::optional<Device> device, bool needs_grad,
                  Format format) {
  return unset(empty_in(size, options(dtype, device, default_dtype()),
                        memory_format("empty", format, MemoryFormat::Contiguous)),
               needs_grad);
}
Tensor zeros_impl(IntList size, std::optional<DType> dtype, std::optional<Device> device, bool needs_grad) {
  return finish(zeros(size, options(dtype, device, default_dtype())), needs_grad);
}
Tensor ones_impl(IntList size, std::optional<DType> dtype, std::optional<Device> device, bool needs_grad) {
  return finish(full(size, 1, options(dtype, device, default_dtype())), needs_grad);
}
Tensor full_impl(IntList size, const Scalar& value, std::optional<DType> dtype, std::optional<Device> device,
                 bool needs_grad) {
  return finish(full(size, value, options(dtype, device, value.dtype())), needs_grad);
}
Tensor scalar_tensor_impl(const Scalar& value, std::optional<DType> dtype, std::optional<Device> device,
                          bool needs_grad) {
  return finish(full({}, value, options(dtype, device, default_dtype())), needs_grad);
}
Tensor empty_permuted_impl(IntList size, IntList physical_layout, std::optional<DType> dtype,
                           std::optional<Device> device, bool needs_grad) {
  const auto ndim = static_cast<int64_t>(size.size());
  WT_CHECK(physical_layout.size() == size.size(), ShapeError,
           "empty_permuted: expected as many dimensions in physical_layout as in size, got ",
           AsShape{physical_layout}, " and ", AsShape{size});
  Shape sizes, strides(size.size(), -1);
  for (int64_t d : physical_layout) {
    WT_CHECK(d >= 0 && d < ndim, ShapeError,
             "empty_permuted: dimension out of range in physical_layout: ", d);
    sizes.push_back(size[d]);
  }
  const Shape dense = contiguous_strides(sizes);
  for (int64_t i = 0; i < ndim; ++i) {
    WT_CHECK(strides[physical_layout[i]] < 0, ShapeError, "empty_permuted: duplicate dimension ",
             physical_layout[i], " in physical_layout");
    strides[physical_layout[i]] = dense[i];
  }
  return unset(empty_strided(size, strides, options(dtype, device, default_dtype())), needs_grad);
}
Tensor empty_strided_impl(IntList size, IntList stride, std::optional<DType> dtype,
                          std::optional<Device> device, bool needs_grad) {
  return unset(empty_strided(size, stride, options(dtype, device, default_dtype())), needs_grad);
}

Tensor like(const char* op, const Tensor& x, std::optional<DType> dtype, std::optional<Device> device,
            Format format) {
  return empty_like_in(op, x, {dtype.value_or(x.dtype()), device.value_or(x.device())},
                       memory_format(op, format, MemoryFormat::Preserve));
}
Tensor empty_like_impl(const Tensor& x, std::optional<DType> dtype, std::optional<Device> device,
                       bool needs_grad, Format format) {
  return unset(like("empty_like", x, dtype, device, format), needs_grad);
}
Tensor full_like_impl(const Tensor& x, const Scalar& value, std::optional<DType> dtype,
                      std::optional<Device> device, bool needs_grad, Format format) {
  Tensor out = like("full_like", x, dtype, device, format);
  raw_fill(out, value);
  return finish(out, needs_grad);
}
template <int Value>
Tensor number_like_impl(const Tensor& x, std::optional<DType> dtype, std::optional<Device> device,
                        bool needs_grad, Format format) {
  return full_like_impl(x, Value, dtype, device, needs_grad, format);
}

Tensor new_empty_impl(const Tensor& x, IntList size, std::optional<DType> dtype, std::optional<Device> device,
                      bool needs_grad) {
  return unset(empty(size, {dtype.value_or(x.dtype()), device.value_or(x.device())}), needs_grad);
}
Tensor new_empty_strided_impl(const Tensor& x, IntList size, IntList stride, std::optional<DType> dtype,
                              std::optional<Device> device, bool needs_grad) {
  return unset(empty_strided(size, stride, {dtype.value_or(x.dtype()), device.value_or(x.device())}),
               needs_grad);
}
Tensor new_full_impl(const Tensor& x, IntList size, const Scalar& value, std::optional<DType> dtype,
                     std::optional<Device> device, bool needs_grad) {
  return finish(full(size, value, {dtype.value_or(x.dtype()), device.value_or(x.device())}), needs_grad);
}
Tensor new_zeros_impl(const Tensor& x, IntList size, std::optional<DType> dtype, std::optional<Device> device,
                      bool needs_grad) {
  return new_full_impl(x, size, 0, dtype, device, needs_grad);
}
Tensor new_ones_impl(const Tensor& x, IntList size, std::optional<DType> dtype, std::optional<Device> device,
                     bool needs_grad) {
  return new_full_impl(x, size, 1, dtype, device, needs_grad);
}

kernels::Slot<kernels::SequenceFn> sequence_slot("sequence");

// The CPU makes the values in the widest type and converts them: element i depends on i alone.
Tensor host_sequence(int64_t n, DType dtype, const kernels::SequencePlan& p) {
  Tensor wide = empty(IntList{&n, 1}, {p.integral ? DType::Int64 : DType::Float64, {}});
  kernels::cpu::parallel_for(n, 32768, [&](int64_t begin, int64_t end) {
    if (p.integral) {
      auto* to = wide.data_as<int64_t>();
      for (int64_t i = begin; i < end; ++i) to[i] = p.first_int + i * p.step_int;
    } else {
      auto* to = wide.data_as<double>();
      for (int64_t i = begin; i < end; ++i)
        to[i] = i < p.turn ? p.first + p.step * static_cast<double>(i)
                           : p.last - p.step * static_cast<double>(n - 1 - i);
    }
  });
  return raw_cast(wide, dtype);
}

Tensor sequence(int64_t n, TensorOptions o, const kernels::SequencePlan& p) {
  if (o.device.is_host()) return host_sequence(n, o.dtype, p);
  Tensor out = empty(IntList{&n, 1}, o);
  if (n && !out.is_meta()) sequence_slot(Launch(o.device), out.view(), p);
  return out;
}

Tensor arange_impl(const Scalar& start, const Scalar& end, const Scalar& step, std::optional<DType> dtype,
                   std::optional<Device> device, bool needs_grad) {
  bool floats = start.is_floating() || end.is_floating() || step.is_floating();
  TensorOptions o = options(dtype, device, floats ? default_dtype() : DType::Int64);
  const bool integral = !is_floating(o.dtype);
  WT_CHECK(o.dtype != DType::Bool, NotImplementedError, "arange: not implemented for ", o.dtype);
  double a = start.to_double(), b = end.to_double(), s = step.to_double();
  WT_CHECK(s != 0 && (!integral || std::trunc(s) != 0), ValueError, "arange: step must be nonzero");
  WT_CHECK(std::isfinite(a) && std::isfinite(b) && std::isfinite(s), ValueError,
           "arange: unsupported range: ", a, " -> ", b);
  WT_CHECK((s > 0) == (b >= a) || a == b, ValueError,
           "arange: upper bound and lower bound inconsistent with step sign: ", a, " -> ", b, " step ", s);
  double count = std::ceil((b - a) / s);
  WT_CHECK(count < 0x1p60, ShapeError, "arange: ", count, " elements are too many");
  auto n = static_cast<int64_t>(std::max(count, 0.0));
  if (!floats || integral) {
    // Of integers the bounds and the step lose their fractions, and only int64 counts with what is left.
    for (const Scalar& v : {start, end, step}) check_fits(v, DType::Int64);
    int64_t first = start.to_int(), by = step.to_int(), span = end.to_int() - first;
    if (!floats || o.dtype == DType::Int64) n = span == 0 ? 0 : (span + by - (by > 0 ? 1 : -1)) / by;
    numel_of(IntList{&n, 1}, "arange");
    return finish(sequence(n, o, {.integral = true, .first_int = first, .step_int = by, .turn = n}),
                  needs_grad);
  }
  return finish(sequence(n, o, {.first = a, .step = s, .turn = n}), needs_grad);
}
Tensor arange_end_impl(const Scalar& end, std::optional<DType> dtype, std::optional<Device> device,
                       bool needs_grad) {
  return arange_impl(0, end, 1, dtype, device, needs_grad);
}

// n complex numbers from a to b, from both ends as the real ones.
Tensor complex_linspace(int64_t n, const Scalar& a, const Scalar& b, const TensorOptions& o) {
  const Complex<double> first = a.to_complex(), last = b.to_complex();
  Tensor parts = empty(Shape{n, 2}, {real_of(o.dtype), Device{}});
  for (int part = 0; part < 2 && n; ++part) {
    const double x = part ? first.im : first.re, y = part ? last.im : last.re;
    const double by = n > 1 ? (y - x) / static_cast<double>(n - 1) : 0;
    const Tensor line = sequence(n, {real_of(o.dtype), Device{}},
                                 {.first = x, .step = by, .last = n > 1 ? y : x, .turn = (n + 1) / 2});
    raw_copy(select(parts, 1, part), line);
  }
  return to(view_as_complex(parts), o.device, o.dtype, false, false);
}

Tensor linspace_impl(const Scalar& start, const Scalar& end, int64_t steps, std::optional<DType> dtype,
                     std::optional<Device> device, bool needs_grad) {
  WT_CHECK(steps >= 0, ValueError, "linspace: number of steps must be non-negative, got ", steps);
  const bool complex_bounds = start.is_complex() || end.is_complex();
  TensorOptions o = options(dtype, device, complex_bounds ? complex_of(default_dtype()) : default_dtype());
  WT_CHECK(!complex_bounds || is_complex(o.dtype), Error, "linspace: inferred dtype ",
           complex_of(default_dtype()), " can't be safely cast to passed dtype ", o.dtype);
  if (is_complex(o.dtype)) {
    if (o.device.is_meta()) return finish(empty(IntList{&steps, 1}, o), needs_grad);
    return finish(complex_linspace(steps, start, end, o), needs_grad);
  }
  const bool integral = !is_floating(o.dtype);  // then the bounds lose their fractions
  for (const Scalar& v : {start, end}) check_fits(v, o.dtype);
  double a = integral ? std::trunc(start.to_double()) : start.to_double(),
         b = integral ? std::trunc(end.to_double()) : end.to_double();
  double by = steps > 1 ? (b - a) / static_cast<double>(steps - 1) : 0;
  const auto low = static_cast<float>(a), high = static_cast<float>(b);
  // Bounds and step are rounded first, as PyTorch has them, unless the step is out of float's range.
  if (o.dtype == DType::Float32 && steps > 1 && std::isfinite(high - low))
    a = low, b = high, by = (high - low) / static_cast<float>(steps - 1);
  if (steps == 1) return finish(full(IntList{&steps, 1}, a, o), needs_grad);
  // From both ends, so that the sequence is symmetric and ends at `end`.
  return finish(sequence(steps, o, {.first = a, .step = by, .last = b, .turn = steps / 2}), needs_grad);
}

// start, start + step, ... up to end, which is included.
Tensor range_impl(const Scalar& start, const Scalar& end, const Scalar& step, std::optional<DType> dtype,
                  std::optional<Device> device, bool needs_grad) {
  warn(
      "torch.range is deprecated and will be removed in a future release because its behavior is "
      "inconsistent "
      "with Python's range builtin. Instead, use torch.arange, which produces values in [start, end).");
  const TensorOptions o = options(dtype, device, default_dtype());
  const bool integral = !is_floating(o.dtype);
  for (const Scalar& v : {start, end, step}) check_fits(v, o.dtype);
  const double a = start.to_double(), b = end.to_double(), by = step.to_double();
  WT_CHECK(by != 0 && (!integral || std::trunc(by) != 0), ValueError, "range: step must be nonzero");
  WT_CHECK(std::isfinite(a) && std::isfinite(b), ValueError, "range: unsupported range: ", a, " -> ", b);
  WT_CHECK((by > 0) == (b >= a) || a == b, ValueError,
           "range: upper bound and lower bound inconsistent with step sign: ", a, " -> ", b, " step ", by);
  const double count = std::floor((b - a) / by) + 1;
  WT_CHECK(count < 0x1p60, ShapeError, "range: ", count, " elements are too many");
  const auto n = static_cast<int64_t>(count);
  numel_of(IntList{&n, 1}, "range");
  if (!integral) return finish(sequence(n, o, {.first = a, .step = by, .turn = n}), needs_grad);
  return finish(
      sequence(n, o, {.integral = true, .first_int = start.to_int(), .step_int = step.to_int(), .turn = n}),
      needs_grad);
}

// base to the powers linspace(start, end, steps), computed in double as PyTorch does.
template <class T>
void fill_logspace(const Tensor& out, T base, T start, T end) {
  const int64_t n = out.numel();
  const T by = n > 1 ? (end - start) / static_cast<double>(n - 1) : T(0);
  auto* to = static_cast<T*>(out.data());
  for (int64_t i = 0; i < n; ++i)
    to[i] = std::pow(base, i < n / 2 || n == 1 ? start + by * static_cast<double>(i)
                                               : end - by * static_cast<double>(n - 1 - i));
}
std::complex<double> as_complex(const Scalar& s) { return {s.to_complex().re, s.to_complex().im}; }

Tensor logspace_impl(const Scalar& start, const Scalar& end, int64_t steps, double base,
                     std::optional<DType> dtype, std::optional<Device> device, bool needs_grad) {
  WT_CHECK(steps >= 0, ValueError, "logspace: number of steps must be non-negative, got ", steps);
  const bool complex_bounds = start.is_complex() || end.is_complex();
  const TensorOptions o =
      options(dtype, device, complex_bounds ? complex_of(default_dtype()) : default_dtype());
  WT_CHECK(o.dtype != DType::Bool, NotImplementedError, "logspace: not implemented for ", o.dtype);
  WT_CHECK(!complex_bounds || is_complex(o.dtype), Error, "logspace: value cannot be converted to type ",
           o.dtype, " without overflow");
  if (o.device.is_meta()) return finish(empty(IntList{&steps, 1}, o), needs_grad);
  Tensor wide =
      empty(IntList{&steps, 1}, {is_complex(o.dtype) ? DType::Complex128 : DType::Float64, Device{}});
  if (is_complex(o.dtype)) {
    fill_logspace<std::complex<double>>(wide, base, as_complex(start), as_complex(end));
  } else {
    for (const Scalar& v : {start, end}) check_fits(v, o.dtype);
    const auto bound = [&](const Scalar& v) { return item(scalar_tensor(v, o.dtype)).to_double(); };
    fill_logspace<double>(wide, base, bound(start), bound(end));
  }
  Tensor out = empty(wide.sizes(), o);
  raw_copy(out, wide);
  return finish(out, needs_grad);
}

// The same with bounds in 0-dim tensors. As arguments these count as numbers: other tensors come here.
Scalar bound(const char*, const Scalar& s) { return s; }
Scalar bound(const char* op, const Tensor& t) {
  WT_CHECK(t.ndim() == 0, Error, op,
           " only supports 0-dimensional start and end tensors, but got start with ", t.ndim(),
           " dimension(s).");
  return item(t);
}
template <class A, class B>
Tensor linspace_of(const A& start, const B& end, int64_t steps, std::optional<DType> dtype,
                   std::optional<Device> device, bool needs_grad) {
  return linspace_impl(bound("linspace", start), bound("linspace", end), steps, dtype, device, needs_grad);
}
template <class A, class B>
Tensor logspace_of(const A& start, const B& end, int64_t steps, double base, std::optional<DType> dtype,
                   std::optional<Device> device, bool needs_grad) {
  return logspace_impl(bound("logspace", start), bound("logspace", end), steps, base, dtype, device,
                       needs_grad);
}

Tensor eye_impl(int64_t n, std::optional<int64_t> m, std::optional<DType> dtype, std::optional<Device> device,
                bool needs_grad) {
  int64_t columns = m.value_or(n);
  WT_CHECK(n >= 0 && columns >= 0, ValueError, "eye: n and m must be greater or equal to 0, got ", n, " and ",
           columns);
  Tensor out = zeros(Shape{n, columns}, options(dtype, device, default_dtype()));
  raw_fill(alias(out, Shape{std::min(n, columns)}, Shape{columns + 1}, 0), 1);
  return finish(out, needs_grad);
}

#define WT_OPTIONS \
  {"dtype", none, kKeywordOnly}, {"device", none, kKeywordOnly}, { "requires_grad", false, kKeywordOnly }
#define WT_FORMATTED \
  WT_OPTIONS, { "memory_format", none, kKeywordOnly }
using OptDType = std::optional<DType>;
using OptDevice = std::optional<Device>;

const Op<Tensor(IntList, OptDType, OptDevice, bool, Format)> empty_op(
    "empty", empty_impl, kFunction | kOut | kComplex | kUninitialized, {{"size", kVarArgs}, WT_FORMATTED},
    "A tensor with whatever the memory holds.");
const Op<Tensor(IntList, OptDType, OptDevice, bool)> zeros_op("zeros", zeros_impl,
                                                              kFunction | kOut | kComplex,
                                                              {{"size", kVarArgs}, WT_OPTIONS},
                                                              "A tensor of 0."),
    ones_op("ones", ones_impl, kFunction | kOut | kComplex, {{"size", kVarArgs}, WT_OPTIONS},
            "A tensor of 1.");
const Op<Tensor(IntList, const Scalar&, OptDType, OptDevice, bool)> full_op(
    "full", full_impl, kFunction | kOut | kComplex, {"size", "fill_value", WT_OPTIONS},
    "A tensor of one number, whose dtype it takes.");
const Op<Tensor(IntList, IntList, OptDType, OptDevice, bool)> empty_strided_op(
    "empty_strided", empty_strided_impl, kFunction | kComplex | kUninitialized,
    {"size", "stride", WT_OPTIONS}, "empty with the given strides."),
    empty_permuted_op("empty_permuted", empty_permuted_impl, kFunction | kComplex | kUninitialized,
                      {"size", "physical_layout", WT_OPTIONS},
                      "empty whose dims lie in memory in the order of physical_layout, outermost first.");
const Op<Tensor(const Scalar&, OptDType, OptDevice, bool)> scalar_tensor_op("scalar_tensor",
                                                                            scalar_tensor_impl,
                                                                            kFunction | kComplex,
                                                                            {"s", WT_OPTIONS},
                                                                            "A number as a 0-dim tensor.");
const Op<Tensor(const Tensor&, OptDType, OptDevice, bool, Format)> empty_like_op(
    "empty_like", empty_like_impl, kFunction | kComplex | kPointwise | kNonDifferentiable | kUninitialized,
    {"input", WT_FORMATTED}, "empty with input's sizes, dtype and layout."),
    zeros_like_op("zeros_like", number_like_impl<0>, kFunction | kComplex | kPointwise | kNonDifferentiable,
                  {"input", WT_FORMATTED}, "zeros with input's sizes, dtype and layout."),
    ones_like_op("ones_like", number_like_impl<1>, kFunction | kComplex | kPointwise | kNonDifferentiable,
                 {"input", WT_FORMATTED}, "ones with input's sizes, dtype and layout.");
const Op<Tensor(const Tensor&, const Scalar&, OptDType, OptDevice, bool, Format)> full_like_op(
    "full_like", full_like_impl, kFunction | kComplex | kPointwise | kNonDifferentiable,
    {"input", "fill_value", WT_FORMATTED}, "full with input's sizes, dtype and layout.");
const Op<Tensor(const Tensor&, IntList, OptDType, OptDevice, bool)> new_empty_op(
    "new_empty", new_empty_impl, kMethod | kComplex | kToSizes | kNonDifferentiable | kUninitialized,
    {"input", {"size", kVarArgs}, WT_OPTIONS}, "empty with input's dtype and device."),
    new_zeros_op("new_zeros", new_zeros_impl, kMethod | kComplex | kToSizes | kNonDifferentiable,
                 {"input", {"size", kVarArgs}, WT_OPTIONS}, "zeros with input's dtype and device."),
    new_ones_op("new_ones", new_ones_impl, kMethod | kComplex | kToSizes | kNonDifferentiable,
                {"input", {"size", kVarArgs}, WT_OPTIONS}, "ones with input's dtype and device.");
const Op<Tensor(const Tensor&, IntList, IntList, OptDType, OptDevice, bool)> new_empty_strided_op(
    "new_empty_strided", new_empty_strided_impl, kMethod | kComplex | kNonDifferentiable | kUninitialized,
    {"input", "size", "stride", WT_OPTIONS}, "empty_strided with input's dtype and device.");
const Op<Tensor(const Tensor&, IntList, const Scalar&, OptDType, OptDevice, bool)> new_full_op(
    "new_full", new_full_impl, kMethod | kComplex | kToSizes | kNonDifferentiable,
    {"input", "size", "fill_value", WT_OPTIONS}, "full with input's dtype and device.");
const Op<Tensor(const Scalar&, OptDType, OptDevice, bool)> arange_end_op("arange", arange_end_impl,
                                                                         kFunction | kOut | kOutNumel,
                                                                         {"end", WT_OPTIONS},
                                                                         "0, 1, ... below end.");
const Op<Tensor(const Scalar&, const Scalar&, const Scalar&, OptDType, OptDevice, bool)> arange_op(
    "arange", arange_impl, kFunction | kOut | kOutNumel,
    {"start", "end", Arg::integer("step", 1), WT_OPTIONS}, "start, start + step, ... before end.");
const Op<Tensor(const Scalar&, const Scalar&, int64_t, OptDType, OptDevice, bool)> linspace_op(
    "linspace", linspace_impl, kFunction | kOut | kComplex | kOutNumel, {"start", "end", "steps", WT_OPTIONS},
    "`steps` numbers from start to end.");
const Op<Tensor(const Scalar&, const Scalar&, const Scalar&, OptDType, OptDevice, bool)> range_op(
    "range", range_impl, kFunction | kOut | kOutNumel, {"start", "end", Arg::integer("step", 1), WT_OPTIONS},
    "Deprecated: numbers from start to end, both included; arange leaves out the end.");
const Op<Tensor(const Scalar&, const Scalar&, int64_t, double, OptDType, OptDevice, bool)> logspace_op(
    "logspace", logspace_impl, kFunction | kOut | kOutNumel | kComplex,
    {"start", "end", "steps", {"base", 10.0}, WT_OPTIONS}, "base to the powers linspace(start, end, steps).");
template <class A, class B>
struct Spaces {
  Op<Tensor(const A&, const B&, int64_t, OptDType, OptDevice, bool)> linspace =
      overload_of(linspace_op, linspace_of<A, B>, {}, "linspace with bounds in 0-dim tensors.");
  Op<Tensor(const A&, const B&, int64_t, double, OptDType, OptDevice, bool)> logspace =
      overload_of(logspace_op, logspace_of<A, B>, {}, "logspace with bounds in 0-dim tensors.");
};
const Spaces<Tensor, Tensor> spaces_of_tensors;
const Spaces<Tensor, Scalar> spaces_from_tensor;
const Spaces<Scalar, Tensor> spaces_to_tensor;
const Op<Tensor(int64_t, std::optional<int64_t>, OptDType, OptDevice, bool)> eye_op(
    "eye", eye_impl, kFunction | kOut | kComplex, {"n", {"m", none}, WT_OPTIONS},
    "n rows, m columns, 1 on the diagonal.");

}  // namespace

Tensor index_range(int64_t n, Device device) {
  return sequence(n, {DType::Int64, device}, {.integral = true, .step_int = 1, .turn = n});
}

}  // namespace warptape::ops
