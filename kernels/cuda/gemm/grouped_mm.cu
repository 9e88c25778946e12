// Products of groups. Nobody on the host knows how many rows a group has: a block finds its group and tile
// from the ends in memory, and the grid has a block for every tile that there could be, of which those
// beyond the last return at once. Tiles: 16-bit types by tensor cores (gemm/mma_tile.cuh),
// float32 by gemm/warp_tile.cuh, all else by plain_tile.cuh. On compute capability 9.0 persistent blocks take
// 16-bit types: grouped_wgmma.cuh; WARPTAPE_GROUPED_MM=mma takes the kernels of older GPUs there, too.
#include <cstdlib>
#include <string_view>

#include "kernels/cuda/common/runtime.h"
#include "kernels/cuda/gemm/grouped_wgmma.cuh"
#include "kernels/cuda/gemm/mma_tile.cuh"
#include "kernels/cuda/gemm/plain_tile.cuh"
#include "kernels/cuda/gemm/warp_tile.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

// The product that a block has a tile of, and where that begins.
template <class T>
struct Work {
  const T *a, *b;
  T* c;
  int64_t m, n, k, i0, j0;
};

template <class T, int Side>
WT_DEVICE bool find_work(const GroupedArgs& args, Work<T>& w) {
  const GroupedMmPlan& p = args.p;
  w = {static_cast<const T*>(p.a), static_cast<const T*>(p.b), static_cast<T*>(p.c), p.m, p.n, p.k, 0, 0};
  int64_t tile = blockIdx.x / args.across;
  w.j0 = blockIdx.x % args.across * Side;
  if (p.along_k) {
    const int64_t g = tile / args.down;
    const Span span = span_of(args, g);
    w.a += span.first * p.m, w.b += span.first * p.n, w.c += g * p.m * p.n;
    w.k = span.last - span.first;
    w.i0 = tile % args.down * Side;
    return true;
  }
  RowTile found;
  if (!find_tile<Side>(args, int(tile), found)) return false;
  w.m = found.last, w.i0 = found.row;
  if (found.group < p.groups)
    w.b += found.group * p.n * p.k;
  else
    w.k = 0;
  return true;
}

// The strides of the plan's matrices, for tiles that take any.
WT_DEVICE MatmulPlan strided(const GroupedMmPlan& p, int64_t m, int64_t k) {
  MatmulPlan plan{};
  plan.m = m, plan.n = p.n, plan.k = k;
  plan.a.row_stride = p.along_k ? 1 : p.k, plan.a.col_stride = p.along_k ? p.m : 1;
  plan.b.row_stride = p.b_transposed ? 1 : p.n, plan.b.col_stride = p.b_transposed ? p.k : 1;
  plan.c.row_stride = p.n, plan.c.col_stride = 1;
  return plan;
}

template <class T, bool AAlongK, bool BAlongK>
__global__ void __launch_bounds__(kMmaTiling.threads, 2)
    grouped_mma(const __grid_constant__ GroupedArgs args) {
  using Tile = MmaTile<T, AAlongK, BAlongK>;
  Work<T> w;
  if (!find_work<T, Tile::kM>(args, w)) return;
  Tile::run(GemmArgs<T>{w.a, w.b, w.c, w.m, w.n, w.k, 0}, int(w.i0), int(w.j0));
}

template <int H>
__global__ void __launch_bounds__(kWarpTiling.threads, 2)
    grouped_warp_tiles(const __grid_constant__ GroupedArgs args) {
  using Tile = WarpTile<H>;
  __shared__ typename Tile::Slices slices[2];
  Work<float> w;
  if (!find_work<float, Tile::kSide>(args, w)) return;
  const MatmulPlan plan = strided(args.p, w.m, w.k);
  Tile::run({plan, w.a, w.b, w.c, args.a_by_16, args.b_by_16, args.c_by_16}, w.i0, w.j0, slices);
}

template <class T>
__global__ void __launch_bounds__(PlainTile<T>::kThreads)
    grouped_plain(const __grid_constant__ GroupedArgs args) {
  using Tile = PlainTile<T>;
  __shared__ typename Tile::Slices slices;
  Work<T> w;
  if (!find_work<T, Tile::kSide>(args, w)) return;
  Tile::run(strided(args.p, w.m, w.k), w.a, w.b, w.c, w.i0, w.j0, slices);
}

void launch_grouped(const LaunchContext& ctx, void (*kernel)(GroupedArgs), GroupedArgs args, int side,
                    int threads, size_t shared_bytes = 0) {
  count_tiles(args, side, side);
  launch(ctx, "grouped_mm", kernel, dim3(unsigned(blocks(args))), dim3(unsigned(threads)), shared_bytes,
         args);
}

template <class T, bool AAlongK, bool BAlongK>
void launch_mma(const LaunchContext& ctx, const GroupedArgs& args) {
  using Tile = MmaTile<T, AAlongK, BAlongK>;
  launch_grouped(ctx, grouped_mma<T, AAlongK, BAlongK>, args, Tile::kM, kMmaTiling.threads,
                 Tile::kSharedBytes);
}

// 16 bytes at a time: of every matrix a row has so many.
bool suits_tensor_cores(const GroupedMmPlan& p) {
  return p.n % kPiece == 0 && (p.along_k ? p.m : p.k) % kPiece == 0 && is_aligned(p.a, 16) &&
         is_aligned(p.b, 16) && is_aligned(p.c, 16);
}

bool takes_wgmma(const LaunchContext& ctx) {
  static const char* const asked = std::getenv("WARPTAPE_GROUPED_MM");
  return capability(ctx.device_index) == 90 && (!asked || asked != std::string_view("mma"));
}

template <class T>
void run_half(const LaunchContext& ctx, const GroupedArgs& args) {
  if (!suits_tensor_cores(args.p))
    return launch_grouped(ctx, grouped_plain<T>, args, PlainTile<T>::kSide, PlainTile<T>::kThreads);
  if (takes_wgmma(ctx)) return grouped_wgmma<T>(ctx, args);
  if (args.p.along_k) return launch_mma<T, false, false>(ctx, args);
  if (args.p.b_transposed) return launch_mma<T, true, true>(ctx, args);
  launch_mma<T, true, false>(ctx, args);
}

void run_float(const LaunchContext& ctx, GroupedArgs args) {
  const GroupedMmPlan& p = args.p;
  auto by_16 = [](const void* x, int64_t row) { return row % 4 == 0 && is_aligned(x, 16); };
  args.a_by_16 = p.along_k && by_16(p.a, p.m);
  args.b_by_16 = !p.b_transposed && by_16(p.b, p.n);
  args.c_by_16 = by_16(p.c, p.n);
  count_tiles(args, WarpTile<2>::kSide, WarpTile<2>::kSide);
  if (blocks(args) < multi_processor_count(ctx.device_index))
    return launch_grouped(ctx, grouped_warp_tiles<1>, args, WarpTile<1>::kSide, kWarpTiling.threads);
  launch_grouped(ctx, grouped_warp_tiles<2>, args, WarpTile<2>::kSide, kWarpTiling.threads);
}

void grouped_mm(const LaunchContext& ctx, const GroupedMmPlan& p) {
  const GroupedArgs args{p, fault_sink(ctx, "grouped_mm"), 0, 0, false, false, false};
  switch (p.dtype) {
    case DType::BFloat16:
      return run_half<BFloat16>(ctx, args);
    case DType::Float16:
      return run_half<Half>(ctx, args);
    case DType::Float32:
      return run_float(ctx, args);
    default:
      dispatch(Types<double>{}, p.dtype, [&](auto) {
        launch_grouped(ctx, grouped_plain<double>, args, PlainTile<double>::kSide,
                       PlainTile<double>::kThreads);
      });
  }
}

}  // namespace

WT_KERNEL(grouped_mm, grouped_mm);

}  // namespace warptape::kernels::cuda
