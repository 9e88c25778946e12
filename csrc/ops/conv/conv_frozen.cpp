// Convolutions of frozen graphs: with the addition and the ReLU behind them, and with a packed weight.
#include "ops/conv/conv_plan.h"
#include "ops/elementwise/activation.h"
#include "ops/elementwise/elementwise.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::ConvPackFn> pack_slot{"conv_channels_last_pack"};
kernels::Slot<kernels::FindChainFormulaFn> formula_slot{"find_chain_formula"};

// The plan that packs the weight, if its kernel reads it packed.
std::optional<ConvPlan> packing_plan(const Tensor& w, int64_t groups) {
  if (w.ndim() != 4 || !w.device().is_host() || !is_floating(w.dtype()) || !w.numel() || groups < 1)
    return {};
  const ConvPlan p = plan_of_weight(w, groups);
  return p.kernel_used == ConvKernel::ChannelsLast ? std::optional(p) : std::nullopt;
}

Tensor checked_packed(const Tensor& packed, const Tensor& w, int64_t groups) {
  const std::optional<ConvPlan> p = packing_plan(w, groups);
  const bool fits = p && packed.dtype() == DType::UInt8 && packed.is_contiguous() && packed.offset() == 0 &&
                    packed.numel() == pack_slot(Launch(w.device()), *p, nullptr, nullptr) &&
                    packed.device().is_host();
  WT_CHECK(fits, ShapeError, "_conv2d_add_relu: packed, of shape ", packed.sizes(),
           ", is not what the weight of shape ", w.sizes(), " was packed to");
  return packed;
}

// Without gradients and modes, on the CPU: one kernel. Else the ops that it stands for.
Tensor conv2d_add_relu_impl(const Tensor& x, const Tensor& w, const OptTensor& bias,
                            const OptTensor& residual, IntList stride, IntList padding, IntList dilation,
                            int64_t groups, bool relu, const OptTensor& packed, bool inplace) {
  const bool plain = !thread_state().dispatch && !needs_grad(x, w, bias) && !needs_grad(x, w, residual) &&
                     x.device().is_host() && !x.is_meta() && x.ndim() == 4 && x.numel() && w.numel() &&
                     (x.dtype() == DType::Float32 || x.dtype() == DType::Float64);
  const ConvTail tail{residual ? *residual : Tensor(), inplace, relu,
                      packed ? checked_packed(*packed, w, groups) : Tensor()};
  if (plain && (!residual || (residual->dtype() == x.dtype() && residual->device() == x.device())))
    return conv2d_with(tail, x, w, bias, stride, padding, dilation, groups);
  return tail.after(conv2d(x, w, bias, stride, padding, dilation, groups));
}

}  // namespace

Tensor ConvTail::after(const Tensor& out) const {
  const Tensor sum = !residual.defined() ? out : inplace ? add_(out, residual, 1) : out + residual;
  return relu ? ops::relu(sum) : sum;
}

kernels::ChainPlan ConvTail::plan(const Tensor& out, const Tensor& dense_residual) const {
  kernels::ChainPlan c{};
  const auto item = static_cast<int64_t>(out.itemsize());
  const auto add_step = [&](const char* name, std::initializer_list<int> in) {
    kernels::ChainStep& s = c.step[c.steps++];
    s.formula = formula_slot(launch_context(out.device()), name, out.dtype(), false);
    for (int value : in) s.in[s.count++] = static_cast<uint8_t>(value);
    s.result = out.dtype();
  };
  const auto operand = [&](kernels::Operand& to, const Tensor& t) {
    to.data = static_cast<char*>(t.data()), to.dtype = t.dtype(), to.strides[0] = item;
  };
  c.ndim = 1, c.numel = c.sizes[0] = out.numel();
  operand(c.input[c.inputs++], out);
  if (dense_residual.defined()) {
    operand(c.input[c.inputs++], dense_residual);
    add_step("add", {0, 1});
  }
  if (relu) add_step("relu", {c.steps ? kernels::kMaxChainInputs : 0});
  c.output[0].value = static_cast<uint8_t>(kernels::kMaxChainInputs + c.steps - 1);
  operand(c.output[c.outputs++].to, out);
  return c;
}

Tensor pack_conv_weight(const Tensor& w, int64_t groups) {
  const std::optional<ConvPlan> p = packing_plan(w, groups);
  if (!p) return {};
  const Tensor from = raw_in(w, MemoryFormat::ChannelsLast);
  const Launch launch(w.device());
  Tensor out = empty(Shape{pack_slot(launch, *p, nullptr, nullptr)}, {DType::UInt8, w.device()});
  pack_slot(launch, *p, out.data(), from.data());
  return out;
}

decltype(conv2d_add_relu) conv2d_add_relu{
    "_conv2d_add_relu",
    conv2d_add_relu_impl,
    kPrivate | kChecked | kLower,
    {"input",
     "weight",
     {"bias", none},
     {"residual", none},
     {"stride", {1}},
     {"padding", {0}},
     {"dilation", {1}},
     Arg::integer("groups", 1),
     {"relu", false},
     {"packed", none},
     {"inplace", false, kInPlace}},
    "relu(conv2d(..) + residual), without what is None or False; "
    "`packed`: the weight as the kernel reads it; `inplace`: the sum has "
    "the convolution's sizes, as add_'s."};
}  // namespace warptape::ops
