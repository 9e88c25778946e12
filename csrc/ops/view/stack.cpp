// Joining, splitting and aligning tensors by their dims: hstack and its kin, tensor_split, broadcast_tensors,
// meshgrid.
#include "op/forms.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

// ---- at least so many dims -----------------------------------------------------------------------------

Tensor atleast_1d_impl(const Tensor& x) { return x.ndim() ? x : reshape(x, Shape{1}); }
Tensor atleast_2d_impl(const Tensor& x) {
  return x.ndim() >= 2 ? x : x.ndim() == 1 ? unsqueeze(x, 0) : reshape(x, Shape{1, 1});
}
Tensor atleast_3d_impl(const Tensor& x) {
  if (x.ndim() >= 3) return x;
  return x.ndim() == 2   ? unsqueeze(x, 2)
         : x.ndim() == 1 ? unsqueeze(unsqueeze(x, 0), 2)
                         : reshape(x, Shape{1, 1, 1});
}
// A column of a vector or a number; a matrix as it is.
Tensor column(const Tensor& x) { return x.ndim() >= 2 ? x : reshape(x, Shape{x.numel(), 1}); }

template <Tensor (*F)(const Tensor&)>
std::vector<Tensor> each(TensorList tensors) {
  std::vector<Tensor> out;
  out.reserve(tensors.size());
  for (const Tensor& t : tensors) out.push_back(F(t));
  return out;
}

using OneOp = Op<Tensor(const Tensor&)>;
using EachOp = Op<std::vector<Tensor>(TensorList)>;
constexpr OpFacts kView = kFunction | kComplex | Aliasing::View;
const Arg kTensors{"tensors", {}, kVarArgs};
const char k1Doc[] = "Each tensor with at least one dim.";
const char k2Doc[] = "Each tensor with at least two dims; new ones come first.";
const char k3Doc[] = "Each tensor with at least three dims: [n] becomes [1, n, 1], [m, n] becomes [m, n, 1].";
const OneOp atleast_1d{"atleast_1d", atleast_1d_impl, kView, {"input"}, k1Doc},
    atleast_2d{"atleast_2d", atleast_2d_impl, kView, {"input"}, k2Doc},
    atleast_3d{"atleast_3d", atleast_3d_impl, kView, {"input"}, k3Doc};
const EachOp atleast_1d_each = overload_with(atleast_1d, each<atleast_1d_impl>, {kTensors}, kMixedDevices),
             atleast_2d_each = overload_with(atleast_2d, each<atleast_2d_impl>, {kTensors}, kMixedDevices),
             atleast_3d_each = overload_with(atleast_3d, each<atleast_3d_impl>, {kTensors}, kMixedDevices);

// ---- joining -------------------------------------------------------------------------------------------

void check_any(const char* op, TensorList tensors) {
  WT_CHECK(!tensors.empty(), Error, op, ": ", op, " expects a non-empty TensorList");
}
Tensor hstack_impl(TensorList tensors) {
  check_any("hstack", tensors);
  auto parts = each<atleast_1d_impl>(tensors);
  return cat(parts, parts[0].ndim() == 1 ? 0 : 1);
}
Tensor vstack_impl(TensorList tensors) {
  check_any("vstack", tensors);
  return cat(each<atleast_2d_impl>(tensors), 0);
}
Tensor dstack_impl(TensorList tensors) {
  check_any("dstack", tensors);
  return cat(each<atleast_3d_impl>(tensors), 2);
}
Tensor column_stack_impl(TensorList tensors) {
  check_any("column_stack", tensors);
  return cat(each<column>(tensors), 1);
}

using JoinOp = Op<Tensor(TensorList)>;
constexpr OpFacts kJoin = kFunction | kOut | kComplex;
const JoinOp hstack{
    "hstack", hstack_impl, kJoin, {"tensors"}, "Joins along dim 1 (dim 0 of one-dimensional tensors)."},
    vstack{"vstack", vstack_impl, kJoin, {"tensors"}, "Joins rows."},
    dstack{"dstack", dstack_impl, kJoin, {"tensors"}, "Joins along dim 2."},
    column_stack{"column_stack",
                 column_stack_impl,
                 kJoin,
                 {"tensors"},
                 "Joins columns; one-dimensional tensors are columns."};
const Alias row_stack{"row_stack", "vstack"};

// ---- splitting -----------------------------------------------------------------------------------------

int64_t checked_dim(const Tensor& x, int64_t dim) {
  WT_CHECK(
      x.ndim() > 0, ShapeError,
      "tensor_split: tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims");
  return wrap_dim(dim, x.ndim(), "tensor_split");
}

std::vector<Tensor> tensor_split_sections(const Tensor& x, int64_t sections, int64_t dim) {
  dim = checked_dim(x, dim);
  WT_CHECK(sections > 0, ValueError, "tensor_split: number of sections must be larger than 0, got ",
           sections);
  const int64_t length = x.sizes()[dim] / sections, longer = x.sizes()[dim] % sections;
  std::vector<Tensor> out;
  for (int64_t i = 0, at = 0; i < sections; ++i) {
    const int64_t n = length + (i < longer);
    out.push_back(narrow(x, dim, at, n));
    at += n;
  }
  return out;
}

// As Python's slices: x[:i0], x[i0:i1], ..., x[ik:].
std::vector<Tensor> tensor_split_indices(const Tensor& x, IntList indices, int64_t dim) {
  dim = checked_dim(x, dim);
  const int64_t n = x.sizes()[dim];
  std::vector<Tensor> out;
  int64_t begin = 0;
  auto part = [&](int64_t end) {
    out.push_back(narrow(x, dim, begin, std::max<int64_t>(end - begin, 0)));
    begin = end;
  };
  for (int64_t i : indices) part(std::clamp<int64_t>(i < 0 ? i + n : i, 0, n));
  part(n);
  return out;
}

std::vector<Tensor> tensor_split_tensor(const Tensor& x, const Tensor& cuts, int64_t dim) {
  WT_CHECK(cuts.device().is_host(), DeviceError,
           "tensor_split: tensor_split expected tensor_indices_or_sections to be on cpu, but it's on ",
           cuts.device());
  WT_CHECK(cuts.dtype() == DType::Int64, DtypeError,
           "tensor_split: tensor_split expected tensor_indices_or_sections to have dtype of long, but got ",
           cuts.dtype());
  WT_CHECK(cuts.ndim() <= 1, ShapeError,
           "tensor_split: tensor_split expected tensor_indices_or_sections to be a zero-dimensional or "
           "one-dimensional tensor, but got a tensor with ",
           cuts.ndim(), " dims");
  const Tensor dense = raw_contiguous(cuts);
  const auto* first = dense.data_as<int64_t>();
  if (cuts.ndim() == 0) return tensor_split_sections(x, *first, dim);
  return tensor_split_indices(x, {first, static_cast<size_t>(cuts.numel())}, dim);
}

// hsplit, vsplit, dsplit: along a dim of their own, in sections of one length.
struct Split {
  const char* name;
  int64_t min_ndim, dim;
};
constexpr Split kH{"hsplit", 1, 1}, kV{"vsplit", 2, 0}, kD{"dsplit", 3, 2};

template <const Split& S>
int64_t split_dim(const Tensor& x) {
  WT_CHECK(x.ndim() >= S.min_ndim, ShapeError, S.name, ": torch.", S.name,
           " requires a tensor with at least ", S.min_ndim, " dimension, but got a tensor with ", x.ndim(),
           " dimensions!");
  return x.ndim() == 1 ? 0 : S.dim;
}
template <const Split& S>
std::vector<Tensor> split_sections(const Tensor& x, int64_t sections) {
  const int64_t dim = split_dim<S>(x), n = x.sizes()[dim];
  WT_CHECK(sections != 0 && n % sections == 0, ShapeError, S.name, ": torch.", S.name,
           " attempted to split along dimension ", dim, ", but the size of the dimension ", n,
           " is not divisible by the split_size ", sections, "!");
  return tensor_split_sections(x, sections, dim);
}
template <const Split& S>
std::vector<Tensor> split_indices(const Tensor& x, IntList indices) {
  return tensor_split_indices(x, indices, split_dim<S>(x));
}

using SectionsOp = Op<std::vector<Tensor>(const Tensor&, int64_t)>;
using IndicesOp = Op<std::vector<Tensor>(const Tensor&, IntList)>;
constexpr OpFacts kBoth = kFunction | kMethod | kComplex,
                  kParts = kBoth | kAlongDims | kLinear | Aliasing::View;
const char kSplitDoc[] = "Views of nearly equal length, or cut at the given indices.";
const Arg kDim = Arg::integer("dim", 0, kDimIndex);
// The tensor comes first: one of a single integer would be read as a number of sections.
const Op<std::vector<Tensor>(const Tensor&, const Tensor&, int64_t)> tensor_split_by_tensor{
    "tensor_split",
    tensor_split_tensor,
    kParts | kMixedDevices,
    {"input", "tensor_indices_or_sections", kDim},
    kSplitDoc};
const Op<std::vector<Tensor>(const Tensor&, int64_t, int64_t)> tensor_split_op{
    "tensor_split", tensor_split_sections, kParts, {"input", "sections", kDim}, kSplitDoc};
const auto tensor_split_at = overload_with(tensor_split_op, tensor_split_indices, {"input", "indices", kDim});
const char kHDoc[] =
    "Views along dim 1 (dim 0 of a one-dimensional tensor), of equal length or cut at indices.";
const char kVDoc[] = "Views along dim 0, of equal length or cut at indices.";
const char kDDoc[] = "Views along dim 2, of equal length or cut at indices.";
const SectionsOp hsplit{"hsplit", split_sections<kH>, kParts, {"input", "sections"}, kHDoc},
    vsplit{"vsplit", split_sections<kV>, kParts, {"input", "sections"}, kVDoc},
    dsplit{"dsplit", split_sections<kD>, kParts, {"input", "sections"}, kDDoc};
const IndicesOp hsplit_at = overload_with(hsplit, split_indices<kH>, {"input", "indices"}),
                vsplit_at = overload_with(vsplit, split_indices<kV>, {"input", "indices"}),
                dsplit_at = overload_with(dsplit, split_indices<kD>, {"input", "indices"});

// ---- one shape for all ---------------------------------------------------------------------------------

Shape broadcast_shapes_impl(std::span<const Shape> shapes) {
  Shape out;
  for (const Shape& s : shapes) {
    numel_of(s, "broadcast_shapes");
    out = broadcast_shapes(out, s, "broadcast_shapes");
  }
  return out;
}
std::vector<Tensor> broadcast_tensors_impl(TensorList tensors) {
  Shape shape;
  for (const Tensor& t : tensors) shape = broadcast_shapes(shape, t.sizes(), "broadcast_tensors");
  std::vector<Tensor> out;
  for (const Tensor& t : tensors) out.push_back(expand(t, shape));
  return out;
}

std::vector<Tensor> meshgrid_impl(TensorList tensors, std::optional<std::string_view> given) {
  WT_CHECK(!tensors.empty(), Error, "meshgrid: meshgrid expects a non-empty TensorList");
  const std::string_view indexing = given.value_or("ij");
  WT_CHECK(indexing == "ij" || indexing == "xy", Error,
           "meshgrid: indexing must be one of \"xy\" or \"ij\", but received: ", indexing);
  for (const Tensor& t : tensors) {
    WT_CHECK(t.ndim() <= 1, ShapeError, "meshgrid: Expected 0D or 1D tensor in the tensor list but got: ", t);
    WT_CHECK(t.dtype() == tensors[0].dtype(), DtypeError,
             "meshgrid: meshgrid expects all tensors to have the same dtype, got ", tensors[0].dtype(),
             " and ", t.dtype());
  }
  // "xy" is "ij" with the first two in the other order.
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (indexing == "xy" && order.size() > 1) std::swap(order[0], order[1]);
  Shape shape;
  for (size_t i : order) shape.push_back(tensors[i].numel());
  std::vector<Tensor> grids(tensors.size());
  for (size_t d = 0; d < order.size(); ++d) {
    Shape line(order.size(), 1);
    line[d] = shape[d];
    grids[order[d]] = expand(reshape(tensors[order[d]], line), shape);
  }
  return grids;
}

const Op<Shape(std::span<const Shape>)> broadcast_shapes_op{
    "broadcast_shapes",
    broadcast_shapes_impl,
    kFunction,
    {{"shapes", {}, kVarArgs}},
    "The shape that tensors of these shapes broadcast to."};
const EachOp broadcast_tensors{"broadcast_tensors",
                               broadcast_tensors_impl,
                               kView | kMixedDevices,
                               {kTensors},
                               "Each tensor expanded to the common shape."};
const Op<std::vector<Tensor>(TensorList, std::optional<std::string_view>)> meshgrid{
    "meshgrid",
    meshgrid_impl,
    kView,
    {{"tensors", kVarArgs}, {"indexing", none, kKeywordOnly}},
    "Coordinate grids of one-dimensional tensors; `indexing` is \"ij\" or \"xy\"."};

}  // namespace
}  // namespace warptape::ops
