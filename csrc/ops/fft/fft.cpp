// Discrete Fourier transforms. All are made of three: complex to complex, real to the half of a spectrum that
// conjugates repeat, and back. The adjoint of a transform is the opposite one with the same scale.
#include "ops/fft/fft.h"

#include <cmath>

#include "op/pointwise.h"
#include "ops/elementwise/unary.h"
#include "ops/index/masked.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::FftFn> fft_slot{"fft"};
kernels::Slot<kernels::FftPlansFn> plans_slot{"fft_plans"};

struct FftData {
  Shape dims;
  int64_t size;  // of the real tensor along the dim, where there is one
  int64_t normalization;
  bool forward;
};

double scale_of(int64_t normalization, double n) {
  return normalization == 0 ? 1.0 : normalization == 1 ? 1 / std::sqrt(n) : 1 / n;
}

void check(const char* op, const Tensor& x, IntList dims, int64_t normalization, bool complex) {
  if (complex)
    WT_CHECK(is_complex(x.dtype()), DtypeError, op, ": expected a complex tensor, got ", x.dtype());
  else
    WT_CHECK(x.dtype() == DType::Float32 || x.dtype() == DType::Float64, DtypeError, op,
             ": expected a tensor of float32 or float64, got ", x.dtype());
  WT_CHECK(normalization >= 0 && normalization <= 2, ValueError, op,
           ": expected normalization 0 (none), 1 (by sqrt n) or 2 (by n), got ", normalization);
  WT_CHECK(!dims.empty() && x.ndim() > 0, ShapeError, op, ": expected at least one dim to transform");
  for (int64_t d : dims)
    WT_CHECK(x.sizes()[d] > 0, ShapeError, op, ": expected dims of at least one element, got ", x);
}

// One dim of x, by the kernel: `sizes` are the result's.
Tensor run(const Tensor& x, Shape sizes, DType dtype, int64_t dim, bool forward, double scale) {
  Tensor out = empty(std::move(sizes), {dtype, x.device()});
  if (!out.is_meta() && out.numel()) {
    const Tensor in = raw_contiguous(x);
    Launch launch(x.device());
    fft_slot(launch, out.view(), in.view(), static_cast<int>(dim), forward, scale);
  }
  return out;
}

// ---- complex to complex ----
Tensor c2c(const Tensor& x, const Shape& dims, int64_t normalization, bool forward);
void c2c_backward(Node& n, Gradients& g) {
  const auto& d = n.data<FftData>();
  g.set(0, c2c(g[0], d.dims, d.normalization, !d.forward));
}
constexpr NodeType kC2c{"FftC2CBackward0", c2c_backward};

Tensor c2c(const Tensor& x, const Shape& dims, int64_t normalization, bool forward) {
  Tensor out = x;
  double n = 1;
  for (int64_t d : dims) n *= static_cast<double>(x.sizes()[d]);
  for (size_t i = dims.size(); i-- > 0;)
    out = run(out, x.sizes(), x.dtype(), dims[i], forward, i ? 1 : scale_of(normalization, n));
  if (needs_grad(x)) {
    Ref<Node> node = record(kC2c, x);
    node->emplace<FftData>(dims, 0, normalization, forward);
    set_history(out, node);
  }
  return out;
}

// ---- real to half a spectrum, and back, over one dim ----
Tensor to_half(const Tensor& x, int64_t dim, int64_t normalization);
Tensor from_half(const Tensor& x, int64_t n, int64_t dim, int64_t normalization);

// How often each frequency of the half spectrum x stands in the whole one of length n: twice, but for the
// first and of an even length the last; or the inverse of that.
Tensor times_in_whole(const Tensor& x, int64_t n, int64_t dim, bool inverse) {
  NoGrad off;
  Tensor times = empty(Shape{x.sizes()[dim]}, {real_of(x.dtype()), x.device()});
  fill_(times, Scalar(inverse ? 0.5 : 2.0));
  fill_(narrow(times, 0, 0, 1), Scalar(1.0));
  if (n % 2 == 0) fill_(narrow(times, 0, n / 2, 1), Scalar(1.0));
  Shape sizes(static_cast<size_t>(x.ndim()), 1);
  sizes[dim] = times.numel();
  return reshape(times, sizes);
}

void to_half_backward(Node& n, Gradients& g) {
  const auto& d = n.data<FftData>();
  const int64_t dim = d.dims[0];
  g.set(0, from_half(g[0] * times_in_whole(g[0], d.size, dim, true), d.size, dim, d.normalization));
}
void from_half_backward(Node& n, Gradients& g) {
  const auto& d = n.data<FftData>();
  const Tensor half = to_half(g[0], d.dims[0], d.normalization);
  g.set(0, half * times_in_whole(half, d.size, d.dims[0], false));
}
constexpr NodeType kR2c{"FftR2CBackward0", to_half_backward}, kC2r{"FftC2RBackward0", from_half_backward};

Tensor linked(Tensor out, const NodeType& type, const Tensor& x, int64_t n, int64_t dim,
              int64_t normalization, bool forward) {
  if (needs_grad(x)) {
    Ref<Node> node = record(type, x);
    node->emplace<FftData>(Shape{dim}, n, normalization, forward);
    set_history(out, node);
  }
  return out;
}

Tensor to_half(const Tensor& x, int64_t dim, int64_t normalization) {
  const int64_t n = x.sizes()[dim];
  const DType dtype = complex_of(x.dtype());
  Tensor out;
  {
    NoGrad off;
    if (n % 2 == 0) {
      Shape sizes = x.sizes();
      sizes[dim] = n / 2 + 1;
      out = run(x, sizes, dtype, dim, true, scale_of(normalization, static_cast<double>(n)));
    } else {
      out = clone(narrow(c2c(cast(x, dtype), Shape{dim}, normalization, true), dim, 0, n / 2 + 1));
    }
  }
  return linked(out, kR2c, x, n, dim, normalization, true);
}

Tensor from_half(const Tensor& x, int64_t n, int64_t dim, int64_t normalization) {
  Tensor out;
  {
    NoGrad off;
    if (n % 2 == 0) {
      Shape sizes = x.sizes();
      sizes[dim] = n;
      out = run(x, sizes, real_of(x.dtype()), dim, false, scale_of(normalization, static_cast<double>(n)));
    } else {
      // A frequency and its conjugate add up to twice the real part of one.
      Shape rest = x.sizes();
      rest[dim] = n / 2;
      const Tensor parts[] = {x * times_in_whole(x, n, dim, false), zeros(rest, options_of(x))};
      out = clone(real(c2c(cat(parts, dim), Shape{dim}, normalization, false)));
    }
  }
  return linked(out, kC2r, x, n, dim, normalization, false);
}

// ---- the ops ----
Tensor c2c_impl(const Tensor& x, IntList dims, int64_t normalization, bool forward) {
  const Shape wrapped = wrap_dims(dims, x.ndim(), "_fft_c2c");
  if (dims.empty()) return clone(x);
  check("_fft_c2c", x, wrapped, normalization, true);
  return c2c(x, wrapped, normalization, forward);
}

Tensor r2c_impl(const Tensor& x, IntList dims, int64_t normalization, bool onesided) {
  Shape wrapped = wrap_dims(dims, x.ndim(), "_fft_r2c");
  check("_fft_r2c", x, wrapped, normalization, false);
  if (!onesided) return c2c(cast(x, complex_of(x.dtype())), wrapped, normalization, true);
  const int64_t last = wrapped.back();
  wrapped.pop_back();
  const Tensor out = to_half(x, last, normalization);
  return wrapped.empty() ? out : c2c(out, wrapped, normalization, true);
}

Tensor c2r_impl(const Tensor& x, IntList dims, int64_t normalization, int64_t last_dim_size) {
  Shape wrapped = wrap_dims(dims, x.ndim(), "_fft_c2r");
  check("_fft_c2r", x, wrapped, normalization, true);
  const int64_t last = wrapped.back();
  WT_CHECK(last_dim_size > 0 && x.sizes()[last] == last_dim_size / 2 + 1, ShapeError, "_fft_c2r: expected ",
           last_dim_size / 2 + 1, " frequencies of a signal of ", last_dim_size, ", got ", x);
  wrapped.pop_back();
  const Tensor half = wrapped.empty() ? x : c2c(x, wrapped, normalization, false);
  return from_half(half, last_dim_size, last, normalization);
}

}  // namespace

int64_t fft_plans(Device device, kernels::FftPlans what, int64_t value) {
  Launch launch(device);
  return plans_slot(launch, what, value);
}

decltype(fft_c2c) fft_c2c{
    "_fft_c2c",
    c2c_impl,
    kFunction | kComplex,
    {"input", "dim", "normalization", "forward"},
    "The discrete Fourier transform of a complex tensor over some dims, or with +i in the exponent if not "
    "`forward`; times 1, 1 / sqrt(n) or 1 / n for normalization 0, 1, 2."};
decltype(fft_r2c) fft_r2c{
    "_fft_r2c",
    r2c_impl,
    kFunction,
    {"input", "dim", "normalization", "onesided"},
    "_fft_c2c, forward, of a real tensor; if `onesided` the frequencies 0 to n // 2 of the last of the "
    "dims."};
decltype(fft_c2r) fft_c2r{
    "_fft_c2r",
    c2r_impl,
    kFunction | kComplex,
    {"input", "dim", "normalization", "last_dim_size"},
    "_fft_c2c, not forward, of a spectrum of which the last of the dims has the frequencies 0 to "
    "last_dim_size // 2 and conjugates repeat the others; real."};

}  // namespace warptape::ops
