// Graphs for all sizes, from graphs that were recorded at some.
#include <bit>
#include <cstring>

#include "graph/record/trace.h"
#include "tensor/factory.h"

namespace warptape::graph {
namespace {

// What the same integer of several traces becomes.
class Fitter {
 public:
  Fitter(std::vector<Expr>& exprs, IntList low, IntList high) : exprs_(exprs), low_(low), high_(high) {}

  // values[mask]: see generalise().
  Dim fit(std::span<const int64_t> values) {
    const auto differs = [&](int64_t v) { return v != values[0]; };
    if (std::ranges::none_of(values, differs)) return {values[0]};
    const Expr e = polynomial(values);
    const auto known = std::ranges::find(exprs_, e);
    const auto number = static_cast<int32_t>(known - exprs_.begin());
    if (known == exprs_.end()) exprs_.push_back(e);
    return {values[0], number};
  }

 private:
  // The polynomial, linear in each symbol, with these values: one symbol after the other, the pair of values
  // (lo, hi) becomes the line through it, lo * high - hi * low + (hi - lo) * x over high - low.
  Expr polynomial(std::span<const int64_t> values) const {
    std::vector<__int128> factors(values.begin(), values.end());
    __int128 divisor = 1;
    for (size_t s = 0; s < low_.size(); ++s) {
      for (size_t mask = 0; mask < factors.size(); ++mask) {
        if (mask >> s & 1) continue;
        const __int128 lo = factors[mask], hi = factors[mask | size_t{1} << s];
        factors[mask] = lo * high_[s] - hi * low_[s];
        factors[mask | size_t{1} << s] = hi - lo;
      }
      divisor *= high_[s] - low_[s];
    }
    __int128 common = divisor;
    for (__int128 f : factors) common = gcd(common, f);
    if (divisor < 0) common = -common;
    Expr out;
    out.divisor = narrow(divisor / common);
    for (size_t mask = factors.size(); mask-- > 0;) {
      if (!factors[mask]) continue;
      Expr::Term& t = out.terms.emplace_back();
      t.factor = narrow(factors[mask] / common);
      for (size_t s = 0; s < low_.size(); ++s)
        if (mask >> s & 1) t.symbols.push_back(static_cast<uint8_t>(s));
    }
    return out;
  }
  static __int128 gcd(__int128 a, __int128 b) {
    while (b) a = std::exchange(b, a % b);
    return a < 0 ? -a : a;
  }
  static int64_t narrow(__int128 x) {
    WT_CHECK(x >= INT64_MIN && x <= INT64_MAX, ShapeError, "export: a size does not fit into 63 bits");
    return static_cast<int64_t>(x);
  }

  std::vector<Expr>& exprs_;
  IntList low_, high_;
};

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

}  // namespace

Graph generalise(std::vector<Graph> traces, std::vector<Symbol> symbols, IntList low, IntList high) {
  WT_CHECK(symbols.size() <= 8 && traces.size() == size_t{1} << symbols.size() &&
               low.size() == symbols.size() && high.size() == symbols.size(),
           ValueError, "export: ", symbols.size(), " sizes that vary need ", size_t{1} << symbols.size(),
           " traces, got ", traces.size());
  Graph out = traces[0];
  Fitter fitter(out.exprs, low, high);
  std::vector<Graph> rest(traces.begin(), traces.end());
  std::vector<Graph*> graphs = pointers(rest);
  graphs.insert(graphs.begin(), &out);
  Parallel(graphs, "sizes", [&](std::span<Dim* const> dims, bool) {
    std::vector<int64_t> values;
    bool unknown = false;
    for (const Dim* d : dims.subspan(1)) {
      values.push_back(d->value);
      unknown |= d->expr == Dim::kUnknown;
    }
    if (unknown)
      dims[0]->expr = Dim::kUnknown;
    else
      *dims[0] = fitter.fit(values);
  }).walk();
  out.symbols = std::move(symbols);
  out.finish();
  return out;
}

namespace {

// Whether the integer that is said is the one that is. A quotient that is none at these sizes, and was one at
// all sizes before, becomes one that is rounded as it is here.
bool holds(Graph& graph, Dim& said, int64_t is, IntList symbols) {
  if (said.expr == Dim::kNumber) return said.value == is;
  if (said.expr == Dim::kUnknown) return true;
  Expr e = graph.exprs[static_cast<size_t>(said.expr)];
  if (e.floor) return e.value(symbols) == is;
  Expr whole = e;
  whole.divisor = 1;
  const int64_t n = whole.value(symbols);
  if (n % e.divisor == 0) return n / e.divisor == is;
  e.floor = true;
  if (e.value(symbols) != is) {  // rounded up: with divisor - 1 more
    auto number = std::ranges::find_if(e.terms, [](const Expr::Term& t) { return t.symbols.empty(); });
    if (number == e.terms.end()) number = e.terms.insert(number, Expr::Term{});
    if (__builtin_add_overflow(number->factor, e.divisor - 1, &number->factor)) return false;
    if (e.value(symbols) != is) return false;
  }
  const auto known = std::ranges::find(graph.exprs, e);
  said.expr = static_cast<int32_t>(known - graph.exprs.begin());
  if (known == graph.exprs.end()) graph.exprs.push_back(std::move(e));
  return true;
}

}  // namespace

void check_trace(Graph& graph, const Graph& trace, IntList symbols) {
  Graph copy = trace;
  Graph* both[] = {&graph, &copy};
  const char* others = graph.symbols.empty() ? "values" : "sizes";
  Parallel(both, others, [&](std::span<Dim* const> dims, bool of_result) {
    if (holds(graph, *dims[0], dims[1]->value, symbols)) return;
    const std::string how = graph.symbols.empty() ? "" : ", and is not linear in each of the sizes that vary";
    WT_CHECK(of_result, NotImplementedError, "export: a number that ops get depends on the ", others,
             " of the inputs", how, ": it is ", dims[0]->value, " and ", dims[1]->value);
    dims[0]->expr = Dim::kUnknown;
  }).walk();
  graph.finish();
}

}  // namespace warptape::graph
