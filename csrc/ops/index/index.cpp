#include "ops/index/index.h"

#include "kernels/index/index.h"
#include "op/batching.h"
#include "ops/elementwise/elementwise.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using kernels::View;
kernels::Slot<kernels::IndexGetFn> index_get_slot{"index_get"};
kernels::Slot<kernels::IndexPutFn> index_put_slot{"index_put"};
kernels::Slot<kernels::CountNonzeroFn> count_nonzero_slot{"count_nonzero"};
kernels::Slot<kernels::NonzeroFn> nonzero_slot{"nonzero"};

Tensor nonzero_impl(const Tensor& given) {
  // it is read twice, which strides make dear
  const Tensor x = contiguous(is_complex(given.dtype()) ? ne_ts(given, 0) : given);
  WT_CHECK(!x.device().is_meta(), DeviceError, "nonzero: a meta tensor has no data");
  Tensor count = zeros({}, {DType::Int64, x.device()});
  Launch launch(x.device());
  if (x.numel()) count_nonzero_slot(launch, count.view(), x.view());
  Tensor out = empty(Shape{item(count).to_int(), x.ndim()}, {DType::Int64, x.device()});
  if (out.numel()) nonzero_slot(launch, out.view(), x.view());
  return out;
}

// As many rows as asked for, whatever the data: those that are missing hold fill_value.
Tensor nonzero_static_impl(const Tensor& x, int64_t size, int64_t fill_value) {
  WT_CHECK(size >= 0, Error, "nonzero_static: 'size' must be an non-negative integer, got ", size);
  const Tensor out = full(Shape{size, x.ndim()}, fill_value, {DType::Int64, x.device()});
  if (out.is_meta()) return out;
  const Tensor found = nonzero(x);
  const int64_t count = std::min(size, found.sizes()[0]);
  if (count) raw_copy(narrow(out, 0, 0, count), narrow(found, 0, 0, count));
  return out;
}

OneOrMany nonzero_as_impl(const Tensor& x, bool as_tuple) {
  if (!as_tuple) return nonzero(x);
  return unbind(nonzero(x.ndim() ? x : reshape(x, Shape{1})), 1);
}

Tensor take_impl(const Tensor& x, const Tensor& places) {
  WT_CHECK(places.dtype() == DType::Int64, DtypeError,
           "take: take(): Expected a long tensor for index, but got ", places.dtype());
  WT_CHECK(x.numel() > 0 || places.numel() == 0, IndexError,
           "take: take(): tried to take from an empty tensor");
  const OptTensor indices[] = {places};
  return index(reshape(x, Shape{-1}), indices);
}

// The index tensors as int64, broadcast to one shape, with the dims of x that they stand for brought to the
// front.
struct Plan {
  std::vector<Tensor> indices;  // one per indexed dim
  Shape shape;                  // their common shape
  Shape order;                  // dims of x: indexed ones first
  int64_t at = 0;               // where the index dims stand in the result
};

Shape common_shape(const Shape& a, const Shape& b, const char* op) try {
  return broadcast_shapes(a, b, op);
} catch (const ShapeError&) {
  throw IndexError(message(
      op, ": shape mismatch: indexing tensors could not be broadcast together with shapes ", a, ", ", b));
}

void add_index(Plan& plan, const char* op, const Tensor& x, const Tensor& given, int64_t& dim) {
  auto push = [&](Tensor t) {
    plan.shape = plan.indices.empty() ? t.sizes() : common_shape(plan.shape, t.sizes(), op);
    plan.indices.push_back(std::move(t));
    plan.order.push_back(dim++);
  };
  WT_CHECK(!is_floating(given.dtype()), IndexError, op,
           ": tensors used as indices must be long, int, byte or bool tensors, got ", given);
  auto here = [&](const Tensor& t) {
    return t.device() == x.device() ? t : to(t, x.device(), std::nullopt, false, false);
  };
  if (given.dtype() != DType::Bool && given.dtype() != DType::UInt8)
    return push(raw_cast(here(given), DType::Int64));
  const Tensor& index = given;  // counted where it is: x may be a meta tensor, the mask not
  for (int64_t d = 0; d < index.ndim(); ++d)
    WT_CHECK(dim + d < x.ndim() && x.sizes()[dim + d] == index.sizes()[d], IndexError, op,
             ": The shape of the mask ", index.sizes(), " at index ", d,
             " does not match the shape of the indexed tensor ", x.sizes(), " at index ", dim + d);
  Tensor positions = here(nonzero_impl(index));
  int64_t n = positions.sizes()[0];
  for (int64_t d = 0; d < index.ndim(); ++d)
    push(raw_contiguous(alias(positions, Shape{n}, Shape{positions.strides()[0]}, d)));
}

Plan make_plan(const char* op, const Tensor& x, Indices indices) {
  Plan plan;
  int64_t dim = 0;
  for (size_t i = 0; i < indices.size();) {
    WT_CHECK(dim < x.ndim(), IndexError, op, ": too many indices for tensor of dimension ", x.ndim());
    if (!indices[i]) {
      ++dim, ++i;
      continue;
    }
    int64_t before = dim;
    add_index(plan, op, x, *indices[i], dim);
    // A mask of several dims is followed by placeholders for its other dims.
    for (++i; before + 1 < dim && i < indices.size() && !indices[i]; ++i) ++before;
  }
  WT_CHECK(!plan.order.empty(), ShapeError, op, ": at least one index must be given");
  bool adjacent = plan.order.back() - plan.order.front() + 1 == static_cast<int64_t>(plan.order.size());
  plan.at = adjacent ? plan.order.front() : 0;
  for (int64_t d = 0; d < x.ndim(); ++d)
    if (std::find(plan.order.begin(), plan.order.end(), d) == plan.order.end()) plan.order.push_back(d);
  for (size_t i = 0; i < plan.indices.size(); ++i)
    WT_CHECK(x.sizes()[plan.order[i]] > 0 || numel_of(plan.shape) == 0, IndexError, op,
             ": index is out of bounds for dimension with size 0");
  for (Tensor& t : plan.indices) t = expand_view(t, plan.shape);
  return plan;
}

// [index dims, other dims] to the result's order, and back.
Shape result_order(const Plan& plan, int64_t ndim) {
  auto k = static_cast<int64_t>(plan.shape.size());
  Shape order;
  for (int64_t i = 0; i < plan.at; ++i) order.push_back(k + i);
  for (int64_t i = 0; i < k; ++i) order.push_back(i);
  for (int64_t i = k + plan.at; i < ndim; ++i) order.push_back(i);
  return order;
}

Tensor permuted_view(const Tensor& x, const Shape& order) {
  Shape sizes, strides;
  for (int64_t d : order) {
    sizes.push_back(x.sizes()[d]);
    strides.push_back(x.strides()[d]);
  }
  return alias(x, std::move(sizes), std::move(strides), x.offset());
}

std::vector<View> views(const Plan& plan) {
  std::vector<View> out;
  for (const Tensor& t : plan.indices) out.push_back(t.view());
  return out;
}

bool expands_to(IntList from, IntList to) {
  if (from.size() > to.size()) return false;
  return std::equal(from.begin(), from.end(), to.end() - static_cast<int64_t>(from.size()),
                    [](int64_t a, int64_t b) { return a == b || a == 1; });
}

void put(const char* op, const Plan& plan, const Tensor& self, const Tensor& values, bool accumulate) {
  Tensor front = permuted_view(self, plan.order);
  Shape sizes = plan.shape;
  sizes.append(front.sizes().begin() + static_cast<int64_t>(plan.indices.size()), front.sizes().end());
  Shape order = result_order(plan, static_cast<int64_t>(sizes.size())), inverse(order.size(), 0), shown;
  for (size_t i = 0; i < order.size(); ++i) {
    inverse[order[i]] = static_cast<int64_t>(i);
    shown.push_back(sizes[order[i]]);
  }
  WT_CHECK(expands_to(values.sizes(), shown), ShapeError, op, ": shape mismatch: value tensor of shape ",
           values.sizes(), " cannot be broadcast to indexing result of shape ", shown);
  WT_CHECK(values.dtype() == self.dtype(), DtypeError, op,
           ": Index put requires the source and destination dtypes match, got ", self.dtype(),
           " for the destination and ", values.dtype(), " for the source.");
  Tensor v = permuted_view(expand_view(values, shown), inverse);
  if (self.is_meta() || v.numel() == 0) return;
  Launch launch(self.device());
  auto index_views = views(plan);
  index_put_slot(launch, front.view(), v.view(), index_views.data(), static_cast<int>(index_views.size()),
                 accumulate);
  launch.check_index(op, plan.order[0]);
}

std::vector<OptTensor> saved_indices(Node& n, size_t from) {
  std::vector<OptTensor> out;
  for (size_t i = from; i < n.saved_count(); ++i) {
    Tensor t = n.saved(i);
    out.push_back(t.defined() ? OptTensor(t) : OptTensor());
  }
  return out;
}
void save_indices(Node& n, Indices indices) {
  for (const OptTensor& t : indices) n.save(t ? *t : Tensor());
}

void index_backward(Node& n, Gradients& g) {
  Tensor out = zeros(n.data<Shape>(), options_of(g[0]));
  g.set(0, index_put_(out, saved_indices(n, 0), g[0], true));
}
constexpr NodeType kIndex{"IndexBackward0", index_backward};

bool is_single_mask(const OptTensor& index) {
  return index && index->ndim() == 0 && (index->dtype() == DType::Bool || index->dtype() == DType::UInt8);
}

// A 0-dim mask is one over a new dim of size 1.
struct WithMaskDims {
  Tensor x;
  std::vector<OptTensor> indices;

  WithMaskDims(const Tensor& given, Indices from) : x(given), indices(from.begin(), from.end()) {
    int64_t dim = 0;
    for (OptTensor& t : indices) {
      if (is_single_mask(t)) {
        x = unsqueeze(x, dim++);
        t = expand_view(*t, Shape{1});
      } else {
        dim += t && (t->dtype() == DType::Bool || t->dtype() == DType::UInt8) ? t->ndim() : 1;
      }
    }
  }
};

Tensor index_impl(const Tensor& x, Indices indices) {
  if (std::any_of(indices.begin(), indices.end(), is_single_mask)) {
    const WithMaskDims with(x, indices);
    return index_impl(with.x, with.indices);
  }
  Plan plan = make_plan("index", x, indices);
  Tensor front = permuted_view(x, plan.order);
  Shape sizes = plan.shape;
  sizes.append(front.sizes().begin() + static_cast<int64_t>(plan.indices.size()), front.sizes().end());
  Tensor out = empty(sizes, options_of(x));
  if (!out.is_meta() && out.numel()) {
    Launch launch(x.device());
    auto index_views = views(plan);
    index_get_slot(launch, out.view(), front.view(), index_views.data(),
                   static_cast<int>(index_views.size()));
    launch.check_index("index", plan.order[0]);
  }
  out = permuted_view(out, result_order(plan, out.ndim()));
  if (needs_grad(x)) {
    Ref<Node> n = record(kIndex, x);
    n->emplace<Shape>(x.sizes());
    save_indices(*n, indices);
    set_history(out, n);
  }
  return out;
}

struct PutData {
  bool accumulate;
};
void index_put_backward(Node& n, Gradients& g) {
  auto indices = saved_indices(n, 0);
  if (g.wants(0)) {
    bool kept = n.data<PutData>().accumulate;
    g.set(0, kept ? g[0] : index_put_(clone(g[0]), indices, zeros({}, options_of(g[0])), false));
  }
  if (g.wants(1)) g.set(1, index(g[0], indices));
}
constexpr NodeType kIndexPut{"IndexPutBackward0", index_put_backward};

bool is_mask(const OptTensor& index) {
  return !index || index->dtype() == DType::Bool || index->dtype() == DType::UInt8;
}

// How many elements a mask chooses is unknown on the meta device, and does not matter to what is written
// there.
bool is_unknown_mask(const OptTensor& index) {
  return index && index->device().is_meta() &&
         (index->dtype() == DType::Bool || index->dtype() == DType::UInt8);
}

Tensor index_put_impl(const Tensor& self, Indices indices, const Tensor& given, bool accumulate) {
  if (std::any_of(indices.begin(), indices.end(), is_single_mask)) {
    const WithMaskDims with(self, indices);
    index_put_impl(with.x, with.indices, given, accumulate);
    return self;
  }
  WT_CHECK(given.device() == self.device() || given.ndim() == 0, DeviceError,
           "index_put_: expected values on ", self.device(), ", got ", given.device());
  Tensor values =
      given.device() == self.device() ? given : to(given, self.device(), std::nullopt, false, false);
  // One number where masks say, as masked_fill_ takes it.
  if (values.numel() == 1 && !accumulate && values.dtype() != self.dtype() &&
      std::all_of(indices.begin(), indices.end(), is_mask)) {
    if (values.device().is_host() && !is_opaque(values)) check_fits(item(values), self.dtype());
    values = cast(values, self.dtype());
  }
  bool recorded = needs_grad(self, values) && is_differentiable(self.dtype());
  check_inplace(self, "index_put_", recorded);
  const bool unknown =
      self.device().is_meta() && std::any_of(indices.begin(), indices.end(), is_unknown_mask);
  Plan plan = unknown ? Plan() : make_plan("index_put_", self, indices);
  Ref<Node> n;
  if (recorded) {
    n = record(kIndexPut, self, values);
    n->emplace<PutData>(accumulate);
    save_indices(*n, indices);
  }
  if (!unknown) {
    const auto apart = [&](const Tensor& t) {
      return overlap_of(self, t) == Overlap::None ? t : raw_clone(t);
    };
    for (Tensor& t : plan.indices) t = apart(t);
    put("index_put_", plan, self, apart(values), accumulate);
  }
  self.bump_version();
  if (n) rebase_history(self, n);
  return self;
}

Tensor index_put_copy_impl(const Tensor& x, Indices indices, const Tensor& values, bool accumulate) {
  return index_put_(clone(x), indices, values, accumulate);
}

}  // namespace

decltype(index) index{"_index",
                      index_impl,
                      kPrivate | kComplex | kChecked | batching::index,
                      {"input", "indices"},
                      "input[indices]: advanced indexing by NumPy's rules."};
decltype(index_put_) index_put_{"index_put_",
                                index_put_impl,
                                kFunction | kMethod | kComplex | batching::index_put,
                                {{"input", kWritten}, "indices", "values", {"accumulate", false}},
                                "input[indices] = values, or += with accumulate."};
const Op<Tensor(const Tensor&, Indices, const Tensor&, bool)> index_put{
    "index_put",
    index_put_copy_impl,
    kFunction | kMethod | kComplex | kWidestCuda,
    {"input", "indices", "values", {"accumulate", false}},
    "index_put_ on a copy."};
const char kNonzeroDoc[] = "Positions of the non-zero elements, int64 [count, ndim].";
decltype(nonzero) nonzero{
    "nonzero", nonzero_impl, kFunction | kMethod | kOut | kOutExact | kComplex, {"input"}, kNonzeroDoc};
decltype(nonzero_as) nonzero_as{"nonzero",
                                nonzero_as_impl,
                                kFunction | kMethod | kOut | kOutExact | kComplex,
                                {"input", {"as_tuple", false, kKeywordOnly}},
                                "Positions of the non-zero elements, int64 [count, ndim], or with as_tuple "
                                "one vector per dim."};
namespace {
const Op<Tensor(const Tensor&, int64_t, int64_t)> nonzero_static{
    "nonzero_static",
    nonzero_static_impl,
    kFunction | kMethod | kOut | kComplex,
    {"input", {"size", kKeywordOnly}, Arg::integer("fill_value", -1, kKeywordOnly)},
    "The first `size` rows of nonzero; fill_value in the rows that are missing."};
const Op<Tensor(const Tensor&)> argwhere{
    "argwhere", nonzero_impl, kFunction | kMethod | kComplex, {"input"}, kNonzeroDoc};
const Op<Tensor(const Tensor&, const Tensor&)> take{
    "take",
    take_impl,
    kFunction | kMethod | kOut | kOutExact | kOutApart | kComplex,
    {"input", "index"},
    "Elements of the flattened input at the indices, of which negative ones count from the end."};
}  // namespace

}  // namespace warptape::ops
