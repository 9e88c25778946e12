// Layer, RMS, group and batch norm.
#pragma once

#include "op/op.h"

namespace warptape::ops {

// Hands over dx, dweight and dbias, those that are defined, after `fill` wrote them; of an x without elements
// the last two are zeros.
template <class F>
void set_gradients(Gradients& g, const Tensor& x, const Tensor& dx, const Tensor& dw, const Tensor& db,
                   F&& fill) {
  const Tensor& made = dx.defined() ? dx : dw.defined() ? dw : db;
  if (made.defined() && !made.is_meta() && x.numel()) {
    fill();
  } else if (made.defined() && !made.is_meta()) {
    if (dw.defined()) raw_fill(dw, 0);
    if (db.defined()) raw_fill(db, 0);
  }
  if (dx.defined()) g.set(0, dx);
  if (dw.defined()) g.set(1, dw);
  if (db.defined()) g.set(2, db);
}

// input [..., *normalized_shape], normalized_shape, weight, bias, eps
extern WT_API const Op<Tensor(const Tensor&, IntList, const OptTensor&, const OptTensor&, double)> layer_norm;
extern WT_API const Op<Tensor(const Tensor&, IntList, const OptTensor&, std::optional<double>)> rms_norm;
// input [batch, channels, ...], groups, weight [channels], bias [channels], eps
extern WT_API const Op<Tensor(const Tensor&, int64_t, const OptTensor&, const OptTensor&, double)> group_norm;
// input [batch, channels, ...], running_mean, running_var, weight, bias, training, momentum, eps
extern WT_API const Op<Tensor(const Tensor&, const OptTensor&, const OptTensor&, const OptTensor&,
                              const OptTensor&, bool, double, double)>
    batch_norm;

}  // namespace warptape::ops
