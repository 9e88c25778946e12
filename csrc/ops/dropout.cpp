#include "ops/dropout.h"

#include "ops/compose.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::DropoutFn> dropout_slot{"dropout"};

struct DropoutData {
  double p;
  kernels::PhiloxKey key;
  kernels::PhiloxPart part;
};

// Where ranks share a tensor, each draws its part of the numbers that one process draws: this thread's are
// part `batch` along dim 0, and part `index` of `count` along another dim, or of attention's heads.
struct DropParts {
  int64_t batch = 0, dim = 0, index = 0, count = 1, head_index = 0, head_count = 1;
};
thread_local DropParts parts;

Shape set_drop_parts(IntList v) {
  const DropParts p = parts;
  if (v.size() == 6) parts = {v[0], v[1], v[2], v[3], v[4], v[5]};
  return {p.batch, p.dim, p.index, p.count, p.head_index, p.head_count};
}
const Op<Shape(IntList)> set_parts{
    "_set_drop_parts",
    set_drop_parts,
    kPrivate | kComplex,
    {"values"},
    "Says of which tensors dropout and attention see parts: part of dim 0; dim, index, count; index and "
    "count of heads. Nothing if empty. Returns what it was."};

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
  const DropoutData d{p, next_dropout_key(x.device()), drop_part(x.sizes(), false)};
  return inplace ? drop_inplace(x, d) : drop(x, d);
}

// torch.dropout's argument is named train, and there is no inplace.
Tensor root_dropout(const Tensor& x, double p, bool train) { return dropout(x, p, train, false); }
Tensor root_dropout_inplace(const Tensor& x, double p, bool train) { return dropout(x, p, train, true); }
const Op<Tensor(const Tensor&, double, bool)> root{
    "dropout",
    root_dropout,
    kFunction | kRandom,
    {"input", "p", "train"},
    "Zeros elements with probability p, scales the others by 1 / (1 - p)."},
    root_inplace{"dropout_",
                 root_dropout_inplace,
                 kFunction,
                 {{"input", kWritten}, "p", "train"},
                 "dropout in place."};

}  // namespace

kernels::PhiloxPart drop_part(IntList sizes, bool heads) {
  const int64_t index = heads ? parts.head_index : parts.index,
                count = heads ? parts.head_count : parts.count;
  if (sizes.empty() || (count == 1 && parts.batch == 0)) return {};
  const auto ndim = static_cast<int64_t>(sizes.size());
  const int64_t dim = heads ? ndim - 1 : wrap_dim(parts.dim, ndim, "dropout");
  const int64_t run = numel_of(sizes.subspan(dim)), all = numel_of(sizes);
  return {uint64_t(parts.batch * all * count + index * run), uint64_t(run), uint64_t(run * count)};
}

kernels::PhiloxKey next_dropout_key(Device device) {
  Ref<Generator> generator = default_generator(device);
  std::lock_guard lock(generator->mutex);
  return generator->next_philox();
}

void check_probability(const char* op, double p) {
  WT_CHECK(p >= 0 && p <= 1, ValueError, op, ": dropout probability has to be between 0 and 1, but got ", p);
}

decltype(dropout) dropout{
    "dropout",
    dropout_impl,
    kNN | kRandom,
    {"input", {"p", 0.5}, {"training", true}, {"inplace", false}},
    "In training, zeros elements with probability p and scales the others by 1 / (1 - p)."};

}  // namespace warptape::ops
