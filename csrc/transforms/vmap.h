// One op of a mapped function, and the rules that call it once for all.
#pragma once

#include "transforms/level.h"

namespace warptape::transforms {

struct Operand {
  size_t arg;
  Tensor tensor;  // as the function sees it
  bool mapped;    // has the mapped dim
};

// The arguments, which a rule changes into those of one call with the mapped dim in front.
struct Call {
  Call(const OpInfo& op, std::span<const Value> args, const Level& level);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool is_mapped(const Tensor& t) const;
  int64_t mapped_count() const;
  Tensor value(const Operand& t, int64_t ndim) const;
  void set(size_t arg, Tensor t);
  void set(size_t arg, Shape ints);
  void run(Result& out);   // calls the op and wraps what it returns
  void wrap(Result& out);  // OpaqueError for results that are no tensors

  const OpInfo& op;
  const Level& level;
  std::vector<Value> values;
  std::vector<Operand> tensors;  // without those in lists
  bool list_mapped = false;      // whether a list has a mapped tensor
  std::deque<Tensor> kept;
  std::deque<Shape> shapes;
};

// Runs the op's own code on the wrappers, which works where it is composed of other ops and loses nothing.
bool composed(const OpInfo& op, std::span<const Value> args, Result& out);
// `draws`: every call draws the same from it.
void one_by_one(Call& c, Result& out, Generator* draws = nullptr);

}  // namespace warptape::transforms
