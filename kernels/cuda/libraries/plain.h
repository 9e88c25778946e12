// Own kernels for what the libraries do not take; they do all that the contracts say, if more slowly.
#pragma once

#include <initializer_list>

#include "kernels/attention/attention.h"
#include "kernels/linalg/matmul.h"

namespace warptape::kernels::cuda {

// Every dtype but bool, any strides. In use for integers, for k = 0 and where cuBLASLt has no algorithm.
void matmul_plain(const LaunchContext& ctx, const MatmulPlan& plan);
// The same of float32: gemm/warp_tiles.cu.
void matmul_warp_tiles(const LaunchContext& ctx, const MatmulPlan& plan);

// The products of kernels/linalg/matmul.h that do more, as a product and one kernel after it: for what
// cuBLASLt's epilogues do not take. See matmul_pieces.cpp.
void row_sums_plain(const LaunchContext& ctx, const MatmulPlan& plan, void* sums);
void gelu_plain(const LaunchContext& ctx, const MatmulPlan& plan, void* before);
void gelu_backward_plain(const LaunchContext& ctx, const MatmulPlan& plan, const void* before, void* sums);

// Every floating dtype, any head sizes, masks, dropout. See attention_plain.cu.
void attention_plain(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& plan);
void attention_backward_plain(const LaunchContext& ctx, const View& dq, const View& dk, const View& dv,
                              const View& dout, const View& out, const View& lse, const AttentionPlan& plan);
// Its backward pass' sums over dout * out, [B, H, T] in the compute dtype, in scratch memory.
const void* attention_delta(const LaunchContext& ctx, const View& dout, const View& out,
                            const AttentionPlan& plan);

// Whether tensor cores do it: 16-bit types, heads of up to 128 numbers, rows by 16 bytes. `others` are what
// is written, and their gradients. See attention_mma.cu.
bool suits_mma(const AttentionPlan& plan, std::initializer_list<const View*> others);
// Whether WGMMA does it: on Hopper, what suits_mma says, for scales above 0. See attention_wgmma.cu.
bool suits_wgmma(const LaunchContext& ctx, const AttentionPlan& plan,
                 std::initializer_list<const View*> others);
void attention_wgmma(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& plan);
// delta: attention_delta's.
void attention_backward_wgmma(const LaunchContext& ctx, const View& dq, const View& dk, const View& dv,
                              const View& dout, const View& lse, const void* delta,
                              const AttentionPlan& plan);
// By tensor cores where they do it, else plain.
void attention_own(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& plan);
void attention_backward_own(const LaunchContext& ctx, const View& dq, const View& dk, const View& dv,
                            const View& dout, const View& out, const View& lse, const AttentionPlan& plan);

}  // namespace warptape::kernels::cuda
