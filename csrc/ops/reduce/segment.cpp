// segment_reduce: runs of a dim, given by their lengths or their bounds, each reduced to one.
#include <limits>

#include "ops/index/gather.h"
#include "ops/index/masked.h"
#include "ops/index/sort.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/matmul.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

constexpr const char* kSegment = "segment_reduce";
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Kind {
  std::string_view scatter;  // the reduction that scatter_reduce does
  double start;              // of an empty run, where none is given
};

Kind kind_of(std::string_view reduce) {
  if (reduce == "sum" || reduce == "mean") return {"sum", 0};
  if (reduce == "max" || reduce == "amax") return {"amax", -kInf};
  if (reduce == "min" || reduce == "amin") return {"amin", kInf};
  if (reduce == "prod") return {"prod", 1};
  throw Error(message(kSegment, ": Unsupported reduction given: ", reduce));
}

// How long the runs are: lengths as they are, else the differences of the bounds.
Tensor lengths_of(const Tensor& data, const OptTensor& lengths, const OptTensor& offsets, int64_t axis) {
  WT_CHECK(lengths || offsets, Error, kSegment, "(): Either lengths or offsets must be defined.");
  const Tensor& given = lengths ? *lengths : *offsets;
  WT_CHECK(given.dtype() == DType::Int64 || given.dtype() == DType::Int32, DtypeError, kSegment,
           ": expected lengths and offsets of dtype int32 or int64, got ", given);
  check_same_device(kSegment, data, given, lengths ? "lengths" : "offsets");
  WT_CHECK(axis == given.ndim() - 1, ShapeError, kSegment,
           "(): Expected axis to be the last dimension of lengths or offsets, but got ", axis, ".");
  WT_CHECK(axis < data.ndim(), ShapeError, kSegment, ": expected data with a dim ", axis, ", got ", data);
  for (int64_t d = 0; d < axis; ++d)
    WT_CHECK(given.sizes()[d] == data.sizes()[d], ShapeError, kSegment,
             ": lengths and offsets have data's sizes before axis, got ", given, " for ", data);
  const int64_t n = given.sizes()[axis];
  if (lengths) return cast(given, DType::Int64);
  WT_CHECK(n > 0, ShapeError, kSegment, ": expected at least one offset");
  return cast(narrow(given, axis, 1, n - 1) - narrow(given, axis, 0, n - 1), DType::Int64);
}

// [B, L]: which run each place along the dim lies in; n behind the last.
Tensor runs_of(const Tensor& lengths, int64_t rows, int64_t places) {
  const int64_t n = lengths.sizes()[1];
  if (n == 0) return full(Shape{rows, places}, 0, options_of(lengths));
  const Tensor at = cumsum(full(Shape{places}, 1, options_of(lengths)), 0, {}) - 1;
  return searchsorted(raw_contiguous(cumsum(lengths, 1, {})), raw_contiguous(expand(at, Shape{rows, places})),
                      false, true, {}, {});
}

struct Runs {
  Tensor of;  // [B, L, R]: which run each value lies in
  int64_t n;
  std::optional<Scalar> initial;
};

// [B, L, R] -> [B, n, R]; `start` is what empty runs give, and joins each run but of extremes.
Tensor scattered(const Tensor& values, const Runs& runs, std::string_view reduce, const Scalar& start) {
  // One run more takes what lies behind the last.
  const Tensor from =
      full(Shape{values.sizes()[0], runs.n + 1, values.sizes()[2]}, start, options_of(values));
  if (values.numel() == 0)  // recorded all the same
    return narrow(from, 1, 0, runs.n) + sum(values, Shape{1}, true, {});
  const bool join = reduce == "sum" || reduce == "prod";
  return narrow(scatter_reduce(from, 1, runs.of, values, reduce, join), 1, 0, runs.n);
}

// A run's gradient goes to its extremes in equal parts, none to `initial`; of a run with NaNs to these.
Tensor extremes_of(const Tensor& values, const Runs& runs, const Kind& kind) {
  const Tensor nans = isnan(values);
  const Tensor counts = scattered(cast(nans, values.dtype()), runs, "sum", 0);
  const Tensor of_nans = scattered(masked_fill(values, logical_not(nans), 0), runs, "sum", 0);
  Tensor out = scattered(masked_fill(values, nans, kind.start), runs, kind.scatter, kind.start);
  if (runs.initial) {
    const Tensor worse = kind.start < 0 ? lt_ts(out, *runs.initial) : gt_ts(out, *runs.initial);
    out = masked_fill(out, worse, *runs.initial);
  }
  return where(gt_ts(counts, 0), div(of_nans, clamp(counts, Scalar(1), std::nullopt)), out);
}

// A run with one NaN has the product of its other values for the gradient of that one.
Tensor product_of(const Tensor& values, const Runs& runs, const Scalar& start) {
  const Tensor nans = isnan(values);
  const Tensor counts = scattered(cast(nans, values.dtype()), runs, "sum", 0);
  const Tensor of_nans = scattered(masked_fill(values, logical_not(nans), 0), runs, "sum", 0);
  const Tensor rest = scattered(masked_fill(values, nans, 1), runs, "prod", start);
  const Tensor others = masked_fill(rest, gt_ts(counts, 1), std::numeric_limits<double>::quiet_NaN());
  return where(gt_ts(counts, 0), of_nans * others, rest);
}

Tensor segment_reduce_impl(const Tensor& data, std::string_view reduce, const OptTensor& given,
                           const OptTensor& indices, const OptTensor& offsets, int64_t axis, bool unsafe,
                           std::optional<Scalar> initial) {
  const Kind kind = kind_of(reduce);
  check_floating(kSegment, data);
  WT_CHECK(!indices, NotImplementedError, kSegment, "(): indices based reduction is not supported yet.");
  axis = wrap_dim(axis, data.ndim(), kSegment);
  Tensor lengths, runs;
  const int64_t places = data.sizes()[axis];
  int64_t rows = 1, rest = 1;
  for (int64_t d = 0; d < data.ndim(); ++d) (d < axis ? rows : rest) *= d == axis ? 1 : data.sizes()[d];
  {
    NoGrad off;
    lengths = lengths_of(data, given, offsets, axis);
    lengths = reshape(lengths, Shape{rows, lengths.sizes()[axis]});
    if (!unsafe && !data.device().is_meta()) {
      WT_CHECK(lengths.numel() == 0 || !item(any(lt_ts(lengths, 0), {}, false)).to_bool(), ShapeError,
               kSegment, "(): lengths contains negative value!");
      WT_CHECK(item(all(eq_ts(sum(lengths, Shape{1}, false, {}), places), {}, false)).to_bool(), ShapeError,
               kSegment, "(): Expected all rows of lengths along axis ", axis, " to sum to ", places,
               " when !unsafe.");
    }
    runs = runs_of(lengths, rows, places);
  }
  const int64_t n = lengths.sizes()[1];
  const Runs at{expand(unsqueeze(runs, 2), Shape{rows, places, rest}), n, initial};
  const Tensor values = reshape(data, Shape{rows, places, rest});
  const Scalar start = initial.value_or(kind.start);
  Tensor out = kind.scatter.starts_with("am") ? extremes_of(values, at, kind)
               : reduce == "prod"             ? product_of(values, at, start)
                                              : scattered(values, at, kind.scatter, start);
  if (reduce == "mean") {
    const Tensor count = unsqueeze(lengths, 2);
    out = div(out, cast(clamp(count, Scalar(1), std::nullopt), data.dtype()));
    if (!initial) out = masked_fill(out, eq_ts(count, 0), std::numeric_limits<double>::quiet_NaN());
  }
  Shape sizes = data.sizes();
  sizes[axis] = n;
  return reshape(out, sizes);
}

constexpr const char* kDoc =
    "Reduces runs along `axis` by \"sum\", \"mean\", \"max\", \"min\" or \"prod\".\n\n"
    "The runs' lengths [.., n], or their bounds `offsets` [.., n + 1], have data's sizes before axis; the\n"
    "result has n in its place. `initial` joins each run, and is what empty ones give; else they give the\n"
    "reduction's neutral element, and \"mean\" nan. `unsafe` leaves the check of the lengths out.";
#define WT_SEGMENT_ARGS                                                                 \
  {                                                                                     \
    "data", "reduce", {"lengths", none, kKeywordOnly}, {"indices", none, kKeywordOnly}, \
        {"offsets", none, kKeywordOnly}, Arg::integer("axis", 0, kKeywordOnly),         \
        {"unsafe", false, kKeywordOnly}, {                                              \
      "initial", none, kKeywordOnly                                                     \
    }                                                                                   \
  }

const Op<Tensor(const Tensor&, std::string_view, const OptTensor&, const OptTensor&, const OptTensor&,
                int64_t, bool, std::optional<Scalar>)>
    segment_reduce{"segment_reduce", segment_reduce_impl, kFunction, WT_SEGMENT_ARGS, kDoc};
const Alias old_name{"_segment_reduce", "segment_reduce"};

}  // namespace
}  // namespace warptape::ops
