// Gradients of losses with respect to x: g is the gradient of the loss and k a factor, 1 over the number of
// elements for a mean. A line is the kernel of an op on all devices; see formulas.h. Those of kl_div are
// products, for which there are kernels.

WT_OP(mse_loss_backward, MseLossBackward, Quaternary<kFloats | kSimple>, (V g, V x, V y, V k),
      return g * (V(2) * k * (x - y)););
WT_OP(l1_loss_backward, L1LossBackward, Quaternary<kFloats>, (V g, V x, V y, V k), {
  V d = x - y;
  return g * select(d > V(0), k, select(d < V(0), -k, V(0)));
});
WT_OP(smooth_l1_loss_backward, SmoothL1LossBackward, Quinary<kFloats>, (V g, V x, V y, V beta, V k), {
  V d = x - y;
  return g * select(abs(d) < beta, k * d / beta, select(d > V(0), k, select(d < V(0), -k, d)));
});
WT_OP(huber_loss_backward, HuberLossBackward, Quinary<kFloats>, (V g, V x, V y, V delta, V k),
      { return g * (k * minimum(maximum(x - y, -delta), delta)); });
WT_OP(binary_cross_entropy_backward, BinaryCrossEntropyBackward, Quinary<kFloats>, (V g, V x, V y, V w, V k),
      return g * (w * k) * (x - y) / maximum((V(1) - x) * x, V(1e-12f)););
WT_OP(binary_cross_entropy_with_logits_backward, BinaryCrossEntropyWithLogitsBackward, Senary<kFloats>,
      (V g, V x, V y, V w, V p, V k), {
        V t = p * y;
        return g * (w * k) * ((t + V(1) - y) * sigmoid(x) - t);
      });
