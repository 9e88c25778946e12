// Proposed tokens that the model checks in one step.
#pragma once

#include <span>
#include <vector>

#include "inference/pages.h"

namespace warptape::inference {

// The `count` tokens, or fewer, that followed the last place where the sequence's final n tokens came before,
// for the largest n of [shortest, longest] for which there is one (prompt lookup decoding, Saxena 2023).
WT_API std::vector<Token> propose_ngram(std::span<const Token> tokens, int64_t shortest, int64_t longest,
                                        int64_t count);

}  // namespace warptape::inference
