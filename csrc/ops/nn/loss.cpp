// Cross entropy and negative log-likelihood.
#include "ops/nn/loss.h"

#include <algorithm>
#include <bit>

#include "op/batching.h"
#include "op/constant.h"
#include "ops/index/gather.h"
#include "ops/index/masked.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/matmul.h"
#include "ops/nn/softmax.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "tensor/run_kernel.h"

namespace warptape::ops {
namespace {

using kernels::View;
kernels::Slot<kernels::CrossEntropyFn> cross_entropy_slot("cross_entropy");
kernels::Slot<kernels::CrossEntropyRowsFn> cross_entropy_rows_slot("cross_entropy_rows");
kernels::Slot<kernels::CrossEntropySumFn> cross_entropy_sum_slot("cross_entropy_sum");
kernels::Slot<kernels::CrossEntropyBackwardFn> cross_entropy_backward_slot("cross_entropy_backward");
ElementwiseSlot ne_slot{"ne"};

Shape without_dim(const Shape& sizes, int64_t dim) {
  Shape out;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d)
    if (d != dim) out.push_back(sizes[d]);
  return out;
}

// Where the classes lie: dim 1 of a batch, else dim 0.
int64_t class_dim(const Tensor& input) { return input.ndim() == 1 ? 0 : 1; }

void check_target(const char* op, const Tensor& input, const Tensor& target, const Tensor& weight) {
  check_floating(op, input);
  WT_CHECK(input.ndim() >= 1, ShapeError, op, ": expected an input of at least 1 dim, got ", input);
  WT_CHECK(target.dtype() == DType::Int64 || target.dtype() == DType::UInt8, DtypeError, op,
           ": expected target of dtype int64 (class indices), got ", target, "; convert it with .long()");
  const Shape expected = without_dim(input.sizes(), class_dim(input));
  WT_CHECK(input.ndim() > 2 || target.ndim() <= 1, ShapeError, op,
           ": 0D or 1D target tensor expected, multi-target not supported: expected target of shape ",
           expected, " for an input of shape ", input.sizes(), ", got ", target.sizes());
  WT_CHECK(target.sizes() == expected, ShapeError, op, ": expected target of shape ", expected,
           " for an input of shape ", input.sizes(), ", got ", target.sizes());
  check_same_device(op, input, target, "target");
  const int64_t classes = input.sizes()[class_dim(input)];
  WT_CHECK(!weight.defined() || (weight.ndim() == 1 && weight.sizes()[0] == classes), ShapeError, op,
           ": weight tensor should be defined either for all ", classes,
           " classes or no classes but got weight of shape ", weight.sizes());
}

// Permutes raw geometry: the class dim goes last (or, back, from last to its place).
Tensor classes_last(const Tensor& x, bool back = false) {
  if (x.ndim() < 3) return x;
  Shape sizes = x.sizes(), strides = x.strides();
  auto turn = [&](Shape& s) {
    if (back)
      std::rotate(s.begin() + 1, s.end() - 1, s.end());
    else
      std::rotate(s.begin() + 1, s.begin() + 2, s.end());
  };
  turn(sizes);
  turn(strides);
  return alias(x, sizes, strides, x.offset());
}

struct CrossEntropyData {
  int64_t ignore_index;
  double label_smoothing;
  Reduction reduction;
};

// What the kernels read, contiguous: logits [rows / inner, classes, inner], target [rows], weight [classes].
struct Planned {
  bool turned;  // the class dim goes last: on devices, and where it lies so
  Tensor logits, target, weight;
  int64_t classes, inner = 1;

  Planned(const Tensor& input, const Tensor& t, const Tensor& w)
      : turned(input.ndim() > 2 && (!input.device().is_host() || classes_last(input).is_contiguous())),
        logits(raw_contiguous(turned ? classes_last(input) : input)),
        target(raw_contiguous(raw_cast(t, DType::Int64))),
        weight(w.defined() ? raw_contiguous(raw_cast(w, input.dtype())) : w),
        classes(input.sizes()[class_dim(input)]) {
    if (!turned)
      for (int64_t d = 2; d < input.ndim(); ++d) inner *= input.sizes()[d];
  }
};

kernels::CrossEntropyPlan plan_of(const View& logits, const View& target, const View& weight, int64_t rows,
                                  int64_t classes, int64_t inner, const CrossEntropyData& d) {
  return {logits, target, weight, rows, classes, inner, d.ignore_index, d.label_smoothing, d.reduction};
}

// Of logits, target, weight: losses, weights, lse. By the dim that an error names.
template <int kDim>
constexpr KernelInfo kRowLosses{
    .name = "cross_entropy", .rows_in = 0b011, .rows_out = 0b111, .index_dim = kDim};
constexpr KernelInfo kInnerLosses{.name = "cross_entropy", .index_dim = 1};  // where inner is not 1
constexpr KernelInfo kSumLosses{"cross_entropy_sum"};
// Of logits, target, lse and gradient, which is one for each row or one for all, weight, total.
template <bool kEachRow>
constexpr KernelInfo kRowGradients{
    .name = "cross_entropy_backward", .rows_in = kEachRow ? 0b1111 : 0b0111, .rows_out = 0b1, .over = 0};
constexpr KernelInfo kInnerGradients{.name = "cross_entropy_backward", .over = 0};

// In a region on the CPU the rows are noted as a kernel that others join, and the sums behind it.
void fused_forward(const Tensor& loss, const Tensor& lse, const Tensor& total, const Planned& p, int dim,
                   const CrossEntropyData& d) {
  const int64_t n = p.target.numel();
  if (!thread_state().deferral || !loss.device().is_host()) {
    if (loss.is_meta()) return;
    Launch launch(loss.device());
    cross_entropy_slot(launch, loss.view(), lse.view(), total.view(),
                       plan_of(p.logits.planned_view(), p.target.planned_view(), planned_view_of(p.weight), n,
                               p.classes, p.inner, d));
    return launch.check_index("cross_entropy", dim);
  }
  const Tensor losses = empty(lse.sizes(), options_of(lse)), weights = empty(lse.sizes(), options_of(lse));
  const KernelInfo& info = p.inner != 1 ? kInnerLosses : dim ? kRowLosses<1> : kRowLosses<0>;
  run_kernel(info, {p.logits, p.target, p.weight}, {losses, weights, lse}, n,
             [classes = p.classes, inner = p.inner, d](const auto& ctx, const View* in, const View* out,
                                                       int64_t rows) {
               cross_entropy_rows_slot(ctx, out[0], out[1], out[2],
                                       plan_of(in[0], in[1], in[2], rows, classes, inner, d));
             });
  run_kernel(kSumLosses, {losses, weights}, {loss, total}, n,
             [reduction = d.reduction](const auto& ctx, const View* in, const View* out, int64_t rows) {
               cross_entropy_sum_slot(ctx, out[0], out[1], in[0], in[1], rows, reduction);
             });
}

// saved: input, target, weight, lse, total_weight. `over`: the input's memory may become the gradient's.
Tensor fused_backward(const Tensor& grad, const Tensor& input, const Tensor& target, const Tensor& weight,
                      const Tensor& lse, const Tensor& total_weight, const CrossEntropyData& d,
                      bool over = false) {
  Planned p(input, target, weight);
  Tensor g = raw_contiguous(grad);
  // A copy is ours in any case. A program finds out by itself where that goes (KernelInfo::over).
  over |= !thread_state().deferral && &p.logits.storage() != &input.storage();
  Tensor dx = over ? alias(p.logits) : empty(p.logits.sizes(), options_of(p.logits));
  if (dx.numel())
    run_kernel(p.inner != 1                     ? kInnerGradients
               : d.reduction == Reduction::None ? kRowGradients<true>
                                                : kRowGradients<false>,
               {p.logits, p.target, lse, g, p.weight, total_weight}, {dx}, p.target.numel(),
               [classes = p.classes, inner = p.inner, d](const auto& ctx, const View* in, const View* out,
                                                         int64_t rows) {
                 cross_entropy_backward_slot(ctx, out[0], in[3], in[2], in[5],
                                             plan_of(in[0], in[1], in[4], rows, classes, inner, d));
               });
  return p.turned ? classes_last(dx, true) : dx;
}

// Every row's weight, 0 for ignored ones, and its target with those replaced by 0; constants of shape `kept`,
// in which the class dim is 1.
struct RowWeights {
  Tensor index, weight, ignored;
};
RowWeights row_weights(const Shape& kept, DType dtype, const Tensor& target, const Tensor& weight,
                       int64_t ignore_index) {
  NoGrad no_grad;
  Tensor t = reshape(raw_cast(target, DType::Int64), kept);
  Tensor valid = pointwise("ne", ne_slot, ResultRule::Equal, {t, Scalar(ignore_index)});
  Tensor index = t * raw_cast(valid, DType::Int64);
  Tensor w = raw_cast(valid, dtype);
  if (weight.defined())
    w = w * reshape(index_select(raw_cast(weight, dtype), 0, reshape(index, Shape{-1})), kept);
  return {index, w, logical_not(valid)};
}
// The input's shape with the class dim as 1.
Shape one_class(const Tensor& input) {
  Shape kept = input.sizes();
  kept[class_dim(input)] = 1;
  return kept;
}

// dx = g * (s * p - q), where s and q depend on the targets alone. With the fused kernel's D = s * p - q that
// is g * (s * (softmax(x) - p) + D): the same value, and differentiable.
Tensor composed_backward(const Tensor& grad, const Tensor& input, const Tensor& target, const Tensor& weight,
                         const Tensor& lse, const Tensor& total_weight, const CrossEntropyData& d) {
  const int64_t dim = class_dim(input);
  Tensor fused, constant, s;
  {
    NoGrad no_grad;
    CrossEntropyData sum = d;
    sum.reduction = Reduction::Sum;
    Tensor one = full(Shape{}, 1.0, options_of(input));
    fused = fused_backward(one, input, target, weight, lse, total_weight, sum);
    constant = softmax(input, dim, std::nullopt);
    RowWeights rows = row_weights(one_class(input), input.dtype(), target, weight, d.ignore_index);
    const double classes = static_cast<double>(input.sizes()[dim]);
    s = rows.weight * Scalar(1 - d.label_smoothing);
    if (d.label_smoothing != 0) {
      // Ignored rows have no part in the smoothing either.
      Tensor valid = raw_cast(logical_not(rows.ignored), input.dtype());
      Tensor all = weight.defined() ? sum_all(raw_cast(weight, input.dtype()))
                                    : full(Shape{}, classes, options_of(input));
      s = s + valid * all * Scalar(d.label_smoothing / classes);
    }
  }
  Tensor g = grad;
  if (d.reduction == Reduction::None) {
    g = reshape(g, one_class(input));
  } else if (d.reduction == Reduction::Mean) {
    g = g / tape_cast(total_weight, grad.dtype());
  }
  return g * (s * (softmax(input, dim, std::nullopt) - constant) + fused);
}

void cross_entropy_backward(Node& n, Gradients& g) {
  const CrossEntropyData& d = n.data<CrossEntropyData>();
  const bool over = g.last() && !thread_state().grad_mode && only_saved(n, 0);
  Tensor input = n.saved(0), target = n.saved(1), weight = n.saved(2), lse = n.saved(3), total = n.saved(4);
  if (needs_grad(g[0], input)) return g.set(0, composed_backward(g[0], input, target, weight, lse, total, d));
  if (over) n.release_saved();  // before the logits are gone: what follows may fail
  g.set(0, fused_backward(g[0], input, target, weight, lse, total, d, over));
}
constexpr NodeType kCrossEntropy{"CrossEntropyBackward0", cross_entropy_backward};

Tensor cross_entropy_of_indices(const Tensor& input, const Tensor& target, const Tensor& weight,
                                const CrossEntropyData& d, DType dtype) {
  check_target("cross_entropy", input, target, weight);
  Planned p(input, target, weight);
  const TensorOptions stats{stats_dtype(input.dtype()), input.device()};
  Tensor lse = empty(Shape{p.target.numel()}, stats), total = empty(Shape{}, stats);
  Tensor loss =
      empty(d.reduction == Reduction::None ? target.sizes() : Shape{}, TensorOptions{dtype, input.device()});
  fused_forward(loss, lse, total, p, static_cast<int>(class_dim(input)), d);
  if (needs_grad(input)) {
    Ref<Node> n = record(kCrossEntropy, input);
    for (const Tensor& t : {input, target, weight, lse, total}) n->save(t);
    n->emplace<CrossEntropyData>(d);
    set_history(loss, n);
  }
  return loss;
}

Tensor reduced(const Tensor& loss, Reduction reduction, double count) {
  if (reduction == Reduction::None) return loss;
  Tensor sum = sum_all(loss);
  return reduction == Reduction::Mean ? sum / Scalar(count) : sum;
}

// Targets are probabilities of the classes.
Tensor cross_entropy_of_probabilities(const Tensor& input, const Tensor& target, const Tensor& weight,
                                      const CrossEntropyData& d) {
  WT_CHECK(
      target.sizes() == input.sizes(), ShapeError,
      "cross_entropy: target of floating dtype is taken as probabilities and must have the input's shape ",
      input.sizes(), ", got ", target.sizes());
  check_floating("cross_entropy", input);
  const int64_t dim = class_dim(input);
  const double classes = static_cast<double>(input.sizes()[dim]);
  Tensor t = target;
  if (d.label_smoothing != 0) t = t * Scalar(1 - d.label_smoothing) + Scalar(d.label_smoothing / classes);
  if (weight.defined()) {
    Shape row(input.sizes().size(), 1);
    row[dim] = weight.numel();
    t = t * reshape(weight, row);
  }
  Tensor rows = -sum_to(log_softmax(input, dim, std::nullopt) * t, one_class(input));
  Tensor loss = reshape(rows, without_dim(input.sizes(), dim));
  return reduced(loss, d.reduction, static_cast<double>(loss.numel()));
}

// Of indices the loss has the given dtype.
Tensor cross_entropy_in(DType dtype, const Tensor& input, const Tensor& target, const OptTensor& weight,
                        std::optional<bool> size_average, int64_t ignore_index, std::optional<bool> reduce,
                        std::string_view reduction, double label_smoothing) {
  WT_CHECK(label_smoothing >= 0 && label_smoothing <= 1, Error,
           "cross_entropy: label_smoothing must be between 0.0 and 1.0. Got: ", label_smoothing);
  const CrossEntropyData d{ignore_index, label_smoothing,
                           reduction_of("cross_entropy", size_average, reduce, reduction)};
  WT_CHECK(is_floating(target.dtype()) || target.sizes() != input.sizes(), DtypeError,
           "cross_entropy: Expected floating point type for target with class probabilities, got ",
           target.dtype());
  if (is_floating(target.dtype()))
    return cross_entropy_of_probabilities(input, target, or_undefined(weight), d);
  check_constant("cross_entropy", "weight", weight);
  return cross_entropy_of_indices(input, target, or_undefined(weight), d, dtype);
}

Tensor cross_entropy_impl(const Tensor& input, const Tensor& target, const OptTensor& weight,
                          std::optional<bool> size_average, int64_t ignore_index, std::optional<bool> reduce,
                          std::string_view reduction, double label_smoothing) {
  return cross_entropy_in(input.dtype(), input, target, weight, size_average, ignore_index, reduce, reduction,
                          label_smoothing);
}

// The kernel computes in float32 whatever it reads, so narrow logits need no wide copy for a wide loss. A
// weight would be rounded to the logits' dtype.
Tensor cross_entropy_float32_impl(const Tensor& input, const Tensor& target, const OptTensor& weight,
                                  std::optional<bool> size_average, int64_t ignore_index,
                                  std::optional<bool> reduce, std::string_view reduction,
                                  double label_smoothing) {
  auto wide = [](const Tensor& t) {
    return is_floating(t.dtype()) && t.dtype() != DType::Float64 ? tape_cast(t, DType::Float32) : t;
  };
  const bool as_it_is = input.device().is_accelerator() && !is_floating(target.dtype()) && !weight &&
                        (input.dtype() == DType::BFloat16 || input.dtype() == DType::Float16);
  const Tensor x = as_it_is ? input : wide(input);
  return cross_entropy_in(stats_dtype(x.dtype()), x, wide(target), weight ? OptTensor(wide(*weight)) : weight,
                          size_average, ignore_index, reduce, reduction, label_smoothing);
}

Tensor nll_loss_impl(const Tensor& input, const Tensor& target, const OptTensor& weight,
                     std::optional<bool> size_average, int64_t ignore_index, std::optional<bool> reduce,
                     std::string_view reduction) {
  check_constant("nll_loss", "weight", weight);
  check_target("nll_loss", input, target, or_undefined(weight));
  const Reduction how = reduction_of("nll_loss", size_average, reduce, reduction);
  RowWeights rows = row_weights(one_class(input), input.dtype(), target, or_undefined(weight), ignore_index);
  // What an ignored row holds may not be a number.
  Tensor picked =
      masked_fill(gather_classes("nll_loss", input, class_dim(input), rows.index), rows.ignored, 0);
  Tensor losses = reshape(-(picked * rows.weight), target.sizes());
  if (how == Reduction::None) return losses;
  return how == Reduction::Mean ? sum_all(losses) / sum_all(rows.weight) : sum_all(losses);
}

// ---- cross entropy of linear's logits, those of some rows at a time ----
// x [N, in], w [C, in], bias [C], target [N]

struct ChunkData {
  int64_t rows, ignore_index;
};

// Rows of a chunk: as many as asked for, or, of -f (0: f = 2), a power of two so that a chunk's logits take
// no more memory than x, divided by f.
int64_t chunk_rows(int64_t asked, const Tensor& x, int64_t classes) {
  const int64_t rows = x.size(0), share = (classes - 1) / std::max<int64_t>(x.size(1), 1) + 1;
  const auto fitting = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>((rows - 1) / share + 1)));
  return std::clamp<int64_t>(asked > 0 ? asked : fitting / (asked ? -asked : 2), 1, rows);
}

// The logits are computed again, a chunk of them at a time; sums over chunks are in float32 or float64.
void chunked_backward(Node& n, Gradients& g) {
  const ChunkData& d = n.data<ChunkData>();
  const Tensor x = n.saved(0), w = n.saved(1), target = n.saved(2), bias = n.saved(3), weight = n.saved(4);
  const OptTensor row = bias.defined() ? OptTensor(bias) : std::nullopt;
  std::vector<Tensor> dx;
  Tensor dw, db;
  const auto add_to = [](Tensor& sum, const Tensor& part) {
    const Tensor wide = tape_cast(part, stats_dtype(part.dtype()));
    sum = sum.defined() ? sum + wide : wide;
  };
  for (int64_t begin = 0; begin < x.size(0); begin += d.rows) {
    const int64_t count = std::min(d.rows, x.size(0) - begin);
    const Tensor part = narrow(x, 0, begin, count), logits = linear(part, w, row);
    const Shape kept{count, 1};
    const RowWeights rows =
        row_weights(kept, x.dtype(), narrow(target, 0, begin, count), weight, d.ignore_index);
    const Tensor scale = reshape(narrow(g[0], 0, begin, count), kept) * rows.weight;
    const Tensor up = scatter_add(softmax(logits, 1, std::nullopt) * scale, 1, rows.index, -scale);
    if (g.wants(0)) dx.push_back(matmul(up, w));
    if (g.wants(1)) add_to(dw, matmul(t(up), part));
    if (g.wants(2)) add_to(db, sum_to(up, Shape{1, w.size(0)}));
  }
  if (g.wants(0)) g.set(0, cat(dx, 0));
  if (g.wants(1)) g.set(1, tape_cast(dw, w.dtype()));
  if (g.wants(2)) g.set(2, tape_cast(reshape(db, bias.sizes()), bias.dtype()));
}
constexpr NodeType kChunked{"LinearCrossEntropyBackward0", chunked_backward};

Tensor chunked_losses(const Tensor& x, const Tensor& w, const Tensor& target, const Tensor& bias,
                      const Tensor& weight, const ChunkData& d) {
  std::vector<Tensor> losses;
  {
    NoGrad no_grad;
    const OptTensor row = bias.defined() ? OptTensor(bias) : std::nullopt;
    for (int64_t begin = 0; begin < x.size(0); begin += d.rows) {
      const int64_t count = std::min(d.rows, x.size(0) - begin);
      losses.push_back(cross_entropy_of_indices(linear(narrow(x, 0, begin, count), w, row),
                                                narrow(target, 0, begin, count), weight,
                                                {d.ignore_index, 0, Reduction::None}, x.dtype()));
    }
  }
  Tensor out = cat(losses, 0);
  if (needs_grad(x, w, bias)) {
    Ref<Node> n = record(kChunked, x, w, bias);
    for (const Tensor& t : {x, w, target, bias, weight}) n->save(t);
    n->emplace<ChunkData>(d);
    set_history(out, n);
  }
  return out;
}

Tensor chunked(const Tensor& given, const Tensor& w, const Tensor& targets, const OptTensor& bias,
               const OptTensor& weight, Reduction reduction, int64_t ignore_index, int64_t options) {
  const Tensor x = given.ndim() == 1 ? unsqueeze(given, 0) : given;
  const Tensor target = reshape(targets, Shape{x.size(0)});
  const ChunkData d{chunk_rows(options, x, w.size(0)), ignore_index};
  const Tensor losses = chunked_losses(x, w, target, or_undefined(bias), or_undefined(weight), d);
  if (reduction == Reduction::None) return reshape(losses, targets.sizes());
  const Tensor sum = sum_all(losses);
  if (reduction == Reduction::Sum) return sum;
  return sum /
         sum_all(row_weights(target.sizes(), x.dtype(), target, or_undefined(weight), ignore_index).weight);
}

// The logits' classes are the weight's first dim; what lies between it and the last one are dims of the loss.
Tensor linear_cross_entropy_impl(const Tensor& x, const Tensor& w, const Tensor& target,
                                 const OptTensor& bias, const OptTensor& weight, std::string_view reduction,
                                 std::optional<int64_t> ignore_index, double label_smoothing,
                                 std::optional<int64_t> options) {
  const char* op = "linear_cross_entropy";
  if (!is_floating(target.dtype())) check_constant(op, "weight", weight);
  WT_CHECK(x.ndim() == 1 || x.ndim() == 2, ShapeError, op,
           ": expected input with dimensionality 1 or 2, got ", x.ndim());
  WT_CHECK(w.ndim() >= 2, ShapeError, op, ": expected linear_weight with dimensionality at least 2, got ",
           w.ndim());
  WT_CHECK(x.size(-1) == w.size(-1), ShapeError, op,
           ": expected equal input and linear_weight last dimensions (in_features), got ", x.size(-1),
           " and ", w.size(-1));
  const Shape outputs(w.sizes().begin(), w.sizes().end() - 1);
  WT_CHECK(!bias || bias->sizes() == outputs, ShapeError, op, ": expected linear_bias shape ", outputs,
           ", got ", bias ? bias->sizes() : Shape());
  WT_CHECK(w.ndim() == 2 || x.ndim() == 2, ShapeError, op, ": a linear_weight of shape ", w.sizes(),
           " requires batched input [N, in_features], got ", x.sizes());
  const Shape one_per_row(x.sizes().begin(), x.sizes().end() - 1);
  Shape sizes = one_per_row;
  sizes.append(outputs.begin(), outputs.end());
  WT_CHECK(target.sizes() != sizes || !ignore_index, Error, op,
           ": ignore_index cannot be specified when target contains probabilities");
  if (options) {
    const bool one_target = target.dtype() == DType::Int64 && target.sizes() == one_per_row;
    if (one_target && label_smoothing == 0 && w.ndim() == 2 && target.numel())
      return chunked(x, w, target, bias, weight, reduction_of(op, {}, {}, reduction),
                     ignore_index.value_or(-100), *options);
    warn(message(op,
                 ": options ignored; chunks need targets of class indices (int64), label_smoothing == 0 "
                 "and a linear_weight of two dims"));
  }
  const int64_t rows = numel_of(outputs);
  const OptTensor row = bias ? OptTensor(reshape(*bias, Shape{rows})) : std::nullopt;
  const Tensor logits = linear(x, reshape(w, Shape{rows, w.size(-1)}), row);
  return cross_entropy(reshape(logits, sizes), target, weight, std::nullopt, ignore_index.value_or(-100),
                       std::nullopt, reduction, label_smoothing);
}
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const OptTensor&, const OptTensor&,
                std::string_view, std::optional<int64_t>, double, std::optional<int64_t>)>
    linear_cross_entropy{
        "linear_cross_entropy",
        linear_cross_entropy_impl,
        kNN,
        {"input",
         "linear_weight",
         "target",
         {"linear_bias", none, kKeywordOnly},
         {"weight", none, kKeywordOnly},
         {"reduction", "mean", kKeywordOnly},
         {"ignore_index", none, kKeywordOnly},
         {"label_smoothing", 0.0, kKeywordOnly},
         {"options", none, kKeywordOnly}},
        "cross_entropy of the logits input [N, in] @ linear_weight [C, *, in]^T; with options, "
        "a nn.LinearCrossEntropyOptions or a number of rows, those of some rows at a time."};

}  // namespace

Reduction reduction_of(const char* op, std::optional<bool> size_average, std::optional<bool> reduce,
                       std::string_view reduction) {
  if (size_average || reduce) {
    const bool none = !reduce.value_or(true), mean = size_average.value_or(true);
    warn(message("size_average and reduce args will be deprecated, please use reduction='",
                 none   ? "none"
                 : mean ? "mean"
                        : "sum",
                 "' instead."));
    return none ? Reduction::None : mean ? Reduction::Mean : Reduction::Sum;
  }
  if (reduction == "mean") return Reduction::Mean;
  if (reduction == "sum") return Reduction::Sum;
  WT_CHECK(reduction == "none", ValueError, op, ": ", reduction,
           " is not a valid value for reduction; expected 'none', 'mean' or 'sum'");
  return Reduction::None;
}

Reduction reduction_of(const char* op, int64_t reduction) {
  WT_CHECK(reduction >= 0 && reduction <= 2, ValueError, op,
           ": expected reduction 0 (none), 1 (mean) or 2 (sum), got ", reduction);
  constexpr Reduction kByNumber[]{Reduction::None, Reduction::Mean, Reduction::Sum};
  return kByNumber[reduction];
}

Tensor reduced(const Tensor& losses, Reduction reduction) {
  if (reduction == Reduction::None) return losses;
  return (reduction == Reduction::Mean ? mean : sum)(losses, std::nullopt, false, std::nullopt);
}

#define WT_CROSS_ENTROPY_ARGS          \
  {"input",                            \
   "target",                           \
   {"weight", none},                   \
   {"size_average", none},             \
   Arg::integer("ignore_index", -100), \
   {"reduce", none},                   \
   {"reduction", "mean"},              \
   {"label_smoothing", 0.0}}
decltype(cross_entropy) cross_entropy("cross_entropy", cross_entropy_impl,
                                      kNN | kFloat32Cpu | float32_form_cuda(cross_entropy_float32) |
                                          batching::cross_entropy,
                                      WT_CROSS_ENTROPY_ARGS,
                                      "Cross entropy of logits [N, C, ...] against class indices [N, ...] or "
                                      "probabilities of the input's shape.");
decltype(cross_entropy_float32) cross_entropy_float32("_cross_entropy_float32", cross_entropy_float32_impl,
                                                      kPrivate | kChecked, WT_CROSS_ENTROPY_ARGS,
                                                      "cross_entropy of float16 or bfloat16 logits with a "
                                                      "float32 loss: what autocast makes of it on CUDA.");
#undef WT_CROSS_ENTROPY_ARGS
decltype(nll_loss) nll_loss("nll_loss", nll_loss_impl, kNN | kFloat32 | batching::cross_entropy,
                            {"input",
                             "target",
                             {"weight", none},
                             {"size_average", none},
                             Arg::integer("ignore_index", -100),
                             {"reduce", none},
                             {"reduction", "mean"}},
                            "Minus the log-probabilities [N, C, ...] at the class indices [N, ...].");

}  // namespace warptape::ops
