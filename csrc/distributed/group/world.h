// What a rank knows of the job it belongs to.
#pragma once

#include <atomic>
#include <string_view>

#include "core/context.h"
#include "distributed/group/flight.h"
#include "distributed/group/process_group.h"

namespace warptape::distributed {

struct WT_API World : std::enable_shared_from_this<World> {
  World(int rank, int size, std::string job, std::shared_ptr<Store> store, Milliseconds timeout);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  // The rank has left the job: SIGUSR2 no longer concerns it, though some group may still be held.
  void leave();
  // A forked child has its parent's groups and memory, and is not the rank. DistBackendError in one.
  void check_process(std::string_view what) const;
  bool is_forked() const;

  const int rank, size;
  const std::string job;  // its name, unique on this host
  const std::shared_ptr<Store> store;
  Milliseconds timeout;
  const int process;           // which joined
  RankContext* const context;  // of the rank: threads that work for it take it on
  FlightRecord flight;
  std::atomic<int64_t> waited{0};  // nanoseconds in which callers stood in calls and waited for their results
  mutable std::mutex mutex;
  std::string failure;  // what first ended a group of this rank
  std::vector<std::weak_ptr<ProcessGroup>> groups;
};

// The world of the calling thread's rank; DistBackendError when there is none.
WT_API World& current_world();

}  // namespace warptape::distributed
