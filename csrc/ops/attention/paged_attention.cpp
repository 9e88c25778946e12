// Attention over keys and values in pages.
//
// Shapes: N tokens of R sequences, H query heads, K key heads, P pages of 32 tokens, D head size.
#include "ops/attention/paged_attention.h"

#include <cmath>
#include <limits>

#include "kernels/attention/paged_attention.h"
#include "ops/kernel_inputs.h"
#include "tensor/before_write.h"

namespace warptape::ops {
namespace {

constexpr int64_t kTokens = kernels::kPagedTokens;
kernels::Slot<kernels::PagedAttentionFn> paged_attention_slot{"paged_attention"};
kernels::Slot<kernels::PagedStoreFn> paged_store_slot{"paged_store"};

// The pages of a layer, checked.
struct Pages {
  const Tensor &keys, &values;
  Tensor key_scales, value_scales;
  int64_t count, heads, d;

  Pages(const char* op, const Tensor& k, const Tensor& v, const OptTensor& k_scales,
        const OptTensor& v_scales)
      : keys(k), values(v), key_scales(or_undefined(k_scales)), value_scales(or_undefined(v_scales)) {
    const Shape &s = k.sizes(), &t = v.sizes();
    WT_CHECK(k.ndim() == 4 && v.ndim() == 4 && s[3] == kTokens && t[2] == kTokens && s[0] == t[0] &&
                 s[1] == t[1] && s[2] == t[3],
             ShapeError, op, ": expected key_pages [P, K, D, 32] and value_pages [P, K, 32, D], got ", s,
             " and ", t);
    count = s[0], heads = s[1], d = s[2];
    const bool scaled = k.dtype() == DType::Int8;
    WT_CHECK(k.dtype() == v.dtype() && (scaled || taken(k.dtype())), DtypeError, op,
             ": expected key_pages and value_pages of one dtype, float32, bfloat16 or int8, got ", k.dtype(),
             " and ", v.dtype());
    check_layout(op, k, "key_pages");
    check_layout(op, v, "value_pages");
    check_scales(op, key_scales, scaled, "key_scales");
    check_scales(op, value_scales, scaled, "value_scales");
  }
  static bool taken(DType t) { return t == DType::Float32 || t == DType::BFloat16; }

  // q, k or v of a call: [N, heads, D], in the pages' dtype unless that is int8.
  void check_tokens(const char* op, const Tensor& x, const char* what, bool queries) const {
    const bool fits = x.ndim() == 3 && x.sizes()[2] == d &&
                      (queries ? heads > 0 && x.sizes()[1] % heads == 0 : x.sizes()[1] == heads);
    WT_CHECK(fits, ShapeError, op, ": expected ", what, " [N, ", queries ? "a multiple of " : "", heads, ", ",
             d, "] for key_pages ", keys.sizes(), ", got ", x.sizes());
    const bool scaled = keys.dtype() == DType::Int8;
    WT_CHECK(scaled ? taken(x.dtype()) : x.dtype() == keys.dtype(), DtypeError, op, ": expected ", what,
             " of the pages' dtype, or of float32 or bfloat16 with int8 pages, got ", x.dtype(),
             " for pages of ", keys.dtype());
    check_same_device(op, keys, x, what);
  }
  kernels::PagedCacheView view() const {
    return {keys.view(), values.view(), view_of(key_scales), view_of(value_scales)};
  }

 private:
  static void check_layout(const char* op, const Tensor& x, const char* what) {
    WT_CHECK(x.is_contiguous(), ValueError, op, ": expected ", what, " to be contiguous");
  }
  void check_scales(const char* op, const Tensor& x, bool wanted, const char* what) const {
    WT_CHECK(x.defined() == wanted, ValueError, op, ": expected ", what,
             " with int8 pages, and with no other");
    if (!wanted) return;
    WT_CHECK(x.dtype() == DType::Float32 && x.sizes() == Shape({count, heads, kTokens}), ShapeError, op,
             ": expected ", what, " float32 ", Shape{count, heads, kTokens}, ", got ", x);
    check_layout(op, x, what);
    check_same_device(op, keys, x, what);
  }
};

void check_numbers(const char* op, const Tensor& x, const Tensor& like, DType dtype, int64_t ndim,
                   const char* what) {
  WT_CHECK(x.dtype() == dtype, DtypeError, op, ": expected ", what, " of dtype ", dtype, ", got ", x.dtype());
  WT_CHECK(x.ndim() == ndim, ShapeError, op, ": expected ", what, " with ", ndim, " dims, got ", x.sizes());
  check_same_device(op, like, x, what);
}

void check_not_recorded(const char* op, bool recorded) {
  WT_CHECK(!recorded, Error, op, ": no gradient flows through pages; call it under no_grad()");
}

// With unit stride in the last dim.
Tensor rows_of(const Tensor& x) { return x.strides().back() == 1 ? x : raw_contiguous(x); }

void paged_store_impl(const Tensor& key_pages, const Tensor& value_pages, const Tensor& k, const Tensor& v,
                      const Tensor& slots, const OptTensor& key_scales, const OptTensor& value_scales) {
  const char* op = "_paged_store";
  const Pages pages(op, key_pages, value_pages, key_scales, value_scales);
  pages.check_tokens(op, k, "k", false);
  pages.check_tokens(op, v, "v", false);
  check_numbers(op, slots, key_pages, DType::Int64, 1, "slots");
  WT_CHECK(k.sizes() == v.sizes() && k.dtype() == v.dtype() && slots.sizes()[0] == k.sizes()[0], ShapeError,
           op, ": expected k and v of one shape and dtype and a slot for each token, got ", k, ", ", v,
           " and slots ", slots.sizes());
  check_not_recorded(op, needs_grad(key_pages, value_pages, k, v));
  if (k.numel() == 0 || k.is_meta()) return;
  const Tensor places = raw_contiguous(slots), keys = rows_of(k), values = rows_of(v);
  const int64_t* slot = places.data_as<int64_t>();
  for (int64_t i = 0; k.device().is_host() && i < places.numel(); ++i)  // a device looks itself
    WT_CHECK(slot[i] >= 0 && slot[i] < pages.count * kTokens, IndexError, op, ": slot ", slot[i],
             " of token ", i, " is not within the ", pages.count, " pages of 32 tokens");
  for (const Tensor& t : {key_pages, value_pages, pages.key_scales, pages.value_scales}) before_write(t);
  paged_store_slot(Launch(key_pages.device()), pages.view(), keys.view(), values.view(), places.view());
  for (const Tensor& t : {key_pages, value_pages, pages.key_scales, pages.value_scales})
    if (t.defined()) t.bump_version();
}

// What the sequences of a call have: ranges, and the pages that some query sees. Not on a device, where it
// would wait: there the kernel reports pages, and whoever makes starts and lengths answers for them.
void check_sequences(const char* op, const kernels::PagedAttentionPlan& p, int64_t pages) {
  const int64_t queries = p.q.sizes[0];
  for (int64_t r = 0; r < p.sequences; ++r) {
    const int64_t count = int64_t{p.starts[r + 1]} - p.starts[r], length = p.lengths[r];
    WT_CHECK(count >= 0 && p.starts[r] >= 0 && p.starts[r + 1] <= queries, ValueError, op,
             ": expected starts to rise from 0 to the number of queries, ", queries, ", got ", p.starts[r],
             " and ", p.starts[r + 1], " for sequence ", r);
    if (count == 0) continue;
    WT_CHECK(length >= count && length <= p.max_pages * kTokens, ValueError, op, ": sequence ", r, " with ",
             count, " queries and ", p.max_pages, " pages of 32 tokens cannot have length ", length);
    const int64_t first = length - count + 1 - p.window;  // the first key that its first query sees
    for (int64_t b = first > 0 ? first / kTokens : 0; b * kTokens < length; ++b) {
      const int64_t page = p.page_table[r * p.max_pages + b];
      WT_CHECK(page >= 0 && page < pages, IndexError, op, ": page ", page, " of sequence ", r, " at place ",
               b, " is not one of ", pages);
    }
  }
  WT_CHECK(p.starts[0] == 0 && p.starts[p.sequences] == queries, ValueError, op,
           ": expected starts from 0 to the number of queries, ", queries, ", got ", p.starts[0], " to ",
           p.starts[p.sequences]);
}

Tensor paged_attention_impl(const Tensor& q, const Tensor& key_pages, const Tensor& value_pages,
                            const Tensor& page_table, const Tensor& starts, const Tensor& lengths,
                            std::optional<double> scale, std::optional<int64_t> window,
                            const OptTensor& key_scales, const OptTensor& value_scales,
                            std::optional<double> cap, const OptTensor& sinks) {
  const char* op = "_paged_attention";
  const Pages pages(op, key_pages, value_pages, key_scales, value_scales);
  pages.check_tokens(op, q, "q", true);
  check_numbers(op, page_table, key_pages, DType::Int32, 2, "page_table");
  check_numbers(op, starts, key_pages, DType::Int32, 1, "starts");
  check_numbers(op, lengths, key_pages, DType::Int32, 1, "lengths");
  const int64_t sequences = page_table.sizes()[0];
  WT_CHECK(starts.sizes()[0] == sequences + 1 && lengths.sizes()[0] == sequences, ShapeError, op,
           ": expected page_table [R, max_pages], starts [R + 1] and lengths [R], got ", page_table.sizes(),
           ", ", starts.sizes(), " and ", lengths.sizes());
  WT_CHECK(!window || *window > 0, ValueError, op, ": expected a window above 0, got ", window.value_or(0));
  WT_CHECK(!cap || *cap > 0, ValueError, op, ": expected a cap above 0, got ", cap.value_or(0));
  if (sinks) {
    check_numbers(op, *sinks, key_pages, DType::Float32, 1, "sinks");
    WT_CHECK(sinks->numel() == q.sizes()[1], ShapeError, op, ": expected sinks [", q.sizes()[1],
             "], one for each query head, got ", sinks->sizes());
  }
  check_not_recorded(op, needs_grad(q, key_pages, value_pages, sinks));
  Tensor out = empty(q.sizes(), options_of(q));
  if (q.is_meta()) return out;
  const Tensor table = raw_contiguous(page_table), from = raw_contiguous(starts);
  const Tensor counts = raw_contiguous(lengths), queries = rows_of(q);
  const Tensor heads = sinks ? raw_contiguous(*sinks) : Tensor();
  const kernels::PagedAttentionPlan plan{queries.view(),
                                         pages.view(),
                                         table.data_as<int32_t>(),
                                         table.sizes()[1],
                                         from.data_as<int32_t>(),
                                         counts.data_as<int32_t>(),
                                         sequences,
                                         scale.value_or(1 / std::sqrt(static_cast<double>(pages.d))),
                                         window.value_or(std::numeric_limits<int64_t>::max()),
                                         cap.value_or(0),
                                         sinks ? heads.data_as<float>() : nullptr};
  if (q.device().is_host()) check_sequences(op, plan, pages.count);
  if (out.numel()) paged_attention_slot(Launch(q.device()), out.view(), plan);
  return out;
}

}  // namespace

decltype(paged_store) paged_store{
    "_paged_store",
    paged_store_impl,
    kPrivate,
    {{"key_pages", kUpdated},
     {"value_pages", kUpdated},
     "k",
     "v",
     "slots",
     {"key_scales", none, kKeywordOnly | kUpdated},
     {"value_scales", none, kKeywordOnly | kUpdated}},
    "Writes keys k and values v, [N, K, D], of N tokens to key_pages [P, K, D, 32] and value_pages [P, K, "
    "32, "
    "D], to slots int64 [N]: page * 32 + place. Pages of int8 have float32 scales [P, K, 32] beside them."};

decltype(paged_attention) paged_attention{
    "_paged_attention",
    paged_attention_impl,
    kPrivate,
    {"q",
     "key_pages",
     "value_pages",
     "page_table",
     "starts",
     "lengths",
     {"scale", none},
     {"window", none},
     {"key_scales", none, kKeywordOnly},
     {"value_scales", none, kKeywordOnly},
     {"cap", none, kKeywordOnly},
     {"sinks", none, kKeywordOnly}},
    "Causal attention of queries q [N, H, D] to keys in pages. Sequence r has the queries starts[r] to "
    "starts[r + 1] - 1 (starts: int32 [R + 1]), lengths[r] keys (int32 [R]), its last query's among them, "
    "and the pages page_table[r] (int32 [R, max_pages]). A query sees the last `window` keys. Scores "
    "become cap tanh(score / cap); sinks, float32 [H], are scores of each head that have a weight and no "
    "value. Each row "
    "depends on its own sequence alone, to the bit; entries of the table that no query needs are not read."};

}  // namespace warptape::ops
