// A send is two messages of one tag: a label that says what comes, and the data. A receive takes the label
// when it has arrived, in the order of posting; only if it fits is the data received, which is next.
#include <algorithm>

#include "distributed/transport/mpi/backend.h"

namespace warptape::distributed {
namespace {

constexpr int64_t kBufferedBytes = 256 * 1024;
constexpr int kBufferedSends = 32;
constexpr std::chrono::seconds kDeliveryTime(10);  // that leaving the group gives to buffered sends

struct Label {
  int64_t bytes;
  DType dtype;
};

std::mutex all_mutex;
std::vector<MpiMailbox*>& all_mailboxes() {
  static auto* all = new std::vector<MpiMailbox*>;
  return *all;
}

}  // namespace

struct MpiMailbox::PendingTransfer final : Transfer {
  Collective call;
  std::string site;
  Label label{};
  MpiMessage label_message, data_message;
  std::vector<char> copy;  // of a buffered send, which is finished before it is over
  bool buffered = false, matched = false;
  std::atomic<bool> finished{false};

  const Tensor& tensor() const { return call.op == CollectiveOp::Send ? call.inputs[0] : call.outputs[0]; }
  int tag() const { return call.tag + 1; }  // the first is the collectives'
  std::string describe(int rank) const {
    return message(distributed::describe(call), " at ", site, " on rank ", rank);
  }
};

MpiMailbox::MpiMailbox(MpiPeers& peers) : peers_(peers) {
  std::lock_guard lock(all_mutex);
  all_mailboxes().push_back(this);
}

MpiMailbox::~MpiMailbox() {
  {
    std::lock_guard lock(all_mutex);
    std::erase(all_mailboxes(), this);
  }
  std::lock_guard lock(mpi().mutex);
  for (auto& t : under_way_) mpi().kept.push_back(t);
}

std::shared_ptr<Transfer> MpiMailbox::post(const Collective& call, const std::string& site) {
  peers_.listen();
  WT_CHECK(call.tag >= 0 && call.tag < mpi().largest_tag, ValueError, name_of(call.op),
           ": expected a tag from 0 to ", mpi().largest_tag - 1, " (MPI's largest), got ", call.tag);
  auto t = std::make_shared<PendingTransfer>();
  t->call = call, t->site = site;
  std::lock_guard lock(mutex_);
  under_way_.push_back(t);
  if (call.op == CollectiveOp::Recv) return t;
  Block data = whole(t->tensor());
  t->matched = true;
  t->buffered = data.bytes <= kBufferedBytes &&
                std::count_if(under_way_.begin(), under_way_.end(), [](auto& o) { return o->buffered; }) <
                    kBufferedSends;
  t->label = {data.bytes, t->tensor().dtype()};
  if (t->buffered) {
    t->copy.assign(data.data, data.data + data.bytes);
    data.data = t->copy.data();
    t->call.inputs = {};
  }
  t->label_message = peers_.send(call.root, t->tag(), &t->label, sizeof t->label);
  t->data_message = peers_.send(call.root, t->tag(), data.data, data.bytes);
  t->finished = t->buffered;
  return t;
}

// Whether what comes is known now; the receive of the data is then on its way.
bool MpiMailbox::match(PendingTransfer& t) {
  if (t.matched) return true;
  for (auto& before : under_way_) {
    if (before.get() == &t) break;
    const bool same =
        before->call.root == t.call.root || before->call.root == kAnyRank || t.call.root == kAnyRank;
    if (!before->matched && before->tag() == t.tag() && same) return false;  // it comes first
  }
  if (!peers_.take(t.call.root, t.tag(), &t.label, sizeof t.label, t.source)) return false;
  const Block data = whole(t.tensor());
  if (t.label.bytes != data.bytes || t.label.dtype != t.tensor().dtype())
    peers_.fail(message(t.describe(peers_.rank()), ": rank ", t.source, " sends ", t.label.bytes,
                        " bytes of ", warptape::name(t.label.dtype), " (tag ", t.call.tag, ")"),
                AbortReason::Requested);
  t.data_message = peers_.receive(t.source, t.tag(), data.data, data.bytes);
  return t.matched = true;
}

// The caller holds the mutex.
void MpiMailbox::progress() {
  for (auto at = under_way_.begin(); at != under_way_.end();) {
    PendingTransfer& t = **at;
    const bool over = match(t) && peers_.over(t.label_message) && peers_.over(t.data_message);
    if (over) t.finished = true;
    at = over ? under_way_.erase(at) : std::next(at);
  }
}

void MpiMailbox::progress_all() {
  std::unique_lock all(all_mutex, std::try_to_lock);
  if (!all) return;
  for (MpiMailbox* each : all_mailboxes()) {
    std::unique_lock lock(each->mutex_, std::try_to_lock);
    if (!lock || each->under_way_.empty() || !each->peers_.aborted().empty()) continue;
    try {
      each->progress();
    } catch (const DistBackendError& e) {
      each->peers_.abort(e.what());  // for those who wait in that group
    }
  }
}

bool MpiMailbox::done(Transfer& transfer) {
  auto& t = static_cast<PendingTransfer&>(transfer);
  if (t.finished) return true;
  peers_.check();
  std::lock_guard lock(mutex_);
  progress();
  return t.finished;
}

void MpiMailbox::wait(Transfer& transfer, Milliseconds timeout) {
  auto& t = static_cast<PendingTransfer&>(transfer);
  const bool any = t.call.root == kAnyRank;
  auto step = [&] {
    if (!done(t)) progress_all();
    return t.finished.load();
  };
  auto missing = [&] {
    std::vector<int> out;
    for (int r = 0; r < peers_.size(); ++r)
      if (any ? r != peers_.rank() : r == t.call.root) out.push_back(r);
    return out;
  };
  auto describe = [&] { return t.describe(peers_.rank()); };
  auto late = [&] {
    peers_.fail(message(describe(), ": timed out after ", static_cast<double>(timeout.count()) / 1000.0,
                        " s; the other rank has not posted the matching call"),
                AbortReason::Timeout);
  };
  peers_.until(step, missing, any, Clock::now() + timeout, describe, late);
}

void MpiMailbox::deliver() {
  const auto deadline = Clock::now() + kDeliveryTime;
  auto waits = [&] {
    std::lock_guard lock(mutex_);
    progress();
    return std::any_of(under_way_.begin(), under_way_.end(), [](auto& t) { return t->buffered; });
  };
  try {
    while (peers_.aborted().empty() && waits() && Clock::now() < deadline)
      std::this_thread::sleep_for(Milliseconds(1));
  } catch (const std::exception&) {
    // Whoever they were for is gone.
  }
}

}  // namespace warptape::distributed
