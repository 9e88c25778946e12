// Activations and their gradients: g is the gradient of the result, y the result, x the input. A line is the
// kernel of an op on all devices; see formulas.h.

// A NaN and a zero of either sign pass, as in PyTorch.
WT_OP(relu, Relu, Unary<kAny | kNarrow | kSimple>, WT_V1, return max_or_b(V(0), x););
WT_OP(threshold, Threshold, Ternary<kAny | kSimple>, (V x, V limit, V value),
      return select(x <= limit, value, x););
WT_OP(threshold_backward, ThresholdBackward, Ternary<kAny | kSimple>, (V g, V x, V limit),
      return select(x <= limit, V(0), g););
WT_OP(hardtanh, Clamp);
WT_OP(hardtanh_backward, HardtanhBackward, Quaternary<kAny | kSimple>, (V g, V x, V lo, V hi),
      return select((x > lo) & (x < hi), g, V(0)););
WT_OP(leaky_relu, LeakyRelu, Binary<kFloats | kSimple>, (V x, V slope),
      return select(x > V(0), x, x* slope););
WT_OP(leaky_relu_backward, LeakyReluBackward, Ternary<kFloats | kSimple>, (V g, V x, V slope),
      return select(x > V(0), g, g* slope););
WT_OP(sigmoid, Sigmoid, Unary<kFloats | kComplex>, WT_V1, return sigmoid(x););
WT_OP(sigmoid_backward, SigmoidBackward, Binary<kFloats | kSimple>, (V g, V y), return g * ((V(1) - y) * y););
WT_OP(tanh_backward, TanhBackward, Binary<kFloats | kSimple>, (V g, V y), return g * (V(1) - y * y););

WT_OP(silu, Silu, Unary<kFloats>, WT_V1, return x / (V(1) + exp(-x)););
WT_OP(silu_backward, SiluBackward, Binary<kFloats>, WT_GX, {
  V s = sigmoid(x);
  return g * (s * (V(1) + x * (V(1) - s)));
});
WT_OP(gelu, Gelu, Unary<kFloats>, WT_V1, return V(0.5) * x * (V(1) + erf(x * V(0.70710678118654752440))););
WT_OP(gelu_backward, GeluBackward, Binary<kFloats>, WT_GX, {
  V cdf = V(0.5) * (V(1) + erf(x * V(0.70710678118654752440)));
  V pdf = V(0.39894228040143267794) * exp(V(-0.5) * (x * x));
  return g * fma(x, pdf, cdf);
});
// x (1 + tanh(u)) / 2 = x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
WT_OP(gelu_tanh, GeluTanh, Unary<kFloats>, WT_V1, {
  V u2 = V(1.59576912160573071176) * x * fma(x * x, V(0.044715), V(1));
  return x / (V(1) + exp(-u2));
});
WT_OP(gelu_tanh_backward, GeluTanhBackward, Binary<kFloats>, WT_GX, {
  V z = x * x;
  V s = sigmoid(V(1.59576912160573071176) * x * fma(z, V(0.044715), V(1)));
  V slope = V(1.59576912160573071176) * fma(z, V(0.134145), V(1));
  return g * fma(x * slope, s * (V(1) - s), s);
});
WT_OP(mish, Mish, Unary<kFloats>, WT_V1, {
  V n = mish_n(x);
  return x * (n / (n + V(2)));
});
WT_OP(mish_backward, MishBackward, Binary<kFloats>, WT_GX, {
  V n = mish_n(x);
  V t = n / (n + V(2));
  return g * fma(x * sigmoid(x), V(1) - t * t, t);
});
WT_OP(softplus, Softplus, Ternary<kFloats>, (V x, V beta, V limit), {
  V t = x * beta;
  return select(t > limit, x, log1p(exp(t)) / beta);
});
WT_OP(softplus_backward, SoftplusBackward, Quaternary<kFloats>, (V g, V x, V beta, V limit), {
  V t = x * beta;
  return select(t > limit, g, g * sigmoid(t));
});
WT_OP(log_sigmoid, LogSigmoid, Unary<kFloats>, WT_V1, return minimum(x, V(0)) - log1p(exp(-abs(x))););
WT_OP(log_sigmoid_backward, LogSigmoidBackward, Binary<kFloats>, WT_GX, return g * sigmoid(-x););
WT_OP(elu, Elu, Binary<kFloats>, (V x, V alpha), return select(x > V(0), x, alpha* expm1(x)););
WT_OP(elu_backward, EluBackward, Ternary<kFloats>, (V g, V x, V alpha),
      return select(x > V(0), g, g * alpha * exp(x)););
WT_OP(celu, Celu, Binary<kFloats>, (V x, V alpha), return select(x > V(0), x, alpha* expm1(x / alpha)););
WT_OP(celu_backward, CeluBackward, Ternary<kFloats>, (V g, V x, V alpha),
      return select(x > V(0), g, g* exp(x / alpha)););
WT_OP(selu, Selu, Unary<kFloats>, WT_V1,
      return V(kSeluScale) * select(x > V(0), x, V(kSeluAlpha) * expm1(x)););
WT_OP(selu_backward, SeluBackward, Binary<kFloats>, WT_GX,
      return g * V(kSeluScale) * select(x > V(0), V(1), V(kSeluAlpha) * exp(x)););
WT_OP(hardsigmoid, Hardsigmoid, Unary<kFloats | kSimple>, WT_V1,
      return minimum(maximum(x + V(3), V(0)), V(6)) * V(1.0 / 6););
WT_OP(hardsigmoid_backward, HardsigmoidBackward, Binary<kFloats | kSimple>, WT_GX,
      return select((x > V(-3)) & (x < V(3)), g* V(1.0 / 6), V(0)););
WT_OP(hardswish, Hardswish, Unary<kFloats | kSimple>, WT_V1,
      return x * minimum(maximum(x + V(3), V(0)), V(6)) * V(1.0 / 6););
WT_OP(hardswish_backward, HardswishBackward, Binary<kFloats | kSimple>, WT_GX,
      return select(x <= V(-3), V(0), select(x >= V(3), g, g* fma(x, V(1.0 / 3), V(0.5)))););
WT_OP(hardshrink, Hardshrink, Binary<kFloats>, (V x, V lambd), return select(abs(x) <= lambd, V(0), x););
WT_OP(softshrink, Softshrink, Binary<kFloats>, (V x, V lambd),
      return x - minimum(maximum(x, -lambd), lambd););
WT_OP(shrink_backward, ShrinkBackward, Ternary<kFloats>, (V g, V x, V lambd),
      return select(abs(x) <= lambd, V(0), g););
WT_OP(softsign, Softsign, Unary<kFloats>, WT_V1, return x / (V(1) + abs(x)););
// The last term is 0, or NaN at an infinity, where x / (1 + |x|) is NaN itself.
WT_OP(softsign_backward, SoftsignBackward, Binary<kFloats>, WT_GX, {
  V d = V(1) + abs(x);
  return g / (d * d) + (x - x);
});
