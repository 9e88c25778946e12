// Distances between rows, and slices limited in their norm. n and m rows of d numbers.
#include <cmath>
#include <limits>

#include "kernels/linalg/distance.h"
#include "ops/elementwise/safe.h"
#include "ops/index/gather.h"
#include "ops/index/masked.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/matmul.h"
#include "ops/recompute.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

constexpr int64_t kMostNumbers = 1 << 20;  // differences [.., rows, m, d] in memory at once
constexpr int64_t kRowsForProducts = 25;   // with more, |a - b|^2 = |a|^2 + |b|^2 - 2ab is faster

Tensor sum_over(const Tensor& x, int64_t dim, bool keepdim) {
  return sum(x, OptDims(IntList{&dim, 1}), keepdim, std::nullopt);
}
Tensor differences(const Tensor& x1, const Tensor& x2) { return unsqueeze(x1, -2) - unsqueeze(x2, -3); }

// ---- by products ---------------------------------------------------------------------------------------

void euclidean_backward(Node& n, Gradients& g) {
  const Tensor x1 = n.saved(0), x2 = n.saved(1), ratio = quotient_or_zero(g[0], n.saved(2));
  if (g.wants(0)) g.set(0, x1 * sum_over(ratio, -1, true) - matmul(ratio, x2));
  if (g.wants(1))
    g.set(1, x2 * unsqueeze(sum_over(ratio, -2, false), -1) - matmul(transpose(ratio, -2, -1), x1));
}
constexpr NodeType kEuclidean{"EuclideanDistBackward0", euclidean_backward};

Tensor euclidean(const Tensor& x1, const Tensor& x2) {
  Tensor out;
  {
    NoGrad off;
    const Tensor squares = sum_over(square(x1), -1, true) + unsqueeze(sum_over(square(x2), -1, false), -2);
    out = sqrt(clamp(squares - matmul(x1, transpose(x2, -2, -1)) * 2, Scalar(0), std::nullopt));
  }
  if (needs_grad(x1, x2)) {
    Ref<Node> n = record(kEuclidean, x1, x2);
    n->save(x1);
    n->save(x2);
    set_history(out, n);
    n->save_output(out);
  }
  return out;
}

// ---- by kernels ----------------------------------------------------------------------------------------

kernels::Slot<kernels::DistanceFn> distance_slot{"distance"};
kernels::Slot<kernels::DistanceBackwardFn> distance_backward_slot{"distance_backward"};

bool has_kernel(const Tensor& x1, const Tensor& x2, double p) {
  return x1.device().is_host() && (x1.dtype() == DType::Float32 || x1.dtype() == DType::Float64) &&
         x1.dtype() == x2.dtype() && (p == 1 || p == 2 || std::isinf(p));
}

// x [.., rows, d] with the leading sizes of `out` [.., n, m], contiguous.
Tensor with_leading(const Tensor& x, const Shape& out) {
  Shape sizes = out;
  std::copy(x.sizes().end() - 2, x.sizes().end(), sizes.end() - 2);
  return raw_contiguous(expand(x, sizes));
}

kernels::DistancePlan plan_of(const Tensor& x1, const Tensor& x2, double p, bool pairs) {
  int64_t batch = 1;
  for (int64_t d = 0; d + 2 < x1.ndim(); ++d) batch *= x1.sizes()[d];
  return {batch, x1.size(-2), x2.size(-2), x1.size(-1), p, pairs};
}

// x1 and x2 contiguous, with the same leading sizes.
void run_distance(const Tensor& out, const Tensor& x1, const Tensor& x2, double p, bool pairs) {
  const Tensor columns = raw_contiguous(transpose(x2, -2, -1));
  distance_slot(Launch(out.device()), plan_of(x1, x2, p, pairs), out.view(), x1.view(), columns.view());
}
Tensor run_distance_backward(const Tensor& grad, const Tensor& distances, const Tensor& x1, const Tensor& x2,
                             double p, bool pairs) {
  const Tensor g = raw_contiguous(grad), out = raw_contiguous(distances);
  Tensor dx = empty(x1.sizes(), options_of(x1));
  if (dx.is_meta()) return dx;
  distance_backward_slot(Launch(dx.device()), plan_of(x1, x2, p, pairs), dx.view(), g.view(), out.view(),
                         x1.view(), x2.view());
  return dx;
}

// ---- by differences ------------------------------------------------------------------------------------

// Of the distances `out` by the differences x [.., n, m, d]; g [.., n, m, 1].
Tensor difference_gradient(const Tensor& g, const Tensor& x, const Tensor& out, double p) {
  if (p == 0) return zeros(x.sizes(), options_of(x));
  if (p == 1) return g * sign(x);
  if (p == 2) return quotient_or_zero(g, out) * x;
  if (std::isinf(p)) return g * sign(x) * cast(eq(abs(x), out), x.dtype());
  const Tensor none_there = eq_ts(out, 0), length = masked_fill(out, none_there, 1);
  return masked_fill(g / pow_ts(length, p - 1), none_there, 0) * signed_power(x, p - 1);
}

int64_t rows_at_once(const Tensor& x1, const Tensor& x2) {
  int64_t each = std::max<int64_t>(1, x2.numel());
  if (x2.ndim() == 2)
    for (int64_t d = 0; d + 2 < x1.ndim(); ++d) each *= std::max<int64_t>(1, x1.sizes()[d]);
  return std::max<int64_t>(1, kMostNumbers / each);
}

struct NormData {
  double p;
};
// Without a kernel, and while the gradient itself is not recorded, in blocks of rows.
void cdist_backward(Node& n, Gradients& g) {
  const double p = n.data<NormData>().p;
  const Tensor x1 = n.saved(0), x2 = n.saved(1), out = n.saved(2);
  if (has_kernel(x1, x2, p) && !needs_grad(g[0], x1, x2)) {
    const Tensor a = with_leading(x1, out.sizes()), b = with_leading(x2, out.sizes());
    if (g.wants(0)) g.set(0, run_distance_backward(g[0], out, a, b, p, false));
    if (g.wants(1))
      g.set(1, run_distance_backward(transpose(g[0], -2, -1), transpose(out, -2, -1), b, a, p, false));
    return;
  }
  const int64_t count = x1.sizes()[x1.ndim() - 2];
  const int64_t rows = needs_grad(g[0], x1, x2) ? std::max<int64_t>(1, count) : rows_at_once(x1, x2);
  std::vector<Tensor> first;
  Tensor second;
  for (int64_t i = 0; i < std::max<int64_t>(1, count); i += rows) {
    const auto part = [&](const Tensor& t) { return narrow(t, -2, i, std::min(rows, count - i)); };
    const Tensor slope = difference_gradient(unsqueeze(part(g[0]), -1), differences(part(x1), x2),
                                             unsqueeze(part(out), -1), p);
    if (g.wants(0)) first.push_back(sum_over(slope, -2, false));
    if (!g.wants(1)) continue;
    const Tensor more = -sum_over(slope, -3, false);
    second = second.defined() ? second + more : more;
  }
  if (g.wants(0)) g.set(0, first.size() == 1 ? first[0] : cat(first, -2));
  if (g.wants(1)) g.set(1, second);
}
constexpr NodeType kCdist{"CdistBackward0", cdist_backward};

Tensor distances(const Tensor& x1, const Tensor& x2, double p) {
  const auto leading = [](const Tensor& x) { return Shape(x.sizes().begin(), x.sizes().end() - 2); };
  Shape sizes = broadcast_shapes(leading(x1), leading(x2), "cdist");
  sizes.push_back(x1.size(-2));
  sizes.push_back(x2.size(-2));
  Tensor out = empty(sizes, options_of(x1));
  run_distance(out, with_leading(x1, sizes), with_leading(x2, sizes), p, false);
  return out;
}
Tensor in_blocks(const Tensor& x1, const Tensor& x2, double p) {
  const Shape last{-1};
  const int64_t count = x1.sizes()[x1.ndim() - 2], rows = rows_at_once(x1, x2);
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < std::max<int64_t>(1, count); i += rows) {
    const Tensor some = rows < count ? narrow(x1, -2, i, std::min(rows, count - i)) : x1;
    const Tensor x = differences(some, x2);
    parts.push_back(x.sizes().back() ? vector_norm(x, p, OptDims(last), false, std::nullopt)
                                     : sum_over(x, -1, false));
  }
  return parts.size() == 1 ? parts[0] : cat(parts, -2);
}

Tensor by_differences(const Tensor& x1, const Tensor& x2, double p) {
  Tensor out;
  {
    NoGrad off;
    out = has_kernel(x1, x2, p) ? distances(x1, x2, p) : in_blocks(x1, x2, p);
  }
  if (needs_grad(x1, x2)) {
    Ref<Node> n = record(kCdist, x1, x2);
    n->emplace<NormData>(p);
    n->save(x1);
    n->save(x2);
    set_history(out, n);
    n->save_output(out);
  }
  return out;
}

Tensor cdist_impl(const Tensor& x1, const Tensor& x2, double p, std::string_view mode) {
  const bool if_many = mode == "use_mm_for_euclid_dist_if_necessary";
  WT_CHECK(if_many || mode == "use_mm_for_euclid_dist" || mode == "donot_use_mm_for_euclid_dist", ValueError,
           "cdist: ", mode, " is not a valid value for compute_mode");
  WT_CHECK(is_floating(x1.dtype()) && is_floating(x2.dtype()), DtypeError,
           "cdist: cdist only supports floating-point dtypes, got ", x1.dtype(), " and ", x2.dtype());
  WT_CHECK(x1.ndim() >= 2 && x2.ndim() >= 2, ShapeError,
           "cdist: X1 and X2 must have at least two dimensions, got ", x1.sizes(), " and ", x2.sizes());
  WT_CHECK(x1.sizes().back() == x2.sizes().back(), ShapeError,
           "cdist: X1 and X2 must have the same number of columns, got ", x1.sizes(), " and ", x2.sizes());
  WT_CHECK(p >= 0, Error, "cdist: only non-negative p values are supported, got ", p);
  if (x1.dtype() == DType::Float32 && p > std::numeric_limits<float>::max())
    p = std::numeric_limits<double>::infinity();
  const int64_t most = std::max(x1.sizes()[x1.ndim() - 2], x2.sizes()[x2.ndim() - 2]);
  const bool products = if_many ? most > kRowsForProducts : mode == "use_mm_for_euclid_dist";
  return p == 2 && products && x1.sizes().back() ? euclidean(x1, x2) : by_differences(x1, x2, p);
}

// ---- pairs of one tensor's rows ------------------------------------------------------------------------

// The places of all pairs of `count` rows, first row first.
std::pair<Tensor, Tensor> pairs(int64_t count, Device device) {
  const int64_t n = count * (count - 1) / 2;
  Tensor both = empty(Shape{2, n}, {DType::Int64, {}});
  auto *a = both.data_as<int64_t>(), *b = a + n;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = i + 1; j < count; ++j) *a++ = i, *b++ = j;
  both = to(both, device, std::nullopt, false, false);
  return {select(both, 0, 0), select(both, 0, 1)};
}
Tensor composed_pdist(const Tensor& x, double p) {
  const Shape last{-1};
  auto [first, second] = pairs(x.sizes()[0], x.device());
  return vector_norm(index_select(x, 0, first) - index_select(x, 0, second), p, OptDims(last), false,
                     std::nullopt);
}

void pdist_backward(Node& n, Gradients& g) {
  const double p = n.data<NormData>().p;
  const Tensor x = n.saved(0), rows = raw_contiguous(x);
  if (!needs_grad(g[0], x)) return g.set(0, run_distance_backward(g[0], n.saved(1), rows, rows, p, true));
  recomputed_backward({&x, 1}, g, [&](std::span<const Tensor> in) { return composed_pdist(in[0], p); });
}
constexpr NodeType kPdist{"PdistBackward0", pdist_backward};

Tensor pdist_impl(const Tensor& x, double p) {
  WT_CHECK(x.ndim() == 2, ShapeError, "pdist only supports 2D tensors, got: ", x.ndim(), "D");
  check_floating("pdist", x);
  WT_CHECK(p >= 0, Error, "pdist only supports non-negative p values, got ", p);
  const int64_t count = x.sizes()[0];
  if (count < 2) return narrow(sum_over(x, 1, false), 0, 0, 0);
  if (!x.is_meta() && !has_kernel(x, x, p)) return composed_pdist(x, p);
  Tensor out = empty(Shape{count * (count - 1) / 2}, options_of(x));
  const Tensor rows = raw_contiguous(x);
  if (!x.is_meta()) run_distance(out, rows, rows, p, true);
  if (needs_grad(x)) {
    Ref<Node> n = record(kPdist, x);
    n->emplace<NormData>(p);
    n->save(x);
    set_history(out, n);
    n->save_output(out);
  }
  return out;
}

// ---- renorm --------------------------------------------------------------------------------------------

Tensor renorm_impl(const Tensor& x, double p, int64_t dim, double maxnorm) {
  WT_CHECK(p > 0, Error, "renorm: non-positive-norm not supported, got p = ", p);
  WT_CHECK(maxnorm >= 0, Error, "renorm: expected maxnorm to be >= 0 but got ", maxnorm);
  WT_CHECK(x.ndim() > 1, ShapeError, "renorm: input needs at least 2 dimensions, got ", x.ndim(),
           " dimensions");
  dim = wrap_dim(dim, x.ndim(), "renorm");
  Shape others;
  for (int64_t d = 0; d < x.ndim(); ++d)
    if (d != dim) others.push_back(d);
  std::optional<DType> wide;
  if (x.itemsize() == 2) wide = DType::Float32;
  const Tensor norms = vector_norm(x, p, OptDims(others), true, wide);
  const Tensor scale = where_ts(gt_ts(norms, maxnorm), maxnorm / (norms + 1e-7), 1.0);
  return x * cast(scale, x.dtype());
}

const Op<Tensor(const Tensor&, const Tensor&, double, std::string_view)> cdist{
    "cdist",
    cdist_impl,
    kFunction | kFloat32 | kLeading,
    {"x1", "x2", {"p", 2.0}, {"compute_mode", "use_mm_for_euclid_dist_if_necessary"}},
    "The p-norm distances [.., n, m] between the rows of [.., n, d] and of [.., m, d]."};
const Op<Tensor(const Tensor&, double)> pdist{
    "pdist",
    pdist_impl,
    kFunction | kNN | kFloat32Cuda,
    {"input", {"p", 2.0}},
    "[N, D] -> [N (N - 1) / 2], the p-norms of the differences of all pairs of rows, first row first."};
const Op<Tensor(const Tensor&, double, int64_t, double)> renorm{
    "renorm",
    renorm_impl,
    kFunction | kMethod | kOut | kComplex | kFloat32Cuda,
    {"input", "p", "dim", "maxnorm"},
    "The slices along dim, scaled down to a p-norm of at most maxnorm."};
const auto renorm_ = in_place<renorm>("renorm_");

}  // namespace
}  // namespace warptape::ops
