// Which calls may give their result the memory of an operand that nobody reads again: Run decides.
#include "graph/ir/effects.h"
#include "graph/passes/passes.h"

namespace warptape::graph {

size_t plan_reuse(Graph& g, const PassOptions&) {
  size_t count = 0;
  for (size_t i = 0; i < g.calls.size(); ++i) {
    GraphCall& c = g.calls[i];
    c.in_place = nullptr;
    if (!is_pure(c) || c.out.size() != 1 || c.op->batching != Batching::Pointwise || may_share_memory(g, c))
      continue;
    const auto* x = c.args.empty() ? nullptr : std::get_if<ValueId>(&c.args[0]);
    if (!x || x->id == ValueId::kNone) continue;
    const GraphValue &from = g.values[x->id], &to = g.values[c.out[0].id];
    if (from.kind != GraphValue::Kind::Result || from.dtype != to.dtype || !same_sizes(from, to)) continue;
    if (std::ranges::find(g.dead_after()[i], x->id) == g.dead_after()[i].end()) continue;
    c.in_place = in_place_form(*c.op);
    count += c.in_place != nullptr;
  }
  return count;
}

}  // namespace warptape::graph
