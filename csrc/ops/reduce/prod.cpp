// prod, and its gradient.
#include "kernels/linalg/products.h"
#include "kernels/reduce/reduce.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/gather.h"
#include "ops/index/masked.h"
#include "ops/reduce/reduce_dtype.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::ReduceFn> prod_slot{"prod"};
kernels::Slot<kernels::CumprodBackwardFn> cumprod_backward_slot{"cumprod_backward"};

Tensor ones_like(const Tensor& x) { return full(x.sizes(), 1, options_of(x)); }

// Numbers as m * 2^e, so that products of many neither overflow nor vanish in between. Powers of two are
// exact, and constants to the derivative.
struct Scaled {
  Tensor m, e;
};
Scaled scaled(const Tensor& m, const Tensor& e) {
  const Tensor size = abs(detach(m)), power = floor(log2(size));
  const double most = size.dtype() == DType::Float64 ? 1000 : 120;  // whose power is a normal number
  const Tensor shift =
      masked_fill(clamp(power, Scalar(-most), Scalar(most)), logical_not(isfinite(power)), 0.0);
  return {m * exp2(neg(shift)), e.defined() ? e + shift : shift};
}
Scaled product(const Scaled& a, const Scaled& b) { return scaled(a.m * b.m, a.e + b.e); }
Tensor value_of(const Scaled& s) {
  const double most = s.e.dtype() == DType::Float64 ? 2400 : 320;  // beyond it all is 0 or infinite
  const Tensor e = clamp(s.e, Scalar(-most), Scalar(most)), quarter = floor(e / Scalar(4));
  const Tensor step = exp2(quarter);
  return s.m * step * step * step * exp2(e - quarter * Scalar(3));
}

// For every element the product of all others along dim, by windows that double: before the step of s,
// element i holds the product of s elements before it (after it).
Tensor scaled_product_of_others(const Tensor& x, int64_t dim) {
  const int64_t n = x.sizes()[dim];
  const auto both = [](const Scaled& a, auto&& f) { return Scaled{f(a.m), f(a.e)}; };
  const auto part = [&](const Scaled& a, int64_t begin, int64_t length) {
    return both(a, [&](const Tensor& t) { return narrow(t, dim, begin, length); });
  };
  const auto join = [&](const Scaled& a, const Scaled& b) {
    return Scaled{cat(std::vector<Tensor>{a.m, b.m}, dim), cat(std::vector<Tensor>{a.e, b.e}, dim)};
  };
  const Scaled all = scaled(x, Tensor()), first = part(all, 0, 1),
               one{ones_like(first.m), zeros(first.e.sizes(), options_of(first.e))};
  Scaled before = join(one, part(all, 0, n - 1)), after = join(part(all, 1, n - 1), one);
  for (int64_t s = 1; s < n; s *= 2) {
    before = join(part(before, 0, s), product(part(before, s, n - s), part(before, 0, n - s)));
    after = join(product(part(after, 0, n - s), part(after, s, n - s)), part(after, n - s, s));
  }
  return value_of(product(before, after));
}

// The same, right where some are zero, and where products of some of them overflow or vanish.
Tensor product_of_others(const Tensor& x, int64_t dim) {
  if (itemsize(x.dtype()) < 4) return cast(product_of_others(cast(x, DType::Float32), dim), x.dtype());
  // Recorded, doubling keeps the derivatives right where elements are 0; else one scan from each end serves.
  if (needs_grad(x) || is_complex(x.dtype())) return scaled_product_of_others(x, dim);
  const int64_t n = x.sizes()[dim];
  Tensor others;
  if (x.device().is_host()) {
    others = products_backward(Tensor(), x, dim);
  } else {
    auto part = [&](const Tensor& t, int64_t begin, int64_t length) { return narrow(t, dim, begin, length); };
    const Tensor turned = flip(cumprod(flip(part(x, 1, n - 1), Shape{dim}), dim, std::nullopt), Shape{dim});
    others = products_before(x, dim) * cat(std::vector<Tensor>{turned, ones_like(part(x, 0, 1))}, dim);
  }
  // 0 * inf of two products: 0 where another element is, else as the whole product divided by the element.
  const Tensor lost = isnan(others), is_zero = eq_ts(x, 0);
  const Tensor zeros_there = sum(is_zero, IntList(&dim, 1), true, std::nullopt);
  others = where(lost, prod_dim(x, dim, true, std::nullopt) / x, others);
  return masked_fill(others, gt(zeros_there, is_zero), 0.0);
}

struct ProdData {
  int64_t dim;  // -1: all
  Shape kept, sizes;
};
void prod_backward(Node& n, Gradients& g) {
  const ProdData& d = n.data<ProdData>();
  Tensor x = conjugate(cast(n.saved(0), g[0].dtype()));
  Tensor wide = spread(g[0], d.kept, d.sizes);
  if (x.numel() == 0) return g.set(0, zeros(d.sizes, options_of(g[0])));
  if (d.dim < 0) {
    Tensor flat = reshape(x, Shape{-1});
    return g.set(0, wide * reshape(product_of_others(flat, 0), d.sizes));
  }
  g.set(0, wide * product_of_others(x, d.dim));
}
constexpr NodeType kProd{"ProdBackward0", prod_backward};

Tensor prod_with(const Tensor& x, int64_t dim, const Reduced& r, OptDType dtype) {
  const DType t = sum_dtype(x, dtype);
  if (is_complex(t) && !x.device().is_host()) {
    Tensor line = dim < 0 ? reshape(cast(x, t), Shape{-1}) : cast(x, t);
    dim = std::max<int64_t>(dim, 0);
    const int64_t n = line.sizes()[dim];
    if (n == 0) return full(r.sizes, 1, {t, x.device()});
    return reshape(narrow(products_before(line, dim), dim, n - 1, 1) * narrow(line, dim, n - 1, 1), r.sizes);
  }
  Tensor out = empty(r.kept, {t, x.device()});
  if (!out.is_meta() && out.numel()) {
    Launch launch(x.device());
    prod_slot(launch, out.view(), converted(x, t).view());
  }
  out = alias(out, r.sizes, contiguous_strides(r.sizes), 0);
  if (needs_grad(x)) {
    Ref<Node> n = record(kProd, x);
    n->emplace<ProdData>(dim, r.kept, x.sizes());
    n->save(x);
    set_history(out, n);
  }
  return out;
}
Tensor prod_impl(const Tensor& x, OptDType dtype) {
  return prod_with(x, -1, reduced_shape("prod", x, std::nullopt, false), dtype);
}
Tensor prod_dim_impl(const Tensor& x, int64_t dim, bool keepdim, OptDType dtype) {
  dim = wrap_dim(dim, x.ndim(), "prod");
  return prod_with(x, x.ndim() ? dim : -1, reduced_shape("prod", x, IntList{&dim, 1}, keepdim), dtype);
}

constexpr OpFacts kBoth = kFunction | kMethod;
const Arg kKeep{"keepdim", false}, kDtype{"dtype", none, kKeywordOnly};

}  // namespace

decltype(prod) prod{"prod",
                    prod_impl,
                    kBoth | kComplex | kFloat32 | kAlongDims,
                    {"input", kDtype},
                    "The product of all elements."};
decltype(prod_dim) prod_dim{"prod",
                            prod_dim_impl,
                            kBoth | kOut | kOutDtype | kComplex | kFloat32 | kAlongDims,
                            {"input", {"dim", kDimIndex}, kKeep, kDtype},
                            "The product over a dim."};

Tensor products_backward(const Tensor& g, const Tensor& x, int64_t dim) {
  Tensor dx = empty(x.sizes(), options_of(x));
  cumprod_backward_slot(Launch(x.device()), dx.view(), g.defined() ? g.view() : kernels::View{}, x.view(),
                        static_cast<int>(dim));
  return dx;
}

Tensor products_before(const Tensor& x, int64_t dim) {
  int64_t n = x.sizes()[dim];
  auto part = [&](const Tensor& t, int64_t begin, int64_t length) { return narrow(t, dim, begin, length); };
  const bool scans = !needs_grad(x) && !is_complex(x.dtype());
  const Tensor rest = part(x, 0, n - 1);
  Tensor out = cat(
      std::vector<Tensor>{ones_like(part(x, 0, 1)), scans ? cumprod(rest, dim, std::nullopt) : rest}, dim);
  if (scans) return out;
  for (int64_t s = 1; s < n; s *= 2)
    out = cat(std::vector<Tensor>{part(out, 0, s), part(out, s, n - s) * part(out, 0, n - s)}, dim);
  return out;
}

}  // namespace warptape::ops
