// Convolution with kernels of 3 x 3 and stride 1 by F(2 x 2, 3 x 3), "Fast Algorithms for Convolutional
// Neural Networks" (Lavin and Gray, 2016), section 4.1: tiles of 4 x 4 of the image and the kernels are
// transformed, multiplied element by element and summed over the channels, which is 16 matrix products, and
// transformed back. A tile has 2 x 2 results, each two tiles share two rows or columns: 16 products where
// there were 36.
#pragma once

#include "kernels/conv/conv.h"
#include "kernels/cpu/fused/chain_parts.h"
#include "kernels/cpu/gemm/gemm_pack.h"
#include "kernels/cpu/vector/bounds.h"

namespace warptape::kernels::WARPTAPE_ISA {

// Whether a plan's products are computed so: neither the batch nor the number of threads decides. Measured on
// an EPYC with AVX2: below 36 tiles an image the transforms of the kernels cost what the products save; so do
// those of the weight's gradient, above 128 x 128 channels.
bool winograd_suits(const ConvPlan& p);
bool winograd_suits_weight(const ConvPlan& p);

void winograd(const LaunchContext& ctx, const ConvPlan& p, float* out, const float* in, const float* weight,
              const float* bias, const ChainParts* epilogue);
void winograd_backward_input(const LaunchContext& ctx, const ConvPlan& p, float* grad_in,
                             const float* grad_out, const float* weight);
void winograd_backward_weight(const LaunchContext& ctx, const ConvPlan& p, float* grad_weight,
                              const float* grad_out, const float* in);

using WinogradLanes = GemmVec<float>;
inline constexpr int kWinogradLanes = kGemmVecBytes / int(sizeof(float));
inline constexpr int kWinogradProducts = 16;  // the elements of a tile

// One dimension of each transform; the names are the paper's. `xs` and `ys` are distances.
struct WinogradImage {  // B^T
  static constexpr int kIn = 4, kOut = 4;
  WT_INLINE static void run(const WinogradLanes* x, int xs, WinogradLanes* y, int ys) {
    y[0 * ys] = x[0 * xs] - x[2 * xs];
    y[1 * ys] = x[1 * xs] + x[2 * xs];
    y[2 * ys] = x[2 * xs] - x[1 * xs];
    y[3 * ys] = x[1 * xs] - x[3 * xs];
  }
};
struct WinogradKernel {  // G
  static constexpr int kIn = 3, kOut = 4;
  WT_INLINE static void run(const WinogradLanes* x, int xs, WinogradLanes* y, int ys) {
    const WinogradLanes ends = x[0 * xs] + x[2 * xs];
    y[0 * ys] = x[0 * xs];
    y[1 * ys] = (ends + x[1 * xs]) * 0.5f;
    y[2 * ys] = (ends - x[1 * xs]) * 0.5f;
    y[3 * ys] = x[2 * xs];
  }
};
struct WinogradResult {  // A^T
  static constexpr int kIn = 4, kOut = 2;
  WT_INLINE static void run(const WinogradLanes* x, int xs, WinogradLanes* y, int ys) {
    y[0 * ys] = x[0 * xs] + x[1 * xs] + x[2 * xs];
    y[1 * ys] = x[1 * xs] - x[2 * xs] - x[3 * xs];
  }
};
// The transposes, for the gradient of the kernel.
struct WinogradGradient {  // A
  static constexpr int kIn = 2, kOut = 4;
  WT_INLINE static void run(const WinogradLanes* x, int xs, WinogradLanes* y, int ys) {
    y[0 * ys] = x[0 * xs];
    y[1 * ys] = x[0 * xs] + x[1 * xs];
    y[2 * ys] = x[0 * xs] - x[1 * xs];
    y[3 * ys] = -x[1 * xs];
  }
};
struct WinogradKernelGradient {  // G^T
  static constexpr int kIn = 4, kOut = 3;
  WT_INLINE static void run(const WinogradLanes* x, int xs, WinogradLanes* y, int ys) {
    const WinogradLanes sum = (x[1 * xs] + x[2 * xs]) * 0.5f;
    y[0 * ys] = x[0 * xs] + sum;
    y[1 * ys] = (x[1 * xs] - x[2 * xs]) * 0.5f;
    y[2 * ys] = sum + x[3 * xs];
  }
};

// Both dimensions of a tile, row-major.
template <class Step>
WT_INLINE void winograd_tile(const WinogradLanes (&x)[Step::kIn * Step::kIn],
                             WinogradLanes (&y)[Step::kOut * Step::kOut]) {
  WinogradLanes half[Step::kIn * Step::kOut];
#pragma GCC unroll 4
  for (int r = 0; r < Step::kIn; ++r) Step::run(x + r * Step::kIn, 1, half + r * Step::kOut, 1);
#pragma GCC unroll 4
  for (int c = 0; c < Step::kOut; ++c) Step::run(half + c, Step::kOut, y + c, Step::kOut);
}

}  // namespace warptape::kernels::WARPTAPE_ISA
