// Which calls may give their result the memory of an operand that nobody reads again: Run decides.
#include "graph/ir/effects.h"
#include "graph/passes/passes.h"

namespace warptape::graph {
namespace {

// The form of an elementwise op that writes its result into its first argument, if it has one: the op itself
// where it takes `inplace`. Forms that compute elsewhere and copy are none.
const OpInfo* in_place_form(const GraphCall& c) {
  if (argument(c, "inplace")) return c.op;
  const std::string name = message(c.op->name, "_");
  for (const OpInfo* op = all_ops(); op; op = op->next) {
    if (name != op->name || op->inplace_of || op->args.size() != c.op->args.size()) continue;
    bool same = !op->args.empty() && (op->args[0].marks & kWritten);
    for (size_t i = 0; i < op->args.size(); ++i)
      same &= op->args[i].type == c.op->args[i].type && op->args[i].optional == c.op->args[i].optional;
    if (same) return op;
  }
  return nullptr;
}

}  // namespace

size_t plan_reuse(Graph& g) {
  size_t count = 0;
  for (size_t i = 0; i < g.calls.size(); ++i) {
    GraphCall& c = g.calls[i];
    c.in_place = nullptr;
    if (!is_pure(c) || c.out.size() != 1 || c.op->batching() != Batching::Pointwise || may_share_memory(g, c))
      continue;
    const auto* x = c.args.empty() ? nullptr : std::get_if<ValueId>(&c.args[0]);
    if (!x || x->id == ValueId::kNone) continue;
    const GraphValue &from = g.values[x->id], &to = g.values[c.out[0].id];
    if (from.kind != GraphValue::Kind::Result || from.dtype != to.dtype || !same_sizes(from, to)) continue;
    if (std::ranges::find(g.dead_after()[i], x->id) == g.dead_after()[i].end()) continue;
    c.in_place = in_place_form(c);
    count += c.in_place != nullptr;
  }
  return count;
}

}  // namespace warptape::graph
