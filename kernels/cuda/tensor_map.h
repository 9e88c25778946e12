// Descriptions of matrices for TMA. libcuda is not linked: the runtime finds the function that makes them.
#pragma once

#include <cuda.h>

#include "kernels/cuda/runtime.h"

namespace warptape::kernels::cuda {

using TensorMap = CUtensorMap;  // a kernel takes it as const __grid_constant__

// X [rows, cols] of 16-bit numbers, row-major; boxes of [box_rows, box_cols], whose rows are 128 bytes, go to
// shared memory with the 16-byte pieces of each 8 rows exchanged (SWIZZLE_128B). Address and row length must
// be multiples of 16 bytes.
inline TensorMap tensor_map(const char* op, DType dtype, const void* x, int64_t rows, int64_t cols,
                            int box_rows, int box_cols) {
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
  TensorMap map;
  const cuuint64_t sizes[2] = {cuuint64_t(cols), cuuint64_t(rows)}, strides[1] = {cuuint64_t(cols) * 2};
  const cuuint32_t box[2] = {cuuint32_t(box_cols), cuuint32_t(box_rows)}, steps[2] = {1, 1};
  const CUresult status = encode(
      &map, dtype == DType::BFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
      const_cast<void*>(x), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    raise_library_error(std::string(op) + ": cuTensorMapEncodeTiled refuses a matrix of " +
                        std::to_string(rows) + " x " + std::to_string(cols) + " (error " +
                        std::to_string(int(status)) + ")");
  return map;
}

}  // namespace warptape::kernels::cuda
