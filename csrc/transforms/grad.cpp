// Gradients by the tape, which lies below the levels, of wrappers.
#include "autograd/engine.h"
#include "autograd/inplace_view.h"
#include "ops/elementwise/elementwise.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "transforms/level.h"

namespace warptape::transforms {
namespace {

using ops::operator+;
using Tensors = std::vector<Tensor>;

// ---- of plain tensors ----------------------------------------------------------------------------------

Tensors run_on_tape(const Tensors& roots, const Tensors& seeds, const Tensors& wanted, bool create_graph,
                    bool retain_graph);

// What is plain below a jvp's level is linear in the gradients that come in.
Tensors run_for_both_parts(const Tensors& roots, const Tensors& seeds, const Tensors& wanted,
                           bool create_graph, const Level& level) {
  Tensors primals, ends, tangents;
  for (size_t i = 0; i < seeds.size(); ++i) {
    primals.push_back(part_at(seeds[i], false, level));
    const Tensor along = part_at(seeds[i], true, level);
    if (along.defined()) ends.push_back(roots[i]), tangents.push_back(along);
  }
  Tensors out = run_on_tape(roots, primals, wanted, create_graph, true);
  Tensors along = run_on_tape(ends, tangents, wanted, create_graph, true);
  for (size_t k = 0; k < out.size(); ++k) {
    if (!along[k].defined()) continue;
    if (!out[k].defined()) out[k] = zeros(along[k].sizes(), options_of(along[k]));
    out[k] = dual_at(out[k], along[k], level);
  }
  return out;
}

// Formulas made of ops take wrappers as gradients; the fused ones, which serve where no graph is made, do
// not. A formula that reads memory all the same is run once for each call of the innermost vmap, or for each
// part of the innermost jvp's dual numbers.
Tensors run_on_tape(const Tensors& roots, const Tensors& seeds, const Tensors& wanted, bool create_graph,
                    bool retain_graph) {
  int64_t top = -1;
  for (const Tensor& t : seeds) top = std::max(top, level_of(t));
  BackwardOptions options{retain_graph || top >= 0, create_graph || top >= 0, true, false};
  if (top < 0) return run_backward(roots, seeds, wanted, options);
  try {
    return run_backward(roots, seeds, wanted, options);
  } catch (const OpaqueError&) {
    const Level* level = find_level(top);
    if (!level) throw;
    if (level->kind == Kind::Jvp) return run_for_both_parts(roots, seeds, wanted, create_graph, *level);
    std::vector<Tensors> parts(wanted.size());
    for (int64_t i = 0; i < level->size; ++i) {
      Tensors seed;
      for (const Tensor& t : seeds) seed.push_back(ops::select(value_at(t, *level), 0, i));
      Tensors found = run_on_tape(roots, seed, wanted, create_graph, true);
      for (size_t k = 0; k < found.size(); ++k)
        parts[k].push_back(found[k].defined() ? found[k] : zeros(wanted[k].sizes(), options_of(wanted[k])));
    }
    Tensors out;
    for (const Tensors& p : parts) out.push_back(p.empty() ? Tensor() : batched_at(ops::stack(p, 0), *level));
    return out;
  }
}

Tensors plain_gradients(const Tensors& outputs, const Tensors& inputs, const Tensors& vectors,
                        bool create_graph, bool retain_graph) {
  Tensors roots, seeds, wanted, out(inputs.size());
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].defined() && vectors[i].defined() && requires_grad(outputs[i]))
      roots.push_back(outputs[i]), seeds.push_back(vectors[i]);
  std::vector<size_t> places;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (requires_grad(inputs[i])) wanted.push_back(inputs[i]), places.push_back(i);
  if (roots.empty() || wanted.empty()) return out;
  Tensors found = run_on_tape(roots, seeds, wanted, create_graph, retain_graph);
  for (size_t i = 0; i < places.size(); ++i)
    if (found[i].defined()) out[places[i]] = create_graph ? found[i] : without_history(found[i]);
  return out;
}

int64_t innermost(const Tensors& a, const Tensors& b) {
  int64_t top = -1;
  for (const Tensors* list : {&a, &b})
    for (const Tensor& t : *list) top = std::max(top, level_of(t));
  return top;
}

// ---- of a vmap's ---------------------------------------------------------------------------------------

Tensors batched_gradients(const Tensors& outputs, const Tensors& inputs, const Tensors& vectors,
                          bool create_graph, bool retain_graph, const Level& level) {
  Tensors outs, ins, given;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool mapped = level_of(outputs[i]) == level.id && vectors[i].defined();
    outs.push_back(mapped ? wrapper_of(outputs[i])->value : Tensor());
    given.push_back(mapped ? value_at(vectors[i], level) : Tensor());
  }
  for (const Tensor& t : inputs) {
    WT_CHECK(
        level_of(t) == level.id || !recorded(t), NotImplementedError,
        "vmap: a gradient within the mapped function by a tensor from outside of it; take torch.func.grad or "
        "vjp, whose inputs are variables of each call");
    ins.push_back(level_of(t) == level.id ? wrapper_of(t)->value : t);
  }
  Tensors found = gradients(outs, ins, given, create_graph, retain_graph);
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i].defined() && level_of(inputs[i]) == level.id) found[i] = batched_at(found[i], level);
  return found;
}

// ---- of dual numbers -----------------------------------------------------------------------------------

// Of outputs y + e y' and vectors v + e v' the products are v J + e (v' J + the gradient of v y').
Tensors dual_gradients(const Tensors& outputs, const Tensors& inputs, const Tensors& vectors,
                       bool create_graph, bool retain_graph, const Level& level) {
  Tensors primals, tangents, ins, given, directions;
  auto split = [&](const Tensor& t, Tensors& values, Tensors& along) {
    values.push_back(t.defined() ? part_at(t, false, level) : t);
    along.push_back(t.defined() ? part_at(t, true, level) : t);
  };
  for (const Tensor& t : outputs) split(t, primals, tangents);
  for (const Tensor& t : vectors) split(t, given, directions);
  Tensors unused;
  for (const Tensor& t : inputs) split(t, ins, unused);
  Tensors first = gradients(primals, ins, given, create_graph, true);
  Tensors ends = primals, weights = directions;
  for (size_t i = 0; i < tangents.size(); ++i) ends.push_back(tangents[i]), weights.push_back(given[i]);
  Tensors second = gradients(ends, ins, weights, create_graph, retain_graph);
  for (size_t i = 0; i < first.size(); ++i) {
    if (second[i].defined() && !first[i].defined()) first[i] = zeros(ins[i].sizes(), options_of(ins[i]));
    first[i] = dual_at(first[i], second[i], level);
  }
  return first;
}

// ---- what the tape does with wrappers ------------------------------------------------------------------

Tensor reduce_to(const Tensor& t, IntList sizes) {
  const int64_t extra = t.ndim() - static_cast<int64_t>(sizes.size());
  Shape dims;
  for (int64_t d = 0; d < t.ndim(); ++d)
    if (d < extra || (sizes[static_cast<size_t>(d - extra)] == 1 && t.sizes()[d] != 1)) dims.push_back(d);
  Tensor out = dims.empty() ? t : ops::sum(t, IntList(dims), true, std::nullopt);
  return extra ? ops::reshape(out, sizes) : out;
}

// The region with a dim in front, on which it lies the same way.
Region with_dim(Region r, int64_t size) {
  auto front = [&](Shape& shape, int64_t n) {
    Shape out{n};
    for (int64_t x : shape) out.push_back(x);
    shape = out;
  };
  int64_t extent = 1;
  for (size_t i = 0; i < r.base_sizes.size(); ++i) extent += (r.base_sizes[i] - 1) * r.base_strides[i];
  const int64_t view_extent = r.dtype && *r.dtype != *r.base_dtype
                                  ? extent * int64_t(itemsize(*r.base_dtype)) / int64_t(itemsize(*r.dtype))
                                  : extent;
  front(r.base_sizes, size), front(r.base_strides, extent);
  front(r.sizes, size), front(r.strides, view_extent);
  return r;
}

Tensor take_region(const Tensor& base, const Region& r) {
  const Wrapper* w = wrapper_of(base);
  const Level* level = w ? find_level(w->level) : nullptr;
  WT_CHECK(level, OpaqueError, "a tensor that outlived its function transform");
  if (level->kind == Kind::Jvp)
    return dual(tape_take_region(w->value, r), tape_take_region(w->tangent, r), level->id);
  return batched(tape_take_region(w->value, with_dim(r, level->size)), level->id);
}

Tensor replace_region(const Tensor& base, const Tensor& part, const Region& r) {
  const Level* level = find_level(std::max(level_of(base), level_of(part)));
  WT_CHECK(level, OpaqueError, "a tensor that outlived its function transform");
  if (level->kind == Kind::Vmap) {
    auto value = [&](const Tensor& t) { return t.defined() ? value_at(t, *level) : t; };
    return batched(tape_replace_region(value(base), value(part), with_dim(r, level->size)), level->id);
  }
  auto one = [&](const Tensor& t, bool tangent) {
    if (level_of(t) == level->id) return tangent ? wrapper_of(t)->tangent : wrapper_of(t)->value;
    return tangent ? Tensor() : t;
  };
  return dual(tape_replace_region(one(base, false), one(part, false), r),
              tape_replace_region(one(base, true), one(part, true), r), level->id);
}

const OpaqueTape kTape{
    [](const Tensor& a, const Tensor& b) { return a + b; }, reduce_to,
    [](const Tensor& t, IntList sizes) { return ops::expand(t, sizes); },
    [](const Tensor& t, DType dtype) { return ops::cast(t, dtype); },
    // What stands for no level's tensor is one of Python's, which has what it stands for.
    [](const Tensor& t) { return wrapper_of(t) || has_dispatch(t) ? ops::detach(t) : alias(t); }, take_region,
    replace_region};

}  // namespace

void init_tape() { install(kTape); }

Tensor fresh_variable(const Tensor& t, std::span<const Level* const> within) {
  if (!is_differentiable(t.dtype())) return t;
  if (within.empty()) {
    if (requires_grad(t)) return ops::view_as(t, t);
    Tensor out = detach(t);
    set_requires_grad(out, true);
    return out;
  }
  const Level& level = *within.back();
  within = within.first(within.size() - 1);
  const Wrapper* w = wrapper_of(t);
  if (level.kind == Kind::Vmap) return batched(fresh_variable(value_at(t, level), within), level.id);
  if (w && w->level == level.id) return dual(fresh_variable(w->value, within), w->tangent, level.id);
  return fresh_variable(t, within);
}

std::vector<Tensor> gradients(std::vector<Tensor> outputs, std::vector<Tensor> inputs,
                              std::vector<Tensor> vectors, bool create_graph, bool retain_graph) {
  const int64_t top = innermost(outputs, inputs);
  if (top < 0) return plain_gradients(outputs, inputs, vectors, create_graph, retain_graph);
  const Level* level = find_level(top);
  WT_CHECK(level, OpaqueError, "gradient of a tensor that outlived its function transform");
  return (level->kind == Kind::Vmap ? batched_gradients : dual_gradients)(outputs, inputs, vectors,
                                                                          create_graph, retain_graph, *level);
}

Tensor without_history(const Tensor& t) {
  if (!recorded(t)) return t;
  const Wrapper* w = wrapper_of(t);
  if (!w) return detach(t);
  const Tensor value = without_history(w->value);
  const Level* level = find_level(w->level);
  if (level && level->kind == Kind::Vmap) return batched(value, w->level);
  return dual(value, w->tangent.defined() ? without_history(w->tangent) : Tensor(), w->level);
}

}  // namespace warptape::transforms
