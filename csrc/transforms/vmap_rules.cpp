// Batching rules of single ops, which their declarations name. Most compose the call of other ops on the
// wrappers.
#include "op/batching.h"
#include "ops/attention/attention.h"
#include "ops/conv/conv.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/gather.h"
#include "ops/index/index.h"
#include "ops/linalg/matmul.h"
#include "ops/nn/embedding.h"
#include "ops/nn/loss.h"
#include "ops/nn/softmax.h"
#include "ops/norm/norm.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "transforms/vmap.h"

namespace warptape::transforms {
namespace {

using namespace ops;

template <class T>
decltype(auto) arg(const Call& c, size_t i) {
  return ArgTraits<T>::unbox(c.values[i]);
}
const Tensor& tensor(const Call& c, size_t i) { return *c.values[i].tensor; }
OptTensor optional(const Call& c, size_t i) { return arg<OptTensor>(c, i); }
bool mapped(const Call& c, const OptTensor& t) { return t && t->defined() && c.is_mapped(*t); }
Tensor front(const Call& c, const Tensor& t) { return value_at(t, c.level); }

bool done(Result& out, Tensor t) {
  out.kind = Result::Kind::Tensor;
  out.tensor = std::move(t);
  return true;
}
bool wrapped(const Call& c, Result& out, const Tensor& value) {
  return done(out, batched_at(value, c.level));
}

// sizes with `count` dims from `at` on replaced by `by`.
Shape with(const Shape& sizes, size_t at, size_t count, IntList by) {
  Shape out;
  for (size_t d = 0; d < at; ++d) out.push_back(sizes[d]);
  for (int64_t n : by) out.push_back(n);
  for (size_t d = at + count; d < sizes.size(); ++d) out.push_back(sizes[d]);
  return out;
}
// Dims `at` and the next as one, and dim `at` as two.
Tensor merged(const Tensor& t, size_t at) {
  return reshape(t, with(t.sizes(), at, 2, Shape{t.sizes()[at] * t.sizes()[at + 1]}));
}
Tensor parted(const Tensor& t, size_t at, int64_t first) {
  return reshape(t, with(t.sizes(), at, 1, Shape{first, t.sizes()[at] / first}));
}

// ---- products ------------------------------------------------------------------------------------------

// Vectors become matrices, and dims of size 1 bring both to the same number of dims.
bool product(Call& c, Result& out) {
  const Tensor &a = tensor(c, 0), &b = tensor(c, 1);
  if (!c.is_mapped(b) && b.ndim() <= 2) return wrapped(c, out, ops::matmul(front(c, a), b));
  const bool row = a.ndim() == 1, column = b.ndim() == 1;
  const int64_t ndim = std::max<int64_t>({a.ndim(), b.ndim(), 2});
  auto lifted = [&](const Tensor& t, bool vector, int64_t at) {
    Tensor v = c.is_mapped(t) ? front(c, t) : t;
    if (vector) v = ops::unsqueeze(v, at);
    for (int64_t d = vector ? 2 : t.ndim(); c.is_mapped(t) && d < ndim; ++d) v = ops::unsqueeze(v, 1);
    return v;
  };
  Tensor y = ops::matmul(lifted(a, row, -2), lifted(b, column, -1));
  if (column) y = ops::squeeze_dim(y, -1);
  if (row) y = ops::squeeze_dim(y, column ? -1 : -2);
  return wrapped(c, out, y);
}

bool linear(Call& c, Result& out) {
  const Tensor &x = tensor(c, 0), &w = tensor(c, 1);
  const OptTensor bias = optional(c, 2);
  if (!c.is_mapped(w) && !mapped(c, bias)) return wrapped(c, out, ops::linear(front(c, x), w, bias));
  Tensor y = ops::matmul(x, w.ndim() == 2 ? ops::transpose(w, 0, 1) : w);
  return done(out, bias ? y + *bias : y);
}

template <const auto& Product>
bool add_product(Call& c, Result& out) {
  const Scalar beta = arg<Scalar>(c, 3), alpha = arg<Scalar>(c, 4);
  Tensor y = Product(tensor(c, 1), tensor(c, 2));
  if (!(alpha.to_double() == 1 && !alpha.is_complex())) y = y * alpha;
  if (!beta.is_complex() && beta.to_double() == 0) return done(out, y);
  return done(out, ops::add(y, tensor(c, 0), beta));
}

// ---- convolution ---------------------------------------------------------------------------------------

// With weights of its own for each call, the calls become groups of channels.
template <int64_t N, const auto& Conv>
bool conv(Call& c, Result& out) {
  const Tensor &x = tensor(c, 0), &w = tensor(c, 1);
  const OptTensor bias = optional(c, 2);
  const bool one = x.ndim() == N + 1;
  const int64_t size = c.level.size, groups = arg<int64_t>(c, 6);
  if (!c.is_mapped(w) && !mapped(c, bias)) {
    Tensor y = Conv(one ? front(c, x) : merged(front(c, x), 0), w, bias, arg<IntList>(c, 3),
                    arg<IntList>(c, 4), arg<IntList>(c, 5), groups);
    return wrapped(c, out, one ? y : parted(y, 0, size));
  }
  Tensor input = one ? ops::unsqueeze(front(c, x), 0) : ops::transpose(front(c, x), 0, 1);
  Tensor y = Conv(merged(input, 1), merged(front(c, w), 0),
                  bias ? OptTensor(merged(front(c, *bias), 0)) : std::nullopt, arg<IntList>(c, 3),
                  arg<IntList>(c, 4), arg<IntList>(c, 5), groups * size);
  y = ops::transpose(parted(y, 1, size), 0, 1);
  return wrapped(c, out, one ? ops::squeeze_dim(y, 1) : y);
}

// ---- shapes and joining --------------------------------------------------------------------------------

bool unsqueeze(Call& c, Result& out) {
  const Tensor& x = tensor(c, 0);
  return wrapped(c, out,
                 ops::unsqueeze(front(c, x), wrap_dim(arg<int64_t>(c, 1), x.ndim() + 1, "unsqueeze") + 1));
}
bool squeeze(Call& c, Result& out) {
  Tensor value = front(c, tensor(c, 0));
  for (int64_t d = value.ndim() - 1; d > 0; --d)
    if (value.sizes()[d] == 1) value = ops::squeeze_dim(value, d);
  return wrapped(c, out, value);
}
bool permute(Call& c, Result& out) {
  const Tensor& x = tensor(c, 0);
  Shape dims{0};
  for (int64_t d : arg<IntList>(c, 1))
    dims.push_back(wrap_dim(d, std::max<int64_t>(x.ndim(), 1), "permute") + 1);
  return wrapped(c, out, ops::permute(front(c, x), dims));
}
bool t(Call& c, Result& out) {
  const Tensor& x = tensor(c, 0);
  return done(out, x.ndim() == 2 ? ops::transpose(x, 0, 1) : x);
}

template <const auto& Join, int64_t NewDims>
bool join(Call& c, Result& out) {
  std::vector<Tensor> parts;
  for (const Tensor& part : arg<TensorList>(c, 0))
    if (NewDims || part.ndim() != 1 || part.numel() > 0)
      parts.push_back(front(c, part));  // cat leaves [0] out
  if (parts.empty()) return false;
  const int64_t ndim = std::max<int64_t>(parts[0].ndim() - 1 + NewDims, 1);
  return wrapped(c, out, Join(parts, wrap_dim(arg<int64_t>(c, 1), ndim, c.op.name) + 1));
}

// As if each of the mapped tensors began its own storage.
bool as_strided(Call& c, Result& out) {
  Tensor value = front(c, tensor(c, 0));
  const Shape sizes(arg<IntList>(c, 1)), strides(arg<IntList>(c, 2));
  const int64_t offset = arg<std::optional<int64_t>>(c, 3).value_or(0);
  if (value.strides()[0] == 0) {  // one tensor for all: memory of its own keeps their gradients apart
    const Shape row(IntList(value.sizes()).subspan(1)), steps(IntList(value.strides()).subspan(1));
    int64_t last = offset, held = 1;  // elements that the memory of one has
    for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
    for (size_t d = 0; d < row.size(); ++d) held += (row[d] - 1) * steps[d];
    if (numel_of(row) > 0 && last < held) {
      const Tensor memory = ops::as_strided(ops::detach(value), Shape{held}, Shape{1}, value.offset());
      const Tensor own = ops::contiguous(ops::expand(memory, Shape{c.level.size, held}));
      for (size_t d = 0; d < row.size(); ++d)  // a repeated element is written once
        if (steps[d] == 0) value = ops::narrow(value, static_cast<int64_t>(d) + 1, 0, 1);
      ops::copy_(ops::as_strided(own, value.sizes(), with(steps, 0, 0, Shape{held}), 0), value, false);
      value = own;
    }
  }
  return wrapped(c, out,
                 ops::as_strided(value, with(sizes, 0, 0, Shape{c.level.size}),
                                 with(strides, 0, 0, Shape{value.strides()[0]}), value.offset() + offset));
}

bool flatten(Call& c, Result& out) {
  const Tensor& x = tensor(c, 0);
  if (x.ndim() == 0) return wrapped(c, out, ops::unsqueeze(front(c, x), 1));
  const int64_t first = wrap_dim(arg<int64_t>(c, 1), x.ndim(), "flatten"),
                last = wrap_dim(arg<int64_t>(c, 2), x.ndim(), "flatten");
  return wrapped(c, out, ops::flatten(front(c, x), first + 1, last + 1));
}

// ---- indexing ------------------------------------------------------------------------------------------

// How many index tensors come first, or -1 where others follow a whole slice.
int64_t first_indices(std::span<const OptTensor> indices) {
  int64_t count = 0;
  bool gap = false;
  for (const OptTensor& i : indices) {
    if (!i || !i->defined()) {
      gap = true;
    } else {
      if (gap || i->dtype() == DType::Bool) return -1;
      ++count;
    }
  }
  return count;
}

// The indices with one of the mapped dim before them: the numbers of the calls.
std::vector<OptTensor> with_calls(const Call& c, std::span<const OptTensor> indices, bool numbered) {
  std::vector<OptTensor> out;
  int64_t ndim = 0;
  for (const OptTensor& i : indices)
    if (i && i->defined()) ndim = std::max(ndim, i->ndim());
  if (numbered) {
    Tensor calls =
        ops::cumsum(full(Shape{c.level.size}, 1, {DType::Int64, tensor(c, 0).device()}), 0, std::nullopt) - 1;
    for (int64_t d = 0; d < ndim; ++d) calls = ops::unsqueeze(calls, -1);
    out.emplace_back(calls);
  }
  for (const OptTensor& i : indices) {
    if (!i || !i->defined() || !c.is_mapped(*i)) {
      out.push_back(i);
      continue;
    }
    Tensor value = front(c, *i);
    for (int64_t d = i->ndim(); d < ndim; ++d) value = ops::unsqueeze(value, 1);
    out.emplace_back(value);
  }
  return out;
}

bool index(Call& c, Result& out) {
  const Tensor& x = tensor(c, 0);
  const auto indices = arg<std::span<const OptTensor>>(c, 1);
  if (first_indices(indices) < 1) return false;
  if (!c.list_mapped) {
    std::vector<OptTensor> shifted{std::nullopt};
    shifted.insert(shifted.end(), indices.begin(), indices.end());
    return wrapped(c, out, ops::index(front(c, x), shifted));
  }
  const bool both = c.is_mapped(x);
  return wrapped(c, out, ops::index(both ? front(c, x) : x, with_calls(c, indices, both)));
}

bool index_put(Call& c, Result& out) {
  const Tensor &x = tensor(c, 0), &values = tensor(c, 2);
  const auto indices = arg<std::span<const OptTensor>>(c, 1);
  const int64_t count = first_indices(indices);
  if (count < 1 || !c.is_mapped(x)) return false;
  int64_t ndim = 0;
  for (const OptTensor& i : indices)
    if (i && i->defined()) ndim = std::max(ndim, i->ndim());
  Tensor v = values;
  if (c.is_mapped(values)) {
    v = front(c, values);
    for (int64_t d = values.ndim(); d < ndim + x.ndim() - count; ++d) v = ops::unsqueeze(v, 1);
  }
  ops::index_put_(front(c, x), with_calls(c, indices, true), v, arg<bool>(c, 3));
  return done(out, x);
}

bool index_select(Call& c, Result& out) {
  const Tensor &x = tensor(c, 0), &rows = tensor(c, 2);
  const int64_t ndim = x.ndim(),
                dim = wrap_dim(arg<int64_t>(c, 1), std::max<int64_t>(ndim, 1), "index_select");
  if (!c.is_mapped(rows)) return wrapped(c, out, ops::index_select(front(c, x), dim + 1, rows));
  if (ndim == 0 || rows.ndim() != 1) return false;
  if (!c.is_mapped(x)) {
    Tensor y = ops::index_select(x, dim, reshape(front(c, rows), Shape{-1}));
    Shape order{dim};
    for (int64_t d = 0; d <= ndim; ++d)
      if (d != dim) order.push_back(d);
    return wrapped(c, out, ops::permute(parted(y, static_cast<size_t>(dim), c.level.size), order));
  }
  Shape shape(static_cast<size_t>(ndim), 1), sizes = x.sizes();
  shape[static_cast<size_t>(dim)] = sizes[static_cast<size_t>(dim)] = rows.numel();
  return done(out, ops::gather(x, dim, ops::expand(reshape(rows, shape), sizes), false));
}

// index_add and index_fill at slices that all mapped calls share.
bool index_slices(Call& c, Result& out) {
  const Tensor& x = tensor(c, 0);
  if (x.ndim() == 0 || c.is_mapped(tensor(c, 2))) return false;
  if (c.op.args[3].type == ArgType::Tensor) {
    const Tensor& source = tensor(c, 3);
    if (source.ndim() == 0 && c.is_mapped(source)) return false;  // the op takes one value
    if (source.ndim() > 0) c.set(3, front(c, source));
  }
  c.values[1].i = wrap_dim(c.values[1].i, x.ndim(), c.op.name) + 1;
  c.set(0, front(c, x));
  c.run(out);
  return true;
}

bool embedding(Call& c, Result& out) {
  const Tensor &ids = tensor(c, 0), &weight = tensor(c, 1);
  if (c.values[3].present) return false;  // max_norm writes the weight
  if (!c.is_mapped(weight)) {
    c.set(0, front(c, ids));
    c.run(out);
    return true;
  }
  if (c.values[2].present) return false;
  Tensor rows = reshape(ids, Shape{-1});
  return done(out, reshape(ops::index_select(weight, 0, rows),
                           with(ids.sizes(), ids.sizes().size(), 0, Shape{weight.sizes()[1]})));
}

// ---- normalization, attention, losses ------------------------------------------------------------------

bool layer_norm(Call& c, Result& out) {
  const OptTensor weight = optional(c, 2), bias = optional(c, 3);
  const Tensor& x = tensor(c, 0);
  if (!mapped(c, weight) && !mapped(c, bias)) {
    c.set(0, front(c, x));
    c.run(out);
    return true;
  }
  Tensor y = ops::layer_norm(x, arg<IntList>(c, 1), std::nullopt, std::nullopt, arg<double>(c, 4));
  if (weight) y = y * *weight;
  return done(out, bias ? y + *bias : y);
}

bool rms_norm(Call& c, Result& out) {
  const OptTensor weight = optional(c, 2);
  if (!mapped(c, weight)) {
    c.set(0, front(c, tensor(c, 0)));
    c.run(out);
    return true;
  }
  return done(
      out, ops::rms_norm(tensor(c, 0), arg<IntList>(c, 1), std::nullopt, arg<std::optional<double>>(c, 3)) *
               *weight);
}

bool group_norm(Call& c, Result& out) {
  const OptTensor weight = optional(c, 2), bias = optional(c, 3);
  const Tensor& x = tensor(c, 0);
  auto channels = [&](const Tensor& p) {  // [C, 1, ...]
    Shape sizes{p.sizes()[0]};
    for (int64_t d = 2; d < x.ndim(); ++d) sizes.push_back(1);
    return reshape(p, sizes);
  };
  if (mapped(c, weight) || mapped(c, bias)) {
    Tensor y = ops::group_norm(x, arg<int64_t>(c, 1), std::nullopt, std::nullopt, arg<double>(c, 4));
    if (weight) y = y * channels(*weight);
    return done(out, bias ? y + channels(*bias) : y);
  }
  Tensor y = ops::group_norm(merged(front(c, x), 0), arg<int64_t>(c, 1), weight, bias, arg<double>(c, 4));
  return wrapped(c, out, parted(y, 0, c.level.size));
}

bool batch_norm(Call& c, Result& out) {
  const Tensor& x = tensor(c, 0);
  const OptTensor mean = optional(c, 1), variance = optional(c, 2);
  const bool training = arg<bool>(c, 5);
  WT_CHECK(
      !training || !mean || !c.is_mapped(x) || (c.is_mapped(*mean) && variance && c.is_mapped(*variance)),
      Error,
      "batch_norm: vmap: inplace arithmetic(self, *extra_args) is not possible: got a batched input while "
      "running_mean and running_var, which are updated in place, are shared by the mapped calls. Please "
      "map them too, or take track_running_stats=False");
  if (training || c.mapped_count() != 1 || !c.is_mapped(x)) return false;
  c.set(0, merged(front(c, x), 0));
  c.op.call(c.op, c.values.data(), out);
  return wrapped(c, out, parted(out.tensor, 0, c.level.size));
}

bool attention(Call& c, Result& out) {
  int64_t ndim = 0;
  for (const Operand& t : c.tensors) ndim = std::max(ndim, t.tensor.ndim());
  for (const Operand& t : c.tensors)
    if (t.arg < 3 || t.mapped) c.set(t.arg, c.value(t, ndim));
  c.run(out);
  return true;
}

bool cross_entropy(Call& c, Result& out) {
  const Tensor &x = tensor(c, 0), &target = tensor(c, 1);
  const bool smooth = c.values.size() > 7 && arg<double>(c, 7) != 0;
  if (optional(c, 2) || c.values[3].present || c.values[5].present || smooth || is_floating(target.dtype()))
    return false;
  const int64_t dim = x.ndim() == 1 ? 0 : 1, ignored = arg<int64_t>(c, 4);
  const std::string_view reduction = arg<std::string_view>(c, 6);
  Tensor kept = ops::ne_ts(target, ignored);
  Tensor logs = &c.op == &ops::nll_loss ? x : ops::log_softmax(x, dim, std::nullopt);
  Tensor picked = ops::gather(logs, dim, ops::unsqueeze(target * kept, dim), false);
  Tensor losses = ops::where_ts(kept, -ops::squeeze_dim(picked, dim), Scalar(0.0));
  if (reduction == "none") return done(out, losses);
  if (reduction != "sum" && reduction != "mean") return false;
  Tensor total = ops::sum(losses, std::nullopt, false, std::nullopt);
  return done(out, reduction == "sum"
                       ? total
                       : total / ops::cast(ops::sum(kept, std::nullopt, false, std::nullopt), x.dtype()));
}

}  // namespace
}  // namespace warptape::transforms

namespace warptape::batching {

constinit const OpFacts product{transforms::product}, linear{transforms::linear},
    addmm{transforms::add_product<ops::mm>}, baddbmm{transforms::add_product<ops::bmm>},
    addmv{transforms::add_product<ops::mv>}, conv1d{transforms::conv<1, ops::conv1d>},
    conv2d{transforms::conv<2, ops::conv2d>}, conv3d{transforms::conv<3, ops::conv3d>},
    unsqueeze{transforms::unsqueeze}, squeeze{transforms::squeeze}, permute{transforms::permute},
    t{transforms::t}, cat{transforms::join<ops::cat, 0>}, stack{transforms::join<ops::stack, 1>},
    as_strided{transforms::as_strided}, flatten{transforms::flatten}, index{transforms::index},
    index_put{transforms::index_put}, index_select{transforms::index_select},
    index_slices{transforms::index_slices}, embedding{transforms::embedding},
    layer_norm{transforms::layer_norm}, rms_norm{transforms::rms_norm}, group_norm{transforms::group_norm},
    batch_norm{transforms::batch_norm}, attention{transforms::attention},
    cross_entropy{transforms::cross_entropy};

}  // namespace warptape::batching
