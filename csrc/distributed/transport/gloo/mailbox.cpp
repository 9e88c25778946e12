// A send is two messages: what comes, in a slot of the tag, and the data, in a slot made of tag, number and
// size, so that data never meets a receive that it does not fit. A receive from a known rank expects both
// from the start; one from any rank, and what follows it with the same tag, learns the number first.
#include "distributed/transport/gloo/backend.h"

#include <algorithm>

namespace warptape::distributed {
namespace {

constexpr int64_t kBufferedBytes = 256 * 1024;
constexpr size_t kBufferedSends = 32;
constexpr std::chrono::seconds kDeliveryTime(10);  // that leaving the group gives to buffered sends

constexpr uint64_t kLabels = uint64_t(1) << 62, kData = uint64_t(1) << 63;

struct Label {
  uint64_t number;  // of the message, among those of this tag between the two ranks
  int64_t bytes;
  int32_t tag;
  DType dtype;
};

uint64_t label_slot(int tag) { return kLabels | static_cast<uint32_t>(tag); }

// Mixed, for there are more bits than the slot has.
uint64_t data_slot(int tag, uint64_t number, int64_t bytes) {
  uint64_t x = static_cast<uint32_t>(tag);
  for (uint64_t part : {number, static_cast<uint64_t>(bytes)}) {
    x = (x ^ part) + 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return kData | (x >> 2);
}

}  // namespace

struct GlooMailbox::PendingTransfer final : Transfer {
  Collective call;
  std::string site;
  Label label{};
  MeshMessage label_message, data_message;
  std::vector<char> copy;  // of a buffered send
  bool expecting = false, labelled = false;
  uint64_t number = 0;  // that it expects
  bool finished = false;
  std::mutex mutex;
  Mesh::Describe describe;

  const Tensor& tensor() const { return call.op == CollectiveOp::Send ? call.inputs[0] : call.outputs[0]; }
  bool unmatched() const { return !finished && !expecting; }
};

std::shared_ptr<Transfer> GlooMailbox::post(const Collective& call, const std::string& site) {
  auto t = std::make_shared<PendingTransfer>();
  t->call = call, t->site = site;
  t->describe = [&t = *t, rank = mesh_.rank()] {
    return message(distributed::describe(t.call), " at ", t.site, " on rank ", rank);
  };
  Block data = whole(t->tensor());
  std::lock_guard lock(mutex_);
  const std::pair<int, int> key{call.root, call.tag};
  if (call.op == CollectiveOp::Send) {
    const bool buffers = data.bytes <= kBufferedBytes && has_room();
    if (buffers) {
      t->copy.assign(data.data, data.data + data.bytes);
      data.data = t->copy.data();
    }
    t->label = {sent_[key]++, data.bytes, call.tag, t->tensor().dtype()};
    t->label_message = mesh_.send(call.root, label_slot(call.tag), &t->label, sizeof t->label, t->describe);
    t->data_message.over = data.bytes == 0;
    if (data.bytes)
      t->data_message = mesh_.send(call.root, data_slot(call.tag, t->label.number, data.bytes), data.data,
                                   data.bytes, t->describe);
    if (buffers) {
      buffered_.push_back(t);
      t->call.inputs = {};
      t->finished = true;
      return t;
    }
    t->expecting = true;
  } else {
    t->label_message =
        mesh_.receive(call.root, label_slot(call.tag), &t->label, sizeof t->label, t->describe);
    bool any = call.root == kAnyRank;
    for (auto& other : under_way_) any |= other->unmatched() && other->call.tag == call.tag;
    if (!any) expect_data(*t, expected_[key]++);
  }
  under_way_.push_back(t);
  return t;
}

// Lets go of those that were delivered, if there are many.
bool GlooMailbox::has_room() {
  while (buffered_.size() >= kBufferedSends && delivered(*buffered_.front())) buffered_.pop_front();
  return buffered_.size() < kBufferedSends;
}

bool GlooMailbox::delivered(PendingTransfer& t) {
  auto over = [&](MeshMessage& m) {
    return mesh_.wait_a_while(m, true, [] { return std::string("a buffered send"); });
  };
  return over(t.label_message) && over(t.data_message);
}

GlooMailbox::~GlooMailbox() {
  const auto deadline = Clock::now() + kDeliveryTime;
  try {
    for (auto& t : buffered_)
      while (mesh_.aborted().empty() && !delivered(*t) && Clock::now() < deadline) mesh_.poll();
  } catch (const std::exception&) {
    // Whoever they were for is gone.
  }
}

void GlooMailbox::expect_data(PendingTransfer& t, uint64_t number) {
  const Block data = whole(t.tensor());
  t.number = number, t.expecting = true;
  t.data_message.over = data.bytes == 0;
  if (data.bytes)
    t.data_message = mesh_.receive(t.label_message.peer, data_slot(t.call.tag, number, data.bytes), data.data,
                                   data.bytes, t.describe);
}

void GlooMailbox::check_fits(PendingTransfer& t) {
  const Label& l = t.label;
  if (l.bytes == whole(t.tensor()).bytes && l.dtype == t.tensor().dtype() && l.number == t.number) return;
  mesh_.fail(message(t.describe(), ": rank ", t.source, " sends ", l.bytes, " bytes of ",
                     warptape::name(l.dtype), " (tag ", l.tag, ")"));
}

// Whether the transfer is over, at the latest after a while. The caller holds its mutex.
bool GlooMailbox::move(PendingTransfer& t, bool briefly) {
  if (t.finished) return true;
  if (!mesh_.wait_a_while(t.label_message, briefly, t.describe)) return false;
  if (!t.labelled && t.call.op == CollectiveOp::Recv) {
    t.source = t.label_message.peer;
    std::lock_guard lock(mutex_);
    if (!t.expecting) {
      expected_[{t.source, t.call.tag}] = t.label.number + 1;
      if (t.label.bytes == whole(t.tensor()).bytes) expect_data(t, t.label.number);
    }
    check_fits(t);
  }
  t.labelled = true;
  if (!mesh_.wait_a_while(t.data_message, briefly, t.describe)) return false;
  std::lock_guard lock(mutex_);
  t.finished = true;
  std::erase_if(under_way_, [](auto& each) { return each->finished; });
  return true;
}

bool GlooMailbox::done(Transfer& transfer) {
  auto& t = static_cast<PendingTransfer&>(transfer);
  std::lock_guard lock(t.mutex);
  if (!move(t, true)) mesh_.poll();
  return t.finished;
}

void GlooMailbox::wait(Transfer& transfer, Milliseconds timeout) {
  auto& t = static_cast<PendingTransfer&>(transfer);
  const auto deadline = Clock::now() + timeout;
  auto next_look = Clock::now() + std::chrono::seconds(1);
  int lost = -1;
  while (true) {
    {
      std::lock_guard lock(t.mutex);
      if (move(t, has_unmatched())) return;
    }
    if (lost >= 0) mesh_.lost(lost, "the connection broke", t.describe);  // after a look at what it had sent
    mesh_.poll();
    try_progress();
    if (t.call.root == kAnyRank && Clock::now() >= next_look) {
      lost = mesh_.check_peers();
      next_look = Clock::now() + std::chrono::seconds(1);
    }
    if (Clock::now() >= deadline)
      mesh_.fail(message(t.describe(), ": timed out after ", timeout.count() / 1000.0,
                         " s; the other rank has not posted the matching call"));
  }
}

bool GlooMailbox::has_unmatched() {
  std::lock_guard lock(mutex_);
  return std::any_of(under_way_.begin(), under_way_.end(), [](auto& t) { return t->unmatched(); });
}

void GlooMailbox::try_progress() {
  std::vector<std::shared_ptr<PendingTransfer>> unmatched;
  {
    std::lock_guard lock(mutex_);
    for (auto& t : under_way_)
      if (t->unmatched()) unmatched.push_back(t);
  }
  for (auto& t : unmatched)
    if (std::unique_lock lock(t->mutex, std::try_to_lock); lock) move(*t, true);
}

}  // namespace warptape::distributed
