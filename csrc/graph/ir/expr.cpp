#include "graph/ir/expr.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"

namespace warptape::graph {
namespace {

int64_t narrow(__int128 x) {
  WT_CHECK(x >= INT64_MIN && x <= INT64_MAX, ShapeError, "graph: a size does not fit into 63 bits");
  return static_cast<int64_t>(x);
}

int64_t product(int64_t a, int64_t b) { return narrow(static_cast<__int128>(a) * b); }
int64_t sum(int64_t a, int64_t b) { return narrow(static_cast<__int128>(a) + b); }

__int128 gcd(__int128 a, __int128 b) {
  while (b) a = std::exchange(b, a % b);
  return a < 0 ? -a : a;
}

[[noreturn]] void refuse() {
  throw NotImplementedError("graph: quotients of sizes are neither added nor multiplied");
}

std::optional<int64_t> number(const Expr& e) {
  if (e.terms.empty()) return 0;
  if (e.divisor != 1 || e.terms.size() != 1 || !e.terms[0].symbols.empty()) return {};
  return e.terms[0].factor;
}

// One term for each product of symbols, the constant last.
void normalise(Expr& e) {
  const auto before = [](const Expr::Term& a, const Expr::Term& b) {
    return std::ranges::lexicographical_compare(b.symbols, a.symbols);
  };
  std::ranges::stable_sort(e.terms, before);
  std::vector<Expr::Term> out;
  for (Expr::Term& t : e.terms) {
    if (!out.empty() && out.back().symbols == t.symbols)
      out.back().factor = sum(out.back().factor, t.factor);
    else
      out.push_back(std::move(t));
  }
  std::erase_if(out, [](const Expr::Term& t) { return t.factor == 0; });
  e.terms = std::move(out);
}

}  // namespace

int64_t Expr::value(std::span<const int64_t> symbols) const {
  int64_t out = 0;
  for (const Term& t : terms) {
    int64_t x = t.factor;
    for (uint8_t s : t.symbols) x = product(x, symbols[s]);
    out = sum(out, x);
  }
  if (floor) return out / divisor - (out % divisor < 0);
  WT_CHECK(out % divisor == 0, ShapeError, "graph: a size which must be a multiple of ", divisor, " is ", out,
           ": these input sizes do not fit what was exported");
  return out / divisor;
}

std::optional<uint8_t> Expr::symbol() const {
  const bool alone =
      divisor == 1 && terms.size() == 1 && terms[0].factor == 1 && terms[0].symbols.size() == 1;
  return alone ? std::optional(terms[0].symbols[0]) : std::nullopt;
}

Expr constant(int64_t x) {
  Expr out;
  if (x) out.terms.push_back({x, {}});
  return out;
}

Expr of_symbol(uint8_t symbol) {
  Expr out;
  out.terms.push_back({1, {symbol}});
  return out;
}

Expr operator+(const Expr& a, const Expr& b) {
  if (b.divisor != 1) return a.divisor == 1 ? b + a : (refuse(), a);
  Expr out = a;
  for (Expr::Term t : b.terms) {  // a whole number within a quotient that is rounded
    t.factor = product(t.factor, a.divisor);
    out.terms.push_back(std::move(t));
  }
  normalise(out);
  return out;
}

Expr operator*(const Expr& a, const Expr& b) {
  if (number(b) == 1) return a;
  if (number(a) == 1) return b;
  if (number(a) == 0 || number(b) == 0) return {};
  if (a.divisor != 1 || b.divisor != 1) refuse();
  Expr out;
  for (const Expr::Term& x : a.terms)
    for (const Expr::Term& y : b.terms) {
      Expr::Term& t = out.terms.emplace_back(x);
      t.factor = product(x.factor, y.factor);
      for (uint8_t s : y.symbols) t.symbols.push_back(s);
      std::ranges::sort(t.symbols);
    }
  normalise(out);
  return out;
}

Expr floor_div(const Expr& a, const Expr& b) {
  const std::optional<int64_t> divisor = number(b);
  if (!divisor || *divisor <= 0 || (a.divisor != 1 && !a.floor)) refuse();
  Expr out = a;
  out.divisor = product(a.divisor, *divisor);
  out.floor = out.divisor != 1;
  return out;
}

// One symbol after the other, the pair of values (lo, hi) becomes the line through it,
// lo * high - hi * low + (hi - lo) * x over high - low.
Expr fit(std::span<const int64_t> values, IntList low, IntList high, std::span<const uint8_t> symbols) {
  std::vector<__int128> factors(values.begin(), values.end());
  __int128 divisor = 1;
  for (size_t s = 0; s < low.size(); ++s) {
    for (size_t mask = 0; mask < factors.size(); ++mask) {
      if (mask >> s & 1) continue;
      const __int128 lo = factors[mask], hi = factors[mask | size_t{1} << s];
      factors[mask] = lo * high[s] - hi * low[s];
      factors[mask | size_t{1} << s] = hi - lo;
    }
    divisor *= high[s] - low[s];
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
    for (size_t s = 0; s < low.size(); ++s)
      if (mask >> s & 1) t.symbols.push_back(symbols[s]);
  }
  return out;
}

}  // namespace warptape::graph
