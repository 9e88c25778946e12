// The flight record: the last calls between ranks, for whoever asks afterwards which rank did what, where.
#pragma once

#include <deque>

#include "distributed/group/collective_header.h"

namespace warptape::distributed {

enum class CallState : uint8_t { Queued, Started, Completed, Failed };

struct FlightEntry {
  uint64_t id = 0;  // in order of the calls of this rank
  std::string group;
  CallHeader call{};  // sequence 0 for point-to-point
  CallState state = CallState::Queued;
  std::string site;
  std::chrono::system_clock::time_point queued, ended;
};

class WT_API FlightRecord {
 public:
  static constexpr size_t kCapacity = 2000;
  uint64_t add(const Collective& call, const std::string& group, uint64_t sequence, const std::string& site);
  void set_state(uint64_t id, CallState state);
  std::vector<FlightEntry> entries() const;

 private:
  mutable std::mutex mutex_;
  std::deque<FlightEntry> entries_;
  uint64_t next_ = 1;
};

struct World;
// Writes the record of a rank as JSON and returns the file's name; empty when that fails. Files are named
// <folder>/flight_<job>_rank<r>.json; the folder is $WARPTAPE_FLIGHT_DIR or the one for temporary files.
// `reason` says why it is written.
WT_API std::string dump_flight_record(const World& world, const std::string& reason);

// From now on SIGUSR2 makes every world of the process dump its flight record. Does nothing where the program
// handles that signal itself.
WT_API void dump_on_signal();
WT_API bool dumps_on_signal();

}  // namespace warptape::distributed
