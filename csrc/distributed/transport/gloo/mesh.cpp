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
constexpr int kEmptyTicks = 50;               // before the ticker sleeps until somebody waits
constexpr Milliseconds kTellTime(2000);       // at most, to put a last word into the store
constexpr Milliseconds kConnectTime(60'000);  // once all are there
constexpr char kLeft = 'L', kAborted = 'A';
constexpr uint64_t kLastWordSlot = ~uint64_t(0);
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
    : store_(std::move(store)), rank_(rank), size_(size), vigils_(static_cast<size_t>(size)) {
  store_->set(message("who/", rank), message("process ", ::getpid(), " on ", host_name()));
  for (int r = 0; r < size; ++r) who_.push_back(store_->get(message("who/", r), timeout));
  try {
    connect(timeout);
  } catch (const gloo::Exception& e) {
    throw DistNetworkError(message("gloo: rank ", rank, " cannot connect to the other ranks: ", e.what(),
                                   "; name the network interface in WARPTAPE_GLOO_INTERFACE"));
  }
  ticker_ = std::thread([this] { tick(); });
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
    if (Vigil& v = vigils_[static_cast<size_t>(r)]; r != rank_)
      v.message = receive(r, kLastWordSlot, &v.word, sizeof v.word, [] { return std::string("connecting"); });
  // All are connected before any may leave, and with it the store.
  if (store_->add("connected", 1) == size_) store_->set("all", "");
  store_->get("all", timeout);
}

Mesh::~Mesh() {
  if (!failed_.load()) say_last_word(kLeft, error_);
  {
    std::lock_guard lock(waiting_mutex_);
    stopping_ = true;
    waiting_changed_.notify_all();
  }
  ticker_.join();
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

void Mesh::tick() {
  std::unique_lock lock(waiting_mutex_);
  auto briefly = [&] {
    return std::any_of(waiting_.begin(), waiting_.end(), [](auto& w) { return w.second; });
  };
  for (int empty = 0; !stopping_;) {
    empty = waiting_.empty() ? empty + 1 : 0;
    if (empty > kEmptyTicks) {
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
  look_at_last_words();
}

// gloo's thread writes a word: that it begins is a hint to wait for its end.
void Mesh::look_at_last_words() {
  std::string reason;
  {
    std::lock_guard lock(vigils_mutex_);
    for (Vigil& v : vigils_)
      if (!v.heard && std::atomic_ref(v.word.kind).load(std::memory_order_acquire) != 0) {
        hear(v);
        if (v.heard && v.word.kind == kAborted && reason.empty()) reason = v.word.reason;
      }
  }
  if (!reason.empty()) fail(reason);
}

void Mesh::hear(Vigil& v) {
  try {
    // Twice, for a tick may fall into the first.
    v.heard = settle(v.message, true) || settle(v.message, true);
  } catch (const gloo::Exception&) {
    v.gone = true;
  }
  v.left |= v.heard && v.word.kind == kLeft;
}

int Mesh::check_peers() {
  look_at_last_words();
  std::lock_guard lock(vigils_mutex_);
  int left = 0, last_left = -1;
  for (int r = 0; r < size_; ++r) {
    Vigil& v = vigils_[static_cast<size_t>(r)];
    if (r != rank_ && !v.heard && !v.gone) hear(v);
    if (v.left) {
      ++left, last_left = r;
    } else if (v.gone) {
      return r;
    }
  }
  return left == size_ - 1 ? last_left : -1;
}

// Waits until it is on its way, unless a rank takes nothing any more.
void Mesh::say_last_word(char kind, const std::string& reason) {
  own_word_.kind = kind;
  std::strncpy(own_word_.reason, reason.c_str(), sizeof own_word_.reason - 1);
  std::vector<MeshMessage> words;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    words.push_back(make(r, true, &own_word_, sizeof own_word_));
    try {
      words.back().buffer->send(r, kLastWordSlot);
    } catch (const gloo::Exception&) {
      words.pop_back();  // gone
    }
  }
  const auto deadline = Clock::now() + kTellTime;
  for (MeshMessage& m : words) {
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
  look_at_last_words();
  std::unique_lock lock(vigils_mutex_);
  const Vigil* theirs = peer >= 0 ? &vigils_[static_cast<size_t>(peer)] : nullptr;
  const std::string left = theirs && theirs->left ? left_the_group(peer, theirs->word.reason) : std::string();
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
  say_last_word(kAborted, reason);
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
