// The emulator's twin of kernels/cuda/tensor_map.h, which refuses what the driver refuses.
#pragma once

#include "asynchronous.h"
#include "kernels/cuda/runtime.h"

namespace warptape::kernels::cuda {

using TensorMap = emulator::TensorMap;

inline TensorMap tensor_map(const char* op, DType, const void* x, int64_t rows, int64_t cols, int box_rows,
                            int box_cols) {
  if (reinterpret_cast<uintptr_t>(x) % 16 || cols * 2 % 16 || rows < 1 || cols < 1 || box_rows > 256 ||
      box_cols * 2 > 128)
    raise_library_error(std::string(op) + ": TMA refuses this matrix");
  return {static_cast<const char*>(x), rows, cols, box_rows, box_cols};
}

}  // namespace warptape::kernels::cuda
