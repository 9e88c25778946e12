// Discrete Fourier transforms.
#pragma once

#include "kernels/fft/fft.h"
#include "op/op.h"

namespace warptape::ops {

// input, dims, normalization (0: none, 1: by sqrt n, 2: by n), forward
extern WT_API const Op<Tensor(const Tensor&, IntList, int64_t, bool)> fft_c2c;
// ... onesided
extern WT_API const Op<Tensor(const Tensor&, IntList, int64_t, bool)> fft_r2c;
// ... last_dim_size
extern WT_API const Op<Tensor(const Tensor&, IntList, int64_t, int64_t)> fft_c2r;

// torch.fft's, over one dim: input, n, dim, norm
using FourierOp = Op<Tensor(const Tensor&, std::optional<int64_t>, int64_t, std::optional<std::string_view>)>;
extern WT_API const FourierOp fft, ifft, rfft, irfft;

// Of a CUDA device's cache of plans; see kernels/fft/fft.h.
WT_API int64_t fft_plans(Device device, kernels::FftPlans what, int64_t value);

}  // namespace warptape::ops
