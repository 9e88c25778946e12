// Sizes that depend on values, as a trace knows them: see Tracer::expr_of().
#include "core/frontend.h"
#include "graph/record/trace.h"
#include "op/visit.h"
#include "tensor/factory.h"

namespace warptape::graph {
namespace {

constexpr int64_t kMarks = -0x6d61726b'00000000;  // the mark of the first expression; no size is like it
constexpr size_t kMostSymbols = 128;              // of a trace
constexpr size_t kMostTold = 4;                   // on which an integer that an op tells depends

}  // namespace

const Expr* Tracer::expr_of(int64_t mark) const {
  const auto count = static_cast<int64_t>(graph_.exprs.size());
  return mark >= kMarks && mark < kMarks + count ? &graph_.exprs[static_cast<size_t>(mark - kMarks)]
                                                 : nullptr;
}

int64_t Tracer::mark_of(const Expr& e) { return kMarks + graph_.size(e, 0).expr; }

int64_t Tracer::value_of(int64_t x) const {
  const Expr* e = expr_of(x);
  return e ? e->value(symbol_values_) : x;
}

void Tracer::refuse_size(const char* by) {
  const std::string at = frontend().call_site();
  throw NotImplementedError(
      message(by, " reads a size that depends on values", at.empty() ? "" : " at ", at,
              ", and a graph cannot depend on it: write it with tensors, as mask.sum()"));
}

void Tracer::forget_input_sizes() {
  for (const Tensor& t : inputs_) {
    Known& known = values_.at(t.impl());
    known.unknown_sizes = t.ndim() > 0;
    for (Dim& d : graph_.values[known.id.id].sizes) d.expr = Dim::kUnknown;
  }
}

Dim Tracer::dim(int64_t x) {
  const Expr* e = expr_of(x);
  return e ? graph_.size(*e, value_of(x)) : Dim{x};
}

Dims Tracer::dims(IntList list) {
  Dims out;
  for (int64_t x : list) out.push_back(dim(x));
  return out;
}

Attr Tracer::scalar(const Scalar& s) {
  if (s.is_complex()) return s.to_complex();
  if (s.is_floating()) return s.to_double();
  if (s.is_bool()) return s.to_bool();
  return dim(s.to_int());
}

bool Tracer::has_marks(const OpInfo& op, std::span<const Value> args) const {
  if (graph_.exprs.empty()) return false;
  bool any = false, of_lists = false;
  const auto is_mark = [&](int64_t x) { return expr_of(x) != nullptr; };
  const auto is_integer = [](const Scalar& s) { return !s.is_complex() && !s.is_floating() && !s.is_bool(); };
  for (size_t i = 0; i < args.size(); ++i) {
    if (!args[i].present) continue;
    visit(op.args[i].type, args[i],
          Overloaded{
              [](const auto&) {},
              [&](int64_t x) { any |= is_mark(x); },
              [&](const Scalar& s) { any |= is_integer(s) && is_mark(s.to_int()); },
              [&](IntList list) { any |= std::ranges::any_of(list, is_mark); },
              [&](std::span<const Shape> lists) {
                for (const Shape& list : lists) of_lists |= std::ranges::any_of(list, is_mark);
              },
              [&](ScalarList list) {
                for (const Scalar& s : list) of_lists |= is_integer(s) && is_mark(s.to_int());
              },
          });
  }
  if (of_lists) refuse_size(op.name);
  return any;
}

// The arguments as they are in the example.
void Tracer::resolve_marks(const OpInfo& op, std::span<Value> args) {
  unmarked_.clear();
  for (size_t i = 0; i < args.size(); ++i) {
    Value& v = args[i];
    if (!v.present) continue;
    visit(op.args[i].type, v,
          Overloaded{
              [](const auto&) {},
              [&](int64_t x) { v.i = value_of(x); },
              [&](const Scalar& s) {
                if (!s.is_complex() && !s.is_floating() && !s.is_bool()) v.scalar = value_of(s.to_int());
              },
              [&](IntList list) {
                Shape& own = unmarked_.emplace_back();
                for (int64_t x : list) own.push_back(value_of(x));
                v.list = {own.data(), own.size()};
              },
          });
  }
}

// The sizes of a value, as symbols where they are unknown.
Dims Tracer::name_sizes(const Tensor& t) {
  number_of_dims_told = true;
  const ValueId id = values_.at(t.impl()).id;
  for (Dim& d : graph_.values[id.id].sizes) {
    if (d.expr != Dim::kUnknown) continue;
    if (graph_.symbols.size() >= kMostSymbols) refuse_size("a graph");
    const size_t number = graph_.symbols.size();
    graph_.symbols.push_back({message("u", number)});
    symbol_values_.push_back(d.value);
    d = graph_.size(of_symbol(static_cast<uint8_t>(number)), d.value);
  }
  for (GraphCall& c : graph_.calls)
    if (std::ranges::find(c.out, id) != c.out.end()) c.binds = true;
  return graph_.values[id.id].sizes;
}

std::optional<Shape> Tracer::symbolic_sizes(const Tensor& t) {
  if (!are_sizes_unknown(t)) return {};
  Shape out;
  for (Dim d : name_sizes(t)) out.push_back(kMarks + d.expr);
  return out;
}

// What an op tells of tensors is asked of it at other sizes, too: a number that is linear in each.
void Tracer::tell_symbolic(const OpInfo& op, std::span<const Value> args, std::span<const Tensor> tensors,
                           Result& out) {
  using Kind = Result::Kind;
  const bool one = out.kind == Kind::Int;
  if (!one && out.kind != Kind::IntList && out.kind != Kind::IntTuple) refuse_size(op.name);
  std::unordered_map<const void*, Dims> sizes;
  std::vector<uint8_t> symbols;
  for (const Tensor& t : tensors) {
    if (!are_sizes_unknown(t)) continue;
    const Dims& known = sizes[t.impl()] = name_sizes(t);
    for (Dim d : known)
      if (const auto s = graph_.symbol(d); s && std::ranges::find(symbols, *s) == symbols.end())
        symbols.push_back(*s);
  }
  if (symbols.size() > kMostTold) refuse_size(op.name);
  const auto told_at = [&](IntList numbers, int64_t stride = 1) {
    std::vector<int64_t> values = symbol_values_;
    for (size_t s = 0; s < symbols.size(); ++s) values[symbols[s]] = numbers[s];
    const Result told = run_on_meta(op, args, [&](const Tensor& t) {
      const TensorOptions like{t.dtype(), Device{DeviceType::Meta, -1}};
      const auto known = sizes.find(t.impl());
      if (known == sizes.end()) return empty_strided(t.sizes(), t.strides(), like);
      Shape shape;
      for (Dim d : known->second) shape.push_back(values[*graph_.symbol(d)]);
      Shape strides = contiguous_strides(shape);
      for (int64_t& s : strides) s *= stride;
      return empty_strided(shape, strides, like);
    });
    return one ? std::vector{told.scalar.to_int()} : std::vector(told.ints.begin(), told.ints.end());
  };
  Shape low, high, other;
  for (uint8_t s : symbols) {
    low.push_back(symbol_values_[s]);
    high.push_back(low.back() + 1);
    other.push_back(low.back() + 3 + static_cast<int64_t>(other.size()));
  }
  const Restore<uint32_t> untraced(own_thread_state().dispatch,
                                   thread_state().dispatch & ~(kTrace | kCapture));
  std::vector<std::vector<int64_t>> corners;
  for (size_t mask = 0; mask < size_t{1} << symbols.size(); ++mask) {
    Shape at = low;
    for (size_t s = 0; s < at.size(); ++s)
      if (mask >> s & 1) at[s] = high[s];
    corners.push_back(told_at(at));
  }
  const std::vector<int64_t> is =
      one ? std::vector{out.scalar.to_int()} : std::vector(out.ints.begin(), out.ints.end());
  const std::vector<int64_t> at_other = told_at(other);
  // What depends on the layout may be another at other sizes.
  if (corners[0] != is || told_at(low, 2) != is || at_other.size() != is.size()) refuse_size(op.name);
  std::vector<int64_t> values = symbol_values_;
  for (size_t s = 0; s < symbols.size(); ++s) values[symbols[s]] = other[s];
  for (size_t k = 0; k < is.size(); ++k) {
    std::vector<int64_t> of_corner;
    for (const auto& told : corners) of_corner.push_back(told.at(k));
    const Expr e = fit(of_corner, low, high, symbols);
    if (e.value(values) != at_other[k]) refuse_size(op.name);
    const bool varies = std::ranges::any_of(e.terms, [](const Expr::Term& t) { return !t.symbols.empty(); });
    if (!varies) continue;
    if (one)
      out.scalar = mark_of(e);
    else
      out.ints[k] = mark_of(e);
  }
}

}  // namespace warptape::graph
