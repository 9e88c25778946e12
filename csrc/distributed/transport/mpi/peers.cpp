#include "distributed/transport/mpi/peers.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "distributed/group/world.h"
#include "kernels/runtime/interrupt.h"

namespace warptape::distributed {
namespace {

constexpr int64_t kPieceBytes = int64_t(1) << 30;  // MPI counts in int
constexpr int kTurnsAwake = 2000;                  // of a wait, before it sleeps between looks
constexpr std::chrono::microseconds kNap(50);
constexpr Milliseconds kLookEvery(200);
constexpr Milliseconds kTellTime(2000);  // at most, to put a word into the store

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw DistBackendError(message("mpi: ", call, " failed: ", text));
}

// In another process than the one that began it, a fork, MPI is nobody's.
void end_mpi() {
  int ended = 0;
  if (MpiLibrary& m = mpi(); ::getpid() == m.process && !m.failed && !MPI_Finalized(&ended) && !ended) {
    std::lock_guard lock(m.mutex);
    MPI_Finalize();
  }
}

MpiLibrary* begin_mpi() {
  int begun = 0, ended = 0, level = 0;
  MPI_Initialized(&begun), MPI_Finalized(&ended);
  WT_CHECK(!ended, DistBackendError,
           "mpi: MPI was ended in this process (MPI_Finalize), and begins only once");
  begun ? MPI_Query_thread(&level) : MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  WT_CHECK(level >= MPI_THREAD_SERIALIZED, DistBackendError,
           "mpi: expected an MPI that threads may call in turns (MPI_THREAD_SERIALIZED), got level ", level);
  auto* m = new MpiLibrary;
  m->process = ::getpid();
  MPI_Comm_rank(MPI_COMM_WORLD, &m->rank), MPI_Comm_size(MPI_COMM_WORLD, &m->size);
  int *bound = nullptr, known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &known);
  if (known) m->largest_tag = *bound;
  if (!begun) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    std::atexit(end_mpi);
  }
  return m;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

bool has(Store& store, const std::string& key) { return store.check(std::vector{key}); }

}  // namespace

MpiLibrary& mpi() {
  static MpiLibrary* const it = begin_mpi();
  return *it;
}

MpiPeers::MpiPeers(std::shared_ptr<Store> store, int rank, int size, Milliseconds timeout)
    : store_(std::move(store)), rank_(rank), size_(size), left_(static_cast<size_t>(size)) {
  MpiLibrary& m = mpi();
  const World& world = current_world();
  WT_CHECK(m.size == world.size || m.size > 1, DistBackendError, "mpi: the job has ", world.size,
           " ranks, but MPI knows of this process alone: it was not started by mpirun, or by that of another "
           "MPI than the plugin was built with; start the script with `mpirun -n ",
           world.size, " python script.py`");
  WT_CHECK(m.size == world.size && m.rank == world.rank, DistBackendError, "mpi: this is rank ", world.rank,
           " of ", world.size, " to the environment or the caller (RANK, WORLD_SIZE), but rank ", m.rank,
           " of ", m.size, " to MPI; leave the numbers to mpirun");
  world_store_ = world.store;
  store_->set(message("who/", rank), message(m.rank, " process ", ::getpid(), " on ", host_name()));
  std::vector<int> ranks;
  for (int r = 0; r < size; ++r) {  // all come here before any waits in MPI
    std::istringstream said(store_->get(message("who/", r), timeout));
    said >> ranks.emplace_back() >> std::ws;
    gone_.push_back(message("gone/", ranks.back()));
    std::getline(said, who_.emplace_back());
  }
  std::lock_guard lock(m.mutex);
  MPI_Group all, own;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, size, ranks.data(), &own), "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, own, 0, &comm_), "MPI_Comm_create_group");
  MPI_Group_free(&own), MPI_Group_free(&all);
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

// Messages that will never be over go on using the communicator.
MpiPeers::~MpiPeers() {
  int ended = 0;
  std::lock_guard lock(mpi().mutex);
  if (aborted().empty() && MPI_Finalized(&ended) == MPI_SUCCESS && !ended) MPI_Comm_free(&comm_);
}

MpiMessage MpiPeers::send(int to, int tag, const void* data, int64_t bytes) {
  MpiMessage out{to, {}};
  std::lock_guard lock(mpi().mutex);
  for (int64_t at = 0; at < bytes; at += kPieceBytes)
    check_mpi(
        MPI_Isend(static_cast<const char*>(data) + at, static_cast<int>(std::min(kPieceBytes, bytes - at)),
                  MPI_BYTE, to, tag, comm_, &out.pieces.emplace_back()),
        "MPI_Isend");
  return out;
}

MpiMessage MpiPeers::receive(int from, int tag, void* data, int64_t bytes) {
  MpiMessage out{from, {}};
  std::lock_guard lock(mpi().mutex);
  for (int64_t at = 0; at < bytes; at += kPieceBytes)
    check_mpi(MPI_Irecv(static_cast<char*>(data) + at, static_cast<int>(std::min(kPieceBytes, bytes - at)),
                        MPI_BYTE, from, tag, comm_, &out.pieces.emplace_back()),
              "MPI_Irecv");
  return out;
}

bool MpiPeers::over(MpiMessage& m) {
  if (m.pieces.empty()) return true;
  int all = 0;
  std::lock_guard lock(mpi().mutex);
  check_mpi(MPI_Testall(static_cast<int>(m.pieces.size()), m.pieces.data(), &all, MPI_STATUSES_IGNORE),
            "MPI_Testall");
  if (all) m.pieces.clear();
  return all;
}

bool MpiPeers::take(int from, int tag, void* data, int64_t bytes, int& source) {
  int arrived = 0;
  MPI_Message found;
  MPI_Status status;
  std::lock_guard lock(mpi().mutex);
  const int whose = from == kAnyRank ? MPI_ANY_SOURCE : from;
  check_mpi(MPI_Improbe(whose, tag, comm_, &arrived, &found, &status), "MPI_Improbe");
  if (!arrived) return false;
  source = status.MPI_SOURCE;
  check_mpi(MPI_Mrecv(data, static_cast<int>(bytes), MPI_BYTE, &found, MPI_STATUS_IGNORE), "MPI_Mrecv");
  return true;
}

void MpiPeers::until(const std::function<bool()>& step, const std::function<std::vector<int>()>& missing,
                     bool any, Clock::time_point deadline, const Describe& call,
                     const std::function<void()>& late) {
  auto next_look = Clock::now() + kLookEvery;
  for (int turn = 1; !step(); ++turn) {
    check();
    if (turn < kTurnsAwake)
      ::sched_yield();
    else
      std::this_thread::sleep_for(kNap);
    if (turn % 64) continue;
    kernels::cpu::poll_interrupt();
    const auto now = Clock::now();
    if (now >= next_look) {
      look(missing(), any, call);
      next_look = Clock::now() + kLookEvery;
    }
    if (now >= deadline) late();
  }
}

// What the store says of those that are waited for. One that left may have sent before what is still on its
// way: it counts at the second look.
void MpiPeers::look(const std::vector<int>& missing, bool any, const Describe& call) {
  std::string reason, left;
  size_t leavers = 0;
  try {
    if (has(*store_, "aborted")) reason = store_->get("aborted", kTellTime);
    for (int r : missing) {
      if (!reason.empty()) break;
      const auto at = static_cast<size_t>(r);
      if (const std::string key = message("left/", r); has(*store_, key)) {
        if (++leavers, left_[at] < 2) ++left_[at];
        if (left_[at] == 2) left = message(call(), ": ", left_the_group(r, store_->get(key, kTellTime)));
      } else if (has(*world_store_, gone_[at])) {
        reason = message(call(), ": rank ", r, " (", who(r), ") has died");
      }
    }
  } catch (const Error&) {
    return;  // the store is gone; mpirun sees to the rank that had it
  }
  if (reason.empty() && (!any || leavers == missing.size())) reason = left;
  if (!reason.empty()) fail(reason, AbortReason::PeerLost);
}

void MpiPeers::listen() {
  if (const auto now = Clock::now(); now >= next_listen_.load()) {
    next_listen_ = now + kLookEvery;
    look({}, true, [] { return std::string(); });
  }
  check();
}

void MpiPeers::leave(const std::string& error) {
  if (size_ > 1) set_first(store_, message("left/", rank_), error, kTellTime);
}

void MpiPeers::abort(const std::string& reason, AbortReason kind) {
  {
    std::lock_guard lock(reason_mutex_);
    if (!reason_.empty()) return;
    reason_ = reason, kind_ = kind;
  }
  mpi().failed = true;
  set_first(store_, "aborted", reason, kTellTime);
}

std::string MpiPeers::aborted() const {
  std::lock_guard lock(reason_mutex_);
  return reason_;
}

void MpiPeers::check() const {
  if (kind_.load(std::memory_order_relaxed) != AbortReason::None) throw DistBackendError(aborted());
}

void MpiPeers::fail(const std::string& reason, AbortReason kind) {
  abort(reason, kind);
  throw DistBackendError(aborted());
}

}  // namespace warptape::distributed
