// The math set of the formulas on vectors. float has polynomials of its own, fitted at Chebyshev nodes in 50
// digits; the error in units in the last place, measured over sweeps, is beside each function. double has its
// own in vecmath_double.h.
#pragma once

#include "kernels/cpu/vector/vecmath_double.h"

namespace warptape::kernels::WARPTAPE_ISA {

// x * 2^n for integral n in [-300, 300]; two steps keep the subnormal results right.
WT_FN VFloat scale(VFloat x, VFloat n) {
#if defined(__AVX512F__)
  return {_mm512_scalef_ps(x.v, n.v)};
#else
  Raw<int32_t> i = __builtin_convertvector(n.v, Raw<int32_t>);
  Raw<int32_t> half = i >> 1;
  Raw<int32_t> rest = i - half;
  return {x.v * (Raw<float>)((half + 127) << 23) * (Raw<float>)((rest + 127) << 23)};
#endif
}

// x = n ln 2 + r with |r| <= ln(2) / 2.
struct ExpParts {
  VFloat n, r;
};
WT_FN ExpParts reduce_exp(VFloat x) {
  VFloat n = round(x * VFloat(1.44269504089f));
  VFloat r = fma(n, VFloat(-0x1.628p-1f), x);
  return {n, fma(n, VFloat(-0x1.90bfbep-11f), r)};
}
// (e^r - 1 - r) / r^2
WT_FN VFloat exp_tail(VFloat r) {
  return polynomial(r, VFloat(0.5f), VFloat(0.1666657599f), VFloat(0.04166655336f), VFloat(0.008363345811f),
                    VFloat(0.00139263919f));
}

WT_FN VFloat exp(VFloat x) {  // 1.1 ulp
  // The bounds lie beyond where the result is 0 or infinite; a NaN passes.
  VFloat c = minimum(maximum(x, VFloat(-105)), VFloat(90));
  ExpParts p = reduce_exp(c);
  return scale(fma(exp_tail(p.r), p.r * p.r, p.r) + VFloat(1), p.n);
}

WT_FN VFloat exp2(VFloat x) {
  VFloat c = minimum(maximum(x, VFloat(-151)), VFloat(129));
  VFloat n = round(c);
  VFloat r = (c - n) * VFloat(0.693147182f);
  return scale(fma(exp_tail(r), r * r, r) + VFloat(1), n);
}

WT_FN VFloat expm1(VFloat x) {
  VFloat c = minimum(maximum(x, VFloat(-30)), VFloat(89));
  ExpParts p = reduce_exp(c);
  VFloat m = fma(exp_tail(p.r), p.r * p.r, p.r);  // e^r - 1
  // 2^n m + (2^n - 1), with half of 2^n so that n = 128 does not overflow too early.
  VFloat s = scale(VFloat(0.5f), p.n);
  VFloat r = fma(s, m, s - VFloat(0.5f));
  return select(x == VFloat(0), x, r + r);
}

// x = m 2^e with m in [sqrt(1/2), sqrt(2)); x positive and finite.
struct LogParts {
  VFloat m, e;
};
WT_FN LogParts split_exponent(VFloat x) {
  Mask<float> tiny = x < VFloat(0x1p-126f);
  VFloat y = select(tiny, x * VFloat(0x1p24f), x);
  Raw<int32_t> i = as_int(y) - 0x3f3504f3;  // the bits of sqrt(1/2)
  VFloat e{__builtin_convertvector(i >> 23, Raw<float>)};
  VFloat m = from_int<float>((i & 0x7fffff) + 0x3f3504f3);
  return {m, e - select(tiny, VFloat(24), VFloat(0))};
}
// log(1 + f) - f
WT_FN VFloat log_tail(VFloat f) {
  VFloat p = polynomial(f, VFloat(0.3333333118f), VFloat(-0.2499999696f), VFloat(0.2000071575f),
                        VFloat(-0.1666780232f), VFloat(0.1424905765f), VFloat(-0.1242568733f),
                        VFloat(0.1168541992f), VFloat(-0.1147973385f), VFloat(0.06971611471f));
  VFloat z = f * f;
  return fma(p * f, z, z * VFloat(-0.5f));
}
// What a logarithm of x gives at 0, below 0, at infinity and for NaN.
WT_FN VFloat log_special(VFloat x, VFloat r) {
  r = select(x == VFloat(0), VFloat(-kInf), r);
  r = select(x < VFloat(0), VFloat(__builtin_nanf("")), r);
  return select(x < VFloat(kInf), r, x);
}

WT_FN VFloat log(VFloat x) {
  LogParts p = split_exponent(x);
  VFloat f = p.m - VFloat(1);
  VFloat r = fma(p.e, VFloat(0x1.90bfbep-11f), log_tail(f)) + f;
  return log_special(x, fma(p.e, VFloat(0x1.628p-1f), r));
}

// log in another base: hi + lo = 1 / ln(base), unit = log of 2 in it.
WT_FN VFloat log_in_base(VFloat x, VFloat hi, VFloat lo, VFloat unit_hi, VFloat unit_lo) {
  LogParts p = split_exponent(x);
  VFloat f = p.m - VFloat(1);
  VFloat t = log_tail(f);
  // The product of f with the constant in two parts, for it must not lose bits before the exponent is added.
  VFloat head = f * hi;
  VFloat error = fma(f, hi, -head);
  VFloat low = fma(f, lo, fma(t, hi, fma(p.e, unit_lo, error)));
  return log_special(x, fma(p.e, unit_hi, head + low));
}
WT_FN VFloat log2(VFloat x) {
  return log_in_base(x, VFloat(0x1.715476p+0f), VFloat(0x1.4ae0cp-26f), VFloat(1), VFloat(0));
}
WT_FN VFloat log10(VFloat x) {
  return log_in_base(x, VFloat(0x1.bcb7b2p-2f), VFloat(-0x1.5b235ep-27f), VFloat(0x1.344p-2f),
                     VFloat(0x1.3509f8p-18f));
}

WT_FN VFloat log1p(VFloat x) {
  VFloat u = x + VFloat(1);
  // What the sum lost: exactly recoverable, the larger operand first.
  VFloat lost = select(x > VFloat(1), VFloat(1) - (u - x), x - (u - VFloat(1)));
  LogParts p = split_exponent(u);
  VFloat f = (p.m - VFloat(1)) + scale(lost, -p.e);
  VFloat r = fma(p.e, VFloat(0x1.90bfbep-11f), log_tail(f)) + f;
  r = log_special(u, fma(p.e, VFloat(0x1.628p-1f), r));
  return select(abs(x) < VFloat(0x1p-25f), x, select(x == VFloat(kInf), x, r));
}

WT_FN VFloat tanh(VFloat x) {
  VFloat a = abs(x);
  VFloat t = expm1(minimum(a + a, VFloat(20)));
  return copysign(t / (t + VFloat(2)), x);
}
WT_FN VFloat sigmoid(VFloat x) { return VFloat(1) / (VFloat(1) + exp(-x)); }

WT_FN VFloat sinh(VFloat x) {
  VFloat a = abs(x);
  VFloat t = expm1(a);
  VFloat small = VFloat(0.5f) * (t + t / (t + VFloat(1)));
  VFloat h = exp(a * VFloat(0.5f));
  return copysign(select(a < VFloat(20), small, VFloat(0.5f) * h * h), x);
}
WT_FN VFloat cosh(VFloat x) {
  VFloat a = abs(x);
  VFloat t = exp(a);
  VFloat h = exp(a * VFloat(0.5f));
  return select(a < VFloat(20), VFloat(0.5f) * (t + VFloat(1) / t), VFloat(0.5f) * h * h);
}

WT_FN VFloat erf(VFloat x) {
  VFloat t = abs(x);
  VFloat z = minimum(x * x, VFloat(1));
  // erf(x) / x - 1, for 0.128... keeps more bits than 1.128...
  VFloat q = polynomial(z, VFloat(0.128379167f), VFloat(-0.3761263296f), VFloat(0.1128368307f),
                        VFloat(-0.02685868845f), VFloat(0.00519923503f), VFloat(-0.0008122038662f),
                        VFloat(8.282021685e-5f));
  VFloat small = fma(x, q, x);
  // log(erfc(t)) is smooth; beyond 4 the result is 1.
  VFloat c = minimum(t, VFloat(4.0f));
  VFloat l = polynomial(c, VFloat(0.0003204415313f), VFloat(-1.130237616f), VFloat(-0.6318145167f),
                        VFloat(-0.1100944808f), VFloat(0.0264310176f), VFloat(-0.004763575249f),
                        VFloat(0.000597743472f), VFloat(-4.617791279e-5f), VFloat(1.643569654e-6f));
  ExpParts p = reduce_exp(l);
  VFloat e = scale(fma(exp_tail(p.r), p.r * p.r, p.r) + VFloat(1), p.n);
  return select(t < VFloat(0.935f), small, copysign(VFloat(1) - e, x));
}

// x = q pi/2 + r; past the bound libm does it.
inline constexpr float kTrigBound = 30000.0f;
struct TrigParts {
  Raw<int32_t> q;
  VFloat sin, cos;  // of r
};
WT_FN TrigParts reduce_trig(VFloat x) {
  VFloat n = round(x * VFloat(0.636619772368f));
#if defined(WT_HAS_FMA)
  VFloat r = fma(n, VFloat(-0x1.921fb6p+0f), x);
  r = fma(n, VFloat(0x1.777a5cp-25f), r);
  r = fma(n, VFloat(0x1.ee59dap-50f), r);
#else
  // Parts of few enough bits that n times a part is exact.
  VFloat r = x - n * VFloat(0x1.92p+0f);
  r = r - n * VFloat(0x1.fb4p-12f);
  r = r - n * VFloat(0x1.444p-24f);
  r = r - n * VFloat(0x1.68c234p-39f);
#endif
  VFloat z = r * r;
  VFloat s = polynomial(z, VFloat(-0.1666666666f), VFloat(0.00833333187f), VFloat(-0.0001984008438f),
                        VFloat(2.724962008e-6f));
  VFloat c = polynomial(z, VFloat(0.04166666666f), VFloat(-0.001388888767f), VFloat(2.480059841e-5f),
                        VFloat(-2.730070404e-7f));
  return {__builtin_convertvector(n.v, Raw<int32_t>), fma(s * z, r, r),
          fma(c * z, z, fma(z, VFloat(-0.5f), VFloat(1)))};
}
WT_FN Mask<float> odd_quadrant(Raw<int32_t> q) { return from_int<float>((q & 1) << 23) != VFloat(0); }
WT_FN VFloat pick_quadrant(TrigParts p, Raw<int32_t> q) {
  VFloat r = select(odd_quadrant(q), p.cos, p.sin);
  return from_int<float>(as_int(r) ^ ((q & 2) << 30));
}
// `near` but in the lanes past the bound: a value does not depend on its neighbours.
template <class F>
WT_FN VFloat by_lane_if_far(VFloat x, VFloat near, F f) {
  if (!any(!(abs(x) <= VFloat(kTrigBound)))) return near;
  return by_lane(x, near, [f](float v, float r) { return __builtin_fabsf(v) <= kTrigBound ? r : f(v); });
}
WT_FN VFloat sin(VFloat x) {
  TrigParts p = reduce_trig(x);
  return by_lane_if_far(x, select(x == VFloat(0), x, pick_quadrant(p, p.q)),
                        [](float v) { return __builtin_sinf(v); });
}
WT_FN VFloat cos(VFloat x) {
  TrigParts p = reduce_trig(x);
  return by_lane_if_far(x, pick_quadrant(p, p.q + 1), [](float v) { return __builtin_cosf(v); });
}

// atan(num / den), 0 <= num <= den
WT_FN VFloat atan_of_quotient(VFloat num, VFloat den) {
  const VFloat t = num / den, z = t * t;
  const VFloat p = polynomial(z, VFloat(-0.3333333308f), VFloat(0.1999994932f), VFloat(-0.1428400379f),
                              VFloat(0.1108826163f), VFloat(-0.08931826776f), VFloat(0.07031914246f),
                              VFloat(-0.04896051397f), VFloat(0.02630500106f), VFloat(-0.009144629734f),
                              VFloat(0.001488691934f));
  return fma(p * z, t, t);
}
inline constexpr float kHalfPi = 1.57079637f, kHalfPiLow = -4.371139e-8f;
WT_FN VFloat atan(VFloat x) {
  const VFloat a = abs(x);
  const Mask<float> large = a > VFloat(1);
  const VFloat r = atan_of_quotient(select(large, VFloat(1), a), select(large, a, VFloat(1)));
  return copysign(select(large, (VFloat(kHalfPi) - r) + VFloat(kHalfPiLow), r), x);
}
WT_FN VFloat atan2(VFloat y, VFloat x) { return atan2_by_octants(y, x, VFloat(kHalfPi), VFloat(kHalfPiLow)); }

// asin(s), where s is |x| up to 1/2 and sqrt((1 - |x|) / 2) beyond, for asin(|x|) is pi/2 - 2 asin(s) there.
WT_FN VFloat asin_of_half(VFloat a, Mask<float> large) {
  const VFloat z = select(large, VFloat(0.5f) * (VFloat(1) - a), a * a);
  const VFloat s = select(large, sqrt(z), a);
  const VFloat p =
      polynomial(z, VFloat(0.16666666686085643f), VFloat(0.07499992404401837f), VFloat(0.044647663888135104f),
                 VFloat(0.03026913872858556f), VFloat(0.023611817008916063f), VFloat(0.010574415516834683f),
                 VFloat(0.030974540371451798f));
  return fma(p * z, s, s);
}
WT_FN VFloat asin(VFloat x) {
  const VFloat a = abs(x);
  const Mask<float> large = a > VFloat(0.5f);
  const VFloat r = asin_of_half(a, large);
  return copysign(select(large, (VFloat(kHalfPi) - (r + r)) + VFloat(kHalfPiLow), r), x);
}
WT_FN VFloat acos(VFloat x) {
  const VFloat a = abs(x);
  const Mask<float> large = a > VFloat(0.5f);
  const VFloat r = asin_of_half(a, large);
  const VFloat below = VFloat(kHalfPi) - (copysign(r, x) - VFloat(kHalfPiLow));
  const VFloat beyond =
      select(x < VFloat(0), VFloat(kHalfPi) - (r + r - VFloat(2 * kHalfPiLow)) + VFloat(kHalfPi), r + r);
  return select(large, beyond, below);
}

// ---- pow: log2 and exp2 in double on the two halves of the vector ----
WT_FN VDouble log2_of_positive(VDouble x) {
  Raw<int64_t> i = as_int(x) - 0x3fe6a09e667f3bcd;  // the bits of sqrt(1/2)
  Raw<int64_t> e = i >> 52;
  VDouble m = from_int<double>((i & 0xfffffffffffff) + 0x3fe6a09e667f3bcd);
  VDouble s = (m - VDouble(1)) / (m + VDouble(1));
  VDouble z = s * s;
  VDouble p =
      polynomial(z, VDouble(2.88539008177792731), VDouble(0.961796693924334559),
                 VDouble(0.577078017246328584), VDouble(0.412198402048275118), VDouble(0.320616388132248096),
                 VDouble(0.261444249352220437), VDouble(0.242916085399496405));
  return fma(s, p, VDouble(__builtin_convertvector(e, Raw<double>)));
}
WT_FN VDouble exp2_of_moderate(VDouble x) {
  VDouble c = minimum(maximum(x, VDouble(-400)), VDouble(400));  // beyond a float's range on both sides
  VDouble n = round(c);
  VDouble p = polynomial(c - n, VDouble(1.0), VDouble(0.693147180545933455), VDouble(0.240226506958129882),
                         VDouble(0.0555041094120593299), VDouble(0.00961812915940255819),
                         VDouble(0.00133334505680006457), VDouble(0.000154034558524538394),
                         VDouble(0.0000153100794022492974), VDouble(1.3255224878668817e-6));
  Raw<int64_t> i = __builtin_convertvector(n.v, Raw<int64_t>);
  return from_int<double>(as_int(p) + (i << 52));
}
// f in double on the two halves of the vectors.
template <class F>
WT_FN VFloat by_double_halves(VFloat x, VFloat y, F f) {
  typedef float HalfRaw __attribute__((vector_size(kVecBytes / 2)));
  union Halves {
    Raw<float> whole;
    HalfRaw half[2];
  } xs{x.v}, ys{y.v}, rs;
  for (int h = 0; h < 2; ++h) {
    VDouble a{__builtin_convertvector(xs.half[h], Raw<double>)};
    VDouble b{__builtin_convertvector(ys.half[h], Raw<double>)};
    rs.half[h] = __builtin_convertvector(f(a, b).v, HalfRaw);
  }
  return {rs.whole};
}
// The same for functions of one argument.
template <class F>
WT_FN VFloat by_double_halves(VFloat x, F f) {
  return by_double_halves(x, x, [f](VDouble a, VDouble) __attribute__((always_inline)) { return f(a); });
}
WT_FN VFloat pow_of_positive(VFloat x, VFloat y) {
  return by_double_halves(x, y, [](VDouble a, VDouble b) __attribute__((always_inline)) {
    return exp2_of_moderate(log2_of_positive(a) * b);
  });
}

WT_FN VFloat pow(VFloat x, VFloat y) { return pow_special(x, y, pow_of_positive(abs(x), y)); }

// x - n pi/2 = r + low, for a tangent has the error of r up to twice.
struct TanParts {
  VFloat r, low;
};
WT_FN TanParts reduce_tan(VFloat x, VFloat n) {
#if defined(WT_HAS_FMA)
  const VFloat first = fma(n, VFloat(-0x1.921fb6p+0f), x), second = n * VFloat(0x1.777a5cp-25f);
  const VFloat second_low = fma(n, VFloat(0x1.777a5cp-25f), -second), sum = first + second;
  const VFloat low = (second - (sum - first)) + fma(n, VFloat(0x1.ee59dap-50f), second_low), r = sum + low;
  return {r, (sum - r) + low};
#else
  return {by_double_halves(x, n,
                           [](VDouble a, VDouble m) __attribute__((always_inline)) {
                             return fma(m, VDouble(-6.07710050650619224932e-11),
                                        fma(m, VDouble(-1.57079632673412561417e+00), a));
                           }),
          VFloat(0)};
#endif
}
// A polynomial of tan(r) / r.
WT_FN VFloat tan(VFloat x) {
  const VFloat n = round(x * VFloat(0.636619772368f));
  const TanParts parts = reduce_tan(x, n);
  const VFloat r = parts.r, low = parts.low, z = r * r;
  const VFloat s =
      polynomial(z, VFloat(0.33333333286513495f), VFloat(0.13333343020039173f), VFloat(0.05396499233376495f),
                 VFloat(0.02191093353095914f), VFloat(0.008607932619133096f), VFloat(0.004428756070062182f),
                 VFloat(-4.420234494459825e-06f), VFloat(0.0017914671978926052f));
  const VFloat tail = fma(s * z, r, fma(low, z, low)), t = r + tail;
  const Mask<float> odd = odd_quadrant(__builtin_convertvector(n.v, Raw<int32_t>));
  // The reciprocal of t with what its rounding lost.
  const VFloat q = select(odd, VFloat(-1), t) / select(odd, t, VFloat(1));
  const VFloat found = fma(select(odd, tail - (t - r), VFloat(0)) * q, q, q);
  return by_lane_if_far(x, select(x == VFloat(0), x, found), [](float v) { return __builtin_tanf(v); });
}
WT_FN VFloat atanh(VFloat x) {
  const VFloat a = abs(x);
  const VFloat r = by_double_halves(a, [](VDouble v) __attribute__((always_inline)) {
    return log2_of_positive((VDouble(1) + v) / (VDouble(1) - v)) * VDouble(0.34657359027997265);
  });
  const VFloat special = select(a == VFloat(1), VFloat(kInf), VFloat(__builtin_nanf("")));
  return select(a < VFloat(0x1p-12f), x, copysign(select(a < VFloat(1), r, special), x));
}
// 2^-x of 0 <= x < 1000 to 29 bits.
WT_FN VDouble exp2_of_negative(VDouble x) {
  const VDouble whole = VDouble(0x1.8p52) - x, f = (VDouble(0x1.8p52) - whole) - x;
  const VDouble p = series(f, 1.0, 0.6931472067028326, 0.24022650922288757, 0.05550327226670302,
                           0.009618056678524637, 0.0013400428177615838, 0.0001546144469856913);
  return from_int<double>(as_int(p) + (as_int(whole) << 52));
}
// e^(-x^2) times a polynomial in t = 1 / (1 + x / 2), which is made exact from a quotient in float.
WT_FN VFloat erfc(VFloat x) {
  const VFloat a = minimum(abs(x), VFloat(11)), guess = VFloat(1) / fma(a, VFloat(0.5f), VFloat(1));
  const VFloat r = by_double_halves(a, guess, [](VDouble v, VDouble g) __attribute__((always_inline)) {
    const VDouble t = fma(g, VDouble(1) - g * fma(v, VDouble(0.5), VDouble(1)), g);
    const VDouble p =
        series(t, 0.2820991366478081, 0.2819578717872462, 0.24873276881321585, 0.16096846003931628,
               0.16392693290202787, -0.28915187681344323, 0.6419620787216904, -1.2252351616056543,
               1.2737716542168065, -0.7408664485444532, 0.23320078069958833, -0.03136619691720525);
    return t * p * exp2_of_negative(v * v * VDouble(1.44269504088896340736));
  });
  return select(x < VFloat(0), VFloat(2) - r, r);
}
// As in double, without the step.
WT_FN VFloat erfinv(VFloat y) {
  const VFloat a = abs(y);
  const VFloat r = by_double_halves(a, [](VDouble v) __attribute__((always_inline)) {
    const VDouble q = (VDouble(1) - v) * (VDouble(1) + v);
    const VDouble w = log2_of_positive(q) * VDouble(-0.69314718055994530942), s = sqrt(w) - VDouble(3);
    const VDouble tail =
        series(s, 2.83297679976377, 1.0016752531292668, 0.009445443365582274, -0.007643088993355133,
               0.0056859839369621, -0.0035650649794628096, 0.0014822591285224029, -0.00012616046585709107,
               -0.000289637721259314, 0.0001699211447094426, -2.221207980767413e-05, -5.699473883532956e-06);
    return v * select(w < VDouble(5), erfinv_central(w), tail);
  });
  const VFloat special = select(a == VFloat(1), VFloat(kInf), VFloat(__builtin_nanf("")));
  return copysign(select(a < VFloat(1), r, special), y);
}
WT_FN VFloat hypot(VFloat x, VFloat y) {
  const VFloat r = by_double_halves(
      x, y, [](VDouble a, VDouble b) __attribute__((always_inline)) { return sqrt(fma(a, a, b * b)); });
  return select(isinf(x) | isinf(y), VFloat(kInf), r);
}
// Stirling's series at y + 8 or beyond, less the logarithm of y (y + 1) .. (y + 7); reflected below 1/2.
WT_FN VDouble lgamma_of_float(VDouble x) {
  const Mask<double> reflected = x < VDouble(0.5);
  const VDouble from = select(reflected, VDouble(1) - x, x);
  const Mask<double> raised = from < VDouble(8);
  VDouble product(1);
  for (int k = 0; k < 8; ++k) product = product * (from + VDouble(k));
  product = select(raised, product, VDouble(1));
  const VDouble y = select(raised, from + VDouble(8), from), inverse = VDouble(1) / y;
  const VDouble tail = inverse * series(inverse * inverse, 1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680,
                                        1.0 / 1188, -691.0 / 360360, 1.0 / 156);
  const VDouble stirling = fma(y - VDouble(0.5), log(y), VDouble(0.91893853320467274178) + tail - y);
  const VDouble fraction = abs(x - round(x));
  const TrigParts64 sine = reduce_trig(VDouble(3.14159265358979323846) * fraction);
  const VDouble s = abs(pick_quadrant(sine, sine.q));
  const VDouble l = log(select(reflected, VDouble(3.14159265358979323846) * product / s, product));
  const VDouble r = select(reflected, l - stirling, stirling - l);
  const Mask<double> root = (x == VDouble(1)) | (x == VDouble(2));
  return select(root, VDouble(0), select(isinf(x), VDouble(kInf), r));
}
WT_FN_OUTLINED VFloat lgamma(VFloat x) {
  return by_double_halves(x, [](VDouble v) __attribute__((always_inline)) { return lgamma_of_float(v); });
}

template <class V> inline constexpr bool kIsInteger = false;
template <> inline constexpr bool kIsInteger<VInt> = true;

// ---- integers: lane by lane; a zero divisor gives 0 here and is reported by the driver ----
WT_FN int64_t trunc_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  return b == -1 ? int64_t(0 - uint64_t(a)) : a / b;
}
WT_FN int64_t fmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
WT_FN int64_t remainder(int64_t a, int64_t b) {
  int64_t r = fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
WT_FN int64_t floor_divide(int64_t a, int64_t b) {
  int64_t r = fmod(a, b);
  return trunc_divide(a, b) - (r != 0 && (r < 0) != (b < 0));
}
WT_FN int64_t pow(int64_t a, int64_t b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
  uint64_t r = 1, base = uint64_t(a);
  for (; b; b >>= 1, base *= base)
    if (b & 1) r *= base;
  return int64_t(r);
}
#define WT_LANES(name)                                                     \
  WT_FN VInt name(VInt a, VInt b) {                                        \
    return by_lane(a, b, [](int64_t x, int64_t y) { return name(x, y); }); \
  }
WT_LANES(trunc_divide)
WT_LANES(fmod)
WT_LANES(remainder)
WT_LANES(floor_divide)
WT_LANES(pow)
#undef WT_LANES
// A shift by more bits than there are, or by a negative count, moves all bits out.
WT_FN Mask<int64_t> shifts_out(VInt b) { return (b < VInt(0)) | (b > VInt(63)); }
WT_FN VInt shift_left(VInt a, VInt b) { return select(shifts_out(b), VInt(0), a << (b & VInt(63))); }
WT_FN VInt shift_right(VInt a, VInt b) { return a >> select(shifts_out(b), VInt(63), b); }

// ---- lane by lane ----
#define WT_LANES(name)                                                 \
  WT_FN VFloat name(VFloat a) {                                        \
    return by_lane(a, [](float v) { return __builtin_##name##f(v); }); \
  }
WT_LANES(asinh)
WT_LANES(acosh)
#undef WT_LANES

// Where the quotient is below `limit`, its product with b is exact and so is the remainder; elsewhere libm
// takes over.
WT_FN VDouble fmod_below(VDouble a, VDouble b, double limit) {
  const VDouble quotient = a / b;
  if (any(abs(quotient) >= VDouble(limit)))
    return by_lane(a, b, [](double x, double y) { return __builtin_fmod(x, y); });
  const VDouble q = trunc(quotient);
  VDouble r = fma(-q, b, a);
  // A quotient that was rounded up to an integer leaves a remainder of the wrong sign.
  const Mask<double> wrong = (r != VDouble(0)) & ((r < VDouble(0)) ^ (a < VDouble(0)));
  r = copysign(select(wrong, r + copysign(abs(b), a), r), a);
  return select(isinf(b) & isfinite(a), a, r);
}
WT_FN VDouble fmod(VDouble a, VDouble b) {
#if defined(WT_HAS_FMA)
  return fmod_below(a, b, 0x1p52);
#else
  return by_lane(a, b, [](double x, double y) { return __builtin_fmod(x, y); });
#endif
}
WT_FN VFloat fmod(VFloat a, VFloat b) {
  return by_double_halves(
      a, b, [](VDouble x, VDouble y) __attribute__((always_inline)) { return fmod_below(x, y, 0x1p29); });
}
// lgamma writes the global signgam; the reentrant one does not.
extern "C" double lgamma_r(double, int*);
WT_FN double lgamma_of(double x) {
  int sign;
  return lgamma_r(x, &sign);
}

// Digamma: reflected to x > 0, raised to x >= 10, then the asymptotic series (Abramowitz and
// Stegun 6.3.5-6.3.18).
WT_FN double digamma_of(double x) {
  if (x == 0) return -__builtin_copysign(__builtin_inf(), x);
  double r = 0;
  if (x < 0) {
    if (x == __builtin_trunc(x)) return __builtin_nan("");
    double f = x - __builtin_trunc(x);  // the tangent has period 1, so only the fraction counts
    constexpr double kPi = 3.14159265358979323846;
    r = -kPi / __builtin_tan(kPi * f);
    x = 1 - x;
  }
  for (; x < 10; x += 1) r -= 1 / x;
  double z = 1 / (x * x);
  double tail =
      z * (1.0 / 12 -
           z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760))))));
  return r + __builtin_log(x) - 0.5 / x - tail;
}
// x^-s for an integer s >= 1.
WT_FN VDouble inverse_power(VDouble x, VDouble s) {
  constexpr int kFactors = 8;  // at most, for each rounds
  VDouble p = x;
  for (int k = 2; k <= kFactors && any(s >= VDouble(k)); ++k) p = select(s >= VDouble(k), p * x, p);
  const Mask<double> large = s > VDouble(kFactors);
  return VDouble(1) / (any(large) ? select(large, pow(x, s), p) : p);
}
// Derivative n >= 1 of digamma: (-1)^(n+1) n! zeta(n + 1, x), the Hurwitz zeta by ten terms and the
// Euler-Maclaurin formula (Abramowitz and Stegun 23.2.9, with B(2k) / (2k)!). Not for x <= 0, except that the
// poles are infinite.
WT_FN_OUTLINED VDouble polygamma(VDouble x, VDouble n) {
  constexpr double kBernoulli[] = {1.0 / 12,          -1.0 / 720,
                                   1.0 / 30240,       -1.0 / 1209600,
                                   1.0 / 47900160,    -691.0 / 1307674368000,
                                   1.0 / 74724249600, -3617.0 / 10670622842880000};
  const VDouble s = n + VDouble(1), given = x;
  const auto below = [](VDouble v) { return (v < VDouble(0)) & (v != floor(v)); };
  VDouble zeta(0), factorial(1);
  for (Mask<double> m = below(x); any(m); m = below(x)) {
    zeta = select(m, zeta + inverse_power(x, s), zeta);
    x = select(m, x + VDouble(1), x);
  }
  for (int k = 0; k < 10; ++k, x += VDouble(1)) zeta += inverse_power(x, s);
  const VDouble base = inverse_power(x, s), inverse = VDouble(1) / x, square = inverse * inverse;
  zeta += x * base / n + base * VDouble(0.5);
  VDouble factor = s * base * inverse;
  for (int k = 0; k < 8; ++k) {
    zeta = fma(VDouble(kBernoulli[k]), factor, zeta);
    factor = factor * ((s + VDouble(2 * k + 1)) * (s + VDouble(2 * k + 2)) * square);
  }
  for (int k = 2; any(VDouble(k) <= n); ++k)
    factorial = select(VDouble(k) <= n, factorial * VDouble(k), factorial);
  const Mask<double> odd = floor(n * VDouble(0.5)) * VDouble(2) != n;
  const VDouble r = select(given == VDouble(kInf), VDouble(0), select(odd, factorial, -factorial) * zeta);
  return any(n == VDouble(0)) ? select(n == VDouble(0), by_lane(given, digamma_of), r) : r;
}
WT_FN VFloat polygamma(VFloat x, VFloat n) {
  return by_double_halves(
      x, n, [](VDouble a, VDouble b) __attribute__((always_inline)) { return polygamma(a, b); });
}
}  // namespace warptape::kernels::WARPTAPE_ISA

#include "kernels/elementwise/gamma.h"

namespace warptape::kernels::WARPTAPE_ISA {

#define WT_GAMMA(name, upper)                                                        \
  template <class T>                                                                 \
  WT_FN Vec<T> name(Vec<T> a, Vec<T> x) {                                            \
    return by_lane(a, x, [](T p, T q) { return T(incomplete_gamma(p, q, upper)); }); \
  }
WT_GAMMA(igamma, false)
WT_GAMMA(igammac, true)
#undef WT_GAMMA
#define WT_LANES(name, of)                                   \
  template <class T>                                         \
  WT_FN Vec<T> name(Vec<T> a) {                              \
    return by_lane(a, [](T v) { return T(of(double(v))); }); \
  }
WT_LANES(lgamma, lgamma_of)  // of double
WT_LANES(digamma, digamma_of)
#undef WT_LANES

}  // namespace warptape::kernels::WARPTAPE_ISA
