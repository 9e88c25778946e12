// Convolution and its two gradients over cuDNN, a plan kept per shape.
#include "kernels/cuda/conv/conv_graph.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

Slot<ElementwiseFn> add_slot{"add"};

using Plans = PlanCache<22, GraphPlan>;

Plans& plans() {
  static auto* all = new Plans(1024);
  return *all;
}

Plans::Key key_of(Pass pass, ConvLayout layout, int device, const ConvPlan& p, const GraphRules& rules) {
  return {static_cast<int64_t>(pass),
          static_cast<int64_t>(layout),
          device,
          static_cast<int64_t>(p.dtype),
          p.batch,
          p.in_channels,
          p.out_channels,
          p.groups,
          p.in[0],
          p.in[1],
          p.out[0],
          p.out[1],
          p.kernel[0],
          p.kernel[1],
          p.stride[0],
          p.stride[1],
          p.padding[0],
          p.padding[1],
          p.dilation[0],
          p.dilation[1],
          rules.deterministic,
          rules.allow_tf32};
}

// ---- memory ---------------------------------------------------------------------------------------------

constexpr size_t kAlignment = 16;  // of what graphs read and write, unless they say otherwise
bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % kAlignment == 0; }

size_t bytes_of(const Sizes& s, DType dtype) {
  return static_cast<size_t>(s[0] * s[1] * s[2] * s[3]) * itemsize(dtype);
}

void copy_bytes(const LaunchContext& ctx, const char* op, void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(ctx.stream)),
        op);
}

// `p` itself, or a copy that is aligned.
const void* readable(const LaunchContext& ctx, const char* op, const void* p, size_t bytes) {
  if (aligned(p)) return p;
  void* copy = ctx.scratch(bytes);
  copy_bytes(ctx, op, copy, p, bytes);
  return copy;
}

void run(const LaunchContext& ctx, const char* op, Pass pass, ConvLayout layout, const ConvPlan& p,
         std::pair<Ids, void*> to, std::pair<Ids, const void*> first, std::pair<Ids, const void*> second) {
  auto sizes = [&](Ids id) {
    return id == kInput ? input_sizes(p) : id == kWeight ? weight_sizes(p) : output_sizes(p);
  };
  auto bytes = [&](Ids id) { return bytes_of(sizes(id), p.dtype); };
  CudnnDevice& device = cudnn_device(ctx.device_index);
  if (bytes(to.first) == 0) return;
  if (bytes(first.first) == 0 || bytes(second.first) == 0)  // an empty sum
    return check(cudaMemsetAsync(to.second, 0, bytes(to.first), static_cast<cudaStream_t>(ctx.stream)), op);
  const GraphRules rules{ctx.deterministic || switches().cudnn_deterministic,
                         p.dtype != DType::Float32 || switches().cudnn_allow_tf32};
  const auto plan = plans().get(key_of(pass, layout, ctx.device_index, p, rules), [&] {
    return make_plan(device, p.dtype, rules, [&](fe::graph::Graph& g) { describe(g, pass, p, layout); });
  });
  if (!plan->refusal.empty())
    raise_library_error(std::string(op) + ": cuDNN has no engine for " + text_of(p) +
                        (rules.deterministic ? " among the deterministic ones" : "") + ": " + plan->refusal);
  void* out = aligned(to.second) ? to.second : ctx.scratch(bytes(to.first));
  run_plan(ctx, op, device, *plan,
           {{to.first, out},
            {first.first, readable(ctx, op, first.second, bytes(first.first))},
            {second.first, readable(ctx, op, second.second, bytes(second.first))}});
  if (out != to.second) copy_bytes(ctx, op, to.second, out, bytes(to.first));
}

// ---- the three kernels, for each layout -----------------------------------------------------------------

// output [N, O, OH, OW] += bias [O]. Engines that add it themselves want another layout.
void add_bias(const LaunchContext& ctx, const ConvPlan& p, ConvLayout layout, void* output,
              const void* bias) {
  const auto bytes = static_cast<int64_t>(itemsize(p.dtype));
  const int64_t area = p.out[0] * p.out[1];
  const bool last = layout == ConvLayout::ChannelsLast;
  const int64_t sizes[3] = {p.batch, last ? area : p.out_channels, last ? p.out_channels : area};
  const int64_t strides[3] = {p.out_channels * area * bytes, sizes[2] * bytes, bytes};
  ElementwisePlan plan{};
  for (int d = 0; d < 3; ++d) {
    if (sizes[d] == 1) continue;
    plan.sizes[plan.ndim] = sizes[d];
    plan.operands[0].strides[plan.ndim] = plan.operands[1].strides[plan.ndim] = strides[d];
    plan.operands[2].strides[plan.ndim++] = d == (last ? 2 : 1) ? bytes : 0;
  }
  if (plan.ndim == 0) plan.sizes[plan.ndim++] = 1;
  plan.count = 3;
  plan.compute = p.dtype == DType::Float64 ? DType::Float64 : DType::Float32;
  plan.numel = p.batch * p.out_channels * area;
  if (plan.numel == 0) return;
  for (int i = 0; i < 3; ++i) plan.operands[i].dtype = p.dtype;
  plan.operands[0].data = plan.operands[1].data = static_cast<char*>(output);
  plan.operands[2].data = static_cast<char*>(const_cast<void*>(bias));
  add_slot(ctx, plan);
}

template <ConvLayout layout>
void conv(const LaunchContext& ctx, const ConvPlan& p, void* output, const void* input, const void* weight,
          const void* bias) {
  run(ctx, "conv", Pass::Forward, layout, p, {kOutput, output}, {kInput, input}, {kWeight, weight});
  if (bias) add_bias(ctx, p, layout, output, bias);
}
template <ConvLayout layout>
void conv_backward_input(const LaunchContext& ctx, const ConvPlan& p, void* grad_input,
                         const void* grad_output, const void* weight) {
  run(ctx, "conv_backward_input", Pass::Input, layout, p, {kInput, grad_input}, {kOutput, grad_output},
      {kWeight, weight});
}
template <ConvLayout layout>
void conv_backward_weight(const LaunchContext& ctx, const ConvPlan& p, void* grad_weight,
                          const void* grad_output, const void* input) {
  run(ctx, "conv_backward_weight", Pass::Weight, layout, p, {kWeight, grad_weight}, {kOutput, grad_output},
      {kInput, input});
}

}  // namespace

WT_KERNEL(conv, conv<ConvLayout::ChannelsFirst>);
WT_KERNEL(conv_backward_input, conv_backward_input<ConvLayout::ChannelsFirst>);
WT_KERNEL(conv_backward_weight, conv_backward_weight<ConvLayout::ChannelsFirst>);
WT_KERNEL(conv_channels_last, conv<ConvLayout::ChannelsLast>);
WT_KERNEL(conv_channels_last_backward_input, conv_backward_input<ConvLayout::ChannelsLast>);
WT_KERNEL(conv_channels_last_backward_weight, conv_backward_weight<ConvLayout::ChannelsLast>);

}  // namespace warptape::kernels::cuda
