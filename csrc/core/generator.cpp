#include "core/generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <random>

#include "core/context.h"
#include "core/errors.h"

namespace warptape {

Generator::Generator(Device device, uint64_t seed) : device_(device) { manual_seed(seed); }

void Generator::manual_seed(uint64_t seed) {
  seed_ = seed;
  mt_[0] = static_cast<uint32_t>(seed);
  for (uint32_t i = 1; i < mt_.size(); ++i) mt_[i] = 1812433253u * (mt_[i - 1] ^ (mt_[i - 1] >> 30)) + i;
  next_ = mt_.size();
  philox_calls_[0] = philox_calls_[1] = 0;
  cached_normal_.reset();
}

uint64_t Generator::seed_from_entropy() {
  std::random_device entropy;
  // 53 bits, so that the number survives a trip through a double, as PyTorch's does.
  manual_seed(((uint64_t{entropy()} << 32) | entropy()) & ((uint64_t{1} << 53) - 1));
  return seed_;
}

void Generator::refill() {
  constexpr uint32_t n = 624, m = 397;
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t y = (mt_[i] & 0x80000000u) | (mt_[(i + 1) % n] & 0x7fffffffu);
    mt_[i] = mt_[(i + m) % n] ^ (y >> 1) ^ ((y & 1) ? 0x9908b0dfu : 0u);
  }
  next_ = 0;
}

uint32_t Generator::random() {
  if (next_ == mt_.size()) refill();
  uint32_t y = mt_[next_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

uint64_t Generator::random64() {
  uint64_t high = random();
  return (high << 32) | random();
}

float Generator::uniform_float() { return static_cast<float>(random() & ((1u << 24) - 1)) * 0x1p-24f; }

double Generator::uniform_double() {
  return static_cast<double>(random64() & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
}

double Generator::normal() {
  if (cached_normal_) {
    double out = *cached_normal_;
    cached_normal_.reset();
    return out;
  }
  double u1 = uniform_double(), u2 = uniform_double();
  double radius = std::sqrt(-2.0 * std::log1p(-u2)), theta = 2.0 * std::numbers::pi * u1;
  cached_normal_ = radius * std::sin(theta);
  return radius * std::cos(theta);
}

namespace {
// See Note [Philox calls].
uint64_t number_of(PhiloxUse use, uint64_t call) {
  return use == PhiloxUse::Fill ? (uint64_t{1} << 63) | call : call;
}
}  // namespace

kernels::PhiloxKey Generator::next_philox(PhiloxUse use) {
  CapturedDraws* draws = thread_state().captured_draws;
  if (__builtin_expect(draws && device_.is_accelerator(), 0)) return draws->next(*this, use);
  kernels::PhiloxKey key{seed_, number_of(use, philox_calls_[static_cast<int>(use)])};
  if (KeyTape* tape = thread_state().key_tape; __builtin_expect(tape != nullptr, 0)) {
    if (tape->next < tape->keys.size()) return tape->keys[tape->next++];
    tape->keys.push_back(key), ++tape->next;
  }
  ++philox_calls_[static_cast<int>(use)];
  return key;
}

// The generator's own count runs on during a capture, so that code which saves and restores its state
// (checkpointed layers) gets the same keys twice there too.
kernels::PhiloxKey CapturedDraws::next(Generator& generator, PhiloxUse use) {
  size_t i = 0;
  while (i < uses_.size() && (uses_[i].generator.get() != &generator || uses_[i].kind != use)) ++i;
  uint64_t& calls = generator.philox_calls_[static_cast<int>(use)];
  if (i == uses_.size()) {
    WT_CHECK(i < kMaxUses, ValueError, "graph capture: expected at most ", kMaxUses / 2,
             " generators that a graph draws from, got one more");
    uses_.push_back({Ref<Generator>::share(&generator), use, calls});
  }
  WT_CHECK(calls >= uses_[i].first, ValueError,
           "graph capture: a generator was seeded or set back while a graph that draws from it is captured; "
           "seed it before the capture or between replays");
  return {0, calls++ - uses_[i].first, device_numbers_ + 2 * i};
}

void CapturedDraws::finish() {
  for (Use& use : uses_) {
    std::lock_guard lock(use.generator->mutex);
    if (use.counter() > use.first) use.calls = use.counter() - use.first;
    use.counter() = use.first;
  }
}

size_t CapturedDraws::advance(uint64_t* host_numbers) const {
  for (const Use& use : uses_) {
    std::lock_guard lock(use.generator->mutex);
    *host_numbers++ = use.generator->seed_;
    *host_numbers++ = number_of(use.kind, use.counter());
    use.counter() += use.calls;
  }
  return uses_.size() * 2 * sizeof(uint64_t);
}

namespace {
struct StateBlob {
  char magic[8];
  uint64_t seed, philox_calls[2];
  uint32_t mt[624];
  uint32_t next, has_normal;
  double normal;
};
constexpr char kMagic[8] = {'w', 't', 'r', 'n', 'g', '0', '0', '2'};
}  // namespace

std::vector<uint8_t> Generator::state() const {
  StateBlob blob{};
  std::memcpy(blob.magic, kMagic, sizeof kMagic);
  blob.seed = seed_;
  std::copy_n(philox_calls_, 2, blob.philox_calls);
  std::memcpy(blob.mt, mt_.data(), sizeof blob.mt);
  blob.next = next_;
  blob.has_normal = cached_normal_.has_value();
  blob.normal = cached_normal_.value_or(0.0);
  std::vector<uint8_t> bytes(sizeof blob);
  std::memcpy(bytes.data(), &blob, sizeof blob);
  return bytes;
}

void Generator::set_state(std::span<const uint8_t> bytes) {
  StateBlob blob;
  WT_CHECK(bytes.size() == sizeof blob, ValueError, "set_state: expected ", sizeof blob, " bytes, got ",
           bytes.size());
  std::memcpy(&blob, bytes.data(), sizeof blob);
  WT_CHECK(std::memcmp(blob.magic, kMagic, sizeof kMagic) == 0 && blob.next <= 624, ValueError,
           "set_state: these bytes are not the state of a generator");
  seed_ = blob.seed;
  std::copy_n(blob.philox_calls, 2, philox_calls_);
  std::memcpy(mt_.data(), blob.mt, sizeof blob.mt);
  next_ = blob.next;
  cached_normal_.reset();
  if (blob.has_normal) cached_normal_ = blob.normal;
}

}  // namespace warptape
