// Quantiles along a dim or of all elements.
#include "op/forms.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/gather.h"
#include "ops/index/masked.h"
#include "ops/index/sort.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using Dim = std::optional<int64_t>;

struct QuantileOptions {
  const char* op;
  Dim dim;
  bool keepdim;
  std::string_view interpolation;
  bool skips_nan;
};

void check_quantile(const QuantileOptions& o, const Tensor& x, const Tensor& q) {
  const std::string_view i = o.interpolation;
  WT_CHECK(i == "linear" || i == "lower" || i == "higher" || i == "midpoint" || i == "nearest", Error, o.op,
           "() interpolation must be one of linear, lower, higher, midpoint or nearest, but got ", i);
  WT_CHECK(x.numel() > 0, Error, o.op, "() input tensor must be non-empty");
  WT_CHECK(q.ndim() <= 1, Error, o.op, "() q must be a scalar or 1D tensor, got ", q);
  WT_CHECK(x.dtype() == DType::Float32 || x.dtype() == DType::Float64, Error, o.op,
           "() input tensor must be either float or double dtype, got ", x.dtype());
  WT_CHECK(q.dtype() == x.dtype(), Error, o.op, "() q tensor must be same dtype as the input tensor, got ",
           q.dtype(), " and ", x.dtype());
  WT_CHECK(q.device() == x.device(), Error, o.op,
           "() q tensor must be on the same device as the input tensor");
  if (!q.device().is_host()) return;  // whose values are not waited for
  const Tensor wide = raw_contiguous(raw_cast(q, DType::Float64));
  for (int64_t k = 0; k < wide.numel(); ++k)
    WT_CHECK(wide.data_as<double>()[k] >= 0 && wide.data_as<double>()[k] <= 1, Error, o.op,
             "() q values must be in the range [0, 1], got ", wide.data_as<double>()[k]);
}

// Of q [Q] among ordered rows x [.., n], where nan comes last: [.., Q]. Of a row with a nan, the last place,
// where that is, unless it is skipped.
Tensor ranks_of(const QuantileOptions& o, const Tensor& x, const Tensor& q) {
  const Shape last{-1};
  const int64_t n = x.sizes().back();
  const Tensor nan = isnan(x);
  if (!o.skips_nan)
    return masked_fill(q * static_cast<double>(n - 1), any(nan, OptDims(last), true),
                       static_cast<double>(n - 1));
  const Tensor left = sum(logical_not(nan), OptDims(last), true, std::nullopt) - 1;
  return q * clamp(left, Scalar(0), std::nullopt);
}

// The elements of rows x [.., n] at ranks [.., Q], or between two of them.
Tensor at_ranks(std::string_view interpolation, const Tensor& x, const Tensor& rank) {
  const auto at = [&](const Tensor& place) { return gather(x, -1, raw_cast(place, DType::Int64), false); };
  if (interpolation == "higher") return at(ceil(rank));
  if (interpolation == "nearest") return at(round(rank, 0));
  const Tensor below = floor(rank);
  if (interpolation == "lower") return at(below);
  if (interpolation == "midpoint") return lerp_s(at(below), at(ceil(rank)), 0.5);
  return lerp(at(below), at(ceil(rank)), rank - below);
}

Tensor quantile_of(const QuantileOptions& o, const Tensor& x, const Tensor& q) {
  check_quantile(o, x, q);
  const bool all = !o.dim || x.ndim() == 0;
  const int64_t dim = o.dim ? wrap_dim(*o.dim, x.ndim(), o.op) : 0;
  const Tensor rows = all ? reshape(x, Shape{-1}) : transpose(x, dim, -1);
  const Tensor ordered = std::get<0>(sort(rows, -1, false, true));
  const Tensor values = at_ranks(o.interpolation, ordered, ranks_of(o, ordered, reshape(q, Shape{-1})));
  // The dim in whose place Q stands now goes first, or away.
  Shape sizes;
  if (q.ndim()) sizes.push_back(q.numel());
  for (int64_t d = 0; d < x.ndim(); ++d)
    if (all || d == dim) {
      if (o.keepdim) sizes.push_back(1);
    } else {
      sizes.push_back(x.sizes()[d]);
    }
  if (all) return reshape(values, sizes);
  const Tensor in_place = transpose(values, dim, -1);
  if (q.ndim() == 0) return o.keepdim ? in_place : select(in_place, dim, 0);
  Shape order{dim};
  for (int64_t d = 0; d < x.ndim(); ++d)
    if (d != dim) order.push_back(d);
  const Tensor first = permute(in_place, order);
  return o.keepdim ? unsqueeze(first, dim + 1) : first;
}

Tensor quantile_impl(const Tensor& x, const Tensor& q, Dim dim, bool keepdim, std::string_view how) {
  return quantile_of({"quantile", dim, keepdim, how, false}, x, q);
}
Tensor nanquantile_impl(const Tensor& x, const Tensor& q, Dim dim, bool keepdim, std::string_view how) {
  return quantile_of({"nanquantile", dim, keepdim, how, true}, x, q);
}
Tensor number_like(const char* op, const Tensor& x, double q) {
  WT_CHECK(q >= 0 && q <= 1, Error, op, "() q must be in the range [0, 1] but got ", q);
  return full({}, q, options_of(x));
}
Tensor quantile_number(const Tensor& x, double q, Dim dim, bool keepdim, std::string_view how) {
  return quantile_impl(x, number_like("quantile", x, q), dim, keepdim, how);
}
Tensor nanquantile_number(const Tensor& x, double q, Dim dim, bool keepdim, std::string_view how) {
  return nanquantile_impl(x, number_like("nanquantile", x, q), dim, keepdim, how);
}

#define WT_QUANTILE_ARGS                                                                         \
  {                                                                                              \
    "input", "q", {"dim", none}, {"keepdim", false}, { "interpolation", "linear", kKeywordOnly } \
  }
constexpr OpFacts kPlaces = kFunction | kMethod | kOut | kFloat32Cpu;
const char kQuantileDoc[] = "The q-quantiles along dim, or of all elements; nan where one is among them.";
const char kNanquantileDoc[] = "The q-quantiles of the elements that are not nan.";
// The tensor first: a 0-dim one may want a gradient.
const Op<Tensor(const Tensor&, const Tensor&, Dim, bool, std::string_view)> quantile{
    "quantile", quantile_impl, kPlaces, WT_QUANTILE_ARGS, kQuantileDoc},
    nanquantile{"nanquantile", nanquantile_impl, kPlaces, WT_QUANTILE_ARGS, kNanquantileDoc};
const Op<Tensor(const Tensor&, double, Dim, bool, std::string_view)> quantile_number_op = overload_of(
                                                                         quantile, quantile_number),
                                                                     nanquantile_number_op = overload_of(
                                                                         nanquantile, nanquantile_number);

}  // namespace
}  // namespace warptape::ops
