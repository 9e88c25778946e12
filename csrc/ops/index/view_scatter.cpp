// Copies of a tensor into a part of which another is written, and what is written by position.
#include "op/forms.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/gather.h"
#include "ops/index/index.h"
#include "ops/kernel_inputs.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

// A copy of `x` with `src` in the place that `view` gives.
template <class F>
Tensor written(const char* op, const Tensor& x, const Tensor& src, F&& view) {
  check_same_device(op, x, src, "src");
  Tensor out = clone(x);
  const Tensor place = view(out);
  WT_CHECK(place.sizes() == src.sizes(), ShapeError, op,
           ": expected src to have a size equal to the slice of self. src size = ", src.sizes(),
           ", slice size = ", place.sizes());
  copy_(place, src, false);
  return out;
}

Tensor slice_scatter_impl(const Tensor& x, const Tensor& src, int64_t dim, std::optional<int64_t> start,
                          std::optional<int64_t> end, int64_t step) {
  WT_CHECK(x.ndim() > 0, ShapeError, "slice_scatter: expected a tensor of at least one dimension");
  WT_CHECK(step > 0, Error, "slice_scatter: slice step must be positive, got ", step);
  dim = wrap_dim(dim, x.ndim(), "slice_scatter");
  const int64_t n = x.sizes()[dim];
  const auto limited = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
  const int64_t first = limited(start.value_or(0)), last = std::max(first, limited(end.value_or(n)));
  return written("slice_scatter", x, src, [&](const Tensor& t) {
    return region(t, [&](Shape& sizes, Shape& strides, int64_t& offset) {
      sizes[dim] = (last - first + step - 1) / step;
      offset = first * strides[dim];
      strides[dim] *= step;
    });
  });
}
Tensor select_scatter_impl(const Tensor& x, const Tensor& src, int64_t dim, int64_t index) {
  return written("select_scatter", x, src, [&](const Tensor& t) { return select(t, dim, index); });
}
Tensor diagonal_scatter_impl(const Tensor& x, const Tensor& src, int64_t offset, int64_t dim1, int64_t dim2) {
  return written("diagonal_scatter", x, src,
                 [&](const Tensor& t) { return diagonal(t, offset, dim1, dim2); });
}
Tensor as_strided_scatter_impl(const Tensor& x, const Tensor& src, IntList size, IntList stride,
                               std::optional<int64_t> offset) {
  return written("as_strided_scatter", x, src,
                 [&](const Tensor& t) { return as_strided(t, size, stride, offset); });
}

Tensor narrow_copy_impl(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  WT_CHECK(dim < x.ndim(), ShapeError, "narrow_copy: expected dim < ", x.ndim(), ", got ", dim);
  return clone(narrow(x, dim, start, length));
}

Tensor block_diag_impl(TensorList tensors) {
  std::vector<Tensor> blocks;
  PromotionState kinds;
  int64_t rows = 0, columns = 0;
  for (const Tensor& t : tensors) {
    WT_CHECK(t.ndim() <= 2, ShapeError, "block_diag: Input tensors must have 2 or fewer dimensions. Input ",
             blocks.size(), " has ", t.ndim(), " dimensions");
    check_same_device("block_diag", tensors[0], t, "another");
    const Tensor block = t.ndim() == 2 ? t : reshape(t, Shape{1, t.numel()});
    kinds.add_dimensioned(t.dtype());
    rows += block.sizes()[0];
    columns += block.sizes()[1];
    blocks.push_back(block);
  }
  if (blocks.empty()) return empty(Shape{1, 0}, {rank_context().default_dtype, default_device()});
  Tensor out = zeros(Shape{rows, columns}, {kinds.result(), tensors[0].device()});
  int64_t row = 0, column = 0;
  for (const Tensor& block : blocks) {
    const int64_t m = block.sizes()[0], n = block.sizes()[1];
    if (m && n) copy_(narrow(narrow(out, 0, row, m), 1, column, n), block, false);
    row += m;
    column += n;
  }
  return out;
}

// ---- in place ------------------------------------------------------------------------------------------

Tensor put_inplace(const Tensor& self, const Tensor& index, const Tensor& source, bool accumulate) {
  WT_CHECK(index.dtype() == DType::Int64, DtypeError, "put_: expected a long tensor for index, but got ",
           index.dtype());
  WT_CHECK(self.dtype() == source.dtype(), DtypeError,
           "put_: self and source expected to have the same dtype, but got self.dtype = ", self.dtype(),
           " and source.dtype = ", source.dtype());
  WT_CHECK(index.numel() == source.numel(), IndexError,
           "put_: Expected source and index to have the same number of elements, but got source.numel() = ",
           source.numel(), ", index.numel() = ", index.numel());
  WT_CHECK(self.numel() || !index.numel(), IndexError, "put_: cannot put into an empty tensor");
  check_no_overlap("put_", self, index, source);
  const auto one_dim = [](const Tensor& t) { return t.ndim() == 1 ? t : reshape(t, Shape{-1}); };
  const OptTensor place = one_dim(index);
  const std::span<const OptTensor> at{&place, 1};
  if (view_strides(self, Shape{self.numel()})) {
    index_put_(self.ndim() == 1 ? self : view(self, Shape{-1}), at, one_dim(source), accumulate);
    return self;
  }
  Tensor flat = clone(reshape(self, Shape{-1}));
  index_put_(flat, at, one_dim(source), accumulate);
  return copy_(self, reshape(flat, self.sizes()), false);
}
Tensor put_impl(const Tensor& x, const Tensor& index, const Tensor& source, bool accumulate) {
  return put_inplace(clone(x), index, source, accumulate);
}

Tensor fill_diagonal_inplace(const Tensor& self, const Scalar& value, bool wrap) {
  WT_CHECK(self.ndim() >= 2, ShapeError, "fill_diagonal_: dimensions must larger than 1, got ", self.ndim());
  const Shape& sizes = self.sizes();
  bool cube = true;
  for (const int64_t n : sizes) cube &= n == sizes[0];
  WT_CHECK(self.ndim() == 2 || cube, ShapeError,
           "fill_diagonal_: all dimensions of input must be of equal length, got ", sizes);
  int64_t step = 0, count = sizes[0];
  for (int64_t d = 0; d < self.ndim(); ++d) {
    step += self.strides()[d];
    count = std::min(count, sizes[d]);
  }
  fill_(as_strided(self, Shape{count}, Shape{step}, self.offset()), value);
  if (!wrap || self.ndim() != 2) return self;
  // Below a block of as many rows as columns, one row is left out.
  for (int64_t top = sizes[1] + 1; top < sizes[0]; top += sizes[1] + 1) {
    const int64_t rows = std::min(sizes[1], sizes[0] - top);
    fill_(as_strided(self, Shape{rows}, Shape{step}, self.offset() + top * self.strides()[0]), value);
  }
  return self;
}

constexpr OpFacts kBoth = kFunction | kMethod | kComplex;

const Op<Tensor(const Tensor&, const Tensor&, int64_t, std::optional<int64_t>, std::optional<int64_t>,
                int64_t)>
    slice_scatter{
        "slice_scatter",
        slice_scatter_impl,
        kBoth | kOut,
        {"input", "src", Arg::integer("dim", 0), {"start", none}, {"end", none}, Arg::integer("step", 1)},
        "A copy of input with src in the place of a slice."};
const Op<Tensor(const Tensor&, const Tensor&, int64_t, int64_t)> select_scatter{
    "select_scatter",
    select_scatter_impl,
    kBoth | kOut,
    {"input", "src", "dim", "index"},
    "A copy of input with src in the place of one index along dim."};
const Op<Tensor(const Tensor&, const Tensor&, int64_t, int64_t, int64_t)> diagonal_scatter{
    "diagonal_scatter",
    diagonal_scatter_impl,
    kBoth | kOut,
    {"input", "src", Arg::integer("offset", 0), Arg::integer("dim1", 0), Arg::integer("dim2", 1)},
    "A copy of input with src in the place of a diagonal."};
const Op<Tensor(const Tensor&, const Tensor&, IntList, IntList, std::optional<int64_t>)> as_strided_scatter{
    "as_strided_scatter",
    as_strided_scatter_impl,
    kBoth | kOut,
    {"input", "src", "size", "stride", {"storage_offset", none}},
    "A copy of input with src in the place of a strided view."};
const Op<Tensor(const Tensor&, int64_t, int64_t, int64_t)> narrow_copy{
    "narrow_copy", narrow_copy_impl, kBoth | kOut, {"input", "dim", "start", "length"}, "narrow as a copy."};
const Op<Tensor(TensorList)> block_diag{
    "block_diag",
    block_diag_impl,
    kFunction | kOut | kComplex | kNonDifferentiable,  // of empty tensors
    {{"tensors", kVarArgs}},
    "The matrices (vectors are rows, numbers 1 x 1) along the diagonal of one, zeros elsewhere."};
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)> put{
    "put",
    put_impl,
    kBoth | kOut,
    {"input", "index", "source", {"accumulate", false}},
    "A copy with source written at flat indices, or added there."},
    put_ = in_place_of(put, put_inplace, kMethod, "Writes source at flat indices, or adds it.");
const Op<Tensor(const Tensor&, const Scalar&, bool)> fill_diagonal_{
    "fill_diagonal_",
    fill_diagonal_inplace,
    kMethod | kComplex,
    {{"input", kWritten}, "fill_value", {"wrap", false}},
    "Writes a number along the diagonal; with wrap again after each block of as many rows as columns."};

}  // namespace
}  // namespace warptape::ops
