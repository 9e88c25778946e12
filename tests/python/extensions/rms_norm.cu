// Root mean square norm of each row, forward alone: one block for a row.
#include <ATen/AccumulateType.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/extension.h>

namespace {

constexpr int kThreads = 256;

// x, out: [rows, n]; weight: [n]
template <class scalar_t>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x,
                    const scalar_t* __restrict__ weight, scalar_t* __restrict__ out, float eps) {
  using acc_t = at::acc_type<scalar_t, true>;
  __shared__ acc_t sums[kThreads];
  const int row = blockIdx.x, n = x.size(1);
  acc_t sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const acc_t v = x[row][i];
    sum += v * v;
  }
  sums[threadIdx.x] = sum;
  for (int step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
  }
  __syncthreads();
  const acc_t scale = rsqrt(sums[0] / n + static_cast<acc_t>(eps));
  for (int i = threadIdx.x; i < n; i += kThreads)
    out[static_cast<int64_t>(row) * n + i] =
        static_cast<scalar_t>(static_cast<acc_t>(x[row][i]) * scale * static_cast<acc_t>(__ldg(weight + i)));
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TORCH_CHECK(x.is_cuda() && weight.is_cuda(), "rms_norm: expected CUDA tensors, got one on ", x.device());
  TORCH_CHECK(x.dim() == 2 && weight.is_contiguous() && weight.numel() == x.size(1),
              "rms_norm: expected [rows, n]");
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto out = torch::empty(x.sizes(), x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "rms_norm", [&] {
    rms_norm_kernel<scalar_t><<<x.size(0), kThreads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(), weight.data_ptr<scalar_t>(),
        out.data_ptr<scalar_t>(), static_cast<float>(eps));
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("rms_norm", &rms_norm); }
