// Graphs for all sizes, from graphs that were recorded at some.
#include <bit>
#include <cstring>
#include <unordered_set>

#include "graph/record/trace.h"
#include "tensor/factory.h"

namespace warptape::graph {
namespace {

bool equal(const Tensor& a, const Tensor& b) {
  if (!(a.sizes() == b.sizes()) || a.dtype() != b.dtype() || a.device() != b.device()) return false;
  const Tensor x = raw_contiguous(moved(a, {})), y = raw_contiguous(moved(b, {}));
  return !x.numel() || !std::memcmp(x.data(), y.data(), static_cast<size_t>(x.numel()) * x.itemsize());
}

std::string at(const GraphCall& c) { return message(c.name(), c.source.empty() ? "" : " at ", c.source); }

[[noreturn]] void refuse(const GraphCall& c, const std::string& why) {
  throw NotImplementedError(message("export: ", why, ": ", at(c)));
}

// Walks graphs of the same calls side by side: f(dims, of_result) is called with pointers to the integers
// that correspond, and whether these are sizes of a result; all else must be equal.
class Parallel {
 public:
  // `others`: what the graphs were recorded with other ones of, for errors.
  Parallel(std::span<Graph* const> graphs, const char* others,
           std::function<void(std::span<Dim* const>, bool of_result)> f)
      : graphs_(graphs), others_(others), f_(std::move(f)) {}

  void walk() {
    const Graph& first = *graphs_[0];
    for (const Graph* g : graphs_) check_calls(first, *g);
    for (size_t i = 0; i < first.calls.size(); ++i) {
      call_ = &first.calls[i];
      for (size_t a = 0; a < call_->args.size(); ++a) attr(i, a);
      for (size_t sub = 0; sub < call_->graphs.size(); ++sub) refuse_unequal(i, sub);
    }
    call_ = nullptr;
    for (size_t v = 0; v < first.values.size(); ++v) {
      of_result_ = first.values[v].kind == GraphValue::Kind::Result;
      each([&](Graph& g) -> Dims& { return g.values[v].sizes; });
    }
  }

 private:
  void check_calls(const Graph& a, const Graph& b) const {
    for (size_t i = 0; i < std::min(a.calls.size(), b.calls.size()); ++i) {
      const GraphCall &x = a.calls[i], &y = b.calls[i];
      const bool same = x.callee == y.callee && x.op == y.op && x.out == y.out && x.mode == y.mode;
      if (!same) refuse(y, message("other ops are called for other ", others_, " of the inputs"));
    }
    WT_CHECK(a.calls.size() == b.calls.size() && a.values.size() == b.values.size() && a.outputs == b.outputs,
             NotImplementedError, "export: other ops are called for other ", others_,
             " of the inputs: ", a.calls.size(), " calls become ", b.calls.size());
    for (size_t v = 0; v < a.values.size(); ++v) {
      const GraphValue &x = a.values[v], &y = b.values[v];
      const bool same = x.kind == y.kind && x.dtype == y.dtype && x.sizes.size() == y.sizes.size();
      WT_CHECK(same && (!x.tensor.defined() || x.tensor.same(y.tensor) || equal(x.tensor, y.tensor)),
               NotImplementedError, "export: a tensor that no op made (constant %", v,
               ") depends on the inputs: make it by ops (torch.arange, torch.full, ..)");
    }
  }
  // Branches whose integers depend on sizes are not generalised.
  void refuse_unequal(size_t call, size_t sub) const {
    const std::string text = call_->graphs[sub]->text();
    for (const Graph* g : graphs_)
      if (g->calls[call].graphs[sub]->text() != text)
        refuse(*call_, "sizes that vary are used within the branch of an op of control flow");
  }

  template <class F>
  void each(F&& list_of) {
    const size_t n = list_of(*graphs_[0]).size();
    for (const Graph* g : graphs_)
      if (list_of(const_cast<Graph&>(*g)).size() != n) different();
    for (size_t k = 0; k < n; ++k) one([&](Graph& g) -> Dim& { return list_of(g)[k]; });
  }
  template <class F>
  void one(F&& of) {
    std::vector<Dim*> dims;
    for (Graph* g : graphs_) dims.push_back(&of(*g));
    f_(dims, of_result_);
  }
  [[noreturn]] void different() const {
    if (call_)
      refuse(*call_, message("an argument which is no integer depends on the ", others_, " of the inputs"));
    throw NotImplementedError(
        message("export: the number of dims depends on the ", others_, " of the inputs"));
  }
  // Where one item stands for all, as the batch size of a recurrent layer: of lists that differ in length,
  // one is left where all are equal.
  void shorten(size_t i, size_t a) const {
    if (!call_->op || !(call_->op->args[a].marks & kRepeats)) return;
    bool differ = false, alike = true;
    const auto of = [&](Graph* g) -> Dims& { return std::get<Dims>(g->calls[i].args[a]); };
    for (Graph* g : graphs_) {
      const Dims& list = of(g);
      differ |= list.size() != of(graphs_[0]).size();
      alike &= !list.empty() && std::ranges::all_of(list, [&](Dim d) { return d == list[0]; });
    }
    if (!differ || !alike) return;
    for (Graph* g : graphs_) of(g).resize(1);
  }
  void attr(size_t i, size_t a) {
    const auto of = [i, a](Graph& g) -> Attr& { return g.calls[i].args[a]; };
    Attr& first = of(*graphs_[0]);
    for (Graph* g : graphs_)
      if (of(*g).index() != first.index()) different();
    if (std::holds_alternative<Dim>(first))
      return one([&](Graph& g) -> Dim& { return std::get<Dim>(of(g)); });
    if (std::holds_alternative<Dims>(first)) shorten(i, a);
    if (std::holds_alternative<Dims>(first))
      return each([&](Graph& g) -> Dims& { return std::get<Dims>(of(g)); });
    for (Graph* g : graphs_)
      if (!same(of(*g), first)) different();
  }
  // NaN is equal to itself here.
  static bool same(const Attr& a, const Attr& b) {
    const auto *x = std::get_if<double>(&a), *y = std::get_if<double>(&b);
    if (x && y) return std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y);
    const auto *u = std::get_if<Complex<double>>(&a), *v = std::get_if<Complex<double>>(&b);
    if (u && v) return u->re == v->re && u->im == v->im;
    return std::visit(
        []<class T>(const T& p, const auto& q) {
          if constexpr (std::is_same_v<T, std::remove_cvref_t<decltype(q)>> && requires { p == q; })
            return static_cast<bool>(p == q);
          else
            return false;
        },
        a, b);
  }

  std::span<Graph* const> graphs_;
  const char* others_;
  std::function<void(std::span<Dim* const>, bool)> f_;
  bool of_result_ = false;
  const GraphCall* call_ = nullptr;
};

std::vector<Graph*> pointers(std::span<Graph> graphs) {
  std::vector<Graph*> out;
  for (Graph& g : graphs) out.push_back(&g);
  return out;
}

// Puts the symbols of inputs before those that depend on values, which get names of their own.
void merge_symbols(Graph& g, std::vector<Symbol> symbols) {
  for (Expr& e : g.exprs) e = e.renumbered([&](uint8_t s) { return s + symbols.size(); });
  for (Symbol& own : g.symbols) {
    while (std::ranges::find(symbols, own.name, &Symbol::name) != symbols.end()) own.name += "_";
    symbols.push_back(std::move(own));
  }
  g.symbols = std::move(symbols);
}

// Integers that depend on values do in the same way.
void check_same(const Graph& g, Dim a, const Graph& h, Dim b) {
  WT_CHECK(a.expr >= 0 && b.expr >= 0 &&
               g.exprs[static_cast<size_t>(a.expr)] == h.exprs[static_cast<size_t>(b.expr)],
           NotImplementedError,
           "export: a size that depends on values is used for some sizes of the inputs and not for others");
}

// The bits of the sizes on which an integer depends, as far as traces with one other size each tell.
uint64_t support(std::span<Dim* const> of_traces, std::span<const uint64_t> masks) {
  uint64_t out = 0;
  for (size_t k = 0; k < masks.size(); ++k)
    if (std::has_single_bit(masks[k]) && of_traces[k]->value != of_traces[0]->value) out |= masks[k];
  return out;
}

// The next mask of bits within `all`; 0 after the last.
uint64_t next_within(uint64_t all, uint64_t mask) { return (mask - all) & all; }

std::vector<int64_t> sizes_at(uint64_t mask, IntList low, IntList high) {
  std::vector<int64_t> out(low.begin(), low.end());
  for (size_t s = 0; s < out.size(); ++s)
    if (mask >> s & 1) out[s] = high[s];
  return out;
}

// The expression of an integer, by a trace for each combination of the sizes on which it depends.
Expr expression(std::span<Dim* const> of_traces, std::span<const uint64_t> masks, IntList low, IntList high) {
  const uint64_t all = support(of_traces, masks);
  std::vector<uint8_t> symbols;
  Shape own_low, own_high;
  for (size_t s = 0; s < low.size(); ++s) {
    if (!(all >> s & 1)) continue;
    symbols.push_back(static_cast<uint8_t>(s));
    own_low.push_back(low[s]);
    own_high.push_back(high[s]);
  }
  std::vector<int64_t> values;
  uint64_t corner = 0;
  do {
    const auto at = std::ranges::find_if(masks, [&](uint64_t m) { return (m & all) == corner; });
    WT_CHECK(at != masks.end(), ValueError, "export: a trace is missing: see missing_traces()");
    values.push_back(of_traces[static_cast<size_t>(at - masks.begin())]->value);
    corner = next_within(all, corner);
  } while (corner);
  return fit(values, own_low, own_high, symbols);
}

constexpr int kMostTogether = 8;  // sizes on which one integer depends; results' sizes become unknown beyond

}  // namespace

std::vector<uint64_t> missing_traces(std::vector<Graph> traces, std::span<const uint64_t> masks) {
  WT_CHECK(!traces.empty() && traces.size() == masks.size(), ValueError,
           "export: expected a mask for each trace, and at least one");
  struct Corner {
    uint64_t matter, high;  // sizes, and which of them are high
  };
  std::vector<Corner> missing;
  std::unordered_set<uint64_t> done;
  const auto add = [&](Corner c) {
    for (Corner& m : missing) {
      if ((m.high ^ c.high) & m.matter & c.matter) continue;
      m = {m.matter | c.matter, m.high | c.high};
      return;
    }
    missing.push_back(c);
  };
  const std::vector<Graph*> graphs = pointers(traces);
  Parallel(graphs, "sizes", [&](std::span<Dim* const> dims, bool of_result) {
    if (std::ranges::any_of(dims, [](const Dim* d) { return d->expr != Dim::kNumber; })) return;
    const uint64_t all = support(dims, masks);
    if (of_result && std::popcount(all) > kMostTogether) return;
    if (!done.insert(all).second) return;
    WT_CHECK(std::popcount(all) <= kMostTogether, NotImplementedError,
             "export: a number depends on more than ", kMostTogether, " sizes that vary");
    uint64_t corner = 0;
    do {
      if (std::ranges::none_of(masks, [&](uint64_t m) { return (m & all) == corner; })) add({all, corner});
      corner = next_within(all, corner);
    } while (corner);
  }).walk();
  std::vector<uint64_t> out;
  for (const Corner& m : missing) out.push_back(m.high);
  return out;
}

Graph generalise(std::vector<Graph> traces, std::span<const uint64_t> masks, std::vector<Symbol> symbols,
                 IntList low, IntList high) {
  const bool valid = symbols.size() <= 64 && masks.size() == traces.size() && low.size() == symbols.size() &&
                     high.size() == symbols.size() && !masks.empty() && !masks[0];
  WT_CHECK(valid, ValueError,
           "export: expected one trace for each mask, the first at the examples' sizes, and ",
           "at most 64 sizes that vary");
  Graph out = traces[0];
  merge_symbols(out, std::move(symbols));
  std::vector<Graph> rest(traces.begin(), traces.end());
  std::vector<Graph*> graphs = pointers(rest);
  graphs.insert(graphs.begin(), &out);
  Parallel(graphs, "sizes", [&](std::span<Dim* const> dims, bool) {
    const auto of_traces = dims.subspan(1);
    bool unknown = false, symbolic = false, varies = false;
    for (const Dim* d : of_traces) {
      varies |= d->value != of_traces[0]->value;
      unknown |= d->expr == Dim::kUnknown;
      symbolic |= d->expr >= 0;
    }
    for (size_t k = 1; symbolic && k < dims.size(); ++k)
      check_same(*graphs[1], *dims[1], *graphs[k], *dims[k]);
    if (symbolic) return;
    const int64_t example = of_traces[0]->value;
    if (unknown || std::popcount(support(of_traces, masks)) > kMostTogether)
      dims[0]->expr = Dim::kUnknown;
    else if (varies)
      *dims[0] = out.size(expression(of_traces, masks, low, high), example);
    else
      *dims[0] = {example};
  }).walk();
  out.finish();
  // An integer may depend on more than a trace with one other size each tells.
  for (size_t k = 0; k < traces.size(); ++k)
    if (std::popcount(masks[k]) > 1) check_trace(out, traces[k], sizes_at(masks[k], low, high));
  return out;
}

namespace {

// Whether the integer that is said is the one that is. A quotient that is none at these sizes, and was one at
// all sizes before, becomes one that is rounded as it is here.
bool holds(Graph& graph, Dim& said, const Graph& trace, Dim found, IntList symbols) {
  const int64_t is = found.value;
  if (said.expr == Dim::kUnknown) return true;
  if (found.expr >= 0) {
    const Expr own = trace.exprs[static_cast<size_t>(found.expr)].renumbered(
        [&](uint8_t s) { return s + symbols.size(); });
    return said.expr >= 0 && graph.exprs[static_cast<size_t>(said.expr)] == own;
  }
  if (said.expr == Dim::kNumber) return said.value == is;
  Expr e = graph.exprs[static_cast<size_t>(said.expr)];
  for (const Expr::Term& t : e.terms)
    for (uint8_t s : t.symbols)
      if (s >= symbols.size()) return false;
  if (e.floor) return e.value(symbols) == is;
  Expr numerator = e;
  numerator.divisor = 1;
  const int64_t n = numerator.value(symbols);
  if (n % e.divisor == 0) return n / e.divisor == is;
  e.floor = true;
  if (e.value(symbols) != is) {  // rounded up: with divisor - 1 more
    auto number = std::ranges::find_if(e.terms, [](const Expr::Term& t) { return t.symbols.empty(); });
    if (number == e.terms.end()) number = e.terms.insert(number, Expr::Term{});
    if (__builtin_add_overflow(number->factor, e.divisor - 1, &number->factor)) return false;
    if (e.value(symbols) != is) return false;
  }
  said = graph.size(e, said.value);
  return true;
}

}  // namespace

void check_trace(Graph& graph, const Graph& trace, IntList symbols) {
  Graph copy = trace;
  Graph* both[] = {&graph, &copy};
  const char* others = symbols.empty() ? "values" : "sizes";
  Parallel(both, others, [&](std::span<Dim* const> dims, bool of_result) {
    if (holds(graph, *dims[0], copy, *dims[1], symbols)) return;
    const std::string how = symbols.empty() ? "" : ", and is not linear in each of the sizes that vary";
    WT_CHECK(of_result, NotImplementedError, "export: a number that ops get depends on the ", others,
             " of the inputs", how, ": it is ", dims[0]->value, " and ", dims[1]->value);
    dims[0]->expr = Dim::kUnknown;
  }).walk();
  graph.finish();
}

}  // namespace warptape::graph
