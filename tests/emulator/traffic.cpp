// Note [Traffic]
// With WARPTAPE_EMULATED_RACES the compiler shows each access of memory (races.cpp). Those that lanes of a
// warp do by the same instruction, each for the same time, are one request, as they are on a GPU where the
// lanes take the same way. A GPU moves global memory in sectors of 32 bytes and serves shared memory by 32
// banks of 4 bytes, so what a request costs can be counted:
//   sectors    that it touches, and `needed`, how many its bytes would fill: more of them make more work for
//              the cache, wherever the bytes lie
//   moved      sectors that a small cache does not have; a write moves one even if it was read
//   conflicts  how many rounds more than one the banks take; accesses of 8 and 16 bytes go by halves and
//              quarters of the warp
// The host's compiler splits accesses of up to 16 bytes, so what a thread touches within 16 aligned bytes
// shortly after each other, by several instructions, counts as one access; one that nvcc splits is seen by
// tools/sass_gate.py.
// TMA's boxes, which no thread asks for, are left out. WARPTAPE_EMULATOR_TRAFFIC=FILE gets a line for each
// launch: its name and the counts.
#include "traffic.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <unordered_map>
#include <vector>

#include "internal.h"

namespace emulator {
namespace {

constexpr uintptr_t kSector = 32, kPiece = 16, kBanks = 32;
constexpr size_t kCached = 8192;  // sectors: 256 KiB, little beside an L2 cache, as shapes are small

// What one thread touches of 16 aligned bytes.
struct Piece {
  uintptr_t pc = 0, at = 0;  // at: in units of 16 bytes
  uint32_t time = 0;         // how often the thread was at pc
  uint32_t bytes = 0;        // a bit each
  unsigned lane = 0;
  bool write = false, shared = false;
};
struct Key {
  uintptr_t pc;
  uint32_t time;
  bool operator<(const Key& other) const { return pc != other.pc ? pc < other.pc : time < other.time; }
};
struct Counts {
  uint64_t requests = 0, sectors = 0, needed = 0, moved = 0, shared_requests = 0, conflicts = 0;
};
struct Thread {
  std::unordered_map<uintptr_t, uint32_t> times;  // by pc
  std::array<size_t, 4> recent{};                 // pieces that may still grow: 1 + their place
  unsigned next = 0;
};
struct Traffic {
  FILE* out = nullptr;
  Counts counts;
  std::vector<uintptr_t> cached = std::vector<uintptr_t>(kCached), written = cached;
  std::vector<Thread> threads = std::vector<Thread>(1024);
  std::vector<Piece> pieces[1024 / 32];  // by warp
};

Traffic* traffic() {
  static Traffic* const it = [] {
    const char* file = getenv("WARPTAPE_EMULATOR_TRAFFIC");
    Traffic* made = file ? new Traffic : nullptr;
    if (made && !(made->out = fopen(file, "a"))) die("WARPTAPE_EMULATOR_TRAFFIC: cannot write to '%s'", file);
    return made;
  }();
  return it;
}

template <class T>
void keep_distinct(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

void count_global(Traffic& t, const std::vector<const Piece*>& lanes) {
  std::vector<uintptr_t> sectors;
  std::map<uintptr_t, uint32_t> bytes;  // that several lanes touch count once
  for (const Piece* p : lanes) {
    sectors.push_back(p->at * kPiece / kSector);
    bytes[p->at] |= p->bytes;
  }
  uint64_t missed = 0, number = 0;
  keep_distinct(sectors);
  for (uintptr_t sector : sectors) {
    uintptr_t &held = t.cached[sector % kCached], &written = t.written[sector % kCached];
    missed += written != sector && (lanes.front()->write || held != sector);
    (lanes.front()->write ? written : held) = sector;
  }
  for (const auto& [at, mask] : bytes) number += static_cast<uint64_t>(std::popcount(mask));
  ++t.counts.requests;
  t.counts.sectors += sectors.size();
  t.counts.needed += (number + kSector - 1) / kSector;
  t.counts.moved += missed;
}

void count_shared(Traffic& t, const std::vector<const Piece*>& lanes) {
  int widest = 4;
  for (const Piece* p : lanes) widest = std::max(widest, std::popcount(p->bytes));
  const unsigned together = widest > 8 ? 8 : widest > 4 ? 16 : 32;
  ++t.counts.shared_requests;
  for (unsigned first = 0; first < 32; first += together) {
    std::vector<uintptr_t> words;
    for (const Piece* p : lanes)
      if (p->lane / together == first / together)
        for (uintptr_t i = 0; i < kPiece / 4; ++i)
          if (p->bytes >> 4 * i & 15) words.push_back(p->at * (kPiece / 4) + i);
    keep_distinct(words);
    uint64_t at_bank[kBanks] = {}, most = 0;
    for (uintptr_t word : words) most = std::max(most, ++at_bank[word % kBanks]);
    if (most) t.counts.conflicts += most - 1;
  }
}

}  // namespace

void traffic_begin_launch() {
  Traffic* t = traffic();
  if (!t) return;
  t->counts = {};
  std::fill(t->cached.begin(), t->cached.end(), 0);
  std::fill(t->written.begin(), t->written.end(), 0);
}

void traffic_access(const void* pc, const void* p, size_t bytes, bool write) {
  Traffic* t = traffic();
  if (!t || !runs_kernel() || !bytes || is_own_stack(p)) return;
  const bool shared = is_shared_memory(p);
  if (!shared && place_of(p).device < 0) return;  // a constant, an argument, or the host's
  const auto first = reinterpret_cast<uintptr_t>(p), last = first + bytes - 1;
  if (first / kPiece != last / kPiece) {
    const size_t part = (first / kPiece + 1) * kPiece - first;
    traffic_access(pc, p, part, write);
    return traffic_access(static_cast<const char*>(pc) + 1, static_cast<const char*>(p) + part, bytes - part,
                          write);
  }
  const unsigned thread = thread_of_block();
  Thread& own = t->threads[thread];
  auto& pieces = t->pieces[thread / 32];
  const uint32_t mask = ((1u << bytes) - 1) << first % kPiece;
  const auto at = reinterpret_cast<uintptr_t>(pc);
  for (unsigned i = 1; i <= own.recent.size(); ++i) {  // the latest first
    const size_t place = own.recent[(own.next - i) % own.recent.size()];
    if (!place) break;
    Piece& before = pieces[place - 1];
    if (before.at != first / kPiece || before.write != write || before.bytes & mask || before.pc == at)
      continue;
    before.bytes |= mask;
    return;
  }
  pieces.push_back({at, first / kPiece, own.times[at]++, mask, thread % 32, write, shared});
  own.recent[own.next++ % own.recent.size()] = pieces.size();
}

void traffic_end_block() {
  Traffic* t = traffic();
  if (!t) return;
  for (auto& pieces : t->pieces) {
    // Requests in the order in which their first lane came.
    std::map<Key, size_t> places;
    std::vector<std::vector<const Piece*>> requests;
    for (const Piece& p : pieces) {
      const auto [it, is_new] = places.try_emplace({p.pc, p.time}, requests.size());
      if (is_new) requests.emplace_back();
      requests[it->second].push_back(&p);
    }
    for (const auto& lanes : requests)
      lanes.front()->shared ? count_shared(*t, lanes) : count_global(*t, lanes);
    pieces.clear();
  }
  for (Thread& thread : t->threads) thread = {};
}

void traffic_end_launch(const char* name) {
  Traffic* t = traffic();
  if (!t) return;
  const Counts& c = t->counts;
  fprintf(t->out, "%s\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\n", name, c.requests, c.sectors, c.needed, c.moved,
          c.shared_requests, c.conflicts);
  fflush(t->out);
}

}  // namespace emulator
