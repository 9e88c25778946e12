// The GEMM ladder: C = A B by one kernel a step, from the first tile to Hopper's tensor cores. The table says
// what each kernel is made of; the kernels take their tiles from it.
#pragma once

#include "kernels/cuda/gemm/tiling.h"

namespace warptape::kernels::cuda {

struct GemmStep : GemmTiling {
  const char* name;
  const char* adds;                    // to the step before
  bool tensor_cores = false;           // bfloat16 and float16, else float32
  int multiple_n = 1, multiple_k = 1;  // what n and k must be multiples of
  int capability = 80;                 // the least; 90 means that one alone, for sm_90a runs nowhere else
  bool epilogue = false;               // takes a bias and GELU
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
  Wgmma,
  Multicast
};

inline constexpr GemmStep kGemmSteps[] = {
    {{{16, 16, 1}, {16, 2, 1}, {1, 1, 1}, 256, 0}, "naive", "one thread an element, neighbours in a column"},
    {{{8, 32, 1}, {1, 32, 1}, {1, 1, 1}, 256, 0},
     "coalesced",
     "neighbours in a row: a warp reads 128 bytes of B at once"},
    {{{32, 32, 32}, {1, 32, 32}, {1, 1, 1}, 1024, 1},
     "shared_tile",
     "tiles of A and B in shared memory, read once a block"},
    {{{128, 128, 8}, {16, 128, 8}, {8, 8, 1}, 256, 1},
     "register_tile",
     "64 sums a thread, 16 loads for 64 products"},
    {{{128, 128, 8}, {16, 128, 8}, {8, 8, 1}, 256, 1},
     "vectorised",
     "16 bytes an access, A transposed in shared memory",
     false,
     4,
     4},
    {{{128, 128, 16}, {16, 128, 16}, {8, 8, 1}, 256, 2},
     "async_copy",
     "cp.async into the other of two buffers",
     false,
     4},
    {kWarpTiling, "warp_tiles", "square warp tiles, 4x4 fragments, any strides"},
    {{{128, 128, 32}, {64, 32, 32}, {16, 16, 16}, 256, 2},
     "wmma",
     "tensor cores by nvcuda::wmma",
     true,
     8,
     8},
    {kMmaTiling, "mma", "mma.sync with ldmatrix, a swizzle and more stages", true, 8, 8},
    {kWgmmaTiling, "wgmma", "TMA, mbarriers, warp specialisation, persistent blocks, an epilogue", true, 8, 8,
     90, true},
    {kWgmmaTiling, "multicast", "clusters of two blocks, each of which brings half of B to both", true, 8, 8,
     90},
};
inline constexpr int kGemmStepCount = sizeof(kGemmSteps) / sizeof(kGemmSteps[0]);
constexpr GemmStep gemm_step_of(GemmStepId id) { return kGemmSteps[static_cast<int>(id)]; }

// C [m, n] = A [m, k] B [k, n], all contiguous, 16-byte aligned and of one dtype that the step takes; then
// + bias [n] and GELU by the tanh formula, where the step has an epilogue. Sums are kept in float. m, n and k
// are at least 1.
struct GemmStepPlan {
  GemmStepId step;
  DType dtype;
  int64_t m, n, k;
  const void *a, *b;
  const void* bias;  // or null
  bool gelu;
  void* c;
};

// The steps, one a file of this folder. Each launches its kernel for a plan that was checked.
void gemm_naive(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_coalesced(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_shared_tile(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_register_tile(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_vectorised(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_async_copy(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_warp_tiles(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_wmma(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_mma(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_wgmma(const LaunchContext& ctx, const GemmStepPlan& p);
void gemm_multicast(const LaunchContext& ctx, const GemmStepPlan& p);

using GemmStepFn = void (*)(const LaunchContext&, const GemmStepPlan&);
constexpr GemmStepFn kRunGemmStep[] = {gemm_naive,      gemm_coalesced,  gemm_shared_tile, gemm_register_tile,
                                       gemm_vectorised, gemm_async_copy, gemm_warp_tiles,  gemm_wmma,
                                       gemm_mma,        gemm_wgmma,      gemm_multicast};
static_assert(sizeof(kRunGemmStep) / sizeof(kRunGemmStep[0]) == kGemmStepCount);

}  // namespace warptape::kernels::cuda
