// What is composed of products.
#include "ops/elementwise/elementwise.h"
#include "ops/index/masked.h"
#include "ops/linalg/matmul.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

void check_ndim(const char* op, const char* what, const Tensor& x, int64_t ndim) {
  WT_CHECK(x.ndim() == ndim, ShapeError, op, ": ", what, " must be a ", ndim, "D tensor, got shape ",
           x.sizes());
}

Tensor outer_impl(const Tensor& a, const Tensor& b) {
  check_ndim("outer", "input", a, 1);
  check_ndim("outer", "vec2", b, 1);
  return mul(unsqueeze(a, 1), b);
}

// Each element of a times all of b, in blocks: [.., m, 1, ..] * [.., 1, n, ..] -> [.., m * n, ..].
Tensor kron_impl(const Tensor& a, const Tensor& b) {
  const int64_t ndim = std::max(a.ndim(), b.ndim());
  Shape wide_a, wide_b, sizes;
  for (int64_t d = 0; d < ndim; ++d) {
    const int64_t da = d - ndim + a.ndim(), db = d - ndim + b.ndim();
    const int64_t m = da < 0 ? 1 : a.sizes()[da], n = db < 0 ? 1 : b.sizes()[db];
    wide_a.push_back(m), wide_a.push_back(1);
    wide_b.push_back(1), wide_b.push_back(n);
    sizes.push_back(m * n);
  }
  return reshape(reshape(a, wide_a) * reshape(b, wide_b), sizes);
}

Tensor addr_bool(const Tensor& input, const Tensor& a, const Tensor& b, const Scalar& beta,
                 const Scalar& alpha) {
  const Tensor product = logical_and(unsqueeze(a, 1), b);
  const Tensor scaled = alpha.to_bool() ? product : zeros(product.sizes(), options_of(product));
  return beta.to_bool() ? logical_or(scaled, input) : scaled;
}
Tensor addr_impl(const Tensor& input, const Tensor& a, const Tensor& b, const Scalar& beta,
                 const Scalar& alpha) {
  check_ndim("addr", "vec1", a, 1);
  check_ndim("addr", "vec2", b, 1);
  const Shape sizes{a.sizes()[0], b.sizes()[0]};
  WT_CHECK(broadcast_shapes(input.sizes(), sizes, "addr") == sizes, ShapeError, "addr: input of shape ",
           input.sizes(), " does not broadcast to ", sizes);
  const PointwiseInput operands[] = {input, a, b};
  const DTypeCategory kind = category(promoted_dtype(operands));
  WT_CHECK(kind >= DTypeCategory::Floating || !(alpha.is_floating() || beta.is_floating()), DtypeError,
           "addr: For integral input tensors, argument alpha and beta must not be floating point numbers.");
  if (kind == DTypeCategory::Bool) return addr_bool(input, a, b, beta, alpha);
  const Tensor scaled = mul(unsqueeze(alpha.equal(1) ? a : a * alpha, 1), b);
  if (beta.equal(0)) {
    if (!needs_grad(input)) return cast(scaled, promoted_dtype(operands));
    const Tensor all = full(input.sizes(), true, {DType::Bool, input.device()});
    return masked_fill(input, all, 0) + scaled;  // its gradient is 0, whatever it holds
  }
  return (beta.equal(1) ? input : input * beta) + scaled;
}

Tensor vdot_impl(const Tensor& a, const Tensor& b) {
  check_ndim("vdot", "input", a, 1);
  check_ndim("vdot", "other", b, 1);
  return dot(conjugate(a), b);
}

// Over the last dim of both; a number scales.
Tensor inner_impl(const Tensor& a, const Tensor& b) {
  if (a.ndim() == 0 || b.ndim() == 0) return a * b;
  WT_CHECK(a.sizes().back() == b.sizes().back(), ShapeError,
           "inner: the last dims must be equal, got shapes ", a.sizes(), " and ", b.sizes());
  const Shape last[] = {{-1}, {-1}};
  return tensordot(a, b, last);
}

// The batch is laid along k: one product sums it.
Tensor addbmm_impl(const Tensor& input, const Tensor& a, const Tensor& b, const Scalar& beta,
                   const Scalar& alpha) {
  check_ndim("addbmm", "batch1", a, 3);
  check_ndim("addbmm", "batch2", b, 3);
  int64_t batch = a.sizes()[0], k = a.sizes()[2];
  WT_CHECK(batch == b.sizes()[0] && k == b.sizes()[1], ShapeError,
           "addbmm: expected [B, m, k] and [B, k, n], got shapes ", a.sizes(), " and ", b.sizes());
  Tensor wide = reshape(permute(a, Shape{1, 0, 2}), Shape{a.sizes()[1], batch * k});
  return addmm(input, wide, reshape(b, Shape{batch * k, b.sizes()[2]}), factor_for(a, beta),
               factor_for(a, alpha));
}

// All rows below each other.
Tensor rows_of(const Tensor& x) {
  int64_t rows = 1, cols = x.sizes().back();
  for (int64_t d = 0; d + 1 < x.ndim(); ++d) rows *= x.sizes()[d];
  return reshape(x, Shape{rows, cols});
}

// out[..., n] = sum over i, j of x1[..., i] weight[n, i, j] x2[..., j]
Tensor bilinear_impl(const Tensor& x1, const Tensor& x2, const Tensor& w, const OptTensor& bias) {
  check_ndim("bilinear", "weight", w, 3);
  WT_CHECK(x1.ndim() > 0 && x1.ndim() == x2.ndim(), ShapeError,
           "bilinear: expected inputs of as many dims, one at least, got shapes ", x1.sizes(), " and ",
           x2.sizes());
  for (size_t i : {1u, 2u}) {
    const int64_t features = (i == 1 ? x1 : x2).sizes().back();
    WT_CHECK(features == w.sizes()[i], ShapeError, "bilinear: input", i, " has ", features,
             " features, layer expects ", w.sizes()[i], " (weight ", w.sizes(), ")");
  }
  for (int64_t d = 0; d + 1 < x1.ndim(); ++d)
    WT_CHECK(x1.sizes()[d] == x2.sizes()[d], ShapeError,
             "bilinear: input batch dimensions do not match at dim ", d, ": got ", x1.sizes()[d], " and ",
             x2.sizes()[d]);
  Shape sizes = x1.sizes();
  sizes.back() = w.sizes()[0];
  Tensor rows1 = rows_of(x1), rows2 = rows_of(x2);
  Tensor half = permute(matmul(rows1, w), Shape{1, 0, 2});          // [rows, n, j]
  Tensor out = reshape(matmul(half, unsqueeze(rows2, -1)), sizes);  // from [rows, n, 1]
  return bias ? out + *bias : out;
}

// Sums over the dims given of both: the others of a, then those of b, remain.
Tensor tensordot_impl(const Tensor& x, const Tensor& y, std::span<const Shape> dims) {
  Tensor a = x, b = y;
  WT_CHECK(dims.size() == 2, ShapeError, "tensordot: expected a list of dims for each operand, got ",
           dims.size(), " lists");
  WT_CHECK(a.dtype() == b.dtype(), DtypeError, "tensordot: both inputs should have same dtype, got ",
           a.dtype(), " and ", b.dtype());
  Shape da = wrap_dims(dims[0], a.ndim(), "tensordot"), db = wrap_dims(dims[1], b.ndim(), "tensordot");
  WT_CHECK(da.size() == db.size(), ShapeError,
           "tensordot: both operands need the same number of dims to sum over, got ", da, " and ", db);
  // A dim of size 1 is broadcast: it multiplies the other operand's sum.
  for (size_t i = 0; i < da.size(); ++i) {
    const int64_t na = a.sizes()[da[i]], nb = b.sizes()[db[i]];
    if (na == 1 && nb != 1) b = sum(b, IntList(&db[i], 1), true, std::nullopt);
    if (nb == 1 && na != 1) a = sum(a, IntList(&da[i], 1), true, std::nullopt);
  }
  int64_t m = 1, k = 1, n = 1;
  Shape order_a, order_b, sizes;
  auto rest = [&](const Tensor& x, const Shape& summed, Shape& order, int64_t& count) {
    for (int64_t d = 0; d < x.ndim(); ++d) {
      if (std::find(summed.begin(), summed.end(), d) != summed.end()) continue;
      order.push_back(d), sizes.push_back(x.sizes()[d]);
      count *= x.sizes()[d];
    }
  };
  rest(a, da, order_a, m);
  order_b = db;
  for (size_t i = 0; i < da.size(); ++i) {
    order_a.push_back(da[i]);
    k *= a.sizes()[da[i]];
    WT_CHECK(a.sizes()[da[i]] == b.sizes()[db[i]], ShapeError,
             "tensordot: contracted dims need to match, but first has size ", a.sizes()[da[i]], " in dim ",
             da[i], " and second has size ", b.sizes()[db[i]], " in dim ", db[i]);
  }
  rest(b, db, order_b, n);
  return reshape(mm(reshape(permute(a, order_a), Shape{m, k}), reshape(permute(b, order_b), Shape{k, n})),
                 sizes);
}

// The last `count` dims of a with the first of b.
Tensor tensordot_count(const Tensor& a, const Tensor& b, int64_t count) {
  WT_CHECK(count >= 0, ShapeError, "tensordot: tensordot expects dims >= 0, but got dims=", count);
  WT_CHECK(count <= std::min(a.ndim(), b.ndim()), ShapeError,
           "tensordot: tensordot expects dims < ndim_a or ndim_b, but got dims=", count);
  Shape dims[2];
  for (int64_t d = 0; d < count; ++d) dims[0].push_back(a.ndim() - count + d), dims[1].push_back(d);
  return tensordot(a, b, dims);
}
// As the two forms above: a number of dims, or two rows of dims.
Tensor tensordot_tensor(const Tensor& a, const Tensor& b, const Tensor& dims) {
  if (dims.numel() <= 1) return tensordot_count(a, b, item(dims).to_int());
  WT_CHECK(dims.ndim() == 2 && dims.sizes()[0] == 2, ShapeError,
           "tensordot: expected dims of shape [2, n], got ", dims);
  Shape lists[2];
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t k = 0; k < dims.sizes()[1]; ++k)
      lists[i].push_back(item(select(select(dims, 0, i), 0, k)).to_int());
  return tensordot(a, b, lists);
}

constexpr OpFacts kBoth = kFunction | kMethod | kOut;
const Arg kBeta = Arg::integer("beta", 1, kKeywordOnly), kAlpha = Arg::integer("alpha", 1, kKeywordOnly);

}  // namespace

decltype(outer) outer{
    "outer", outer_impl, kBoth | kComplex, {"input", "vec2"}, "The outer product of two vectors."};
const Alias ger{"ger", "outer"};
const decltype(inner) vdot{
    "vdot", vdot_impl, kBoth | kComplex, {"input", "other"}, "The inner product of conj(input) and other."};
decltype(inner) inner{"inner",
                      inner_impl,
                      kBoth | kComplex,
                      {"input", "other"},
                      "Inner products over the last dim of both operands."};
namespace {
const decltype(inner) kron{"kron",
                           kron_impl,
                           kBoth | kComplex,
                           {"input", "other"},
                           "The Kronecker product: each element of input times all of other, in blocks."};
const AddMatmulOp addr{"addr",
                       addr_impl,
                       kBoth | kComplex | kLowerCuda,
                       {"input", "vec1", "vec2", kBeta, kAlpha},
                       "beta * input + alpha * the outer product of two vectors."};
const auto addr_ = in_place<addr>("addr_");
}  // namespace
decltype(addbmm) addbmm{"addbmm",
                        addbmm_impl,
                        kBoth | kComplex | kLower,
                        {"input", "batch1", "batch2", kBeta, kAlpha},
                        "beta * input + alpha * the sum over B of batch1 @ batch2."};
namespace {
const auto addbmm_ = in_place<addbmm>("addbmm_");
}  // namespace
decltype(bilinear) bilinear{
    "bilinear",
    bilinear_impl,
    kNN | kFunction | kComplex | kLowerCpu | kWidestCuda,
    {"input1", "input2", "weight", {"bias", none}},
    "input1 [..., in1], weight [out, in1, in2], input2 [..., in2] -> [..., out], plus bias."};
constexpr OpFacts kTensordot = kFunction | kOut | kComplex | kWidestCuda;
namespace {
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&)> tensordot_of_tensor{
    "tensordot",
    tensordot_tensor,
    kTensordot | kMixedDevices,
    {"a", "b", "dims"},
    "tensordot with the dims in a tensor."};
const Op<Tensor(const Tensor&, const Tensor&, int64_t)> tensordot_of_count{
    "tensordot",
    tensordot_count,
    kTensordot,
    {"a", "b", Arg::integer("dims", 2)},
    "Sums of products over the last dims of a and the first of b."};
}  // namespace
decltype(tensordot) tensordot{"tensordot",
                              tensordot_impl,
                              kTensordot,
                              {"a", "b", "dims"},
                              "Sums of products over a list of dims each."};

}  // namespace warptape::ops
