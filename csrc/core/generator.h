// Random generators. The CPU's draws PyTorch's numbers: the Mersenne Twister MT19937 (Matsumoto and
// Nishimura, 1998) consumed in PyTorch's order. Dropout, and every draw on another device, is from Philox
// (Salmon et al., 2011), keyed by seed, call and element.
//
// Note [Philox calls]: dropouts and fills (rand, randn, ...) of a generator are counted apart, and the calls
// of fills have bit 63 set. So the n-th dropout from a seed has the same numbers on the CPU, whose fills take
// nothing from Philox, and on a device, whose fills do.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/ref.h"

namespace warptape {

enum class PhiloxUse : uint8_t { Dropout, Fill };

class WT_API Generator : public RefCounted<Generator> {
 public:
  static constexpr uint64_t kDefaultSeed = 67280421310721;
  explicit Generator(Device device = {}, uint64_t seed = kDefaultSeed);
  static void destroy(Generator* g) { delete g; }

  void manual_seed(uint64_t seed);
  uint64_t initial_seed() const { return seed_; }
  uint64_t seed_from_entropy();  // seeds with and returns a nondeterministic 64-bit number
  Device device() const { return device_; }

  // Callers hold `mutex` for the whole of one op's draws.
  std::mutex mutex;
  uint32_t random();
  uint64_t random64();
  double uniform_double();  // [0, 1), 53 bits
  float uniform_float();    // [0, 1), 24 bits
  double normal();          // one draw as a small tensor's element takes it
  // A fresh key: (seed, number of the call). In a thread that captures a graph, one that replays fill in.
  kernels::PhiloxKey next_philox(PhiloxUse use = PhiloxUse::Dropout);

  // The whole state as bytes, and back; set_state throws ValueError and changes nothing on bytes of another
  // layout.
  std::vector<uint8_t> state() const;
  void set_state(std::span<const uint8_t> bytes);

 private:
  friend class CapturedDraws;
  void refill();

  Device device_;
  uint64_t seed_ = 0;
  std::array<uint32_t, 624> mt_{};
  uint32_t next_ = 624;
  uint64_t philox_calls_[2] = {};  // by use
  std::optional<double> cached_normal_;
};

// The Philox keys that the calls of a thread drew, in order: calls that run once more draw these again.
struct KeyTape {
  std::vector<kernels::PhiloxKey> keys;
  size_t next = 0;
};

// The Philox calls of CUDA generators in a graph that a thread captures. Their keys number them from the
// capture's start; seed and number of the first call lie in device memory, where every replay writes the
// generator's current ones.
class WT_API CapturedDraws {
 public:
  static constexpr size_t kMaxUses = 16;  // two per generator
  static constexpr size_t kBytes = kMaxUses * 2 * sizeof(uint64_t);
  explicit CapturedDraws(const uint64_t* device_numbers) : device_numbers_(device_numbers) {}

  kernels::PhiloxKey next(Generator& generator, PhiloxUse use);  // the caller holds the generator's mutex
  // Ends the capture: nothing was drawn yet, so the generators go back to where they were.
  void finish();
  // For one replay: writes the numbers to send to the device and moves the generators past the graph's
  // calls. Returns their size in bytes, 0 for a graph that draws nothing.
  size_t advance(uint64_t* host_numbers) const;

 private:
  struct Use {
    Ref<Generator> generator;
    PhiloxUse kind = PhiloxUse::Dropout;
    uint64_t first = 0;  // its number of calls when the capture met it
    uint64_t calls = 0;  // of the graph; known at the end
    uint64_t& counter() const { return generator->philox_calls_[static_cast<int>(kind)]; }
  };
  std::vector<Use> uses_;
  const uint64_t* device_numbers_;
};

}  // namespace warptape
