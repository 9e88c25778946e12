// Attention of sequences of several lengths that lie one behind the other, by the slots of dense attention.
//
// Shapes: N sequences, T queries and S keys of all of them, H query heads, K key heads (H % K == 0), D and E
// head sizes.
#include "ops/attention/varlen_attention.h"

#include <cmath>
#include <limits>

#include "kernels/attention/attention.h"
#include "ops/kernel_inputs.h"

namespace warptape::ops {
namespace {

constexpr const char* kOp = "varlen_attn";
kernels::Slot<kernels::AttentionFn> attention_slot{"attention"};
kernels::Slot<kernels::AttentionBackwardFn> attention_backward_slot{"attention_backward"};

struct VarlenData {
  int64_t max_q, max_k;
  double scale;
  kernels::Band band;
};

// [T, H, D] as [1, H, T, D] with unit stride in the last dim.
Tensor by_heads(const Tensor& x) {
  Tensor c = x.strides().back() == 1 || x.sizes().back() == 1 ? x : raw_contiguous(x);
  const Shape &s = c.sizes(), &st = c.strides();
  return alias(c, Shape{1, s[1], s[0], s[2]}, Shape{0, st[1], st[0], 1}, c.offset());
}

// lse [H, T] as [1, H, T].
Tensor first_dim(const Tensor& x) {
  return alias(x, Shape{1, x.sizes()[0], x.sizes()[1]}, Shape{0, x.strides()[0], x.strides()[1]}, x.offset());
}

struct Planned {
  Tensor q, k, v, starts, key_starts, used;
  kernels::AttentionPlan plan;

  Planned(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& cu_seq_q,
          const Tensor& cu_seq_k, const OptTensor& seqused_k, const VarlenData& d)
      : q(by_heads(query)),
        k(by_heads(key)),
        v(by_heads(value)),
        starts(raw_contiguous(cu_seq_q)),
        key_starts(raw_contiguous(cu_seq_k)) {
    if (seqused_k) used = raw_contiguous(*seqused_k);
    const int64_t count = starts.sizes()[0] - 1;
    plan.q = q.planned_view(), plan.k = k.planned_view(), plan.v = v.planned_view();
    plan.scale = d.scale;
    plan.band = d.band;
    plan.sequences = {starts.data_as<int32_t>(),
                      key_starts.data_as<int32_t>(),
                      used.defined() ? used.data_as<int32_t>() : nullptr,
                      count,
                      d.max_q,
                      d.max_k};
  }
};

// Numbers on a device are not looked at: that would wait. The kernels stay within the tensors.
void check_sequences(const kernels::AttentionPlan& p) {
  const auto& all = p.sequences;
  auto check = [&](const int32_t* starts, int64_t rows, int64_t most, const char* name, const char* limit) {
    WT_CHECK(starts[0] == 0, ValueError, kOp, ": expected ", name, " to begin with 0, got ", starts[0]);
    for (int64_t r = 0; r < all.count; ++r) {
      const int64_t n = int64_t{starts[r + 1]} - starts[r];
      WT_CHECK(n >= 0 && starts[r + 1] <= rows, ValueError, kOp, ": expected ", name,
               " to rise to at most the number of rows, ", rows, ", got ", starts[r], " and ", starts[r + 1],
               " for sequence ", r);
      WT_CHECK(n <= most, ValueError, kOp, ": sequence ", r, " of ", name, " has ", n, " rows, more than ",
               limit, ", ", most);
    }
  };
  check(all.starts, p.q.sizes[2], all.most_queries, "cu_seq_q", "max_q");
  check(all.key_starts, p.k.sizes[2], all.most_keys, "cu_seq_k", "max_k");
  for (int64_t r = 0; all.used_keys && r < all.count; ++r) {
    const int64_t n = int64_t{all.key_starts[r + 1]} - all.key_starts[r];
    WT_CHECK(all.used_keys[r] >= 0 && all.used_keys[r] <= n, ValueError, kOp,
             ": expected seqused_k from 0 to the keys of each sequence, got ", all.used_keys[r],
             " for sequence ", r, " of ", n);
  }
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v) {
  for (const Tensor& t : {q, k, v}) {
    check_floating(kOp, t);
    check_same_device(kOp, q, t, "an input");
    WT_CHECK(t.dtype() == q.dtype(), DtypeError, kOp, ": expected query, key and value of one dtype, got ",
             q.dtype(), ", ", k.dtype(), " and ", v.dtype());
  }
  const bool dims = q.ndim() == 3 && k.ndim() == 3 && v.ndim() == 3;
  const bool fits = dims && q.sizes()[2] == k.sizes()[2] && q.sizes()[2] > 0 &&
                    k.sizes()[0] == v.sizes()[0] && k.sizes()[1] == v.sizes()[1] && v.sizes()[2] > 0 &&
                    k.sizes()[1] > 0 && q.sizes()[1] % k.sizes()[1] == 0;
  WT_CHECK(fits, ShapeError, kOp,
           ": expected query [T, H, D], key [S, K, D] and value [S, K, E] with K a divisor of H, got ",
           q.sizes(), ", ", k.sizes(), " and ", v.sizes());
}

void check_numbers(const Tensor& x, const Tensor& like, int64_t count, const char* name) {
  WT_CHECK(x.dtype() == DType::Int32, DtypeError, kOp, ": expected ", name, " of dtype int32, got ",
           x.dtype());
  WT_CHECK(x.ndim() == 1 && (count < 0 ? x.sizes()[0] > 0 : x.sizes()[0] == count), ShapeError, kOp,
           ": expected ", name, count < 0 ? " [N + 1]" : " for as many sequences as cu_seq_q has", ", got ",
           x.sizes());
  check_same_device(kOp, like, x, name);
}

// saved: query, key, value, cu_seq_q, cu_seq_k, lse, out
void varlen_backward(Node& n, Gradients& g) {
  const VarlenData d = n.data<VarlenData>();
  Tensor query = n.saved(0), key = n.saved(1), value = n.saved(2);
  WT_CHECK(!needs_grad(g[0], query, key, value), NotImplementedError, kOp,
           ": gradients of its gradients are not there; take scaled_dot_product_attention for each sequence");
  auto like = [](const Tensor& t) { return full(t.sizes(), 0.0, options_of(t)); };
  Tensor dq = like(query), dk = like(key), dv = like(value);
  if (query.numel() && key.numel() && !query.is_meta()) {
    const Planned p(query, key, value, n.saved(3), n.saved(4), std::nullopt, d);
    const Tensor up = by_heads(g[0]), out = by_heads(n.saved(6)), lse = first_dim(n.saved(5));
    const Tensor to_q = by_heads(dq), to_k = by_heads(dk), to_v = by_heads(dv);
    attention_backward_slot(Launch(query.device()), to_q.view(), to_k.view(), to_v.view(), up.view(),
                            out.view(), lse.view(), p.plan);
  }
  g.set(0, std::move(dq));
  g.set(1, std::move(dk));
  g.set(2, std::move(dv));
}
constexpr NodeType kVarlen{"VarlenAttnBackward0", varlen_backward};

std::tuple<Tensor, Tensor> varlen_impl(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const Tensor& cu_seq_q, const Tensor& cu_seq_k, int64_t max_q,
                                       int64_t max_k, std::optional<double> scale, int64_t left,
                                       int64_t right, const OptTensor& seqused_k) {
  check_inputs(query, key, value);
  check_numbers(cu_seq_q, query, -1, "cu_seq_q");
  const int64_t count = cu_seq_q.sizes()[0] - 1;
  check_numbers(cu_seq_k, query, count + 1, "cu_seq_k");
  if (seqused_k) check_numbers(*seqused_k, query, count, "seqused_k");
  WT_CHECK(max_q >= 0 && max_k >= 0, ValueError, kOp, ": expected max_q and max_k of at least 0, got ", max_q,
           " and ", max_k);
  const bool recorded = needs_grad(query, key, value);
  WT_CHECK(!recorded || !seqused_k, Error, kOp, ": seqused_k is an inference-only parameter");
  VarlenData d{max_q, max_k, scale.value_or(1 / std::sqrt(static_cast<double>(query.sizes()[2]))), {}};
  if (left >= 0) d.band.first = -left;
  if (right >= 0) d.band.last = right;
  const Shape& s = query.sizes();
  Tensor out = full(Shape{s[0], s[1], value.sizes()[2]}, 0.0, options_of(query));
  Tensor lse = full(Shape{s[1], s[0]}, -std::numeric_limits<double>::infinity(),
                    {stats_dtype(query.dtype()), query.device()});
  if (!out.is_meta() && count > 0) {
    const Planned p(query, key, value, cu_seq_q, cu_seq_k, seqused_k, d);
    if (query.device().is_host()) check_sequences(p.plan);
    const Tensor to = by_heads(out), rows = first_dim(lse);
    if (query.numel() && key.numel()) attention_slot(Launch(query.device()), to.view(), rows.view(), p.plan);
  }
  if (recorded) {
    Ref<Node> n = record(kVarlen, query, key, value);
    for (const Tensor& t : {query, key, value, cu_seq_q, cu_seq_k, lse}) n->save(t);
    n->emplace<VarlenData>(d);
    set_history(out, n);
    n->save_output(out);
  }
  return {out, lse};
}

}  // namespace

decltype(varlen_attention) varlen_attention{
    "_varlen_attention",
    varlen_impl,
    kPrivate | kChecked | kLower,
    {"query",
     "key",
     "value",
     "cu_seq_q",
     "cu_seq_k",
     "max_q",
     "max_k",
     "scale",
     "left",
     "right",
     {"seqused_k", none}},
    "(output [T, H, E], log-sum-exp [H, T]) of sequences one behind the other: query [T, H, D], key [S, K, "
    "D], "
    "value [S, K, E]; sequence r has the queries cu_seq_q[r] to cu_seq_q[r + 1] - 1 and the keys of cu_seq_k "
    "likewise, or the first seqused_k[r] of them. With its last query at its last key, a query sees `left` "
    "keys before its own place and `right` after it, all where that is negative."};

}  // namespace warptape::ops
