#include "inference/speculate.h"

#include <algorithm>

namespace warptape::inference {

std::vector<Token> propose_ngram(std::span<const Token> tokens, int64_t shortest, int64_t longest,
                                 int64_t count) {
  const auto size = static_cast<int64_t>(tokens.size());
  // The longest match of the sequence's end with an earlier place, the latest of those.
  int64_t best = 0, best_end = 0;
  for (int64_t end = size - 1; end >= shortest && best < longest; --end) {
    int64_t n = 0;
    while (n < std::min(end, longest) &&
           tokens[static_cast<size_t>(end - 1 - n)] == tokens[static_cast<size_t>(size - 1 - n)])
      ++n;
    if (n > best) {
      best = n;
      best_end = end;
    }
  }
  if (best < std::max<int64_t>(shortest, 1) || count < 1) return {};
  const auto first = tokens.begin() + best_end;
  return {first, first + std::min(count, size - best_end)};
}

}  // namespace warptape::inference
