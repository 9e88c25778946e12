// What the families of linear algebra share. Shapes: A [*, m, n], k = min(m, n); factors and solutions lie in
// column-major order, as LAPACK and cuSOLVER leave them.
#pragma once

#include "kernels/linalg/linalg.h"
#include "ops/elementwise/elementwise.h"
#include "ops/linalg/matmul.h"
#include "ops/reduce/reduce.h"
#include "ops/view/rearrange.h"
#include "ops/view/view.h"

namespace warptape::ops {

// ---- what is taken: ShapeError for fewer than two dims, or matrices that are not square; DtypeError for
// another dtype than float32, float64, complex64 and complex128 ----
void check_matrices(const char* op, const Tensor& x, const char* name = "A");
void check_square(const char* op, const Tensor& x, const char* name = "A");
// Both sides of A X = B, or of X A = B if not `left`.
void check_equation(const char* op, const Tensor& A, const Tensor& B, bool left);
// LinAlgError for the first matrix whose info is not 0; `text` says what that means. None on the meta device.
void check_info(const char* op, const Tensor& info, std::string (*text)(int info));

// ---- memory on the device of `like`; on the meta device none ----
Shape batch_of(const Tensor& x);
Shape with_matrix(Shape batch, int64_t rows, int64_t columns);
Tensor new_empty(const Shape& sizes, DType dtype, const Tensor& like);
Tensor new_zeros(const Shape& sizes, DType dtype, const Tensor& like);
Tensor new_matrices(const Shape& sizes, DType dtype, const Tensor& like);  // column-major
// A copy of x, its batch repeated to `batch`.
Tensor matrix_copy(const Tensor& x, const Shape& batch);
inline Tensor matrix_copy(const Tensor& x) { return matrix_copy(x, batch_of(x)); }
// x itself where it already lies so: for what a kernel reads alone.
Tensor as_matrices(const Tensor& x, const Shape& batch);
// For what only LAPACK does: tensors of another device are copied to the host, and results back to `like`'s.
Tensor on_host(const Tensor& x);
Tensor placed(const Tensor& host, const Tensor& like);

// What a kernel sees: the batch as one dim before the last `dims`.
class Flat {
 public:
  Flat(const Tensor& t, int dims);
  operator const kernels::View&() const { return view_; }

 private:
  int64_t sizes_[3], strides_[3];
  kernels::View view_;
};

// Calls the kernel unless there is nothing to compute.
template <class S, class... A>
void launch(S& slot, const Tensor& on, A&&... args) {
  if (on.is_meta()) return;
  Launch context{on.device()};
  slot(context, args...);
}

// ---- for formulas ----
Tensor identity(int64_t n, const Tensor& like);  // [n, n]
Tensor diagonal_of(const Tensor& x);             // of the last two dims, a view
Tensor lower_half(const Tensor& x);              // the lower triangle, with half of the diagonal
inline Tensor transposed(const Tensor& x) { return transpose(x, -2, -1); }
inline Tensor adjoint(const Tensor& x) { return conjugate(transpose(x, -2, -1)); }
inline Tensor rows(const Tensor& x, int64_t begin, int64_t n) { return narrow(x, -2, begin, n); }
inline Tensor columns(const Tensor& x, int64_t begin, int64_t n) { return narrow(x, -1, begin, n); }
inline Tensor hermitian_part(const Tensor& x) { return (x + adjoint(x)) * 0.5; }

using Matrix = Op<Tensor(const Tensor&)>;
using MatrixPair = std::tuple<Tensor, Tensor>;
using MatrixTriple = std::tuple<Tensor, Tensor, Tensor>;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, bool, bool, bool)> solve_triangular;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, bool)> linalg_solve;
extern WT_API const Matrix linalg_inv, det;
extern WT_API const Op<MatrixPair(const Tensor&)> slogdet;
extern WT_API const Op<MatrixPair(const Tensor&, bool)> inv_ex;
extern WT_API const Op<MatrixPair(const Tensor&, std::string_view)> linalg_eigh;
extern WT_API const Op<Tensor(const Tensor&, std::string_view)> eigvalsh;
extern WT_API const Op<MatrixTriple(const Tensor&, bool, std::optional<std::string_view>)> linalg_svd;
extern WT_API const Op<Tensor(const Tensor&, std::optional<std::string_view>)> svdvals;
extern WT_API const Op<MatrixTriple(const Tensor&, bool, bool)> lu_factor_ex;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&)> householder_product;
extern WT_API const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool, bool)> linalg_lu_solve;

}  // namespace warptape::ops
