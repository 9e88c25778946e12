// The text form of a graph.
//
//   graph<N in [2, 64]>(%0: float32[N, 8], %1: bool[]) {
//     const %2: float32[8, 4] = "fc.weight"
//     const %5: float32[4, 8] = "constant_5" strides [1, 4]
//     %3: float32[N, 8] = linear#5b3d9a21(input=%0, weight=%2, bias=None)  # "model.py:12"
//     %4: float32[N, 8] = cond(%1, [%3]) {
//       graph(%0: float32[N, 8]) { .. }
//       graph(%0: float32[N, 8]) { .. }
//     }
//     return %4
//   }
//
// A call with ` under no_grad` or ` under autocast cpu bfloat16` behind it runs in that state. `?` is any
// size,
// `[...?, ?]` are any number of them, two in the example; `floor(N)/2` is a quotient that is rounded down.
//
// Values are numbered as in the graph. Behind an op's name stands the hash of its signature. Floats are
// written so that they are read back to the bit.
#include <charconv>
#include <cmath>
#include <map>

#include "graph/ir/graph.h"
#include "tensor/memory_format.h"

namespace warptape::graph {
namespace {

std::string quoted(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || byte < 32 || byte == 127)
      out += {'\\', 'x', "0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
    else
      out += c;
  }
  return out + "\"";
}

class Writer {
 public:
  Writer(std::ostream& out, const Graph& g, std::string indent)
      : out_(out), g_(g), indent_(std::move(indent)) {}

  void graph() {
    out_ << "graph";
    const char* comma = "<";
    for (const Symbol& s : g_.symbols)
      out_ << std::exchange(comma, ", ") << s.name << " in [" << s.min << ", "
           << (s.max == INT64_MAX ? "inf" : std::to_string(s.max)) << "]";
    out_ << (g_.symbols.empty() ? "(" : ">(");
    comma = "";
    for (ValueId r : g_.inputs) {
      out_ << std::exchange(comma, ", ");
      value(r);
    }
    out_ << ") {\n";
    for (size_t i = 0; i < g_.values.size(); ++i)
      if (g_.values[i].kind == GraphValue::Kind::Constant) {
        out_ << indent_ << "  const ";
        value({static_cast<uint32_t>(i)});
        out_ << " = " << quoted(g_.values[i].name);
        strides(g_.values[i].tensor);
        out_ << "\n";
      }
    for (const GraphCall& c : g_.calls) call(c);
    out_ << indent_ << "  return";
    comma = " ";
    for (ValueId r : g_.outputs) out_ << std::exchange(comma, ", ") << "%" << r.id;
    out_ << "\n" << indent_ << "}";
  }

 private:
  void value(ValueId r) {
    if (r.id == ValueId::kNone) {
      out_ << "None";
      return;
    }
    const GraphValue& v = g_.values[r.id];
    out_ << "%" << r.id << ": " << v.dtype;
    const char* comma = v.any_sizes ? "[..." : "[";
    for (Dim d : v.sizes) {
      out_ << std::exchange(comma, ", ");
      (*this)(d);
    }
    out_ << (v.sizes.empty() ? comma : "") << "]";
    if (!v.device.is_cpu()) out_ << " on " << v.device;
  }
  // Those of a constant that fills a block in another order of dims; what has gaps is written without them.
  void strides(const Tensor& t) {
    if (t.is_contiguous() || !is_dense(t)) return;
    const char* comma = " strides [";
    for (int64_t n : t.strides()) out_ << std::exchange(comma, ", ") << n;
    out_ << "]";
  }
  void call(const GraphCall& c) {
    out_ << indent_ << "  ";
    const char* comma = "";
    for (ValueId r : c.out) {
      out_ << std::exchange(comma, ", ");
      value(r);
    }
    out_ << (c.out.empty() ? "" : " = ") << c.name();
    if (c.op) {
      char hash[9];
      std::snprintf(hash, sizeof hash, "%08x", signature_hash(*c.op));
      out_ << "#" << hash;
    }
    out_ << "(";
    comma = "";
    for (size_t i = 0; i < c.args.size(); ++i) {
      out_ << std::exchange(comma, ", ");
      if (c.op) out_ << c.op->args[i].name << "=";
      std::visit(*this, c.args[i]);
    }
    out_ << ")";
    mode(c.mode);
    const char* open = " {";
    for (const auto& branch : c.graphs) {
      out_ << std::exchange(open, "") << "\n" << indent_ << "    ";
      Writer(out_, *branch, indent_ + "    ").graph();
    }
    if (!c.graphs.empty()) out_ << "\n" << indent_ << "  }";
    if (!c.source.empty()) out_ << "  # " << quoted(c.source);
    out_ << "\n";
  }
  void mode(const CallMode& m) {
    if (m.no_grad) out_ << " under no_grad";
    if (m.autocast & kAutocast) out_ << " under autocast cpu " << m.cpu;
    if (m.autocast & kAutocastCuda) out_ << " under autocast cuda " << m.cuda;
  }
  void expr(const Expr& e) {
    if (e.floor) out_ << "floor";
    if (e.divisor != 1) out_ << "(";
    const char* plus = "";
    for (const Expr::Term& t : e.terms) {
      out_ << std::exchange(plus, " + ");
      const bool bare = t.factor == 1 && !t.symbols.empty();
      if (!bare) out_ << t.factor;
      const char* times = bare ? "" : "*";
      for (uint8_t s : t.symbols) out_ << std::exchange(times, "*") << g_.symbols[s].name;
    }
    if (e.terms.empty()) out_ << 0;
    if (e.divisor != 1) out_ << ")/" << e.divisor;
  }
  template <class List>
  void list(const List& items) {
    const char* comma = "[";
    for (const auto& x : items) {
      out_ << std::exchange(comma, ", ");
      (*this)(x);
    }
    out_ << (items.empty() ? "[]" : "]");
  }

 public:
  void operator()(std::monostate) { out_ << "None"; }
  void operator()(ValueId r) { r.id == ValueId::kNone ? out_ << "%_" : out_ << "%" << r.id; }
  void operator()(const std::vector<ValueId>& refs) { list(refs); }
  void operator()(Dim d) {
    if (d.expr == Dim::kNumber)
      out_ << d.value;
    else if (d.expr == Dim::kUnknown)
      out_ << "?";
    else
      expr(g_.exprs[static_cast<size_t>(d.expr)]);
  }
  void operator()(double x) {
    char text[40];
    const std::string_view shortest(text, std::to_chars(text, text + sizeof text, x).ptr);
    out_ << shortest;
    if (std::isfinite(x) && shortest.find_first_of(".e") == shortest.npos) out_ << ".0";
  }
  void operator()(bool x) { out_ << (x ? "True" : "False"); }
  void operator()(Complex<double> x) {
    out_ << "complex ";
    (*this)(x.re);
    out_ << " ";
    (*this)(x.im);
  }
  void operator()(const Dims& dims) { list(dims); }
  void operator()(const std::vector<Dims>& lists) { list(lists); }
  void operator()(const std::vector<double>& numbers) { list(numbers); }
  void operator()(const Scalar& s) {
    if (s.is_complex())
      (*this)(s.to_complex());
    else if (s.is_floating() || s.exceeds_int64())
      (*this)(s.to_double());
    else if (s.is_bool())
      (*this)(s.to_bool());
    else
      out_ << s.to_int();
  }
  void operator()(const std::vector<Scalar>& numbers) { list(numbers); }
  void operator()(DType t) { out_ << "dtype " << t; }
  void operator()(Device d) { out_ << "device " << d; }
  void operator()(const std::string& s) { out_ << quoted(s); }

 private:
  std::ostream& out_;
  const Graph& g_;
  std::string indent_;
};

}  // namespace

std::string Graph::text() const {
  std::ostringstream out;
  Writer(out, *this, "").graph();
  out << "\n";
  return std::move(out).str();
}

}  // namespace warptape::graph
