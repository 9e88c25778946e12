// Convolutions of a frozen graph: channels innermost, with the addition and the ReLU behind them in one call,
// and with weights that are packed once.
#include "graph/ir/packed_weights.h"
#include "graph/passes/passes.h"
#include "ops/conv/conv.h"
#include "ops/elementwise/activation.h"
#include "ops/elementwise/elementwise.h"
#include "ops/view/copy.h"
#include "tensor/memory_format.h"

namespace warptape::graph {
namespace {

const OpInfo* const kConv = &ops::conv2d;
const OpInfo* const kFused = &ops::conv2d_add_relu;

bool is_one_of(const OpInfo* op, std::initializer_list<const OpInfo*> ops) {
  return std::ranges::find(ops, op) != ops.end();
}

ValueId add_value(Graph& g, GraphValue like, GraphValue::Kind kind, const Tensor& t) {
  like.kind = kind;
  like.name = kind == GraphValue::Kind::Constant ? message("constant_", g.values.size()) : "";
  like.tensor = t;
  return g.add(std::move(like));
}

ValueId operand(const GraphCall& c, std::string_view name) {
  const Attr* a = argument(c, name);
  const auto* v = a ? std::get_if<ValueId>(a) : nullptr;
  return v ? *v : ValueId{};
}

void set_operand(GraphCall& c, std::string_view name, Attr value) {
  for (size_t i = 0; i < c.args.size(); ++i)
    if (name == c.op->args[i].name) c.args[i] = std::move(value);
}

bool may_have_same_sizes(const GraphValue& x, const GraphValue& y) {
  return std::ranges::equal(x.sizes, y.sizes, [](Dim a, Dim b) {
    return a == b || a.expr == Dim::kUnknown || b.expr == Dim::kUnknown;
  });
}

// The convolution's weight where it is a constant on the CPU that stays as it is, else null.
const GraphValue* weight_of(const Graph& g, const Effects& effects, const GraphCall& c) {
  const ValueId w = c.op == kConv || c.op == kFused ? operand(c, "weight") : ValueId{};
  if (w.id == ValueId::kNone || g.values[w.id].kind != GraphValue::Kind::Constant) return nullptr;
  const Tensor& t = g.values[w.id].tensor;
  const bool suits = t.ndim() == 4 && t.device().is_cpu() && is_floating(t.dtype());
  return suits && !effects.is_written(w) ? &g.values[w.id] : nullptr;
}

// The weights of convolutions lie with their channels innermost; so do the results then, and what pointwise
// ops and pools make of them. Ops that may give a view see what they saw before, and so does the caller.
class ChannelsLast {
 public:
  explicit ChannelsLast(Graph& g)
      : g_(g), effects_(g), innermost_(g.values.size()), row_major_(g.values.size()) {}

  size_t run() {
    std::vector<GraphCall> calls = std::exchange(g_.calls, {});
    size_t count = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      GraphCall& c = calls[i];
      const bool views = !c.op || (may_share_memory(g_, c) && written(c).empty());
      bool marks = rewrite(c);
      count += marks;
      each_id(c, [&](ValueId& r) {
        if (r.id == ValueId::kNone || r.id >= innermost_.size() || !innermost_[r.id]) return;
        if (views)
          r = contiguous(r, i);
        else
          marks = true;
      });
      for (ValueId r : c.out)
        if (r.id != ValueId::kNone) innermost_[r.id] = marks && !views;
      g_.calls.push_back(std::move(c));
    }
    for (ValueId& r : g_.outputs)
      if (r.id < innermost_.size() && innermost_[r.id]) r = contiguous(r, calls.size());
    return count;
  }
  // A view may have to see a later write.
  bool failed() const { return failed_; }

 private:
  bool rewrite(GraphCall& c) {
    const GraphValue* w = weight_of(g_, effects_, c);
    if (!w || is_contiguous_in(w->tensor, MemoryFormat::ChannelsLast)) return false;
    const Attr* groups = argument(c, "groups");
    if (!suits(*w, *groups)) return false;
    const Tensor t = raw_in(w->tensor, MemoryFormat::ChannelsLast);
    const ValueId result = add_value(g_, *w, GraphValue::Kind::Constant, t);
    set_operand(c, "weight", result);
    return true;
  }
  static bool suits(const GraphValue& w, const Attr& groups) {
    const auto* n = std::get_if<Dim>(&groups);
    if (!n || n->expr != Dim::kNumber || n->value < 1) return false;
    const Shape& sizes = w.tensor.sizes();
    const int64_t narrowest = std::min(sizes[0] / n->value, sizes[1]);
    return n->value == 1 || narrowest >= 8 || (sizes[0] == n->value && sizes[1] == 1);
  }
  ValueId contiguous(ValueId v, size_t call) {
    ValueId& result = row_major_[v.id];
    if (result.id != ValueId::kNone) return result;
    failed_ |= effects_.is_written_after(v, call);
    result = add_value(g_, g_.values[v.id], GraphValue::Kind::Result, {});
    GraphCall& c = g_.calls.emplace_back();
    c.op = &ops::contiguous;
    c.args = {v};
    c.out = {result};
    return result;
  }

  Graph& g_;
  const Effects effects_;
  std::vector<bool> innermost_;     // by value: whether channels may be
  std::vector<ValueId> row_major_;  // its copy, if there is one
  bool failed_ = false;
};

// conv2d, + residual, relu: where nobody else reads what lies between, one call in the place of the last.
class ConvFuser {
 public:
  explicit ConvFuser(Graph& g)
      : g_(g), effects_(g), uses_(g.values.size()), reader_(g.values.size()), erased_(g.calls.size()) {
    for (size_t i = 0; i < g.calls.size(); ++i)
      each_id(g.calls[i], [&](ValueId r) {
        if (r.id != ValueId::kNone) ++uses_[r.id], reader_[r.id] = i;
      });
    for (ValueId r : g.outputs) uses_[r.id] += 2;
  }

  size_t run() {
    size_t count = 0;
    for (size_t i = g_.calls.size(); i-- > 0;) {
      const GraphCall& c = g_.calls[i];
      if (c.op != kConv || !on_cpu(c.out[0])) continue;
      Tail t{i, i, {}, {}};
      follow(c.out[0], t);
      if (t.calls.empty() && !is_channels_last(c)) continue;
      fuse(t);
      count += t.calls.size();
    }
    erase_calls(g_, erased_);
    return count;
  }

 private:
  struct Tail {
    size_t conv, last;  // calls
    std::vector<size_t> calls;
    ValueId residual;
    bool inplace = false, relu = false;
  };

  bool on_cpu(ValueId v) const {
    const GraphValue& value = g_.values[v.id];
    return value.device.is_cpu() && value.sizes.size() == 4 &&
           (value.dtype == DType::Float32 || value.dtype == DType::Float64);
  }
  bool is_channels_last(const GraphCall& c) const {
    const GraphValue* w = weight_of(g_, effects_, c);
    return w && is_contiguous_in(w->tensor, MemoryFormat::ChannelsLast);
  }

  // The addition and the ReLU of `v`, the convolution's result so far.
  void follow(ValueId v, Tail& t) const {
    while (uses_[v.id] == 1 && !t.relu) {
      const size_t at = reader_[v.id];
      const GraphCall& c = g_.calls[at];
      if (!c.op || erased_[at] || c.out.size() != 1 || !unwritten(t, at)) return;
      if (is_one_of(c.op, {&ops::relu, &ops::nn_relu, &ops::relu_})) {
        t.relu = true;
      } else if (is_one_of(c.op, {&ops::add, &ops::add_}) && t.residual.id == ValueId::kNone) {
        t.residual = other_of(c, v);
        if (t.residual.id == ValueId::kNone) return;
        t.inplace = !written(c).empty();
      } else {
        return;
      }
      t.calls.push_back(at);
      t.last = at;
      v = c.out[0];
    }
  }
  // What the call adds to `v`, if it may have v's sizes (the op adds what has others by broadcasting);
  // nothing where it is written onto something else.
  ValueId other_of(const GraphCall& c, ValueId v) const {
    const Attr* alpha = argument(c, "alpha");
    const auto* one = alpha ? std::get_if<Dim>(alpha) : nullptr;
    const auto *a = std::get_if<ValueId>(&c.args[0]), *b = std::get_if<ValueId>(&c.args[1]);
    if (!one || !(*one == Dim{1}) || !a || !b || *a == *b) return {};
    const ValueId other = *a == v ? *b : *a;
    const bool onto_other = !(*a == v) && !written(c).empty();
    const GraphValue &x = g_.values[v.id], &y = g_.values[other.id];
    return !onto_other && may_have_same_sizes(x, y) && x.dtype == y.dtype && y.device.is_cpu() ? other
                                                                                               : ValueId{};
  }
  // Whether what the convolution and the addition read is the same at the call.
  bool unwritten(const Tail& t, size_t at) const {
    const auto stays = [&](ValueId r, size_t from) {
      return r.id == ValueId::kNone || effects_.writes_before(r, from) == effects_.writes_before(r, at);
    };
    bool all = t.calls.empty() || stays(t.residual, t.calls[0]);
    each_id(g_.calls[t.conv], [&](ValueId r) { all &= stays(r, t.conv); });
    return all;
  }

  void fuse(const Tail& t) {
    const GraphCall& conv = g_.calls[t.conv];
    GraphCall result = conv;
    result.op = kFused;
    result.args.clear();
    for (const Arg& a : kFused->args) {
      const Attr* same = argument(conv, a.name);
      result.args.push_back(same ? *same : Attr());
    }
    if (t.residual.id != ValueId::kNone) set_operand(result, "residual", t.residual);
    set_operand(result, "inplace", t.inplace);
    set_operand(result, "relu", t.relu);
    result.out = g_.calls[t.last].out;
    erased_[t.conv] = true;
    for (size_t at : t.calls) erased_[at] = true;
    erased_[t.last] = false;
    g_.calls[t.last] = std::move(result);
  }

  Graph& g_;
  const Effects effects_;
  std::vector<size_t> uses_, reader_;  // by value: references; the last call that reads it
  std::vector<bool> erased_;           // calls
};

}  // namespace

size_t prefer_channels_last(Graph& g, const PassOptions&) {
  Graph result = g;
  ChannelsLast pass(result);
  const size_t count = pass.run();
  if (pass.failed() || !count) return 0;
  g = std::move(result);
  return count;
}

size_t fuse_frozen_conv_add_relu(Graph& g, const PassOptions&) { return ConvFuser(g).run(); }

// Of graphs that have channels innermost somewhere: weights of 1 x 1 kernels alone do not tell.
void pack_frozen_weights(Graph& g) {
  const Effects effects(g);
  const auto weight = [&](const GraphCall& c) { return c.op == kFused ? weight_of(g, effects, c) : nullptr; };
  const bool innermost = std::ranges::any_of(g.calls, [&](const GraphCall& c) {
    const GraphValue* w = weight(c);
    return w && suggests_channels_last(w->tensor);
  });
  for (GraphCall& c : g.calls) {
    const GraphValue* w = weight(c);
    if (!w) continue;
    const bool packs = innermost && is_contiguous_in(w->tensor, MemoryFormat::ChannelsLast);
    set_packed(
        c, w->tensor,
        packs ? ops::pack_conv_weight(w->tensor, std::get<Dim>(*argument(c, "groups")).value) : Tensor());
  }
  pack_linear_weights(g, effects);
}

}  // namespace warptape::graph
