// Runs a kernel on tensors, or has it noted by itself: see Note [Regions], graph/record/region.h.
#pragma once

#include <array>
#include <cstring>

#include "tensor/deferral.h"

namespace warptape {

// A kernel as it is noted. Where all that it has of one row depends on the same row of others alone, and on
// what is not by rows, it says so, and may then run on some rows at a time.
struct KernelInfo {
  const char* name;
  uint32_t rows_in = 0, rows_out = 0;  // bits: which tensors it reads and writes are by rows; contiguous
  int8_t index_dim = -1;               // of the IndexError for the faults that it reports on the CPU; or none
  int8_t over = -1;  // the tensor read, of the same geometry, in whose place its first result may be
};

// What a launch needs beside tensors, and the function that makes it. Views are in the order of the tensors,
// without data where there is none; those by rows begin at the first of `rows`, with the sizes of the whole.
struct KernelFunction {
  static constexpr size_t kBytes = 48;
  using Run = void(const std::byte* data, const kernels::LaunchContext& ctx, const kernels::View* in,
                   const kernels::View* out, int64_t rows);
  KernelFunction() = default;
  template <class F>
  explicit KernelFunction(const F& f) {
    if constexpr (requires { f.number; }) number = f.number;
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= kBytes && alignof(F) <= 8);
    F plain = f;
    __builtin_clear_padding(&plain);  // calls are compared by their bytes
    std::memcpy(data.data(), &plain, sizeof(F));
    run = [](const std::byte* at, const kernels::LaunchContext& ctx, const kernels::View* in,
             const kernels::View* out,
             int64_t rows) { (*reinterpret_cast<const F*>(at))(ctx, in, out, rows); };
  }
  Run* run = nullptr;
  alignas(8) std::array<std::byte, kBytes> data{};
  double number = 0;  // of f, where it has one: for what runs the kernel in another way
};

inline constexpr size_t kMaxKernelTensors = 8;  // read, and written

// The elementwise kernel that raw_copy(), raw_cast() and raw_fill() run.
WT_API const ElementwiseSlot& copy_kernel();

// f(ctx, in, out, rows): as in KernelFunction. `f` holds numbers alone.
template <class F>
void run_kernel(const KernelInfo& info, std::initializer_list<Tensor> in, std::initializer_list<Tensor> out,
                int64_t rows, const F& f) {
  Device device;
  for (const Tensor& t : out)
    if (t.defined()) device = t.device();
  if (device.is_meta()) return;
  if (thread_state().deferral) return thread_state().deferral->kernel(info, in, out, rows, KernelFunction(f));
  kernels::View read[kMaxKernelTensors], written[kMaxKernelTensors];
  size_t i = 0, k = 0;
  for (const Tensor& t : in) read[i++] = t.defined() ? t.view() : kernels::View{};
  for (const Tensor& t : out) written[k++] = t.defined() ? t.view() : kernels::View{};
  const Launch launch(device);
  f(launch, read, written, rows);
  if (info.index_dim >= 0) launch.check_index(info.name, info.index_dim);
}

}  // namespace warptape
