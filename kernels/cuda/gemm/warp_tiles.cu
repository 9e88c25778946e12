// Step 7, and the float32 product without a library (matmul_plain.cu): as step 6, with warps whose part of
// the tile is nearly square, so that a warp reads less of shared memory, and with any strides, batches and
// the rest of what a MatmulPlan asks for.
//
//   grid      tiles of C x batch         block     256 threads, 128 x 128 of C, 16 along k a slice, 2 slices
//   warp      64 x 32, 2 x 4 of them     thread    2 x 2 fragments of 4 x 4, 32 rows and 16 columns apart
//
// Where that leaves multiprocessors idle, a block makes 64 x 64 (H = 1: one fragment a thread). Sums run
// along k in order in both. A slice is copied by 16 bytes where it lies in memory as in shared memory, else
// by 4.
#include "kernels/cuda/gemm/steps.h"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/plain.h"
#include "kernels/cuda/ptx.cuh"

namespace warptape::kernels::cuda {
namespace {

constexpr GemmStep kStep = gemm_step_of(GemmStepId::WarpTiles);
constexpr int kThreads = kStep.threads, kK = kStep.block.k, kPad = 4;
template <int H> inline constexpr int kSide = 64 * H;
static_assert(kSide<2> == kStep.block.m && kSide<2> == kStep.block.n);

// Slices as [along k, along C]: of A columns, of B rows.
template <int H>
struct Slices {
  float left[kK][kSide<H> + kPad], right[kK][kSide<H> + kPad];
};

// One operand of the tile: x[r * outer + q * along_k] for r < left; x moves along k. Few registers, for the
// sums take most.
struct Strip {
  const float* x;
  int64_t outer, along_k;
  int left;
  bool by_16;  // four neighbours in `outer` may be copied at once
};
WT_DEVICE Strip strip(const float* x, int64_t outer, int64_t along_k, int64_t first, int64_t rows,
                      bool by_16) {
  return {x + first * outer, outer, along_k, int(min(rows - first, int64_t(1) << 20)), by_16};
}

// Asks for kK of `left_k` that are left; past k it is zeros.
template <int H>
WT_DEVICE void fetch(float (*slice)[kSide<H> + kPad], const Strip& s, int left_k) {
  constexpr int kAcross = kSide<H>;
  if (s.by_16) {
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < kK * kAcross; i += kThreads * 4) {
      const int q = i / kAcross, r = i % kAcross;
      const int left = q < left_k ? s.left - r : 0, read = left <= 0 ? 0 : left >= 4 ? 16 : left * 4;
      copy_async<16>(&slice[q][r], read ? s.x + r + q * s.along_k : s.x, read);
    }
    return;
  }
  // Neighbouring threads take neighbouring memory, whichever dim that is.
  const bool by_k = s.along_k == 1;
#pragma unroll 2
  for (int i = threadIdx.x; i < kK * kAcross; i += kThreads) {
    const int q = by_k ? i % kK : i / kAcross, r = by_k ? i / kK : i % kAcross;
    const bool inside = r < s.left && q < left_k;
    copy_async<4>(&slice[q][r], inside ? s.x + r * s.outer + q * s.along_k : s.x, inside ? 4 : 0);
  }
}

// sums[0 .. 4) of row i from column j on, as the plan says.
template <int Columns>
WT_DEVICE void store(const MatmulPlan& p, float* c, int64_t i, int64_t j, const float (&sums)[Columns],
                     int at, bool by_16) {
  if (i >= p.m) return;
  float* row = c + i * p.c.row_stride + j;
  Packed<float, 4> out;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    if (j + s >= p.n) continue;
    float value = float(p.alpha) * sums[at + s];
    if (p.bias) value += static_cast<const float*>(p.bias)[j + s];
    if (p.beta != 0) value += float(p.beta) * row[s];  // C is not read otherwise: it may hold anything
    out[s] = value;
  }
  if (by_16 && j + 4 <= p.n) return store_packed(row, out);
#pragma unroll
  for (int s = 0; s < 4; ++s)
    if (j + s < p.n) row[s] = out[s];
}

struct WarpTilesArgs {
  MatmulPlan p;
  int64_t across;
  bool a_by_16, b_by_16, c_by_16;
};

// The two halves, or the only one, of what a thread needs of a slice's row.
template <int H>
WT_DEVICE void load_fragment(float (&x)[4 * H], const float* row, int apart) {
#pragma unroll
  for (int h = 0; h < H; ++h) {
    const auto four = load_packed<4>(row + h * apart);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[4 * h + i] = four[i];
  }
}

template <int H>
__global__ void __launch_bounds__(kThreads, 2) warp_tiles(const __grid_constant__ WarpTilesArgs args) {
  __shared__ __align__(16) Slices<H> slices[2];
  const MatmulPlan& p = args.p;
  const int64_t i0 = blockIdx.x / args.across * kSide<H>, j0 = blockIdx.x % args.across * kSide<H>;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int ti = warp / 4 * (32 * H) + lane / 4 * 4, tj = warp % 4 * (16 * H) + lane % 4 * 4;
  for (int64_t batch = blockIdx.y; batch < p.batch[0] * p.batch[1]; batch += gridDim.y) {
    const int64_t b0 = batch / p.batch[1], b1 = batch % p.batch[1];
    auto matrix = [&](const MatrixRef& x) {
      return static_cast<float*>(x.data) + b0 * x.batch_strides[0] + b1 * x.batch_strides[1];
    };
    Strip a = strip(matrix(p.a), p.a.row_stride, p.a.col_stride, i0, p.m, args.a_by_16);
    Strip b = strip(matrix(p.b), p.b.col_stride, p.b.row_stride, j0, p.n, args.b_by_16);
    auto fetch_next = [&](Slices<H>& to, int64_t k0) {
      const int left_k = int(min(p.k - k0, int64_t(kK)));
      fetch<H>(to.left, a, left_k);
      fetch<H>(to.right, b, left_k);
      commit_copies();
      if (left_k < kK) return;
      a.x += kK * a.along_k;
      b.x += kK * b.along_k;
    };
    float sums[4 * H][4 * H] = {};
    fetch_next(slices[0], 0);
    int turn = 0;
    for (int64_t k0 = 0; k0 < p.k; k0 += kK, turn ^= 1) {
      fetch_next(slices[turn ^ 1], k0 + kK);
      wait_copies<1>();
      __syncthreads();  // everybody's copies are there
      const Slices<H>& now = slices[turn];
#pragma unroll
      for (int q = 0; q < kK; ++q) {
        float x[4 * H], y[4 * H];
        load_fragment<H>(x, &now.left[q][ti], 32), load_fragment<H>(y, &now.right[q][tj], 16);
#pragma unroll
        for (int i = 0; i < 4 * H; ++i)
#pragma unroll
          for (int j = 0; j < 4 * H; ++j) sums[i][j] += x[i] * y[j];
      }
      __syncthreads();  // the slice was read: the next turn writes there
    }
    wait_copies<0>();  // the zeros past k, before the next matrix
    __syncthreads();
    float* c = matrix(p.c);
#pragma unroll
    for (int i = 0; i < 4 * H; ++i)
#pragma unroll
      for (int h = 0; h < H; ++h)
        store(p, c, i0 + ti + i / 4 * 32 + i % 4, j0 + tj + h * 16, sums[i], 4 * h, args.c_by_16);
  }
}

bool multiples_of_4(const MatrixRef& x, int64_t unit, int64_t other) {
  return unit == 1 && other % 4 == 0 && x.batch_strides[0] % 4 == 0 && x.batch_strides[1] % 4 == 0 &&
         is_aligned(x.data, 16);
}

template <int H>
void launch_tiles(const LaunchContext& ctx, WarpTilesArgs args) {
  const MatmulPlan& p = args.p;
  const int64_t batch = p.batch[0] * p.batch[1];
  args.across = ceil_div(p.n, kSide<H>);
  launch(
      ctx, "matmul", warp_tiles<H>,
      dim3(unsigned(ceil_div(p.m, kSide<H>) * args.across), unsigned(batch < kMaxGridY ? batch : kMaxGridY)),
      dim3(kThreads), 0, args);
}

}  // namespace

void matmul_warp_tiles(const LaunchContext& ctx, const MatmulPlan& p) {
  const WarpTilesArgs args{p, 0, multiples_of_4(p.a, p.a.row_stride, p.a.col_stride),
                           multiples_of_4(p.b, p.b.col_stride, p.b.row_stride),
                           multiples_of_4(p.c, p.c.col_stride, p.c.row_stride)};
  const int64_t blocks = ceil_div(p.m, kSide<2>) * ceil_div(p.n, kSide<2>) * p.batch[0] * p.batch[1];
  if (blocks < multi_processor_count(ctx.device_index)) return launch_tiles<1>(ctx, args);
  launch_tiles<2>(ctx, args);
}

void gemm_warp_tiles(const LaunchContext& ctx, const GemmStepPlan& p) {
  MatmulPlan plan{};
  plan.dtype = p.dtype;
  plan.batch[0] = plan.batch[1] = 1;
  plan.m = p.m, plan.n = p.n, plan.k = p.k;
  plan.a = {const_cast<void*>(p.a), p.k, 1, {0, 0}};
  plan.b = {const_cast<void*>(p.b), p.n, 1, {0, 0}};
  plan.c = {p.c, p.n, 1, {0, 0}};
  matmul_warp_tiles(ctx, plan);
}

}  // namespace warptape::kernels::cuda
