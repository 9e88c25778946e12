// What fft.cpp calls of cuFFT, declared here, so that a build needs no headers of it. The library is found
// when the first transform runs (library_functions.cpp); tests/emulator/cufft.cpp stands in for it.
#pragma once

#include <cuda_runtime.h>

enum class FftType : int { Real32 = 0, Real64 = 1, Complex64 = 4, Complex128 = 5 };  // CUDA_R_32F ..

extern "C" {
using cufftHandle = int;
using cufftResult = int;  // 0 is success
constexpr int CUFFT_FORWARD = -1, CUFFT_INVERSE = 1;
cufftResult cufftCreate(cufftHandle* plan);
cufftResult cufftDestroy(cufftHandle plan);
cufftResult cufftSetAutoAllocation(cufftHandle plan, int on);
cufftResult cufftSetStream(cufftHandle plan, cudaStream_t stream);
cufftResult cufftSetWorkArea(cufftHandle plan, void* memory);
cufftResult cufftXtMakePlanMany(cufftHandle plan, int rank, long long* sizes, long long* in_sizes,
                                long long in_stride, long long in_distance, FftType in, long long* out_sizes,
                                long long out_stride, long long out_distance, FftType out, long long batch,
                                size_t* work_bytes, FftType compute);
cufftResult cufftXtExec(cufftHandle plan, void* in, void* out, int direction);
}
