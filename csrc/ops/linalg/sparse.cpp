// Matrices by compressed rows, for warptape.sparse. Legend: A [m, k] has nnz elements `values`, those of row
// i at crow[i]..crow[i + 1], in the columns `col`; B is [k, n]. See kernels/linalg/sparse.h.
#include "kernels/linalg/sparse.h"

#include "ops/elementwise/elementwise.h"
#include "ops/factory/factory.h"
#include "ops/index/gather.h"
#include "ops/index/masked.h"
#include "ops/index/sort.h"
#include "ops/kernel_inputs.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using kernels::RowReduction;
kernels::Slot<kernels::CsrMatmulFn> matmul_slot{"csr_matmul"};
kernels::Slot<kernels::CsrSampleFn> sample_slot{"csr_sample"};
kernels::Slot<kernels::CsrTransposeFn> transpose_slot{"csr_transpose"};

// int64 and contiguous.
Tensor as_index(const Tensor& t) { return raw_contiguous(raw_cast(t, DType::Int64)); }

Tensor from_coo_impl(const Tensor& rows, int64_t size, bool int32) {
  WT_CHECK(rows.ndim() == 1, ShapeError, "_convert_indices_from_coo_to_csr: expected a vector, got ", rows);
  const Tensor starts = index_range(size + 1, rows.device());
  return searchsorted(cast(rows, DType::Int64), starts, int32, false, std::nullopt, std::nullopt);
}

// Of each element the row that it is in.
Tensor rows_of(const Tensor& crow, int64_t nnz) {
  NoGrad off;
  const Tensor elements = index_range(nnz, crow.device());
  const Tensor ends = narrow(cast(crow, DType::Int64), 0, 1, crow.numel() - 1);
  return searchsorted(contiguous(ends), elements, false, true, std::nullopt, std::nullopt);
}

Tensor to_coo_impl(const Tensor& crow, const Tensor& col, bool int32, bool transposed) {
  WT_CHECK(crow.ndim() == 1 && col.ndim() == 1 && crow.numel() > 0, ShapeError,
           "_convert_indices_from_csr_to_coo: expected crow_indices [m + 1] and col_indices [nnz], got ",
           crow, " and ", col);
  const DType kind = int32 ? DType::Int32 : DType::Int64;
  const Tensor rows = cast(rows_of(crow, col.numel()), kind), columns = cast(col, kind);
  const Tensor both[] = {transposed ? columns : rows, transposed ? rows : columns};
  return stack(both, 0);
}

Tensor csr_matmul(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& dense,
                  RowReduction how);
Tensor csr_sample(const Tensor& crow, const Tensor& col, const Tensor& left, const Tensor& right);

struct Transposed {
  Tensor crow, col, order;
};
Transposed transposed(const Tensor& crow, const Tensor& col, int64_t k) {
  const TensorOptions options = options_of(crow);
  if (!crow.device().is_host()) {  // a device sorts
    NoGrad off;
    const auto [sorted, order] = sort(col, -1, false, true);
    return {from_coo_impl(sorted, k, false), index_select(rows_of(crow, col.numel()), 0, order), order};
  }
  Transposed t{empty(Shape{k + 1}, options), empty(col.sizes(), options), empty(col.sizes(), options)};
  Launch launch(crow.device());
  transpose_slot(launch, t.crow.view(), t.col.view(), t.order.view(), crow.view(), col.view(),
                 crow.numel() - 1, k, col.numel());
  launch.check_index("_csr_matmul", 1);
  return t;
}

// of [k, n] = A^T g
Tensor csr_matmul_transposed(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& g,
                             int64_t k) {
  const Transposed t = transposed(crow, col, k);
  return csr_matmul(t.crow, t.col, index_select(values, 0, t.order), g, RowReduction::Sum);
}

void matmul_backward(Node& node, Gradients& g) {
  const Tensor crow = node.saved(0), col = node.saved(1), values = node.saved(2), dense = node.saved(3);
  if (g.wants(0)) g.set(0, csr_sample(crow, col, g[0], dense));
  if (g.wants(1)) g.set(1, csr_matmul_transposed(crow, col, values, g[0], dense.sizes()[0]));
}
constexpr NodeType kMatmul{"SparseAddmmBackward0", matmul_backward};

void sample_backward(Node& node, Gradients& g) {
  const Tensor crow = node.saved(0), col = node.saved(1), left = node.saved(2), right = node.saved(3);
  if (g.wants(0)) g.set(0, csr_matmul(crow, col, g[0], right, RowReduction::Sum));
  if (g.wants(1)) g.set(1, csr_matmul_transposed(crow, col, g[0], left, right.sizes()[0]));
}
constexpr NodeType kSample{"SparseSampledBackward0", sample_backward};

void with_history(const NodeType& type, const Tensor& out, const Tensor& crow, const Tensor& col,
                  const Tensor& a, const Tensor& b) {
  if (!needs_grad(a, b)) return;
  Ref<Node> n = record(type, a, b);
  for (const Tensor& t : {crow, col, a, b}) n->save(t);
  set_history(out, n);
}

Tensor csr_sample(const Tensor& crow, const Tensor& col, const Tensor& left, const Tensor& right) {
  Tensor out = empty(col.sizes(), options_of(left));
  const Tensor a = raw_contiguous(left), b = raw_contiguous(right);
  Launch launch(left.device());
  sample_slot(launch, out.view(), crow.view(), col.view(), a.view(), b.view(), left.sizes()[0],
              right.sizes()[0], left.sizes()[1], col.numel());
  launch.check_index("_csr_sample", 1);
  with_history(kSample, out, crow, col, left, right);
  return out;
}

Tensor run_matmul(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& dense,
                  const Tensor& from, RowReduction how) {
  const int64_t m = crow.numel() - 1, k = dense.sizes()[0], n = dense.sizes()[1];
  Tensor out = empty(Shape{m, n}, options_of(dense));
  const Tensor v = raw_contiguous(values), b = raw_contiguous(dense);
  Launch launch(dense.device());
  matmul_slot(launch, out.view(), view_of(from), crow.view(), col.view(), v.view(), b.view(), m, k, n,
              col.numel(), how);
  launch.check_index("_csr_matmul", 1);
  return out;
}

Tensor csr_matmul(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& dense,
                  RowReduction how) {
  Tensor out = run_matmul(crow, col, values, dense, Tensor(), how);
  with_history(kMatmul, out, crow, col, values, dense);
  return out;
}

// The gradient goes to the elements that the results came from.
Tensor csr_extreme(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& dense,
                   RowReduction how) {
  const int64_t nnz = col.numel();
  Tensor from = empty(Shape{crow.numel() - 1, dense.sizes()[1]}, options_of(crow));
  const Tensor out = run_matmul(crow, col, values, dense, from, how);
  if (!needs_grad(values, dense) || nnz == 0) return out;
  const Tensor none = eq_ts(from, Scalar(nnz)), at = reshape(masked_fill(from, none, Scalar(0)), Shape{-1});
  const Tensor factors = reshape(index_select(values, 0, at), from.sizes());
  const Tensor columns = reshape(index_select(col, 0, at), from.sizes());
  return masked_fill(factors * gather(dense, 0, columns, false), none, Scalar(0));
}

// For what has no kernel: other dtypes.
Tensor composed_matmul(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& dense,
                       RowReduction how) {
  const int64_t m = crow.numel() - 1;
  const Tensor row = rows_of(crow, col.numel());
  const Tensor parts = unsqueeze(values, 1) * index_select(dense, 0, col);
  const Tensor none = zeros(Shape{m, dense.sizes()[1]}, options_of(parts));
  if (how == RowReduction::Sum) return index_add(none, 0, row, parts, 1);
  const std::string_view name = how == RowReduction::Mean  ? "mean"
                                : how == RowReduction::Max ? "amax"
                                                           : "amin";
  return scatter_reduce(none, 0, expand(unsqueeze(row, 1), parts.sizes()), parts, name, false);
}

RowReduction reduction(std::string_view name) {
  if (name == "sum") return RowReduction::Sum;
  if (name == "mean") return RowReduction::Mean;
  if (name == "amax" || name == "max") return RowReduction::Max;
  if (name == "amin" || name == "min") return RowReduction::Min;
  throw ValueError(message("sparse.mm: expected reduce to be sum, mean, ", "amax or amin, got '", name, "'"));
}

void check_csr(const char* op, const Tensor& crow, const Tensor& col, const Tensor& a, const Tensor& b) {
  WT_CHECK(crow.ndim() == 1 && col.ndim() == 1 && crow.numel() > 0 && b.ndim() == 2, ShapeError, op,
           ": expected crow [m + 1], col [nnz] and matrices, got ", crow, ", ", col, ", ", a, " and ", b);
  WT_CHECK(a.dtype() == b.dtype(), DtypeError, op,
           ": expected m1 and m2 to have the same dtype, but got: ", a.dtype(), " != ", b.dtype());
  for (const Tensor& t : {crow, col, a}) check_same_device(op, b, t, "a tensor");
}

bool has_kernel(const Tensor& t) {
  return !t.is_meta() && (t.dtype() == DType::Float32 || t.dtype() == DType::Float64);
}

Tensor csr_matmul_impl(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& dense,
                       std::string_view reduce) {
  check_csr("_csr_matmul", crow, col, values, dense);
  WT_CHECK(values.sizes() == col.sizes(), ShapeError, "_csr_matmul: expected a value for each of ",
           col.sizes(), " columns, got ", values.sizes());
  const RowReduction how = reduction(reduce);
  const Tensor starts = as_index(crow), columns = as_index(col);
  if (!has_kernel(dense)) return composed_matmul(starts, columns, values, dense, how);
  if (how >= RowReduction::Max) return csr_extreme(starts, columns, values, dense, how);
  if (how == RowReduction::Mean && needs_grad(values, dense)) {
    const Tensor out = csr_matmul(starts, columns, values, dense, RowReduction::Sum);
    const Tensor counts = narrow(starts, 0, 1, out.sizes()[0]) - narrow(starts, 0, 0, out.sizes()[0]);
    return out / cast(unsqueeze(clamp(counts, Scalar(1), std::nullopt), 1), out.dtype());
  }
  return csr_matmul(starts, columns, values, dense, how);
}

Tensor csr_sample_impl(const Tensor& crow, const Tensor& col, const Tensor& left, const Tensor& right) {
  check_csr("_csr_sample", crow, col, left, right);
  WT_CHECK(left.ndim() == 2 && left.sizes()[0] == crow.numel() - 1 && left.sizes()[1] == right.sizes()[1],
           ShapeError, "_csr_sample: expected [m, n] and [k, n], got ", left.sizes(), " and ", right.sizes());
  const Tensor starts = as_index(crow), columns = as_index(col);
  if (has_kernel(left)) return csr_sample(starts, columns, left, right);
  const int64_t last[] = {1};
  const Tensor rows = index_select(left, 0, rows_of(starts, columns.numel()));
  return sum(rows * index_select(right, 0, columns), IntList(last), false, std::nullopt);
}

// A tensor without memory of its own, whose Python object keeps the parts.
Tensor stand_in_impl(const Tensor& like, IntList sizes) {
  Ref<Storage> none = Storage::opaque(like.device(), [](void*) {}, nullptr);
  return Tensor(Ref<TensorImpl>::adopt(
      new TensorImpl(std::move(none), like.dtype(), Shape(sizes), contiguous_strides(sizes), 0)));
}

const Op<Tensor(const Tensor&, int64_t, bool)> from_coo{
    "_convert_indices_from_coo_to_csr",
    from_coo_impl,
    kFunction,
    {"input", "size", {"out_int32", false, kKeywordOnly}},
    "Where each of `size` rows starts, and the last ends, in the sorted row indices input [nnz]: [size + "
    "1]."};
const Op<Tensor(const Tensor&, const Tensor&, bool, bool)> to_coo{
    "_convert_indices_from_csr_to_coo",
    to_coo_impl,
    kFunction,
    {"crow_indices", "col_indices", {"out_int32", false, kKeywordOnly}, {"transpose", false, kKeywordOnly}},
    "[2, nnz], the rows above the columns of a matrix by compressed rows; the other way round transposed."};
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::string_view)> matmul_op{
    "_csr_matmul",
    csr_matmul_impl,
    kPrivate | kChecked,
    {"crow", "col", "values", "dense", {"reduce", "sum"}},
    "A matrix by compressed rows times dense [k, n]: by `reduce` a row's products are added or reduced."};
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&)> sample_op{
    "_csr_sample",
    csr_sample_impl,
    kPrivate | kChecked,
    {"crow", "col", "left", "right"},
    "The elements at crow and col of left [m, n] times the transpose of right [k, n]: [nnz]."};
const Op<Tensor(const Tensor&, IntList)> stand_in{
    "_stand_in",
    stand_in_impl,
    kPrivate | kComplex,
    {"like", "size"},
    "A tensor of this size without data, with like's dtype and device: whoever reads it gets an error."};

}  // namespace
}  // namespace warptape::ops
