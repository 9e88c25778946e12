// The matrix product in all its forms. All are one kernel and, but for the names, one node: both operands are
// saved and each gradient is a product again.
#include "ops/linalg/matmul.h"
#include "op/forms.h"

#include "op/batching.h"
#include "ops/elementwise/elementwise.h"
#include "ops/linalg/linear_prepacked.h"
#include "ops/linalg/matmul_plan.h"
#include "ops/nn/fused_linear.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::MatmulFn> matmul_slot{"matmul"};

// ---- the kernel -----------------------------------------------------------------------------------------

// out (contiguous, [..., m, n]) = alpha * a b + beta * out + bias.
void run_product(kernels::MatmulPlan& p, const Tensor& out, const Tensor& bias, double alpha, double beta) {
  if (out.is_meta() || out.numel() == 0) return;
  set_result(p, out, bias);
  int64_t step = p.m * p.n;
  for (int i : {1, 0}) {
    if (p.batch[i] > 1) p.c.batch_strides[i] = step;
    step *= p.batch[i];
  }
  p.alpha = alpha, p.beta = beta;
  p.epilogue = take_epilogue(out);
  if (Prologue* made = thread_state().prologue; made && !p.a.data) {
    p.prologue = &made->source;
    made->taken = true;
  }
  matmul_slot(Launch(out.device()), p);
}

// The rows of all matrices as rows of one, if the strides allow.
[[nodiscard]] bool fold_rows(const Tensor& a, kernels::MatmulPlan& p) {
  const Shape &sizes = a.sizes(), &strides = a.strides();
  int64_t rows = 1, step = 0;  // step: of the innermost dim that has more than one row
  for (size_t d = sizes.size() - 1; d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (rows == 1) step = strides[d];
    if (strides[d] != rows * step) return false;
    rows *= sizes[d];
  }
  p.m = rows;
  p.a.row_stride = rows == 1 ? p.k : step;
  return true;
}

// Merges batch dims that both operands step through evenly; false when more than two remain.
[[nodiscard]] bool collapse_batch(kernels::MatmulPlan& p, const Shape& sizes, const Shape& a,
                                  const Shape& b) {
  int at = 2;  // of the outermost dim so far
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 1) continue;
    if (at < 2 && a[d] == p.a.batch_strides[at] * p.batch[at] &&
        b[d] == p.b.batch_strides[at] * p.batch[at]) {
      p.batch[at] *= sizes[d];
      continue;
    }
    if (at-- == 0) return false;
    p.batch[at] = sizes[d], p.a.batch_strides[at] = a[d], p.b.batch_strides[at] = b[d];
  }
  return true;
}

IntList batch_of(const Shape& s) { return {s.data(), s.size() - 2}; }

Tensor densely(const Tensor& x, const Shape& batch) {
  Shape sizes = batch;
  sizes.append(x.sizes().end() - 2, x.sizes().end());
  return raw_contiguous(expand_view(x, sizes));
}

Tensor raw_product(const char* op, const Tensor& a, const Tensor& b, const Tensor& bias = {},
                   double alpha = 1, Tensor out = {}, double beta = 0, const void* packed = nullptr);

// Where a device has no kernel for it, as one product of real matrices, [..., m, 2 k] times [..., 2 k, 2 n]:
// a row of `a` is a row of pairs, and every row of `b` is followed by i times itself, which the imaginary
// parts of `a` meet.
Tensor complex_product(const char* op, const Tensor& given, const Tensor& b) {
  auto as_pairs = [](const Tensor& x, Shape sizes, int64_t per_row) {
    sizes[sizes.size() - 2] *= per_row;
    sizes.back() *= 2;
    Shape strides = contiguous_strides(sizes);
    return alias(x, std::move(sizes), std::move(strides), 2 * x.offset(), real_of(x.dtype()));
  };
  Shape twice = b.sizes();
  twice.insert(twice.size() - 1, 2);
  Tensor a = raw_contiguous(given), rows = empty(twice, options_of(b));  // [..., k, 2, n]
  Shape strides = rows.strides();
  strides.erase(strides.size() - 2);
  raw_copy(alias(rows, b.sizes(), strides, 0), b);
  raw_copy(alias(rows, b.sizes(), strides, b.sizes().back()), mul_ts(alias(b), Complex<double>(0, 1)));
  Tensor out = raw_product(op, as_pairs(a, a.sizes(), 1), as_pairs(rows, b.sizes(), 2));
  Shape sizes = out.sizes();
  sizes.back() /= 2;
  return alias(out, sizes, contiguous_strides(sizes), 0, a.dtype());
}

// a [..., m, k] times b [..., k, n], batch dims broadcast; into `out` (scaled by beta) where it is given.
// `packed`: one matrix b as its kernel reads it, or null.
Tensor raw_product(const char* op, const Tensor& a, const Tensor& b, const Tensor& bias, double alpha,
                   Tensor out, double beta, const void* packed) {
  if (is_complex(a.dtype()) && !a.device().is_accelerator()) return complex_product(op, a, b);
  kernels::MatmulPlan p = plan_of(a, b);
  p.packed = packed;
  if (a.ndim() == 2 && b.ndim() == 2) {
    if (!out.defined()) out = empty(Shape{p.m, p.n}, options_of(a));
    run_product(p, out, bias, alpha, beta);
    return out;
  }
  Shape batch = broadcast_shapes(batch_of(a.sizes()), batch_of(b.sizes()), op);
  if (!out.defined()) {
    Shape sizes = batch;
    sizes.push_back(p.m), sizes.push_back(p.n);
    out = empty(sizes, options_of(a));
  }
  if (out.numel() == 0) return out;
  if (b.ndim() == 2) {
    Tensor rows = a;
    if (!fold_rows(rows, p)) {
      rows = raw_contiguous(a);
      p = plan_of(rows, b), p.packed = packed;
      WT_CHECK(fold_rows(rows, p), Error, op, ": cannot merge the rows of ", a);
    }
    run_product(p, out, bias, alpha, beta);
    return out;
  }
  // Matrices without elements are all the same.
  auto strides = [&](const Tensor& x) {
    if (!p.k) return Shape(batch.size(), 0);
    return broadcast_strides(batch_of(x.sizes()), {x.strides().data(), x.strides().size() - 2}, batch);
  };
  Tensor dense_a, dense_b;  // held until the product has run
  if (!collapse_batch(p, batch, strides(a), strides(b))) {
    dense_a = densely(a, batch), dense_b = densely(b, batch);
    p = plan_of(dense_a, dense_b);
    WT_CHECK(collapse_batch(p, batch, strides(dense_a), strides(dense_b)), Error, op,
             ": cannot merge the batch dims ", batch);
  }
  run_product(p, out, bias, alpha, beta);
  return out;
}

// ---- checks ---------------------------------------------------------------------------------------------

void check_operands(const char* op, const Tensor& a, const Tensor& b) {
  WT_CHECK(a.dtype() == b.dtype(), DtypeError, op,
           ": expected both operands to have the same dtype, but got ", a.dtype(), " and ", b.dtype(),
           "; convert one with .to(dtype)");
  WT_CHECK(a.dtype() != DType::Bool, DtypeError, op,
           ": not implemented for bool; convert to a number type first");
  WT_CHECK(a.device() == b.device(), DeviceError, op,
           ": Expected all tensors to be on the same device, but found ", a.device(), " and ", b.device(),
           "; move one with .to(device)");
}

void check_inner(const char* op, const Tensor& a, const Tensor& b, int64_t ka, int64_t kb) {
  WT_CHECK(ka == kb, ShapeError, op,
           ": the last dim of the first operand must equal the rows of the second: mat1 and mat2 "
           "shapes cannot be multiplied (",
           a.sizes(), " and ", b.sizes(), ")");
}

void check_ndim(const char* op, const char* what, const Tensor& x, int64_t ndim) {
  WT_CHECK(x.ndim() == ndim, ShapeError, op, ": ", what, " must be a ", ndim, "D tensor, got shape ",
           x.sizes());
}

// ---- one product, one node ------------------------------------------------------------------------------

// The last two dims exchanged; recorded only where the gradient's own graph is wanted.
Tensor transposed(const Tensor& x) {
  if (thread_state().grad_mode) return transpose(x, -2, -1);
  Shape sizes = x.sizes(), strides = x.strides();
  std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  std::swap(strides[strides.size() - 1], strides[strides.size() - 2]);
  return alias(x, std::move(sizes), std::move(strides), x.offset());
}

// All rows below each other.
Tensor rows_of(const Tensor& x) {
  if (x.ndim() == 2) return x;
  int64_t rows = 1, cols = x.sizes().back();
  for (int64_t d = 0; d + 1 < x.ndim(); ++d) rows *= x.sizes()[d];
  return reshape(x, Shape{rows, cols});
}

// Which operands are vectors: a is then a matrix of one row, b of one column.
struct Product {
  bool a_vector, b_vector;
  bool b_shared;  // one matrix for all of a's batch
  double beta = 1, alpha = 1;
};

// Saves each operand where the other one's gradient needs it.
void save_operands(Node& n, const Tensor& a, const Tensor& b) {
  n.save(requires_grad(b) ? a : Tensor()), n.save(requires_grad(a) ? b : Tensor());
}

// Sets the gradients of a and b, the op's inputs `ia` and `ia + 1`.
void product_gradients(Node& n, Gradients& g, size_t ia) {
  auto [a_vector, b_vector, b_shared, beta, alpha] = n.data<Product>();
  if (!g.wants(ia) && !g.wants(ia + 1)) return;
  Tensor grad = alpha == 1 ? g[0] : g[0] * alpha;
  if (a_vector && b_vector) {
    if (g.wants(ia)) g.set(ia, grad * conjugate(n.saved(1)));
    if (g.wants(ia + 1)) g.set(ia + 1, grad * conjugate(n.saved(0)));
    return;
  }
  if (b_vector) grad = unsqueeze(grad, -1);
  if (a_vector) grad = unsqueeze(grad, -2);
  if (g.wants(ia)) {
    Tensor b = n.saved(1);
    g.set(ia, matmul(grad, conjugate(transposed(b_vector ? unsqueeze(b, 1) : b))));
  }
  if (g.wants(ia + 1)) {
    Tensor a = n.saved(0);
    if (a_vector) a = unsqueeze(a, 0);
    // One matrix for the whole batch: its gradient is one product over all rows.
    Tensor gb = b_shared && a.ndim() > 2 ? matmul(conjugate(transposed(rows_of(a))), rows_of(grad))
                                         : matmul(conjugate(transposed(a)), grad);
    g.set(ia + 1, b_vector ? squeeze_dim(gb, -1) : gb);
  }
}

void product_backward(Node& n, Gradients& g) { product_gradients(n, g, 0); }

constexpr NodeType kMm{"MmBackward0", product_backward}, kBmm{"BmmBackward0", product_backward},
    kMv{"MvBackward0", product_backward}, kDot{"DotBackward0", product_backward};

Tensor recorded(const NodeType& type, Tensor out, const Tensor& a, const Tensor& b) {
  if (needs_grad(a, b)) {
    Ref<Node> n = record(type, a, b);
    save_operands(*n, a, b);
    n->emplace<Product>(a.ndim() == 1, b.ndim() == 1, b.ndim() <= 2);
    set_history(out, n);
  }
  return out;
}

// A vector as a matrix, without a record.
Tensor as_row(const Tensor& x) {
  return alias(x, {1, x.sizes()[0]}, {x.sizes()[0], x.strides()[0]}, x.offset());
}
Tensor as_column(const Tensor& x) { return alias(x, {x.sizes()[0], 1}, {x.strides()[0], 1}, x.offset()); }
Tensor without_dim(const Tensor& x, int64_t dim) {
  Shape sizes = x.sizes(), strides = x.strides();
  sizes.erase(sizes.size() + dim), strides.erase(strides.size() + dim);
  return alias(x, std::move(sizes), std::move(strides), x.offset());
}

Tensor matmul_of(const char* op, const Tensor& a, const Tensor& b) {
  WT_CHECK(a.ndim() > 0 && b.ndim() > 0, ShapeError, op,
           ": both operands need to be at least 1D, got shapes ", a.sizes(), " and ", b.sizes());
  check_operands(op, a, b);
  check_inner(op, a, b, a.sizes().back(), b.ndim() == 1 ? b.sizes()[0] : b.sizes()[b.sizes().size() - 2]);
  if (a.ndim() > 1 && b.ndim() > 1) {
    bool both = a.ndim() == 2 && b.ndim() == 2;
    return recorded(both ? kMm : kBmm, raw_product(op, a, b), a, b);
  }
  Tensor out = raw_product(op, a.ndim() == 1 ? as_row(a) : a, b.ndim() == 1 ? as_column(b) : b);
  if (b.ndim() == 1) out = without_dim(out, -1);
  if (a.ndim() == 1) out = without_dim(out, b.ndim() == 1 ? -1 : -2);
  return recorded(a.ndim() == 1 && b.ndim() == 1 ? kDot : kMv, std::move(out), a, b);
}

Tensor matmul_impl(const Tensor& a, const Tensor& b) { return matmul_of("matmul", a, b); }

Tensor mm_impl(const Tensor& a, const Tensor& b) {
  check_ndim("mm", "input", a, 2);
  check_ndim("mm", "mat2", b, 2);
  return matmul_of("mm", a, b);
}

// int8 or uint8 [m, k] @ int8 or uint8 [k, n] -> int32 [m, n]
Tensor int_mm_impl(const Tensor& a, const Tensor& b) {
  constexpr const char* op = "_int_mm";
  check_ndim(op, "self", a, 2);
  check_ndim(op, "mat2", b, 2);
  for (const Tensor* t : {&a, &b})
    WT_CHECK(t->dtype() == DType::Int8 || t->dtype() == DType::UInt8, DtypeError, op, ": Expected ",
             t == &a ? "self" : "mat2", " dtype to be int8 or uint8 but got ", t->dtype());
  WT_CHECK(a.sizes()[1] == b.sizes()[0], ShapeError, op,
           ": self.size(1) needs to match mat2.size(0) but got ", a.sizes()[1], " and ", b.sizes()[0]);
  if (!a.device().is_host()) return matmul_of(op, cast(a, DType::Int32), cast(b, DType::Int32));
  // As float32, whose products are the fastest: sums below 2^24 are exact, which are 1,024 products of int8.
  const int64_t k = a.sizes()[1], most = a.dtype() == DType::Int8 && b.dtype() == DType::Int8 ? 1024 : 256;
  Tensor sum;
  for (int64_t at = 0; at == 0 || at < k; at += most) {
    const int64_t n = std::min(most, k - at);
    const auto part = [&](const Tensor& t, int64_t dim) {
      return cast(narrow(t, dim, at, n), DType::Float32);
    };
    const Tensor product = cast(matmul_of(op, part(a, 1), part(b, 0)), DType::Int32);
    sum = at ? sum + product : product;
  }
  return sum;
}

void check_batches(const char* op, const Tensor& a, const Tensor& b) {
  check_ndim(op, "batch1", a, 3);
  check_ndim(op, "batch2", b, 3);
  WT_CHECK(a.sizes()[0] == b.sizes()[0], ShapeError, op,
           ": both operands must have the same number of matrices, got shapes ", a.sizes(), " and ",
           b.sizes());
}

Tensor bmm_impl(const Tensor& a, const Tensor& b) {
  check_batches("bmm", a, b);
  return matmul_of("bmm", a, b);
}

Tensor mv_impl(const Tensor& a, const Tensor& b) {
  check_ndim("mv", "input", a, 2);
  check_ndim("mv", "vec", b, 1);
  return matmul_of("mv", a, b);
}

Tensor dot_impl(const Tensor& a, const Tensor& b) {
  check_ndim("dot", "input", a, 1);
  check_ndim("dot", "other", b, 1);
  return matmul_of("dot", a, b);
}

// ---- beta * input + alpha * a b -------------------------------------------------------------------------

void add_product_backward(Node& n, Gradients& g) {
  double beta = n.data<Product>().beta;
  if (g.wants(0)) g.set(0, beta == 1 ? g[0] : g[0] * beta);
  product_gradients(n, g, 1);
}
constexpr NodeType kAddmm{"AddmmBackward0", add_product_backward},
    kBaddbmm{"BaddbmmBackward0", add_product_backward}, kAddmv{"AddmvBackward0", add_product_backward};

// The shape of a b; throws where input, a and b do not fit each other.
Shape check_add_product(const char* op, const Tensor& input, const Tensor& a, const Tensor& b,
                        const Scalar& beta, const Scalar& alpha) {
  for (const Scalar& v : {beta, alpha}) check_fits(v, opmath_dtype(a.dtype()));
  check_operands(op, a, b);
  check_operands(op, input, a);
  check_inner(op, a, b, a.sizes().back(), b.ndim() == 1 ? b.sizes()[0] : b.sizes()[b.sizes().size() - 2]);
  WT_CHECK(is_differentiable(a.dtype()) || (!beta.is_floating() && !alpha.is_floating()), DtypeError, op,
           ": for integral tensors, beta and alpha must not be floating point numbers");
  Shape sizes(a.sizes().begin(), a.sizes().end() - 1);
  if (b.ndim() > 1) sizes.push_back(b.sizes().back());
  WT_CHECK(broadcast_shapes(input.sizes(), sizes, op) == sizes, ShapeError, op, ": input of shape ",
           input.sizes(), " does not broadcast to the product's shape ", sizes);
  return sizes;
}

Ref<Node> record_add_product(const NodeType& type, const Tensor& input, const Tensor& a, const Tensor& b,
                             double beta, double alpha) {
  Ref<Node> n = record(type, input, a, b);
  save_operands(*n, a, b);
  n->emplace<Product>(false, b.ndim() == 1, b.ndim() <= 2, beta, alpha);
  return n;
}

Tensor add_product(const char* op, const NodeType& type, const Tensor& input, const Tensor& a,
                   const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  Shape sizes = check_add_product(op, input, a, b, beta, alpha);
  if (is_complex(a.dtype())) {
    Tensor product = matmul_of(op, a, b) * alpha;
    return beta.equal(0) ? product : product + input * beta;
  }
  double scale = alpha.to_double(), keep = beta.to_double();
  Tensor matrix = b.ndim() == 1 ? as_column(b) : b, out;
  if (keep == 1 && scale == 1 && b.ndim() > 1 && input.ndim() == 1 && input.sizes()[0] == sizes.back() &&
      input.is_contiguous()) {
    out = raw_product(op, a, matrix, input);
  } else {
    out = empty(sizes, options_of(a));
    if (keep != 0 && !out.is_meta()) raw_copy(out, input);
    raw_product(op, a, matrix, {}, scale, out, keep);
  }
  if (needs_grad(input, a, b)) set_history(out, record_add_product(type, input, a, b, keep, scale));
  return out;
}

Tensor add_product_into(const char* op, const NodeType& type, const Tensor& self, const Tensor& a,
                        const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  Shape sizes = check_add_product(op, self, a, b, beta, alpha);
  WT_CHECK(self.sizes() == sizes, ShapeError, op, ": self has shape ", self.sizes(), ", but the product has ",
           sizes);
  if (is_complex(a.dtype())) {
    Tensor product = matmul_of(op, a, b) * alpha;
    return beta.equal(0) ? copy_(self, product, false) : add_(mul_ts_(self, beta), product, 1);
  }
  bool recorded = needs_grad(self, a, b);
  check_inplace(self, op, recorded);
  Ref<Node> node;
  if (recorded) node = record_add_product(type, self, a, b, beta.to_double(), alpha.to_double());
  Tensor matrix = b.ndim() == 1 ? as_column(b) : b, out = raw_clone(raw_contiguous(self));
  raw_product(op, a, matrix, {}, alpha.to_double(), out, beta.to_double());
  if (!out.is_meta()) raw_copy(self, out);
  self.bump_version();
  if (node) rebase_history(self, node);
  return self;
}

using AddProduct = Tensor(const char*, const NodeType&, const Tensor&, const Tensor&, const Tensor&,
                          const Scalar&, const Scalar&);

template <AddProduct* F>
Tensor addmm_with(const Tensor& input, const Tensor& a, const Tensor& b, const Scalar& beta,
                  const Scalar& alpha) {
  check_ndim("addmm", "mat1", a, 2);
  check_ndim("addmm", "mat2", b, 2);
  return F("addmm", kAddmm, input, a, b, beta, alpha);
}

}  // namespace

const kernels::ChainPlan* Epilogue::on(void* result) {
  taken = true;
  for (int k = 0; k < plan.inputs; ++k)
    if (!plan.input[k].data) plan.input[k].data = static_cast<char*>(result);
  for (int k = 0; k < plan.outputs; ++k)
    if (!plan.output[k].to.data) plan.output[k].to.data = static_cast<char*>(result);
  return &plan;
}

const kernels::ChainPlan* take_epilogue(const Tensor& out) {
  Epilogue* e = thread_state().epilogue;
  if (!e) return nullptr;
  own_thread_state().epilogue = nullptr;
  return e->dtype == out.dtype() && e->plan.numel == out.numel() ? e->on(out.data()) : nullptr;
}

Scalar factor_for(const Tensor& x, const Scalar& v) {
  check_fits(v, opmath_dtype(x.dtype()));
  return is_differentiable(x.dtype()) || !v.is_floating() ? v : Scalar(v.to_int());
}

namespace {

template <AddProduct* F>
Tensor baddbmm_with(const Tensor& input, const Tensor& a, const Tensor& b, const Scalar& beta,
                    const Scalar& alpha) {
  check_batches("baddbmm", a, b);
  return F("baddbmm", kBaddbmm, input, a, b, factor_for(a, beta), factor_for(a, alpha));
}

template <AddProduct* F>
Tensor addmv_with(const Tensor& input, const Tensor& a, const Tensor& b, const Scalar& beta,
                  const Scalar& alpha) {
  check_ndim("addmv", "mat", a, 2);
  check_ndim("addmv", "vec", b, 1);
  return F("addmv", kAddmv, input, a, b, factor_for(a, beta), factor_for(a, alpha));
}

// ---- linear ---------------------------------------------------------------------------------------------

Tensor at_least_2d(const Tensor& x) { return x.ndim() == 1 ? unsqueeze(x, 0) : x; }

void linear_backward(Node& n, Gradients& g) {
  if (g.wants(0)) g.set(0, matmul(g[0], n.saved(1)));
  const bool both = g.inputs() > 2 && g.wants(1) && g.wants(2);
  if (both && g[0].device().is_accelerator() && !thread_state().grad_mode) {
    auto [weight, bias] = linear_gradients(rows_of(at_least_2d(g[0])), rows_of(at_least_2d(n.saved(0))));
    if (weight.defined()) return g.set(1, weight), g.set(2, bias);
  }
  if (g.wants(1)) g.set(1, matmul(transposed(rows_of(at_least_2d(g[0]))), rows_of(at_least_2d(n.saved(0)))));
  if (g.inputs() > 2 && g.wants(2)) g.set(2, g[0]);  // the engine sums the rows
}
constexpr NodeType kLinear{"LinearBackward0", linear_backward};

}  // namespace

Tensor linear_with(const Tensor& x, const Tensor& w, const OptTensor& bias, const void* packed) {
  WT_CHECK(x.ndim() > 0, ShapeError, "linear: input must have at least one dim, got shape ", x.sizes());
  WT_CHECK(w.ndim() == 2 || w.ndim() == 1, ShapeError,
           "linear: weight must be [out, in] (or [in]), got shape ", w.sizes());
  WT_CHECK(x.sizes().back() == w.sizes().back(), ShapeError, "linear: input has ", x.sizes().back(),
           " features, layer expects ", w.sizes().back(),
           ": mat1 and mat2 shapes cannot be multiplied (input ", x.sizes(), ", weight ", w.sizes(), ")");
  if (w.ndim() == 1) {
    Tensor out = matmul(x, w);
    return bias ? out + *bias : out;
  }
  check_operands("linear", x, w);
  if (bias && bias->ndim() > 1) {  // PyTorch adds whatever broadcasts to the result
    const Tensor out = linear_with(x, w, {}, nullptr);
    WT_CHECK(broadcast_shapes(out.sizes(), bias->sizes(), "linear") == out.sizes(), ShapeError,
             "linear: bias must broadcast to the result ", out.sizes(), ", got shape ", bias->sizes());
    return out + *bias;
  }
  if (bias) {
    check_operands("linear", x, *bias);
    WT_CHECK(bias->ndim() <= 1 && (bias->numel() == 1 || bias->numel() == w.sizes()[0]), ShapeError,
             "linear: bias must be [out] as weight ", w.sizes(), ", got shape ", bias->sizes());
  }
  if (is_complex(x.dtype())) {
    Tensor out = matmul_of("linear", x, transpose(w, 0, 1));
    return bias ? out + *bias : out;
  }
  Shape swapped{w.sizes()[1], w.sizes()[0]}, strides{w.strides()[1], w.strides()[0]};
  Tensor wt = alias(w, std::move(swapped), std::move(strides), w.offset());
  Tensor row =
      !bias ? Tensor()
            : raw_contiguous(bias->numel() == w.sizes()[0] ? *bias : expand_view(*bias, Shape{w.sizes()[0]}));
  Tensor out = raw_product("linear", x.ndim() == 1 ? as_row(x) : x, wt, row, 1, {}, 0, packed);
  if (x.ndim() == 1) out = without_dim(out, -2);
  if (needs_grad(x, w, bias)) {
    Ref<Node> n = bias ? record(kLinear, x, w, *bias) : record(kLinear, x, w);
    n->save(requires_grad(w) ? x : Tensor()), n->save(requires_grad(x) ? w : Tensor());
    set_history(out, n);
  }
  return out;
}

namespace {

Tensor linear_impl(const Tensor& x, const Tensor& w, const OptTensor& bias) {
  return linear_with(x, w, bias, nullptr);
}

constexpr OpFacts kBoth = kFunction | kMethod | kOut;
const Op<Tensor(const Tensor&, const Tensor&)> int_mm_op{
    "_int_mm",
    int_mm_impl,
    kFunction | kOut,
    {"self", "mat2"},
    "The product of matrices of 8-bit integers, [m, k] and [k, n], in int32."};
const Arg kBeta = Arg::integer("beta", 1, kKeywordOnly), kAlpha = Arg::integer("alpha", 1, kKeywordOnly);

}  // namespace

// Autocast as PyTorch's on the CPU: products of matrices are lowered, those with a vector alone are not.
#define WT_PRODUCT(name, second, facts, doc)                                                                 \
  decltype(name) name {                                                                                      \
    #name, name##_impl, kBoth | kComplex | Role::Product | batching::product | facts, {"input", second}, doc \
  }
WT_PRODUCT(matmul, "other", kLower | kLinalg | kEpilogue,
           "The matrix product; batch dims broadcast, a 1D operand is a row (first) or a column (second).");
WT_PRODUCT(mm, "mat2", kLower | kEpilogue, "The product of two matrices [m, k] and [k, n].");
WT_PRODUCT(bmm, "mat2", kLower, "The products of B pairs of matrices, [B, m, k] and [B, k, n].");
WT_PRODUCT(mv, "vec", kLowerCuda, "The product of a matrix [m, k] and a vector [k].");
WT_PRODUCT(dot, "other", kWidestCuda, "The inner product of two vectors of equal length.");
#define WT_ADD_PRODUCT(name, a, b, facts, doc)                                      \
  decltype(name) name{#name,                                                        \
                      name##_with<add_product>,                                     \
                      kBoth | kComplex | Role::AddProduct | batching::name | facts, \
                      {"input", a, b, kBeta, kAlpha},                               \
                      doc};                                                         \
  decltype(name##_) name##_ = in_place_of(name, name##_with<add_product_into>, kMethod, #name " in place.")
WT_ADD_PRODUCT(addmm, "mat1", "mat2", kLower | kEpilogue, "beta * input + alpha * (mat1 @ mat2).");
WT_ADD_PRODUCT(baddbmm, "batch1", "batch2", kLower,
               "beta * input + alpha * (batch1 @ batch2), for B pairs of matrices.");
WT_ADD_PRODUCT(addmv, "mat", "vec", kLowerCuda, "beta * input + alpha * (mat @ vec).");
decltype(linear) linear{
    "linear",
    linear_impl,
    kNN | kOut | kOutExact | kComplex | kLower | kEpilogue | Role::Product | batching::linear,
    {"input", "weight", {"bias", none}},
    "input [..., in] @ weight [out, in]^T + bias [out]."};

}  // namespace warptape::ops
