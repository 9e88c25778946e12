#include "distributed/transport/nccl/watchdog.h"

#include <unistd.h>

#include <cstring>
#include <optional>

#include "core/cuda/devices.h"
#include "core/cuda/error.h"
#include "core/cuda/streams.h"
#include "distributed/group/world.h"
#include "kernels/cuda/common/relaxed_capture.h"
#include "kernels/runtime/interrupt.h"

namespace warptape::distributed {
namespace {

constexpr auto kPollCalls = Milliseconds(20);       // how often calls are looked at
constexpr auto kPollStore = Milliseconds(250);      // and the store
constexpr auto kCompareAfter = Milliseconds(5000);  // a call, so that one that went through wrongly is found
constexpr auto kSoonLate = Milliseconds(1000);
constexpr auto kIdle = std::chrono::hours(1);
constexpr auto kDepartureTime = Milliseconds(2000);
constexpr size_t kEntries = 32;

uint64_t mixed(uint64_t hash, const CallHeader& h) {
  auto mix = [&](int64_t value) { hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3ull; };
  for (int64_t v : {int64_t(h.op), int64_t(h.reduce), int64_t(h.dtype), int64_t(h.ndim), int64_t(h.root),
                    int64_t(h.tensors), h.numel})
    mix(v);
  for (int64_t size : h.sizes) mix(size);
  return hash ^ hash >> 29;
}

std::optional<std::string> peek(Store& store, const std::string& key) {
  if (const std::string keys[] = {key}; !store.check(keys)) return std::nullopt;
  return store.get(key, Milliseconds(1000));
}

// Where servers note which ranks of the job are gone.
Store& root_of(Store& store) {
  auto* inner = dynamic_cast<PrefixStore*>(&store);
  return inner ? root_of(*inner->underlying()) : store;
}

}  // namespace

NcclCall::~NcclCall() {
  if (end) cuda::succeeded(cudaEventDestroy(end));
}

std::string NcclCall::text() const {
  std::string out = describe(header);
  if (!is_point_to_point(header.op)) out += message(", call ", header.sequence);
  return message(out, " on rank ", rank);
}

Watchdog::Watchdog(std::shared_ptr<Store> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size), last_of_(static_cast<size_t>(size)) {
  store_->set(message("who/", rank), std::to_string(current_world().rank));
}

void Watchdog::watch(std::shared_ptr<Communicator> communicator) {
  std::lock_guard lock(mutex_);
  communicator_ = std::move(communicator);
  watching_ = std::thread([self = shared_from_this()] { self->poll_calls(); });
  talking_ = std::thread([self = shared_from_this()] { self->poll_store(); });
}

void Watchdog::add(std::shared_ptr<NcclCall> call) {
  std::lock_guard lock(mutex_);
  last_call_ = Clock::now();
  if (!is_point_to_point(call->header.op)) {
    call->number = ++calls_;
    entries_.push_back(
        {calls_, mixed(entries_.empty() ? 0 : entries_.back().hash, call->header), call->header});
    if (entries_.size() > kEntries) entries_.pop_front();
  }
  under_way_.push_back(std::move(call));
  changed_.notify_all();
}

void Watchdog::poll_calls() {
  kernels::cpu::Uninterrupted quiet;
  Lock lock(mutex_);
  const auto communicator = communicator_;
  kernels::cuda::use_device(communicator->device());
  kernels::cuda::RelaxedCapture beside_captures;
  while (!closing_ || !under_way_.empty()) {
    changed_.wait_for(lock, under_way_.empty() ? Milliseconds(kIdle) : kPollCalls);
    while (!under_way_.empty()) {
      auto first = under_way_.front();
      lock.unlock();
      const cudaError_t state = first->issued ? cudaEventQuery(first->end) : cudaErrorNotReady;
      if (state == cudaSuccess) {
        first->over = true;
        first->ended(true);
      } else if (!cuda::succeeded(state) && state != cudaErrorNotReady) {
        fail(AbortReason::Requested, message(first->text(), ": the device failed: ", cuda::describe(state)));
      } else if (std::string error = communicator->error(); !error.empty()) {
        fail(AbortReason::PeerLost, message(first->text(), ": ", error));
      } else if (Clock::now() - first->begin > first->timeout) {
        fail(AbortReason::Timeout, late(*first));
      }
      lock.lock();
      if (state != cudaSuccess) break;
      if (!under_way_.empty() && under_way_.front() == first) under_way_.pop_front();
      changed_.notify_all();
    }
  }
}

std::string Watchdog::late(const NcclCall& call) {
  std::lock_guard lock(mutex_);
  std::string text = message(call.text(), ": timed out after ", call.timeout.count() / 1000.0, " s");
  for (int r = 0; r < size_; ++r) {
    const Entry& last = last_of_[static_cast<size_t>(r)];
    if (r == rank_ || !call.number || last.number >= call.number) continue;
    text += message("; rank ", r, ' ');
    text += last.number ? message("was last in call ", last.header.sequence, ", ", describe(last.header))
                        : "has made no call in this group that is known of";
  }
  return text;
}

// Its dump, and what says so to whoever waits for the device, come before streams go on.
void Watchdog::fail(AbortReason kind, const std::string& reason) {
  Lock lock(mutex_);
  if (!reason_.empty()) return;
  reason_ = reason, abort_reason_ = kind;
  told_ = std::to_string(static_cast<int>(kind)) + reason;
  const auto lost = under_way_;
  const auto communicator = communicator_;
  lock.unlock();
  std::string more, whole;
  for (auto& call : lost) more = call->ended(false);
  lock.lock();
  whole = reason_ += more;
  lock.unlock();
  if (communicator && !lost.empty()) cuda::report_failure(communicator->device(), whole);
  failed_ = true;
  if (communicator) communicator->abort();
  lock.lock();
  under_way_.clear();
  changed_.notify_all();
}

void Watchdog::check() {
  if (__builtin_expect(!failed_, 1)) return;
  Lock lock(mutex_);
  if (communicator_) cuda::drop_failure(communicator_->device());
  throw DistBackendError(reason_);
}

void Watchdog::explain(const std::string& error) {
  std::lock_guard lock(mutex_);
  error_ = error;
}

std::string Watchdog::reason() const {
  std::lock_guard lock(mutex_);
  return reason_;
}

AbortReason Watchdog::abort_reason() const {
  std::lock_guard lock(mutex_);
  return abort_reason_;
}

void Watchdog::close() {
  Lock lock(mutex_);
  if (std::exchange(closing_, true) || !watching_.joinable()) return;
  changed_.notify_all();
  const auto self = std::this_thread::get_id();
  const bool own = self == watching_.get_id() || self == talking_.get_id();  // held the group last
  if (!own) {
    changed_.wait(lock, [&] { return under_way_.empty(); });
    changed_.wait_for(lock, kDepartureTime, [&] { return departure_published_; });
  }
  const bool may_join = !own && departure_published_;  // else a store that does not answer keeps it
  lock.unlock();
  own ? watching_.detach() : watching_.join();
  may_join ? talking_.join() : talking_.detach();
  lock.lock();
  communicator_ = nullptr;  // the backend has it, and leaves it
}

// ---- through the store, which may be slow, or gone: a thread of its own ----

void Watchdog::poll_store() {
  kernels::cpu::Uninterrupted quiet;
  uint64_t published = 0;
  Lock lock(mutex_);
  auto over = [&] { return !reason_.empty() || (closing_ && under_way_.empty()); };
  auto busy = [&] {
    return !under_way_.empty() || (compared_ < calls_ && Clock::now() - last_call_ < kCompareAfter);
  };
  try {
    while (!over()) {
      changed_.wait(lock, [&] { return over() || busy(); });
      changed_.wait_for(lock, kPollStore, over);
      if (over()) break;
      const Entries mine(entries_.begin(), entries_.end());
      auto first = under_way_.empty() ? nullptr : under_way_.front();
      const bool publish = std::exchange(published, calls_) != calls_;
      lock.unlock();
      talk(first, mine, publish);
      lock.lock();
    }
    const std::string told = told_, left = message(rank_, ' ', calls_, ' ', error_);
    lock.unlock();
    if (!told.empty()) store_->compare_set("aborted", "", told);
    store_->compare_set("left", "", left);
  } catch (const std::exception&) {  // the store is gone: NCCL and time tell what is left to tell
  }
  if (!lock.owns_lock()) lock.lock();
  departure_published_ = true;
  changed_.notify_all();
}

void Watchdog::talk(const std::shared_ptr<NcclCall>& first, const Entries& mine, bool publish) {
  if (publish)
    store_->set(message("calls/", rank_),
                std::string(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Entry)));
  if (auto reason = peek(*store_, "aborted"))
    return fail(static_cast<AbortReason>(reason->at(0) - '0'), reason->substr(1));
  const int next = (rank_ + 1) % size_;  // a difference shows between two neighbours
  compare(mine, next, calls_of(next));
  if (first && Clock::now() - first->begin > std::min(kSoonLate, first->timeout / 4)) check_peers(*first);
}

Watchdog::Entries Watchdog::calls_of(int rank) {
  const auto text = peek(*store_, message("calls/", rank));
  if (!text || text->size() < sizeof(Entry)) return {};
  Entries out(text->size() / sizeof(Entry));
  std::memcpy(static_cast<void*>(out.data()), text->data(), out.size() * sizeof(Entry));
  std::lock_guard lock(mutex_);
  last_of_[static_cast<size_t>(rank)] = out.back();
  return out;
}

void Watchdog::compare(const Entries& mine, int rank, const Entries& theirs) {
  for (const Entry& a : mine)
    for (const Entry& b : theirs) {
      if (a.number != b.number || rank == rank_) continue;
      {
        std::lock_guard lock(mutex_);
        compared_ = std::max(compared_, a.number);
      }
      if (a.hash == b.hash) continue;
      const char* when = same_call(a.header, b.header) ? " before call " : " in call ";
      return fail(AbortReason::Requested,
                  message("the ranks differ", when, a.header.sequence, ":\n  rank ", rank_, ": ",
                          describe(a.header), "\n  rank ", rank, ": ", describe(b.header)));
    }
}

// Ranks that have left or died, and what the others called last. Few at a time: all ranks may ask.
void Watchdog::check_peers(const NcclCall& call) {
  if (auto text = peek(*store_, "left")) {
    std::istringstream in(*text);
    int rank = 0;
    uint64_t made = 0;
    in >> rank >> made;
    const std::string error(std::istreambuf_iterator<char>(in.ignore()), {});
    if (call.number ? made < call.number : rank == call.header.root)
      return fail(AbortReason::PeerLost, message(call.text(), ": ", left_the_group(rank, error)));
  }
  constexpr int kAtOnce = 16;
  for (int i = 0; i < std::min(size_, kAtOnce); ++i) {
    const int r = next_looked_at_++ % size_;
    if (r == rank_) continue;
    calls_of(r);
    const auto who = peek(*store_, message("who/", r));
    const auto gone = who ? peek(root_of(*store_), "gone/" + *who) : std::nullopt;
    if (gone) return fail(AbortReason::PeerLost, message(call.text(), ": ", *gone));
  }
}

}  // namespace warptape::distributed
