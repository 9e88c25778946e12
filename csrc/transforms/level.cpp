#include "transforms/level.h"

#include "ops/view/view.h"

namespace warptape::transforms {
namespace {

struct Transforms {
  std::deque<Level> stack;  // levels stay in place while others come and go
  int64_t next_id = 0;
  bool forward_grad = true;
  bool inside = false;  // of a call that is worked off
};
PerThread<Transforms> of_thread;

struct Held : Wrapper {
  const TensorImpl* self = nullptr;  // aliases of the storage stand for nothing
};
void drop(void* w) { delete static_cast<Held*>(w); }

void stand_in(TensorImpl& t, Ref<Storage> storage, Held* w) {
  w->self = &t;
  t.set_storage(std::move(storage), t.dtype);
}

Tensor wrapped(Held* w, IntList sizes, IntList strides) {
  const Tensor& value = w->value;
  Ref<Storage> storage = Storage::opaque(value.device(), drop, w);
  Tensor t(Ref<TensorImpl>::adopt(
      new TensorImpl(std::move(storage), value.dtype(), Shape(sizes), Shape(strides), 0)));
  w->self = t.impl();
  // Formulas of gradients compose themselves of ops where they are to be recorded, and so they do here.
  if (is_differentiable(value.dtype())) make_meta(t).requires_grad = true;
  return t;
}

const Storage* memory_of(const Tensor& t) {
  const Wrapper* w = wrapper_of(t);
  return w ? memory_of(w->value) : &t.storage();
}

bool stands_at(const Tensor& t, const Level& level) {
  const Wrapper* w = wrapper_of(t);
  return w && (w->level == level.id || stands_at(w->value, level));
}

// The in-place form of a view op: the wrapper takes over what stands for the view.
bool view_in_place(const OpInfo& op, std::span<Value> args, Result& out) {
  if (!op.inplace_of || (op.flags & kRandom) || op.batching == Batching::Pointwise) return false;
  const Tensor self = *args[0].tensor;
  Wrapper* w = wrapper_of(self);
  if (!w) return false;
  Result view;
  op.inplace_of->call(*op.inplace_of, args.data(), view);
  const Wrapper* of = wrapper_of(view.tensor);
  if (!of || of->level != w->level || memory_of(view.tensor) != memory_of(self)) return false;
  *w = *of;
  self->set_geometry(view.tensor.sizes(), view.tensor.strides(), 0);
  out.kind = Result::Kind::Tensor;
  out.tensor = self;
  return true;
}

// Works off the innermost level among the arguments.
bool transform(const OpInfo& op, std::span<Value> args, Result& out, Keep&) {
  Restore<uint32_t> on(own_thread_state().dispatch, thread_state().dispatch | kTransform);
  int64_t top = -1;
  each_tensor(op, args, [&](const Tensor& t) {
    if (!of_thread->inside) check_not_stale(t);
    top = std::max(top, level_of(t));
  });
  const Level* level = find_level(top);
  if (top < 0) level = drawing_level(op, args);
  if (!level) return false;
  Restore<bool> call(of_thread->inside, true);
  if (view_in_place(op, args, out)) return true;
  (level->kind == Kind::Vmap ? vmap_call : jvp_call)(op, args, out, *level);
  return true;
}

}  // namespace

const std::deque<Level>& levels() { return of_thread->stack; }

int64_t push_level(Kind kind, int64_t size, Randomness randomness) {
  Transforms& t = *of_thread;
  t.stack.push_back({kind, t.next_id++, size, randomness, {}});
  own_thread_state().dispatch |= kTransform;
  return t.stack.back().id;
}

void pop_level(int64_t id) {
  std::deque<Level>& stack = of_thread->stack;
  WT_CHECK(!stack.empty() && stack.back().id == id, Error,
           "function transforms must end in the order opposite to that in which they began");
  stack.pop_back();
  if (stack.empty()) own_thread_state().dispatch &= ~kTransform;
}

bool forward_grad_enabled() { return of_thread->forward_grad; }
bool set_forward_grad(bool on) { return std::exchange(of_thread->forward_grad, on); }

const Level* find_level(int64_t id) {
  for (const Level& l : of_thread->stack)
    if (l.id == id) return &l;
  return nullptr;
}

Wrapper* wrapper_of(const Tensor& t) {
  if (!t.storage().is_opaque()) return nullptr;
  auto* w = static_cast<Held*>(t.storage().context_of(drop));
  return w && w->self == t.impl() ? w : nullptr;
}

Tensor batched(const Tensor& value, int64_t level) {
  return wrapped(new Held{{level, value, {}}}, IntList(value.sizes()).subspan(1),
                 IntList(value.strides()).subspan(1));
}

Tensor dual(const Tensor& primal, const Tensor& tangent, int64_t level) {
  if (!tangent.defined()) return primal;
  return wrapped(new Held{{level, primal, tangent}}, primal.sizes(), primal.strides());
}

void make_dual(const Tensor& t, const Tensor& tangent, int64_t level) {
  Tensor value;
  if (const Wrapper* held = wrapper_of(t)) {
    value = wrapped(new Held{*held}, t.sizes(), t.strides());
  } else {
    value = alias(t);
    value->extra = std::move(t->extra);
  }
  auto* w = new Held{{level, value, tangent}};
  stand_in(*t.impl(), Storage::opaque(value.device(), drop, w), w);
  make_meta(t).requires_grad = true;
  for (Level& l : of_thread->stack)
    if (l.id == level) l.made_dual.push_back(value);
}

void check_not_stale(const Tensor& t) {
  for (const Level& level : of_thread->stack) {
    if (level.made_dual.empty() || stands_at(t, level)) continue;
    for (const Tensor& made : level.made_dual)
      WT_CHECK(memory_of(made) != memory_of(t), OpaqueError,
               "jvp: a view was made before an in-place operation gave its base a derivative, which the view "
               "does not have; make the view afterwards");
  }
}

Tensor value_at(const Tensor& t, const Level& level) {
  const Wrapper* w = wrapper_of(t);
  if (w && w->level == level.id) return w->value;
  if (w && w->level > level.id) {
    if (find_level(w->level) && find_level(w->level)->kind == Kind::Jvp)
      return dual(value_at(w->value, level), w->tangent.defined() ? value_at(w->tangent, level) : Tensor(),
                  w->level);
    return batched(ops::transpose(value_at(w->value, level), 0, 1), w->level);
  }
  Shape sizes{level.size};
  for (int64_t n : t.sizes()) sizes.push_back(n);
  return ops::expand(t, sizes);
}

Tensor batched_at(const Tensor& value, const Level& level) {
  const Wrapper* w = wrapper_of(value);
  if (!w || w->level < level.id) return batched(value, level.id);
  const Level* above = find_level(w->level);
  if (above && above->kind == Kind::Jvp)
    return dual(batched_at(w->value, level), w->tangent.defined() ? batched_at(w->tangent, level) : Tensor(),
                w->level);
  return batched(batched_at(ops::transpose(w->value, 0, 1), level), w->level);
}

Tensor part_at(const Tensor& t, bool tangent, const Level& level) {
  const Wrapper* w = wrapper_of(t);
  if (!w || w->level < level.id) return tangent ? Tensor() : t;
  if (w->level == level.id) return tangent ? w->tangent : w->value;
  Tensor value = part_at(w->value, tangent, level);
  const Tensor along = w->tangent.defined() ? part_at(w->tangent, tangent, level) : Tensor();
  if (!value.defined() && along.defined()) value = zeros(along.sizes(), options_of(along));
  if (!value.defined()) return value;
  const Level* above = find_level(w->level);
  return above && above->kind == Kind::Vmap ? batched(value, w->level) : dual(value, along, w->level);
}

Tensor dual_at(const Tensor& primal, const Tensor& tangent, const Level& level) {
  if (!tangent.defined()) return primal;
  const Level* above = find_level(std::max(level_of(primal), level_of(tangent)));
  if (!above || above->id <= level.id) return dual(primal, tangent, level.id);
  if (above->kind == Kind::Vmap)
    return batched(dual_at(value_at(primal, *above), value_at(tangent, *above), level), above->id);
  const Tensor first = dual_at(part_at(primal, false, *above), part_at(tangent, false, *above), level);
  const Tensor a = part_at(primal, true, *above), b = part_at(tangent, true, *above);
  if (!a.defined() && !b.defined()) return first;
  return dual(first, dual_at(a.defined() ? a : zeros(primal.sizes(), options_of(primal)), b, level),
              above->id);
}

bool recorded(const Tensor& t) {
  const Wrapper* w = t.defined() ? wrapper_of(t) : nullptr;
  return w ? recorded(w->value) || recorded(w->tangent) : requires_grad(t);
}

void init() {
  set_interceptor(kTransform, transform);
  init_tape();
}

}  // namespace warptape::transforms
