// Attention by the fused kernels, and the same composed of matrix products for what they do not do: gradients
// of the mask, gradients of gradients, more than two batch dims.
//
// Shapes: B batch, H query heads, K key heads, G = H / K, T queries, S keys, D and E head sizes.
#include "ops/attention/attention.h"

#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/index/index.h"
#include "kernels/random/random.h"
#include "op/batching.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/matmul.h"
#include "ops/nn/dropout.h"
#include "ops/nn/softmax.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::AttentionFn> attention_slot{"attention"};
kernels::Slot<kernels::AttentionBackwardFn> attention_backward_slot{"attention_backward"};
kernels::Slot<kernels::TriangleFn> tril_slot{"tril"};
kernels::Slot<kernels::PhiloxFn> philox_slot{"philox"};
ElementwiseSlot ge_slot{"ge"};

struct AttentionData {
  double scale;
  bool causal;
  double dropout_p;
  kernels::PhiloxKey key;
  kernels::AttentionPlan::Numbers numbers;  // heads in the order of [.., H]
};

// ---- composed ------------------------------------------------------------------------------------------

// Constants of a call in the compute dtype, [.., T, S] each: what is added to the scores to hide keys, what
// the probabilities are multiplied with so that a query that sees no key gets zeros; undefined where there is
// nothing to do.
struct Visible {
  Tensor bias, keep;
};

Visible visible(const Tensor& mask, bool causal, int64_t queries, int64_t keys,
                const TensorOptions& options) {
  NoGrad no_grad;
  Visible v;
  if (causal) {
    Tensor ones = full(Shape{queries, keys}, 1.0, options);
    v.keep = empty(Shape{queries, keys}, options);
    if (v.keep.numel() && !v.keep.is_meta())
      tril_slot(Launch(ones.device()), v.keep.view(), ones.view(), int64_t{0});
  } else if (mask.defined() && mask.dtype() == DType::Bool) {
    v.keep = raw_cast(mask, options.dtype);
  }
  // Finite, so that a row without keys is not a NaN before `keep` clears it.
  if (v.keep.defined()) v.bias = (v.keep - Scalar(1)) * Scalar(1e30);
  return v;
}

// What dropout multiplies the probabilities with, [B, H, T, S] as `sizes` groups them.
Tensor drawn_factors(const AttentionData& d, const Shape& sizes, const TensorOptions& options) {
  if (draws_as_pytorch(options.device)) return dropout_factors(empty(sizes, options), d.dropout_p);
  NoGrad no_grad;
  Tensor numbers = empty(sizes, {DType::Int64, options.device});
  const auto each = static_cast<uint64_t>(sizes[sizes.size() - 2] * sizes.back());  // numbers of a head
  const kernels::PhiloxPart& heads = d.numbers.heads;
  if (numbers.numel() && !numbers.is_meta())
    philox_slot(Launch(options.device), numbers.view(), d.key,
                kernels::PhiloxPart{heads.first * each, heads.run * each, heads.stride * each});
  const auto threshold = static_cast<int64_t>(std::ceil(d.dropout_p * 0x1p32));
  Tensor kept = pointwise("ge", ge_slot, ResultRule::Bool, {numbers, Scalar(threshold)});
  return raw_cast(kept, options.dtype) * Scalar(d.dropout_p < 1 ? 1 / (1 - d.dropout_p) : 0.0);
}

// Inputs in the compute dtype as [..., K, G, T, D] and [..., K, 1, S, D], and the probabilities [..., K, G,
// T, S].
struct Composed {
  Tensor q, k, v, probabilities, factors;

  Composed(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
           const AttentionData& d) {
    const TensorOptions options{stats_dtype(query.dtype()), query.device()};
    const auto at = static_cast<int64_t>(query.sizes().size()) - 3;
    const int64_t heads = query.sizes()[at], shared = key.sizes()[at];
    Shape grouped = split_heads(query.sizes(), at, shared, shared ? heads / shared : 1);
    q = reshape(tape_cast(query, options.dtype), grouped);
    k = reshape(tape_cast(key, options.dtype), split_heads(key.sizes(), at, shared, 1));
    v = reshape(tape_cast(value, options.dtype), split_heads(value.sizes(), at, shared, 1));
    Tensor scores = matmul(q, transpose(k, -2, -1)) * Scalar(d.scale);
    const int64_t queries = query.sizes()[at + 1], keys = key.sizes()[at + 1];
    Visible see = visible(mask, d.causal, queries, keys, options);
    auto group = [&](const Tensor& m) {
      return m.ndim() < 3 ? m : group_mask(m, scores.sizes(), heads, shared);
    };
    if (see.bias.defined()) scores = scores + group(see.bias);
    if (mask.defined() && mask.dtype() != DType::Bool)
      scores = scores + group(tape_cast(mask, options.dtype));
    probabilities = softmax(scores, -1, std::nullopt);
    if (see.keep.defined()) probabilities = probabilities * group(see.keep);
    if (d.dropout_p > 0) factors = drawn_factors(d, scores.sizes(), options);
  }

  Tensor output(const Shape& sizes, DType dtype) const {
    Tensor p = factors.defined() ? probabilities * factors : probabilities;
    return tape_cast(reshape(matmul(p, v), sizes), dtype);
  }

  static Shape split_heads(const Shape& sizes, int64_t at, int64_t shared, int64_t group) {
    Shape out(sizes.begin(), sizes.begin() + at);
    for (int64_t n : {shared, group, sizes[at + 1], sizes[at + 2]}) out.push_back(n);
    return out;
  }

 private:
  // A mask [.., h, T, S] (h is H or 1) as [.., K, G, T, S] or [.., 1, 1, T, S].
  static Tensor group_mask(const Tensor& m, const Shape&, int64_t heads, int64_t shared) {
    const int64_t at = m.ndim() - 3;
    const bool whole = m.sizes()[at] == heads && heads > 1;
    return reshape(m, split_heads(m.sizes(), at, whole ? shared : 1, whole ? heads / shared : 1));
  }
};

void composed_backward(Gradients& g, const Tensor& query, const Tensor& key, const Tensor& value,
                       const Tensor& mask, const AttentionData& d) {
  auto with_head = [](const Tensor& t) { return t.ndim() == 2 ? unsqueeze(t, 0) : t; };
  Composed c(with_head(query), with_head(key), with_head(value), mask, d);
  Shape out_sizes = c.q.sizes();
  out_sizes.back() = value.sizes().back();
  Tensor up = reshape(tape_cast(g[0], c.q.dtype()), out_sizes);
  Tensor p = c.probabilities, dp = matmul(up, transpose(c.v, -2, -1));
  Tensor dropped = p;
  if (c.factors.defined()) {
    dropped = p * c.factors;
    dp = dp * c.factors;
  }
  Shape rows = p.sizes();
  rows.back() = 1;
  Tensor ds = p * (dp - sum_to(dp * p, rows)) * Scalar(d.scale);
  if (g.wants(0)) g.set(0, reshape(matmul(ds, c.k), query.sizes()));
  if (g.wants(1)) g.set(1, reshape(sum_to(matmul(transpose(ds, -2, -1), c.q), c.k.sizes()), key.sizes()));
  if (g.wants(2))
    g.set(2, reshape(sum_to(matmul(transpose(dropped, -2, -1), up), c.v.sizes()), value.sizes()));
}

// ---- fused ---------------------------------------------------------------------------------------------

// As [B, H, T, D] with unit stride in the last dim.
Tensor four_dims(const Tensor& x) {
  Tensor c = x.strides().back() == 1 || x.sizes().back() == 1 ? x : raw_contiguous(x);
  Shape sizes = c.sizes(), strides = c.strides();
  if (x.ndim() == 3) {  // [B, T, D]: one head
    sizes = Shape{sizes[0], 1, sizes[1], sizes[2]};
    strides = Shape{strides[0], 0, strides[1], strides[2]};
  } else if (x.ndim() == 2) {
    sizes = Shape{1, 1, sizes[0], sizes[1]};
    strides = Shape{0, 0, strides[0], strides[1]};
  }
  strides.back() = 1;
  return alias(c, sizes, strides, c.offset());
}

// A fresh [B, H, T, D] that lies in memory as [B, T, H, D]: joining the heads afterwards copies nothing.
Tensor heads_inside(int64_t b, int64_t h, int64_t t, int64_t d, const TensorOptions& options) {
  return empty_strided(Shape{b, h, t, d}, Shape{t * h * d, d, h * d, 1}, options);
}

// The tensors a plan points to. An expanded mask has strides 0.
struct Planned {
  Tensor q, k, v, mask;
  kernels::AttentionPlan plan;

  Planned(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& given,
          const AttentionData& d)
      : q(four_dims(query)), k(four_dims(key)), v(four_dims(value)) {
    if (given.defined()) {
      Tensor m = given.dtype() == DType::Bool ? given : raw_cast(given, query.dtype());
      if (query.ndim() == 3 && m.ndim() == 3)  // [B, T, S]
        m = alias(m, Shape{m.sizes()[0], 1, m.sizes()[1], m.sizes()[2]},
                  Shape{m.strides()[0], 0, m.strides()[1], m.strides()[2]}, m.offset());
      mask = expand_view(m, Shape{q.sizes()[0], q.sizes()[1], q.sizes()[2], k.sizes()[2]});
    }
    plan = {q.planned_view(), k.planned_view(),
            v.planned_view(), planned_view_of(mask),
            d.scale,          d.causal ? kernels::Band::causal() : kernels::Band{},
            d.dropout_p,      d.key,
            d.numbers};
  }
};

// The geometry back to that of `like`, for gradients and outputs of tensors with fewer than four dims.
Tensor with_dims_of(const Tensor& x, int64_t ndim) {
  if (ndim == 4) return x;
  const size_t drop = static_cast<size_t>(4 - ndim);
  const Shape &s = x.sizes(), &st = x.strides();
  if (ndim == 3) return alias(x, Shape{s[0], s[2], s[3]}, Shape{st[0], st[2], st[3]}, x.offset());
  return alias(x, Shape(s.begin() + drop, s.end()), Shape(st.begin() + drop, st.end()), x.offset());
}

using Three = std::tuple<Tensor, Tensor, Tensor>;

// Gradients of query, key and value, by the kernel.
Three fused_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                     const Tensor& mask, const Tensor& output, const Tensor& lse, const AttentionData& d) {
  Tensor out = four_dims(output), up = four_dims(grad);
  Planned p(query, key, value, mask, d);
  auto like = [](const Tensor& t) {
    return heads_inside(t.sizes()[0], t.sizes()[1], t.sizes()[2], t.sizes()[3], options_of(t));
  };
  Tensor dq = like(p.q), dk = like(p.k), dv = like(p.v);
  if (!dq.is_meta())
    attention_backward_slot(Launch(query.device()), dq.view(), dk.view(), dv.view(), up.view(), out.view(),
                            lse.view(), p.plan);
  return {with_dims_of(dq, query.ndim()), with_dims_of(dk, key.ndim()), with_dims_of(dv, value.ndim())};
}

// saved: query, key, value, mask, lse, out
void attention_backward(Node& n, Gradients& g) {
  const AttentionData d = n.data<AttentionData>();
  Tensor query = n.saved(0), key = n.saved(1), value = n.saved(2), mask = n.saved(3);
  if (needs_grad(g[0], query, key, value)) return composed_backward(g, query, key, value, mask, d);
  auto [dq, dk, dv] = fused_backward(g[0], query, key, value, mask, n.saved(5), n.saved(4), d);
  g.set(0, std::move(dq));
  g.set(1, std::move(dk));
  g.set(2, std::move(dv));
}
constexpr NodeType kAttention{"ScaledDotProductFlashAttentionForCpuBackward0", attention_backward};

// The output in the dims of query, and its log-sum-exp [B, H, T].
std::tuple<Tensor, Tensor> fused_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                         const Tensor& mask, const AttentionData& d) {
  Planned p(query, key, value, mask, d);
  const Shape& s = p.q.sizes();
  Tensor out = heads_inside(s[0], s[1], s[2], p.v.sizes()[3], options_of(query));
  Tensor lse = empty(Shape{s[0], s[1], s[2]}, {stats_dtype(query.dtype()), query.device()});
  if (!out.is_meta()) attention_slot(Launch(query.device()), out.view(), lse.view(), p.plan);
  return {with_dims_of(out, query.ndim()), lse};
}

Tensor fused(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
             const AttentionData& d) {
  auto [result, lse] = fused_forward(query, key, value, mask, d);
  if (needs_grad(query, key, value)) {
    Ref<Node> n = record(kAttention, query, key, value);
    for (const Tensor& t : {query, key, value, mask, lse}) n->save(t);
    n->emplace<AttentionData>(d);
    set_history(result, n);
    n->save_output(result);
  }
  return result;
}

// ---- the op --------------------------------------------------------------------------------------------

// The inputs with the batch dims that theirs broadcast to.
void broadcast_batch(Tensor& q, Tensor& k, Tensor& v) {
  const auto batch = [](const Tensor& t) { return Shape(t.sizes().begin(), t.sizes().end() - 2); };
  if (batch(q) == batch(k) && batch(k) == batch(v)) return;
  const char* op = "scaled_dot_product_attention";
  const Shape common = broadcast_shapes(broadcast_shapes(batch(q), batch(k), op), batch(v), op);
  for (Tensor* t : {&q, &k, &v}) {
    Shape sizes = common;
    for (int64_t d : {-2, -1}) sizes.push_back(t->size(d));
    *t = expand(*t, sizes);
  }
}

// Broadcasts them, too.
void check_inputs(Tensor& q, Tensor& k, Tensor& v, bool gqa) {
  const char* op = "scaled_dot_product_attention";
  for (const Tensor& t : {q, k, v}) {
    check_floating(op, t);
    check_same_device(op, q, t, "an input");
    WT_CHECK(t.dtype() == q.dtype(), DtypeError, op, ": expected query, key and value of one dtype, got ",
             q.dtype(), ", ", k.dtype(), " and ", v.dtype());
    WT_CHECK(t.ndim() >= 2 && (!gqa || t.ndim() == q.ndim()), ShapeError, op,
             ": expected query, key and value of at least 2 dims",
             gqa ? ", with enable_gqa the same number of them" : "", ", got ", q.sizes(), ", ", k.sizes(),
             " and ", v.sizes());
  }
  if (!gqa) broadcast_batch(q, k, v);
  const int64_t nd = q.ndim();
  bool fits = q.sizes()[nd - 1] == k.sizes()[nd - 1] && k.sizes()[nd - 2] == v.sizes()[nd - 2];
  for (int64_t i = 0; i < nd - 2; ++i) {
    const int64_t a = q.sizes()[i], b = k.sizes()[i];
    fits = fits && b == v.sizes()[i] && (a == b || (gqa && i == nd - 3 && b > 0 && a % b == 0));
  }
  WT_CHECK(fits, ShapeError, op,
           ": expected query [..., H, T, D], key [..., K, S, D] and value [..., K, S, E] with K = H",
           gqa ? " or a divisor of it" : "; enable_gqa allows fewer key heads", ", got ", q.sizes(), ", ",
           k.sizes(), " and ", v.sizes());
}

void check_mask(const Tensor& mask, const Tensor& q, const Tensor& k, bool causal) {
  const char* op = "scaled_dot_product_attention";
  if (!mask.defined()) return;
  WT_CHECK(!causal, Error, op, ": Explicit attn_mask should not be set when is_causal=True");
  WT_CHECK(mask.dtype() == DType::Bool || is_floating(mask.dtype()), DtypeError, op,
           ": expected attn_mask of dtype bool or of the query's dtype, got ", mask);
  check_same_device(op, q, mask, "attn_mask");
  Shape scores = q.sizes();
  scores.back() = k.sizes()[k.ndim() - 2];
  bool fits =
      mask.ndim() >= 2 && mask.ndim() <= q.ndim() && broadcast_shapes(mask.sizes(), scores, op) == scores;
  WT_CHECK(fits, ShapeError, op, ": expected attn_mask of a shape that broadcasts to ", scores, ", got ",
           mask.sizes());
}

Tensor attention_impl(const Tensor& given_query, const Tensor& given_key, const Tensor& given_value,
                      const OptTensor& attn_mask, double dropout_p, bool is_causal,
                      std::optional<double> scale, bool enable_gqa) {
  Tensor query = given_query, key = given_key, value = given_value;
  check_inputs(query, key, value, enable_gqa);
  Tensor mask = or_undefined(attn_mask);
  check_mask(mask, query, key, is_causal);
  check_probability("scaled_dot_product_attention", dropout_p);
  AttentionData d{
      scale.value_or(1 / std::sqrt(static_cast<double>(query.sizes().back()))), is_causal, dropout_p, {}, {}};
  const bool as_pytorch = dropout_p > 0 && draws_as_pytorch(query.device());
  if (dropout_p > 0 && !as_pytorch) {
    d.key = next_dropout_key(query.device());
    d.numbers = {drop_part(IntList(query.sizes()).first(query.ndim() - 2), true),
                 static_cast<uint64_t>(query.size(-2)), static_cast<uint64_t>(key.size(-2))};
  }
  // Without a batch dim the kernels take dim 0 for the batch, which must then be the same.
  const bool grouped_3d = query.ndim() == 3 && query.sizes()[0] != key.sizes()[0];
  const bool empty_heads = query.sizes().back() == 0 || value.sizes().back() == 0 || query.numel() == 0;
  if (query.ndim() <= 4 && !needs_grad(mask) && !empty_heads && !grouped_3d && dropout_p < 1 && !as_pytorch)
    return fused(query, key, value, mask, d);
  Shape sizes = query.sizes();
  sizes.back() = value.sizes().back();
  if (query.ndim() > 2) return Composed(query, key, value, mask, d).output(sizes, query.dtype());
  auto with_head = [](const Tensor& t) { return unsqueeze(t, 0); };
  return Composed(with_head(query), with_head(key), with_head(value), mask, d).output(sizes, query.dtype());
}

// ---- a part of the keys --------------------------------------------------------------------------------

void check_part(const Tensor& query, const Tensor& key, const Tensor& value) {
  Tensor q = query, k = key, v = value;
  check_inputs(q, k, v, true);
  WT_CHECK(q.ndim() == 4 && q.numel() && v.numel(), ShapeError,
           "_attention_forward: expected query, key and value of 4 dims with elements, got ", q.sizes(), ", ",
           k.sizes(), " and ", v.sizes());
}

// Attention's key of dropout, once for all parts, and of which heads these are: what `drawn` begins with.
Shape draw_for_parts(const Tensor& query) {
  const kernels::PhiloxKey key = next_dropout_key(query.device());
  WT_CHECK(!key.captured, Error, "attention with dropout between ranks cannot be captured in a graph");
  const kernels::PhiloxPart heads = drop_part(IntList(query.sizes()).first(query.ndim() - 2), true);
  Shape out;
  for (uint64_t n : {key.seed, key.call, heads.first, heads.run, heads.stride})
    out.push_back(static_cast<int64_t>(n));
  return out;
}

AttentionData data_of_part(const Tensor& query, const Tensor& key, const Tensor& mask, bool causal,
                           double scale, double dropout_p, IntList drawn) {
  check_mask(mask, query, key, false);
  AttentionData d{scale, causal, dropout_p, {}, {}};
  if (dropout_p == 0) return d;
  WT_CHECK(drawn.size() == 9 && dropout_p > 0 && dropout_p < 1, ValueError,
           "_attention_forward: expected dropout_p from 0 to below 1 and 9 numbers in drawn, got ", dropout_p,
           " and ", drawn.size());
  uint64_t n[9];
  std::copy(drawn.begin(), drawn.end(), n);
  d.key.seed = n[0], d.key.call = n[1];
  d.numbers = {{n[2], n[3], n[4]}, n[5], n[6], n[7], n[8]};
  return d;
}

std::tuple<Tensor, Tensor> attention_forward_impl(const Tensor& query, const Tensor& key, const Tensor& value,
                                                  bool is_causal, double scale, const OptTensor& attn_mask,
                                                  double dropout_p, IntList drawn) {
  check_part(query, key, value);
  Tensor mask = or_undefined(attn_mask);
  return fused_forward(query, key, value, mask,
                       data_of_part(query, key, mask, is_causal, scale, dropout_p, drawn));
}

Three attention_backward_impl(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                              const Tensor& out, const Tensor& lse, bool is_causal, double scale,
                              const OptTensor& attn_mask, double dropout_p, IntList drawn) {
  check_part(query, key, value);
  Tensor mask = or_undefined(attn_mask);
  Shape sizes = query.sizes();
  sizes.back() = value.sizes().back();
  const Shape rows(sizes.begin(), sizes.end() - 1);
  for (const Tensor& t : {grad, out})
    WT_CHECK(t.sizes() == sizes && t.dtype() == query.dtype() && t.device() == query.device(), ShapeError,
             "_attention_backward: expected grad and out of ", sizes, " as query is, got ", t);
  WT_CHECK(lse.sizes() == rows && lse.dtype() == stats_dtype(query.dtype()) && lse.device() == query.device(),
           ShapeError, "_attention_backward: expected lse of ", rows, " in ", stats_dtype(query.dtype()),
           ", got ", lse);
  return fused_backward(grad, query, key, value, mask, out, raw_contiguous(lse),
                        data_of_part(query, key, mask, is_causal, scale, dropout_p, drawn));
}

}  // namespace

const Op<Shape(const Tensor&)> attention_draws{
    "_attention_draws",
    draw_for_parts,
    kPrivate | kComplex,
    {"query"},
    "The first five numbers of `drawn`, for all parts of a call: dropout's key, and which heads these are."};

const Op<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, bool, double,
                                    const OptTensor&, double, IntList)>
    attention_forward{
        "_attention_forward",
        attention_forward_impl,
        kPrivate,
        {"query",
         "key",
         "value",
         "is_causal",
         "scale",
         {"attn_mask", none},
         {"dropout_p", 0.0},
         {"drawn", {}}},
        "(output, log-sum-exp [B, H, T]) of attention to some of the keys, not recorded: results for other "
        "keys are merged with it by the log-sum-exp. `drawn` ends with the numbers of all queries and keys, "
        "and where among them these begin."};

const Op<Three(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool,
               double, const OptTensor&, double, IntList)>
    attention_backward_of_part{
        "_attention_backward",
        attention_backward_impl,
        kPrivate,
        {"grad",
         "query",
         "key",
         "value",
         "out",
         "lse",
         "is_causal",
         "scale",
         {"attn_mask", none},
         {"dropout_p", 0.0},
         {"drawn", {}}},
        "Gradients of query, key and value for some of the keys, by out and lse of attention to all."};

decltype(scaled_dot_product_attention) scaled_dot_product_attention{
    "scaled_dot_product_attention",
    attention_impl,
    kNN | kLower | batching::attention,
    {"query",
     "key",
     "value",
     {"attn_mask", none},
     {"dropout_p", 0.0},
     {"is_causal", false},
     {"scale", none, kKeywordOnly},
     {"enable_gqa", false, kKeywordOnly}},
    "softmax(query key^T * scale + mask) value; query [..., H, T, D], key [..., H, S, D], value [..., H, S, "
    "E]. A bool "
    "mask says which keys take part, another is added to the scores. A query that sees no key gets zeros."};

}  // namespace warptape::ops
