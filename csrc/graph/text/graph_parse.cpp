// Reading the text form of a graph; graph_text.cpp has the grammar.
#include <functional>

#include "graph/ir/graph.h"
#include "graph/text/lexer.h"
#include "op/visit.h"
#include "tensor/factory.h"
#include "tensor/memory_format.h"

namespace warptape::graph {
namespace {

using Constants = std::function<Tensor(std::string_view name)>;

constexpr uint32_t kMaxValues = 1 << 24;  // of a graph: more are a broken file
constexpr int kMaxDepth = 32;             // of branches within branches

class Parser {
 public:
  Parser(Lexer& in, const Constants& constants, int depth) : in_(in), constants_(constants), depth_(depth) {
    if (depth > kMaxDepth) in.fail(message("at most ", kMaxDepth, " branches within each other"));
  }

  Graph graph() {
    in_.expect("graph");
    if (in_.accept("<")) symbols();
    in_.expect("(");
    in_.list(")", [&] { g_.inputs.push_back(value(GraphValue::Kind::Input)); });
    in_.expect("{");
    while (in_.accept("const ")) constant();
    while (!in_.accept("return")) call();
    while (in_.peek() == '%') {
      g_.outputs.push_back(ref());
      if (!in_.accept(",")) break;
    }
    in_.expect("}");
    g_.finish();
    return std::move(g_);
  }

 private:
  void symbols() {
    in_.list(">", [&] {
      Symbol& s = g_.symbols.emplace_back();
      s.name = in_.word();
      in_.expect("in");
      in_.expect("[");
      s.min = in_.number<int64_t>();
      in_.expect(",");
      s.max = in_.accept("inf") ? INT64_MAX : in_.number<int64_t>();
      in_.expect("]");
    });
    if (g_.symbols.size() > 64) in_.fail("at most 64 symbols");
  }
  ValueId ref() {
    in_.expect("%");
    if (in_.accept("_")) return {};
    const ValueId r{in_.number<uint32_t>()};
    if (r.id >= kMaxValues) in_.fail("a smaller number of a value");
    return r;
  }
  ValueId value(GraphValue::Kind kind) {
    if (in_.accept("None")) return {};
    const ValueId r = ref();
    if (r.id == ValueId::kNone) in_.fail("a value before this");
    if (r.id >= g_.values.size()) g_.values.resize(r.id + 1);
    in_.expect(":");
    const DType t = in_.dtype();
    const bool any = kind != GraphValue::Kind::Constant && in_.accept("[...");
    Dims sizes;
    if (!any) in_.expect("[");
    in_.list("]", [&] { sizes.push_back(dim()); });
    GraphValue& v = g_.values[r.id];
    v = {kind, t, {}, std::move(sizes), {}, any, r.id, {}};
    if (in_.accept("on ")) v.device = in_.device();
    return r;
  }
  void constant() {
    const ValueId r = value(GraphValue::Kind::Constant);
    in_.expect("=");
    GraphValue& v = g_.values[r.id];
    v.name = in_.string();
    v.tensor = constants_(v.name);
    bool fits =
        v.tensor.defined() && v.tensor.dtype() == v.dtype && v.tensor.sizes().size() == v.sizes.size();
    for (size_t d = 0; fits && d < v.sizes.size(); ++d) fits = v.sizes[d] == Dim{v.tensor.sizes()[d]};
    if (!fits)
      in_.fail(message("constant \"", v.name, "\" to be there, with this dtype and shape, before this"));
    v.tensor = moved(v.tensor, v.device);
    if (in_.accept("strides")) v.tensor = laid_out(v.tensor);
  }
  // The tensor in memory of these strides, which fill a block.
  Tensor laid_out(const Tensor& t) {
    Shape strides;
    in_.expect("[");
    in_.list("]", [&] { strides.push_back(in_.number<int64_t>()); });
    int64_t last = 0;  // element
    bool fits = strides.size() == t.sizes().size() && t.numel() > 0;
    for (size_t d = 0; fits && d < strides.size(); ++d) {
      int64_t step = 0;
      fits = strides[d] >= 0 && !__builtin_mul_overflow(t.sizes()[d] - 1, strides[d], &step) &&
             !__builtin_add_overflow(last, step, &last);
    }
    if (!fits || last != t.numel() - 1) in_.fail("strides without gaps before this");
    Tensor out = empty_strided(t.sizes(), strides, {t.dtype(), t.device()});
    if (!is_dense(out)) in_.fail("strides without overlap before this");
    raw_copy(out, t);
    return out;
  }

  void call() {
    GraphCall c;
    if (in_.peek() == '%' || in_.peek() == 'N') {
      do c.out.push_back(value(GraphValue::Kind::Result));
      while (in_.accept(","));
      in_.expect("=");
    }
    const std::string name(in_.word());
    if (in_.accept("#")) {
      c.op = &find_op(name, in_.number<uint32_t>(16));
      c.refused = !may_be_in_files(*c.op);
      arguments(c);
    } else {
      control(c, name);
    }
    while (c.graphs.empty() && in_.accept("under ")) mode(c.mode);
    if (in_.accept("#")) c.source = in_.string();
    g_.calls.push_back(std::move(c));
  }
  void mode(CallMode& m) {
    if (in_.accept("no_grad")) {
      m.no_grad = true;
      return;
    }
    in_.expect("autocast");
    const bool cpu = in_.accept("cpu");
    if (!cpu) in_.expect("cuda");
    const DType t = in_.dtype();
    if (t != DType::BFloat16 && t != DType::Float16) in_.fail("bfloat16 or float16 before this");
    m.autocast |= cpu ? kAutocast : kAutocastCuda;
    (cpu ? m.cpu : m.cuda) = t;
  }
  void arguments(GraphCall& c) {
    in_.expect("(");
    for (const Arg& a : c.op->args) {
      if (&a != c.op->args.data()) in_.expect(",");
      in_.expect(a.name);
      in_.expect("=");
      c.args.push_back(attr(a));
    }
    in_.expect(")");
  }
  void control(GraphCall& c, const std::string& name) {
    const bool cond = name == "cond", loop = name == "while_loop", scan = name == "scan";
    if (!cond && !loop && !scan) in_.fail("the hash of an op's signature");
    c.callee = cond ? Callee::Cond : loop ? Callee::WhileLoop : Callee::Scan;
    in_.expect("(");
    in_.list(")", [&] { c.args.push_back(in_.peek() == '[' ? Attr(refs()) : Attr(ref())); });
    while (in_.accept("under ")) mode(c.mode);
    in_.expect("{");
    while (in_.peek() == 'g')
      c.graphs.push_back(std::make_shared<Graph>(Parser(in_, constants_, depth_ + 1).graph()));
    in_.expect("}");
  }

  template <class F>
  auto all_of(F&& item) {
    std::vector<decltype(item())> out;
    in_.expect("[");
    in_.list("]", [&] { out.push_back(item()); });
    return out;
  }

  Attr attr(const Arg& a) {
    if (in_.peek_word() == "None") return in_.accept("None"), std::monostate();
    return visit_type(
        a.type, Overloaded{
                    [&](std::type_identity<Tensor>) -> Attr { return ref(); },
                    [&](std::type_identity<TensorList>) -> Attr { return refs(); },
                    [&](std::type_identity<std::span<const OptTensor>>) -> Attr { return refs(); },
                    [&](std::type_identity<int64_t>) -> Attr { return dim(); },
                    [&](std::type_identity<double>) -> Attr { return in_.number<double>(); },
                    [&](std::type_identity<bool>) -> Attr { return boolean(); },
                    [&](std::type_identity<Scalar>) -> Attr { return scalar(); },
                    [&](std::type_identity<IntList>) -> Attr { return dims(); },
                    [&](std::type_identity<std::span<const Shape>>) -> Attr {
                      return all_of([&] { return dims(); });
                    },
                    [&](std::type_identity<std::span<const double>>) -> Attr {
                      return all_of([&] { return in_.number<double>(); });
                    },
                    [&](std::type_identity<ScalarList>) -> Attr { return all_of([&] { return number(); }); },
                    [&](std::type_identity<DType>) -> Attr { return in_.expect("dtype"), in_.dtype(); },
                    [&](std::type_identity<Device>) -> Attr { return in_.expect("device"), in_.device(); },
                    [&](std::type_identity<std::string_view>) -> Attr { return in_.string(); },
                    [&](std::type_identity<Generator*>) -> Attr { in_.fail("None"); },
                });
  }
  std::vector<ValueId> refs() {
    std::vector<ValueId> out;
    in_.expect("[");
    in_.list("]", [&] { out.push_back(ref()); });
    return out;
  }
  bool boolean() {
    if (in_.accept("True")) return true;
    in_.expect("False");
    return false;
  }
  Attr scalar() {
    if (in_.peek_word() == "True" || in_.peek_word() == "False") return boolean();
    if (in_.peek_word() == "complex") {
      in_.accept("complex");
      const double re = in_.number<double>();
      return Complex<double>{re, in_.number<double>()};
    }
    if (in_.float_comes()) return in_.number<double>();
    return dim();
  }
  // A number of a list of numbers, none of which is an expression.
  Scalar number() {
    const Attr x = scalar();
    if (const auto* d = std::get_if<Dim>(&x)) {
      if (d->expr != Dim::kNumber) in_.fail("a number");
      return d->value;
    }
    if (const auto* b = std::get_if<bool>(&x)) return *b;
    if (const auto* c = std::get_if<Complex<double>>(&x)) return *c;
    return std::get<double>(x);
  }
  Dims dims() {
    Dims out;
    in_.expect("[");
    in_.list("]", [&] { out.push_back(dim()); });
    return out;
  }

  Dim dim() {
    if (in_.accept("?")) return {0, Dim::kUnknown};
    const bool floor = in_.accept("floor("), divided = floor || in_.accept("(");
    Expr e;
    do {
      Expr::Term& t = e.terms.emplace_back();
      t.factor = 1;
      if (!in_.peek_word().empty() && !std::isdigit(static_cast<unsigned char>(in_.peek())))
        t.symbols.push_back(symbol());
      else
        t.factor = in_.number<int64_t>();
      while (in_.accept("*")) t.symbols.push_back(symbol());
    } while (in_.accept("+"));
    if (divided) {
      in_.expect(")");
      in_.expect("/");
      e.divisor = in_.number<int64_t>();
      e.floor = floor;
    }
    if (!divided && e.terms.size() == 1 && e.terms[0].symbols.empty()) return {e.terms[0].factor};
    return g_.size(e, 0);
  }
  uint8_t symbol() {
    const std::string_view name = in_.word();
    for (size_t s = 0; s < g_.symbols.size(); ++s)
      if (g_.symbols[s].name == name) return static_cast<uint8_t>(s);
    in_.fail("a symbol of the graph before this");
  }

  Lexer& in_;
  const Constants& constants_;
  int depth_;
  Graph g_;
};

}  // namespace

Graph Graph::parse(std::string_view text, const Constants& constant) {
  Lexer in(text);
  Graph g = Parser(in, constant, 0).graph();
  if (!in.done()) in.fail("the end of the graph");
  return g;
}

}  // namespace warptape::graph
