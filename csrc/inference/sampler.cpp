#include "inference/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/errors.h"
#include "kernels/random/random.h"
#include "kernels/slot.h"
#include "tensor/factory.h"

namespace warptape::inference {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

kernels::Slot<kernels::PhiloxFn> philox_slot{"philox"};

// Random numbers of [0, 2^32) for the tokens of one draw, made in blocks.
class Noise {
 public:
  Noise(uint64_t seed, uint64_t position) : key_{seed, position} {}
  // Tokens must be asked for in ascending order.
  int64_t operator()(size_t token) {
    if (token >= first_ + kBlock || first_ == kNone) {
      first_ = token / kBlock * kBlock;
      const int64_t size = kBlock, stride = 1;
      const kernels::View out{numbers_, &size, &stride, 1, DType::Int64};
      philox_slot(Launch(Device{}), out, key_, kernels::PhiloxPart{first_});
    }
    return numbers_[token - first_];
  }

 private:
  static constexpr size_t kBlock = 1024, kNone = ~size_t{0};
  kernels::PhiloxKey key_;
  size_t first_ = kNone;
  int64_t numbers_[kBlock];
};

// The smallest logit that stays: of those at least `least`, of the k largest, or as large as the last of
// them.
float top_k_limit(std::span<const float> logits, int64_t k, float least) {
  std::vector<float> kept;
  for (float x : logits)
    if (x >= least && x != kNever) kept.push_back(x);
  if (static_cast<int64_t>(kept.size()) <= k) return least;
  std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), std::greater<>());
  return kept[static_cast<size_t>(k - 1)];
}

// Zeroes `keep` for the tokens outside of the likeliest ones (smaller ids first among equals) that have `p`
// of the probability of all that are kept.
void apply_top_p(std::span<const float> logits, double inverse_temperature, double largest, double p,
                 std::vector<uint8_t>& keep) {
  std::vector<std::pair<double, uint32_t>> tokens;  // probability, not normalised
  double mass = 0;
  for (uint32_t i = 0; i < logits.size(); ++i) {
    if (!keep[i]) continue;
    tokens.emplace_back(std::exp((logits[i] - largest) * inverse_temperature), i);
    mass += tokens.back().first;
    keep[i] = 0;
  }
  const auto before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  // Sorted in growing parts: the likeliest few are mostly enough.
  double reached = 0;
  for (size_t sorted = 0, part = 64; sorted < tokens.size(); part *= 4) {
    const size_t end = std::min(sorted + part, tokens.size());
    const auto begin = tokens.begin() + static_cast<ptrdiff_t>(sorted);
    const auto middle = tokens.begin() + static_cast<ptrdiff_t>(end);
    if (end < tokens.size()) std::nth_element(begin, middle, tokens.end(), before);
    std::sort(begin, middle, before);
    for (; sorted < end; ++sorted) {
      keep[tokens[sorted].second] = 1;
      reached += tokens[sorted].first;
      if (reached >= p * mass) return;
    }
  }
}

}  // namespace

void SamplingParams::check(int64_t vocabulary) const {
  const auto finite = [](const char* name, double value, double low, double high) {
    WT_CHECK(value >= low && value <= high, ValueError, name, " must be in [", low, ", ", high, "], got ",
             value);
  };
  finite("temperature", temperature, 0, 1e6);
  finite("presence_penalty", presence_penalty, -2, 2);
  finite("frequency_penalty", frequency_penalty, -2, 2);
  finite("min_p", min_p, 0, 1);
  finite("top_p", top_p, 0, 1);
  WT_CHECK(top_p > 0, ValueError, "top_p must be in (0, 1], got 0");
  WT_CHECK(repetition_penalty > 0 && std::isfinite(repetition_penalty), ValueError,
           "repetition_penalty must be greater than zero, got ", repetition_penalty);
  WT_CHECK(top_k >= -1, ValueError, "top_k must be -1 or 0 (all tokens), or at least 1, got ", top_k);
  for (const auto& [token, bias] : logit_bias) {
    WT_CHECK(token >= 0 && token < vocabulary, IndexError, "logit_bias: token ", token,
             " is out of the vocabulary of ", vocabulary);
    WT_CHECK(bias < -kNever, ValueError, "logit_bias must be below infinity, got ", bias, " for token ",
             token);
  }
}

void apply_constraints(std::span<float> logits, const SamplingParams& params, const TokenCounts& counts,
                       std::span<const Token> forbidden, std::span<const uint32_t> allowed) {
  if (params.penalizes()) {
    const auto repetition = static_cast<float>(params.repetition_penalty);
    for (const auto& [token, count] : counts) {
      float& x = logits[static_cast<size_t>(token)];
      x = x > 0 ? x / repetition : x * repetition;
      if (!count.generated) continue;
      x -= static_cast<float>(params.frequency_penalty) * static_cast<float>(count.generated);
      x -= static_cast<float>(params.presence_penalty);
    }
  }
  for (const auto& [token, bias] : params.logit_bias) logits[static_cast<size_t>(token)] += bias;
  for (Token token : forbidden) logits[static_cast<size_t>(token)] = kNever;
  for (size_t i = 0; !allowed.empty() && i < logits.size(); ++i)
    if (i / 32 >= allowed.size() || !(allowed[i / 32] >> (i % 32) & 1)) logits[i] = kNever;
}

bool has_probabilities(std::span<const float> logits) {
  float largest = kNever;
  bool nan = false;
  for (float x : logits) {
    nan |= std::isnan(x);
    largest = x > largest ? x : largest;
  }
  return !nan && largest != kNever && largest != -kNever;
}

Token sample(std::span<const float> logits, const SamplingParams& params, uint64_t position) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  const double scale = 1 / params.temperature, largest = *likeliest;
  if (!std::isfinite(scale) || params.top_k == 1) return static_cast<Token>(likeliest - logits.begin());
  auto least = static_cast<float>(largest + std::log(params.min_p) / scale);  // -inf where min_p is 0
  if (params.top_k > 0) least = top_k_limit(logits, params.top_k, least);
  std::vector<uint8_t> keep(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) keep[i] = logits[i] >= least && logits[i] != kNever;
  if (params.top_p < 1) apply_top_p(logits, scale, largest, params.top_p, keep);

  Noise noise(params.seed, position);
  double best = kNever;
  Token drawn = static_cast<Token>(likeliest - logits.begin());
  // Below this number even the largest logit would lose: most tokens are done with by one comparison.
  double threshold = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!keep[i]) continue;
    const auto number = static_cast<double>(noise(i));
    if (number < threshold) continue;
    const double score = (logits[i] - largest) * scale - std::log(-std::log((number + 0.5) * 0x1p-32));
    if (score <= best) continue;
    best = score;
    drawn = static_cast<Token>(i);
    threshold = std::exp(-std::exp(-best)) * 0x1p32 - 2;
  }
  return drawn;
}

}  // namespace warptape::inference
