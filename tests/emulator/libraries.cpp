// In place of cuDNN and CUB: slots that the real plugin serves with them. Here the CPU's kernel of the same
// slot does the work, late and in stream order like all else; what the plan points to on the host is copied.
// For all of attention the plugin's own kernels run.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "cuda_runtime.h"
#include "kernels/conv/conv.h"
#include "kernels/cuda/common/runtime.h"
#include "kernels/cuda/libraries/plain.h"
#include "kernels/index/sort.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/slot.h"

namespace warptape::kernels {
namespace {

// Scratch memory of one call of a CPU's kernel.
class Scratch {
 public:
  static void* allocate(void* self, size_t bytes) {
    constexpr size_t kAlign = 64;
    void* p = std::aligned_alloc(kAlign, (bytes / kAlign + 1) * kAlign);
    if (!p) emulator::die("no memory for a CPU kernel's scratch");
    static_cast<Scratch*>(self)->blocks_.push_back(p);
    return p;
  }
  ~Scratch() {
    for (void* p : blocks_) std::free(p);
  }

 private:
  std::vector<void*> blocks_;
};

// An argument that outlives its call; get() is what the CPU's kernel is given when it runs.
template <class T>
class Kept {
 public:
  Kept(const T& value) : value_(value) {}
  const T& get() const { return value_; }

 private:
  T value_;
};

template <>
class Kept<View> {
 public:
  Kept(const View& v) : view_(v) {
    std::copy_n(v.sizes, v.ndim, sizes_.begin());
    std::copy_n(v.strides, v.ndim, strides_.begin());
    if (v.host_scalar) std::memcpy(scalar_, v.data, itemsize(v.dtype));
  }
  View get() const {
    View v = view_;
    v.sizes = sizes_.data();
    v.strides = strides_.data();
    if (v.host_scalar) v.data = const_cast<char*>(scalar_);
    return v;
  }

 private:
  View view_;
  std::array<int64_t, kMaxDims> sizes_{}, strides_{};
  alignas(8) char scalar_[8] = {};
};

template <class T>
void add_address(std::vector<const void*>& to, const T& argument) {
  if constexpr (std::is_same_v<T, View>) to.push_back(argument.data);
}

// Queues slot(args...) on the CPU. The check for interrupts is off while it runs, for it runs under the
// emulator's lock.
template <class... P>
void forward(const LaunchContext& ctx, const char* name, Slot<void(const LaunchContext&, P...)>& slot,
             const std::type_identity_t<P>&... args) {
  cuda::use_device(ctx.device_index);
  auto kept = std::make_shared<std::tuple<Kept<std::remove_cvref_t<P>>...>>(args...);
  LaunchContext host;
  host.deterministic = ctx.deterministic;
  host.allocate = Scratch::allocate;
  std::vector<const void*> used;
  (add_address(used, args), ...);
  auto run = [kept, host, &slot] {
    Scratch scratch;
    cpu::Uninterrupted uninterrupted;
    LaunchContext own = host;
    own.allocator = &scratch;
    std::apply([&](auto&... k) { slot(own, k.get()...); }, *kept);
  };
  auto error = emulator::enqueue(static_cast<cudaStream_t>(ctx.stream), run, used, name);
  cuda::check(error, name);
  if (cuda::launch_blocking) cuda::finish_blocking(ctx, name);
}

template <class Fn>
struct Forwarder;
template <class... P>
struct Forwarder<void(const LaunchContext&, P...)> {
  template <auto& slot, const char* const& name>
  static void run(const LaunchContext& ctx, P... args) {
    forward<P...>(ctx, name, slot, args...);
  }
};

#define WT_FORWARD(slot_name, Fn)                                                            \
  constexpr const char* slot_name##_name = #slot_name;                                       \
  Slot<Fn> slot_name##_slot{#slot_name};                                                     \
  constexpr auto slot_name##_entry = Forwarder<Fn>::run<slot_name##_slot, slot_name##_name>; \
  WT_KERNEL(slot_name, *slot_name##_entry)

WT_FORWARD(conv, ConvFn);
WT_FORWARD(conv_backward_input, ConvBackwardInputFn);
WT_FORWARD(conv_backward_weight, ConvBackwardWeightFn);
WT_FORWARD(conv_channels_last, ConvFn);
WT_FORWARD(conv_channels_last_backward_input, ConvBackwardInputFn);
WT_FORWARD(conv_channels_last_backward_weight, ConvBackwardWeightFn);
WT_FORWARD(sort, SortFn);
WT_FORWARD(topk, TopkFn);
WT_FORWARD(searchsorted, SearchsortedFn);

WT_KERNEL(attention, cuda::attention_own);
WT_KERNEL(attention_backward, cuda::attention_backward_own);

}  // namespace
}  // namespace warptape::kernels
