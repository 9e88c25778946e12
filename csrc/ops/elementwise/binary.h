// How a differentiable binary elementwise op is defined over tensors and numbers.
#pragma once

#include "ops/elementwise/unary.h"

namespace warptape::ops {

struct BinaryDef {
  const char* name;
  const char* inplace_name;
  ResultRule rule;
  NodeType type;  // backward null: no gradient flows; in place zeros do, for what was there is overwritten
  ElementwiseSlot slot;
  bool divides = false;  // integers raise on a zero divisor
  void (*check)(const char* op, DType promoted) = nullptr;
};

// An operand as the tape keeps it: numbers as 0-dim tensors, which leave the result's dtype alone.
inline Tensor as_operand(const Tensor& t) { return t; }
inline Tensor as_operand(const Scalar& s) {
  return scalar_tensor(s, s.is_complex() ? DType::Complex128 : DType::Float64);
}

template <class A, class B>
Ref<Node> record_binary(const NodeType& type, const A& a, const B& b) {
  Ref<Node> n = record(type, a, b);
  n->save(as_operand(a));
  n->save(as_operand(b));
  return n;
}

// Runs `launch` with a place for the kernel's report of a zero divisor.
template <class F>
auto checked_division(const char* op, bool divides, F&& launch) {
  kernels::IndexFault fault;
  auto out = launch(divides ? &fault : nullptr);
  WT_CHECK(!fault.set, Error, op, ": ZeroDivisionError: an integer was divided by zero");
  return out;
}

template <class A, class B>
void check_binary(const BinaryDef& d, const char* name, const A& a, const B& b) {
  if (!d.check) return;
  const PointwiseInput inputs[] = {a, b};
  try {
    d.check(name, promoted_dtype(inputs));
  } catch (const DtypeError&) {
    common_shape(name, inputs);  // of two mistakes, the shapes are named
    throw;
  }
}

template <BinaryDef& D, class A, class B>
Tensor binary_impl(const A& a, const B& b) {
  check_binary(D, D.name, a, b);
  Tensor out = checked_division(D.name, D.divides, [&](kernels::IndexFault* fault) {
    return pointwise(D.name, D.slot, D.rule, {a, b}, fault);
  });
  if (D.type.backward && needs_grad(a, b)) set_history(out, record_binary(D.type, a, b));
  return out;
}

inline void overwritten_backward(Node&, Gradients& g) {
  for (size_t i = 0; i < g.inputs(); ++i)
    if (g.wants(i)) g.set(i, no_gradient(g[0]));
}

template <BinaryDef& D, class B>
Tensor binary_inplace(const Tensor& a, const B& b) {
  static const NodeType kOverwritten{D.type.name, overwritten_backward};
  check_binary(D, D.inplace_name, a, b);
  const bool recorded = (D.type.backward || is_differentiable(a.dtype())) && needs_grad(a, b);
  check_inplace(a, D.inplace_name, recorded);
  Ref<Node> n;
  if (recorded && !D.type.backward) {
    n = record(kOverwritten, a, b);
  } else if (recorded) {
    n = record(D.type, a, b);
    n->save(clone_with_history(a));
    if constexpr (std::is_same_v<B, Tensor>)
      n->save(b.same(a) ? clone_with_history(b) : b);
    else
      n->save(as_operand(b));
  }
  checked_division(D.inplace_name, D.divides, [&](kernels::IndexFault* fault) {
    pointwise_into(D.inplace_name, D.slot, D.rule, a, {a, b}, fault);
    return 0;
  });
  if (n) rebase_history(a, n);
  return a;
}

inline void check_no_bool(const char* op, DType promoted) {
  WT_CHECK(promoted != DType::Bool, DtypeError, op,
           ": not implemented for bool; convert to an integer dtype");
}

// In GRAD_A and GRAD_B, the gradients of the operands a and b, g is the gradient of the output.
#define WT_BINARY_DEF(NAME, NODE, RULE, DIVIDES, CHECK, GRAD_A, GRAD_B)                                     \
  namespace {                                                                                               \
  void NAME##_backward(Node& n, Gradients& grads) {                                                         \
    [[maybe_unused]] const Tensor g = conjugate(grads[0]), a = n.saved(0), b = n.saved(1);                  \
    if (grads.wants(0)) grads.set(0, conjugate(GRAD_A));                                                    \
    if (grads.wants(1)) grads.set(1, conjugate(GRAD_B));                                                    \
  }                                                                                                         \
  BinaryDef NAME##_def{                                                                                     \
      #NAME, #NAME "_", ResultRule::RULE, {NODE, NAME##_backward}, ElementwiseSlot{#NAME}, DIVIDES, CHECK}; \
  }
// Without a gradient.
#define WT_BINARY_PLAIN(NAME, NODE, RULE, DIVIDES, CHECK)                                             \
  namespace {                                                                                         \
  BinaryDef NAME##_def{#NAME,   #NAME "_", ResultRule::RULE, {NODE, nullptr}, ElementwiseSlot{#NAME}, \
                       DIVIDES, CHECK};                                                               \
  }
// An op of two tensors, and its forms: in place, with a number second, that in place, with a number first.
#define WT_BINARY_TT(NAME, FACTS, DOC)                                                          \
  decltype(NAME) NAME {                                                                         \
    #NAME, binary_impl<NAME##_def, Tensor, Tensor>, kBothOut | (FACTS), {"input", "other"}, DOC \
  }
#define WT_BINARY_TT_(NAME)   \
  decltype(NAME##_) NAME##_ = \
      in_place_of(NAME, binary_inplace<NAME##_def, Tensor>, kMethod, #NAME " in place.")
#define WT_BINARY_TS(NAME) \
  decltype(NAME##_ts) NAME##_ts = overload_of(NAME, binary_impl<NAME##_def, Tensor, Scalar>)
#define WT_BINARY_TS_(NAME)         \
  decltype(NAME##_ts_) NAME##_ts_ = \
      in_place_of(NAME, binary_inplace<NAME##_def, Scalar>, kMethod, #NAME " in place.")
#define WT_BINARY_ST(NAME) \
  decltype(NAME##_st) NAME##_st = overload_of(NAME, binary_impl<NAME##_def, Scalar, Tensor>)

}  // namespace warptape::ops
