#include "distributed/transport/mpi/backend.h"

#include <algorithm>

namespace warptape::distributed {

constexpr int kCollectiveTag = 0;

void MpiBackend::exchange(const Blocks& to, const Blocks& from) {
  const int n = peers_.size(), me = peers_.rank();
  auto messages = std::make_shared<std::vector<MpiMessage>>();
  auto missing = [&] {
    std::vector<int> out;
    for (MpiMessage& m : *messages)
      if (!peers_.over(m) && std::find(out.begin(), out.end(), m.peer) == out.end()) out.push_back(m.peer);
    return out;
  };
  auto late = [&] {
    const std::vector<int> ranks = missing();
    std::string why = describe_call() + ": timed out waiting for " + list_of(ranks) + ";";
    for (int r : ranks) why += message(" rank ", r, " (", peers_.who(r), ") ", last_call(r));
    if (!ranks.empty()) peers_.fail(why, AbortReason::Timeout);
  };
  try {
    for (int i = 1; i < n; ++i)
      if (const Block& b = from[static_cast<size_t>((me + n - i) % n)]; b.bytes)
        messages->push_back(peers_.receive((me + n - i) % n, kCollectiveTag, b.data, b.bytes));
    for (int i = 1; i < n; ++i)
      if (const Block& b = to[static_cast<size_t>((me + i) % n)]; b.bytes)
        messages->push_back(peers_.send((me + i) % n, kCollectiveTag, b.data, b.bytes));
    auto step = [&] {
      if (std::all_of(messages->begin(), messages->end(), [&](auto& m) { return peers_.over(m); }))
        return true;
      MpiMailbox::progress_all();
      return false;
    };
    peers_.until(step, missing, false, deadline(), [this] { return describe_call(); }, late);
  } catch (...) {
    std::lock_guard lock(mpi().mutex);
    mpi().kept.push_back(messages);
    mpi().kept.push_back(abandon_memory());
    throw;
  }
}

void MpiBackend::close() {
  if (std::exchange(closed_, true)) return;
  mailbox_.deliver();
  peers_.leave(error_);
}

}  // namespace warptape::distributed
