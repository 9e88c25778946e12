// The device side of the emulated CUDA runtime: qualifiers, built-in variables, vector types and intrinsics.
// See Note [Emulated CUDA].
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <typeinfo>

#include "cuda_runtime_api.h"

// `__noinline__` is missing: the standard library's headers use that word inside attributes.
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
// One block runs at a time. By the tag in their names shared.ld knows these from other static variables.
#define __shared__ static __attribute__((abi_tag("shared")))

// ---- vectors ----
#define EMULATOR_VECTOR(T, name, align2, align4)                        \
  struct __align__(sizeof(T)) name##1 { T x; };                         \
  struct __align__(align2) name##2 { T x, y; };                         \
  struct name##3 { T x, y, z; };                                        \
  struct __align__(align4) name##4 { T x, y, z, w; };                   \
  constexpr name##1 make_##name##1(T x) { return {x}; }                 \
  constexpr name##2 make_##name##2(T x, T y) { return {x, y}; }         \
  constexpr name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  constexpr name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATOR_VECTOR(signed char, char, 2, 4)
EMULATOR_VECTOR(unsigned char, uchar, 2, 4)
EMULATOR_VECTOR(short, short, 4, 8)
EMULATOR_VECTOR(unsigned short, ushort, 4, 8)
EMULATOR_VECTOR(int, int, 8, 16)
EMULATOR_VECTOR(unsigned, uint, 8, 16)
EMULATOR_VECTOR(float, float, 8, 16)
EMULATOR_VECTOR(long long, longlong, 16, 16)
EMULATOR_VECTOR(unsigned long long, ulonglong, 16, 16)
EMULATOR_VECTOR(double, double, 16, 16)
#undef EMULATOR_VECTOR

// ---- built-in variables ----
// The emulator sets them before it enters a thread. One thread of the host runs kernels at a time. Exported
// to kernels that are compiled at run time.
#define EMULATOR_EXPORT __attribute__((visibility("default")))
extern EMULATOR_EXPORT uint3 threadIdx, blockIdx;
extern EMULATOR_EXPORT dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

// ---- barriers and warp collectives ----
namespace emulator {

enum class Barrier { Plain, Or, And, Count };
enum class Collective {
  Sync,
  Shuffle,
  ShuffleUp,
  ShuffleDown,
  ShuffleXor,
  Ballot,
  Any,
  All,
  MatchAny,
  ReduceAdd,
  ReduceMin,
  ReduceMax,
  ReduceMinSigned,
  ReduceMaxSigned,
  ReduceAnd,
  ReduceOr,
  ReduceXor,
  Instruction  // of call_warp
};

EMULATOR_EXPORT int wait_block(Barrier kind, bool predicate);
// Parks the thread until all lanes of the mask have called. `source` is the lane a shuffle reads.
EMULATOR_EXPORT uint64_t wait_warp(Collective kind, unsigned mask, uint64_t value, int source = 0);
EMULATOR_EXPORT int lane();
// One instruction of a whole warp: when all 32 lanes have called, `run` gets what each of them gave.
void call_warp(void (*run)(void* const* lanes), void* mine);
// Parks the thread until ready(state), which is asked only when no other thread can go on.
void wait_until(bool (*ready)(void*), void* state);
[[noreturn]] EMULATOR_EXPORT void die(const char* format, ...) __attribute__((format(printf, 1, 2)));

template <class T>
auto shuffle(Collective kind, unsigned mask, T value, int source) {
  using R = decltype(+value);  // as CUDA's overloads: what is smaller than int goes as int
  static_assert(std::is_arithmetic_v<T> && (sizeof(R) == 4 || sizeof(R) == 8));
  using Bits = std::conditional_t<sizeof(R) == 4, uint32_t, uint64_t>;
  return std::bit_cast<R>(static_cast<Bits>(wait_warp(kind, mask, std::bit_cast<Bits>(R(value)), source)));
}

}  // namespace emulator

// In place of an `extern __shared__` array; 16-byte aligned.
EMULATOR_EXPORT void* emulated_dynamic_shared();

inline void __syncthreads() { emulator::wait_block(emulator::Barrier::Plain, false); }
inline int __syncthreads_or(int p) { return emulator::wait_block(emulator::Barrier::Or, p != 0); }
inline int __syncthreads_and(int p) { return emulator::wait_block(emulator::Barrier::And, p != 0); }
inline int __syncthreads_count(int p) { return emulator::wait_block(emulator::Barrier::Count, p != 0); }
inline void __syncwarp(unsigned mask = ~0u) { emulator::wait_warp(emulator::Collective::Sync, mask, 0); }

// Lanes form groups of `width`, a power of two; a lane whose source lies outside its group reads itself.
template <class T>
auto __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  int base = emulator::lane() & ~(width - 1);
  return emulator::shuffle(emulator::Collective::Shuffle, mask, value, base + (source & (width - 1)));
}
template <class T>
auto __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int lane = emulator::lane(), within = lane & (width - 1), by = static_cast<int>(delta);
  return emulator::shuffle(emulator::Collective::ShuffleUp, mask, value, within < by ? lane : lane - by);
}
template <class T>
auto __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int lane = emulator::lane(), within = lane & (width - 1), by = static_cast<int>(delta);
  return emulator::shuffle(emulator::Collective::ShuffleDown, mask, value,
                           within + by >= width ? lane : lane + by);
}
template <class T>
auto __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  int lane = emulator::lane(), source = lane ^ lanes;
  return emulator::shuffle(emulator::Collective::ShuffleXor, mask, value,
                           source >= (lane & ~(width - 1)) + width ? lane : source);
}
inline unsigned __ballot_sync(unsigned mask, int p) {
  return static_cast<unsigned>(emulator::wait_warp(emulator::Collective::Ballot, mask, p != 0));
}
inline int __any_sync(unsigned mask, int p) {
  return emulator::wait_warp(emulator::Collective::Any, mask, p != 0) != 0;
}
inline int __all_sync(unsigned mask, int p) {
  return emulator::wait_warp(emulator::Collective::All, mask, p != 0) == mask;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  return static_cast<unsigned>(
      emulator::wait_warp(emulator::Collective::MatchAny, mask, std::bit_cast<Bits>(value)));
}
template <class T>
T __reduce_add_sync(unsigned mask, T value) {
  return static_cast<T>(emulator::wait_warp(emulator::Collective::ReduceAdd, mask, uint32_t(value)));
}
template <class T>
T __reduce_min_sync(unsigned mask, T value) {
  auto kind = std::is_signed_v<T> ? emulator::Collective::ReduceMinSigned : emulator::Collective::ReduceMin;
  return static_cast<T>(emulator::wait_warp(kind, mask, uint32_t(value)));
}
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
  auto kind = std::is_signed_v<T> ? emulator::Collective::ReduceMaxSigned : emulator::Collective::ReduceMax;
  return static_cast<T>(emulator::wait_warp(kind, mask, uint32_t(value)));
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(emulator::wait_warp(emulator::Collective::ReduceAnd, mask, value));
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(emulator::wait_warp(emulator::Collective::ReduceOr, mask, value));
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
  return static_cast<unsigned>(emulator::wait_warp(emulator::Collective::ReduceXor, mask, value));
}

// ---- atomics: of integers only, as sums of floats would depend on their order ----
namespace emulator {
template <class T>
concept AtomicInteger =
    std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;
void races_atomic(const void* p, size_t bytes);
// Read and written as one: the race detector is told, not shown.
template <AtomicInteger T>
__attribute__((no_sanitize("thread"))) T read_atomically(T* p) {
  races_atomic(p, sizeof *p);
  return *p;
}
template <AtomicInteger T>
__attribute__((no_sanitize("thread"))) T exchange(T* p, T old, T value) {
  *p = value;
  return old;
}
}  // namespace emulator
#define EMULATOR_ATOMIC(name, result)                          \
  template <emulator::AtomicInteger T>                         \
  T name(T* p, std::type_identity_t<T> v) {                    \
    const T old = emulator::read_atomically(p);                \
    return emulator::exchange(p, old, static_cast<T>(result)); \
  }
EMULATOR_ATOMIC(atomicAdd, old + v)
EMULATOR_ATOMIC(atomicSub, old - v)
EMULATOR_ATOMIC(atomicMin, v < old ? v : old)
EMULATOR_ATOMIC(atomicMax, v > old ? v : old)
EMULATOR_ATOMIC(atomicExch, v)
EMULATOR_ATOMIC(atomicAnd, old& v)
EMULATOR_ATOMIC(atomicOr, old | v)
EMULATOR_ATOMIC(atomicXor, old ^ v)
#undef EMULATOR_ATOMIC
template <emulator::AtomicInteger T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  const T old = emulator::read_atomically(p);
  return emulator::exchange(p, old, old == expected ? v : old);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
[[noreturn]] inline void __trap() { emulator::die("__trap()"); }

// ---- memory accesses with cache hints ----
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldca(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldlu(const T* p) {
  return *p;
}
template <class T>
T __ldcv(const T* p) {
  return *p;
}
template <class T>
void __stwb(T* p, std::type_identity_t<T> v) {
  *p = v;
}
template <class T>
void __stcg(T* p, std::type_identity_t<T> v) {
  *p = v;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> v) {
  *p = v;
}
template <class T>
void __stwt(T* p, std::type_identity_t<T> v) {
  *p = v;
}

// ---- integers ----
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>(int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((uint64_t(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t bytes = uint64_t(b) << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i)
    r |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  return r;
}

#include "cuda_math.h"

namespace emulator {
template <class T>
void look_at(T& argument) {
  __builtin_clear_padding(&argument);  // where addresses of something else may lie
  check_argument(&argument, sizeof argument, typeid(T).name());
}
}  // namespace emulator

// Deduces the kernel's parameters from its pointer; the arguments are copied now and used when it runs.
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A) && (!std::is_reference_v<P> && ...));
  std::tuple<std::remove_cv_t<P>...> parameters(static_cast<A&&>(args)...);
  std::apply([](auto&... p) { (emulator::look_at(p), ...); }, parameters);
  return emulator::launch(*config, reinterpret_cast<const void*>(kernel),
                          [kernel, parameters] { std::apply(kernel, parameters); });
}
