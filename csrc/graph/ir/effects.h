// The side effects of a graph's calls: memory that they write and share, random numbers.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "graph/ir/graph.h"

namespace warptape::graph {

// Whether a result of the call may lie on the memory of one of its arguments.
WT_API bool may_share_memory(const Graph& g, const GraphCall& c);
// The values that the call changes in place.
WT_API std::vector<ValueId> written(const GraphCall& c);
// Whether the call, or one in its graphs, draws random numbers. Dropout in evaluation does not.
bool draws(const GraphCall& c);
// Whether the call only gives results that its arguments determine, and no sizes that other calls read.
bool is_pure(const GraphCall& c);

// The argument of that name, or null.
const Attr* argument(const GraphCall& c, std::string_view name);

// Which values of a graph may lie on the same memory, and where it is written.
//
// All inputs count as one memory, for a caller may pass a tensor twice; so do the results of one call.
// Values that lay on one memory when the graph was recorded do too, whatever the ops are.
class Effects {
 public:
  explicit Effects(const Graph& g);

  uint32_t memory(ValueId v) const;
  // Whether a call changes it, a later one than `call`, or how many before.
  bool is_written(ValueId v) const { return writes_before(v, SIZE_MAX) != 0; }
  bool is_written_after(ValueId v, size_t call) const {
    return writes_before(v, SIZE_MAX) != writes_before(v, call + 1);
  }
  size_t writes_before(ValueId v, size_t call) const;
  // Whether its memory is that of an input or a constant; whether the caller gets it.
  bool is_outside(ValueId v) const { return outside_[memory(v)]; }
  bool is_returned(ValueId v) const { return returned_[memory(v)]; }

  // Whether who reads `b`, which holds what `a` holds after `call`, may as well read `a`: neither changes
  // from then on, and no caller gets one tensor in two places or an argument of its own.
  bool may_stand_for(ValueId a, ValueId b, size_t call) const;
  // Records that it does.
  void stands_for(ValueId a, ValueId b);

 private:
  void join(ValueId a, ValueId b) { parent_[memory(a)] = memory(b); }
  void find_memories();
  void find_writes();

  const Graph& g_;
  mutable std::vector<uint32_t> parent_;
  std::vector<std::vector<size_t>> writes_;  // by memory: the calls, ascending
  std::vector<bool> outside_, returned_;     // by memory
};

// Which values may take part in a gradient: floating ones that follow from inputs or from constants that
// require one or may be made to (all but recorded tensors without a name).
std::vector<bool> differentiable(const Graph& g);

// Whether the constant is a tensor that the function found and no state_dict holds.
bool is_literal(const Graph& g, ValueId v);

}  // namespace warptape::graph
