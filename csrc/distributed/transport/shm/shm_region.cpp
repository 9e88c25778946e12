#include "distributed/transport/shm/shm_region.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <mutex>
#include <thread>

#include "distributed/group/flight.h"
#include "kernels/runtime/interrupt.h"
#include "kernels/runtime/pause.h"

namespace warptape::distributed {

struct Region::Head {
  std::atomic<uint32_t> aborted;  // 0, 1 while the reason is written, 2
  AbortReason kind;
  char reason[2048];
};

namespace {

constexpr Milliseconds kNap(10);  // how long a sleeper goes without looking whether all is well
// About 150 us: well over what waking a sleeper takes. With less, one that slept comes late, the other
// sleeps for it, and so on in every round.
constexpr int kSpins = 12000;

long futex(std::atomic<uint32_t>& word, int op, uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, &word, op, value, timeout, nullptr, 0);
}
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, Milliseconds most) {
  timespec t{0, std::chrono::nanoseconds(most).count()};
  futex(word, FUTEX_WAIT, value, &t);
}
void wake_all(std::atomic<uint32_t>& word) { futex(word, FUTEX_WAKE, INT32_MAX, nullptr); }

constexpr size_t aligned(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Whether a debugger or SIGSTOP holds the process; its state is the first letter after its name.
bool is_stopped(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(in, line);
  size_t at = line.rfind(") ");
  return at != std::string::npos && (line[at + 2] == 'T' || line[at + 2] == 't');
}

// A forked child inherits the open file that a presence lock hangs on, and would keep its parent alive in
// the eyes of the others.
std::mutex presence_mutex;
std::vector<int> presence_files;
void forget_presence_in_child() {
  for (int fd : presence_files) ::close(fd);
  presence_files.clear();
}
void remember_presence(int fd) {
  static const int registered = pthread_atfork([] { presence_mutex.lock(); }, [] { presence_mutex.unlock(); },
                                               [] { forget_presence_in_child(), presence_mutex.unlock(); });
  (void)registered;
  std::lock_guard lock(presence_mutex);
  presence_files.push_back(fd);
}

}  // namespace

Region::Region(Store& store, int rank, int size, Milliseconds timeout) : rank_(rank), size_(size) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  spins_ = size <= cores ? kSpins : 0;
  const size_t head = aligned(sizeof(Head)), words = aligned(size * sizeof(RankWords));
  const size_t counts = aligned(size_t(4) * size * size * sizeof(int64_t));
  const size_t slots = size_t(4) * size * kSlotBytes;  // two parities of data, two of results
  bytes_ = head + words + counts + slots + size_t(size) * size * sizeof(Channel);
  try {
    File memory;
    if (rank == 0) {
      memory = File(::memfd_create("warptape", MFD_CLOEXEC));
      WT_CHECK(memory && ::ftruncate(memory.get(), static_cast<off_t>(bytes_)) == 0, OutOfMemoryError,
               "distributed: cannot make ", bytes_ >> 20, " MiB of shared memory: ", strerror(errno));
      store.set_file("memory", memory);
    } else {
      memory = store.get_file("memory", timeout);
    }
    map(memory);
    char* at = base_;
    head_ = reinterpret_cast<Head*>(at);
    words_ = reinterpret_cast<RankWords*>(at += head);
    counts_ = reinterpret_cast<int64_t*>(at += words);
    slots_ = at += counts;
    channels_ = reinterpret_cast<Channel*>(at += slots);
    lock_presence(memory);
  } catch (const Error& e) {
    // The others learn why; where it was they who failed, their reason stands.
    std::string reason = "rank " + std::to_string(rank) + " cannot join the group: " + e.what();
    store.compare_set("joined", "", reason);
    if (rank == 0) store.set_file("memory", File(::memfd_create("none", MFD_CLOEXEC)));
    part_without_group(store);
    throw;
  }
  if (store.add("present", 1) == size) {
    store.compare_set("joined", "", "all");
    store.remove("memory");
  }
  std::string joined = store.get("joined", timeout);
  if (joined != "all") {
    part_without_group(store);
    throw DistBackendError(joined);
  }
}

// Rank 0 stays until all have heard why there is no group: it may be the one that serves the store.
void Region::part_without_group(Store& store) {
  unmap();
  store.add("heard", 1);
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  while (rank_ == 0 && store.add("heard", 0) < size_ && Clock::now() < deadline)
    std::this_thread::sleep_for(Milliseconds(5));
}

void Region::map(const File& memory) {
  // The one who could not make the memory hands out an empty file.
  WT_CHECK(::lseek(memory.get(), 0, SEEK_END) == static_cast<off_t>(bytes_), DistBackendError,
           "distributed: the shared memory of the group could not be made by its first rank");
  void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  WT_CHECK(at != MAP_FAILED, OutOfMemoryError, "distributed: cannot map ", bytes_ >> 20,
           " MiB of shared memory: ", strerror(errno), "; raise the limit of address space (ulimit -v)");
  base_ = static_cast<char*>(at);
}

// The lock belongs to an open file of our own, opened anew: it goes when that is closed, by us or by the
// kernel at our end, and no sooner.
void Region::lock_presence(const File& memory) {
  std::string path = "/proc/self/fd/" + std::to_string(memory.get());
  presence_ = File(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock = {};
  lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = rank_, lock.l_len = 1;
  WT_CHECK(presence_ && ::fcntl(presence_.get(), F_OFD_SETLK, &lock) == 0, DistBackendError,
           "distributed: cannot lock the shared memory: ", strerror(errno));
  remember_presence(presence_.get());
  struct stat pids = {};
  ::stat("/proc/self/ns/pid", &pids);
  words_[rank_].pid = ::getpid(), words_[rank_].pids = pids.st_ino;
  words_[rank_].dumps_on_signal = dumps_on_signal();
  words_[rank_].state.store(kPresent);
}

void Region::unmap() {
  {
    std::lock_guard lock(presence_mutex);
    std::erase(presence_files, presence_.get());
  }
  if (base_) ::munmap(base_, bytes_);
}

Region::~Region() {
  words_[rank_].state.store(kLeft);
  wake_all(words_[rank_].rounds);
  for (int r = 0; r < size_; ++r) ring(r);
  unmap();
}

void Region::publish() {
  RankWords& mine = words_[rank_];
  mine.rounds.store(++rounds_, std::memory_order_seq_cst);
  if (mine.sleepers.load(std::memory_order_seq_cst)) wake_all(mine.rounds);
}

void Region::wait_for_all(Clock::time_point deadline) {
  for (int i = 1; i < size_; ++i) {
    const int other = (rank_ + i) % size_;
    for (int spin = 0; late(other); ++spin) {
      if (spin >= spins_) {
        wait_slowly(other, deadline);
        break;
      }
      kernels::cpu::spin_pause();
    }
  }
  if (__builtin_expect(head_->aborted.load(std::memory_order_relaxed) != 0, 0)) check();
}

void Region::wait_slowly(int other, Clock::time_point deadline) {
  RankWords& theirs = words_[other];
  while (late(other)) {
    check();
    if (on_idle) on_idle();
    kernels::cpu::poll_interrupt();
    theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = theirs.rounds.load(std::memory_order_seq_cst);
    const bool still = static_cast<int32_t>(seen - rounds_) < 0;
    if (still) sleep_while(theirs.rounds, seen, kNap);
    theirs.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    const bool gone = is_gone(other);  // asked first: what a rank takes part in, it does before it leaves
    if (!late(other)) return;
    if (gone) check_alive(other, describe_call());
    if (Clock::now() >= deadline) time_out();
  }
}

void Region::ring(int rank) {
  RankWords& w = words_[rank];
  w.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (w.doorbell_sleepers.load(std::memory_order_seq_cst)) wake_all(w.doorbell);
}

void Region::sleep_for_doorbell(uint32_t heard) {
  RankWords& mine = words_[rank_];
  for (int spin = 0; spin < spins_; ++spin) {
    if (mine.doorbell.load(std::memory_order_relaxed) != heard) return;
    kernels::cpu::spin_pause();
  }
  mine.doorbell_sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (mine.doorbell.load(std::memory_order_seq_cst) == heard) sleep_while(mine.doorbell, heard, kNap);
  mine.doorbell_sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

bool Region::abort(const std::string& reason, AbortReason kind) {
  uint32_t none = 0;
  const bool first = head_->aborted.compare_exchange_strong(none, 1);
  if (first) {
    std::strncpy(head_->reason, reason.c_str(), sizeof head_->reason - 1);
    head_->kind = kind;
    head_->aborted.store(2);
  }
  for (int r = 0; r < size_; ++r) {
    wake_all(words_[r].rounds);
    ring(r);
  }
  return first;
}

void Region::explain(const std::string& error) {
  RankWords& mine = words_[rank_];
  std::strncpy(mine.error, error.c_str(), sizeof mine.error - 1);
}

AbortReason Region::abort_reason() const { return aborted().empty() ? AbortReason::None : head_->kind; }

std::string Region::aborted() const {
  if (head_->aborted.load() == 0) return {};
  while (head_->aborted.load() == 1) ::sched_yield();
  return head_->reason;
}

void Region::check() const {
  if (std::string reason = aborted(); !reason.empty()) throw DistBackendError(reason);
}

void Region::fail(const std::string& reason, AbortReason kind) {
  abort(reason, kind);
  throw DistBackendError(aborted());
}

void Region::fail_late(const std::string& reason, const std::vector<int>& late) {
  if (abort(reason, AbortReason::Timeout))
    for (int r : late) {
      const RankWords& w = words_[r];
      // A pid of another namespace is somebody else here.
      if (w.dumps_on_signal && w.pids == words_[rank_].pids && !is_dead(r)) ::kill(w.pid, SIGUSR2);
    }
  throw DistBackendError(aborted());
}

bool Region::is_dead(int other) const {
  struct flock lock = {};
  lock.l_type = F_WRLCK, lock.l_whence = SEEK_SET, lock.l_start = other, lock.l_len = 1;
  return ::fcntl(presence_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void Region::check_alive(int other, const std::string& call) {
  if (has_left(other))
    fail(message(call, ": ", left_the_group(other, words_[other].error)), AbortReason::PeerLost);
  if (is_dead(other) && words_[other].state.load() == kPresent)
    fail(message(call, ": rank ", other, " (process ", words_[other].pid, ") has died"),
         AbortReason::PeerLost);
}

void Region::time_out() {
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r)
    if (r != rank_ && late(r)) missing.push_back(r);
  std::string why = describe_call() + ": timed out waiting for " + list_of(missing) + ";";
  for (int r : missing) {
    const CallHeader &a = words_[r].calls[0], &b = words_[r].calls[1];
    const CallHeader& last = a.sequence > b.sequence ? a : b;
    why +=
        message(" rank ", r, " (process ", words_[r].pid, is_stopped(words_[r].pid) ? ", stopped" : "", ") ");
    if (last.sequence == 0)
      why += "has made no call in this group.";
    else
      why += message("was last in call ", last.sequence, ", ", name_of(last.op), " at ", last.site, ".");
  }
  fail_late(why, missing);
}

}  // namespace warptape::distributed
