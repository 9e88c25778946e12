#include <algorithm>
#include <cstring>

#include "distributed/transport/shm/shm_backend.h"
#include "kernels/runtime/interrupt.h"

namespace warptape::distributed {

namespace {

struct Every {
  std::mutex mutex;
  std::vector<Mailbox*> all;
};

Every& every() {
  static auto* instance = new Every;  // outlives groups that end as the process does
  return *instance;
}

}  // namespace

struct Mailbox::PendingTransfer final : Transfer {
  Collective call;
  std::string site;
  char* data = nullptr;
  int64_t bytes = 0, moved = 0;
  bool started = false, finished = false;
  std::shared_ptr<Message> unexpected;  // of a receive: what had arrived before

  const Tensor& tensor() const { return call.op == CollectiveOp::Send ? call.inputs[0] : call.outputs[0]; }
  std::string describe() const { return message(distributed::describe(call), " at ", site); }
};

struct Mailbox::Message {
  PacketHeader header;
  std::vector<char> data;
  int64_t arrived = 0;
  bool claimed = false;
};

Mailbox::Mailbox(Region& region) : region_(region), arriving_(region.size()), unexpected_(region.size()) {
  std::lock_guard lock(every().mutex);
  every().all.push_back(this);
}

Mailbox::~Mailbox() {
  std::lock_guard lock(every().mutex);
  std::erase(every().all, this);
}

std::shared_ptr<Transfer> Mailbox::post(const Collective& call, const std::string& site) {
  region_.check();
  auto t = std::make_shared<PendingTransfer>();
  t->call = call, t->site = site;
  t->data = t->tensor().data_as<char>();
  t->bytes = t->tensor().numel() * static_cast<int64_t>(t->tensor().itemsize());
  std::lock_guard lock(mutex_);
  (call.op == CollectiveOp::Send ? sends_ : receives_).push_back(t);
  progress_all();
  return t;
}

bool Mailbox::done(Transfer& transfer) {
  auto& t = static_cast<PendingTransfer&>(transfer);
  std::lock_guard lock(mutex_);
  if (!t.finished) progress_all();
  return t.finished;
}

void Mailbox::wait(Transfer& transfer, Milliseconds timeout) {
  auto& t = static_cast<PendingTransfer&>(transfer);
  const auto deadline = Clock::now() + timeout;
  std::vector<int> peers;
  for (int r = 0; r < region_.size(); ++r)
    if (r != region_.rank() && (t.call.root == r || t.call.root == kAnyRank)) peers.push_back(r);
  while (true) {
    const uint32_t heard = region_.doorbell();
    if (done(t)) return;
    region_.check();
    try_progress_every();
    region_.sleep_for_doorbell(heard);
    if (region_.doorbell() != heard) continue;
    // Before the last look at the channels: what a rank sent, it sent before it left. As long as one of
    // several peers is there, it may be the one that sends.
    std::vector<int> gone;
    for (int r : peers)
      if (region_.is_gone(r)) gone.push_back(r);
    if (done(t)) return;
    kernels::cpu::poll_interrupt();
    for (int r : gone)
      if (gone.size() == peers.size() || !region_.has_left(r)) region_.check_alive(r, t.describe());
    if (Clock::now() < deadline) continue;
    region_.fail_late(
        message(t.describe(), " on rank ", region_.rank(), ": timed out after ", timeout.count() / 1000.0,
                " s; the other rank has not posted the matching call"),
        peers);
  }
}

void Mailbox::try_progress_every() {
  std::unique_lock lock(every().mutex, std::try_to_lock);
  if (!lock) return;
  for (Mailbox* each : every().all) {
    try {
      each->try_progress();
    } catch (const std::exception&) {  // of another group, which it has ended: whoever waits there is told
    }
  }
}

void Mailbox::try_progress() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock && !(sends_.empty() && receives_.empty())) progress_all();
}

void Mailbox::progress_all() {
  // Messages to one rank go in order: behind one that is not over, no other starts.
  std::vector<bool> blocked(region_.size());
  for (auto at = sends_.begin(); at != sends_.end();) {
    const int to = (*at)->call.root;
    if (!blocked[to] && push(**at)) {
      at = sends_.erase(at);
    } else {
      blocked[to] = true;
      ++at;
    }
  }
  for (int from = 0; from < region_.size(); ++from)
    while (pull(from)) {
    }
  std::erase_if(receives_, [](auto& t) { return t->finished; });
}

void Mailbox::finish(PendingTransfer& t) {
  t.finished = true;
  region_.ring(region_.rank());  // another thread may wait for it
}

// Whether the whole message is in the channel now.
bool Mailbox::push(PendingTransfer& t) {
  Channel& c = region_.channel(region_.rank(), t.call.root);
  while (true) {
    const uint32_t sent = c.sent.load(std::memory_order_relaxed);
    if (sent - c.received.load(std::memory_order_acquire) == kPackets) return false;
    auto& packet = c.packets[sent % kPackets];
    const int64_t n = std::min<int64_t>(t.bytes - t.moved, kPacketBytes);
    packet.header = {t.bytes, n, t.call.tag, t.tensor().dtype(), !t.started};
    if (n) std::memcpy(packet.data, t.data + t.moved, n);
    t.started = true, t.moved += n;
    c.sent.store(sent + 1, std::memory_order_release);
    region_.ring(t.call.root);
    if (t.moved == t.bytes) {
      finish(t);
      return true;
    }
  }
}

void Mailbox::check_fits(const PendingTransfer& t, int from, const PacketHeader& h) {
  if (h.total_bytes == t.bytes && h.dtype == t.tensor().dtype()) return;
  region_.fail(message(t.describe(), " on rank ", region_.rank(), ": rank ", from, " sends ", h.total_bytes,
                       " bytes of ", warptape::name(h.dtype), " (tag ", h.tag, ")"));
}

// Finds where a message goes. False when nobody waits for anything of that rank: it stays in the channel.
bool Mailbox::begin_message(int from, const PacketHeader& h) {
  bool others_wait = false;
  for (auto& t : receives_) {
    if (t->started || (t->call.root != from && t->call.root != kAnyRank)) continue;
    others_wait = true;
    if (t->call.tag != h.tag) continue;
    check_fits(*t, from, h);
    t->started = true, t->source = from;
    arriving_[from].receive = t;
    return true;
  }
  if (!others_wait) return false;
  auto unexpected = std::make_shared<Message>();
  unexpected->header = h;
  unexpected->data.resize(h.total_bytes);
  arriving_[from].unexpected = unexpected;
  unexpected_[from].push_back(unexpected);
  return true;
}

// Takes one packet, or hands over a message that had come before its receive; false when there is nothing to
// do.
bool Mailbox::pull(int from) {
  for (auto& t : receives_) {
    if (t->started || (t->call.root != from && t->call.root != kAnyRank)) continue;
    auto& messages = unexpected_[from];
    auto m = std::find_if(messages.begin(), messages.end(),
                          [&](auto& s) { return !s->claimed && s->header.tag == t->call.tag; });
    if (m == messages.end()) continue;
    check_fits(*t, from, (*m)->header);
    t->started = true, t->source = from;
    t->unexpected = *m, t->unexpected->claimed = true;
  }
  for (auto& t : receives_)
    if (!t->finished && t->unexpected && t->unexpected->arrived == t->bytes) {
      if (t->bytes) std::memcpy(t->data, t->unexpected->data.data(), t->bytes);
      std::erase(unexpected_[t->source], t->unexpected);
      finish(*t);
    }
  Channel& c = region_.channel(from, region_.rank());
  const uint32_t received = c.received.load(std::memory_order_relaxed);
  if (c.sent.load(std::memory_order_acquire) == received) return false;
  auto& packet = c.packets[received % kPackets];
  if (packet.header.first && !begin_message(from, packet.header)) return false;
  Arriving& to = arriving_[from];
  const int64_t n = packet.header.bytes;
  int64_t& moved = to.receive ? to.receive->moved : to.unexpected->arrived;
  if (n) std::memcpy((to.receive ? to.receive->data : to.unexpected->data.data()) + moved, packet.data, n);
  moved += n;
  if (moved == packet.header.total_bytes) {
    if (to.receive) finish(*to.receive);
    to = {};
  }
  c.received.store(received + 1, std::memory_order_release);
  region_.ring(from);
  return true;
}

}  // namespace warptape::distributed
