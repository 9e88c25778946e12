// Descriptions of matrices for TMA. libcuda is not linked: the runtime finds the function that makes them.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/runtime.h"

namespace warptape::kernels::cuda {

using TensorMap = CUtensorMap;  // a kernel takes it as const __grid_constant__

// The driver's cuTensorMapEncodeTiled.
inline auto tensor_map_encoder(const char* op) {
  static const auto encode = [op] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
        op);
    if (!found || result != cudaDriverEntryPointSuccess)
      raise_library_error(std::string(op) +
                          ": the driver has no cuTensorMapEncodeTiled; install a newer driver");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return encode;
}

// Of `Dims` dims, the innermost first; `strides` in bytes are those of the dims after it.
template <size_t Dims>
TensorMap encode_tensor_map(const char* op, DType dtype, const void* x, const cuuint64_t (&sizes)[Dims],
                            const cuuint64_t (&strides)[Dims - 1], const cuuint32_t (&box)[Dims]) {
  TensorMap map;
  cuuint32_t steps[Dims];
  for (cuuint32_t& step : steps) step = 1;
  const CUresult status = tensor_map_encoder(op)(
      &map, dtype == DType::BFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      Dims, const_cast<void*>(x), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    raise_library_error(std::string(op) + ": cuTensorMapEncodeTiled refuses a matrix of " +
                        std::to_string(sizes[1]) + " x " + std::to_string(sizes[0]) + " (error " +
                        std::to_string(int(status)) + ")");
  return map;
}

// X [rows, cols] of 16-bit numbers, row-major; boxes of [box_rows, box_cols], whose rows are 128 bytes, go to
// shared memory with the 16-byte pieces of each 8 rows exchanged (SWIZZLE_128B). Address and row length must
// be multiples of 16 bytes.
inline TensorMap tensor_map(const char* op, DType dtype, const void* x, int64_t rows, int64_t cols,
                            int box_rows, int box_cols) {
  return encode_tensor_map<2>(op, dtype, x, {cuuint64_t(cols), cuuint64_t(rows)}, {cuuint64_t(cols) * 2},
                              {cuuint32_t(box_cols), cuuint32_t(box_rows)});
}

// The same of x [count, rows, cols], matrices behind each other; a box is of one of them.
inline TensorMap tensor_map_of_matrices(const char* op, DType dtype, const void* x, int64_t count,
                                        int64_t rows, int64_t cols, int box_rows, int box_cols) {
  return encode_tensor_map<3>(op, dtype, x, {cuuint64_t(cols), cuuint64_t(rows), cuuint64_t(count)},
                              {cuuint64_t(cols) * 2, cuuint64_t(rows) * cuuint64_t(cols) * 2},
                              {cuuint32_t(box_cols), cuuint32_t(box_rows), 1});
}

// The same of x [B, H, T, D] with unit stride in the last dim, the others multiples of 8; boxes of 64 columns
// of `box_rows` rows of one head. The stride of a dim of size 1 is not used.
inline TensorMap tensor_map_of_heads(const char* op, const View& x, int box_rows) {
  cuuint64_t strides[3];
  for (int d = 0; d < 3; ++d) strides[d] = x.sizes[2 - d] == 1 ? 16 : cuuint64_t(x.strides[2 - d]) * 2;
  return encode_tensor_map<4>(
      op, x.dtype, x.data,
      {cuuint64_t(x.sizes[3]), cuuint64_t(x.sizes[2]), cuuint64_t(x.sizes[1]), cuuint64_t(x.sizes[0])},
      strides, {64, cuuint32_t(box_rows), 1, 1});
}

}  // namespace warptape::kernels::cuda
