#include "ops/linalg/linalg.h"

#include "ops/view/copy.h"

namespace warptape::ops {

void check_matrices(const char* op, const Tensor& x, const char* name) {
  WT_CHECK(x.ndim() >= 2, ShapeError, op, ": The input tensor ", name,
           " must have at least 2 dimensions, got shape ", x.sizes());
  const DType t = x.dtype();
  WT_CHECK(is_floating(t) || is_complex(t), DtypeError, op,
           ": Expected a floating point or complex tensor as input. Got ", t,
           "; convert it with .float() or .double()");
  WT_CHECK(t != DType::Float16 && t != DType::BFloat16, DtypeError, op,
           ": Low precision dtypes not supported. Got ", t, "; convert it with .float() or .double()");
}

void check_square(const char* op, const Tensor& x, const char* name) {
  check_matrices(op, x, name);
  WT_CHECK(x.size(-1) == x.size(-2), ShapeError, op, ": ", name,
           " must be batches of square matrices, but they are ", x.size(-2), " by ", x.size(-1), " matrices");
}

void check_equation(const char* op, const Tensor& A, const Tensor& B, bool left) {
  check_matrices(op, B, "B");
  WT_CHECK(A.dtype() == B.dtype(), DtypeError, op, ": Expected A and B to have the same dtype, got ",
           A.dtype(), " and ", B.dtype());
  const int64_t dim = left ? -2 : -1;
  WT_CHECK(A.size(dim) == B.size(dim), ShapeError, op, ": Incompatible shapes of A and B for the equation ",
           left ? "AX = B" : "XA = B", " (", A.size(-2), "x", A.size(-1), " and ", B.size(-2), "x",
           B.size(-1), ")");
}

void check_info(const char* op, const Tensor& info, std::string (*text)(int info)) {
  if (info.is_meta()) return;
  const Tensor host = info.device().is_host() ? info : to(info, Device(), std::nullopt, false, false);
  const int* all = raw_contiguous(host).data_as<int>();
  const int* bad = std::find_if(all, all + host.numel(), [](int i) { return i != 0; });
  if (bad == all + host.numel()) return;
  const std::string which = host.ndim() ? message("(Batch element ", bad - all, "): ") : "";
  throw LinAlgError(message(op, ": ", which, text(*bad)));
}

// ---- memory --------------------------------------------------------------------------------------------

Shape batch_of(const Tensor& x) { return Shape(x.sizes().begin(), x.sizes().end() - 2); }

Shape with_matrix(Shape batch, int64_t rows, int64_t columns) {
  batch.push_back(rows), batch.push_back(columns);
  return batch;
}

Tensor new_empty(const Shape& sizes, DType dtype, const Tensor& like) {
  return empty(sizes, {dtype, like.device()});
}
Tensor new_zeros(const Shape& sizes, DType dtype, const Tensor& like) {
  return zeros(sizes, {dtype, like.device()});
}

Tensor new_matrices(const Shape& sizes, DType dtype, const Tensor& like) {
  Shape strides = contiguous_strides(sizes);
  const size_t n = sizes.size();
  strides[n - 2] = 1, strides[n - 1] = std::max<int64_t>(sizes[n - 2], 1);
  return empty_strided(sizes, strides, {dtype, like.device()});
}

Tensor matrix_copy(const Tensor& x, const Shape& batch) {
  Tensor out = new_matrices(with_matrix(batch, x.size(-2), x.size(-1)), x.dtype(), x);
  if (!out.is_meta() && out.numel()) raw_copy(out, expand_view(x, out.sizes()));
  return out;
}

Tensor as_matrices(const Tensor& x, const Shape& batch) {
  return batch_of(x) == batch && transposed(x).is_contiguous() ? x : matrix_copy(x, batch);
}

Tensor on_host(const Tensor& x) {
  if (x.is_meta() || x.device().is_host()) return x;
  NoGrad off;
  return to(x, Device(), std::nullopt, false, false);
}
Tensor placed(const Tensor& host, const Tensor& like) {
  if (host.device() == like.device()) return host;
  NoGrad off;
  return to(host, like.device(), std::nullopt, false, false);
}

Flat::Flat(const Tensor& t, int dims) {
  const auto first = static_cast<size_t>(t.ndim() - dims);
  sizes_[0] = 1;
  for (size_t d = 0; d < first; ++d) sizes_[0] *= t.sizes()[d];
  strides_[0] = 1;
  for (int d = 0; d < dims; ++d) {
    sizes_[d + 1] = t.sizes()[first + d];
    strides_[d + 1] = t.strides()[first + d];
    strides_[0] *= sizes_[d + 1];
  }
  view_ = t.view();
  view_.sizes = sizes_, view_.strides = strides_, view_.ndim = dims + 1;
}

// ---- for formulas --------------------------------------------------------------------------------------

Tensor identity(int64_t n, const Tensor& like) {
  Tensor out = zeros(Shape{n, n}, options_of(like));
  if (!out.is_meta()) raw_fill(alias(out, Shape{n}, Shape{n + 1}, 0), 1);
  return out;
}

Tensor diagonal_of(const Tensor& x) {
  return region(x, [](Shape& sizes, Shape& strides, int64_t&) {
    const int64_t n = std::min(sizes[sizes.size() - 2], sizes.back());
    const int64_t step = strides[strides.size() - 2] + strides.back();
    sizes.pop_back(), strides.pop_back();
    sizes.back() = n, strides.back() = step;
  });
}

Tensor lower_half(const Tensor& x) { return tril(x, -1) + diag_embed(diagonal_of(x) * 0.5, 0, -2, -1); }

}  // namespace warptape::ops
