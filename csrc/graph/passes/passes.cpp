#include "graph/passes/passes.h"

#include "graph/ir/effects.h"
#include "graph/run/run_memory.h"
#include "tensor/factory.h"

namespace warptape::graph {
namespace {

size_t total(const PassCounts& n) { return n.constant_propagation + n.peephole + n.cse + n.dce; }

// Runs a pass and verifies what it left.
template <class F>
void checked(Graph& g, bool wanted, size_t& count, F&& pass) {
  if (!wanted) return;
  const Graph before = g;
  const size_t changed = pass();
  if (!changed) return;
  count += changed;
  g.finish();
  verify_effects(before, g);
}

// Parameters and buffers as they are now, without history.
void detach_constants(Graph& g) {
  const Restore<bool> no_grad(own_thread_state().grad_mode, false);
  for (GraphValue& v : g.values)
    if (v.kind == GraphValue::Kind::Constant && requires_grad(v.tensor)) v.tensor = alias(v.tensor);
}

PassCounts run_passes(Graph& g, const PassOptions& o) {
  PassCounts n;
  for (GraphValue& v : g.values) v.any_sizes = false;  // passes go by the number of dims
  if (o.freeze) detach_constants(g);
  if (!o.gradients)
    for (GraphCall& c : g.calls) c.mode.no_grad = false;  // all calls are
  checked(g, o.freeze && o.fold_frozen_conv_bn, n.fold_frozen_conv_bn,
          [&] { return fold_frozen_conv_bn(g); });
  checked(g, o.freeze && o.channels_last, n.channels_last, [&] { return prefer_channels_last(g); });
  // Additions and ReLUs that write onto the convolution's result, which they alone read, write nothing then.
  if (o.freeze && o.fuse_frozen_conv_add_relu)
    n.fuse_frozen_conv_add_relu = fuse_frozen_conv_add_relu(g), g.finish();
  for (size_t done = SIZE_MAX; done != total(n);) {
    done = total(n);
    checked(g, o.constant_propagation, n.constant_propagation, [&] { return propagate_constants(g, o); });
    checked(g, o.peephole, n.peephole, [&] { return peephole(g, o); });
    checked(g, o.cse, n.cse, [&] { return eliminate_common_subexpressions(g, o); });
    checked(g, o.dce, n.dce, [&] { return eliminate_dead_code(g, !o.freeze); });
  }
  checked(g, o.reuse_memory, n.reuse_memory, [&] { return plan_reuse(g); });
  if (o.freeze) pack_frozen_weights(g);
  if (o.plan_memory) g.run_memory = std::make_shared<RunMemory>();
  return n;
}

}  // namespace

PassCounts optimise(Graph& g, const PassOptions& options) {
  PassCounts n;
  for (GraphCall& c : g.calls)
    for (auto& branch : c.graphs) {
      auto better = std::make_shared<Graph>(*branch);
      const PassCounts of_branch = optimise(*better, options);
      branch = std::move(better);
      n.constant_propagation += of_branch.constant_propagation;
      n.peephole += of_branch.peephole;
      n.cse += of_branch.cse;
      n.dce += of_branch.dce;
      n.fold_frozen_conv_bn += of_branch.fold_frozen_conv_bn;
      n.channels_last += of_branch.channels_last;
      n.fuse_frozen_conv_add_relu += of_branch.fuse_frozen_conv_add_relu;
      n.reuse_memory += of_branch.reuse_memory;
    }
  const PassCounts own = run_passes(g, options);
  return {n.constant_propagation + own.constant_propagation,
          n.peephole + own.peephole,
          n.cse + own.cse,
          n.dce + own.dce,
          n.fold_frozen_conv_bn + own.fold_frozen_conv_bn,
          n.channels_last + own.channels_last,
          n.fuse_frozen_conv_add_relu + own.fuse_frozen_conv_add_relu,
          n.reuse_memory + own.reuse_memory};
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
    const GraphCall* lost = i < was.size() ? was[i] : is[i];
    const bool same = i < was.size() && i < is.size() && was[i]->op == is[i]->op &&
                      was[i]->callee == is[i]->callee && was[i]->out == is[i]->out;
    WT_CHECK(same, Error, "graph: a pass changed which calls write memory or draw random numbers, at ",
             lost->name(), lost->source.empty() ? "" : " of ", lost->source);
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

size_t eliminate_dead_code(Graph& g, bool keep_named) {
  std::vector<bool> read(g.values.size()), erased(g.calls.size());
  size_t count = 0;
  for (ValueId r : g.outputs) read[r.id] = true;
  for (size_t i = g.calls.size(); i-- > 0;) {
    const GraphCall& c = g.calls[i];
    const bool needed =
        std::ranges::any_of(c.out, [&](ValueId r) { return r.id != ValueId::kNone && read[r.id]; });
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
    if (keep_named && !is_literal(g, {static_cast<uint32_t>(v)})) continue;
    g.values[v].kind = GraphValue::Kind::Result;
    g.values[v].tensor = Tensor();
  }
  return count;
}

}  // namespace warptape::graph
