// Linear algebra, by LAPACK, and by cuSOLVER on CUDA. A matrix argument is a View [batch, rows, columns]
// whose matrices lie one behind another in column-major order; a vector argument is [batch, n], contiguous.
// `info` is int32 [batch]: 0, or what LAPACK's routine tells of that matrix. Matrices are float32, float64,
// complex64 or complex128, all of one call the same; values that are real also of complex matrices are noted
// as real.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slot "linalg_lu": A [m, n] becomes its packed factors; pivots int32 [min(m, n)] count
// from 1. On CUDA pivots without data stand for no exchange of rows.
using LuFn = void(const LaunchContext&, const View& a, const View& pivots, const View& info);
// Slot "linalg_row_order", CUDA alone: the row of A [m] that each row of the factors is, int64, from pivots
// [k]; one that names no row is a fault.
using RowOrderFn = void(const LaunchContext&, const View& order, const View& pivots);
// Slot "linalg_solve": A [n, n] becomes its packed factors, B [n, k] the X with A X = B.
using SolveFn = void(const LaunchContext&, const View& a, const View& pivots, const View& b,
                     const View& info);
// Slot "linalg_lu_solve", the CPU's alone: B [n, k] becomes the X with A X = B, or A^H X = B where `adjoint`,
// by what "linalg_lu" made of A. Every pivot is from 1 to n.
using LuSolveFn = void(const LaunchContext&, const View& lu, const View& pivots, const View& b, bool adjoint);
// Slot "linalg_determinant": A [n, n] and pivots [n] become what "linalg_lu" makes of A. Where they have
// data, `value` [] is the determinant, and `sign` [] and `log` [], real, its sign and the logarithm of its
// absolute value.
using DeterminantFn = void(const LaunchContext&, const View& a, const View& pivots, const View& value,
                           const View& sign, const View& log);
// Slot "linalg_triangular": B becomes the X with A X = B, or X A = B if not `left`.
using TriangularFn = void(const LaunchContext&, const View& a, const View& b, bool left, bool upper,
                          bool unit);
// Slot "linalg_cholesky": A becomes its lower or upper factor, with zeros in the other triangle.
using CholeskyFn = void(const LaunchContext&, const View& a, bool upper, const View& info);
// Slot "linalg_qr": A [m, n] becomes R above its diagonal and reflectors below; tau [min(m, n)].
using QrFn = void(const LaunchContext&, const View& a, const View& tau);
// Slot "linalg_reflectors": A [m, n], of which the first columns hold reflectors tau [k], becomes the first n
// columns of their product.
using ReflectorsFn = void(const LaunchContext&, const View& a, const View& tau);
// Slot "linalg_multiply_reflectors": C becomes Q C, or C Q if not `left`, of Q's adjoint where `adjoint`.
using MultiplyReflectorsFn = void(const LaunchContext&, const View& a, const View& tau, const View& c,
                                  bool left, bool adjoint);
// Slot "linalg_has_ldl": whether the device's library has the two below; where it is too old, the host does
// them.
using HasLdlFn = bool(const LaunchContext&);
// Slot "linalg_ldl": A becomes D and L in its lower triangle, with zeros above.
using LdlFn = void(const LaunchContext&, const View& a, const View& pivots, bool hermitian, const View& info);
// Slot "linalg_ldl_solve": B becomes the X with L D L^T X = B, or L D L^H.
using LdlSolveFn = void(const LaunchContext&, const View& a, const View& pivots, const View& b,
                        bool hermitian);
// Eigenvalues and singular values of a matrix that is not finite are NaN, and `info` is -4 where it holds
// NaN. Slot "linalg_eigh": reads one triangle of A, which becomes the eigenvectors if `vectors`; values real
// [n].
using EighFn = void(const LaunchContext&, const View& a, const View& values, bool upper, bool vectors,
                    const View& info);
// Slot "linalg_eig": A is overwritten; values [n] and vectors [n, n] (without data: not wanted) are complex.
using EigFn = void(const LaunchContext&, const View& a, const View& values, const View& vectors,
                   const View& info);
// Slot "linalg_svd": A [m, n] is overwritten; values real [k], u [m, k or m], vh [k or n, n], or both without
// data.
using SvdFn = void(const LaunchContext&, const View& a, const View& u, const View& values, const View& vh,
                   const View& info);
// Slot "linalg_least_squares", on CUDA with Gels alone: A [m, n] is overwritten, B [max(m, n), k] holds the
// right sides in its first m rows and then the solution in its first n. rank int64 [] and values real [min(m,
// n)] as the driver tells them.
enum class LeastSquares : uint8_t { Gels, Gelsy, Gelsd, Gelss };
using LeastSquaresFn = void(const LaunchContext&, const View& a, const View& b, const View& rank,
                            const View& values, LeastSquares driver, double rcond, const View& info);

}  // namespace warptape::kernels
