// The loops that torchaudio's filters run compiled, found as torch.ops.torchaudio.*. Their gradients are made
// in its own Python code, so these record nothing.
#include "kernels/extra/recursive.h"

#include "ops/kernel_inputs.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::RecursiveFilterFn> recursive_filter_slot{"recursive_filter"};
kernels::Slot<kernels::OverdriveFn> overdrive_slot{"overdrive"};

void check_dense(const char* op, DType dtype, const Tensor& t) {
  WT_CHECK(t.dtype() == dtype && (dtype == DType::Float32 || dtype == DType::Float64), DtypeError, op,
           ": expected tensors of one dtype, float32 or float64, got ", t);
}

// A tensor that is written: the kernel needs it without gaps.
void check_written(const char* op, const Tensor& t) {
  WT_CHECK(t.is_contiguous(), ValueError, op, ": expected a contiguous tensor to write to, got ", t,
           "; make it with .contiguous()");
  check_inplace(t, op, false);
}

void lfilter_impl(const Tensor& x, const Tensor& a, const Tensor& out) {
  const char* op = "_lfilter_core_loop";
  for (const Tensor* t : {&x, &a, &out}) check_dense(op, x.dtype(), *t);
  const auto fits = [&] {
    return x.ndim() == 3 && out.ndim() == 3 && a.ndim() == 2 && a.sizes()[0] == x.sizes()[1] &&
           a.sizes()[1] > 0 &&
           out.sizes() == Shape{x.sizes()[0], x.sizes()[1], x.sizes()[2] + a.sizes()[1] - 1};
  };
  WT_CHECK(
      fits(), ShapeError, op,
      ": expected a waveform [batch, channel, time], coefficients [channel, order] and an output of order "
      "- 1 values more, got ",
      x, ", ", a, " and ", out);
  check_written(op, out);
  if (out.is_meta() || !x.numel()) return;
  recursive_filter_slot(Launch(x.device()), x.dtype(), x.sizes()[0] * x.sizes()[1], x.sizes()[1],
                        a.sizes()[1], x.sizes()[2], out.data(), raw_contiguous(x).data(),
                        raw_contiguous(a).data());
  out.bump_version();
}

void overdrive_impl(const Tensor& x, const Tensor& driven, const Tensor& last_in, const Tensor& last_out,
                    const Tensor& out) {
  const char* op = "_overdrive_core_loop";
  for (const Tensor* t : {&x, &driven, &last_in, &last_out, &out}) check_dense(op, x.dtype(), *t);
  WT_CHECK(x.ndim() == 2 && driven.sizes() == x.sizes() && out.sizes() == x.sizes() &&
               last_in.sizes() == Shape{x.sizes()[0]} && last_out.sizes() == last_in.sizes(),
           ShapeError, op, ": expected waveforms [rows, time] and last values [rows], got ", x, ", ", driven,
           ", ", last_in, ", ", last_out, " and ", out);
  for (const Tensor* t : {&last_in, &last_out, &out}) check_written(op, *t);
  if (out.is_meta() || !x.numel()) return;
  overdrive_slot(Launch(x.device()), x.dtype(), x.sizes()[0], x.sizes()[1], out.data(),
                 raw_contiguous(x).data(), raw_contiguous(driven).data(), last_in.data(), last_out.data());
  for (const Tensor* t : {&last_in, &last_out, &out}) t->bump_version();
}

const Op<void(const Tensor&, const Tensor&, const Tensor&)> lfilter{
    "torchaudio__lfilter_core_loop",
    lfilter_impl,
    kPrivate | kChecked,
    {"input", "a_coeffs", {"padded_output", kUpdated}},
    "Fills padded_output [batch, channel, order - 1 + time] behind its first order - 1 values: the input "
    "less "
    "the output's past values times a_coeffs [channel, order], the latest last. Not recorded."};
const Op<void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)> overdrive{
    "torchaudio__overdrive_core_loop",
    overdrive_impl,
    kPrivate | kChecked,
    {"waveform", "temp", {"last_in", kUpdated}, {"last_out", kUpdated}, {"output_waveform", kUpdated}},
    "The feedback of torchaudio's overdrive, into output_waveform [rows, time]. Not recorded."};

}  // namespace
}  // namespace warptape::ops
