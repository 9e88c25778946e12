// Attention of several heads ("Attention Is All You Need", section 3.2.2), with projections and masks.
// Legend: N batch, H heads, T queries, S keys, E embedding, D = E / H. Sequences come as [T, N, E], or as
// [N, T, E] with batch_first.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/masked.h"
#include "ops/linalg/matmul.h"
#include "ops/nn/dropout.h"
#include "ops/nn/softmax.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

constexpr const char* kOp = "multi_head_attention_forward";

Tensor padded(const Tensor& x, int64_t dim) {  // one more element, zero
  Shape sizes = x.sizes();
  dim = wrap_dim(dim, x.ndim(), kOp);
  sizes[dim] = 1;
  return cat(std::vector<Tensor>{x, zeros(sizes, options_of(x))}, dim);
}

// The mask as numbers to add to the scores: minus infinity where a bool mask is True.
Tensor additive(const OptTensor& mask, const char* name, const OptTensor& other, const char* other_name,
                DType dtype) {
  if (!mask) return Tensor();
  WT_CHECK(mask->dtype() == DType::Bool || is_floating(mask->dtype()), AssertionError, kOp,
           ": only bool and floating types of ", name, " are supported, got ", mask->dtype());
  if (other && mask->dtype() != other->dtype())
    warn(message("Support for mismatched ", name, " and ", other_name,
                 " is deprecated. Use same type for both instead."));
  if (is_floating(mask->dtype())) return *mask;
  return masked_fill(zeros(mask->sizes(), {dtype, mask->device()}), *mask,
                     -std::numeric_limits<double>::infinity());
}
Tensor additive_mask_impl(const OptTensor& mask, std::string_view name, const OptTensor& other,
                          std::string_view other_name, DType dtype) {
  return additive(mask, std::string(name).c_str(), other, std::string(other_name).c_str(), dtype);
}
const Op<Tensor(const OptTensor&, std::string_view, const OptTensor&, std::string_view, DType)> additive_mask{
    "_additive_mask",
    additive_mask_impl,
    kPrivate | kChecked,
    {"mask", "mask_name", "other", "other_name", "dtype"},
    "A mask as numbers to add to attention's scores."};

struct Inputs {
  Tensor query, key, value;
  OptTensor in_proj_weight, in_proj_bias, bias_k, bias_v, q_weight, k_weight, v_weight, static_k, static_v;
  bool separate, batch_first;
  int64_t heads;
  int64_t batch_dim() const { return batch_first ? 0 : 1; }
};

void check_dims(const Inputs& in, const OptTensor& padding, const OptTensor& mask) {
  const int64_t dims = in.query.ndim();
  WT_CHECK(dims == 2 || dims == 3, AssertionError, kOp,
           ": query should be unbatched 2D or batched 3D tensor but received ", dims, "-D query tensor");
  const std::string start =
      message(kOp, ": For ", dims == 3 ? "batched (3-D)" : "unbatched (2-D)", " `query`, expected ");
  WT_CHECK(in.key.ndim() == dims && in.value.ndim() == dims, AssertionError, start,
           "`key` and `value` to be ", dims, "-D but found ", in.key.ndim(), "-D and ", in.value.ndim(),
           "-D tensors respectively");
  WT_CHECK(!padding || padding->ndim() == dims - 1, AssertionError, start,
           "`key_padding_mask` to be `None` or ", dims - 1, "-D but found ", padding ? padding->ndim() : 0,
           "-D tensor instead");
  WT_CHECK(!mask || mask->ndim() == 2 || mask->ndim() == 3, AssertionError, start,
           "`attn_mask` to be `None`, 2-D or 3-D but found ", mask ? mask->ndim() : 0, "-D tensor instead");
}

void check_sizes(const Inputs& in, int64_t expected) {
  const int64_t embed = in.query.sizes().back();
  WT_CHECK(embed == expected, AssertionError, kOp, ": was expecting embedding dimension of ", expected,
           ", but got ", embed);
  WT_CHECK(in.heads > 0 && embed % in.heads == 0, AssertionError, kOp, ": embed_dim ", embed,
           " not divisible by num_heads ", in.heads);
  auto leading = [](const Tensor& t) { return IntList(t.sizes()).first(2); };
  WT_CHECK(!in.separate || std::ranges::equal(leading(in.key), leading(in.value)), AssertionError, kOp,
           ": key's sequence and batch dims ", AsShape{leading(in.key)}, " do not match value's ",
           AsShape{leading(in.value)});
  WT_CHECK(in.separate || in.key.sizes() == in.value.sizes(), AssertionError, kOp, ": key shape ",
           in.key.sizes(), " does not match value shape ", in.value.sizes());
  for (auto [weight, name] : {std::pair{&in.q_weight, "q"}, {&in.k_weight, "k"}, {&in.v_weight, "v"}})
    WT_CHECK(!in.separate || *weight, AssertionError, kOp, ": use_separate_proj_weight is True but ", name,
             "_proj_weight is None");
  WT_CHECK(in.separate || in.in_proj_weight, AssertionError, kOp,
           ": use_separate_proj_weight is False but in_proj_weight is None");
}

OptTensor rows(const OptTensor& t, int64_t first, int64_t count) {
  return t ? OptTensor(narrow(*t, 0, first, count)) : OptTensor();
}

// Queries, keys and values through their weights. One product serves all that come from the same tensor.
std::vector<Tensor> projected(const Inputs& in) {
  const int64_t e = in.query.sizes().back();
  const Tensor* given[] = {&in.query, &in.key, &in.value};
  const OptTensor* own[] = {&in.q_weight, &in.k_weight, &in.v_weight};
  std::vector<Tensor> out;
  for (int64_t i = 0; i < 3;) {
    int64_t n = 1;
    while (!in.separate && i + n < 3 && given[i + n]->same(*given[i])) ++n;
    const Tensor weight = in.separate ? **own[i] : narrow(*in.in_proj_weight, 0, i * e, n * e);
    Tensor product = linear(*given[i], n == 3 ? *in.in_proj_weight : weight,
                            n == 3 ? in.in_proj_bias : rows(in.in_proj_bias, i * e, n * e));
    for (int64_t k = 0; k < n; ++k) out.push_back(n == 1 ? product : narrow(product, -1, k * e, e));
    i += n;
  }
  return out;
}

// [T, N, E] or [N, T, E] -> [N, H, T, D].
Tensor split_heads(const Tensor& x, const Inputs& in) {
  const Shape& s = x.sizes();
  const int64_t b = in.batch_dim(), order[] = {b, 2, 1 - b, 3};
  return permute(reshape(x, Shape{s[0], s[1], in.heads, s[2] / in.heads}), IntList(order));
}

// Keys or values [N * H, S, D] that stand in for projected ones.
Tensor stand_in(const OptTensor& given, const char* name, const Tensor& x) {
  if (!given) return x;
  const int64_t n = x.sizes()[0], h = x.sizes()[1], d = x.sizes()[3];
  for (auto [dim, wanted] : {std::pair<int64_t, int64_t>{0, n * h}, {2, d}})
    WT_CHECK(given->ndim() == 3 && given->sizes()[dim] == wanted, AssertionError, kOp, ": expecting ", name,
             ".size(", dim, ") of ", wanted, ", but got ", given->sizes());
  return reshape(*given, Shape{n, h, given->sizes()[1], d});
}

// Both masks as one that broadcasts to the scores [N, H, T, S].
Tensor merged(const Tensor& given, const Tensor& padding, int64_t n, int64_t h, int64_t t, int64_t s) {
  Tensor mask = given;
  if (mask.defined()) {
    const Shape wanted = mask.ndim() == 2 ? Shape{t, s} : Shape{n * h, t, s};
    WT_CHECK(mask.sizes() == wanted, ShapeError, kOp, ": The shape of the ", mask.ndim(), "D attn_mask is ",
             mask.sizes(), ", but should be ", wanted, ".");
    if (mask.ndim() == 3) mask = reshape(mask, Shape{n, h, t, s});
  }
  if (!padding.defined()) return mask;
  const int64_t wanted[] = {n, s};
  for (int64_t d = 0; d < 2; ++d)
    WT_CHECK(padding.sizes()[d] == wanted[d], AssertionError, kOp, ": Expected key_padded_mask.shape[", d,
             "] to be ", wanted[d], ", but got ", padding.sizes()[d]);
  Tensor row = reshape(padding, Shape{n, 1, 1, s});
  return mask.defined() ? mask + row : row;
}

struct Weighed {
  Tensor out, probabilities;  // [N, H, T, D]; [N, H, T, S] where they are wanted
};
Weighed weigh(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, double dropout_p,
              bool causal, bool need_weights) {
  if (!need_weights) {
    const OptTensor given = mask.defined() ? OptTensor(mask) : OptTensor();
    return {scaled_dot_product_attention(q, k, v, given, dropout_p, causal, std::nullopt, false), Tensor()};
  }
  Tensor scores = matmul(q * (1 / std::sqrt(static_cast<double>(q.sizes().back()))), transpose(k, -2, -1));
  Tensor p = softmax(mask.defined() ? scores + mask : scores, -1, std::nullopt);
  if (dropout_p > 0) p = dropout(p, dropout_p, true, false);
  return {matmul(p, v), p};
}

std::tuple<Tensor, Tensor> attend(
    const Tensor& query, const Tensor& key, const Tensor& value, int64_t embed_dim, int64_t num_heads,
    const OptTensor& in_proj_weight, const OptTensor& in_proj_bias, const OptTensor& bias_k,
    const OptTensor& bias_v, bool add_zero_attn, double dropout_p, const Tensor& out_proj_weight,
    const OptTensor& out_proj_bias, bool training, const OptTensor& key_padding_mask, bool need_weights,
    const OptTensor& attn_mask, bool use_separate_proj_weight, const OptTensor& q_proj_weight,
    const OptTensor& k_proj_weight, const OptTensor& v_proj_weight, const OptTensor& static_k,
    const OptTensor& static_v, bool average_attn_weights, bool is_causal, bool batch_first) {
  Inputs in{query,
            key,
            value,
            in_proj_weight,
            in_proj_bias,
            bias_k,
            bias_v,
            q_proj_weight,
            k_proj_weight,
            v_proj_weight,
            static_k,
            static_v,
            use_separate_proj_weight,
            batch_first,
            num_heads};
  check_dims(in, key_padding_mask, attn_mask);
  const bool batched = query.ndim() == 3;
  const int64_t b = in.batch_dim();
  Tensor padding = additive(key_padding_mask, "key_padding_mask", attn_mask, "attn_mask", query.dtype());
  WT_CHECK(!is_causal || attn_mask, Error, kOp, ": Need attn_mask if specifying the is_causal hint.");
  const bool causal = is_causal && !padding.defined() && !need_weights;
  Tensor mask = causal ? Tensor() : additive(attn_mask, "attn_mask", OptTensor(), "", query.dtype());
  if (!batched) {
    in.query = unsqueeze(query, b);
    in.key = key.same(query) ? in.query : unsqueeze(key, b);
    in.value = value.same(key) ? in.key : unsqueeze(value, b);
    if (padding.defined()) padding = unsqueeze(padding, 0);
  }
  check_sizes(in, embed_dim);
  std::vector<Tensor> qkv = projected(in);
  Tensor &q = qkv[0], &k = qkv[1], &v = qkv[2];
  auto longer = [&] {  // masks for one key more, which all see
    if (mask.defined()) mask = padded(mask, -1);
    if (padding.defined()) padding = padded(padding, -1);
  };
  if (bias_k && bias_v) {
    Shape row{1, 1, -1};
    row[b] = k.sizes()[b];
    k = cat(std::vector<Tensor>{k, expand(*bias_k, row)}, 1 - b);
    v = cat(std::vector<Tensor>{v, expand(*bias_v, row)}, 1 - b);
    longer();
  }
  for (Tensor& x : qkv) x = split_heads(x, in);
  k = stand_in(static_k, "static_k", k);
  v = stand_in(static_v, "static_v", v);
  if (add_zero_attn) {
    k = padded(k, 2);
    v = padded(v, 2);
    longer();
  }
  Weighed w = weigh(q, k, v, merged(mask, padding, q.sizes()[0], num_heads, q.sizes()[2], k.sizes()[2]),
                    training ? dropout_p : 0.0, causal, need_weights);
  const int64_t first[] = {0, 2, 1, 3}, second[] = {2, 0, 1, 3};
  // PyTorch's memory is [T, N, E] for either order, and its masks for what comes after follow the memory.
  const bool transposed = batch_first && draws_as_pytorch(query.device());
  Tensor out = linear(flatten(permute(w.out, IntList(batch_first && !transposed ? first : second)), 2, -1),
                      out_proj_weight, out_proj_bias);
  if (transposed) out = transpose(out, 0, 1);
  const int64_t heads_dim[] = {1};
  if (need_weights && average_attn_weights)
    w.probabilities = mean(w.probabilities, IntList(heads_dim), false, std::nullopt);
  if (batched) return {out, w.probabilities};
  return {squeeze_dim(out, b), need_weights ? squeeze_dim(w.probabilities, 0) : Tensor()};
}

std::tuple<Tensor, Tensor> forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   int64_t embed_dim, int64_t num_heads, const OptTensor& in_proj_weight,
                                   const OptTensor& in_proj_bias, const OptTensor& bias_k,
                                   const OptTensor& bias_v, bool add_zero_attn, double dropout_p,
                                   const Tensor& out_proj_weight, const OptTensor& out_proj_bias,
                                   bool training, const OptTensor& key_padding_mask, bool need_weights,
                                   const OptTensor& attn_mask, bool use_separate_proj_weight,
                                   const OptTensor& q_proj_weight, const OptTensor& k_proj_weight,
                                   const OptTensor& v_proj_weight, const OptTensor& static_k,
                                   const OptTensor& static_v, bool average_attn_weights, bool is_causal) {
  return attend(query, key, value, embed_dim, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v,
                add_zero_attn, dropout_p, out_proj_weight, out_proj_bias, training, key_padding_mask,
                need_weights, attn_mask, use_separate_proj_weight, q_proj_weight, k_proj_weight,
                v_proj_weight, static_k, static_v, average_attn_weights, is_causal, false);
}

#define WT_ATTEND_ARGS                                                                                    \
  "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", \
      "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias", {"training", true},     \
      {"key_padding_mask", none}, {"need_weights", true}, {"attn_mask", none},                            \
      {"use_separate_proj_weight", false}, {"q_proj_weight", none}, {"k_proj_weight", none},              \
      {"v_proj_weight", none}, {"static_k", none}, {"static_v", none}, {"average_attn_weights", true}, {  \
    "is_causal", false                                                                                    \
  }
#define WT_ATTEND_TYPES                                                                                     \
  const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, const OptTensor&, const OptTensor&,        \
      const OptTensor&, const OptTensor&, bool, double, const Tensor&, const OptTensor&, bool,              \
      const OptTensor&, bool, const OptTensor&, bool, const OptTensor&, const OptTensor&, const OptTensor&, \
      const OptTensor&, const OptTensor&, bool, bool
const Op<std::tuple<Tensor, Tensor>(WT_ATTEND_TYPES)> multi_head_attention_forward{
    kOp,
    forward,
    kNN,
    {WT_ATTEND_ARGS},
    "What nn.MultiheadAttention computes: query [T, N, E], key [S, N, K], value [S, N, V], or all without N; "
    "in_proj_weight [3E, E] or three of [E, E], [E, K], [E, V]; bias_k, bias_v [1, 1, E] one more key and "
    "value; "
    "static_k, static_v [N * H, S, D] in place of the projected. key_padding_mask [N, S] and attn_mask [T, "
    "S] or "
    "[N * H, T, S] are bool, True to hide, or are added to the scores. Returns [T, N, E] and, with "
    "need_weights, the probabilities [N, T, S], or [N, H, T, S] unless averaged over the heads."};
const Op<std::tuple<Tensor, Tensor>(WT_ATTEND_TYPES, bool)> multi_head_attention{
    "multi_head_attention",
    attend,
    kPrivate | kChecked,
    {WT_ATTEND_ARGS, {"batch_first", false}},
    "multi_head_attention_forward, also of [N, T, E]."};

}  // namespace
}  // namespace warptape::ops
