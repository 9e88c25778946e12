// The next token of a sequence, from logits.
#pragma once

#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "inference/pages.h"
#include "tensor/tensor.h"

namespace warptape::inference {

// vLLM's names and meaning.
struct SamplingParams {
  double temperature = 1;  // 0: the likeliest token, the smallest id among equals
  double top_p = 1;        // of those left by top_k, the likeliest whose probabilities reach top_p together
  double min_p = 0;        // at least so large a part of the likeliest one's probability
  int64_t top_k = 0;       // as likely as the k-th; 0 and -1: all
  double presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  uint64_t seed = 0;
  std::vector<std::pair<Token, float>> logit_bias;

  // ValueError for values without meaning, IndexError for tokens that are none of `vocabulary`.
  void check(int64_t vocabulary) const;
  bool penalizes() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1;
  }
};

// How often tokens came, for penalties.
struct TokenCount {
  int64_t generated = 0;
  bool in_prompt = false;
};
using TokenCounts = std::unordered_map<Token, TokenCount>;

// Changes logits [V] as the parameters say: bias, penalties, and -inf for the tokens of `forbidden` and those
// whose bit of `allowed` (32 tokens a word, empty: all are) is 0.
void apply_constraints(std::span<float> logits, const SamplingParams& params, const TokenCounts& counts,
                       std::span<const Token> forbidden, std::span<const uint32_t> allowed);

// Whether softmax has a meaning: no NaN, no +inf, and not all of them -inf.
bool has_probabilities(std::span<const float> logits);

// A token by its probability, by the Gumbel-max trick (Gumbel, "Statistical theory of extreme values", 1954):
// the largest of logit / temperature + noise. The noise is a function of (seed, position, token) alone, where
// `position` is that of the token that is drawn: nothing else in the batch, and no draw that was thrown away,
// changes what is drawn.
// Precondition: has_probabilities(logits).
Token sample(std::span<const float> logits, const SamplingParams& params, uint64_t position);

}  // namespace warptape::inference
