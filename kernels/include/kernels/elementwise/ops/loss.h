// Losses of an input x against a target y. A line is the kernel of an op on all devices; see formulas.h. Each
// also has a slot with _sum behind its name; see kernels/nn/regression.h.

WT_OP(mse_loss, MseLoss, Binary<kFloats | kSimple>, (V x, V y), {
  V d = x - y;
  return d * d;
});
WT_OP(l1_loss, L1Loss, Binary<kFloats>, (V x, V y), return abs(x - y););
WT_OP(smooth_l1_loss, SmoothL1Loss, Ternary<kFloats>, (V x, V y, V beta), {
  V d = abs(x - y);
  return select(d < beta, V(0.5) * d * d / beta, d - V(0.5) * beta);
});
WT_OP(huber_loss, HuberLoss, Ternary<kFloats>, (V x, V y, V delta), {
  V d = abs(x - y);
  return select(d < delta, V(0.5) * d * d, delta * (d - V(0.5) * delta));
});
// x and y are probabilities; what is not gives NaN, by which the op finds it.
WT_OP(binary_cross_entropy, BinaryCrossEntropy, Ternary<kFloats>, (V x, V y, V w), {
  V loss = (y - V(1)) * maximum(log1p(-x), V(-100)) - y * maximum(log(x), V(-100));
  return select((y >= V(0)) & (y <= V(1)), w * loss, V(__builtin_nan("")));
});
// x holds logits; p weighs the positive part.
WT_OP(binary_cross_entropy_with_logits, BinaryCrossEntropyWithLogits, Quaternary<kFloats>,
      (V x, V y, V w, V p), {
        V log_sigmoid = minimum(x, V(0)) - log1p(exp(-abs(x)));
        return w * ((V(1) - y) * x - fma(p - V(1), y, V(1)) * log_sigmoid);
      });
// x is a log-probability, y a probability or its logarithm.
WT_OP(kl_div, KlDiv, Binary<kFloats>, (V x, V y), return select(y == V(0), V(0), y* log(y)) - y * x;);
WT_OP(kl_div_log, KlDivLog, Binary<kFloats>, (V x, V y), return exp(y) * (y - x););
