// Passes over a graph: each makes it one that gives the same results by fewer calls or less memory.
//
// Results are the same to the bit, but for `fold_frozen_conv_bn` and `channels_last`. With `gradients` the
// gradients are too: what takes part in them is merged or left out only where the order in which gradients
// are added stays. Calls that write memory or draw random numbers stay, in order; verify_effects() checks
// that after each pass, and Graph::finish() that the graph is one.
#pragma once

#include <algorithm>
#include <span>

#include "graph/ir/graph.h"

namespace warptape::graph {

struct PassOptions {
  bool constant_propagation = true;  // calls on constants become their results
  bool peephole = true;              // calls that change nothing go: x * 1, two transpositions, ..
  bool cse = true;                   // calls that are the same become one
  bool dce = true;                   // calls whose results nobody reads go
  // Of a frozen graph: batch norm goes into weights; channels innermost; conv2d, + and relu in one call.
  bool fold_frozen_conv_bn = false, channels_last = false, fuse_frozen_conv_add_relu = false;
  bool reuse_memory = true;  // see GraphCall::in_place
  bool plan_memory = false;  // see Graph::run_memory
  // Parameters and buffers never change again: they are constants to all passes, without gradients.
  bool freeze = false;
  bool gradients = true;  // of inputs and parameters stay the same to the bit
};

// A pass: a file with its code and a row of passes().
struct Pass {
  const char* name;
  bool PassOptions::* wanted;
  size_t (*run)(Graph& g, const PassOptions& options);  // returns how many calls it took away or changed
  bool frozen = false;                                  // of frozen graphs alone
  bool repeats = false;         // with its neighbours, which make work for each other, until there is none
  bool changes_writes = false;  // takes away writes that nobody can see
};
// In their order.
WT_API std::span<const Pass> passes();

// By pass, how many calls it took away or changed.
using PassCounts = std::vector<size_t>;

// Runs the passes that are wanted, also in the graphs of control flow. Throws an Error where the verifier
// finds that a pass broke the graph.
WT_API PassCounts optimise(Graph& g, const PassOptions& options);

// Throws an Error that names the first call which writes memory or draws random numbers and is not in both
// graphs, in the same order. Values keep their numbers through all passes.
WT_API void verify_effects(const Graph& before, const Graph& after);

size_t propagate_constants(Graph& g, const PassOptions& options);
size_t peephole(Graph& g, const PassOptions& options);
size_t eliminate_common_subexpressions(Graph& g, const PassOptions& options);
// Constants with a name of a module stay, though no call reads them, unless the graph is frozen.
size_t eliminate_dead_code(Graph& g, const PassOptions& options = {});
size_t fold_frozen_conv_bn(Graph& g, const PassOptions& options = {});
size_t prefer_channels_last(Graph& g, const PassOptions& options = {});
size_t fuse_frozen_conv_add_relu(Graph& g, const PassOptions& options = {});
size_t plan_reuse(Graph& g, const PassOptions& options = {});
void pack_frozen_weights(Graph& g);

// ---- what they share -----------------------------------------------------------------------------------

// From the call on, and as outputs, `by` is read instead of `v`.
void replace_reads(Graph& g, size_t call, ValueId v, ValueId by);
// Takes out the calls that are marked.
void erase_calls(Graph& g, const std::vector<bool>& erased);
// Takes out the calls for which fold() is true, which it computes without a tape; returns how many.
template <class F>
size_t fold_calls(Graph& g, F&& fold) {
  const Restore<bool> no_grad(own_thread_state().grad_mode, false);
  const Restore<uint32_t> straight(own_thread_state().dispatch, 0);
  std::vector<bool> erased(g.calls.size());
  for (size_t i = 0; i < g.calls.size(); ++i) erased[i] = fold(g.calls[i]);
  erase_calls(g, erased);
  return static_cast<size_t>(std::ranges::count(erased, true));
}
// Whether two values have the same sizes, whatever the graph's symbols are.
bool same_sizes(const GraphValue& a, const GraphValue& b);

}  // namespace warptape::graph
