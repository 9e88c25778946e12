// What a profile records: events of threads, begun and ended in the order of a stack, and what storages they
// allocated and freed. Who records an event tests one pointer of the thread; without a profile it is null.
//
// One profile runs at a time. It sees the thread that started it, and threads that join.
#pragma once

#include <concepts>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/context.h"

namespace warptape {

struct DeviceActivity;

enum class EventKind : uint8_t {
  Op,          // the call of an op
  Backward,    // a node of the tape during a backward pass
  User,        // what record_function marks
  Collective,  // a call between ranks
  Region,      // a program of a compiled region
  Kernel,      // a step of such a program
};

struct ProfilerOptions {
  bool shapes = false;   // of the arguments, with dtypes and numbers, and of the results
  bool memory = false;   // allocations and frees
  bool stacks = false;   // Python's frames at each op, and the calls of its functions
  bool device = false;   // what CUDA devices do
  bool nvtx = false;     // ranges for NVIDIA's tools
  bool modules = false;  // the calls of modules alone
};

struct ProfilerEvent {
  static constexpr uint32_t kNone = UINT32_MAX;
  const char* name;
  EventKind kind;
  uint32_t parent = kNone;  // the event of the same thread that it lies in
  int64_t start = 0;        // nanoseconds of the steady clock
  int64_t end = 0;          // 0 while it is open
  // Of Backward: the node's. Of Op: that of the next node, which is the op's own if the tape records the op.
  uint64_t sequence = 0;
  int64_t memory[2] = {0, 0};  // bytes allocated less freed outside of inner events: of the CPU, of devices
  uint32_t args = kNone;       // where in ProfilerThread::numbers the arguments begin
  uint32_t stack = kNone;      // which of ProfilerThread::stacks
};

struct MemoryChange {
  int64_t time;   // as ProfilerEvent::start
  int64_t bytes;  // negative where memory was freed
  uint64_t address;
  Device device;
  uint32_t event;  // the innermost open one, or kNone
};

// The events of one thread. Written by it, and read by whoever stops the profile, under the mutex.
struct WT_API ProfilerThread {
  std::mutex mutex;
  bool closed = false;  // the profile is over
  uint32_t number = 0;  // among the threads of the profile
  uint64_t profile = 0;
  int64_t id = 0;  // the kernel's, as in /proc and the traces of others
  ProfilerOptions options;
  std::vector<ProfilerEvent> events;
  std::vector<uint32_t> open;
  std::vector<int64_t> numbers;
  std::vector<std::string> stacks;
  std::vector<MemoryChange> memory;
  std::unordered_set<std::string> names;  // that nobody else keeps
  std::shared_ptr<void> calls;            // what Frontend::watch_calls() gave
};

// Starts a profile, which the calling thread joins. False where one runs; DeviceError where it is to record a
// device that is missing.
WT_API bool start_profile(const ProfilerOptions& options);
// Ends it and returns what its threads recorded; empty without one. A device's activity names its event by
// the number of the thread in the upper and that of the event in the lower half, plus one.
WT_API std::vector<std::shared_ptr<ProfilerThread>> stop_profile(std::vector<DeviceActivity>& activities);
// Joins the profile that runs, if one does.
WT_API void join_profile();

WT_API int64_t profiler_now();

// The calling thread's events, from 0; kNone where nothing is recorded. `owned` names are copied.
WT_API uint32_t begin_event(std::string_view name, EventKind kind, uint64_t sequence, bool owned);
WT_API void end_event(uint32_t event);
// An event of User, by a number that any thread may end and that no later profile takes for its own; 0 for
// none.
WT_API uint64_t begin_user_event(std::string_view name);
WT_API void end_user_event(uint64_t event);
// Storage memory was allocated (bytes > 0) or freed.
WT_API void record_memory(const void* data, int64_t bytes, Device device);

// An event around a scope.
class ProfiledScope {
 public:
  ProfiledScope(const char* name, EventKind kind, uint64_t sequence = 0) {
    if (__builtin_expect(thread_state().profiler != nullptr, 0))
      event_ = begin_event(name, kind, sequence, false);
  }
  // By a function that makes the name, for it is not called without a profile.
  template <std::invocable F>
  ProfiledScope(F&& name, EventKind kind) {
    if (__builtin_expect(thread_state().profiler != nullptr, 0)) event_ = begin_event(name(), kind, 0, true);
  }
  ~ProfiledScope() {
    if (__builtin_expect(event_ != ProfilerEvent::kNone, 0)) end_event(event_);
  }
  ProfiledScope(const ProfiledScope&) = delete;
  ProfiledScope& operator=(const ProfiledScope&) = delete;
  uint32_t event() const { return event_; }

 private:
  uint32_t event_ = ProfilerEvent::kNone;
};

}  // namespace warptape
