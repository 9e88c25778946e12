// Pooling. A maximum's gradient goes to the place it came from, and the gradient of that is a gather from
// these places; averages are linear, so their two nodes are each other's gradients.
#include "ops/conv/pool.h"

#include <algorithm>
#include <array>

#include "kernels/conv/pool.h"
#include "ops/elementwise/activation.h"
#include "ops/elementwise/elementwise.h"
#include "ops/reduce/reduce.h"
#include "ops/view/view.h"
#include "tensor/memory_format.h"

namespace warptape::ops {
namespace {

using kernels::PoolPlan;
using MaxSlot = kernels::Slot<kernels::MaxPoolFn>;
using MaxBackwardSlot = kernels::Slot<kernels::MaxPoolBackwardFn>;
using GatherSlot = kernels::Slot<kernels::MaxPoolGatherFn>;
using AvgSlot = kernels::Slot<kernels::AvgPoolFn>;
// By layout: row-major, channels last.
MaxSlot max_slots[]{MaxSlot("max_pool"), MaxSlot("max_pool_channels_last")};
MaxBackwardSlot max_backward_slots[]{MaxBackwardSlot("max_pool_backward"),
                                     MaxBackwardSlot("max_pool_channels_last_backward")};
GatherSlot gather_slots[]{GatherSlot("max_pool_gather"), GatherSlot("max_pool_channels_last_gather")};
AvgSlot avg_slots[]{AvgSlot("avg_pool"), AvgSlot("avg_pool_channels_last")};
AvgSlot avg_backward_slots[]{AvgSlot("avg_pool_backward"), AvgSlot("avg_pool_channels_last_backward")};

// Sizes of `like` with the plan's output (or input) sizes at the end.
Shape ending(const Shape& like, const int64_t* sizes, int64_t spatial) {
  Shape out(like.begin(), like.end() - spatial);
  out.append(sizes + 3 - spatial, sizes + 3);
  return out;
}

struct Pooling {
  PoolPlan plan;
  int64_t spatial;
  MemoryFormat format;  // of inputs, results and indices
  bool last() const { return format != MemoryFormat::Contiguous; }
  Shape out_sizes(const Shape& in) const { return ending(in, plan.out, spatial); }
  Shape in_sizes(const Shape& out) const { return ending(out, plan.in, spatial); }
};

// Runs f(launch, x in the layout of the plan) unless there is nothing to do.
template <class F>
void launch_on(const Pooling& p, const Tensor& out, const Tensor& x, F&& f) {
  if (out.is_meta() || out.numel() == 0) return;
  Tensor dense = raw_in(x, p.format);
  f(launch_context(x.device()), dense);
}

// ---- maximum --------------------------------------------------------------------------------------------

Tensor max_scatter(const Tensor& g, const Tensor& indices, const Pooling& p);
Tensor max_gather(const Tensor& x, const Tensor& indices, const Pooling& p);

void max_backward(Node& n, Gradients& g) { g.set(0, max_scatter(g[0], n.saved(0), n.data<Pooling>())); }
void scatter_backward(Node& n, Gradients& g) { g.set(0, max_gather(g[0], n.saved(0), n.data<Pooling>())); }
constexpr NodeType kMax1{"MaxPool1DWithIndicesBackward0", max_backward},
    kMax2{"MaxPool2DWithIndicesBackward0", max_backward},
    kMax3{"MaxPool3DWithIndicesBackward0", max_backward},
    kScatter{"MaxPoolBackwardBackward0", scatter_backward}, kGather{"MaxPoolGatherBackward0", max_backward};

Tensor recorded(const NodeType& type, Tensor out, const Tensor& x, const Tensor& indices, const Pooling& p) {
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->save(indices);
    n->emplace<Pooling>(p);
    set_history(out, n);
  }
  return out;
}

Tensor max_scatter(const Tensor& g, const Tensor& indices, const Pooling& p) {
  Tensor out = empty_in(p.in_sizes(g.sizes()), options_of(g), p.format);
  launch_on(p, out, g, [&](const auto& ctx, const Tensor& dense) {
    max_backward_slots[p.last()](ctx, p.plan, out.data(), dense.data(), indices.data_as<int64_t>());
  });
  return recorded(kScatter, std::move(out), g, indices, p);
}

Tensor max_gather(const Tensor& x, const Tensor& indices, const Pooling& p) {
  Tensor out = empty_in(p.out_sizes(x.sizes()), options_of(x), p.format);
  launch_on(p, out, x, [&](const auto& ctx, const Tensor& dense) {
    gather_slots[p.last()](ctx, p.plan, out.data(), dense.data(), indices.data_as<int64_t>());
  });
  return recorded(kGather, std::move(out), x, indices, p);
}

std::tuple<Tensor, Tensor> max_pool(const Tensor& x, const Pooling& p) {
  Shape sizes = p.out_sizes(x.sizes());
  Tensor out = empty_in(sizes, options_of(x), p.format),
         indices = empty_in(sizes, {DType::Int64, x.device()}, p.format);
  launch_on(p, out, x, [&](const auto& ctx, const Tensor& dense) {
    max_slots[p.last()](ctx, p.plan, out.data(), indices.data_as<int64_t>(), dense.data());
  });
  out = recorded(p.spatial == 1 ? kMax1 : p.spatial == 2 ? kMax2 : kMax3, std::move(out), x, indices, p);
  return {std::move(out), std::move(indices)};
}

// ---- average --------------------------------------------------------------------------------------------

Tensor average(const NodeType& type, const Tensor& x, const Pooling& p);
Tensor spread(const Tensor& g, const Pooling& p);

void average_backward(Node& n, Gradients& g) { g.set(0, spread(g[0], n.data<Pooling>())); }
constexpr NodeType kAverages[2][3]{{{"AvgPool1DBackward0", average_backward},
                                    {"AvgPool2DBackward0", average_backward},
                                    {"AvgPool3DBackward0", average_backward}},
                                   {{"AdaptiveAvgPool1DBackward0", average_backward},
                                    {"AdaptiveAvgPool2DBackward0", average_backward},
                                    {"AdaptiveAvgPool3DBackward0", average_backward}}};
const NodeType& average_type(const Pooling& p) { return kAverages[p.plan.adaptive][p.spatial - 1]; }
void spread_backward(Node& n, Gradients& g) {
  const Pooling& p = n.data<Pooling>();
  g.set(0, average(average_type(p), g[0], p));
}
constexpr NodeType kSpread{"AvgPoolBackwardBackward0", spread_backward};

Tensor recorded(const NodeType& type, Tensor out, const Tensor& x, const Pooling& p) {
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->emplace<Pooling>(p);
    set_history(out, n);
  }
  return out;
}

Tensor average(const NodeType& type, const Tensor& x, const Pooling& p) {
  Tensor out = empty_in(p.out_sizes(x.sizes()), options_of(x), p.format);
  launch_on(p, out, x, [&](const auto& ctx, const Tensor& dense) {
    avg_slots[p.last()](ctx, p.plan, out.data(), dense.data());
  });
  return recorded(type, std::move(out), x, p);
}

Tensor spread(const Tensor& g, const Pooling& p) {
  Tensor out = empty_in(p.in_sizes(g.sizes()), options_of(g), p.format);
  launch_on(p, out, g, [&](const auto& ctx, const Tensor& dense) {
    avg_backward_slots[p.last()](ctx, p.plan, out.data(), dense.data());
  });
  return recorded(kSpread, std::move(out), g, p);
}

// ---- checks ---------------------------------------------------------------------------------------------

Shape per_dim(const char* op, const char* what, IntList given, int64_t spatial, int64_t least) {
  WT_CHECK(given.size() == 1 || static_cast<int64_t>(given.size()) == spatial, ShapeError, op, ": ", what,
           " must either be a single int, or a tuple of ", spatial, " ints, got ", AsShape{given});
  Shape out;
  for (int64_t d = 0; d < spatial; ++d) {
    out.push_back(given[given.size() == 1 ? 0 : d]);
    WT_CHECK(out.back() <= INT32_MAX, ShapeError, op, ": ", what, " is too large, got ", AsShape{given});
    WT_CHECK(out.back() >= least, ShapeError, op, ": ", what, " must be at least ", least, ", got ",
             AsShape{given});
  }
  return out;
}

enum class Takes : uint8_t { Floats, FloatsAndInt64, Numbers };

bool takes_dtype(const Tensor& x, Takes takes) {
  if (is_floating(x.dtype())) return true;
  return (takes == Takes::Numbers && x.dtype() != DType::Bool) ||
         (takes == Takes::FloatsAndInt64 && x.dtype() == DType::Int64);
}

Pooling start(const char* op, const Tensor& x, int64_t spatial, Takes takes) {
  WT_CHECK(x.ndim() == spatial + 1 || x.ndim() == spatial + 2, ShapeError, op, ": expected ", spatial + 1,
           "D or ", spatial + 2, "D input, got shape ", x.sizes());
  WT_CHECK(takes_dtype(x, takes), DtypeError, op, ": not implemented for ", x.dtype(),
           "; convert to a floating dtype first");
  Pooling p{};
  p.spatial = spatial;
  p.plan.dtype = x.dtype();
  p.plan.planes = 1;
  for (int64_t d = 0; d < x.ndim() - spatial; ++d) p.plan.planes *= x.sizes()[d];
  if (x.ndim() == spatial + 2 && !x.device().is_accelerator()) {
    p.format = suggested_format(x);
    p.plan.channels = x.sizes()[1];
  }
  for (int d = 0; d < 3; ++d)
    p.plan.in[d] = p.plan.out[d] = p.plan.kernel[d] = p.plan.stride[d] = p.plan.dilation[d] = 1;
  for (int64_t d = 0; d < spatial; ++d) {
    p.plan.in[d + 3 - spatial] = x.sizes()[x.ndim() - spatial + d];
    WT_CHECK(p.plan.in[d + 3 - spatial] > 0 && x.sizes()[x.ndim() - spatial - 1] > 0, ShapeError, op,
             ": expected input to have non-zero size for non-batch dims, got shape ", x.sizes());
  }
  return p;
}

Pooling windows(const char* op, const Tensor& x, int64_t spatial, IntList kernel,
                std::optional<IntList> stride, IntList padding, IntList dilation, bool ceil_mode,
                Takes takes) {
  Pooling p = start(op, x, spatial, takes);
  Shape size = per_dim(op, "kernel_size", kernel, spatial, 1),
        pad = per_dim(op, "padding", padding, spatial, 0);
  Shape step = !stride || stride->empty() ? size : per_dim(op, "stride", *stride, spatial, 1);
  Shape spread = per_dim(op, "dilation", dilation, spatial, 1);
  for (int64_t d = 0; d < spatial; ++d) {
    int64_t to = d + 3 - spatial, in = p.plan.in[to], reach = spread[d] * (size[d] - 1) + 1;
    WT_CHECK(2 * pad[d] <= reach, ShapeError, op,
             ": pad should be at most half of effective kernel size, but got pad=", pad[d],
             ", kernel_size=", size[d], " and dilation=", spread[d]);
    int64_t room = in + 2 * pad[d] - reach;
    int64_t out = room < 0 && !(ceil_mode && room + step[d] - 1 >= 0)
                      ? 0
                      : (room + (ceil_mode ? step[d] - 1 : 0)) / step[d] + 1;
    // A window may not start in the padding behind the input.
    if (ceil_mode && (out - 1) * step[d] >= in + pad[d]) --out;
    WT_CHECK(out > 0, ShapeError, op, ": given input size ", x.sizes(), ", the output size in dim ",
             x.ndim() - spatial + d, " is too small for kernel_size ", size);
    p.plan.out[to] = out, p.plan.kernel[to] = size[d], p.plan.stride[to] = step[d];
    p.plan.padding[to] = pad[d], p.plan.dilation[to] = spread[d];
  }
  return p;
}

// None among the sizes keeps the input's.
Pooling adaptive(const char* op, const Tensor& x, int64_t spatial, IntList sizes) {
  Pooling p = start(op, x, spatial, Takes::Floats);
  Shape wanted(sizes.begin(), sizes.end());
  for (size_t d = 0; d < wanted.size(); ++d)
    if (wanted[d] == kNoItem) wanted[d] = p.plan.in[d + 3 - wanted.size()];
  Shape out = per_dim(op, "output_size", wanted, spatial, 0);
  for (int64_t d = 0; d < spatial; ++d) p.plan.out[d + 3 - spatial] = out[d];
  p.plan.adaptive = true;
  return p;
}

// ---- ops ------------------------------------------------------------------------------------------------

using MaxPoolNNOp =
    Op<OneOrMany(const Tensor&, IntList, std::optional<IntList>, IntList, IntList, bool, bool)>;
constexpr const char* kMaxNames[] = {"", "max_pool1d", "max_pool2d", "max_pool3d"};
constexpr const char* kLpNames[] = {"", "lp_pool1d", "lp_pool2d", "lp_pool3d"};
constexpr const char* kAvgNames[] = {"", "avg_pool1d", "avg_pool2d", "avg_pool3d"};
constexpr const char* kAdaptiveMaxNames[] = {"", "adaptive_max_pool1d", "adaptive_max_pool2d",
                                             "adaptive_max_pool3d"};
constexpr const char* kAdaptiveAvgNames[] = {"", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
                                             "adaptive_avg_pool3d"};

template <int N>
std::tuple<Tensor, Tensor> max_pool_impl(const Tensor& x, IntList kernel, std::optional<IntList> stride,
                                         IntList padding, IntList dilation, bool ceil_mode) {
  const Takes takes = N == 1 ? Takes::Floats : Takes::Numbers;
  return max_pool(x, windows(kMaxNames[N], x, N, kernel, stride, padding, dilation, ceil_mode, takes));
}
OneOrMany one_or_both(std::tuple<Tensor, Tensor> both, bool return_indices) {
  auto& [values, indices] = both;
  if (return_indices) return std::vector<Tensor>{values, indices};
  return values;
}
template <int N>
OneOrMany max_pool_nn(const Tensor& x, IntList kernel, std::optional<IntList> stride, IntList padding,
                      IntList dilation, bool ceil_mode, bool return_indices) {
  return one_or_both(max_pool_impl<N>(x, kernel, stride, padding, dilation, ceil_mode), return_indices);
}
template <int N>
std::tuple<Tensor, Tensor> max_pool_both(const Tensor& x, IntList kernel, std::optional<IntList> stride,
                                         IntList padding, IntList dilation, bool ceil_mode, bool) {
  return max_pool_impl<N>(x, kernel, stride, padding, dilation, ceil_mode);
}
template <int N>
Tensor max_pool_root(const Tensor& x, IntList kernel, std::optional<IntList> stride, IntList padding,
                     IntList dilation, bool ceil_mode) {
  return std::get<0>(max_pool_impl<N>(x, kernel, stride, padding, dilation, ceil_mode));
}

template <int N>
Tensor avg_pool_impl(const Tensor& x, IntList kernel, std::optional<IntList> stride, IntList padding,
                     bool ceil_mode, bool count_include_pad, std::optional<int64_t> divisor) {
  constexpr int64_t kOne[] = {1};
  WT_CHECK(N != 2 || x.ndim() > N, IndexError, kAvgNames[N], ": expected ", N + 1, "D or ", N + 2,
           "D input, got shape ", x.sizes());
  Pooling p = windows(kAvgNames[N], x, N, kernel, stride, padding, kOne, ceil_mode, Takes::FloatsAndInt64);
  WT_CHECK(!divisor || *divisor != 0, ShapeError, kAvgNames[N], ": divisor must be not zero");
  p.plan.count_include_pad = count_include_pad;
  p.plan.divisor = divisor.value_or(0);
  return average(average_type(p), x, p);
}

template <int N>
constexpr std::array<int64_t, N> kLast = [] {
  std::array<int64_t, N> dims{};
  for (int64_t d = 0; d < N; ++d) dims[d] = d - N;
  return dims;
}();

template <int N>
Tensor adaptive_avg_impl(const Tensor& x, IntList sizes) {
  Pooling p = adaptive(kAdaptiveAvgNames[N], x, N, sizes);
  // One window of all: a reduction shares it out among the lanes.
  if (std::ranges::all_of(p.plan.out, [](int64_t n) { return n == 1; }) && !p.last() && x.device().is_host())
    return mean(x, OptDims(kLast<N>), true, std::nullopt);
  return average(average_type(p), x, p);
}

template <int N>
std::tuple<Tensor, Tensor> adaptive_max_impl(const Tensor& x, IntList sizes) {
  return max_pool(x, adaptive(kAdaptiveMaxNames[N], x, N, sizes));
}
template <int N>
OneOrMany adaptive_max_nn(const Tensor& x, IntList sizes, bool return_indices) {
  return one_or_both(adaptive_max_impl<N>(x, sizes), return_indices);
}
template <int N>
std::tuple<Tensor, Tensor> adaptive_max_both(const Tensor& x, IntList sizes, bool) {
  return adaptive_max_impl<N>(x, sizes);
}

// The norm_type-norm of each window.
template <int N>
Tensor lp_pool_impl(const Tensor& x, double norm_type, IntList kernel, std::optional<IntList> stride,
                    bool ceil_mode) {
  constexpr int64_t kNone[] = {0};
  double count = 1;
  for (int64_t size : per_dim(kLpNames[N], "kernel_size", kernel, N, 1)) count *= static_cast<double>(size);
  const AvgPoolOp& average = N == 1 ? avg_pool1d : N == 2 ? avg_pool2d : avg_pool3d;
  Tensor means = average(pow_ts(x, norm_type), kernel, stride, IntList(kNone), ceil_mode, true, std::nullopt);
  return pow_ts(sign(means) * relu(abs(means)) * count, 1 / norm_type);
}

const Arg kStride{"stride", none}, kPadding{"padding", {0}}, kDilation{"dilation", {1}},
    kCeil{"ceil_mode", false}, kReturnIndices{"return_indices", false}, kSizes{"output_size", kNoneItems};
// PyTorch has those of one dim at the top level, too, and computes some of three in float32 under autocast.
constexpr OpFacts at_root(int n) { return n == 1 ? OpFacts(kFunction) : OpFacts(); }
constexpr OpFacts wide(int n) { return n == 3 ? kFloat32Cpu : OpFacts(); }

}  // namespace

#define WT_POOL(N, shape)                                                                             \
  decltype(max_pool##N##d_with_indices) max_pool##N##d_with_indices{                                  \
      "max_pool" #N "d_with_indices",                                                                 \
      max_pool_both<N>,                                                                               \
      kNN | wide(N) | kFold##N##d,                                                                    \
      {"input", "kernel_size", kStride, kPadding, kDilation, kCeil, kReturnIndices},                  \
      "Maxima over windows of " shape ", and their flat places in the input's plane.",                \
      {"values", "indices"}};                                                                         \
  decltype(avg_pool##N##d) avg_pool##N##d{                                                            \
      "avg_pool" #N "d",                                                                              \
      avg_pool_impl<N>,                                                                               \
      kNN | at_root(N) | wide(N) | kFold##N##d | (N > 1 ? uint32_t{kOut} : 0),                        \
      {"input",                                                                                       \
       "kernel_size",                                                                                 \
       kStride,                                                                                       \
       kPadding,                                                                                      \
       kCeil,                                                                                         \
       {"count_include_pad", true},                                                                   \
       {"divisor_override", none}},                                                                   \
      "Averages over windows of " shape "."};                                                         \
  decltype(adaptive_avg_pool##N##d) adaptive_avg_pool##N##d{"adaptive_avg_pool" #N "d",               \
                                                            adaptive_avg_impl<N>,                     \
                                                            kNN | at_root(N) | wide(N) | kFold##N##d, \
                                                            {"input", kSizes},                        \
                                                            "Averages over as many windows of " shape \
                                                            " as output_size asks; None keeps a "     \
                                                            "size."};                                 \
  namespace {                                                                                         \
  const MaxPoolNNOp nn_max_pool##N##d{                                                                \
      "max_pool" #N "d",                                                                              \
      max_pool_nn<N>,                                                                                 \
      kNN | wide(N) | kFold##N##d,                                                                    \
      {"input", "kernel_size", kStride, kPadding, kDilation, kCeil, kReturnIndices},                  \
      "Maxima over windows of " shape ", and with return_indices their flat places in the plane."};   \
  const Op<Tensor(const Tensor&, IntList, std::optional<IntList>, IntList, IntList, bool)>            \
      root_max_pool##N##d{"max_pool" #N "d",                                                          \
                          max_pool_root<N>,                                                           \
                          kFunction | wide(N) | kFold##N##d,                                          \
                          {"input", "kernel_size", kStride, kPadding, kDilation, kCeil},              \
                          "Maxima over windows of " shape "."};                                       \
  const Op<OneOrMany(const Tensor&, IntList, bool)> nn_adaptive_max_pool##N##d{                       \
      "adaptive_max_pool" #N "d",                                                                     \
      adaptive_max_nn<N>,                                                                             \
      kNN,                                                                                            \
      {"input", kSizes, kReturnIndices},                                                              \
      "Maxima over as many windows of " shape                                                         \
      " as output_size asks, and with return_indices their flat places; None keeps a size."};         \
  const Op<std::tuple<Tensor, Tensor>(const Tensor&, IntList, bool)> both_adaptive_max_pool##N##d{    \
      "adaptive_max_pool" #N "d_with_indices",                                                        \
      adaptive_max_both<N>,                                                                           \
      kNN,                                                                                            \
      {"input", kSizes, kReturnIndices},                                                              \
      "Maxima over as many windows of " shape " as output_size asks, and their flat places."};        \
  const Op<Tensor(const Tensor&, double, IntList, std::optional<IntList>, bool)> lp_pool##N##d{       \
      "lp_pool" #N "d",                                                                               \
      lp_pool_impl<N>,                                                                                \
      kNN,                                                                                            \
      {"input", "norm_type", "kernel_size", kStride, kCeil},                                          \
      "The norm_type-norm of each window of " shape "."};                                             \
  }
WT_POOL(1, "[N, C, L]")
WT_POOL(2, "[N, C, H, W]")
WT_POOL(3, "[N, C, D, H, W]")

namespace {
const Op<std::tuple<Tensor, Tensor>(const Tensor&, IntList, std::optional<IntList>, IntList, IntList, bool)>
    root_max_pool1d_with_indices{"max_pool1d_with_indices",
                                 max_pool_impl<1>,
                                 kFunction,
                                 {"input", "kernel_size", kStride, kPadding, kDilation, kCeil},
                                 "Maxima over windows of [N, C, L], and their flat places.",
                                 {"values", "indices"}};
const Op<std::tuple<Tensor, Tensor>(const Tensor&, IntList)> root_adaptive_max_pool1d{
    "adaptive_max_pool1d",
    adaptive_max_impl<1>,
    kFunction | kFold1d,
    {"input", "output_size"},
    "Maxima over as many windows of [N, C, L] as output_size asks, and their flat places."};
}  // namespace

}  // namespace warptape::ops
