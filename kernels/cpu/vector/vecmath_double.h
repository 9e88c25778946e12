// The math set of the formulas on vectors of double; tests/arch/vector_math.cpp has the bound of each error.
// Coefficients named "fdlibm" are those of Sun's library (netlib.org/fdlibm), "Cephes" those of Moshier's
// (netlib.org/cephes); others are fitted at Chebyshev nodes in 50 digits. What has no version here goes to
// libm lane by lane.
#pragma once

#include "kernels/cpu/vector/vec.h"

namespace warptape::kernels::WARPTAPE_ISA {

// c0 + c1 x + ... by Horner's rule.
template <class... C>
WT_FN VDouble series(VDouble x, C... c) {
  return polynomial(x, VDouble(c)...);
}
// The integer n, |n| < 2^51, in the low bits of the lanes.
WT_FN Raw<int64_t> low_bits(VDouble n, double bias) { return as_int(n + VDouble(0x1.8p52 + bias)); }

// a * b - p, where p is the rounded product of a and b: exact.
WT_FN VDouble product_error(VDouble a, VDouble b, VDouble p) {
#if defined(WT_HAS_FMA)
  return fma(a, b, -p);
#else
  // Dekker's halves of 26 bits.
  const VDouble ah = from_int<double>(as_int(a) & ~0x7ffffff), bh = from_int<double>(as_int(b) & ~0x7ffffff);
  const VDouble al = a - ah, bl = b - bh;
  return ((ah * bh - p) + ah * bl + al * bh) + al * bl;
#endif
}

// x * 2^n for integral n in [-1100, 1100]; two steps keep the subnormal results right.
WT_FN VDouble scale(VDouble x, VDouble n) {
#if defined(__AVX512F__)
  return {_mm512_scalef_pd(x.v, n.v)};
#else
  const VDouble half = floor(n * VDouble(0.5));
  const VDouble first = from_int<double>(low_bits(half, 1023) << 52);
  return x * first * from_int<double>(low_bits(n - half, 1023) << 52);
#endif
}

inline constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;  // fdlibm

// (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2
WT_FN VDouble exp_tail(VDouble r) {
  return series(r, 0.5, 0.16666666666666669, 0.041666666666623824, 0.008333333333330039,
                0.0013888888917367081, 0.00019841269863171557, 2.4801521057868204e-05, 2.7557268276905696e-06,
                2.7620201591031547e-07, 2.5100472505694996e-08);
}
// x = n ln 2 + r; m = e^r - 1.
struct ExpParts64 {
  VDouble n, m;
};
WT_FN ExpParts64 reduce_exp(VDouble x, VDouble low = VDouble(0)) {
  const VDouble n = round(x * VDouble(1.44269504088896340736));
  VDouble r = fma(n, VDouble(-kLn2High), x);
  r = fma(n, VDouble(-kLn2Low), r) + low;
  return {n, fma(exp_tail(r), r * r, r)};
}
// e^(x + low), the bounds beyond where it is 0 or infinite; a NaN passes.
WT_FN VDouble exp_of_sum(VDouble x, VDouble low) {
  const ExpParts64 p = reduce_exp(minimum(maximum(x, VDouble(-746)), VDouble(710)), low);
  return scale(p.m + VDouble(1), p.n);
}
WT_FN VDouble exp(VDouble x) { return exp_of_sum(x, VDouble(0)); }
WT_FN VDouble exp2(VDouble x) {
  const VDouble c = minimum(maximum(x, VDouble(-1076)), VDouble(1025));
  const VDouble n = round(c);
  return scale(reduce_exp((c - n) * VDouble(0.69314718055994530942)).m + VDouble(1), n);
}
WT_FN VDouble expm1(VDouble x) {
  const ExpParts64 p = reduce_exp(minimum(maximum(x, VDouble(-60)), VDouble(710)));
  // 2^n m + (2^n - 1), with half of 2^n so that n = 1024 does not overflow too early.
  const VDouble s = scale(VDouble(0.5), p.n);
  const VDouble r = fma(s, p.m, s - VDouble(0.5));
  return select(x == VDouble(0), x, r + r);
}
WT_FN VDouble sigmoid(VDouble x) { return VDouble(1) / (VDouble(1) + exp(-x)); }

// log(1 + f) = f - half + s (half + tail) with 1 + f in [sqrt(1/2), sqrt(2)), by s = f / (2 + f) (fdlibm).
struct LogTail64 {
  VDouble s, half, tail;
};
WT_FN LogTail64 log_tail(VDouble f) {
  const VDouble s = f / (f + VDouble(2)), z = s * s, half = VDouble(0.5) * f * f;
  const VDouble tail =
      z * series(z, 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                 2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                 1.479819860511658591e-01);
  return {s, half, tail};
}
// log((1 + f) 2^e) + low
WT_FN VDouble log_of_parts(VDouble f, VDouble e, VDouble low) {
  const LogTail64 t = log_tail(f);
  const VDouble small = fma(t.s, t.half + t.tail, fma(e, VDouble(kLn2Low), low));
  return fma(e, VDouble(kLn2High), f - (t.half - small));
}
struct LogParts64 {
  VDouble m, e;
};
WT_FN LogParts64 split_exponent(VDouble x) {
  const Mask<double> tiny = x < VDouble(0x1p-1022);
  const Raw<int64_t> i = as_int(select(tiny, x * VDouble(0x1p54), x)) - 0x3fe6a09e667f3bcd;  // of sqrt(1/2)
  // The exponent as the low bits of a double, for few machines convert integers of 64 bits.
  const auto biased = (Raw<int64_t>)((Raw<uint64_t>)(i + 0x4000000000000000) >> 52);
  const VDouble e = from_int<double>(biased | 0x4330000000000000) - VDouble(0x1p52 + 1024);
  const VDouble m = from_int<double>((i & 0xfffffffffffff) + 0x3fe6a09e667f3bcd);
  return {m, e - select(tiny, VDouble(54), VDouble(0))};
}
WT_FN VDouble log_special(VDouble x, VDouble r) {
  r = select(x == VDouble(0), VDouble(-kInf), r);
  r = select(x < VDouble(0), VDouble(__builtin_nan("")), r);
  return select(x < VDouble(kInf), r, x);
}
WT_FN VDouble log(VDouble x) {
  const LogParts64 p = split_exponent(x);
  return log_special(x, log_of_parts(p.m - VDouble(1), p.e, VDouble(0)));
}
// log in another base: hi + lo = 1 / ln(base), unit = log of 2 in it; hi and unit_hi have few enough bits
// that their products here are exact.
WT_FN VDouble log_in_base(VDouble x, VDouble hi, VDouble lo, VDouble unit_hi, VDouble unit_lo) {
  const LogParts64 p = split_exponent(x);
  const VDouble f = p.m - VDouble(1);
  const LogTail64 t = log_tail(f);
  const VDouble head = from_int<double>(as_int(f - t.half) & ~int64_t{0xffffffff});
  const VDouble rest = fma(t.s, t.half + t.tail, (f - head) - t.half);
  const VDouble product = head * hi, whole = p.e * unit_hi, sum = whole + product;
  const VDouble low = fma(rest + head, lo, fma(rest, hi, fma(p.e, unit_lo, (whole - sum) + product)));
  return log_special(x, sum + low);
}
WT_FN VDouble log2(VDouble x) {
  return log_in_base(x, VDouble(0x1.71547652p+0), VDouble(0x1.705fc2eefa2p-33), VDouble(1), VDouble(0));
}
WT_FN VDouble log10(VDouble x) {
  return log_in_base(x, VDouble(0x1.bcb7b152p-2), VDouble(0x1.b9438ca9aadd5p-36), VDouble(0x1.34413509f6p-2),
                     VDouble(0x1.9fef311f12b36p-42));
}
WT_FN VDouble log1p_of_sum(VDouble x, VDouble low) {  // low is what x was rounded by
  const VDouble u = x + VDouble(1);
  const VDouble lost = select(x > VDouble(1), VDouble(1) - (u - x), x - (u - VDouble(1)));
  const LogParts64 p = split_exponent(u);
  const Mask<double> near = p.e == VDouble(0);  // the sum adds nothing there
  const VDouble f = select(near, x, p.m - VDouble(1));
  const VDouble r = log_of_parts(f, p.e, (select(near, VDouble(0), lost) + low) / u);
  return select(x == VDouble(0), x, log_special(select(x == VDouble(kInf), x, u), r));
}
WT_FN VDouble log1p(VDouble x) { return log1p_of_sum(x, VDouble(0)); }
// Half of log(1 + 2 a / (1 - a)).
WT_FN VDouble atanh(VDouble x) {
  const VDouble a = abs(x), top = a + a, bottom = VDouble(1) - a, bottom_low = (VDouble(1) - bottom) - a;
  const VDouble inverse = VDouble(1) / bottom, q = top * inverse, product = q * bottom;
  const VDouble residual = (top - product) - product_error(q, bottom, product);
  const VDouble low = fma(-q, bottom_low, residual) * inverse;
  const VDouble r = log1p_of_sum(q, select(a < VDouble(1), low, VDouble(0)));
  return copysign(VDouble(0.5) * r, x);
}

// x^y, where r is |x|^y but for zero and infinite bases and infinite exponents; NaNs come out of the
// arithmetic.
template <class T>
WT_FN Vec<T> pow_special(Vec<T> x, Vec<T> y, Vec<T> r) {
  using V = Vec<T>;
  const V a = abs(x), one(1), inf(kInf), zero(0);
  const Mask<T> grows = (a > one) ^ (y < zero), edge = (a == zero) | (a == inf) | isinf(y);
  r = select(edge, select(grows, inf, zero), r);
  const Mask<T> integral = trunc(y) == y;
  const Mask<T> odd =
      integral & (trunc(y * V(0.5f)) * V(2) != y) & (abs(y) < V(sizeof(T) == 8 ? 0x1p53 : 0x1p24));
  r = select(is_negative_bit(x) & odd, -r, r);
  r = select((x < zero) & !integral & (a != inf), V(__builtin_nanf("")), r);
  r = select(isnan(x) | isnan(y), x + y, r);
  return select((y == zero) | (x == one) | ((a == one) & isinf(y)), one, r);
}
#if defined(WT_HAS_FMA)
// 2^(y log2(x)) of positive finite x, the logarithm in two doubles: by atanh(s) = s (1 + z q) with
// s = f / (2 + f) and z = s^2.
WT_FN VDouble pow_of_positive(VDouble x, VDouble y) {
  const LogParts64 p = split_exponent(x);
  const VDouble f = p.m - VDouble(1), d = f + VDouble(2), d_low = f - (d - VDouble(2)),
                inverse = VDouble(1) / d;
  const VDouble s = f * inverse, s_low = fma(-s, d_low, fma(-s, d, f)) * inverse;
  const VDouble z = s * s, z_low = fma(s, s, -z) + (s + s) * s_low;
  const VDouble u =
      z * series(z, 0.2, 0.14285714285714682, 0.11111111110828116, 0.09090909167657202, 0.07692297485447729,
                 0.06667402119112673, 0.05853124270461193, 0.058615255140488765);
  const VDouble third(1.0 / 3), q = third + u, q_low = ((third - q) + u) + VDouble(0x1.5555555555555p-56);
  const VDouble w = z * q, w_low = fma(z, q, -w) + fma(z, q_low, z_low * q);
  const VDouble v = s * w, v_low = fma(s, w, -v) + fma(s, w_low, s_low * w);
  const VDouble h = s + v, h_low = ((s - h) + v) + (v_low + s_low);
  const VDouble unit(0x1.71547652b82fep+1);  // 2 / ln(2)
  const VDouble g = h * unit, g_low = fma(h, unit, -g) + fma(h, VDouble(0x1.777d0ffda0d24p-55), h_low * unit);
  const VDouble l = p.e + g, l_low = ((p.e - l) + g) + g_low, e = y * l;
  const VDouble e_low = select(abs(e) < VDouble(1100), fma(y, l, -e) + y * l_low, VDouble(0));
  const VDouble c = minimum(maximum(e, VDouble(-1100)), VDouble(1100)), n = round(c), r = c - n;
  const VDouble ln2(0x1.62e42fefa39efp-1), head = r * ln2;
  const VDouble low = fma(r, ln2, -head) + fma(r, VDouble(0x1.abc9e3b39803fp-56), e_low * ln2);
  const VDouble tail = exp_tail(head) * (head * head), sum = VDouble(1) + head;
  return scale(sum + (fma(low, sum + tail, (VDouble(1) - sum) + head) + tail), n);
}
WT_FN VDouble pow(VDouble x, VDouble y) { return pow_special(x, y, pow_of_positive(abs(x), y)); }
#else
WT_FN VDouble pow(VDouble x, VDouble y) {
  return by_lane(x, y, [](double a, double b) { return __builtin_pow(a, b); });
}
#endif

// Below 0.625 by Cephes' quotient of polynomials; beyond, 1 - 2 / (e^2x + 1). One division serves both.
WT_FN VDouble tanh(VDouble x) {
  const VDouble a = abs(x), z = x * x;
  const VDouble p =
      series(z, -1.61468768441708447952e3, -9.92877231001918586564e1, -9.64399179425052238628e-1);
  const VDouble q =
      series(z, 4.84406305325125486048e3, 2.23548839060100448583e3, 1.12811678491632931402e2, 1.0);
  const VDouble e = exp(minimum(a + a, VDouble(60)));
  const Mask<double> small = a < VDouble(0.625);
  const VDouble r = select(small, z * p, VDouble(-2)) / select(small, q, e + VDouble(1));
  const VDouble base = select(small, a, VDouble(1));
  return copysign(fma(select(small, a, VDouble(1)), r, base), x);
}
// e^a / 2, which overflows where the hyperbolic functions do.
WT_FN VDouble half_exp(VDouble a) {
  const ExpParts64 p = reduce_exp(minimum(a, VDouble(712)));
  return scale(p.m + VDouble(1), p.n - VDouble(1));
}
WT_FN VDouble sinh(VDouble x) {
  const VDouble a = abs(x), h = half_exp(a);
  const VDouble z = minimum(a * a, VDouble(1));
  const VDouble small = fma(
      z * a,
      series(z, 0.16666666666666666, 0.008333333333333333, 0.00019841269841269773, 2.755731922404034e-06,
             2.505210836405804e-08, 1.6059048396350562e-10, 7.646625361656656e-13, 2.8445264169895616e-15),
      a);
  return copysign(select(a < VDouble(1), small, h - VDouble(0.25) / h), x);
}
WT_FN VDouble cosh(VDouble x) {
  const VDouble h = half_exp(abs(x));
  return h + VDouble(0.25) / h;
}

// Cephes' quotients: erf(x) = x + x (T - U) / U below 1; erfc(a) = e^(-a^2) times P / Q up to 8, R / S
// beyond.
template <bool Complement>
WT_FN VDouble erf_or_erfc(VDouble x) {
  const VDouble a = minimum(abs(x), VDouble(Complement ? 28 : 6)), z = a * a;
  const Mask<double> small = a < VDouble(1);
  const VDouble u = series(z, 4.92673942608635921086e4, 2.26290000613890934246e4, 4.59432382970980127987e3,
                           5.21357949780152679795e2, 3.35617141647503099647e1, 1.0);
  const VDouble top = series(z, 5.55923013010394962768e4 - 4.92673942608635921086e4,
                             7.00332514112805075473e3 - 2.26290000613890934246e4,
                             2.23200534594684319226e3 - 4.59432382970980127987e3,
                             9.00260197203842689217e1 - 5.21357949780152679795e2,
                             9.60497373987051638749e0 - 3.35617141647503099647e1, -1.0);
  VDouble p = series(a, 5.57535335369399327526e2, 1.02755188689515710272e3, 9.34528527171957607540e2,
                     5.26445194995477358631e2, 1.96520832956077098242e2, 4.86371970985681366614e1,
                     7.46321056442269912687e0, 5.64189564831068821977e-1, 2.46196981473530512524e-10);
  VDouble q = series(a, 5.57535340817727675546e2, 1.65666309194161350182e3, 2.24633760818710981792e3,
                     1.82390916687909736289e3, 9.75708501743205489753e2, 3.54937778887819891062e2,
                     8.67072140885989742329e1, 1.32281951154744992508e1, 1.0);
  if constexpr (Complement) {
    const Mask<double> far = a >= VDouble(8);
    p = select(far,
               series(a, 2.97886665372100240670e0, 7.40974269950448939160e0, 6.16021097993053585195e0,
                      5.01905042251180477414e0, 1.27536670759978104416e0, 5.64189583547755073984e-1),
               p);
    q = select(far,
               series(a, 3.36907645100081516050e0, 9.60896809063285878198e0, 1.70814450747565897222e1,
                      1.20489539808096656605e1, 9.39603524938001434673e0, 2.26052863220117276590e0, 1.0),
               q);
  }
  const VDouble e = exp_of_sum(-z, Complement ? -product_error(a, a, z) : VDouble(0));
  const VDouble r = select(small, x * top, p) / select(small, u, q);
  // The factor last, for it may be subnormal.
  const VDouble tail = r * e;
  if constexpr (Complement)
    return select(small, (VDouble(1) - x) - r, select(x < VDouble(0), VDouble(2) - tail, tail));
  else
    return select(small, x + r, copysign(VDouble(1) - tail, x));
}
WT_FN VDouble erf(VDouble x) { return erf_or_erfc<false>(x); }
WT_FN VDouble erfc(VDouble x) { return erf_or_erfc<true>(x); }

// x = q pi/2 + r + low, by Cody and Waite's method with pi/2 in 33 + 33 + 53 bits (fdlibm): n times each of
// the first two is exact. Past the bound libm does it.
inline constexpr double kTrigBound64 = 30000;
struct TrigParts64 {
  Raw<int64_t> q;
  VDouble sin, cos;          // of r + low
  VDouble sin_low, cos_low;  // what their rounding lost
};
WT_FN TrigParts64 reduce_trig(VDouble x) {
  const VDouble n = round(x * VDouble(0.63661977236758134308));
  const VDouble first = fma(n, VDouble(-1.57079632673412561417e+00), x);
  const VDouble second = n * VDouble(6.07710050630396597660e-11);
  const VDouble r = first - second;
  const VDouble low = fma(n, VDouble(-2.02226624879595063154e-21), (first - r) - second);
  const VDouble z = r * r, half = VDouble(0.5) * z;
  // fdlibm's kernels.
  const VDouble s =
      series(z, -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
             2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10);
  const VDouble c =
      series(z, 4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
             -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11);
  const VDouble s_tail = fma(z * r, s, fma(-half, low, low));
  const VDouble w = VDouble(1) - half;
  const VDouble c_tail = ((VDouble(1) - w) - half) + fma(z * z, c, -(r * low));
  const VDouble sin = r + s_tail, cos = w + c_tail;
  return {low_bits(n, 0), sin, cos, s_tail - (sin - r), c_tail - (cos - w)};
}
WT_FN Mask<double> odd_quadrant(Raw<int64_t> q) { return from_int<double>((q & 1) << 52) != VDouble(0); }
WT_FN VDouble pick_quadrant(TrigParts64 p, Raw<int64_t> q) {
  const VDouble r = select(odd_quadrant(q), p.cos, p.sin);
  return from_int<double>(as_int(r) ^ ((q & 2) << 62));
}
template <class F>
WT_FN VDouble by_lane_if_far(VDouble x, VDouble near, F f) {
  if (!any(!(abs(x) <= VDouble(kTrigBound64)))) return near;
  return by_lane(x, near, [f](double v, double r) { return __builtin_fabs(v) <= kTrigBound64 ? r : f(v); });
}
WT_FN VDouble sin(VDouble x) {
  const TrigParts64 p = reduce_trig(x);
  return by_lane_if_far(x, select(x == VDouble(0), x, pick_quadrant(p, p.q)),
                        [](double v) { return __builtin_sin(v); });
}
WT_FN VDouble cos(VDouble x) {
  const TrigParts64 p = reduce_trig(x);
  return by_lane_if_far(x, pick_quadrant(p, p.q + 1), [](double v) { return __builtin_cos(v); });
}
WT_FN VDouble tan(VDouble x) {
  const TrigParts64 p = reduce_trig(x);
  const Mask<double> odd = odd_quadrant(p.q);
  const VDouble top = select(odd, -p.cos, p.sin), top_low = select(odd, -p.cos_low, p.sin_low);
  const VDouble bottom = select(odd, p.sin, p.cos), bottom_low = select(odd, p.sin_low, p.cos_low);
  // The quotient, and one step of correction by its residual.
  const VDouble inverse = VDouble(1) / bottom, quotient = top * inverse, product = quotient * bottom;
  const VDouble residual = (top - product) - product_error(quotient, bottom, product);
  const VDouble r = fma(residual + fma(-quotient, bottom_low, top_low), inverse, quotient);
  return by_lane_if_far(x, select(x == VDouble(0), x, r), [](double v) { return __builtin_tan(v); });
}

// atan(num / den), 0 <= num <= den: beyond tan(pi/8) from pi/4; fdlibm's polynomial, which holds to 7/16.
WT_FN VDouble atan_of_quotient(VDouble num, VDouble den) {
  const Mask<double> upper = num > den * VDouble(0.41421356237309503);
  const VDouble t = select(upper, num - den, num) / select(upper, num + den, den), z = t * t;
  const VDouble p =
      series(z, -3.33333333333329318027e-01, 1.99999999998764832476e-01, -1.42857142725034663711e-01,
             1.11111104054623557880e-01, -9.09088713343650656196e-02, 7.69187620504482999495e-02,
             -6.66107313738753120669e-02, 5.83357013379057348645e-02, -4.97687799461593236017e-02,
             3.65315727442169155270e-02, -1.62858201153657823623e-02);
  const VDouble base = select(upper, VDouble(0.78539816339744830962), VDouble(0));
  const VDouble low = select(upper, VDouble(3.06161699786838301793e-17), VDouble(0));
  return base + (t + fma(p * z, t, low));
}
// The angle of (x, y) from that of the nearer axis; pi/2 and pi in two parts. A zero has its sign.
template <class T>
WT_FN Vec<T> atan2_by_octants(Vec<T> y, Vec<T> x, Vec<T> half_pi, Vec<T> half_pi_low) {
  using V = Vec<T>;
  const V a = abs(y), b = abs(x), most = maximum(a, b), least = minimum(a, b);
  constexpr bool kDouble = sizeof(T) == 8;
  // Away from where the sum of the two overflows and from where the quotient's operands are subnormal.
  const V unit = select(most > V(kDouble ? 0x1p1000 : 0x1p100), V(kDouble ? 0x1p-100 : 0x1p-30),
                        select(most < V(kDouble ? 0x1p-900 : 0x1p-100), V(kDouble ? 0x1p200 : 0x1p50), V(1)));
  const V num = select(isinf(least), V(1), least * unit);  // both infinite
  const V den = select(isinf(least) | (most == V(0)), V(1), most * unit);
  V r = atan_of_quotient(num, den);
  r = select(a > b, (half_pi - r) + half_pi_low, r);
  r = select(is_negative_bit(x), half_pi - (r - (half_pi_low + half_pi_low)) + half_pi, r);
  return copysign(r, y);
}
inline constexpr double kHalfPi64 = 1.57079632679489661923, kHalfPiLow64 = 6.12323399573676603587e-17;
WT_FN VDouble atan2(VDouble y, VDouble x) {
  return atan2_by_octants(y, x, VDouble(kHalfPi64), VDouble(kHalfPiLow64));
}
WT_FN VDouble atan(VDouble x) {
  const VDouble a = abs(x);
  const Mask<double> large = a > VDouble(1);
  const VDouble r = atan_of_quotient(select(large, VDouble(1), a), select(large, a, VDouble(1)));
  return copysign(select(large, (VDouble(kHalfPi64) - r) + VDouble(kHalfPiLow64), r), x);
}

// asin(s) = s + rest by fdlibm's quotient, where s is |x| up to 1/2 and sqrt((1 - |x|) / 2) beyond, for
// asin(|x|) is pi/2 - 2 asin(s) there.
struct AsinParts64 {
  VDouble s, rest;
};
WT_FN AsinParts64 asin_of_half(VDouble a, Mask<double> large) {
  const VDouble z = select(large, VDouble(0.5) * (VDouble(1) - a), a * a), s = select(large, sqrt(z), a);
  const VDouble p =
      series(z, 1.66666666666666657415e-01, -3.25565818622400915405e-01, 2.01212532134862925881e-01,
             -4.00555345006794114027e-02, 7.91534994289814532176e-04, 3.47933107596021167570e-05);
  const VDouble q = series(z, 1.0, -2.40339491173441421878e+00, 2.02094576023350569471e+00,
                           -6.88283971605453293030e-01, 7.70381505559019352791e-02);
  const VDouble square = s * s;
  const VDouble lost = ((z - square) - product_error(s, s, square)) / (s + s);  // by the root
  return {s, fma(s, z * p / q, select(large & (z > VDouble(0)), lost, VDouble(0)))};
}
WT_FN VDouble asin(VDouble x) {
  const VDouble a = abs(x);
  const Mask<double> large = a > VDouble(0.5);
  const AsinParts64 p = asin_of_half(a, large);
  const VDouble twice = p.s + p.s, head = VDouble(kHalfPi64) - twice;
  const VDouble low = ((VDouble(kHalfPi64) - head) - twice) + (VDouble(kHalfPiLow64) - (p.rest + p.rest));
  return copysign(select(large, head + low, p.s + p.rest), x);
}
WT_FN VDouble acos(VDouble x) {
  const VDouble a = abs(x);
  const Mask<double> large = a > VDouble(0.5);
  const AsinParts64 p = asin_of_half(a, large);
  const VDouble s = copysign(p.s, x), rest = copysign(p.rest, x) - VDouble(kHalfPiLow64);
  const VDouble head = VDouble(kHalfPi64) - s, near = head + (((VDouble(kHalfPi64) - head) - s) - rest);
  const VDouble below = VDouble(kHalfPi64) - p.s;
  const VDouble half =  // of pi - 2 asin(s)
      below + (((VDouble(kHalfPi64) - below) - p.s) + (VDouble(kHalfPiLow64) - p.rest));
  const VDouble far = select(x < VDouble(0), half, p.s + p.rest);
  return select(large, far + far, near);
}

WT_FN VDouble hypot(VDouble x, VDouble y) {
  const VDouble a = abs(x), b = abs(y), most = max_or_b(a, b);
  // By powers of two to where the squares neither overflow nor vanish.
  const Mask<double> large = most > VDouble(0x1p500), tiny = most < VDouble(0x1p-450);
  const VDouble down = select(large, VDouble(0x1p-600), select(tiny, VDouble(0x1p600), VDouble(1)));
  const VDouble up = select(large, VDouble(0x1p600), select(tiny, VDouble(0x1p-600), VDouble(1)));
  const VDouble p = a * down, q = b * down;
  const VDouble r = sqrt(fma(p, p, q * q)) * up;
  return select(isinf(a) | isinf(b), VDouble(kInf), r);
}

// ---- lane by lane ----
#define WT_LANES(name)                                               \
  WT_FN VDouble name(VDouble a) {                                    \
    return by_lane(a, [](double v) { return __builtin_##name(v); }); \
  }
WT_LANES(asinh)
WT_LANES(acosh)
#undef WT_LANES

// Inverse of erf: Giles' form of the guess ("Approximating the erfinv function"), in w = -log(1 - x^2), then
// one step of Halley's method, on erfc where erf has no bits left.
WT_FN VDouble erfinv_central(VDouble w) {
  return series(w - VDouble(2.5), 1.5014093517481764, 0.24664027674858424, -0.004177325080457763,
                -0.0012527079573557702, 0.00021826412521552257, -4.9960001101439286e-06,
                -3.426266209734258e-06, 4.786897084558749e-07, 1.6503644041211715e-08, -1.086176127159244e-08,
                4.340626803855419e-10, 1.2346577114490507e-10);
}
WT_FN_OUTLINED VDouble erfinv(VDouble y) {
  const VDouble a = abs(y), w = -log((VDouble(1) - a) * (VDouble(1) + a)), s = sqrt(w) - VDouble(3);
  const VDouble tail =
      series(s, 2.83297681691168, 1.001680566719882, 0.009442717397633386, -0.007696233679192394,
             0.005736541820134325, -0.0034400607154899663, 0.0012887029283863286, -0.0001474227150561955,
             -9.930504684032936e-05, 5.065100957993336e-05, -9.642487991621211e-06, 6.937071476710051e-07);
  const VDouble x = a * select(w < VDouble(5), erfinv_central(minimum(w, VDouble(5))), tail);
  const VDouble error = select(a < VDouble(0.5), erf(x) - a, (VDouble(1) - a) - erfc(x));
  const VDouble u = error / (VDouble(1.12837916709551257390) * exp(-(x * x)));
  const VDouble found = x - u / fma(x, u, VDouble(1));
  return copysign(select(a == VDouble(1), VDouble(kInf), found), y);
}

}  // namespace warptape::kernels::WARPTAPE_ISA
