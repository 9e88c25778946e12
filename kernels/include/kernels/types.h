// The vocabulary of kernels: data types, plain views and the launch context. No tensor, no Python, no
// allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// Kernel objects are compiled once per instruction set, so an inline function that the linker merged across
// them would carry wide instructions into code that an older CPU runs. Whatever a kernel includes is
// therefore always inlined.
#if defined(__CUDACC__)
#define WT_INLINE __host__ __device__ __forceinline__
#else
#define WT_INLINE [[gnu::always_inline]] inline
#endif

// Exported from libwarptape.so. The same in those that use it: with hidden visibility a class would have
// another type identity there, and exceptions would not be caught.
#define WT_API __attribute__((visibility("default")))

namespace warptape {

// Every dtype: X(enumerator, C++ type, bytes, PyTorch's name, PyTorch's name in errors about two dtypes that
// differ, code of DLPack). Behind complex128 are types for storage: converted, moved and compared, not
// computed in.
#define WT_FLOAT8_DTYPES(X)                                                  \
  X(Float8E4M3FN, Float8E4M3FN, 1, float8_e4m3fn, Float8_e4m3fn, 10)         \
  X(Float8E5M2, Float8E5M2, 1, float8_e5m2, Float8_e5m2, 12)                 \
  X(Float8E4M3FNUZ, Float8E4M3FNUZ, 1, float8_e4m3fnuz, Float8_e4m3fnuz, 11) \
  X(Float8E5M2FNUZ, Float8E5M2FNUZ, 1, float8_e5m2fnuz, Float8_e5m2fnuz, 13) \
  X(Float8E8M0FNU, Float8E8M0FNU, 1, float8_e8m0fnu, Float8_e8m0fnu, 14)
#define WT_DTYPES(X)                                               \
  X(Bool, Bool, 1, bool, Bool, 6)                                  \
  X(UInt8, uint8_t, 1, uint8, Byte, 1)                             \
  X(Int8, int8_t, 1, int8, Char, 0)                                \
  X(Int16, int16_t, 2, int16, Short, 0)                            \
  X(Int32, int32_t, 4, int32, Int, 0)                              \
  X(Int64, int64_t, 8, int64, Long, 0)                             \
  X(Float16, Half, 2, float16, Half, 2)                            \
  X(BFloat16, BFloat16, 2, bfloat16, BFloat16, 4)                  \
  X(Float32, float, 4, float32, Float, 2)                          \
  X(Float64, double, 8, float64, Double, 2)                        \
  X(Complex64, Complex<float>, 8, complex64, ComplexFloat, 5)      \
  X(Complex128, Complex<double>, 16, complex128, ComplexDouble, 5) \
  X(UInt16, uint16_t, 2, uint16, UInt16, 1)                        \
  X(UInt32, uint32_t, 4, uint32, UInt32, 1)                        \
  X(UInt64, uint64_t, 8, uint64, UInt64, 1)                        \
  WT_FLOAT8_DTYPES(X)

#define WT_ENUMERATOR(enumerator, ...) enumerator,
enum class DType : uint8_t { WT_DTYPES(WT_ENUMERATOR) };
#undef WT_ENUMERATOR
#define WT_ONE(...) +1
inline constexpr int kNumDTypes = WT_DTYPES(WT_ONE);
#undef WT_ONE

enum class DeviceType : uint8_t { CPU, CUDA, Meta };
inline constexpr int kNumDeviceTypes = 3;

WT_INLINE constexpr size_t itemsize(DType t) {
#define WT_BYTES(enumerator, type, bytes, ...) bytes,
  constexpr uint8_t sizes[] = {WT_DTYPES(WT_BYTES)};
#undef WT_BYTES
  return sizes[static_cast<int>(t)];
}
WT_INLINE constexpr bool is_storage_only(DType t) { return t > DType::Complex128; }
WT_INLINE constexpr bool is_float8(DType t) { return t >= DType::Float8E4M3FN; }
WT_INLINE constexpr bool is_wide_unsigned(DType t) { return is_storage_only(t) && !is_float8(t); }
WT_INLINE constexpr bool is_floating(DType t) {
  return (t >= DType::Float16 && t <= DType::Float64) || is_float8(t);
}
WT_INLINE constexpr bool is_complex(DType t) { return t == DType::Complex64 || t == DType::Complex128; }
WT_INLINE constexpr bool is_integral(DType t) {  // without bool
  return (t >= DType::UInt8 && t <= DType::Int64) || is_wide_unsigned(t);
}

struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  WT_INLINE explicit BFloat16(float f) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(f));
#else
    uint32_t u;
    std::memcpy(&u, &f, 4);
    bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? uint16_t((u >> 16) | 0x40) : uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
#endif
  }
  WT_INLINE explicit operator float() const {
    uint32_t u = uint32_t(bits) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }
};

#if defined(__aarch64__)
using NativeHalf = __fp16;  // GCC has no _Float16 there before 13
#elif !defined(__CUDA_ARCH__)
using NativeHalf = _Float16;
#endif
// IEEE binary16; the compiler's own type converts with the hardware where there is one.
struct Half {
  uint16_t bits;
  Half() = default;
  WT_INLINE explicit Half(float f) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(f));
#else
    NativeHalf h = static_cast<NativeHalf>(f);
    std::memcpy(&bits, &h, 2);
#endif
  }
  WT_INLINE explicit operator float() const {
#if defined(__CUDA_ARCH__)
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
#else
    NativeHalf h;
    std::memcpy(&h, &bits, 2);
    return static_cast<float>(h);
#endif
  }
};

namespace kernels {

inline constexpr int kMaxDims = 32;  // of one tensor; the tensor layer refuses more

// What a kernel sees of a tensor. Sizes and strides (in elements, 0 where broadcast, never negative) stay
// owned by the caller for the duration of the launch.
struct View {
  void* data = nullptr;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  int ndim = 0;
  DType dtype = DType::Float32;
  bool host_scalar = false;  // data is one value in host memory, whatever the device

  template <class T>
  WT_INLINE T* as() const {
    return static_cast<T*>(data);
  }
  WT_INLINE int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= sizes[i];
    return n;
  }
  WT_INLINE bool contiguous() const {
    int64_t expect = 1;
    for (int i = ndim - 1; i >= 0; --i) {
      if (sizes[i] != 1 && strides[i] != expect) return false;
      expect *= sizes[i];
    }
    return true;
  }
};

// Key of a counter-based random draw: element i of call `call` under `seed` is the same number on every
// device, rank and thread count.
struct PhiloxKey {
  uint64_t seed = 0;
  uint64_t call = 0;
  // In a captured graph: two numbers in device memory, the seed in place of the above and what is added to
  // `call`, so that every replay draws anew. Else null.
  const uint64_t* captured = nullptr;
};

// A bad index found by a kernel: the op turns it into an IndexError after the launch, or, on a device whose
// launches return early, the next synchronisation does.
struct IndexFault {
  bool set = false;
  int64_t index = 0;         // the value found
  int64_t bound = 0;         // valid are -bound <= index < bound
  const char* op = nullptr;  // named where the op itself does not wait
};

struct LaunchContext {
  DeviceType device = DeviceType::CPU;
  int device_index = 0;
  void* stream = nullptr;  // cudaStream_t on CUDA
  bool deterministic = true;
  IndexFault* fault = nullptr;  // where an indexing kernel reports; never null for those
  // Scratch memory on the device, from the caching allocator; returned when the launch function returns.
  void* (*allocate)(void* self, size_t bytes) = nullptr;
  void* allocator = nullptr;
  WT_INLINE void* scratch(size_t bytes) const { return allocate(allocator, bytes); }
};

}  // namespace kernels
}  // namespace warptape
