// Normal numbers from uniform ones, block by block, as PyTorch's AVX2 path rounds them: the polynomials of
// the Cephes Mathematical Library (Moshier, logf and sinf) in single precision, with the products fused where
// its compiler fuses them. Every fma is written out, so the numbers do not depend on the flags of this build.

#include "kernels/random/random.h"
#include "kernels/runtime/parallel.h"
#include "kernels/slot.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int kHalf = 8;          // element j of a block goes with j + 8
constexpr int64_t kGrain = 1024;  // blocks
constexpr float kSqrtHalf = 0x1.6a09e6p-1f;

[[gnu::always_inline]] inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// Of normal numbers above 0.
[[gnu::always_inline]] inline float log_cephes(float x) {
  const int32_t bits = __builtin_bit_cast(int32_t, x);
  const float half =
      __builtin_bit_cast(float, (bits & 0x007fffff) | 0x3f000000);  // the fraction, in [0.5, 1)
  const bool low = half < kSqrtHalf;
  const float e = float((bits >> 23) - (low ? 127 : 126));
  const float m = (half - 1.0f) + (low ? half : 0.0f), z = m * m;
  float y = 7.0376836292e-2f;
  y = fma(y, m, -1.1514610310e-1f);
  y = fma(y, m, 1.1676998740e-1f);
  y = fma(y, m, -1.2420140846e-1f);
  y = fma(y, m, 1.4249322787e-1f);
  y = fma(y, m, -1.6668057665e-1f);
  y = fma(y, m, 2.0000714765e-1f);
  y = fma(y, m, -2.4999993993e-1f);
  y = fma(y, m, 3.3333331174e-1f);
  y = fma(y * m, z, e * -2.12194440e-4f);  // ln 2 in two parts: -2.1e-4 + 0.693359375
  y = fma(-z, 0.5f, y);
  return fma(e, 0.693359375f, m + y);
}

// Of numbers from 0 to some thousands.
[[gnu::always_inline]] inline void sincos_cephes(float x, float& sine, float& cosine) {
  const int32_t octant = (int32_t(x * 1.27323954473516f) + 1) & ~1;
  const float turns = float(octant);
  float r = fma(turns, -0.78515625f, x);  // pi / 4 in three parts
  r = fma(turns, -2.4187564849853515625e-4f, r);
  r = fma(turns, -3.77489497744594108e-8f, r);
  const float z = r * r;
  float c = fma(2.443315711809948e-5f, z, -1.388731625493765e-3f);
  c = fma(c, z, 4.166664568298827e-2f);
  c = fma(c * z, z, z * -0.5f) + 1.0f;
  float s = fma(-1.9515295891e-4f, z, 8.3321608736e-3f);
  s = fma(s, z, -1.6666654611e-1f);
  s = fma(s * z, r, r);
  const bool swap = octant & 2;
  const float sin_part = swap ? c : s, cos_part = swap ? s : c;
  sine = octant & 4 ? -sin_part : sin_part;
  cosine = (octant + 2) & 4 ? -cos_part : cos_part;
}

// Box and Muller's transform of 8 pairs.
void block(float* data, float mean, float std) {
  for (int j = 0; j < kHalf; ++j) {
    const float radius = __builtin_sqrtf(-2.0f * log_cephes(1.0f - data[j]));
    float sine, cosine;
    sincos_cephes(0x1.921fb6p+2f * data[j + kHalf], sine, cosine);
    data[j] = fma(radius * cosine, std, mean);
    data[j + kHalf] = fma(radius * sine, std, mean);
  }
}

void normal(const LaunchContext&, const View& x, double mean, double std) {
  float* data = x.as<float>();
  cpu::parallel_for(x.numel() / (2 * kHalf), kGrain, [&](int64_t b, int64_t e) {
    for (; b < e; ++b) block(data + b * 2 * kHalf, float(mean), float(std));
  });
}
WT_KERNEL(normal, normal);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
