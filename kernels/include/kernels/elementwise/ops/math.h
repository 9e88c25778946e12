// Transcendental functions. A line is the kernel of an op on all devices; see formulas.h.

WT_OP(atan2, Atan2, Binary<kFloats>, WT_V2, return atan2(a, b););
WT_OP(hypot, Hypot, Binary<kFloats>, WT_V2, return hypot(a, b););
WT_OP(xlogy, Xlogy, Binary<kFloats>, WT_V2, return select((a == V(0)) & !isnan(b), V(0), a* log(b)););
WT_OP(special_xlog1py, Xlog1py, Binary<kFloats>, WT_V2,
      return select((a == V(0)) & !isnan(b), V(0), a* log1p(b)););
WT_OP(logaddexp, Logaddexp, Binary<kFloats>, WT_V2,
      return select(a == b, a + V(0.69314718055994530942), maximum(a, b) + log1p(exp(-abs(a - b)))););
WT_OP(logaddexp2, Logaddexp2, Binary<kFloats>, WT_V2,
      return select(a == b, a + V(1), maximum(a, b) + log1p(exp2(-abs(a - b))) * V(1.44269504088896340736)););

// ---- one function of the math set each ----
#define WT_SAME_OF(Types, slot, Name) WT_OP(slot, Name, Unary<Types>, WT_V1, return slot(x);)
#define WT_SAME(slot, Name) WT_SAME_OF(kFloats, slot, Name)
#define WT_ANALYTIC(slot, Name) WT_SAME_OF(kFloats | kComplex, slot, Name)
WT_ANALYTIC(exp, Exp);
WT_ANALYTIC(exp2, Exp2);
WT_ANALYTIC(expm1, Expm1);
WT_ANALYTIC(log, Log);
WT_ANALYTIC(log2, Log2);
WT_ANALYTIC(log10, Log10);
WT_ANALYTIC(log1p, Log1p);
WT_ANALYTIC(sin, Sin);
WT_ANALYTIC(cos, Cos);
WT_ANALYTIC(tan, Tan);
WT_ANALYTIC(asin, Asin);
WT_ANALYTIC(acos, Acos);
WT_ANALYTIC(atan, Atan);
WT_ANALYTIC(sinh, Sinh);
WT_ANALYTIC(cosh, Cosh);
WT_ANALYTIC(tanh, Tanh);
WT_ANALYTIC(asinh, Asinh);
WT_ANALYTIC(acosh, Acosh);
WT_ANALYTIC(atanh, Atanh);
WT_SAME(erf, Erf);
WT_SAME(erfc, Erfc);
WT_SAME(erfinv, Erfinv);
WT_SAME(lgamma, Lgamma);
WT_SAME(digamma, Digamma);
#undef WT_SAME
#undef WT_ANALYTIC
#undef WT_SAME_OF
WT_OP(polygamma, Polygamma, Binary<kFloats>, (V x, V n), return polygamma(x, n););
WT_OP(igamma, Igamma, Binary<kFloats>, WT_V2, return igamma(a, b););
WT_OP(igammac, Igammac, Binary<kFloats>, WT_V2, return igammac(a, b););
WT_OP(logit, Logit, Unary<kFloats>, WT_V1, return log(x / (V(1) - x)););
WT_OP(sinc, Sinc, Unary<kFloats | kComplex>, WT_V1, {
  V t = V(3.14159265358979323846) * x;
  return select(x == V(0), V(1), sin(t) / t);
});
WT_OP(rad2deg, Rad2deg, Unary<kFloats>, WT_V1, return x * V(57.29577951308232087680););
WT_OP(deg2rad, Deg2rad, Unary<kFloats>, WT_V1, return x * V(0.01745329251994329577););
WT_OP(special_i0e, BesselI0e, Unary<kFloats>, WT_V1, return bessel_scaled<0>(x););
WT_OP(special_i1e, BesselI1e, Unary<kFloats>, WT_V1, return bessel_scaled<1>(x););
WT_OP(special_i0, BesselI0, Unary<kFloats>, WT_V1, return bessel<0>(x););
WT_OP(special_i1, BesselI1, Unary<kFloats>, WT_V1, return bessel<1>(x););
WT_OP(special_ndtri, Ndtri, Unary<kFloats>, WT_V1, return ndtri(x););
WT_OP(sin_backward, SinBackward, Binary<kFloats>, WT_GX, return g * cos(x););
WT_OP(cos_backward, CosBackward, Binary<kFloats>, WT_GX, return -(g * sin(x)););
WT_OP(erf_backward, ErfBackward, Binary<kFloats>, WT_GX,
      return g * V(1.12837916709551257390) * exp(-(x * x)););
WT_OP(pow_base_backward, PowBaseBackward, Ternary<kFloats>, (V g, V x, V e),
      return select(e == V(0), V(0), g*(e* pow(x, e - V(1)))););
