#include "distributed/group/world.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace warptape::distributed {
namespace {

std::mutex worlds_mutex;
std::vector<World*>& worlds() {
  static auto* all = new std::vector<World*>;
  return *all;
}

}  // namespace

World::World(int rank, int size, std::string job, std::shared_ptr<Store> store, Milliseconds timeout)
    : rank(rank),
      size(size),
      job(std::move(job)),
      store(std::move(store)),
      timeout(timeout),
      process(::getpid()),
      context(&rank_context()) {
  std::lock_guard lock(worlds_mutex);
  worlds().push_back(this);
}

World::~World() { leave(); }

void World::leave() {
  std::lock_guard lock(worlds_mutex);
  std::erase(worlds(), this);
}

bool World::is_forked() const { return ::getpid() != process; }

void World::check_process(std::string_view what) const {
  WT_CHECK(!is_forked(), DistBackendError, what, ": this process, ", ::getpid(), ", was forked from rank ",
           rank, ", process ", process,
           ", and must not take part in its place; make the call there, or leave the job "
           "here (destroy_process_group) and join one of its own (init_process_group)");
}

World& current_world() {
  auto& world = rank_context().world;
  WT_CHECK(world, DistBackendError,
           "distributed: the default process group has not been initialized; call init_process_group first");
  return *world;
}

// ---- flight record ----

uint64_t FlightRecord::add(const Collective& c, const std::string& group, uint64_t sequence,
                           const std::string& site) {
  FlightEntry e;
  e.group = group, e.site = site, e.call = header_of(c, sequence);
  e.queued = std::chrono::system_clock::now();
  std::lock_guard lock(mutex_);
  e.id = next_++;
  entries_.push_back(std::move(e));
  if (entries_.size() > kCapacity) entries_.pop_front();
  return next_ - 1;
}

void FlightRecord::set_state(uint64_t id, CallState state) {
  std::lock_guard lock(mutex_);
  if (entries_.empty() || id < entries_.front().id) return;  // long ago
  FlightEntry& e = entries_[id - entries_.front().id];
  e.state = state;
  if (state >= CallState::Completed) e.ended = std::chrono::system_clock::now();
}

std::vector<FlightEntry> FlightRecord::entries() const {
  std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  return out + '"';
}

double seconds(std::chrono::system_clock::time_point t) {
  return std::chrono::duration<double>(t.time_since_epoch()).count();
}

template <class List>
void write_list(std::ostream& out, const List& list) {
  out << '[';
  for (size_t i = 0; i < list.size(); ++i) out << (i ? "," : "") << list[i];
  out << ']';
}

void write_entry(std::ostream& out, const FlightEntry& e) {
  constexpr const char* states[] = {"queued", "started", "completed", "failed"};
  const CallHeader& c = e.call;
  out << "{\"id\":" << e.id << ",\"group\":" << quoted(e.group) << ",\"sequence\":" << c.sequence
      << ",\"call\":" << quoted(describe(c)) << ",\"op\":\"" << name_of(c.op) << "\",\"root\":" << c.root
      << ",\"tag\":" << c.tag << ",\"state\":\"" << states[static_cast<int>(e.state)]
      << "\",\"site\":" << quoted(e.site) << ",\"queued\":" << seconds(e.queued)
      << ",\"ended\":" << seconds(e.ended) << '}';
}

// The folder may be shared, so nothing is opened that others may have put there: the text goes into a new
// file of this user alone, which then replaces what has the name, be it a link.
bool write_whole(const std::string& path, std::string_view text) {
  std::string partial = path + ".partial.XXXXXX";
  const File file(::mkostemp(partial.data(), O_CLOEXEC));
  if (!file) return false;
  while (!text.empty()) {
    const ssize_t n = ::write(file.get(), text.data(), text.size());
    if (n < 0 && errno != EINTR) break;
    text.remove_prefix(n > 0 ? static_cast<size_t>(n) : 0);
  }
  if (text.empty() && ::rename(partial.c_str(), path.c_str()) == 0) return true;
  ::unlink(partial.c_str());
  return false;
}

}  // namespace

std::string dump_flight_record(const World& world, const std::string& reason) {
  const char* folder = getenv("WARPTAPE_FLIGHT_DIR");
  if (!folder || !*folder) folder = getenv("TMPDIR");
  std::string job = world.job;
  std::replace(job.begin(), job.end(), '/', '_');
  const std::string path =
      message(folder && *folder ? folder : "/tmp", "/flight_", job, "_rank", world.rank, ".json");
  std::ostringstream out;
  out.precision(17);
  std::string failure;
  std::vector<std::shared_ptr<ProcessGroup>> groups;  // released after the lock: the last handle takes it
  {
    std::lock_guard lock(world.mutex);
    failure = world.failure;
    for (auto& weak : world.groups) groups.push_back(weak.lock());
  }
  const char* restart = getenv("WARPTAPE_ATTEMPT");  // warptape-run's
  if (!restart) restart = getenv("TORCHELASTIC_RESTART_COUNT");
  out << "{\"version\":2,\"restart\":" << (restart ? std::atoi(restart) : 0) << ",\"rank\":" << world.rank
      << ",\"world_size\":" << world.size << ",\"job\":" << quoted(world.job) << ",\"pid\":" << getpid()
      << ",\"time\":" << seconds(std::chrono::system_clock::now()) << ",\"reason\":" << quoted(reason)
      << ",\"failure\":" << quoted(failure) << ",\"groups\":{";
  const char* comma = "";
  for (auto& group : groups)
    if (group) {
      out << comma << quoted(group->name()) << ':';
      write_list(out, group->ranks());
      comma = ",";
    }
  out << "},\"entries\":[";
  comma = "";
  for (const FlightEntry& e : world.flight.entries()) {
    out << comma << '\n';
    write_entry(out, e);
    comma = ",";
  }
  out << "\n]}\n";
  return write_whole(path, out.view()) ? path : std::string();
}

// ---- SIGUSR2: the handler only writes to a pipe; a thread dumps ----

namespace {

int signal_pipe[2] = {-1, -1};
std::atomic<bool> handler_installed{false};

void on_signal(int) {
  const int saved = errno;
  [[maybe_unused]] auto n = ::write(signal_pipe[1], "", 1);
  errno = saved;
}

void dump_on_request() {
  char c;
  while (::read(signal_pipe[0], &c, 1) == 1 || errno == EINTR) {
    std::vector<std::shared_ptr<World>> all;  // released after the lock, as above
    {
      std::lock_guard lock(worlds_mutex);
      for (World* w : worlds())
        if (auto alive = w->weak_from_this().lock()) all.push_back(std::move(alive));
    }
    for (auto& world : all) dump_flight_record(*world, "SIGUSR2");
  }
}

}  // namespace

void dump_on_signal() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction now = {};
    // A launcher starts its ranks with the signal ignored, so that it ends none before this.
    const bool none = ::sigaction(SIGUSR2, nullptr, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
                      (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN);
    if (!none) return;
    if (::pipe2(signal_pipe, O_CLOEXEC) != 0) return;
    std::thread(dump_on_request).detach();
    struct sigaction ours = {};
    ours.sa_handler = on_signal;
    ours.sa_flags = SA_RESTART;
    handler_installed = ::sigaction(SIGUSR2, &ours, nullptr) == 0;
  });
}

bool dumps_on_signal() { return handler_installed; }

}  // namespace warptape::distributed
