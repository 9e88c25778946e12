// Constant propagation: calls whose arguments are constants become constants.
#include "graph/ir/effects.h"
#include "graph/passes/passes.h"
#include "tensor/factory.h"
#include "tensor/memory_format.h"

namespace warptape::graph {
namespace {

// A result larger than what it is made of, and than this, is made anew in each run: files stay small.
constexpr int64_t kSmallBytes = 1 << 16;

class Folder {
 public:
  Folder(Graph& g, const PassOptions& o) : g_(g), freeze_(o.freeze), effects_(g) {}

  size_t run() {
    return fold_calls(g_, [&](const GraphCall& c) { return may_fold(c) && fold(c); });
  }

 private:
  bool is_fixed(ValueId v) const {
    const GraphValue& value = g_.values[v.id];
    if (value.kind != GraphValue::Kind::Constant || effects_.is_written(v)) return false;
    return freeze_ || (is_literal(g_, v) && !requires_grad(value.tensor));
  }
  bool may_fold(const GraphCall& c) const {
    // What autocast would change is folded only in a graph that is frozen in the state it was recorded in.
    if (!is_pure(c) || (!freeze_ && is_autocast(c))) return false;
    if (c.op->flags & kUninitialized) return false;
    bool fixed = true;
    int64_t operands = 0;
    each_id(c, [&](ValueId r) {
      if (r.id == ValueId::kNone) return;
      fixed &= is_fixed(r);
      if (fixed) operands += bytes(g_.values[r.id].tensor);
    });
    if (!fixed || depends_on_sizes(c)) return false;
    for (ValueId r : c.out) {
      if (r.id == ValueId::kNone) continue;
      // A caller who gets a constant could change it.
      if (effects_.is_written(r) || effects_.is_returned(r)) return false;
      int64_t n = static_cast<int64_t>(itemsize(g_.values[r.id].dtype));
      for (Dim d : g_.values[r.id].sizes) {
        if (d.expr != Dim::kNumber || __builtin_mul_overflow(n, d.value, &n)) return false;
      }
      if (n > std::max(operands, kSmallBytes)) return false;
    }
    return true;
  }
  bool is_autocast(const GraphCall& c) const {
    return std::ranges::any_of(c.out, [&](ValueId r) {
      return r.id != ValueId::kNone && c.op->autocast(g_.values[r.id].device.is_cuda()) != Autocast::Keep;
    });
  }
  static int64_t bytes(const Tensor& t) { return t.numel() * static_cast<int64_t>(t.itemsize()); }
  static bool depends_on_sizes(const GraphCall& c) {
    bool varies = false;
    for (const Attr& a : c.args) each_dim(a, [&](Dim d) { varies |= d.expr != Dim::kNumber; });
    return varies;
  }

  // The call alone as a graph, which is run.
  std::vector<Tensor> evaluate(const GraphCall& c) const {
    Graph one;
    one.calls.push_back(c);
    const auto copy = [&](ValueId& r) {
      if (r.id == ValueId::kNone) return;
      one.values.push_back(g_.values[r.id]);
      r.id = static_cast<uint32_t>(one.values.size() - 1);
    };
    each_id(one.calls[0], copy);
    for (ValueId& r : one.calls[0].out) {
      copy(r);
      if (r.id != ValueId::kNone) one.outputs.push_back(r);
    }
    one.finish();
    return one.run({});
  }
  bool fold(const GraphCall& c) {
    std::vector<Tensor> results;
    try {
      results = evaluate(c);
    } catch (const std::exception&) {
      return false;  // it is raised where the graph runs
    }
    size_t at = 0;
    for (ValueId r : c.out) {
      if (r.id == ValueId::kNone) continue;
      const Tensor& t = results[at++];
      const GraphValue& v = g_.values[r.id];
      bool fits = t.defined() && t.dtype() == v.dtype && t.device() == v.device && is_dense(t) &&
                  t.sizes().size() == v.sizes.size();
      for (size_t d = 0; fits && d < v.sizes.size(); ++d) fits = v.sizes[d].value == t.sizes()[d];
      if (!fits) return false;
    }
    at = 0;
    for (ValueId r : c.out) {
      if (r.id == ValueId::kNone) continue;
      GraphValue& v = g_.values[r.id];
      v.kind = GraphValue::Kind::Constant;
      v.name = unused(message("constant_", r.id));
      v.tensor = alias(results[at++]);
    }
    return true;
  }
  std::string unused(std::string name) const {
    const auto is_used = [&](const GraphValue& v) {
      return v.kind == GraphValue::Kind::Constant && v.name == name;
    };
    while (std::ranges::any_of(g_.values, is_used)) name += "_";
    return name;
  }

  Graph& g_;
  bool freeze_;
  Effects effects_;
};

}  // namespace

size_t propagate_constants(Graph& g, const PassOptions& options) { return Folder(g, options).run(); }

}  // namespace warptape::graph
