#include "graph/passes/passes.h"

#include <functional>

#include "graph/ir/effects.h"
#include "graph/run/run_memory.h"
#include "tensor/factory.h"

namespace warptape::graph {
namespace {

using O = PassOptions;
constexpr bool kFrozen = true, kRepeats = true, kChangesWrites = true;
constexpr Pass kPasses[] = {
    {"fold_frozen_conv_bn", &O::fold_frozen_conv_bn, fold_frozen_conv_bn, kFrozen},
    {"channels_last", &O::channels_last, prefer_channels_last, kFrozen},
    // Additions and ReLUs that write onto the convolution's result alone write nothing then.
    {"fuse_frozen_conv_add_relu", &O::fuse_frozen_conv_add_relu, fuse_frozen_conv_add_relu, kFrozen, false,
     kChangesWrites},
    {"constant_propagation", &O::constant_propagation, propagate_constants, false, kRepeats},
    {"peephole", &O::peephole, peephole, false, kRepeats},
    {"cse", &O::cse, eliminate_common_subexpressions, false, kRepeats},
    {"dce", &O::dce, eliminate_dead_code, false, kRepeats},
    {"reuse_memory", &O::reuse_memory, plan_reuse},
};

// Runs a pass and verifies what it left. Returns what it counts.
size_t run_checked(const Pass& pass, Graph& g, const PassOptions& o) {
  if (!(o.*pass.wanted) || (pass.frozen && !o.freeze)) return 0;
  const Graph before = g;
  const size_t changed = pass.run(g, o);
  if (!changed) return 0;
  g.finish();
  if (!pass.changes_writes) verify_effects(before, g);
  return changed;
}

// Parameters and buffers as they are now, without history.
void detach_constants(Graph& g) {
  const Restore<bool> no_grad(own_thread_state().grad_mode, false);
  for (GraphValue& v : g.values)
    if (v.kind == GraphValue::Kind::Constant && requires_grad(v.tensor)) v.tensor = alias(v.tensor);
}

PassCounts run_passes(Graph& g, const PassOptions& o) {
  for (GraphValue& v : g.values) v.any_sizes = false;  // passes go by the number of dims
  if (o.freeze) detach_constants(g);
  if (!o.gradients)
    for (GraphCall& c : g.calls) c.mode.no_grad = false;  // all calls are
  PassCounts counts(std::size(kPasses));
  for (size_t i = 0; i < counts.size();) {
    size_t end = i + 1;
    while (kPasses[i].repeats && end < counts.size() && kPasses[end].repeats) ++end;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t k = i; k < end; ++k) {
        const size_t count = run_checked(kPasses[k], g, o);
        counts[k] += count;
        changed |= count && kPasses[k].repeats;
      }
    }
    i = end;
  }
  if (o.freeze) pack_frozen_weights(g);
  if (o.plan_memory) g.run_memory = std::make_shared<RunMemory>();
  return counts;
}

}  // namespace

std::span<const Pass> passes() { return kPasses; }

PassCounts optimise(Graph& g, const PassOptions& options) {
  PassCounts counts(std::size(kPasses));
  const auto add = [&](const PassCounts& more) {
    std::ranges::transform(counts, more, counts.begin(), std::plus());
  };
  for (GraphCall& c : g.calls)
    for (auto& branch : c.graphs) {
      auto better = std::make_shared<Graph>(*branch);
      add(optimise(*better, options));
      branch = std::move(better);
    }
  add(run_passes(g, options));
  return counts;
}

void verify_effects(const Graph& before, const Graph& after) {
  const auto with_effects = [](const Graph& g) {
    std::vector<const GraphCall*> out;
    for (const GraphCall& c : g.calls)
      if (!c.op || draws(c) || !written(c).empty()) out.push_back(&c);
    return out;
  };
  const auto was = with_effects(before), is = with_effects(after);
  for (size_t i = 0; i < std::max(was.size(), is.size()); ++i) {
    const GraphCall* missing = i < was.size() ? was[i] : is[i];
    const bool same = i < was.size() && i < is.size() && was[i]->op == is[i]->op &&
                      was[i]->callee == is[i]->callee && was[i]->out == is[i]->out;
    WT_CHECK(same, Error, "graph: a pass changed which calls write memory or draw random numbers, at ",
             missing->name(), missing->source.empty() ? "" : " of ", missing->source);
  }
}

void replace_reads(Graph& g, size_t call, ValueId v, ValueId by) {
  for (size_t i = call; i < g.calls.size(); ++i)
    each_id(g.calls[i], [&](ValueId& r) {
      if (r == v) r = by;
    });
  for (ValueId& r : g.outputs)
    if (r == v) r = by;
}

void erase_calls(Graph& g, const std::vector<bool>& erased) {
  size_t to = 0;
  for (size_t i = 0; i < g.calls.size(); ++i) {
    if (erased[i]) continue;
    if (to != i) g.calls[to] = std::move(g.calls[i]);
    ++to;
  }
  g.calls.resize(to);
}

bool same_sizes(const GraphValue& a, const GraphValue& b) {
  const auto known = [](Dim d) { return d.expr != Dim::kUnknown; };
  return a.sizes == b.sizes && std::ranges::all_of(a.sizes, known);
}

size_t eliminate_dead_code(Graph& g, const PassOptions& options) {
  std::vector<bool> read(g.values.size()), erased(g.calls.size());
  size_t count = 0;
  for (ValueId r : g.outputs) read[r.id] = true;
  for (size_t i = g.calls.size(); i-- > 0;) {
    const GraphCall& c = g.calls[i];
    const bool needed = c.binds || std::ranges::any_of(c.out, [&](ValueId r) {
                          return r.id != ValueId::kNone && read[r.id];
                        });
    if (!needed && c.op && !draws(c) && written(c).empty()) {
      erased[i] = true;
      ++count;
      continue;
    }
    each_id(c, [&](ValueId r) {
      if (r.id != ValueId::kNone) read[r.id] = true;
    });
  }
  erase_calls(g, erased);
  for (size_t v = 0; v < g.values.size(); ++v) {
    if (g.values[v].kind != GraphValue::Kind::Constant || read[v]) continue;
    if (!options.freeze && !is_literal(g, {static_cast<uint32_t>(v)})) continue;
    g.values[v].kind = GraphValue::Kind::Result;
    g.values[v].tensor = Tensor();
  }
  return count;
}

}  // namespace warptape::graph
