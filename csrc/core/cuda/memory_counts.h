// What the device allocator counts, under the names of torch.cuda.memory_stats.
#pragma once

#include <algorithm>

#include "core/device_runtime.h"

namespace warptape::cuda {

struct Counter {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(int64_t change) {
    current += change;
    peak = std::max(peak, current);
    (change > 0 ? allocated : freed) += change > 0 ? change : -change;
  }
};

class MemoryCounts {
 public:
  // Of each: how many there are, and their bytes.
  enum What { kAllocated, kReserved, kActive, kInactiveSplit, kRequested, kNumWhats };

  void add(What what, bool small, size_t bytes) { change(what, small, 1, static_cast<int64_t>(bytes)); }
  void remove(What what, bool small, size_t bytes) { change(what, small, -1, -static_cast<int64_t>(bytes)); }
  const Counter& bytes(What what) const { return bytes_[what][kAll]; }
  const Counter& number(What what) const { return numbers_[what][kAll]; }

  void reset_peaks() {
    for (auto* table : {&numbers_, &bytes_})
      for (auto& row : *table)
        for (Counter& c : row) c.peak = c.current;
  }

  void append_to(NamedStats& out) const {
    static constexpr const char* bytes[] = {"allocated_bytes", "reserved_bytes", "active_bytes",
                                            "inactive_split_bytes", "requested_bytes"};
    static constexpr const char* numbers[] = {"allocation", "segment", "active", "inactive_split"};
    for (int what = 0; what < kNumWhats; ++what) {
      append(out, bytes[what], bytes_[what]);
      if (what != kRequested) append(out, numbers[what], numbers_[what]);
    }
  }

 private:
  enum Pool { kAll, kSmall, kLarge, kNumPools };

  void change(What what, bool small, int64_t number, int64_t bytes) {
    for (Pool pool : {kAll, small ? kSmall : kLarge}) {
      numbers_[what][pool].add(number);
      bytes_[what][pool].add(bytes);
    }
  }
  static void append(NamedStats& out, const std::string& name, const Counter (&row)[kNumPools]) {
    static constexpr const char* pools[] = {".all", ".small_pool", ".large_pool"};
    for (int pool = 0; pool < kNumPools; ++pool) {
      const Counter& c = row[pool];
      out.emplace_back(name + pools[pool] + ".current", c.current);
      out.emplace_back(name + pools[pool] + ".peak", c.peak);
      out.emplace_back(name + pools[pool] + ".allocated", c.allocated);
      out.emplace_back(name + pools[pool] + ".freed", c.freed);
    }
  }

  Counter numbers_[kNumWhats][kNumPools], bytes_[kNumWhats][kNumPools];
};

}  // namespace warptape::cuda
