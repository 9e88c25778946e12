// Function transforms: vmap and jvp as levels that nest, and the tensors that stand for others inside of one.
//
// A transform pushes a level and calls the function on wrappers: opaque tensors with the shape that the
// function is to see. An op that gets wrappers is intercepted (DispatchBit kTransform) and works off the
// innermost level among them: vmap calls it on the values, which have the mapped dim in front (vmap.cpp); jvp
// calls it on the primals and finds the tangent of the result (jvp.cpp). Either calls ops again, on what is
// left of the wrappers, so that levels nest in any order. The tape lies below all levels: it records what
// happens to plain tensors (grad.cpp).
#pragma once

#include "op/op.h"

namespace warptape::transforms {

enum class Kind : uint8_t { Vmap, Jvp };
enum class Randomness : uint8_t { Error, Different, Same };

struct Level {
  Kind kind;
  int64_t id;
  int64_t size = 0;  // of vmap: how many calls of the function it stands for
  Randomness randomness = Randomness::Error;
  std::vector<Tensor> made_dual;  // of jvp: what got a tangent in place. Older views of its memory have none
};

using LevelList = std::vector<const Level*>;

struct Wrapper {
  int64_t level;
  Tensor value;                // vmap: with the mapped dim in front; jvp: the primal
  Tensor tangent;              // jvp; undefined: zero
  bool tangent_apart = false;  // the primal is a view of another's, and the tangent none: not to be written
};

// The levels of this thread, innermost last.
WT_API const std::deque<Level>& levels();
WT_API int64_t push_level(Kind kind, int64_t size, Randomness randomness);
WT_API void pop_level(int64_t id);  // RuntimeError unless it is the innermost
const Level* find_level(int64_t id);
// While it is off, ops see the primals of dual numbers alone. Of this thread.
WT_API bool forward_grad_enabled();
WT_API bool set_forward_grad(bool on);  // what it was

// What t stands for, or null for a plain tensor.
WT_API Wrapper* wrapper_of(const Tensor& t);
inline int64_t level_of(const Tensor& t) {
  const Wrapper* w = t.defined() ? wrapper_of(t) : nullptr;
  return w ? w->level : -1;
}
WT_API Tensor batched(const Tensor& value, int64_t level);
WT_API Tensor dual(const Tensor& primal, const Tensor& tangent, int64_t level);
// Turns t itself, a plain tensor, into a dual number of its own value: for what is written in place.
void make_dual(const Tensor& t, const Tensor& tangent, int64_t level);
// OpaqueError if t has no tangent at a level where the base that it is a view of got one since.
WT_API void check_not_stale(const Tensor& t);

// t as `level`, a vmap, calls ops on it: the mapped dim in front, repeated where t has none. And back.
WT_API Tensor value_at(const Tensor& t, const Level& level);
Tensor batched_at(const Tensor& value, const Level& level);
// The same for `level`, a jvp: one of the two parts (the tangent undefined where there is none), and both as
// one.
Tensor part_at(const Tensor& t, bool tangent, const Level& level);
Tensor dual_at(const Tensor& primal, const Tensor& tangent, const Level& level);

// Whether the tape records what t stands for.
WT_API bool recorded(const Tensor& t);

// The arguments of an op with every tensor replaced by what `part` makes of it.
struct Replaced {
  std::vector<Value> values;
  std::deque<Tensor> kept;
  std::deque<std::vector<Tensor>> lists;
  std::deque<std::vector<OptTensor>> optionals;

  template <class F>
  Replaced(const OpInfo& op, std::span<const Value> args, F&& part) : values(args.begin(), args.end()) {
    for (size_t i = 0; i < values.size(); ++i) {
      Value& v = values[i];
      if (!v.present) continue;
      if (op.args[i].type == ArgType::Tensor && v.tensor->defined())
        v.tensor = &kept.emplace_back(part(*v.tensor));
      if (op.args[i].type == ArgType::TensorList) {
        auto& list = lists.emplace_back();
        for (const Tensor& t : ArgTraits<TensorList>::unbox(v)) list.push_back(part(t));
        v.list = {list.data(), list.size()};
      }
      if (op.args[i].type == ArgType::OptTensorList) {
        auto& list = optionals.emplace_back();
        for (const OptTensor& t : ArgTraits<std::span<const OptTensor>>::unbox(v))
          list.push_back(t && t->defined() ? OptTensor(part(*t)) : t);
        v.list = {list.data(), list.size()};
      }
    }
  }
};

// The innermost vmap whose calls an op without wrappers is to give draws; null for ops that draw nothing.
const Level* drawing_level(const OpInfo& op, std::span<const Value> args);
void vmap_call(const OpInfo& op, std::span<Value> args, Result& out, const Level& level);
void jvp_call(const OpInfo& op, std::span<Value> args, Result& out, const Level& level);

// ---- gradients -----------------------------------------------------------------------------------------

// t as a variable of its own below the levels, still part of what recorded it; of a vmap among the levels
// `within`, the outermost first, one for each of the mapped calls.
WT_API Tensor fresh_variable(const Tensor& t, std::span<const Level* const> within);
// The products of `vectors` with the Jacobians of `outputs` by `inputs`, undefined where nothing flowed. Any
// of them may be wrappers.
WT_API std::vector<Tensor> gradients(std::vector<Tensor> outputs, std::vector<Tensor> inputs,
                                     std::vector<Tensor> vectors, bool create_graph, bool retain_graph);
// t without history.
WT_API Tensor without_history(const Tensor& t);

WT_API void init();  // once: sets the interceptor and the tape's hooks
void init_tape();

}  // namespace warptape::transforms
