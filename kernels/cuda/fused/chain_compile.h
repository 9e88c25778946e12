// Compiles kernels while the program runs, by NVRTC, and keeps their code in the user's cache.
#pragma once

#include <string>

namespace warptape::kernels::cuda {

struct SourceText {
  const char* name;  // as it is included
  const char* text;
};
// What kernels may include: written by the build from the headers that this library was made of.
extern const SourceText kKernelHeaders[];
extern const int kKernelHeaderCount;

// Release of NVRTC, 13.0 as 1300; throws (raise_library_error) where it is missing.
int nvrtc_release();

// Machine code for GPUs of that compute capability (90). From the cache where it has the code of the same
// source, headers, flags, capability and NVRTC; else compiled and put there. A file of the cache that is
// broken or of something else is written anew; a cache that cannot be written is done without. Throws
// (raise_library_error) with the compiler's messages.
std::string compile_kernel(const std::string& source, int capability);

}  // namespace warptape::kernels::cuda
