#include "ops/nn/dropout.h"
#include "op/forms.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "ops/kernel_inputs.h"
#include "ops/random/random.h"
#include "tensor/memory_format.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::DropoutFn> dropout_slot{"dropout"};

struct DropoutData {
  double p;
  kernels::PhiloxKey key;
  kernels::PhiloxPart part;
};

// Where ranks share a tensor, each draws its part of the numbers that one process draws: this thread's are
// part `batch` along dim 0, and part `index` of `count` along another dim, or of attention's heads. Where
// ranks share sequences, this is a part of what a rank has of them: of 2 `count` slices along dim
// `sequence.dim` the index-th and the one that is as far from the end.
struct Cut {
  int64_t dim = 0, index = 0, count = 1;
};
struct DropParts {
  int64_t batch = 0;
  Cut inner;
  int64_t head_index = 0, head_count = 1;
  Cut sequence;
};
PerThread<DropParts> parts;

Shape set_drop_parts(IntList v) {
  const DropParts p = *parts;
  WT_CHECK(v.empty() || v.size() == 9, ValueError, "_set_drop_parts: expected 9 numbers, got ", v.size());
  if (!v.empty()) *parts = {v[0], {v[1], v[2], v[3]}, v[4], v[5], {v[6], v[7], v[8]}};
  return {p.batch,      p.inner.dim,    p.inner.index,    p.inner.count,   p.head_index,
          p.head_count, p.sequence.dim, p.sequence.index, p.sequence.count};
}
const Op<Shape(IntList)> set_parts{
    "_set_drop_parts",
    set_drop_parts,
    kPrivate | kComplex,
    {"values"},
    "Says of which tensors dropout and attention see parts: part of dim 0; dim, index, count; index and "
    "count of heads; dim, index, count of pairs of slices. Nothing if empty. Returns what it was."};

// Whether dropout on the CPU draws the masks that PyTorch's CPU build draws, which come one after the other.
std::atomic<bool> pytorch_masks{[] {
  const char* given = std::getenv("WARPTAPE_DROPOUT");
  return given && std::string_view(given) == "pytorch";
}()};
bool set_pytorch_masks(bool on) { return pytorch_masks.exchange(on); }
const Op<bool(bool)> set_masks{
    "_set_pytorch_dropout",
    set_pytorch_masks,
    kPrivate,
    {"on"},
    "Whether dropout on the CPU draws PyTorch's masks; returns whether it did. Ranks then draw apart."};

void run(const Tensor& out, const Tensor& x, const DropoutData& d) {
  if (out.numel() && !out.is_meta())
    dropout_slot(Launch(x.device()), out.view(), x.view(), d.p, d.key, d.part);
}

// Linear in x: its own backward with the same key, to any order.
Tensor drop(const Tensor& x, const DropoutData& d);
void drop_backward(Node& n, Gradients& g) { g.set(0, drop(g[0], n.data<DropoutData>())); }
constexpr NodeType kDropout{"NativeDropoutBackward0", drop_backward};

Tensor drop(const Tensor& x, const DropoutData& d) {
  Tensor out = empty(x.sizes(), options_of(x));
  run(out, raw_contiguous(x), d);
  out = raw_in(out, suggested_format(x));
  if (needs_grad(x)) {
    Ref<Node> n = record(kDropout, x);
    n->emplace<DropoutData>(d);
    set_history(out, n);
  }
  return out;
}

Tensor drop_inplace(const Tensor& x, const DropoutData& d) {
  const bool recorded = needs_grad(x);
  check_inplace(x, "dropout_", recorded);
  Ref<Node> n;
  if (recorded) {
    n = record(kDropout, x);
    n->emplace<DropoutData>(d);
  }
  Tensor from = raw_contiguous(x);
  run(from, from, d);
  if (!from.same(x)) raw_copy(x, from);
  x.bump_version();
  if (n) rebase_history(x, n);
  return x;
}

Tensor dropout_impl(const Tensor& x, double p, bool training, bool inplace) {
  check_probability("dropout", p);
  check_floating("dropout", x);
  if (!training || p == 0) return x;
  if (draws_as_pytorch(x.device()) && x.numel()) {
    Tensor factors = dropout_factors(empty_like_layout(x, x.dtype()), p);
    return inplace ? mul_(x, factors) : x * factors;
  }
  const DropoutData d{p, next_dropout_key(x.device()), drop_part(x.sizes(), false)};
  return inplace ? drop_inplace(x, d) : drop(x, d);
}

// ---- of channels, and for self-normalising networks ----------------------------------------------------

Tensor times(const Tensor& x, const Tensor& factor, bool inplace) {
  return inplace ? mul_(x, factor) : x * factor;
}

// Zeros whole channels: dims 0 and 1 name one, or dim 0 alone without a batch.
Tensor drop_channels(const Tensor& x, double p, bool training, bool inplace, bool batched) {
  if (!training || p == 0 || x.numel() == 0) return x;
  Shape sizes(x.sizes().size(), 1);
  for (size_t d = 0; d < std::min<size_t>(batched ? 2 : 1, sizes.size()); ++d) sizes[d] = x.sizes()[d];
  return times(x, dropout(full(sizes, 1, options_of(x)), p, true, false), inplace);
}

Tensor dropout1d_impl(const Tensor& x, double p, bool training, bool inplace) {
  check_probability("dropout1d", p);
  WT_CHECK(x.ndim() == 2 || x.ndim() == 3, ShapeError, "dropout1d: Expected 2D or 3D input, but received a ",
           x.ndim(),
           "D input. Note that dropout1d exists to provide channel-wise dropout on inputs with 1 spatial "
           "dimension, a channel dimension, and an optional batch dimension (i.e. 2D or 3D inputs).");
  return drop_channels(x, p, training, inplace, x.ndim() == 3);
}

// N: spatial dims. 3-D input of dropout2d is taken as [N, C, L].
template <int N>
Tensor drop_images(const Tensor& x, double p, bool training, bool inplace) {
  constexpr const char* op = N == 2 ? "dropout2d" : "dropout3d";
  check_probability(op, p);
  if (x.ndim() != N + 1 && x.ndim() != N + 2)
    warn(message(op, ": Received a ", x.ndim(), "-D input to ", op,
                 ", which is deprecated and will result in an error in a future release. To retain the "
                 "behavior and silence this warning, please use dropout instead."));
  return drop_channels(x, p, training, inplace, N == 2 || x.ndim() != 4);
}

// Sets what is dropped to what selu tends to far below zero, then restores mean and variance (Klambauer et
// al. 2017).
Tensor alpha_drop(const char* op, const Tensor& x, const Shape& sizes, double p, bool training,
                  bool inplace) {
  check_probability(op, p);
  if (!training || p == 0 || x.numel() == 0) return x;
  if (p == 1) return times(x, full(Shape{}, 0, options_of(x)), inplace);
  check_floating(op, x);
  constexpr double kFloor = 1.7580993408473766;
  const double scale = 1 / std::sqrt((kFloor * kFloor * p + 1) * (1 - p));
  Tensor keep = fill_with_bernoulli(empty(sizes, options_of(x)), 1 - p);
  Tensor shift = (keep - 1) * (kFloor * scale) + kFloor * scale * p, factor = keep * scale;
  return inplace ? add_(mul_(x, factor), shift, 1) : x * factor + shift;
}

Shape channels_of(const char* op, const Tensor& x) {
  WT_CHECK(x.ndim() >= 2, ShapeError, op,
           ": Feature dropout requires at least 2 dimensions in the input, got ", x.sizes());
  Shape sizes(x.sizes().size(), 1);
  sizes[0] = x.sizes()[0], sizes[1] = x.sizes()[1];
  return sizes;
}
Tensor alpha_dropout_impl(const Tensor& x, double p, bool training, bool inplace) {
  return alpha_drop("alpha_dropout", x, x.sizes(), p, training, inplace);
}
Tensor feature_alpha_dropout_impl(const Tensor& x, double p, bool training, bool inplace) {
  const char* op = "feature_alpha_dropout";
  check_probability(op, p);
  if (!training || p == 0 || x.numel() == 0) return x;
  return alpha_drop(op, x, p == 1 ? x.sizes() : channels_of(op, x), p, training, inplace);
}
Tensor feature_dropout_impl(const Tensor& x, double p, bool training, bool inplace) {
  check_probability("feature_dropout", p);
  if (training && p != 0 && x.numel()) channels_of("feature_dropout", x);
  return drop_channels(x, p, training, inplace, true);
}

const Arg kX{"input", kUpdated}, kP{"p", 0.5, kDraws}, kInplace{"inplace", false, kSwitch | kInPlace},
    kTraining{"training", true, kSwitch | kDraws}, kIdle{"training", false, kSwitch | kDraws};
using DropOp = Op<Tensor(const Tensor&, double, bool, bool)>;
const DropOp dropout1d{"dropout1d",
                       dropout1d_impl,
                       kNN | kRandom | Aliasing::Dropout,
                       {kX, kP, kTraining, kInplace},
                       "[N, C, L] or [C, L]: zeros each channel with probability p, scales the others by 1 / "
                       "(1 - p)."},
    dropout2d{"dropout2d",
              drop_images<2>,
              kNN | kRandom | Aliasing::Dropout,
              {kX, kP, kTraining, kInplace},
              "[N, C, H, W] or [N, C, L]: zeros each channel with probability p, scales the others by 1 / (1 "
              "- p)."},
    dropout3d{"dropout3d",
              drop_images<3>,
              kNN | kRandom | Aliasing::Dropout,
              {kX, kP, kTraining, kInplace},
              "[N, C, D, H, W] or [C, D, H, W]: zeros each channel with probability p, scales the others by "
              "1 / (1 - p)."},
    alpha_dropout{"alpha_dropout",
                  alpha_dropout_impl,
                  kNN | kRandom | kComplex | Aliasing::Dropout,
                  {kX, kP, kIdle, kInplace},
                  "Dropout that keeps the mean and variance of what selu returns."},
    feature_alpha_dropout{"feature_alpha_dropout",
                          feature_alpha_dropout_impl,
                          kNN | kRandom | kComplex | Aliasing::Dropout,
                          {kX, kP, kIdle, kInplace},
                          "[N, C, *]: alpha_dropout of whole channels."};

// The top level's forms, and those in place.
template <Tensor (*F)(const Tensor&, double, bool, bool), bool kInto>
Tensor plain(const Tensor& x, double p, bool train) {
  return F(x, p, train, kInto);
}
#define WT_ROOT_DROPOUT(NAME, DOC)                                                                       \
  const Op<Tensor(const Tensor&, double, bool)> root_##NAME{#NAME,                                       \
                                                            plain<NAME##_impl, false>,                   \
                                                            kFunction | kRandom | Aliasing::Dropout,     \
                                                            {"input", {"p", kDraws}, {"train", kDraws}}, \
                                                            DOC},                                        \
      root_##NAME##_ = in_place_of(root_##NAME, plain<NAME##_impl, true>, kFunction, #NAME " in place.")
WT_ROOT_DROPOUT(dropout, "Zeros elements with probability p, scales the others by 1 / (1 - p).");
WT_ROOT_DROPOUT(feature_dropout, "[N, C, *]: dropout of whole channels.");
WT_ROOT_DROPOUT(alpha_dropout, "Dropout that keeps the mean and variance of what selu returns.");
WT_ROOT_DROPOUT(feature_alpha_dropout, "[N, C, *]: alpha_dropout of whole channels.");

}  // namespace

namespace {
// Of `sizes`, without the columns of a part along a later dim, those of a rank that has two slices of a
// sequence, or of them part `inner`.
kernels::PhiloxPart sequence_part(IntList sizes, int64_t dim, const Cut& inner) {
  const int64_t run = numel_of(sizes.subspan(dim)), slice = run * inner.count / 2;
  const int64_t whole = 2 * slice * parts->sequence.count, at = parts->sequence.index * slice;
  const int64_t first = parts->batch * (numel_of(sizes) / run) * whole;
  const int64_t second = whole - slice - at, begin = inner.index * run, end = begin + run;
  if (end <= slice) return {uint64_t(first + at + begin), uint64_t(run), uint64_t(whole)};
  if (begin >= slice) return {uint64_t(first + second + begin - slice), uint64_t(run), uint64_t(whole)};
  // The part in the middle of an odd number of them, which may be 1: as much of both slices.
  return {uint64_t(first + at + begin), uint64_t(slice - begin), uint64_t(whole),
          uint64_t(second - at - begin)};
}

kernels::PhiloxPart plain_part(IntList sizes, int64_t dim, int64_t index, int64_t count) {
  const int64_t run = numel_of(sizes.subspan(dim));
  const int64_t first = parts->batch * numel_of(sizes) * count + index * run;
  return {uint64_t(first), uint64_t(run), uint64_t(run * count)};
}
}  // namespace

kernels::PhiloxPart drop_part(IntList sizes, bool heads) {
  const auto ndim = static_cast<int64_t>(sizes.size());
  const Cut inner = heads ? Cut{-1, parts->head_index, parts->head_count} : parts->inner;
  const bool shared = !heads && parts->sequence.count > 1;
  if (sizes.empty() || numel_of(sizes) == 0 || (inner.count == 1 && !shared && parts->batch == 0)) return {};
  const int64_t dim = wrap_dim(inner.dim, ndim, "dropout");
  const int64_t along = wrap_dim(parts->sequence.dim, ndim, "dropout");
  if (!shared) return plain_part(sizes, dim, inner.index, inner.count);
  const bool same = dim == along;
  WT_CHECK(sizes[along] * (same ? inner.count : 1) % 2 == 0, ValueError, "dropout: dim ", along, " of ",
           sizes, " is not two slices of a sequence that ranks share; pad the sequence");
  if (same || inner.count == 1) return sequence_part(sizes, along, same ? inner : Cut{});
  WT_CHECK(dim > along, ValueError, "dropout: of ", sizes, " dim ", dim, " is split before dim ", along,
           ", the sequence that ranks share; use scaled_dot_product_attention");
  kernels::PhiloxPart part = sequence_part(sizes.first(dim), along, {});
  const int64_t columns = numel_of(sizes.subspan(dim));
  part.columns = uint64_t(columns), part.width = uint64_t(columns * inner.count);
  part.column = uint64_t(inner.index * columns);
  return part;
}

kernels::PhiloxKey next_dropout_key(Device device) {
  Ref<Generator> generator = default_generator(device);
  std::lock_guard lock(generator->mutex);
  return generator->next_philox();
}

bool draws_as_pytorch(Device device) { return pytorch_masks && device.is_cpu(); }

Tensor dropout_factors(const Tensor& out, double p) {
  fill_with_bernoulli(out, 1 - p);
  return p < 1 ? out / Scalar(1 - p) : out;
}

void check_probability(const char* op, double p) {
  WT_CHECK(p >= 0 && p <= 1, ValueError, op, ": dropout probability has to be between 0 and 1, but got ", p);
}

decltype(dropout) dropout{
    "dropout",
    dropout_impl,
    kNN | kRandom | kPointwise | Aliasing::Dropout,
    {kX, kP, kTraining, kInplace},
    "In training, zeros elements with probability p and scales the others by 1 / (1 - p)."};
}  // namespace warptape::ops
