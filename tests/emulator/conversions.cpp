// Kernels are compiled with -fsanitize=float-cast-overflow, which makes the compiler call the function below
// for NaN and for what the integer cannot hold. C++ leaves such a conversion open: the host's result is not
// PTX's, whose cvt saturates, so a kernel that relies on either computes something else on a GPU. What is the
// same on both goes on. Of integers below 32 bits nothing is promised: how nvcc converts to them is its own.
#include <cstdlib>
#include <cstring>

#include "cuda_runtime.h"
#include "internal.h"

namespace {

// As the compiler lays them out.
struct Location {
  const char* file;
  uint32_t line, column;
};
struct Type {
  uint16_t kind, info;  // of an integer: twice the logarithm of its bits, plus 1 if signed; else its bits
  char name[1];
};
struct Conversion {
  Location at;
  const Type *from, *to;
};

template <class I, class F>
bool differs(F x) {
  volatile F here = x;  // converted now, by the host
  return static_cast<I>(here) != emulator::saturated<I>(x);
}
template <class F>
bool differs(const Type& to, F x) {
  const bool is_signed = to.info & 1;
  switch (to.info >> 1) {
    case 5:
      return is_signed ? differs<int32_t>(x) : differs<uint32_t>(x);
    case 6:
      return is_signed ? differs<int64_t>(x) : differs<uint64_t>(x);
    default:
      return true;
  }
}

}  // namespace

// Of 32 and 64 bits the value itself is given; kernels have no long double.
extern "C" void __ubsan_handle_float_cast_overflow(void* data, uint64_t value) {
  if (!emulator::runs_kernel()) return;
  if (const char* asked = std::getenv("WARPTAPE_EMULATOR_CONVERSIONS"); asked && *asked == '0') return;
  const auto& c = *static_cast<const Conversion*>(data);
  const bool is_float = c.from->info == 32;
  const double x = is_float ? double(std::bit_cast<float>(uint32_t(value))) : std::bit_cast<double>(value);
  if (!(is_float ? differs(*c.to, float(x)) : differs(*c.to, x))) return;
  emulator::die(
      "%s:%u converts %g to %s, which a GPU does otherwise: clamp it first, or use a conversion "
      "that says what becomes of it (__float2int_rz)",
      c.at.file, c.at.line, x, c.to->name);
}
