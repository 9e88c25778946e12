// Common subexpressions: calls of one op on the same values, with the same arguments, become one.
#include <bit>

#include "graph/ir/effects.h"
#include "graph/passes/passes.h"

namespace warptape::graph {
namespace {

// A call as bytes that are equal where the calls are the same: operands with the number of writes to their
// memory before. Floats by their bits, so that 0.0 is not -0.0.
class Key {
 public:
  Key(const GraphCall& c, const Effects& effects, size_t position) : effects_(effects), position_(position) {
    add(reinterpret_cast<uintptr_t>(c.op));
    for (const Attr& a : c.args) {
      add(a.index());
      std::visit(*this, a);
    }
  }
  std::string release() { return std::move(bytes_); }

  void operator()(std::monostate) {}
  void operator()(ValueId r) {
    add(r.id);
    if (r.id != ValueId::kNone) add(effects_.writes_before(r, position_));
  }
  void operator()(Dim d) {
    add(static_cast<uint32_t>(d.expr));
    if (d.expr == Dim::kNumber) add(static_cast<uint64_t>(d.value));
  }
  void operator()(double x) { add(std::bit_cast<uint64_t>(x)); }
  void operator()(bool x) { add(x); }
  void operator()(Complex<double> x) { (*this)(x.re), (*this)(x.im); }
  void operator()(const Scalar& s) {
    add(static_cast<uint64_t>(s.kind()));
    add(s.exceeds_int64());
    add(static_cast<uint64_t>(s.to_int()));
    (*this)(s.to_complex());
  }
  void operator()(DType t) { add(static_cast<uint64_t>(t)); }
  void operator()(Device d) { add(static_cast<uint64_t>(d.type)), add(static_cast<uint64_t>(d.index)); }
  void operator()(const std::string& s) {
    add(s.size());
    bytes_ += s;
  }
  template <class List>
  void operator()(const List& list) {
    add(list.size());
    for (const auto& x : list) (*this)(x);
  }

 private:
  void add(uint64_t x) { bytes_.append(reinterpret_cast<const char*>(&x), sizeof x); }

  const Effects& effects_;
  size_t position_;
  std::string bytes_;
};

}  // namespace

size_t eliminate_common_subexpressions(Graph& g, const PassOptions& options) {
  Effects effects(g);
  const std::vector<bool> learns = options.gradients ? differentiable(g) : std::vector<bool>(g.values.size());
  std::unordered_map<std::string, size_t> known;
  std::vector<bool> erased(g.calls.size());
  size_t count = 0;
  for (size_t i = 0; i < g.calls.size(); ++i) {
    if (!is_pure(g.calls[i])) continue;
    const auto [at, is_new] = known.try_emplace(Key(g.calls[i], effects, i).release(), i);
    if (is_new) continue;
    const std::vector<ValueId> first = g.calls[at->second].out, repeated = g.calls[i].out;
    bool may = first.size() == repeated.size();
    for (size_t k = 0; may && k < first.size(); ++k) {
      const bool none = repeated[k].id == ValueId::kNone;
      may = none == (first[k].id == ValueId::kNone) &&
            (none || (!learns[repeated[k].id] && effects.may_stand_for(first[k], repeated[k], at->second)));
    }
    if (!may) continue;
    for (size_t k = 0; k < first.size(); ++k) {
      if (repeated[k].id == ValueId::kNone) continue;
      replace_reads(g, i + 1, repeated[k], first[k]);
      effects.stands_for(first[k], repeated[k]);
    }
    erased[i] = true;
    ++count;
  }
  erase_calls(g, erased);
  return count;
}

}  // namespace warptape::graph
