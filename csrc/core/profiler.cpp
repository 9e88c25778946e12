#include "core/profiler.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "core/device_runtime.h"
#include "core/frontend.h"

namespace warptape {
namespace {

struct Profile {
  uint64_t number;
  ProfilerOptions options;
  std::vector<std::shared_ptr<ProfilerThread>> threads;
};

std::mutex profile_mutex;
std::unique_ptr<Profile> profile;  // that runs; under the mutex
uint64_t profiles = 0;             // that ever ran; likewise
std::atomic<bool> running{false};

// Keeps alive what thread_state().profiler points to, for the profile may end in another thread.
PerThread<std::shared_ptr<ProfilerThread>> joined_thread;

void leave() {
  own_thread_state().profiler = nullptr;
  own_thread_state().dispatch &= ~kProfile;
  *joined_thread = nullptr;
}

// A node of the tape has the stack of its forward op, not that of backward(), and so has what it calls.
bool in_backward(ProfilerThread& t, EventKind kind) {
  if (kind == EventKind::Backward) return true;
  std::lock_guard lock(t.mutex);
  return std::any_of(t.open.begin(), t.open.end(),
                     [&](uint32_t event) { return t.events[event].kind == EventKind::Backward; });
}

constexpr int kNumberBits = 32, kThreadBits = 12;

std::shared_ptr<ProfilerThread> thread_of(uint64_t event) {
  std::lock_guard lock(profile_mutex);
  const uint64_t thread = (event >> kNumberBits) & ((uint64_t{1} << kThreadBits) - 1);
  if (!profile || profile->number != event >> (kNumberBits + kThreadBits)) return nullptr;
  return profile->threads[thread];
}

void close(ProfilerThread& t, uint32_t event) {
  const auto at = std::find(t.open.rbegin(), t.open.rend(), event);
  if (at == t.open.rend()) return;
  t.open.erase(std::next(at).base());
  t.events[event].end = profiler_now();
  if (&t != thread_state().profiler) return;  // the stacks below are those of its own thread
  if (t.options.nvtx) runtime_of(DeviceType::CUDA).range_pop();
  if (t.options.device) runtime_of(DeviceType::CUDA).pop_event();
}

}  // namespace

int64_t profiler_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool start_profile(const ProfilerOptions& options) {
  {
    std::lock_guard lock(profile_mutex);
    if (profile) return false;
    if (options.nvtx || options.device) {
      DeviceRuntime& runtime = runtime_of(DeviceType::CUDA);
      if (options.device) runtime.start_activities();
    }
    profile = std::make_unique<Profile>(Profile{++profiles, options, {}});
    running = true;
  }
  join_profile();
  return true;
}

void join_profile() {
  if (!running.load(std::memory_order_relaxed)) return;
  std::unique_lock lock(profile_mutex);
  std::shared_ptr<ProfilerThread>& joined = *joined_thread;
  if (!profile || (joined && joined->profile == profile->number)) return;
  if (profile->threads.size() >> kThreadBits) return;
  joined = std::make_shared<ProfilerThread>();
  joined->number = static_cast<uint32_t>(profile->threads.size());
  joined->profile = profile->number;
  joined->id = syscall(SYS_gettid);
  joined->options = profile->options;
  profile->threads.push_back(joined);
  own_thread_state().profiler = joined.get();
  own_thread_state().dispatch |= kProfile;
  const ProfilerOptions& options = joined->options;
  lock.unlock();  // Python may run hooks of its own
  if (options.stacks || options.modules) joined->calls = frontend().watch_calls(options);
}

std::vector<std::shared_ptr<ProfilerThread>> stop_profile(std::vector<DeviceActivity>& activities) {
  std::unique_ptr<Profile> ended;
  {
    std::lock_guard lock(profile_mutex);
    ended = std::move(profile);
    running = false;
  }
  if (!ended) return {};
  for (auto& t : ended->threads) {
    std::lock_guard lock(t->mutex);
    while (!t->open.empty()) close(*t, t->open.back());
    t->closed = true;
  }
  if (*joined_thread) leave();
  if (ended->options.device) activities = runtime_of(DeviceType::CUDA).stop_activities();
  return std::move(ended->threads);
}

uint32_t begin_event(std::string_view name, EventKind kind, uint64_t sequence, bool owned) {
  ProfilerThread& t = *thread_state().profiler;
  std::string stack;
  if (t.options.stacks) stack = frontend().stack(!in_backward(t, kind));
  std::unique_lock lock(t.mutex);
  if (t.closed) {
    lock.unlock();
    leave();
    return ProfilerEvent::kNone;
  }
  const char* text = owned ? t.names.emplace(name).first->c_str() : name.data();
  if (t.options.nvtx) runtime_of(DeviceType::CUDA).range_push(text);
  ProfilerEvent e{text, kind};
  if (!t.open.empty()) e.parent = t.open.back();
  e.sequence = sequence;
  if (!stack.empty()) {
    e.stack = static_cast<uint32_t>(t.stacks.size());
    t.stacks.push_back(std::move(stack));
  }
  const auto event = static_cast<uint32_t>(t.events.size());
  if (t.options.device)
    runtime_of(DeviceType::CUDA).push_event((uint64_t{t.number} << kNumberBits | event) + 1);
  t.open.push_back(event);
  e.start = profiler_now();
  t.events.push_back(e);
  return event;
}

void end_event(uint32_t event) {
  if (!thread_state().profiler) return;
  ProfilerThread& t = *thread_state().profiler;
  std::lock_guard lock(t.mutex);
  if (!t.closed) close(t, event);
}

uint64_t begin_user_event(std::string_view name) {
  if (!running.load(std::memory_order_relaxed)) return 0;
  join_profile();
  if (!thread_state().profiler) return 0;
  const uint32_t event = begin_event(name, EventKind::User, 0, true);
  if (event == ProfilerEvent::kNone) return 0;
  const ProfilerThread& t = *thread_state().profiler;
  return (t.profile << kThreadBits | t.number) << kNumberBits | event;
}

void end_user_event(uint64_t event) {
  if (!event) return;
  const std::shared_ptr<ProfilerThread> t = thread_of(event);
  if (!t) return;
  std::lock_guard lock(t->mutex);
  if (!t->closed) close(*t, static_cast<uint32_t>(event));
}

void record_memory(const void* data, int64_t bytes, Device device) {
  ProfilerThread& t = *thread_state().profiler;
  if (!t.options.memory || !bytes) return;
  std::lock_guard lock(t.mutex);
  if (t.closed) return;
  const uint32_t event = t.open.empty() ? ProfilerEvent::kNone : t.open.back();
  if (event != ProfilerEvent::kNone) t.events[event].memory[device.is_host() ? 0 : 1] += bytes;
  t.memory.push_back({profiler_now(), bytes, reinterpret_cast<uintptr_t>(data), device, event});
}

}  // namespace warptape
