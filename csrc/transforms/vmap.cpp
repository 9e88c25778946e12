// How an op runs on tensors with a mapped dim: by the batching rule of its declaration (batch_rule,
// batching), as what it is composed of, or else once for each of the mapped calls.
#include <unordered_set>

#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "transforms/vmap.h"

namespace warptape::transforms {
namespace {

bool writes(const OpInfo& op) { return !op.args.empty() && (op.args[0].marks & kWritten); }

int64_t in_front(int64_t dim, int64_t ndim, const char* op) {
  return dim < 0 ? wrap_dim(dim, std::max<int64_t>(ndim, 1), op) + 1 : dim + 1;
}

}  // namespace

// ---- arguments -----------------------------------------------------------------------------------------

Call::Call(const OpInfo& o, std::span<const Value> args, const Level& l)
    : op(o), level(l), values(args.begin(), args.end()) {
  for (size_t i = 0; i < values.size(); ++i) {
    const Value& v = values[i];
    if (!v.present) continue;
    if (op.args[i].type == ArgType::Tensor && v.tensor->defined())
      tensors.push_back({i, *v.tensor, is_mapped(*v.tensor)});
    if (op.args[i].type == ArgType::TensorList)
      for (const Tensor& t : ArgTraits<TensorList>::unbox(v)) list_mapped |= is_mapped(t);
    if (op.args[i].type == ArgType::OptTensorList)
      for (const OptTensor& t : ArgTraits<std::span<const OptTensor>>::unbox(v))
        list_mapped |= t && t->defined() && is_mapped(*t);
  }
}

bool Call::is_mapped(const Tensor& t) const { return level_of(t) == level.id; }

int64_t Call::mapped_count() const {
  return std::ranges::count_if(tensors, [](const Operand& t) { return t.mapped; });
}

void Call::set(size_t arg, Tensor t) { values[arg].tensor = &kept.emplace_back(std::move(t)); }

void Call::set(size_t arg, Shape ints) {
  const Shape& held = shapes.emplace_back(std::move(ints));
  values[arg].present = true;
  values[arg].list = {held.data(), held.size()};
}

// With the mapped dim in front; `ndim` dims after it.
Tensor Call::value(const Operand& t, int64_t ndim) const {
  Tensor v = value_at(t.tensor, level);
  for (int64_t d = t.tensor.ndim(); d < ndim; ++d) v = ops::unsqueeze(v, 1);
  return v;
}

void Call::run(Result& out) {
  op.call(op, values.data(), out);
  wrap(out);
}

void Call::wrap(Result& out) {
  const bool has_tensors = out.tensor.defined() || !out.tensors.empty();
  WT_CHECK(has_tensors || out.kind == Result::Kind::List || out.kind == Result::Kind::None, OpaqueError,
           op.name, ": the result depends on the data of a tensor inside vmap");
  if (out.tensor.defined()) out.tensor = batched_at(out.tensor, level);
  for (Tensor& t : out.tensors)
    if (t.defined()) t = batched_at(t, level);
}

// ---- rules ---------------------------------------------------------------------------------------------

namespace {

int kind_of(DType t) { return is_complex(t) ? 3 : is_floating(t) ? 2 : t == DType::Bool ? 0 : 1; }

// A number of the function is a vector in the mapped call, and must not take part in type promotion for that.
void keep_promotion(Call& c) {
  std::optional<DType> others;
  for (const Operand& t : c.tensors)
    if (t.tensor.ndim() > 0) others = others ? promote(*others, t.tensor.dtype()) : t.tensor.dtype();
  if (!others) return;
  for (const Operand& t : c.tensors)
    if (t.mapped && t.tensor.ndim() == 0 && t.tensor.dtype() != DType::Bool &&
        kind_of(t.tensor.dtype()) <= kind_of(*others))
      c.set(t.arg, ops::cast(*c.values[t.arg].tensor, *others));
}

bool pointwise(Call& c, Result& out) {
  int64_t ndim = 0;
  for (const Operand& t : c.tensors) ndim = std::max(ndim, t.tensor.ndim());
  for (const Operand& t : c.tensors)
    if (t.mapped) c.set(t.arg, c.value(t, writes(c.op) && t.arg == 0 ? t.tensor.ndim() : ndim));
  keep_promotion(c);
  c.run(out);
  return true;
}

bool along_dims(Call& c, Result& out) {
  if (c.list_mapped || c.tensors.empty()) return false;
  const int64_t ndim = c.tensors[0].tensor.ndim();
  bool all = true;  // no dim is named: it goes over all
  for (size_t i = 0; i < c.values.size(); ++i) {
    const Arg& arg = c.op.args[i];
    if (!(arg.marks & kDimIndex) || !c.values[i].present) continue;
    if (arg.type == ArgType::Int) {
      c.values[i].i = in_front(c.values[i].i, ndim, c.op.name);
      all = false;
    } else if (arg.type == ArgType::IntList) {
      Shape dims(ArgTraits<IntList>::unbox(c.values[i]));
      for (int64_t& d : dims) d = in_front(d, ndim, c.op.name);
      c.set(i, dims);
      // No dim means all to what reduces, and none to views and movements, which must be given a list.
      const bool none = (c.op.flags & kLinear) && arg.def.kind == ArgDefault::Kind::Required && !arg.optional;
      all = all && dims.empty() && !none;
    }
  }
  for (const Operand& t : c.tensors) c.set(t.arg, c.value(t, std::max<int64_t>(t.tensor.ndim(), 1)));
  if (all) {
    bool named = false;
    for (size_t i = 0; i < c.values.size() && !named; ++i) {
      const Arg& arg = c.op.args[i];
      if (!(arg.marks & kDimIndex)) continue;
      Shape dims;
      for (int64_t d = 0; d < std::max<int64_t>(ndim, 1); ++d) dims.push_back(d + 1);
      if (arg.type == ArgType::IntList) {
        c.set(i, dims);
      } else {
        if (ndim > 1) return false;
        c.values[i].present = true;
        c.values[i].i = 1;
      }
      named = true;
    }
    if (!named) return false;
  }
  c.op.call(c.op, c.values.data(), out);
  auto squeezed = [&](Tensor& t) {
    if (ndim == 0 && t.defined() && t.ndim() == 2 && t.sizes()[1] == 1) t = ops::squeeze_dim(t, 1);
  };
  squeezed(out.tensor);
  for (Tensor& t : out.tensors) squeezed(t);
  c.wrap(out);
  return true;
}

bool to_sizes(Call& c, Result& out) {
  if (c.tensors.size() != 1 || !c.tensors[0].mapped) return false;
  for (size_t i = 0; i < c.values.size(); ++i) {
    if (c.op.args[i].type != ArgType::IntList) continue;
    Shape sizes{c.level.size};
    for (int64_t n : ArgTraits<IntList>::unbox(c.values[i])) sizes.push_back(n);
    c.set(c.tensors[0].arg, c.value(c.tensors[0], static_cast<int64_t>(sizes.size()) - 1));
    c.set(i, sizes);
    c.run(out);
    return true;
  }
  return false;
}

bool leading(Call& c, Result& out) {
  if (c.list_mapped) return false;
  const bool one = c.tensors.size() == 1;
  const int64_t ndim = c.tensors[0].tensor.ndim();
  for (const Operand& t : c.tensors)
    if (!one && (t.tensor.ndim() != ndim || ndim < 2)) return false;
  for (const Operand& t : c.tensors)
    if (t.mapped || !one) c.set(t.arg, c.value(t, 0));
  c.run(out);
  return true;
}

bool fold(Call& c, Result& out, int64_t spatial) {
  if (c.list_mapped || c.mapped_count() != 1 || !c.tensors[0].mapped) return false;
  const Operand& x = c.tensors[0];
  const bool has_batch = x.tensor.ndim() == spatial + 2;
  const int64_t n = has_batch ? x.tensor.sizes()[0] : 1;
  Tensor value = c.value(x, 0);
  c.set(x.arg, has_batch ? ops::flatten(value, 0, 1) : value);
  c.op.call(c.op, c.values.data(), out);
  auto unfold = [&](Tensor& t) {
    if (!t.defined() || !has_batch) return;
    Shape sizes{c.level.size, n};
    for (size_t d = 1; d < t.sizes().size(); ++d) sizes.push_back(t.sizes()[d]);
    t = ops::reshape(t, sizes);
  };
  unfold(out.tensor);
  for (Tensor& t : out.tensors) unfold(t);
  c.wrap(out);
  return true;
}

bool by_rule(Call& c, Result& out) {
  if (c.op.batch_rule) return c.op.batch_rule(c, out);
  switch (c.op.batching) {
    case Batching::Pointwise:
      return !c.list_mapped && pointwise(c, out);
    case Batching::AlongDims:
      return along_dims(c, out);
    case Batching::ToSizes:
      return to_sizes(c, out);
    case Batching::Leading:
      return leading(c, out);
    case Batching::Fold1d:
    case Batching::Fold2d:
    case Batching::Fold3d:
      return fold(c, out, 1 + static_cast<int>(c.op.batching) - static_cast<int>(Batching::Fold1d));
    case Batching::Composed:
      break;
  }
  return false;
}

}  // namespace

// ---- as what it is composed of -------------------------------------------------------------------------

namespace {
struct OfThread {
  std::unordered_set<const OpInfo*> with_kernels;  // that were found not to be composed
  std::unordered_set<const OpInfo*> warned;        // of their loops
  int64_t drawing = INT64_MAX;                     // the innermost level that has given its calls their draws
};
PerThread<OfThread> of_thread;
}  // namespace

bool composed(const OpInfo& op, std::span<const Value> args, Result& out) {
  if (writes(op) || of_thread->with_kernels.contains(&op)) return false;
  try {
    op.run(op, args.data(), out);
  } catch (const OpaqueError&) {
    of_thread->with_kernels.insert(&op);
    out = {};
    return false;
  }
  bool of_tape = false, lost = false;
  each_tensor(op, args, [&](const Tensor& t) { of_tape |= recorded(t); });
  // A result without data comes of a view of a wrapper's memory; one without history of an op that composes
  // its result unrecorded and then records itself.
  auto see = [&](const Tensor& t) {
    if (!t.defined()) return;
    lost |= is_opaque(t) && !wrapper_of(t);
    lost |= thread_state().grad_mode && of_tape && is_differentiable(t.dtype()) && !recorded(t);
  };
  see(out.tensor);
  for (const Tensor& t : out.tensors) see(t);
  if (!lost) return true;
  of_thread->with_kernels.insert(&op);
  out = {};
  return false;
}

// ---- one call after the other --------------------------------------------------------------------------

namespace {

void warn_of_loop(const OpInfo& op) {
  if (of_thread->warned.insert(&op).second)
    warn(message("There is a performance drop because there is no batching rule for ", op.name,
                 ": vmap calls it once for each element of the mapped dim"));
}

}  // namespace

void one_by_one(Call& c, Result& out, Generator* draws) {
  const int64_t n = c.level.size;
  WT_CHECK(n > 0, NotImplementedError, c.op.name,
           ": there is no batching rule for it, and the mapped dim has no elements");
  std::vector<Result> results(static_cast<size_t>(n));
  const std::vector<uint8_t> state = draws ? draws->state() : std::vector<uint8_t>();
  for (int64_t i = 0; i < n; ++i) {
    if (draws) draws->set_state(state);
    Replaced slice(c.op, c.values, [&](const Tensor& t) {
      return c.is_mapped(t) ? ops::select(wrapper_of(t)->value, 0, i) : t;
    });
    Result& r = results[static_cast<size_t>(i)];
    c.op.call(c.op, slice.values.data(), r);
  }
  out.kind = results[0].kind;
  auto stacked = [&](auto&& pick) {
    std::vector<Tensor> parts;
    for (Result& r : results) parts.push_back(pick(r));
    return parts[0].defined() ? ops::stack(parts, 0) : Tensor();
  };
  out.tensor = stacked([](Result& r) { return r.tensor; });
  for (size_t k = 0; k < results[0].tensors.size(); ++k)
    out.tensors.push_back(stacked([&](Result& r) {
      WT_CHECK(r.tensors.size() == results[0].tensors.size(), Error, c.op.name,
               ": the mapped calls gave different numbers of tensors");
      return r.tensors[k];
    }));
  c.wrap(out);
}

namespace {

// Draws of the mapped calls, as the randomness of the vmap has them.
void random_call(Call& c, Result& out) {
  WT_CHECK(c.level.randomness != Randomness::Error, Error, "vmap: called random operation ", c.op.name,
           " while in randomness error mode. Please either use the 'same' or "
           "'different' randomness flags on vmap or perform the randomness operation out of vmap");
  Restore<int64_t> below(of_thread->drawing, c.level.id);
  if (c.level.randomness == Randomness::Same && c.mapped_count() == 0 && !c.list_mapped) {
    c.op.run(c.op, c.values.data(), out);
    return;
  }
  if (c.level.randomness == Randomness::Different) return one_by_one(c, out);
  Ref<Generator> generator =
      default_generator(c.tensors.empty() ? default_device() : c.tensors[0].tensor.device());
  for (size_t a = 0; a < c.values.size(); ++a)
    if (c.op.args[a].type == ArgType::Generator && c.values[a].present && c.values[a].generator)
      generator = Ref<Generator>::share(c.values[a].generator);
  one_by_one(c, out, generator.get());
}

}  // namespace

// Dropout of none, or while not training, draws nothing.
static bool draws(const OpInfo& op, std::span<const Value> args) {
  if (!(op.flags & kRandom)) return false;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!(op.args[i].marks & kDraws)) continue;
    if (op.args[i].type == ArgType::Bool ? !args[i].b : args[i].d == 0) return false;
  }
  return true;
}

const Level* drawing_level(const OpInfo& op, std::span<const Value> args) {
  const Level* level = nullptr;
  if (draws(op, args))
    for (const Level& l : levels())
      if (l.kind == Kind::Vmap && l.id < of_thread->drawing) level = &l;
  return level;
}

void vmap_call(const OpInfo& op, std::span<Value> args, Result& out, const Level& level) {
  Call c(op, args, level);
  if (draws(op, args) && level.id < of_thread->drawing) return random_call(c, out);
  if (writes(op)) {
    const Tensor self = *args[0].tensor;
    WT_CHECK(c.is_mapped(self), OpaqueError,
             "vmap: inplace arithmetic(self, *extra_args) is not possible: ", op.name,
             " would write values that differ between the mapped calls into a tensor that they share; use "
             "the form that is not in place");
    if (!by_rule(c, out)) {
      Call again(op, args, level);
      one_by_one(again, out);
    }
    if (out.kind == Result::Kind::Tensor) out.tensor = self;
    return;
  }
  if (by_rule(c, out) || composed(op, args, out)) return;
  warn_of_loop(op);
  Call again(op, args, level);
  one_by_one(again, out);
}

}  // namespace warptape::transforms
