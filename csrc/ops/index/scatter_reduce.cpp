// scatter_reduce and index_reduce: what has the same index is reduced to one.
#include <limits>

#include "ops/elementwise/elementwise.h"
#include "ops/index/gather.h"
#include "ops/index/masked.h"
#include "ops/kernel_inputs.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using kernels::ScatterMode;

enum class Reduce : uint8_t { Sum, Prod, Mean, AMax, AMin };

Reduce reduce_named(const char* op, std::string_view name, bool with_sum) {
  if (name == "sum" && with_sum) return Reduce::Sum;
  if (name == "prod") return Reduce::Prod;
  if (name == "mean") return Reduce::Mean;
  if (name == "amax") return Reduce::AMax;
  if (name == "amin") return Reduce::AMin;
  throw Error(message(op, ": reduce argument must be either ", with_sum ? "sum, " : "",
                      "prod, mean, amax or amin, got ", name, "."));
}

ScatterMode mode_of(Reduce r) {
  return r == Reduce::Prod   ? ScatterMode::Multiply
         : r == Reduce::AMax ? ScatterMode::AMax
         : r == Reduce::AMin ? ScatterMode::AMin
                             : ScatterMode::Add;
}

// What changes nothing when it is reduced with others.
Scalar identity_of(Reduce r, DType t) {
  if (r == Reduce::Sum || r == Reduce::Mean) return 0;
  if (r == Reduce::Prod) return 1;
  const bool lowest = r == Reduce::AMax;
  if (is_floating(t))
    return lowest ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  if (t == DType::Bool) return !lowest;
  if (t == DType::UInt8) return lowest ? 0 : 255;
  const int64_t low = std::numeric_limits<int64_t>::min() >> (64 - 8 * itemsize(t));
  return lowest ? low : -(low + 1);
}

Tensor ones_of(const Tensor& like) { return full(like.sizes(), 1, options_of(like)); }
Tensor zeros_of(const Tensor& like) { return zeros(like.sizes(), options_of(like)); }

// How many elements go into each place; 1 where there are none.
Tensor counts(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src, bool include_self) {
  Tensor n = scatter_add(include_self ? ones_of(self) : zeros_of(self), dim, index, ones_of(src));
  return masked_fill(n, eq_ts(n, 0), 1);
}

Tensor reduced(const char* op, const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
               Reduce r, bool include_self) {
  NoGrad off;
  Tensor out = raw_clone(self);
  if (!include_self) {
    const Tensor start = full({}, identity_of(r, self.dtype()), options_of(self));
    run_scatter(op, out, dim, index, expand_view(start, index.sizes()), ScatterMode::Assign);
  }
  run_scatter(op, out, dim, index, src, mode_of(r));
  if (r != Reduce::Mean) return out;
  const Tensor n = counts(self, dim, index, src, include_self);
  return is_differentiable(out.dtype()) ? out / n : div_mode(out, n, "floor");
}

struct ReduceData {
  int64_t dim;
  Reduce reduce;
  bool include_self;
};

// The product of the others, also where some of them are 0.
Tensor prod_src_gradient(const Tensor& g, const Tensor& self, const ReduceData& d, const Tensor& index,
                         const Tensor& src, const Tensor& out) {
  Tensor zero, only_zero;
  {
    NoGrad off;
    zero = eq_ts(src, 0);
    const Tensor zeros_there = scatter_add(zeros_of(self), d.dim, index, cast(zero, self.dtype()));
    only_zero = logical_and(zero, eq_ts(gather(zeros_there, d.dim, index, false), 1));
  }
  const Tensor others =
      scatter_reduce(self, d.dim, index, masked_fill(src, only_zero, 1), "prod", d.include_self);
  return where(only_zero, gather(g * others, d.dim, index, false),
               gather(g * out, d.dim, index, false) / masked_fill(src, zero, 1));
}

// Those that are the extreme share the gradient.
std::pair<Tensor, Tensor> extreme_gradients(const Tensor& g, const Tensor& self, const ReduceData& d,
                                            const Tensor& index, const Tensor& src, const Tensor& out) {
  Tensor own, theirs, sharing;
  {
    NoGrad off;
    own = cast(eq(self, out), self.dtype());
    theirs = cast(eq(src, gather(out, d.dim, index, false)), src.dtype());
    sharing = scatter_add(own, d.dim, index, theirs);
  }
  const Tensor share = g / sharing;
  return {own * share, theirs * gather(share, d.dim, index, false)};
}

std::pair<Tensor, Tensor> gradients_of(const Tensor& g, const Tensor& self, const ReduceData& d,
                                       const Tensor& index, const Tensor& src, const Tensor& out) {
  if (d.reduce == Reduce::AMax || d.reduce == Reduce::AMin)
    return extreme_gradients(g, self, d, index, src, out);
  if (d.reduce == Reduce::Prod)
    return {g * scatter_reduce(ones_of(self), d.dim, index, src, "prod", true),
            prod_src_gradient(g, self, d, index, src, out)};
  const Tensor share = d.reduce == Reduce::Mean ? g / counts(self, d.dim, index, src, d.include_self) : g;
  return {share, gather(share, d.dim, index, false)};
}

void scatter_reduce_backward(Node& n, Gradients& g) {
  const ReduceData& d = n.data<ReduceData>();
  auto [own, theirs] = gradients_of(g[0], n.saved(0), d, n.saved(1), n.saved(2), n.saved(3));
  if (g.wants(0)) g.set(0, d.include_self ? own : scatter_value(own, d.dim, n.saved(1), 0));
  if (g.wants(1)) g.set(1, theirs);
}
constexpr NodeType kScatterReduce{"ScatterReduceBackward0", scatter_reduce_backward},
    kIndexReduce{"IndexReduceBackward0", scatter_reduce_backward};

// index and src of one shape.
Tensor recorded(const char* op, const NodeType& type, const Tensor& self, const Tensor& index,
                const Tensor& src, const ReduceData& d) {
  WT_CHECK(!is_complex(self.dtype()) || d.reduce < Reduce::AMax, NotImplementedError, op,
           ": complex numbers have no order; reduce with sum, prod or mean");
  Tensor out = reduced(op, self, d.dim, index, src, d.reduce, d.include_self);
  if (needs_grad(self, src)) {
    Ref<Node> n = record(type, self, src);
    n->emplace<ReduceData>(d);
    n->save(self);
    n->save(index);
    n->save(src);
    set_history(out, n);
    n->save_output(out);
  }
  return out;
}

Tensor scatter_reduce_impl(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
                           std::string_view reduce, bool include_self) {
  const Reduce r = reduce_named("scatter_reduce", reduce, true);
  dim = wrap_dim(dim, self.ndim(), "scatter_reduce");
  check_scatter("scatter_reduce", self, dim, index, src);
  if (index.numel() == 0) return clone(self);
  Tensor part = src;  // what index covers
  for (int64_t d = 0; d < index.ndim() && d < src.ndim(); ++d)
    if (src.sizes()[d] != index.sizes()[d]) part = narrow(part, d, 0, index.sizes()[d]);
  return recorded("scatter_reduce", kScatterReduce, self, index, part, {dim, r, include_self});
}

Tensor index_reduce_impl(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                         std::string_view reduce, bool include_self) {
  const char* op = "index_reduce";
  const Reduce r = reduce_named(op, reduce, false);
  dim = wrap_dim(dim, self.ndim(), op);
  WT_CHECK(index.dtype() == DType::Int64 || index.dtype() == DType::Int32, IndexError, op,
           ": Expected dtype int32/int64 for index, got ", index.dtype());
  WT_CHECK(index.ndim() <= 1, IndexError, op,
           ": Index is supposed to be a vector, but got dim: ", index.ndim());
  WT_CHECK(self.dtype() == source.dtype(), DtypeError, op, ": self (", self.dtype(), ") and source (",
           source.dtype(), ") must have the same scalar type");
  check_same_device(op, self, index, "index");
  check_same_device(op, self, source, "source");
  const Tensor to = self.ndim() ? self : unsqueeze(self, 0),
               from = source.ndim() ? source : unsqueeze(source, 0);
  Shape expected = to.sizes();
  expected[dim] = index.numel();
  WT_CHECK(from.sizes() == expected, ShapeError, op, ": expected source of shape ", expected, ", got ",
           source.sizes());
  if (from.numel() == 0) return clone(self);
  Shape along(expected.size(), 1);
  along[dim] = index.numel();
  const Tensor positions = raw_contiguous(raw_cast(index, DType::Int64));
  const Tensor spread =
      expand_view(alias(positions, along, contiguous_strides(along), positions.offset()), expected);
  const Tensor out = recorded(op, kIndexReduce, to, spread, from, {dim, r, include_self});
  return self.ndim() ? out : squeeze(out);
}

constexpr OpFacts kPlaces = kFunction | kMethod | kOut | kComplex;
const Arg kIncludeSelf{"include_self", true, kKeywordOnly};

}  // namespace

decltype(scatter_reduce) scatter_reduce{
    "scatter_reduce",
    scatter_reduce_impl,
    kPlaces,
    {"input", "dim", "index", "src", "reduce", kIncludeSelf},
    "A copy in which those of src with one index along dim are reduced to one: sum, prod, mean, amax, amin."};
namespace {
const Op<Tensor(const Tensor&, int64_t, const Tensor&, const Tensor&, std::string_view, bool)> index_reduce{
    "index_reduce",
    index_reduce_impl,
    kPlaces,
    {"input", "dim", "index", "source", "reduce", kIncludeSelf},
    "scatter_reduce with one index for each slice of source along dim: prod, mean, amax, amin."};
const auto scatter_reduce_ = in_place<scatter_reduce>("scatter_reduce_"),
           index_reduce_ = in_place<index_reduce>("index_reduce_");
}  // namespace

}  // namespace warptape::ops
