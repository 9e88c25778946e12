// Batch norm in evaluation folded into the weights of the convolution or linear layer before it.
#include "graph/ir/effects.h"
#include "graph/passes/passes.h"
#include "ops/conv/conv.h"
#include "ops/elementwise/elementwise.h"
#include "ops/linalg/matmul.h"
#include "ops/norm/norm.h"
#include "ops/view/view.h"

namespace warptape::graph {
namespace {

// y = (x - mean) / sqrt(var + eps) * weight + bias of x = W * input + b is W' * input + b'.
class BatchNormFolder {
 public:
  explicit BatchNormFolder(Graph& g)
      : g_(g), effects_(g), uses_(g.values.size()), maker_(g.values.size(), SIZE_MAX) {
    for (size_t i = 0; i < g.calls.size(); ++i) {
      each_id(g.calls[i], [&](ValueId r) {
        if (r.id != ValueId::kNone) ++uses_[r.id];
      });
      for (ValueId r : g.calls[i].out)
        if (r.id != ValueId::kNone) maker_[r.id] = i;
    }
    for (ValueId r : g.outputs) ++uses_[r.id];
  }

  size_t run() {
    return fold_calls(g_, [&](const GraphCall& c) { return fold(c); });
  }

 private:
  // The constant; undefined where the argument is None. Nothing where it is no constant, or one that changes.
  std::optional<Tensor> constant(const Attr* a) const {
    if (!a || std::holds_alternative<std::monostate>(*a)) return Tensor();
    const auto* r = std::get_if<ValueId>(a);
    if (!r) return std::nullopt;
    if (r->id == ValueId::kNone) return Tensor();
    const GraphValue& v = g_.values[r->id];
    const bool fixed =
        v.kind == GraphValue::Kind::Constant && !effects_.is_written(*r) && is_floating(v.dtype);
    return fixed ? std::optional(v.tensor) : std::nullopt;
  }
  // The product whose result `bn` alone reads.
  GraphCall* product_before(const GraphCall& bn) {
    const auto* x = std::get_if<ValueId>(&bn.args[0]);
    if (!x || x->id == ValueId::kNone || maker_[x->id] == SIZE_MAX || uses_[x->id] != 1) return nullptr;
    GraphCall& c = g_.calls[maker_[x->id]];
    if (!c.op || !is_pure(c) || g_.values[x->id].dtype != g_.values[bn.out[0].id].dtype) return nullptr;
    const bool linear = c.op == &ops::linear && g_.values[x->id].sizes.size() == 2;
    return linear || c.op->role == Role::Convolution || is_conv_alone(c) ? &c : nullptr;
  }

  static bool is_conv_alone(const GraphCall& c) {
    const Attr *residual = argument(c, "residual"), *relu = argument(c, "relu");
    return c.op == &ops::conv2d_add_relu && std::holds_alternative<std::monostate>(*residual) &&
           !std::get<bool>(*relu);
  }

  bool fold(const GraphCall& bn) {
    if (bn.op != &ops::batch_norm || !is_pure(bn) || bn.out.size() != 1) return false;
    GraphCall* c = product_before(bn);
    const auto mean = constant(argument(bn, "running_mean")), var = constant(argument(bn, "running_var"));
    const auto weight = constant(argument(bn, "weight")), bias = constant(argument(bn, "bias"));
    if (!c || !mean || !var || !weight || !bias || !mean->defined() || !var->defined()) return false;
    const auto of = constant(argument(*c, "weight")), offset = constant(argument(*c, "bias"));
    const Attr* eps = argument(bn, "eps");
    if (!of || !offset || !of->defined() || !eps || !std::holds_alternative<double>(*eps)) return false;

    const auto wide = [](const Tensor& t) { return raw_cast(t, DType::Float64); };
    Tensor scale = ops::rsqrt(ops::add_ts(wide(*var), std::get<double>(*eps), 1));
    if (weight->defined()) scale = ops::mul(scale, wide(*weight));
    Shape rows(of->sizes().size(), 1);
    rows[0] = scale.sizes()[0];
    const Tensor scaled = ops::mul(wide(*of), ops::view(scale, rows));
    Tensor shift = ops::mul(ops::neg(wide(*mean)), scale);
    if (offset->defined()) shift = ops::add(shift, ops::mul(wide(*offset), scale), 1);
    if (bias->defined()) shift = ops::add(shift, wide(*bias), 1);
    set(*c, "weight", raw_cast(scaled, of->dtype()));
    set(*c, "bias", raw_cast(shift, of->dtype()));
    c->out = bn.out;
    return true;
  }
  void set(GraphCall& c, const char* name, const Tensor& t) {
    const ValueId r = g_.add_constant(t);
    for (size_t i = 0; i < c.args.size(); ++i)
      if (std::string_view(c.op->args[i].name) == name) c.args[i] = r;
  }

  Graph& g_;
  const Effects effects_;
  std::vector<size_t> uses_, maker_;  // by value: references; the call
};

}  // namespace

size_t fold_frozen_conv_bn(Graph& g, const PassOptions&) { return BatchNormFolder(g).run(); }

}  // namespace warptape::graph
