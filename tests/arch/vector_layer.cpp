// The vector layer lane by lane against plain arithmetic, at the instruction set it is compiled for. Prints
// what is wrong; test_vector_layer.py runs it.
#include <cmath>
#include <cstdio>
#include <limits>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/vector/vecmath.h"

using namespace warptape;
using namespace warptape::kernels;
namespace isa = warptape::kernels::WARPTAPE_ISA;

int failures = 0;
void expect(bool right, const char* what, int lane) {
  if (!right) std::printf("%s is wrong in lane %d\n", what, lane), ++failures;
}
bool same(double a, double b, double tolerance = 0) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b ? std::signbit(a) == std::signbit(b) : std::abs(a - b) <= tolerance * std::abs(b);
}

template <class T>
void floats() {
  using V = isa::Vec<T>;
  constexpr int L = V::kLanes;
  constexpr T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const T of[] = {T(-2.5), T(-0.5), T(0.5), T(1.5),  -T(0), T(0),   T(3.75),
                  inf,     -inf,    nan,    T(1e-3), T(7),  T(-40), T(0.1)};
  constexpr int n = sizeof of / sizeof of[0];
  for (int shift = 0; shift < n; ++shift) {
    T a[L], b[L], c[L], got[L];
    for (int i = 0; i < L; ++i)
      a[i] = of[(i + shift) % n], b[i] = of[(i * 3 + 2 * shift) % n], c[i] = of[i % 4];
    const V x = V::load(a), y = V::load(b), z = V::load(c);
    auto check = [&](const char* what, V v, auto expected, double tolerance = 0) {
      v.store(got);
      for (int i = 0; i < L; ++i) expect(same(double(got[i]), double(expected(i)), tolerance), what, i);
    };
    check("floor", isa::floor(x), [&](int i) { return std::floor(a[i]); });
    check("ceil", isa::ceil(x), [&](int i) { return std::ceil(a[i]); });
    check("trunc", isa::trunc(x), [&](int i) { return std::trunc(a[i]); });
    check("round", isa::round(x), [&](int i) { return std::nearbyint(a[i]); });
    check("sqrt", isa::sqrt(x), [&](int i) { return std::sqrt(a[i]); });
    check("fma", isa::fma(x, z, z), [&](int i) { return std::fma(a[i], c[i], c[i]); }, 1e-6);
    check("max_or_b", isa::max_or_b(x, y), [&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
    check("min_or_b", isa::min_or_b(x, y), [&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
    check("select", isa::select(x < y, x, y), [&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
    check("exp", isa::exp(x), [&](int i) { return std::exp(a[i]); }, 4e-7);
    check("tanh", isa::tanh(x), [&](int i) { return std::tanh(a[i]); }, 1e-6);
    check("fmod", isa::fmod(x, y), [&](int i) { return std::fmod(a[i], b[i]); }, 1e-6);
    uint8_t bytes[L];
    isa::store(bytes, x < y);
    for (int i = 0; i < L; ++i) expect(bytes[i] == (a[i] < b[i]), "a stored mask", i);
    for (int i = 0; i < L; ++i) bytes[i] = uint8_t((i * 5 + shift) % 3 * 100);
    const unsigned bits = isa::to_bits(isa::load_mask<T>(bytes));
    for (int i = 0; i < L; ++i) expect((bits >> i & 1) == (bytes[i] != 0), "a loaded mask", i);
  }
}

void narrow_floats() {
  constexpr int L = isa::VFloat::kLanes;
  float a[L], back[L];
  BFloat16 narrow[L];
  for (int i = 0; i < L; ++i) a[i] = i == 1 ? NAN : 1.0f + float(i) * 0.00390625f - float(i % 3);
  isa::store_narrow(narrow, isa::VFloat::load(a));
  isa::load_as_float(narrow).store(back);
  for (int i = 0; i < L; ++i) expect(same(back[i], float(BFloat16(a[i]))), "bfloat16", i);
  for (int i = 0; i < L; ++i) expect(same(float(Half(a[i])), a[i], 0x1p-11), "float16", i);
}

void integers() {
  constexpr int L = isa::kGemmVecBytes / 2;
  int16_t a[L], b[L];
  int32_t got[L / 2];
  for (int i = 0; i < L; ++i) a[i] = int16_t(i * 1237 - 9000), b[i] = int16_t(7001 - i * 911);
  isa::gemm_store(got, isa::gemm_pairs(isa::gemm_load(a), isa::gemm_load(b)));
  for (int i = 0; i < L / 2; ++i)
    expect(got[i] == a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1], "a sum of two products", i);
}

int main() {
  floats<float>();
  floats<double>();
  narrow_floats();
  integers();
  return failures != 0;
}
