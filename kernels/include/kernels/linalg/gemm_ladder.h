// The GEMM ladder: C = A B by one kernel a step, from the first tile to Hopper's tensor cores. CUDA alone.
// The table says what each kernel is made of; the kernels take their tiles from it.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

struct GemmTile {
  int m, n, k;
};

// One step. `warp` is the part of the block's tile that a warp (of wgmma: a warpgroup) makes, `fragment` what
// one thread or, with tensor cores, one instruction makes of it.
struct GemmStep {
  const char* name;
  const char* adds;  // to the step before
  GemmTile block, warp, fragment;
  int threads, stages;         // stages: slices along k that lie in shared memory at once
  int capability;              // the least; 90 means that one alone, for sm_90a runs nowhere else
  bool tensor_cores;           // bfloat16 and float16, else float32
  int multiple_n, multiple_k;  // what n and k must be multiples of
  bool epilogue;               // takes a bias and GELU
};

enum class GemmStepId {
  Naive,
  Coalesced,
  SharedTile,
  RegisterTile,
  Vectorised,
  AsyncCopy,
  WarpTiles,
  Wmma,
  Mma,
  Wgmma
};

inline constexpr GemmStep kGemmSteps[] = {
    {"naive",
     "one thread an element, neighbours in a column",
     {16, 16, 1},
     {16, 2, 1},
     {1, 1, 1},
     256,
     0,
     80,
     false,
     1,
     1,
     false},
    {"coalesced",
     "neighbours in a row: a warp reads 128 bytes of B at once",
     {8, 32, 1},
     {1, 32, 1},
     {1, 1, 1},
     256,
     0,
     80,
     false,
     1,
     1,
     false},
    {"shared_tile",
     "tiles of A and B in shared memory, read once a block",
     {32, 32, 32},
     {1, 32, 32},
     {1, 1, 1},
     1024,
     1,
     80,
     false,
     1,
     1,
     false},
    {"register_tile",
     "64 sums a thread, 16 loads for 64 products",
     {128, 128, 8},
     {16, 128, 8},
     {8, 8, 1},
     256,
     1,
     80,
     false,
     1,
     1,
     false},
    {"vectorised",
     "16 bytes an access, A transposed in shared memory",
     {128, 128, 8},
     {16, 128, 8},
     {8, 8, 1},
     256,
     1,
     80,
     false,
     4,
     4,
     false},
    {"async_copy",
     "cp.async into the other of two buffers",
     {128, 128, 16},
     {16, 128, 16},
     {8, 8, 1},
     256,
     2,
     80,
     false,
     4,
     1,
     false},
    {"warp_tiles",
     "square warp tiles, 4x4 fragments, any strides",
     {128, 128, 16},
     {64, 32, 16},
     {8, 8, 1},
     256,
     2,
     80,
     false,
     1,
     1,
     false},
    {"wmma",
     "tensor cores by nvcuda::wmma",
     {128, 128, 32},
     {64, 32, 32},
     {16, 16, 16},
     256,
     2,
     80,
     true,
     8,
     8,
     false},
    {"mma",
     "mma.sync with ldmatrix, a swizzle and more stages",
     {128, 128, 32},
     {64, 32, 32},
     {16, 8, 16},
     256,
     4,
     80,
     true,
     8,
     8,
     false},
    {"wgmma",
     "TMA, mbarriers, warp specialisation, persistent blocks, an epilogue",
     {128, 256, 64},
     {64, 256, 64},
     {64, 256, 16},
     384,
     4,
     90,
     true,
     8,
     8,
     true},
};
inline constexpr int kGemmStepCount = sizeof(kGemmSteps) / sizeof(kGemmSteps[0]);
constexpr GemmStep gemm_step_of(GemmStepId id) { return kGemmSteps[static_cast<int>(id)]; }

// Slot "gemm_step": C [m, n] = A [m, k] B [k, n], all contiguous, 16-byte aligned and of one dtype that the
// step takes; then + bias [n] and GELU by the tanh formula, where the step has an epilogue. Sums are kept in
// float. m, n and k are at least 1. Raises where the device is not the step's.
struct GemmStepPlan {
  GemmStepId step;
  DType dtype;
  int64_t m, n, k;
  const void *a, *b;
  const void* bias;  // or null
  bool gelu;
  void* c;
};
using GemmStepFn = void(const LaunchContext&, const GemmStepPlan&);

}  // namespace warptape::kernels
