// The emulator's twin of kernels/cuda/common/tensor_map.h, which refuses what the driver refuses.
#pragma once

#include "asynchronous.h"
#include "kernels/cuda/common/runtime.h"

namespace warptape::kernels::cuda {

using TensorMap = emulator::TensorMap;

inline TensorMap tensor_map_of_matrices(const char* op, DType, const void* x, int64_t count, int64_t rows,
                                        int64_t cols, int box_rows, int box_cols) {
  if (reinterpret_cast<uintptr_t>(x) % 16 || cols * 2 % 16 || count < 1 || rows < 1 || cols < 1 ||
      box_rows > 256 || box_cols * 2 > 128)
    raise_library_error(std::string(op) + ": TMA refuses this matrix");
  return {static_cast<char*>(const_cast<void*>(x)),
          {cols, rows, count, 1},
          {2, cols * 2, rows * cols * 2, 0},
          box_rows,
          box_cols};
}
inline TensorMap tensor_map(const char* op, DType dtype, const void* x, int64_t rows, int64_t cols,
                            int box_rows, int box_cols) {
  return tensor_map_of_matrices(op, dtype, x, 1, rows, cols, box_rows, box_cols);
}

inline TensorMap tensor_map_of_heads(const char* op, const View& x, int box_rows) {
  TensorMap map{static_cast<char*>(x.data), {}, {2, 16, 16, 16}, box_rows, 64};
  bool fits = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && box_rows <= 256;
  for (int d = 0; d < 4; ++d) {
    map.sizes[d] = x.sizes[3 - d];
    fits = fits && map.sizes[d] > 0;
    if (d > 0 && map.sizes[d] > 1) map.strides[d] = x.strides[3 - d] * 2;
    fits = fits && (d == 0 || (map.strides[d] > 0 && map.strides[d] % 16 == 0));
  }
  if (!fits) raise_library_error(std::string(op) + ": TMA refuses these heads");
  return map;
}

}  // namespace warptape::kernels::cuda
