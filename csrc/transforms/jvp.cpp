// Forward-mode derivatives of one op: linear ops are applied to the tangents, composed ones to the dual
// numbers themselves, and for all others the product with the Jacobian is found from the op's backward. Of an
// elementwise op, whose Jacobian is diagonal, that is the backward itself; else the derivative of the
// backward, which is linear in the gradient it is given (Townsend, "A new trick for calculating Jacobian
// vector products", 2017).
#include <unordered_set>

#include "ops/elementwise/elementwise.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "transforms/vmap.h"

namespace warptape::transforms {
namespace {

using ops::operator+;
using Tensors = std::vector<Tensor>;

template <class F>
void each_result(Result& r, F&& see) {
  if (r.tensor.defined()) see(r.tensor);
  for (Tensor& t : r.tensors)
    if (t.defined()) see(t);
}

Tensor tangent_of(const Tensor& t, const Level& level) {
  return level_of(t) == level.id ? wrapper_of(t)->tangent : Tensor();
}
Tensor primal_of(const Tensor& t, const Level& level) {
  return level_of(t) == level.id ? wrapper_of(t)->value : t;
}
const Tensor& without_levels(const Tensor& t) {
  const Wrapper* w = wrapper_of(t);
  return w ? without_levels(w->value) : t;
}
// Where a formula takes the logarithm of the gradient, 0 is no place to differentiate it.
Tensor ones_of(const Tensor& t) { return full(t.sizes(), 1.0, options_of(t)); }

// Whether y lies in the memory of an argument: of its primal, or of a tangent that is a view where the primal
// is one.
bool shares_memory(const OpInfo& op, std::span<const Value> args, const Tensor& y, const Level& level,
                   bool tangent) {
  bool shares = false;
  each_tensor(op, args, [&](const Tensor& t) {
    const Tensor part = tangent ? tangent_of(t, level) : primal_of(t, level);
    if (tangent && level_of(t) == level.id && wrapper_of(t)->tangent_apart) return;
    shares |= part.defined() && part->storage == y->storage;
  });
  return shares;
}

void primal_call(const OpInfo& op, std::span<const Value> args, Result& out, const Level& level) {
  Replaced primals(op, args, [&](const Tensor& t) { return primal_of(t, level); });
  op.call(op, primals.values.data(), out);
  if (op.args[0].marks & kWritten) out.tensor = *args[0].tensor;
}

void linear_call(const OpInfo& op, std::span<const Value> args, Result& out, const Level& level) {
  Replaced primals(op, args, [&](const Tensor& t) { return primal_of(t, level); });
  Replaced tangents(op, args, [&](const Tensor& t) {
    if (!is_differentiable(t.dtype())) return t;
    Tensor along = tangent_of(t, level);
    return along.defined() ? along : zeros(t.sizes(), options_of(t));
  });
  Result along;
  op.call(op, primals.values.data(), out);
  op.call(op, tangents.values.data(), along);
  auto join = [&](Tensor& y, const Tensor& tangent) {
    if (!y.defined()) return;
    const bool apart =
        shares_memory(op, args, y, level, false) && !shares_memory(op, args, tangent, level, true);
    y = dual(y, tangent, level.id);
    if (apart && level_of(y) == level.id) wrapper_of(y)->tangent_apart = true;
  };
  join(out.tensor, along.tensor);
  for (size_t i = 0; i < out.tensors.size(); ++i) join(out.tensors[i], along.tensors[i]);
}

// Whether t or a part of it stands at `level`.
bool reaches(const Tensor& t, const Level& level) {
  const Wrapper* w = t.defined() ? wrapper_of(t) : nullptr;
  return w && (w->level == level.id || reaches(w->value, level) || reaches(w->tangent, level));
}

// The levels outside of `level` that the arguments stand at. Not all there are: an op within the gradient of
// a vmap's tensors gets their values, which must not be mapped again. A random op draws for every level.
LevelList levels_outside(const OpInfo& op, std::span<const Value> args, const Level& level) {
  LevelList out;
  for (const Level& l : levels()) {
    if (l.id == level.id) break;
    bool present = op.flags & kRandom;
    each_tensor(op, args, [&](const Tensor& t) { present |= reaches(t, l); });
    if (present) out.push_back(&l);
  }
  return out;
}

// One op on variables, and what its results come to along the tangents.
struct Recording {
  const OpInfo& op;
  const Level& level;
  bool create_graph;
  LevelList outside;
  Tensors variables, tangents;

  Tensor variable(const Tensor& t, const Shape* sizes) {
    Tensor primal = primal_of(t, level), along = tangent_of(t, level);
    if (!along.defined()) return primal;
    if (sizes) primal = ops::expand(primal, *sizes), along = ops::expand(along, *sizes);
    variables.push_back(fresh_variable(primal, outside));
    tangents.push_back(along);
    return variables.back();
  }
  Tensor finished(const Tensor& t) const { return create_graph ? t : without_history(t); }

  // Every variable has the shape of y.
  Tensor elementwise(const Tensor& y) {
    Tensor sum;
    for (size_t i = 0; i < variables.size(); ++i) {
      Tensor part =
          gradients({y}, {variables[i]}, {ops::cast(tangents[i], y.dtype())}, create_graph, true)[0];
      if (part.defined()) sum = sum.defined() ? sum + part : part;
    }
    return sum.defined() ? ops::cast(sum, y.dtype()) : sum;
  }
  Tensor by_backward_twice(const Tensor& y) {
    GradMode on(true);
    Tensor weight = fresh_variable(ones_of(y), outside);
    Tensors products = gradients({y}, variables, {weight}, true, true), found, along;
    for (size_t i = 0; i < products.size(); ++i) {
      if (!products[i].defined() || !recorded(products[i])) continue;
      found.push_back(products[i]);
      along.push_back(ops::cast(tangents[i], products[i].dtype()));
    }
    if (found.empty()) return Tensor();
    return gradients(found, {weight}, along, create_graph, true)[0];
  }
};

bool has_mixed_dtypes(const OpInfo& op, std::span<const Value> args) {
  std::optional<DType> seen;
  bool mixed = false;
  each_tensor(op, args, [&](const Tensor& t) {
    if (!is_differentiable(t.dtype())) return;
    mixed |= (seen && *seen != t.dtype()) || is_complex(t.dtype());
    seen = t.dtype();
  });
  return mixed;
}

void recorded_call(const OpInfo& op, std::span<const Value> args, Result& out, const Level& level) {
  bool of_tape = false;
  each_tensor(op, args, [&](const Tensor& t) { of_tape |= recorded(t); });
  Recording r{op, level, thread_state().grad_mode && of_tape, levels_outside(op, args, level), {}, {}};
  const bool writes = !op.args.empty() && (op.args[0].marks & kWritten);
  std::optional<Shape> sizes;
  if (op.batching == Batching::Pointwise && !writes && !has_mixed_dtypes(op, args)) {
    Shape joined;
    each_tensor(op, args, [&](const Tensor& t) { joined = broadcast_shapes(joined, t.sizes(), op.name); });
    sizes = joined;
  }
  {
    GradMode on(true);
    const Tensor* self = writes ? args[0].tensor : nullptr;
    Replaced variables(op, args, [&](const Tensor& t) {
      Tensor v = r.variable(t, sizes ? &*sizes : nullptr);
      if (!self || !t.same(*self)) return v;
      return ops::clone(level_of(t) == level.id ? v : fresh_variable(v, r.outside));
    });
    op.call(op, variables.values.data(), out);
  }
  each_result(out, [&](Tensor& y) {
    const bool differentiable = is_differentiable(y.dtype()) && recorded(y);
    Tensor along;
    if (differentiable)
      along =
          sizes && y.sizes() == *sizes && !is_complex(y.dtype()) ? r.elementwise(y) : r.by_backward_twice(y);
    const bool apart = shares_memory(op, args, y, level, false);
    y = dual(r.finished(y), along.defined() ? r.finished(along) : along, level.id);
    if (apart && level_of(y) == level.id) wrapper_of(y)->tangent_apart = true;
  });
}

// What an op writes is computed beside it, and then written into both parts of the dual number.
void write_result(const OpInfo& op, std::span<const Value> args, Result& out, const Level& level) {
  const Tensor self = *args[0].tensor, y = out.tensor;
  Tensor along = tangent_of(y, level);
  if (level_of(self) != level.id) {
    WT_CHECK(!along.defined() || !is_view(without_levels(self)), OpaqueError,
             "jvp: an in-place operation would write a derivative into a view of a tensor that has none");
    Result primal;
    primal_call(op, args, primal, level);  // y may differ between mapped calls that share the primal
    if (along.defined()) make_dual(self, along, level.id);
  } else {
    Wrapper* w = wrapper_of(self);
    WT_CHECK(!w->tangent_apart, OpaqueError,
             "jvp: an in-place operation on a view whose derivative is no view; use the form that is not in "
             "place");
    ops::copy_(w->value, primal_of(y, level), false);
    ops::copy_(w->tangent, along.defined() ? along : zeros(self.sizes(), options_of(w->tangent)), false);
  }
  out.tensor = self;
}

}  // namespace

void jvp_call(const OpInfo& op, std::span<Value> args, Result& out, const Level& level) {
  if (!forward_grad_enabled()) return primal_call(op, args, out, level);
  if (op.args[0].marks & kWritten) {
    recorded_call(op, args, out, level);
    if (out.kind == Result::Kind::Tensor) write_result(op, args, out, level);
    return;
  }
  if (op.flags & kLinear) return linear_call(op, args, out, level);
  if (op.batching != Batching::Pointwise && composed(op, args, out)) {
    bool lost = false;
    each_result(out, [&](const Tensor& y) {
      lost |= is_differentiable(y.dtype()) && !part_at(y, true, level).defined();
    });
    if (!lost) return;
    out = {};
  }
  recorded_call(op, args, out, level);
}

}  // namespace warptape::transforms
