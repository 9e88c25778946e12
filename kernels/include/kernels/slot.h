// Slots: the per-device function table of one kernel. A kernel is found by its name and the exact type of its
// function; nobody keeps a central list. CPU objects and plugins describe their kernels with WT_KERNEL.
#pragma once

#include <type_traits>

#include "kernels/types.h"

namespace warptape::kernels {

using AnyKernel = void (*)();

// One implementation: of which slot, with which function type, for which device and instruction set. Entries
// live in a linker section and are constant-initialised: reading them runs no code of the object they come
// from.
template <class Sig>
struct KernelEntryOf {
  const char* name;
  const char* signature;
  Sig* function;
  DeviceType device;
  uint8_t level;  // of the instruction set: the highest one that the machine has wins
};
using KernelEntry = KernelEntryOf<void()>;

// The function type as text, equal in every library that one compiler built.
template <class Sig>
constexpr const char* signature_of() {
  return __PRETTY_FUNCTION__;
}

// Implemented in csrc/core: finds the best entry (opening the device's plugin if need be) or throws a
// DeviceError that says what is missing. Throws when the entry's function type is not the slot's.
WT_API AnyKernel resolve_kernel(const char* name, const char* signature, DeviceType device);

template <class Sig>
class Slot;

template <class R, class... A>
class Slot<R(A...)> {
 public:
  constexpr explicit Slot(const char* name) : name_(name) {}
  constexpr const char* name() const { return name_; }
  R operator()(const LaunchContext& ctx, auto&&... args) {
    auto* place = &table_[static_cast<int>(ctx.device)];
    auto f = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (__builtin_expect(!f, 0)) {
      f = reinterpret_cast<R (*)(A...)>(resolve_kernel(name_, signature_of<R(A...)>(), ctx.device));
      __atomic_store_n(place, f, __ATOMIC_RELEASE);
    }
    return f(ctx, static_cast<decltype(args)&&>(args)...);
  }

 private:
  const char* name_;
  R (*table_[kNumDeviceTypes])(A...) = {};  // filled on first use; all writers write the same value
};

}  // namespace warptape::kernels

// WT_KERNEL(name, function): registers `function` for slot "name". In kernels/cpu WARPTAPE_ISA names the
// instruction set; kernels/cuda defines WARPTAPE_KERNEL_DEVICE as CUDA.
#if defined(WARPTAPE_KERNEL_DEVICE)
#define WT_KERNEL_DEVICE ::warptape::DeviceType::WARPTAPE_KERNEL_DEVICE
#else
#define WT_KERNEL_DEVICE ::warptape::DeviceType::CPU
#endif
#if !defined(WARPTAPE_ISA_LEVEL)
#define WARPTAPE_ISA_LEVEL 0
#endif
// A slim build (cmake/Slim.cmake) leaves out the functions of kernels that its list does not name.
#if defined(WARPTAPE_SLIM)
#include "kernels/slim_kernels.h"
#define WT_KERNEL_FUNCTION(name, fn) (::warptape::kernels::is_listed(#name) ? &fn : nullptr)
#else
#define WT_KERNEL_FUNCTION(name, fn) &fn
#endif
#define WT_KERNEL(name, fn)                                                                      \
  [[gnu::used, gnu::section("wt_kernels")]] static constinit ::warptape::kernels::KernelEntryOf< \
      std::remove_pointer_t<decltype(&fn)>> wt_kernel_##name = {                                 \
      #name, ::warptape::kernels::signature_of<std::remove_pointer_t<decltype(&fn)>>(),          \
      WT_KERNEL_FUNCTION(name, fn), WT_KERNEL_DEVICE, WARPTAPE_ISA_LEVEL}
