// Losses with a margin. Legend: N batch, C classes, D elements of a vector.
#include "op/forms.h"
#include "ops/index/gather.h"
#include "ops/index/masked.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/distance.h"
#include "ops/nn/loss.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using Flag = std::optional<bool>;

Tensor at_least_zero(const Tensor& x) { return clamp(x, Scalar(0), std::nullopt); }
// As PyTorch's kernels compare: NaN counts as 0.
Tensor positive_part(const Tensor& x) { return where_ts(gt_ts(detach(x), 0), x, Scalar(0)); }
Tensor sum_of(const Tensor& x, int64_t dim) { return sum(x, IntList{&dim, 1}, false, std::nullopt); }

// ---- of one or two inputs and a target of 1 and -1 -----------------------------------------------------

Tensor hinge_embedding(const Tensor& x, const Tensor& target, double margin, Reduction how) {
  const Tensor limit = full(Shape{}, margin, options_of(x));  // rounded to x's dtype, as in PyTorch
  Tensor far = where_ts(ne_ts(target, 1), at_least_zero(limit - x), Scalar(0));
  Tensor near = where_ts(ne_ts(target, -1), x, Scalar(0));
  return reduced(far + near, how);
}

Tensor cosine_embedding(const Tensor& x1, const Tensor& x2, const Tensor& target, double margin,
                        Reduction how) {
  const char* op = "cosine_embedding_loss";
  WT_CHECK(target.ndim() <= 1, ShapeError, op,
           ": 0D or 1D target tensor expected, multi-target not supported, got ", target.sizes());
  const int64_t nd = target.ndim() + 1;
  WT_CHECK(x1.ndim() == nd && x2.ndim() == nd, ShapeError, op, ": ", nd - 1, "D target tensor expects ", nd,
           "D input tensors, but found inputs with sizes ", x1.sizes(), " and ", x2.sizes());
  const double eps = 1e-12;
  Tensor squares = (sum_of(x1 * x1, -1) + eps) * (sum_of(x2 * x2, -1) + eps);
  Tensor cosine = sum_of(x1 * x2, -1) / sqrt(squares);
  Tensor near = where_ts(eq_ts(target, 1), 1 - cosine, Scalar(0));
  Tensor far = where_ts(eq_ts(target, -1), at_least_zero(cosine - margin), Scalar(0));
  return reduced(near + far, how);
}

Tensor margin_ranking(const Tensor& x1, const Tensor& x2, const Tensor& target, double margin,
                      Reduction how) {
  WT_CHECK(x1.ndim() == x2.ndim() && x1.ndim() == target.ndim(), ShapeError,
           "margin_ranking_loss : All input tensors should have same dimension but got sizes: input1: ",
           x1.sizes(), ", input2: ", x2.sizes(), ", target: ", target.sizes());
  return reduced(at_least_zero(-target * (x1 - x2) + margin), how);
}

Tensor soft_margin_impl(const Tensor& x, const Tensor& target, Flag size_average, Flag reduce,
                        std::string_view reduction) {
  const Reduction how = reduction_of("soft_margin_loss", size_average, reduce, reduction);
  return reduced(log1p(exp(-x * target)), how);
}

// ---- triplets ------------------------------------------------------------------------------------------

Tensor triplet_margin(const Tensor& anchor, const Tensor& positive, const Tensor& negative, double margin,
                      double p, double eps, bool swap, Reduction how) {
  WT_CHECK(anchor.ndim() == positive.ndim() && positive.ndim() == negative.ndim(), ShapeError,
           "triplet_margin_loss: The anchor, positive, and negative tensors are expected to have the same "
           "number of dimensions, but got: anchor ",
           anchor.ndim(), "D, positive ", positive.ndim(), "D, and negative ", negative.ndim(), "D inputs");
  Tensor near = pairwise_distance(anchor, positive, p, eps, false);
  Tensor far = pairwise_distance(anchor, negative, p, eps, false);
  if (swap) far = minimum(far, pairwise_distance(positive, negative, p, eps, false));
  return reduced(at_least_zero(near - far + margin), how);
}

// ---- of classes ----------------------------------------------------------------------------------------

void check_classes(const char* op, const Tensor& target, int64_t classes) {
  if (target.device().is_meta() || target.numel() == 0 || !target.device().is_host()) return;
  NoGrad no_grad;
  WT_CHECK(!item(any(logical_or(lt_ts(target, 0), ge_ts(target, classes)), std::nullopt, false)).to_bool(),
           Error, op, ": target out of range: expected class indices from 0 to ", classes - 1);
}

Tensor multi_margin_impl(const Tensor& x, const Tensor& target, int64_t p, double margin,
                         const OptTensor& weight, Flag size_average, Flag reduce,
                         std::string_view reduction) {
  const char* op = "multi_margin_loss";
  const Reduction how = reduction_of(op, size_average, reduce, reduction);
  WT_CHECK(p == 1 || p == 2, ValueError, op, ": only p == 1 and p == 2 supported, got ", p);
  WT_CHECK(!weight || weight->ndim() == 1, ValueError, op, ": weight must be one-dimensional, got ",
           weight->sizes());
  check_floating(op, x);
  const int64_t count = x.ndim() == 2 ? x.sizes()[0] : 1, classes = x.ndim() ? x.sizes().back() : 1;
  WT_CHECK(x.ndim() <= 2 && classes > 0, ShapeError, op,
           ": Expected non-empty vector or matrix with optional 0-dim batch size, but got: ", x.sizes());
  WT_CHECK(
      target.ndim() <= 1 && target.numel() == count, ShapeError, op,
      ": inconsistent target size: the target tensor should be 1-D with size equal to that of the batch. "
      "Expected target size ",
      Shape{count}, " but got ", target.sizes());
  WT_CHECK(target.dtype() == DType::Int64, DtypeError, op, ": expected scalar type Long but found ",
           target.dtype());
  WT_CHECK(!weight || weight->numel() == classes, ShapeError, op, ": inconsistent weight size, expected ",
           classes, " but got ", weight->sizes());
  check_classes(op, target, classes);
  Tensor scores = reshape(x, Shape{count, classes}), index = reshape(target, Shape{count, 1});
  Tensor loss = positive_part(scores - gather(scores, 1, index, false) + margin);
  if (p == 2) loss = square(loss);
  if (weight) loss = loss * unsqueeze(index_select(*weight, 0, reshape(target, Shape{count})), 1);
  loss = sum_of(scatter_value(loss, 1, index, 0.0), 1) / static_cast<double>(classes);
  return reduced(how == Reduction::None ? reshape(loss, target.sizes()) : loss, how);
}

// The classes before the first -1 are the targets.
Tensor multilabel_margin_impl(const Tensor& x, const Tensor& target, Flag size_average, Flag reduce,
                              std::string_view reduction) {
  const char* op = "multilabel_margin_loss";
  const Reduction how = reduction_of(op, size_average, reduce, reduction);
  check_floating(op, x);
  WT_CHECK(target.dtype() == DType::Int64, DtypeError, op, ": expected scalar type Long but found ",
           target.dtype());
  const int64_t classes = x.ndim() ? x.sizes().back() : 1;
  WT_CHECK(x.sizes() == target.sizes() && x.ndim() <= 2 && classes > 0, ShapeError, op,
           ": Expected non-empty vector or matrix and a target of its shape, got ", x.sizes(), " and ",
           target.sizes());
  const Shape rows{-1, classes};
  Tensor scores = reshape(x, rows), y = reshape(target, rows);
  Tensor counts = cumprod(cast(ge_ts(y, 0), DType::Int64), 1, std::nullopt);
  Tensor places = y * counts, valid = gt_ts(counts, 0);
  Tensor wanted = gt_ts(scatter_add(zeros(y.sizes(), options_of(y)), 1, places, counts), 0);
  Tensor gaps = unsqueeze(scores, 1) - unsqueeze(gather(scores, 1, places, false), 2) + 1;
  Tensor of = logical_and(unsqueeze(valid, 2), unsqueeze(logical_not(wanted), 1));
  const int64_t both[] = {1, 2};
  Tensor loss = sum(where_ts(of, positive_part(gaps), Scalar(0)), IntList(both), false, std::nullopt) /
                static_cast<double>(classes);
  return reduced(x.ndim() == 2 ? loss : select(loss, 0, 0), how);
}

// ---- the ops -------------------------------------------------------------------------------------------

const Arg kSizeAverage{"size_average", none}, kReduce{"reduce", none}, kReduction{"reduction", "mean"},
    kNumber = Arg::integer("reduction", 0), kWeight{"weight", none};
constexpr OpFacts kLoss = kNN | kFloat32;

Tensor hinge_embedding_nn(const Tensor& x, const Tensor& target, double margin, Flag size_average,
                          Flag reduce, std::string_view reduction) {
  return hinge_embedding(x, target, margin,
                         reduction_of("hinge_embedding_loss", size_average, reduce, reduction));
}
Tensor hinge_embedding_root(const Tensor& x, const Tensor& target, double margin, int64_t reduction) {
  return hinge_embedding(x, target, margin, reduction_of("hinge_embedding_loss", reduction));
}
const char kHingeDoc[] = "input where target is 1, max(0, margin - input) where it is -1.";
const Op<Tensor(const Tensor&, const Tensor&, double, Flag, Flag, std::string_view)> nn_hinge{
    "hinge_embedding_loss",
    hinge_embedding_nn,
    kLoss,
    {"input", {"target", kNoGradient}, {"margin", 1.0}, kSizeAverage, kReduce, kReduction},
    kHingeDoc};
const auto root_hinge = overload_with(
    nn_hinge, hinge_embedding_root, {"input", {"target", kNoGradient}, {"margin", 1.0}, kNumber}, kFunction);

using PairLoss = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, double, Reduction);
using NNPairOp =
    Op<Tensor(const Tensor&, const Tensor&, const Tensor&, double, Flag, Flag, std::string_view)>;
using RootPairOp = Op<Tensor(const Tensor&, const Tensor&, const Tensor&, double, int64_t)>;
constexpr char kCosine[] = "cosine_embedding_loss", kRanking[] = "margin_ranking_loss";
template <PairLoss F, const char* NAME>
Tensor pair_nn(const Tensor& x1, const Tensor& x2, const Tensor& target, double margin, Flag size_average,
               Flag reduce, std::string_view reduction) {
  return F(x1, x2, target, margin, reduction_of(NAME, size_average, reduce, reduction));
}
template <PairLoss F, const char* NAME>
Tensor pair_root(const Tensor& x1, const Tensor& x2, const Tensor& target, double margin, int64_t reduction) {
  return F(x1, x2, target, margin, reduction_of(NAME, reduction));
}
const char kCosineDoc[] =
    "[N, D], [N, D] and target [N]: 1 - cos where target is 1, max(0, cos - margin) where it is -1.";
const char kRankingDoc[] = "max(0, -target * (input1 - input2) + margin).";
const NNPairOp nn_cosine{kCosine,
                         pair_nn<cosine_embedding, kCosine>,
                         kLoss,
                         {"input1", "input2", "target", {"margin", 0.0}, kSizeAverage, kReduce, kReduction},
                         kCosineDoc},
    nn_ranking{kRanking,
               pair_nn<margin_ranking, kRanking>,
               kLoss,
               {"input1", "input2", "target", {"margin", 0.0}, kSizeAverage, kReduce, kReduction},
               kRankingDoc};
const RootPairOp root_cosine =
                     overload_with(nn_cosine, pair_root<cosine_embedding, kCosine>,
                                   {"input1", "input2", "target", {"margin", 0.0}, kNumber}, kFunction),
                 root_ranking =
                     overload_with(nn_ranking, pair_root<margin_ranking, kRanking>,
                                   {"input1", "input2", "target", {"margin", 0.0}, kNumber}, kFunction);

const Op<Tensor(const Tensor&, const Tensor&, Flag, Flag, std::string_view)> soft_margin{
    "soft_margin_loss",
    soft_margin_impl,
    kLoss,
    {"input", "target", kSizeAverage, kReduce, kReduction},
    "log(1 + exp(-target * input)), target 1 or -1."},
    multilabel_margin{"multilabel_margin_loss",
                      multilabel_margin_impl,
                      kLoss,
                      {"input", "target", kSizeAverage, kReduce, kReduction},
                      "[N, C] or [C] and target indices of the same shape, those before the first -1: the "
                      "mean over classes i of max(0, 1 - (input[y] - input[i])), summed over the targets "
                      "y, for all i that are no target."};
const Op<Tensor(const Tensor&, const Tensor&, int64_t, double, const OptTensor&, Flag, Flag,
                std::string_view)>
    multi_margin{"multi_margin_loss",
                 multi_margin_impl,
                 kLoss,
                 {"input",
                  "target",
                  Arg::integer("p", 1),
                  {"margin", 1.0},
                  kWeight,
                  kSizeAverage,
                  kReduce,
                  kReduction},
                 "[N, C] and class indices [N]: the mean over classes i other than y of max(0, margin - "
                 "input[y] + input[i])^p."};

Tensor triplet_nn(const Tensor& anchor, const Tensor& positive, const Tensor& negative, double margin,
                  double p, double eps, bool swap, Flag size_average, Flag reduce,
                  std::string_view reduction) {
  const Reduction how = reduction_of("triplet_margin_loss", size_average, reduce, reduction);
  WT_CHECK(margin > 0, ValueError, "triplet_margin_loss: margin must be greater than 0, got ", margin);
  return triplet_margin(anchor, positive, negative, margin, p, eps, swap, how);
}
Tensor triplet_root(const Tensor& anchor, const Tensor& positive, const Tensor& negative, double margin,
                    double p, double eps, bool swap, int64_t reduction) {
  const Reduction how = reduction_of("triplet_margin_loss", reduction);
  return triplet_margin(anchor, positive, negative, margin, p, eps, swap, how);
}
const char kTripletDoc[] =
    "[*, D] each: max(0, |anchor - positive|_p - |anchor - negative|_p + margin) (Balntas et al. 2016).";
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, double, double, double, bool, Flag, Flag,
                std::string_view)>
    nn_triplet{"triplet_margin_loss",
               triplet_nn,
               kLoss | kComplex,
               {"anchor",
                "positive",
                "negative",
                {"margin", 1.0},
                {"p", 2.0},
                {"eps", 1e-6},
                {"swap", false},
                kSizeAverage,
                kReduce,
                kReduction},
               kTripletDoc};
const auto root_triplet = overload_with(
    nn_triplet, triplet_root,
    {"anchor", "positive", "negative", {"margin", 1.0}, {"p", 2.0}, {"eps", 1e-6}, {"swap", false}, kNumber},
    kFunction);

}  // namespace
}  // namespace warptape::ops
