// Shared memory of the ranks of one group on one host: a memory file without a name, so nothing is left of it
// when the last rank is gone, however that went. The same for ranks that are threads of one process.
#pragma once

#include <atomic>
#include <functional>

#include "distributed/group/collective_header.h"

namespace warptape::distributed {

// Of one rank and parity. Larger than a core's own cache: what one core wrote is read faster from the shared
// cache than out of that core's.
inline constexpr size_t kSlotBytes = 1 << 20;
inline constexpr size_t kPacketBytes = 32 * 1024;
inline constexpr int kPackets = 4;  // on their way between two ranks

// One rank's words. Each on lines of its own, for others spin on them.
struct alignas(128) RankWords {
  std::atomic<uint32_t> rounds;                // published
  std::atomic<uint32_t> sleepers;              // that wait for `rounds`
  alignas(64) std::atomic<uint32_t> doorbell;  // rings when a packet was moved for this rank
  std::atomic<uint32_t> doorbell_sleepers;
  std::atomic<uint32_t> state;  // RankState
  int32_t pid;
  uint64_t pids;         // the namespace that the pid is of
  bool dumps_on_signal;  // SIGUSR2
  char error[256];       // after which it left
  CallHeader calls[2];   // by parity of the sequence
};
enum RankState : uint32_t { kAbsent, kPresent, kLeft };

struct PacketHeader {
  int64_t total_bytes;  // of the message
  int64_t bytes;        // in this packet
  int32_t tag;
  DType dtype;
  bool first;
};
// From one rank to another. `sent` and `received` count packets.
struct alignas(128) Channel {
  std::atomic<uint32_t> sent;
  alignas(64) std::atomic<uint32_t> received;
  struct Packet {
    alignas(64) PacketHeader header;
    alignas(64) char data[kPacketBytes];
  } packets[kPackets];
};

class Region {
 public:
  // Collective: the ranks meet in `store`, rank 0 makes the memory.
  Region(Store& store, int rank, int size, Milliseconds timeout);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  RankWords& words(int rank) { return words_[rank]; }
  char* slot(int rank, uint32_t parity) { return slots_ + (2 * rank + parity) * kSlotBytes; }
  char* result(int rank, uint32_t parity) { return slot(size_ + rank, parity); }
  // Bytes that rank `from` sends to, or expects of, each rank in an AllToAll; by parity of the sequence.
  int64_t* counts(int from, uint32_t parity, bool expected) {
    return counts_ + ((from * 2 + parity) * 2 + expected) * size_;
  }
  Channel& channel(int from, int to) { return channels_[from * size_ + to]; }

  // ---- rounds: every rank publishes one, then waits until all have ----
  uint32_t rounds() const { return rounds_; }
  void publish();
  void wait_for_all(Clock::time_point deadline);
  // Set by the backend: called now and then while waiting; says what is waited for.
  std::function<void()> on_idle;
  std::function<std::string()> describe_call;

  // ---- doorbells ----
  void ring(int rank);
  uint32_t doorbell() { return words_[rank_].doorbell.load(); }
  // Sleeps until this rank's doorbell is no longer `heard`, for a few milliseconds at most.
  void sleep_for_doorbell(uint32_t heard);

  // ---- failure ----
  // The first reason stands; whether it is this one.
  bool abort(const std::string& reason, AbortReason kind = AbortReason::Requested);
  void explain(const std::string& error);  // the one after which this rank leaves
  std::string aborted() const;
  AbortReason abort_reason() const;
  void check() const;  // throws DistBackendError with the reason
  bool has_left(int other) const { return words_[other].state.load() == kLeft; }
  bool is_gone(int other) const { return has_left(other) || is_dead(other); }
  // Throws when `other` is dead or has left: nothing can come from it.
  void check_alive(int other, const std::string& call);
  [[noreturn]] void fail(const std::string& reason,
                         AbortReason kind = AbortReason::Requested);  // aborts and throws
  // As fail, when the time is over; asks the ranks that did not come to dump their flight records.
  [[noreturn]] void fail_late(const std::string& reason, const std::vector<int>& late);

 private:
  void map(const File& memory);
  void lock_presence(const File& memory);
  bool late(int other) const {
    return static_cast<int32_t>(words_[other].rounds.load(std::memory_order_acquire) - rounds_) < 0;
  }
  bool is_dead(int other) const;
  void wait_slowly(int other, Clock::time_point deadline);
  [[noreturn]] void time_out();
  void unmap();
  void part_without_group(Store& store);

  int rank_, size_;
  uint32_t rounds_ = 0;
  int spins_;
  char* base_ = nullptr;
  size_t bytes_ = 0;
  File presence_;  // holds this rank's lock: the kernel lets go of it when the rank dies
  struct Head;
  Head* head_ = nullptr;
  RankWords* words_ = nullptr;
  int64_t* counts_ = nullptr;
  char* slots_ = nullptr;
  Channel* channels_ = nullptr;
};

}  // namespace warptape::distributed
