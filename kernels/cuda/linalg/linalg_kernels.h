// Own kernels around cuSOLVER's routines (linalg.cu): what LAPACK's contract says and the library does not
// do. Matrices lie by columns; `step` is the distance between two of them, in elements.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::cuda {

// at[i] = first + i * step, in device memory.
void matrix_pointers(const LaunchContext& ctx, const char* op, void** at, void* first, int64_t step_bytes,
                     int64_t count);

// [count, m, n]; T is one of the four types of kernels/linalg/linalg.h.
struct MatrixArgs {
  void* data;
  DType dtype;
  int64_t count, m, n;
};
enum class Triangle : uint8_t { Upper, Lower, Whole };

// Zeros outside of the triangle that is `kept`.
void clear_outside(const LaunchContext& ctx, const char* op, const MatrixArgs& a, Triangle kept);
// state[i], int32: bit 0 where matrix i holds an infinity in the part that is read, bit 1 where NaN. Those
// matrices become zeros: iterations over them need not end.
void note_content(const LaunchContext& ctx, const char* op, const MatrixArgs& a, Triangle read, int* state);
// NaN over x [count, per] where state[i] is not 0.
void spread_nan(const LaunchContext& ctx, const char* op, void* x, DType dtype, int64_t count, int64_t per,
                const int* state);
// info[i] = -4 where matrix i held NaN, 0 where infinities alone.
void finish_info(const LaunchContext& ctx, const char* op, int* info, const int* state, int64_t count);
// info[i] = the place, from 1, of the first zero among the first n on the diagonal, or 0.
void note_zero_diagonal(const LaunchContext& ctx, const char* op, const MatrixArgs& a, int* info);

// out [count, n, m] = the adjoints of [count, m, n] at `from`, whose columns are `ld` apart.
void adjoint_matrices(const LaunchContext& ctx, const char* op, void* out, const MatrixArgs& from, int64_t ld,
                      int64_t step);
// out [count, per] = what lies at from + i * step.
void gather_matrices(const LaunchContext& ctx, const char* op, void* out, const void* from, DType dtype,
                     int64_t count, int64_t per, int64_t step);
// Complex eigenvectors of real matrices: a pair comes as its real and its imaginary part.
void join_pairs(const LaunchContext& ctx, const char* op, const View& vectors, const void* parts,
                const View& values);
// C [count, m, n] becomes Q C, or C Q if not `left`, of Q's adjoint where `adjoint`: Q is the product of k
// reflectors tau [count, k] in the columns of `v` [count, m or n, any]. For many small matrices: a warp takes
// a column of C, or a row.
struct ReflectorArgs {
  MatrixArgs v;
  const void* tau;
  int64_t k;
  bool left, adjoint;
};
void apply_reflectors(const LaunchContext& ctx, const char* op, const MatrixArgs& c, const ReflectorArgs& q);
// The first n columns of the identity.
void fill_identity(const LaunchContext& ctx, const char* op, const MatrixArgs& a);
// Pivots as LAPACK has them from those of cuSOLVER's routines that name types by arguments, and back.
void narrow_pivots(const LaunchContext& ctx, const char* op, int* out, const int64_t* from, int64_t n);
void widen_pivots(const LaunchContext& ctx, const char* op, int64_t* out, const int* from, int64_t n);
// From packed factors [count, n, n] and pivots; those of the three that have data.
void determinants(const LaunchContext& ctx, const char* op, const MatrixArgs& lu, const int* pivots,
                  void* value, void* sign, void* log);

}  // namespace warptape::kernels::cuda
