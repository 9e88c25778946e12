// Several arrays in the calling thread's scratch memory.
#pragma once

#include "kernels/cpu/gemm/gemm_pack.h"
#include "kernels/runtime/parallel.h"

namespace warptape::kernels::WARPTAPE_ISA {

class Pieces {
 public:
  // Bytes from allocate()'s memory to room for n values and two vectors beyond.
  template <class T>
  WT_INLINE int64_t add(int64_t n) {
    int64_t at = total_;
    total_ += (n * int64_t(sizeof(T)) + 2 * kGemmVecBytes - 1) / 64 * 64 + 64;
    return at;
  }
  WT_INLINE char* allocate() const { return static_cast<char*>(cpu::thread_scratch(size_t(total_))); }

 private:
  int64_t total_ = 0;
};

}  // namespace warptape::kernels::WARPTAPE_ISA
