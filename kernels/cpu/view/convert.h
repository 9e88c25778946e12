// Conversion between any two dtypes over contiguous memory, and gathering from strided memory.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels::WARPTAPE_ISA {

using ConvertFn = void(int64_t n, void* to, const void* from);

// For equal dtypes a plain copy. A truth value is 1; to bool, all but zero is true; floats to integers cut
// toward zero; of a complex number the real part.
ConvertFn* converter(DType from, DType to);

// Elements `stride` bytes apart to contiguous memory.
void gather(int64_t n, void* to, const char* from, int64_t stride, size_t itemsize);

// Rows of n such elements, `row_stride` bytes from one to the next, to and from contiguous memory: what a
// call costs is paid once for all.
void gather_rows(int64_t rows, int64_t n, void* to, const char* from, int64_t stride, int64_t row_stride,
                 size_t itemsize);
void scatter_rows(int64_t rows, int64_t n, char* to, int64_t stride, int64_t row_stride, const void* from,
                  size_t itemsize);

}  // namespace warptape::kernels::WARPTAPE_ISA
