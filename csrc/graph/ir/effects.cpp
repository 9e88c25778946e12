#include "graph/ir/effects.h"

namespace warptape::graph {
namespace {

// Whether an op that may draw does not: it was called with training=False.
bool is_idle(const GraphCall& c) {
  for (size_t i = 0; i < c.args.size(); ++i)
    if (const bool* on = std::get_if<bool>(&c.args[i]); on && !*on && (c.op->args[i].marks & kDraws))
      return true;
  return false;
}

// Whether the switch is on in the call, or may be.
bool is_on(const Attr& a) {
  if (const bool* on = std::get_if<bool>(&a)) return *on;
  return !std::holds_alternative<std::monostate>(a);
}

void append_ids(const Attr& a, std::vector<ValueId>& out) {
  if (const auto* r = std::get_if<ValueId>(&a); r && r->id != ValueId::kNone) out.push_back(*r);
  if (const auto* list = std::get_if<std::vector<ValueId>>(&a))
    for (ValueId r : *list)
      if (r.id != ValueId::kNone) out.push_back(r);
}

std::vector<ValueId> tensors(const GraphCall& c) {
  std::vector<ValueId> out;
  for (const Attr& a : c.args) append_ids(a, out);
  return out;
}

bool writes_inputs(const Graph& g) {
  const Effects effects(g);
  for (const GraphCall& c : g.calls)
    for (ValueId v : written(c))
      if (effects.is_outside(v)) return true;
  return false;
}

}  // namespace

bool may_share_memory(const Graph& g, const GraphCall& c) {
  if (!c.op) return true;
  const Aliasing kind = c.op->aliasing;
  if (kind != Aliasing::Conversion && kind != Aliasing::Layout) return kind != Aliasing::None;
  const auto* x = std::get_if<ValueId>(&c.args[0]);
  if (!x || x->id == ValueId::kNone || c.out.size() != 1 || c.out[0].id == ValueId::kNone) return true;
  return g.values[x->id].dtype == g.values[c.out[0].id].dtype;
}

const Attr* argument(const GraphCall& c, std::string_view name) {
  for (size_t i = 0; c.op && i < c.args.size(); ++i)
    if (name == c.op->args[i].name) return &c.args[i];
  return nullptr;
}

std::vector<ValueId> written(const GraphCall& c) {
  if (!c.op) {
    const auto writes = [](const auto& branch) { return writes_inputs(*branch); };
    return std::ranges::any_of(c.graphs, writes) ? tensors(c) : std::vector<ValueId>();
  }
  std::vector<ValueId> out;
  each_written(
      std::span(c.op->args).first(std::min(c.op->args.size(), c.args.size())),
      [&](size_t i) { return is_on(c.args[i]); }, [&](size_t i) { append_ids(c.args[i], out); });
  if (c.op->flags & kSetsFlags) return tensors(c);
  return out;
}

bool draws(const GraphCall& c) {
  if (c.op) return (c.op->flags & kRandom) && !is_idle(c);
  return std::ranges::any_of(c.graphs, [](const auto& g) { return std::ranges::any_of(g->calls, draws); });
}

bool is_pure(const GraphCall& c) {
  return c.op && c.mode == CallMode() && !c.binds && !c.out.empty() && !draws(c) && written(c).empty() &&
         std::ranges::any_of(c.out, [](ValueId r) { return r.id != ValueId::kNone; });
}

Effects::Effects(const Graph& g) : g_(g), parent_(g.values.size()) {
  for (uint32_t v = 0; v < parent_.size(); ++v) parent_[v] = v;
  find_memories();
  find_writes();
}

uint32_t Effects::memory(ValueId v) const {
  uint32_t at = v.id;
  while (parent_[at] != at) at = parent_[at] = parent_[parent_[at]];
  return at;
}

void Effects::find_memories() {
  std::unordered_map<uint32_t, uint32_t> recorded;
  std::unordered_map<const void*, uint32_t> storages;
  for (uint32_t v = 0; v < g_.values.size(); ++v) {
    const GraphValue& value = g_.values[v];
    join({v}, {recorded.try_emplace(value.memory, v).first->second});
    if (value.tensor.defined()) join({v}, {storages.try_emplace(&value.tensor.storage(), v).first->second});
  }
  for (ValueId v : g_.inputs) join(v, g_.inputs[0]);
  for (const GraphCall& c : g_.calls) {
    std::vector<ValueId> shared = may_share_memory(g_, c) ? tensors(c) : written(c);
    for (ValueId v : c.out)
      if (v.id != ValueId::kNone) shared.push_back(v);
    for (size_t i = 1; i < shared.size(); ++i) join(shared[i], shared[0]);
  }
  outside_.assign(g_.values.size(), false);
  returned_ = outside_;
  for (uint32_t v = 0; v < g_.values.size(); ++v)
    if (g_.values[v].kind == GraphValue::Kind::Constant) outside_[memory({v})] = true;
  for (ValueId v : g_.inputs) outside_[memory(v)] = true;
  for (ValueId v : g_.outputs) returned_[memory(v)] = true;
}

// A caller may pass a tensor that is a constant too: a write to inputs counts for constants, and the other
// way round.
void Effects::find_writes() {
  writes_.resize(g_.values.size());
  const uint32_t inputs = g_.inputs.empty() ? UINT32_MAX : memory(g_.inputs[0]);
  for (size_t i = 0; i < g_.calls.size(); ++i) {
    std::unordered_set<uint32_t> memories;
    for (ValueId v : written(g_.calls[i])) memories.insert(memory(v));
    if (memories.contains(inputs)) {
      for (uint32_t v = 0; v < g_.values.size(); ++v)
        if (outside_[memory({v})]) memories.insert(memory({v}));
    } else if (inputs != UINT32_MAX &&
               std::ranges::any_of(memories, [&](uint32_t m) { return outside_[m]; })) {
      memories.insert(inputs);
    }
    for (uint32_t m : memories) writes_[m].push_back(i);
  }
}

size_t Effects::writes_before(ValueId v, size_t call) const {
  const std::vector<size_t>& at = writes_[memory(v)];
  return static_cast<size_t>(std::ranges::lower_bound(at, call) - at.begin());
}

bool Effects::may_stand_for(ValueId a, ValueId b, size_t call) const {
  if (is_written(b) || is_written_after(a, call)) return false;
  if (!is_returned(b)) return true;
  // A result that is a view stays one, also where the argument comes back as it is; a new one has version 0.
  return memory(a) != memory(b) && !is_returned(a) && !is_outside(a) && !is_written(a);
}

void Effects::stands_for(ValueId a, ValueId b) {
  if (is_returned(b)) returned_[memory(a)] = true;
}

bool is_literal(const Graph& g, ValueId v) {
  const GraphValue& value = g.values[v.id];
  return value.kind == GraphValue::Kind::Constant && value.name == message("constant_", v.id);
}

std::vector<bool> differentiable(const Graph& g) {
  const Effects effects(g);
  std::vector<bool> out(g.values.size());
  const auto floats = [&](uint32_t v) {
    return is_floating(g.values[v].dtype) || is_complex(g.values[v].dtype);
  };
  for (uint32_t v = 0; v < out.size(); ++v) {
    const GraphValue& value = g.values[v];
    if (value.kind == GraphValue::Kind::Input) out[v] = floats(v);
    if (value.kind == GraphValue::Kind::Constant)
      out[v] = floats(v) && (!is_literal(g, {v}) || requires_grad(value.tensor));
  }
  for (const GraphCall& c : g.calls) {
    bool any = false;
    each_id(c, [&](ValueId r) { any |= r.id != ValueId::kNone && out[r.id]; });
    if (!any) continue;
    // With what is written in place all that lies on its memory takes part.
    for (ValueId r : written(c))
      for (uint32_t v = 0; v < out.size(); ++v)
        if (effects.memory({v}) == effects.memory(r)) out[v] = floats(v);
    for (ValueId r : c.out)
      if (r.id != ValueId::kNone) out[r.id] = floats(r.id);
  }
  return out;
}

}  // namespace warptape::graph
