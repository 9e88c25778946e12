// Attention over cuDNN's fused kernels or by our own, whichever is faster, where cuDNN takes the case; else
// by our own: other dtypes than bfloat16 and half, dropout (its numbers are ours), masks (a query may see no
// key), odd head sizes, sequences of several lengths, and a few queries, as decoding has them.
#include "kernels/attention/attention.h"

#include <bit>

#include "kernels/cuda/attention/attention_choice.h"
#include "kernels/cuda/libraries/cudnn_graph.h"
#include "kernels/cuda/libraries/plain.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

enum Ids : int64_t { kQ = 1, kK, kV, kOut, kLse, kGradOut, kGradQ, kGradK, kGradV };  // tensors of the graphs

using Plans = AttentionPlans<38, GraphPlan>;

Plans& plans() {
  static auto* all = new Plans(1024);
  return *all;
}

constexpr int64_t kAlignedValues = 8;  // 16 bytes, which cuDNN loads at once
constexpr int64_t kWidestHead = 256;

// [B, H, T, D] by a view's sizes; strides of single entries may be anything, cuDNN wants them as if dense.
struct Layout {
  std::vector<int64_t> sizes, strides;

  explicit Layout(const View& v) : sizes(v.sizes, v.sizes + 4), strides(v.strides, v.strides + 4) {
    for (size_t d = 4; d-- > 0;)
      if (sizes[d] == 1) strides[d] = d == 3 ? 1 : strides[d + 1] * sizes[d + 1];
  }
};

bool suits(const View& v) {
  const Layout x(v);
  bool fits = reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && x.strides[3] == 1 &&
              x.sizes[3] % kAlignedValues == 0 && x.sizes[3] <= kWidestHead;
  for (size_t d = 0; d < 3; ++d) fits = fits && x.strides[d] > 0 && x.strides[d] % kAlignedValues == 0;
  return fits;
}

bool suits_cudnn(const AttentionPlan& p, std::initializer_list<const View*> others) {
  bool fits = switches().cudnn_enabled && (p.q.dtype == DType::BFloat16 || p.q.dtype == DType::Float16) &&
              !p.mask.data && p.dropout_p == 0 && !p.sequences.count &&
              (p.band.is_all() || p.band.is_causal()) && p.q.sizes[2] > 0 && p.k.sizes[2] > 0 &&
              p.q.sizes[0] * p.k.sizes[1] > 0;
  for (const View* v : {&p.q, &p.k, &p.v}) fits = fits && suits(*v);
  for (const View* v : others) fits = fits && suits(*v);
  return fits;
}

Plans::Key key_of(int device, const AttentionPlan& p, bool deterministic,
                  std::initializer_list<const View*> views) {
  Plans::Key key{device,
                 static_cast<int64_t>(p.q.dtype),
                 p.band.is_causal(),
                 std::bit_cast<int64_t>(p.scale),
                 deterministic,
                 static_cast<int64_t>(views.size()),
                 p.q.sizes[0],
                 p.q.sizes[1],
                 p.k.sizes[1],
                 p.q.sizes[2],
                 p.k.sizes[2],
                 p.q.sizes[3],
                 p.v.sizes[3]};
  size_t at = 13;
  for (const View* v : views) {
    const Layout x(*v);
    for (size_t d = 0; d < 3; ++d) key[at++] = x.strides[d];
  }
  return key;
}

// ---- graphs ---------------------------------------------------------------------------------------------

GraphTensor input(fe::graph::Graph& g, int64_t id, const View& v) {
  const Layout x(v);
  return g.tensor(
      fe::graph::Tensor_attributes().set_uid(id).set_dim(x.sizes).set_stride(x.strides).set_data_type(
          graph_type(v.dtype)));
}
void output(const GraphTensor& tensor, int64_t id, const View& v) {
  const Layout x(v);
  tensor->set_output(true).set_uid(id).set_dim(x.sizes).set_stride(x.strides).set_data_type(
      graph_type(v.dtype));
}

// The lse [B, H, T] as cuDNN has it, [B, H, T, 1] of floats.
struct Statistics {
  std::vector<int64_t> sizes, strides;
  explicit Statistics(const AttentionPlan& p)
      : sizes{p.q.sizes[0], p.q.sizes[1], p.q.sizes[2], 1},
        strides{p.q.sizes[1] * p.q.sizes[2], p.q.sizes[2], 1, 1} {}
};

// Causal is aligned at the top left: query t sees keys 0..t, however many keys there are.
template <class Attributes>
Attributes attributes_of(const AttentionPlan& p) {
  return Attributes().set_attn_scale(static_cast<float>(p.scale)).set_causal_mask(p.band.is_causal());
}

void describe_forward(fe::graph::Graph& g, const AttentionPlan& p, const View& out) {
  auto attributes = attributes_of<fe::graph::SDPA_attributes>(p).set_generate_stats(true);
  auto [result, statistics] =
      g.sdpa(input(g, kQ, p.q), input(g, kK, p.k), input(g, kV, p.v), std::move(attributes));
  output(result, kOut, out);
  const Statistics s(p);
  statistics->set_output(true).set_uid(kLse).set_dim(s.sizes).set_stride(s.strides).set_data_type(
      fe::DataType_t::FLOAT);
}

struct Gradients {
  const View &q, &k, &v;
};

void describe_backward(fe::graph::Graph& g, const AttentionPlan& p, const Gradients& to, const View& dout,
                       const View& out, bool deterministic) {
  const Statistics s(p);
  const GraphTensor statistics = g.tensor(
      fe::graph::Tensor_attributes().set_uid(kLse).set_dim(s.sizes).set_stride(s.strides).set_data_type(
          fe::DataType_t::FLOAT));
  auto attributes =
      attributes_of<fe::graph::SDPA_backward_attributes>(p).set_deterministic_algorithm(deterministic);
  auto [dq, dk, dv] =
      g.sdpa_backward(input(g, kQ, p.q), input(g, kK, p.k), input(g, kV, p.v), input(g, kOut, out),
                      input(g, kGradOut, dout), statistics, std::move(attributes));
  output(dq, kGradQ, to.q);
  output(dk, kGradK, to.k);
  output(dv, kGradV, to.v);
}

// Forward is deterministic, backward has an attribute of its own for it, which engines' notes do not reflect.
constexpr GraphRules kAnyEngine{false, true};

// ---- by measurement -------------------------------------------------------------------------------------

// Milliseconds of a call, by the device's clock.
template <class Call>
float milliseconds(const LaunchContext& ctx, Call&& call) {
  const auto stream = static_cast<cudaStream_t>(ctx.stream);
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "attention");
  check(cudaEventCreate(&end), "attention");
  check(cudaEventRecord(begin, stream), "attention");
  call();
  check(cudaEventRecord(end, stream), "attention");
  check(cudaEventSynchronize(end), "attention");
  float taken = 0;
  check(cudaEventElapsedTime(&taken, begin, end), "attention");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return taken;
}

AttentionCall call_of(const LaunchContext& ctx, bool tensor_cores, bool few) {
  cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(static_cast<cudaStream_t>(ctx.stream), &captured), "attention");
  return {attention_kernels(),
          true,
          tensor_cores,
          ctx.deterministic || switches().cudnn_deterministic,
          captured != cudaStreamCaptureStatusNone,
          few};
}

// ---- the two kernels ------------------------------------------------------------------------------------

void attention(const LaunchContext& ctx, const View& out, const View& lse, const AttentionPlan& p) {
  if (!suits_cudnn(p, {&out})) return attention_own(ctx, out, lse, p);
  auto own = [&] { attention_own(ctx, out, lse, p); };
  auto make = [&] {
    return make_plan(cudnn_device(ctx.device_index), p.q.dtype, kAnyEngine,
                     [&](fe::graph::Graph& g) { describe_forward(g, p, out); });
  };
  auto library = [&](GraphPlan& graph) {
    run_plan(ctx, "attention", cudnn_device(ctx.device_index), graph,
             {{kQ, p.q.data}, {kK, p.k.data}, {kV, p.v.data}, {kOut, out.data}, {kLse, lse.data}});
  };
  auto time = [&](auto& kernel) { return milliseconds(ctx, kernel); };
  plans().run(key_of(ctx.device_index, p, true, {&p.q, &p.k, &p.v, &out}),
              call_of(ctx, suits_mma(p, {&out}), p.q.sizes[2] <= kFewQueries), make, time, own, library);
}

void attention_backward(const LaunchContext& ctx, const View& dq, const View& dk, const View& dv,
                        const View& dout, const View& out, const View& lse, const AttentionPlan& p) {
  if (!suits_cudnn(p, {&dq, &dk, &dv, &dout, &out}))
    return attention_backward_own(ctx, dq, dk, dv, dout, out, lse, p);
  auto own = [&] { attention_backward_own(ctx, dq, dk, dv, dout, out, lse, p); };
  const bool deterministic = ctx.deterministic || switches().cudnn_deterministic;
  auto make = [&] {
    return make_plan(cudnn_device(ctx.device_index), p.q.dtype, kAnyEngine, [&](fe::graph::Graph& g) {
      describe_backward(g, p, {dq, dk, dv}, dout, out, deterministic);
    });
  };
  auto library = [&](GraphPlan& graph) {
    run_plan(ctx, "attention_backward", cudnn_device(ctx.device_index), graph,
             {{kQ, p.q.data},
              {kK, p.k.data},
              {kV, p.v.data},
              {kOut, out.data},
              {kGradOut, dout.data},
              {kLse, lse.data},
              {kGradQ, dq.data},
              {kGradK, dk.data},
              {kGradV, dv.data}});
  };
  auto time = [&](auto& kernel) { return milliseconds(ctx, kernel); };
  plans().run(key_of(ctx.device_index, p, deterministic, {&p.q, &p.k, &p.v, &out, &dout, &dq, &dk, &dv}),
              call_of(ctx, suits_mma(p, {&dq, &dk, &dv, &dout}), false), make, time, own, library);
}

}  // namespace

WT_KERNEL(attention, attention);
WT_KERNEL(attention_backward, attention_backward);

}  // namespace warptape::kernels::cuda
