#include "distributed/transport/gloo/mesh.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "distributed/group/collective_header.h"
#include "distributed/transport/gloo/address.h"
#include "kernels/runtime/interrupt.h"

namespace warptape::distributed {
namespace {

constexpr Milliseconds kWhile(20), kBrief(1);
constexpr int kIdleWakes = 50;                // before the waker sleeps until somebody waits
constexpr Milliseconds kTellTime(2000);       // at most, to put the reason of an abort into the store
constexpr Milliseconds kConnectTime(60'000);  // once all are there
constexpr char kLeft = 'L', kAborted = 'A';
constexpr uint64_t kExitNoticeSlot = ~uint64_t(0);
constexpr Milliseconds kForever = std::chrono::hours(24 * 365);

// Our store as gloo's.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(distributed::Store& store, Milliseconds timeout) : store_(store), timeout_(timeout) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { store_.wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    store_.wait(keys, std::min(timeout, timeout_));
  }

 private:
  distributed::Store& store_;
  Milliseconds timeout_;
};

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

}  // namespace

Mesh::Mesh(std::shared_ptr<Store> store, int rank, int size, Milliseconds timeout)
    : store_(std::move(store)), rank_(rank), size_(size), peers_(static_cast<size_t>(size)) {
  store_->set(message("who/", rank), message("process ", ::getpid(), " on ", host_name()));
  for (int r = 0; r < size; ++r) who_.push_back(store_->get(message("who/", r), timeout));
  try {
    connect(timeout);
  } catch (const gloo::Exception& e) {
    throw DistNetworkError(message("gloo: rank ", rank, " cannot connect to the other ranks: ", e.what(),
                                   "; name the network interface in WARPTAPE_GLOO_INTERFACE"));
  }
  waker_ = std::thread([this] { wake_waiters(); });
}

void Mesh::connect(Milliseconds timeout) {
  const LocalAddress local = choose_address(*store_, rank_, size_, timeout);
  gloo::transport::tcp::attr attributes;
  attributes.iface = local.interface;
  attributes.hostname = local.host;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  context_ = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
  context_->setTimeout(std::min(timeout, kConnectTime));
  PrefixStore own("mesh", store_);
  GlooStore adapter(own, std::min(timeout, kConnectTime));
  context_->connectFullMesh(adapter, device);
  for (int r = 0; r < size_; ++r)
    if (PeerWatch& v = peers_[static_cast<size_t>(r)]; r != rank_)
      v.message =
          receive(r, kExitNoticeSlot, &v.notice, sizeof v.notice, [] { return std::string("connecting"); });
  // All are connected before any may leave, and with it the store.
  if (store_->add("connected", 1) == size_) store_->set("all", "");
  store_->get("all", timeout);
}

Mesh::~Mesh() {
  if (!failed_.load()) send_exit_notice(kLeft, error_);
  {
    std::lock_guard lock(waiting_mutex_);
    stopping_ = true;
    waiting_changed_.notify_all();
  }
  waker_.join();
}

// ---- messages ----

MeshMessage Mesh::make(int peer, bool sending, const void* data, int64_t bytes) {
  MeshMessage m;
  m.peer = peer, m.sending = sending;
  m.buffer = context_->createUnboundBuffer(const_cast<void*>(data), static_cast<size_t>(bytes));
  return m;
}

MeshMessage Mesh::send(int to, uint64_t slot, const void* data, int64_t bytes, const Describe& call) {
  check();
  MeshMessage m = make(to, true, data, bytes);
  try {
    m.buffer->send(to, slot);
  } catch (const gloo::Exception& e) {
    lost(to, e.what(), call);
  }
  return m;
}

MeshMessage Mesh::receive(int from, uint64_t slot, void* data, int64_t bytes, const Describe& call) {
  check();
  MeshMessage m = make(from, false, data, bytes);
  try {
    if (from != kAnyRank) {
      m.buffer->recv(from, slot);
    } else {
      std::vector<int> others;
      for (int r = 0; r < size_; ++r)
        if (r != rank_) others.push_back(r);
      m.buffer->recv(others, slot);
    }
  } catch (const gloo::Exception& e) {
    lost(from, e.what(), call);
  }
  return m;
}

bool Mesh::settle(MeshMessage& m, bool briefly) {
  if (m.over) return true;
  {
    std::lock_guard lock(waiting_mutex_);
    waiting_.emplace_back(&m, briefly);
    if (asleep_ || briefly) waiting_changed_.notify_all();
  }
  auto no_longer = [&] {
    std::lock_guard lock(waiting_mutex_);
    std::erase_if(waiting_, [&](auto& w) { return w.first == &m; });
  };
  try {
    m.over = m.sending ? m.buffer->waitSend(kForever) : m.buffer->waitRecv(&m.peer, kForever);
  } catch (...) {
    no_longer();
    throw;
  }
  no_longer();
  return m.over;
}

bool Mesh::wait_a_while(MeshMessage& m, bool briefly, const Describe& call) {
  try {
    return settle(m, briefly);
  } catch (const gloo::Exception& e) {
    lost(m.peer, e.what(), call);
  }
}

void Mesh::wait(std::vector<MeshMessage>& messages, Clock::time_point deadline, const Describe& call) {
  for (MeshMessage& m : messages)
    while (!wait_a_while(m, in_haste(), call)) {
      poll();
      on_idle();
      if (Clock::now() >= deadline) time_out(messages, call);
    }
}

void Mesh::time_out(std::vector<MeshMessage>& messages, const Describe& call) {
  std::vector<int> missing;
  for (MeshMessage& m : messages)
    if (!wait_a_while(m, true, call) && std::find(missing.begin(), missing.end(), m.peer) == missing.end())
      missing.push_back(m.peer);
  std::string why = call() + ": timed out waiting for " + list_of(missing) + ";";
  for (int r : missing) why += message(" rank ", r, " (", who(r), ") ", last_call(r));
  fail(why);
}

void Mesh::wake_waiters() {
  std::unique_lock lock(waiting_mutex_);
  auto briefly = [&] {
    return std::any_of(waiting_.begin(), waiting_.end(), [](auto& w) { return w.second; });
  };
  for (int empty = 0; !stopping_;) {
    empty = waiting_.empty() ? empty + 1 : 0;
    if (empty > kIdleWakes) {
      asleep_ = true;
      waiting_changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      asleep_ = false;
    }
    waiting_changed_.wait_for(lock, kWhile, [&] { return stopping_ || briefly(); });
    if (briefly()) waiting_changed_.wait_for(lock, kBrief, [&] { return stopping_; });
    for (auto& [m, brief] : waiting_) m->sending ? m->buffer->abortWaitSend() : m->buffer->abortWaitRecv();
  }
}

// ---- failure ----

void Mesh::poll() {
  check();
  kernels::cpu::poll_interrupt();
  poll_exit_notices();
}

// gloo's thread writes a notice: that it begins is a hint to wait for its end.
void Mesh::poll_exit_notices() {
  std::string reason;
  {
    std::lock_guard lock(peers_mutex_);
    for (PeerWatch& v : peers_)
      if (!v.received && std::atomic_ref(v.notice.kind).load(std::memory_order_acquire) != 0) {
        read_notice(v);
        if (v.received && v.notice.kind == kAborted && reason.empty()) reason = v.notice.reason;
      }
  }
  if (!reason.empty()) fail(reason);
}

void Mesh::read_notice(PeerWatch& v) {
  try {
    // Twice, for a wake-up may fall into the first.
    v.received = settle(v.message, true) || settle(v.message, true);
  } catch (const gloo::Exception&) {
    v.gone = true;
  }
  v.left |= v.received && v.notice.kind == kLeft;
}

int Mesh::check_peers() {
  poll_exit_notices();
  std::lock_guard lock(peers_mutex_);
  int left = 0, last_left = -1;
  for (int r = 0; r < size_; ++r) {
    PeerWatch& v = peers_[static_cast<size_t>(r)];
    if (r != rank_ && !v.received && !v.gone) read_notice(v);
    if (v.left) {
      ++left, last_left = r;
    } else if (v.gone) {
      return r;
    }
  }
  return left == size_ - 1 ? last_left : -1;
}

// Waits until it is on its way, unless a rank takes nothing any more.
void Mesh::send_exit_notice(char kind, const std::string& reason) {
  own_notice_.kind = kind;
  std::strncpy(own_notice_.reason, reason.c_str(), sizeof own_notice_.reason - 1);
  std::vector<MeshMessage> notices;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    notices.push_back(make(r, true, &own_notice_, sizeof own_notice_));
    try {
      notices.back().buffer->send(r, kExitNoticeSlot);
    } catch (const gloo::Exception&) {
      notices.pop_back();  // gone
    }
  }
  const auto deadline = Clock::now() + kTellTime;
  for (MeshMessage& m : notices) {
    try {
      while (!settle(m, true) && Clock::now() < deadline) {
      }
    } catch (const gloo::Exception&) {
    }
  }
}

void Mesh::poll_store() {
  std::string reason;
  try {
    reason = store_->get("aborted", Milliseconds(1));
  } catch (const Error&) {
    return;  // not so, or the store is gone too
  }
  fail(reason);
}

void Mesh::lost(int peer, const char* why, const Describe& call) {
  check();
  poll_exit_notices();
  std::unique_lock lock(peers_mutex_);
  const PeerWatch* theirs = peer >= 0 ? &peers_[static_cast<size_t>(peer)] : nullptr;
  const std::string left =
      theirs && theirs->left ? left_the_group(peer, theirs->notice.reason) : std::string();
  lock.unlock();
  if (!left.empty()) fail(message(call(), ": ", left));
  poll_store();
  fail(message(call(), ": rank ", peer, " (", who(peer), ") has died, or the network between has: ", why));
}

void Mesh::abort(const std::string& reason) {
  {
    std::lock_guard lock(reason_mutex_);
    if (!reason_.empty()) return;
    reason_ = reason;
    failed_.store(true);
  }
  set_first(store_, "aborted", reason, kTellTime);  // for those whose connection to this rank is clogged
  send_exit_notice(kAborted, reason);
}

std::string Mesh::aborted() const {
  std::lock_guard lock(reason_mutex_);
  return reason_;
}

void Mesh::check() const {
  if (__builtin_expect(failed_.load(std::memory_order_relaxed), 0)) throw DistBackendError(aborted());
}

void Mesh::fail(const std::string& reason) {
  abort(reason);
  throw DistBackendError(aborted());
}

}  // namespace warptape::distributed
