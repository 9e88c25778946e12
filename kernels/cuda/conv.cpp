// Convolution and its two gradients over cuDNN: one graph of one node each, its plan kept per shape. Tensors
// are dense NCHW, as the contract has them.
#include "kernels/conv.h"

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/elementwise.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

Slot<ElementwiseFn> add_slot{"add"};

enum class Pass { Forward, Input, Weight };
enum Ids : int64_t { kInput = 1, kWeight, kOutput };  // tensors of the graphs, gradients by what they are of

using Plans = PlanCache<21, GraphPlan>;

Plans& plans() {
  static auto* all = new Plans(1024);
  return *all;
}

Plans::Key key_of(Pass pass, int device, const ConvPlan& p, const GraphRules& rules) {
  return {static_cast<int64_t>(pass),
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

using Sizes = std::vector<int64_t>;
Sizes input_sizes(const ConvPlan& p) { return {p.batch, p.in_channels, p.in[0], p.in[1]}; }
// Fewer channels than the input has are how cuDNN is told of groups.
Sizes weight_sizes(const ConvPlan& p) {
  return {p.out_channels, p.in_channels / p.groups, p.kernel[0], p.kernel[1]};
}
Sizes output_sizes(const ConvPlan& p) { return {p.batch, p.out_channels, p.out[0], p.out[1]}; }

void set_dense(fe::graph::Tensor_attributes& tensor, int64_t id, const Sizes& sizes, DType dtype) {
  Sizes strides(4, 1);
  for (size_t d = 3; d-- > 0;) strides[d] = strides[d + 1] * sizes[d + 1];
  tensor.set_uid(id).set_dim(sizes).set_stride(strides).set_data_type(graph_type(dtype));
}

// Padding behind the input: as in front where that gives the output's size, else the least that does. Rows
// that the stride leaves over make it negative.
int64_t padding_after(const ConvPlan& p, int d) {
  const int64_t reach = p.dilation[d] * (p.kernel[d] - 1) + 1;
  const int64_t least = (p.out[d] - 1) * p.stride[d] + reach - p.in[d] - p.padding[d];
  const int64_t most = least + p.stride[d] - 1;
  if (least <= p.padding[d] && p.padding[d] <= most) return p.padding[d];
  return least <= 0 && most >= 0 ? 0 : least;
}

template <class Attributes>
Attributes attributes_of(const ConvPlan& p) {
  return Attributes()
      .set_pre_padding({p.padding[0], p.padding[1]})
      .set_post_padding({padding_after(p, 0), padding_after(p, 1)})
      .set_stride({p.stride[0], p.stride[1]})
      .set_dilation({p.dilation[0], p.dilation[1]});
}

void finish(const GraphTensor& out, int64_t id, const Sizes& sizes, DType dtype) {
  set_dense(*out, id, sizes, dtype);
  out->set_output(true);
}

void describe(fe::graph::Graph& g, Pass pass, const ConvPlan& p) {
  auto tensor = [&](int64_t id, const Sizes& sizes) {
    fe::graph::Tensor_attributes attributes;
    set_dense(attributes, id, sizes, p.dtype);
    return g.tensor(attributes);
  };
  switch (pass) {
    case Pass::Forward: {
      auto out = g.conv_fprop(tensor(kInput, input_sizes(p)), tensor(kWeight, weight_sizes(p)),
                              attributes_of<fe::graph::Conv_fprop_attributes>(p));
      return finish(out, kOutput, output_sizes(p), p.dtype);
    }
    case Pass::Input: {
      auto out = g.conv_dgrad(tensor(kOutput, output_sizes(p)), tensor(kWeight, weight_sizes(p)),
                              attributes_of<fe::graph::Conv_dgrad_attributes>(p));
      return finish(out, kInput, input_sizes(p), p.dtype);
    }
    case Pass::Weight: {
      auto out = g.conv_wgrad(tensor(kOutput, output_sizes(p)), tensor(kInput, input_sizes(p)),
                              attributes_of<fe::graph::Conv_wgrad_attributes>(p));
      return finish(out, kWeight, weight_sizes(p), p.dtype);
    }
  }
}

std::string text_of(const ConvPlan& p) {
  auto pair = [](const int64_t* x) { return std::to_string(x[0]) + "x" + std::to_string(x[1]); };
  return "input [" + std::to_string(p.batch) + ", " + std::to_string(p.in_channels) + ", " + pair(p.in) +
         "], weight [" + std::to_string(p.out_channels) + ", " + std::to_string(p.in_channels / p.groups) +
         ", " + pair(p.kernel) + "], stride " + pair(p.stride) + ", padding " + pair(p.padding) +
         ", dilation " + pair(p.dilation) + ", groups " + std::to_string(p.groups);
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

void run(const LaunchContext& ctx, const char* op, Pass pass, const ConvPlan& p, std::pair<Ids, void*> to,
         std::pair<Ids, const void*> first, std::pair<Ids, const void*> second) {
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
  const auto plan = plans().get(key_of(pass, ctx.device_index, p, rules), [&] {
    return make_plan(device, p.dtype, rules, [&](fe::graph::Graph& g) { describe(g, pass, p); });
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

// ---- the three kernels ----------------------------------------------------------------------------------

// output [N, O, OH, OW] += bias [O]. Engines that add it themselves want another layout.
void add_bias(const LaunchContext& ctx, const ConvPlan& p, void* output, const void* bias) {
  const auto bytes = static_cast<int64_t>(itemsize(p.dtype));
  const int64_t area = p.out[0] * p.out[1];
  const int64_t sizes[3] = {p.batch, p.out_channels, area};
  const int64_t strides[3] = {p.out_channels * area * bytes, area * bytes, bytes};
  ElementwisePlan plan{};
  for (int d = 0; d < 3; ++d) {
    if (sizes[d] == 1) continue;
    plan.sizes[plan.ndim] = sizes[d];
    plan.operands[0].strides[plan.ndim] = plan.operands[1].strides[plan.ndim] = strides[d];
    plan.operands[2].strides[plan.ndim++] = d == 1 ? bytes : 0;
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

void conv(const LaunchContext& ctx, const ConvPlan& p, void* output, const void* input, const void* weight,
          const void* bias) {
  run(ctx, "conv", Pass::Forward, p, {kOutput, output}, {kInput, input}, {kWeight, weight});
  if (bias) add_bias(ctx, p, output, bias);
}
void conv_backward_input(const LaunchContext& ctx, const ConvPlan& p, void* grad_input,
                         const void* grad_output, const void* weight) {
  run(ctx, "conv_backward_input", Pass::Input, p, {kInput, grad_input}, {kOutput, grad_output},
      {kWeight, weight});
}
void conv_backward_weight(const LaunchContext& ctx, const ConvPlan& p, void* grad_weight,
                          const void* grad_output, const void* input) {
  run(ctx, "conv_backward_weight", Pass::Weight, p, {kWeight, grad_weight}, {kOutput, grad_output},
      {kInput, input});
}

}  // namespace

WT_KERNEL(conv, conv);
WT_KERNEL(conv_backward_input, conv_backward_input);
WT_KERNEL(conv_backward_weight, conv_backward_weight);

}  // namespace warptape::kernels::cuda
