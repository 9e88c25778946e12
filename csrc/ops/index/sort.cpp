// sort, argsort, topk, kthvalue's kin: along any dim, by way of the last one.
#include "ops/index/sort.h"
#include "op/forms.h"

#include "kernels/index/sort.h"
#include "op/pointwise.h"
#include "ops/index/gather.h"
#include "ops/kernel_inputs.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::SortFn> sort_slot{"sort"};
kernels::Slot<kernels::TopkFn> topk_slot{"topk"};
kernels::Slot<kernels::SearchsortedFn> searchsorted_slot{"searchsorted"};

struct DimData {
  int64_t dim;
  Shape sizes;
};

void pick_backward(Node& n, Gradients& g) {
  const DimData& d = n.data<DimData>();
  if (!g[0].defined()) return;
  g.set(0, scatter_add(zeros(d.sizes, options_of(g[0])), d.dim, n.saved(0), g[0]));
}
constexpr NodeType kSort{"SortBackward0", pick_backward}, kTopk{"TopkBackward0", pick_backward};

// Rows of dim `dim`, contiguous, without history; a 0-dim tensor is one row of one.
struct Rows {
  Tensor data;
  int64_t outer, n, dim;
};
Rows rows_of(const char* op, const Tensor& x, int64_t dim) {
  dim = wrap_dim(dim, x.ndim(), op);
  if (x.ndim() == 0) return {alias(x, Shape{1}, Shape{1}, x.offset()), 1, 1, 0};
  NoGrad off;
  Tensor last = raw_contiguous(transpose(x, dim, -1));
  int64_t n = last.sizes().back();
  return {last, n ? last.numel() / n : 0, n, dim};
}

// Contiguous rows of length k back to x's order of dims.
Tensor back(const Tensor& rows, const Tensor& x, int64_t dim) {
  if (x.ndim() == 0) return alias(rows, Shape{}, Shape{}, 0);
  NoGrad off;
  Tensor out = raw_contiguous(transpose(rows, dim, -1));
  return alias(out);
}

using Pair = std::tuple<Tensor, Tensor>;

Pair finish(const NodeType& type, const Tensor& x, Tensor values, Tensor indices, int64_t dim) {
  values = back(values, x, dim);
  indices = back(indices, x, dim);
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->emplace<DimData>(dim, x.sizes());
    n->save(indices);
    set_history(values, n);
  }
  return {values, indices};
}

Pair sort_impl(const Tensor& x, int64_t dim, bool descending, bool) {
  Rows r = rows_of("sort", x, dim);
  Tensor values = empty(r.data.sizes(), options_of(x)),
         indices = empty(r.data.sizes(), {DType::Int64, x.device()});
  if (!x.is_meta() && x.numel()) {
    Launch launch(x.device());
    sort_slot(launch, values.view(), indices.view(), r.data.view(), r.outer, r.n, descending);
  }
  return finish(kSort, x, values, indices, r.dim);
}
Tensor argsort_impl(const Tensor& x, int64_t dim, bool descending, bool stable) {
  NoGrad off;
  return std::get<1>(sort_impl(x, dim, descending, stable));
}

Pair topk_impl(const Tensor& x, int64_t k, int64_t dim, bool largest, bool) {
  Rows r = rows_of("topk", x, dim);
  WT_CHECK(k >= 0 && k <= r.n, ValueError, "topk: selected index k out of range: expected 0 to ", r.n,
           ", got ", k);
  Shape sizes = r.data.sizes();
  sizes.back() = k;
  Tensor values = empty(sizes, options_of(x)), indices = empty(sizes, {DType::Int64, x.device()});
  if (!x.is_meta() && values.numel()) {
    Launch launch(x.device());
    topk_slot(launch, values.view(), indices.view(), r.data.view(), r.outer, r.n, k, largest);
  }
  if (x.ndim() == 0 && k == 0) return {values, indices};
  return finish(kTopk, x, values, indices, r.dim);
}

Pair kthvalue_impl(const Tensor& x, int64_t k, int64_t dim, bool keepdim) {
  Rows r = rows_of("kthvalue", x, dim);
  WT_CHECK(k >= 1 && k <= r.n, ValueError, "kthvalue: selected number k out of range: expected 1 to ", r.n,
           ", got ", k);
  auto [values, indices] = topk_impl(x, k, dim, false, true);
  if (x.ndim() == 0) return {values, indices};
  if (keepdim) return {narrow(values, dim, k - 1, 1), narrow(indices, dim, k - 1, 1)};
  return {select(values, dim, k - 1), select(indices, dim, k - 1)};
}

using Side = std::optional<std::string_view>;

// The boundaries in the order that `sorter` gives.
Tensor in_order(const Tensor& boundaries, const OptTensor& sorter) {
  if (!sorter) return boundaries;
  WT_CHECK(sorter->dtype() == DType::Int64, DtypeError,
           "searchsorted: sorter must be a tensor of long dtype but got dtype ", sorter->dtype());
  WT_CHECK(sorter->sizes() == boundaries.sizes(), ShapeError,
           "searchsorted: boundary and sorter must have the same size, but got boundary tensor ",
           boundaries.sizes(), " and got sorter tensor ", sorter->sizes());
  NoGrad off;
  return gather(boundaries, -1, *sorter, false);
}

bool right_side(bool right, Side side) {
  WT_CHECK(!side || *side == "left" || *side == "right", Error,
           "searchsorted: side can only be 'left' or 'right' but got ", *side);
  WT_CHECK(!side || !right || *side == "right", Error,
           "searchsorted: side and right can't be set to opposites, got side of left while right was True");
  return right || (side && *side == "right");
}

Tensor searchsorted_impl(const Tensor& given, const Tensor& wanted, bool narrow_out, bool right, Side side,
                         const OptTensor& sorter) {
  right = right_side(right, side);
  const PointwiseInput both[] = {given, wanted};
  const DType common = promoted_dtype(both);
  const Tensor sorted = raw_cast(in_order(given, sorter), common), values = raw_cast(wanted, common);
  check_same_device("searchsorted", sorted, values, "input");
  WT_CHECK(sorted.ndim() > 0, ShapeError, "searchsorted: expected boundaries of at least one dimension");
  bool shared = sorted.ndim() == 1;
  Shape a(sorted.sizes().begin(), sorted.sizes().end() - 1);
  WT_CHECK(
      shared || (values.ndim() == sorted.ndim() && std::equal(a.begin(), a.end(), values.sizes().begin())),
      ShapeError,
      "searchsorted: boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries ",
      sorted.sizes(), " and input ", values.sizes(), " must match");
  Tensor out = empty(values.sizes(), {narrow_out ? DType::Int32 : DType::Int64, values.device()});
  if (out.is_meta() || out.numel() == 0) return out;
  int64_t n = sorted.sizes().back(), m = shared ? values.numel() : values.sizes().back();
  Launch launch(values.device());
  searchsorted_slot(launch, out.view(), raw_contiguous(sorted).view(), raw_contiguous(values).view(),
                    values.numel() / m, n, m, shared, right);
  return out;
}

Tensor searchsorted_number(const Tensor& sorted, const Scalar& value, bool narrow_out, bool right, Side side,
                           const OptTensor& sorter) {
  return searchsorted_impl(sorted, scalar_tensor(value, value.dtype(), sorted.device()), narrow_out, right,
                           side, sorter);
}

void check_boundaries(const Tensor& boundaries) {
  WT_CHECK(boundaries.ndim() == 1, ShapeError,
           "bucketize: boundaries tensor must be 1 dimension, but got dim(", boundaries.ndim(), ")");
}
Tensor bucketize_impl(const Tensor& x, const Tensor& boundaries, bool narrow_out, bool right) {
  check_boundaries(boundaries);
  return searchsorted_impl(boundaries, x, narrow_out, right, std::nullopt, std::nullopt);
}
Tensor bucketize_number(const Scalar& value, const Tensor& boundaries, bool narrow_out, bool right) {
  check_boundaries(boundaries);
  return searchsorted_number(boundaries, value, narrow_out, right, std::nullopt, std::nullopt);
}

Tensor msort_impl(const Tensor& x) { return std::get<0>(sort(x, 0, false, true)); }

constexpr OpFacts kBoth = kFunction | kMethod;

}  // namespace

decltype(sort) sort{
    "sort",
    sort_impl,
    kBoth | kOut | kAlongDims,
    {"input", Arg::integer("dim", -1, kDimIndex), {"descending", false}, {"stable", false, kKeywordOnly}},
    "Values in order along dim, and where they were; always stable.",
    {"values", "indices"}};
decltype(topk) topk{"topk",
                    topk_impl,
                    kBoth | kOut | kAlongDims,
                    {"input", "k", Arg::integer("dim", -1, kDimIndex), {"largest", true}, {"sorted", true}},
                    "The k largest (or smallest) of a dim, in order, and where they were.",
                    {"values", "indices"}};
namespace {
const Op<Pair(const Tensor&, int64_t, int64_t, bool)> kthvalue{
    "kthvalue",
    kthvalue_impl,
    kBoth | kOut | kOutExact | kOutApart | kAlongDims,
    {"input", "k", Arg::integer("dim", -1, kDimIndex), {"keepdim", false}},
    "The k-th smallest of a dim.",
    {"values", "indices"}};
const Op<Tensor(const Tensor&)> msort{
    "msort", msort_impl, kBoth | kOut, {"input"}, "The values in order along the first dim."};
const Op<Tensor(const Tensor&, const Tensor&, bool, bool)> bucketize{
    "bucketize",
    bucketize_impl,
    kFunction | kOut,
    {"input", "boundaries", {"out_int32", false, kKeywordOnly}, {"right", false, kKeywordOnly}},
    "The bucket of each element: the first boundary not below it, or with right above it."};
const Op<Tensor(const Scalar&, const Tensor&, bool, bool)> bucketize_number_op =
    overload_of(bucketize, bucketize_number, {}, "The bucket of a number.");
#define WT_SEARCH_OPTIONS                                                                             \
  {"out_int32", false, kKeywordOnly}, {"right", false, kKeywordOnly}, {"side", none, kKeywordOnly}, { \
    "sorter", none, kKeywordOnly                                                                      \
  }
}  // namespace
decltype(searchsorted) searchsorted{"searchsorted",
                                    searchsorted_impl,
                                    kFunction | kOut,
                                    {"sorted_sequence", "input", WT_SEARCH_OPTIONS},
                                    "Where each value would go in its sorted row."};
namespace {
const Op<Tensor(const Tensor&, const Scalar&, bool, bool, Side, const OptTensor&)> searchsorted_number_op =
    overload_of(searchsorted, searchsorted_number, {}, "Where a number would go in the sorted row.");
}  // namespace

decltype(argsort) argsort{
    "argsort",
    argsort_impl,
    kBoth | kAlongDims,
    {"input", Arg::integer("dim", -1, kDimIndex), {"descending", false}, {"stable", false, kKeywordOnly}},
    "The indices that sort along dim."};

}  // namespace warptape::ops
