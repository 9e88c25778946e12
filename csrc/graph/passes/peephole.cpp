// Calls that change nothing, to the bit: each rule says why.
#include <cmath>
#include <numeric>

#include "graph/ir/effects.h"
#include "graph/passes/passes.h"
#include "ops/elementwise/elementwise.h"
#include "ops/view/view.h"
#include "tensor/memory_format.h"

namespace warptape::graph {
namespace {

using Order = SmallVector<size_t, 6>;

bool is_one_of(const OpInfo* op, std::initializer_list<const OpInfo*> ops) {
  return std::ranges::find(ops, op) != ops.end();
}

bool is_none_or_false(const Attr* a) {
  return !a || std::holds_alternative<std::monostate>(*a) ||
         (std::holds_alternative<bool>(*a) && !std::get<bool>(*a));
}

// An argument that is a number, as a double.
std::optional<double> number(const Attr* a) {
  if (!a) return std::nullopt;
  if (const auto* d = std::get_if<Dim>(a); d && d->expr == Dim::kNumber) return static_cast<double>(d->value);
  if (const auto* x = std::get_if<double>(a)) return *x;
  return std::nullopt;
}

std::optional<size_t> dim_of(const Attr* a, size_t ndim) {
  const auto* d = a ? std::get_if<Dim>(a) : nullptr;
  if (!d || d->expr != Dim::kNumber) return std::nullopt;
  const int64_t at = d->value < 0 ? d->value + static_cast<int64_t>(ndim) : d->value;
  if (at < 0 || at >= static_cast<int64_t>(ndim)) return std::nullopt;
  return static_cast<size_t>(at);
}

// Whether every number of `narrow` is one of `wide`, so that a cast there and back changes none.
bool holds_all(DType wide, DType narrow) {
  const auto bits = [](DType t) { return t == DType::Bool ? size_t{1} : itemsize(t) * 8; };
  if (narrow == DType::Bool) return wide != DType::Bool;
  if (wide >= DType::Complex64 || narrow >= DType::Complex64) return false;
  if (is_floating(narrow)) return is_floating(wide) && bits(wide) > 16 && bits(wide) > bits(narrow);
  if (is_floating(wide))
    return wide == DType::Float64 ? bits(narrow) <= 32 : wide == DType::Float32 && bits(narrow) <= 16;
  if (wide == DType::Bool || wide == DType::UInt8) return false;
  return bits(wide) > bits(narrow);
}

class Peephole {
 public:
  Peephole(Graph& g, const PassOptions& o)
      : g_(g), effects_(g), maker_(g.values.size(), SIZE_MAX), uses_(g.values.size()) {
    learns_ = o.gradients ? differentiable(g) : std::vector<bool>(g.values.size());
    for (size_t i = 0; i < g.calls.size(); ++i) {
      for (ValueId r : g.calls[i].out)
        if (r.id != ValueId::kNone) maker_[r.id] = i;
      each_id(g.calls[i], [&](ValueId r) {
        if (r.id != ValueId::kNone) ++uses_[r.id];
      });
    }
    for (ValueId r : g.outputs) ++uses_[r.id];
  }

  size_t run() {
    std::vector<bool> erased(g_.calls.size());
    size_t count = 0;
    for (size_t i = 0; i < g_.calls.size(); ++i) {
      const GraphCall& c = g_.calls[i];
      if (!is_pure(c) || c.out.size() != 1 || c.args.empty()) continue;
      if (const ValueId x = same_as(c); x.id != ValueId::kNone && replace(i, x)) {
        erased[i] = true;
        ++count;
      } else if (compose(i)) {
        ++count;
      }
    }
    erase_calls(g_, erased);
    return count;
  }

 private:
  static constexpr ValueId kNothing{};

  const GraphValue& value(ValueId v) const { return g_.values[v.id]; }
  size_t ndim(ValueId v) const { return value(v).sizes.size(); }
  // The call that made the value, if it gave that alone.
  const GraphCall* maker(ValueId v) const {
    if (v.id == ValueId::kNone || maker_[v.id] == SIZE_MAX) return nullptr;
    const GraphCall& c = g_.calls[maker_[v.id]];
    return c.op && c.out.size() == 1 ? &c : nullptr;
  }
  static ValueId operand(const GraphCall& c) {
    const auto* r = std::get_if<ValueId>(&c.args[0]);
    return r ? *r : kNothing;
  }
  // Whether there is a dim of size 1, to which ops give a stride of their own.
  bool has_one(ValueId v) const {
    return std::ranges::any_of(value(v).sizes, [](Dim d) { return d.expr == Dim::kNumber && d.value == 1; });
  }
  // Whether the elements fill a block, so that an elementwise op gives a result of the same strides.
  bool is_block(ValueId v) const {
    if (has_one(v)) return false;
    if (value(v).kind == GraphValue::Kind::Constant) return is_dense(value(v).tensor);
    const GraphCall* c = maker(v);
    if (!c || may_share_memory(g_, *c) || !written(*c).empty()) return false;
    // So are those of products, norms and reductions, which autocast knows.
    const bool computes = c->op->autocast(false) != Autocast::Keep || c->op->autocast(true) != Autocast::Keep;
    return computes || c->op->batching == Batching::Pointwise;
  }

  bool replace(size_t i, ValueId x) {
    const ValueId y = g_.calls[i].out[0];
    // The order in which gradients are added stays only where nobody else reads what is left out.
    ValueId v = operand(g_.calls[i]).id == ValueId::kNone ? x : operand(g_.calls[i]);
    for (; learns_[y.id]; v = operand(*maker(v))) {
      if (uses_[v.id] != 1) return false;
      if (v == x) break;
    }
    if (!effects_.may_stand_for(x, y, i)) return false;
    effects_.stands_for(x, y);
    replace_reads(g_, i + 1, y, x);
    uses_[x.id] += uses_[y.id];
    return true;
  }

  // The value that the call's result is equal to.
  ValueId same_as(const GraphCall& c) const {
    const ValueId x = operand(c), y = c.out[0];
    if (x.id == ValueId::kNone) return times_one(c) ? std::get<ValueId>(c.args[1]) : kNothing;
    if (is_view_of_all(c, x, y) || is_cast_to_same(c, x, y) || (is_dropout(c) && !draws(c))) return x;
    if (is_block(x) && (times_one(c) || plus_zero(c) || is_clone(c))) return x;
    return of_two(c, x, y);
  }

  bool is_view_of_all(const GraphCall& c, ValueId x, ValueId y) const {
    if (value(x).dtype != value(y).dtype || !same_sizes(value(x), value(y))) return false;
    if (const auto order = order_of(c)) return std::ranges::is_sorted(*order);
    return c.op->aliasing == Aliasing::Reshape && !has_one(x);
  }
  bool is_cast_to_same(const GraphCall& c, ValueId x, ValueId y) const {
    return is_cast(c) && value(x).dtype == value(y).dtype && value(x).device == value(y).device;
  }
  static bool is_cast(const GraphCall& c) {
    return c.op->aliasing == Aliasing::Conversion && is_none_or_false(argument(c, "copy")) &&
           is_none_or_false(argument(c, "memory_format"));
  }
  static bool is_dropout(const GraphCall& c) { return c.op->aliasing == Aliasing::Dropout; }
  static bool is_clone(const GraphCall& c) {
    return (c.op->flags & kCopies) && is_none_or_false(argument(c, "memory_format"));
  }
  // x * 1, 1 * x, x / 1: the same number, NaN for NaN. A complex product would add 0 * the other part.
  bool times_one(const GraphCall& c) const {
    if (!is_one_of(c.op, {&ops::mul_ts, &ops::mul_st, &ops::div_ts})) return false;
    const size_t at = std::holds_alternative<ValueId>(c.args[0]) ? 0 : 1;
    if (!std::holds_alternative<ValueId>(c.args[at])) return false;
    const ValueId x = std::get<ValueId>(c.args[at]), y = c.out[0];
    return x.id != ValueId::kNone && number(&c.args[1 - at]) == 1.0 && value(x).dtype == value(y).dtype &&
           !is_complex(value(x).dtype) && (at == 0 || is_block(x));
  }
  // x + 0 and x - 0 of integers; of floats x + -0.0 alone: -0.0 + 0.0 is 0.0.
  bool plus_zero(const GraphCall& c) const {
    const ValueId x = operand(c), y = c.out[0];
    const auto zero = c.args.size() == 3 ? number(&c.args[1]) : std::nullopt;
    if (!zero || *zero != 0 || value(x).dtype != value(y).dtype || is_complex(value(x).dtype)) return false;
    if (!is_one_of(c.op, {&ops::add_ts, &ops::sub_ts})) return false;
    if (!is_floating(value(x).dtype)) return true;
    return c.op == &ops::add_ts && std::signbit(*zero) && number(argument(c, "alpha")) == 1.0;
  }

  // What two calls, one on the other's result, are together.
  ValueId of_two(const GraphCall& c, ValueId x, ValueId y) const {
    const GraphCall* inner = maker(x);
    if (!inner || inner->args.empty() || !is_pure(*inner)) return kNothing;
    const ValueId w = operand(*inner);
    if (w.id == ValueId::kNone || effects_.is_written(x) || effects_.is_written_after(w, maker_[x.id]))
      return kNothing;
    if (c.op == inner->op && (c.op->flags & kIdempotent) &&
        std::equal(c.args.begin() + 1, c.args.end(), inner->args.begin() + 1))
      return x;
    if (c.op == inner->op && (c.op->flags & kInvolution) && is_block(w)) return w;
    if (is_cast(c) && is_cast(*inner) && value(w).dtype == value(y).dtype &&
        value(w).device == value(y).device && value(w).device == value(x).device &&
        holds_all(value(x).dtype, value(w).dtype) && is_block(w))
      return w;
    if (c.op == &ops::squeeze_dim && inner->op == &ops::unsqueeze) {
      const auto a = dim_of(&c.args[1], ndim(x)), b = dim_of(&inner->args[1], ndim(x));
      if (a && a == b) return w;
    }
    const auto outer_order = order_of(c), inner_order = order_of(*inner);
    if (!outer_order || !inner_order) return kNothing;
    return std::ranges::is_sorted(composed(*inner_order, *outer_order)) ? w : kNothing;
  }

  // The dim of the operand that each dim of the result is, where the call orders dims anew.
  std::optional<Order> order_of(const GraphCall& c) const {
    const ValueId x = operand(c);
    if (x.id == ValueId::kNone) return std::nullopt;
    const size_t n = ndim(x);
    Order order;
    for (size_t d = 0; d < n; ++d) order.push_back(d);
    if (c.op == &ops::permute) {
      const auto* dims = std::get_if<Dims>(&c.args[1]);
      for (size_t d = 0; dims && dims->size() == n && d < n; ++d) {
        const Attr one = (*dims)[d];
        const auto at = dim_of(&one, n);
        if (!at) return std::nullopt;
        order[d] = *at;
      }
      return dims && dims->size() == n ? std::optional(order) : std::nullopt;
    }
    if (is_one_of(c.op, {&ops::transpose, &ops::swapaxes})) {
      const auto a = dim_of(&c.args[1], n), b = dim_of(&c.args[2], n);
      if (!a || !b) return std::nullopt;
      std::swap(order[*a], order[*b]);
      return order;
    }
    if (c.op == &ops::mt && n >= 2) return std::swap(order[n - 2], order[n - 1]), order;
    if (c.op == &ops::t && n <= 2) return n == 2 ? (std::swap(order[0], order[1]), order) : order;
    if (c.op == &ops::reversed) return std::ranges::reverse(order), order;
    return std::nullopt;
  }
  static Order composed(const Order& inner, const Order& outer) {
    Order out;
    for (size_t d : outer) out.push_back(inner[d]);
    return out;
  }

  // A view of a view, and an order of dims of another, become one of what lies below.
  bool compose(size_t i) {
    GraphCall& c = g_.calls[i];
    const ValueId x = operand(c);
    const GraphCall* inner = maker(x);
    if (!inner || inner->args.empty() || !is_pure(*inner) || effects_.is_written(x) ||
        (learns_[c.out[0].id] && uses_[x.id] != 1))
      return false;
    const ValueId w = operand(*inner);
    if (w.id == ValueId::kNone) return false;
    if (c.op == inner->op && c.op == &ops::view && std::holds_alternative<Dims>(c.args[1]) &&
        std::holds_alternative<Dims>(inner->args[1]))
      return read_below(c, x, w);
    const auto outer_order = order_of(c), inner_order = order_of(*inner);
    if (!outer_order || !inner_order) return false;
    Dims dims;
    for (size_t d : composed(*inner_order, *outer_order)) dims.push_back({static_cast<int64_t>(d)});
    c.op = &ops::permute;
    c.args = {x, dims};
    return read_below(c, x, w);
  }
  bool read_below(GraphCall& c, ValueId x, ValueId w) {
    c.args[0] = w;
    --uses_[x.id];
    ++uses_[w.id];
    return true;
  }

  Graph& g_;
  Effects effects_;
  std::vector<bool> learns_;
  std::vector<size_t> maker_, uses_;  // by value: the call; references
};

}  // namespace

size_t peephole(Graph& g, const PassOptions& options) { return Peephole(g, options).run(); }

}  // namespace warptape::graph
