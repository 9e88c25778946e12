// Integers that follow from sizes, as expressions of a graph's symbols.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/shape.h"

namespace warptape::graph {

// A sum of products of symbols over a common divisor: (2*N*T + 4) / 2. Symbols are numbered.
// With `floor` the quotient is rounded down; else it must be an integer.
struct WT_API Expr {
  struct Term {
    int64_t factor = 0;
    SmallVector<uint8_t, 4> symbols;  // ascending; none: the constant
    bool operator==(const Term&) const = default;
  };
  std::vector<Term> terms;
  int64_t divisor = 1;
  bool floor = false;

  bool operator==(const Expr&) const = default;
  // Throws a ShapeError where the result is no integer or does not fit into 63 bits.
  int64_t value(std::span<const int64_t> symbols) const;
  // The symbol that it is, if it is one alone.
  std::optional<uint8_t> symbol() const;
  // With other numbers of its symbols: each becomes f(number).
  template <class F>
  Expr renumbered(F&& f) const {
    Expr out = *this;
    for (Term& t : out.terms)
      for (uint8_t& s : t.symbols) s = static_cast<uint8_t>(f(s));
    return out;
  }
};

WT_API Expr constant(int64_t x);
Expr of_symbol(uint8_t symbol);
// Throw a NotImplementedError where the result is no such expression: of quotients, for one.
WT_API Expr operator+(const Expr& a, const Expr& b);
WT_API Expr operator*(const Expr& a, const Expr& b);
WT_API Expr floor_div(const Expr& a, const Expr& b);
// The polynomial, linear in each of the symbols, with these values: values[mask] where symbol s is high[s] if
// bit s of mask is set, else low[s].
Expr fit(std::span<const int64_t> values, IntList low, IntList high, std::span<const uint8_t> symbols);

}  // namespace warptape::graph
