// How a unary elementwise op is defined: WT_UNARY gives the function, its in-place twin and the backward.
#pragma once

#include "op/forms.h"
#include "ops/kernel_inputs.h"

namespace warptape::ops {

enum class Saves : uint8_t { Nothing, Input, Output };

struct UnaryDef {
  const char* name;
  const char* inplace_name;
  ResultRule rule;
  Saves saves;
  NodeType type;
  ElementwiseSlot slot;
  void (*check)(const char* op, const Tensor& x) = nullptr;
};

template <UnaryDef& D>
Tensor unary_impl(const Tensor& x) {
  if (D.check) D.check(D.name, x);
  Tensor out = pointwise(D.name, D.slot, D.rule, {x});
  if (needs_grad(x)) {
    Ref<Node> n = record(D.type, x);
    n->template emplace<bool>(false);
    if (D.saves == Saves::Input) n->save(x);
    set_history(out, n);
    if (D.saves == Saves::Output) n->save_output(out);
  }
  return out;
}

// In place on a view, the output's history runs through the base; there the input is kept and the output
// computed anew.
template <UnaryDef& D>
Tensor unary_inplace(const Tensor& x) {
  if (D.check) D.check(D.inplace_name, x);
  Ref<Node> node;
  inplace(D.inplace_name, D.slot, D.rule, x, {x}, [&] {
    node = record(D.type, x);
    const bool keep_input = D.saves == Saves::Input || (D.saves == Saves::Output && is_view(x));
    node->template emplace<bool>(keep_input && D.saves == Saves::Output);
    if (keep_input) node->save(clone_with_history(x));
    return node;
  });
  if (node && D.saves == Saves::Output && !node->template data<bool>()) node->save_output(x);
  return x;
}

// What the backward formula calls s: the saved input or output.
template <UnaryDef& D>
Tensor saved_value(Node& n) {
  if (D.saves == Saves::Nothing) return Tensor();
  return n.data<bool>() ? unary_impl<D>(n.saved(0)) : n.saved(0);
}

// A fused backward kernel serves where no graph of the gradient is wanted; else the differentiable
// composition.
template <class F>
Tensor fused(const char* name, ElementwiseSlot& slot, const Tensor& g, const Tensor& s, F&& composed) {
  return needs_grad(g, s) || is_complex(g.dtype()) ? composed()
                                                   : pointwise(name, slot, ResultRule::Same, {g, s});
}

inline Tensor no_gradient(const Tensor& g) { return zeros(g.sizes(), options_of(g)); }

inline constexpr OpFacts kBothOut = kFunction | kMethod | kOut | kPointwise;

// In the last argument, the gradient of the input, g is the gradient of the output and s what was saved.
#define WT_UNARY_BACKWARD(NAME, NODE, RULE, SAVES, CHECK, ...)                                           \
  namespace {                                                                                            \
  extern UnaryDef NAME##_def;                                                                            \
  void NAME##_backward(Node& n, Gradients& grads) {                                                      \
    auto formula = []([[maybe_unused]] const Tensor& g, [[maybe_unused]] const Tensor& s) -> Tensor {    \
      return __VA_ARGS__;                                                                                \
    };                                                                                                   \
    const Tensor &g = grads[0], s = saved_value<NAME##_def>(n);                                          \
    /* The convention is that of conjugate derivatives: g times the conjugate of f'(s). */               \
    grads.set(0, is_complex(g.dtype()) ? conjugate(formula(conjugate(g), s)) : formula(g, s));           \
  }                                                                                                      \
  UnaryDef NAME##_def{                                                                                   \
      #NAME, #NAME "_", ResultRule::RULE, Saves::SAVES, {NODE, NAME##_backward}, ElementwiseSlot{#NAME}, \
      CHECK};                                                                                            \
  }
// FACTS: what the declaration states beside the places, or kNoFacts. An op that C++ calls from other files is
// declared in elementwise.h, too.
inline constexpr OpFacts kNoFacts;
#define WT_UNARY(NAME, NODE, RULE, SAVES, FACTS, DOC, ...)                                                 \
  WT_UNARY_BACKWARD(NAME, NODE, RULE, SAVES, nullptr, __VA_ARGS__)                                         \
  const Op<Tensor(const Tensor&)> NAME{#NAME, unary_impl<NAME##_def>, kBothOut | (FACTS), {"input"}, DOC}; \
  const Op<Tensor(const Tensor&)> NAME##_ =                                                                \
      in_place_of(NAME, unary_inplace<NAME##_def>, kMethod | kFunction, #NAME " in place.")

}  // namespace warptape::ops
