#include "distributed/transport/gloo/backend.h"

namespace warptape::distributed {

GlooBackend::GlooBackend(const std::shared_ptr<Store>& store, int rank, int size, Milliseconds timeout)
    : ExchangeBackend(rank, size), mesh_(store, rank, size, timeout), mailbox_(mesh_) {
  mesh_.on_idle = [this] { mailbox_.try_progress(); };
  mesh_.in_haste = [this] { return mailbox_.has_unmatched(); };
  mesh_.last_call = [this](int r) { return last_call(r); };
}

void GlooBackend::exchange(const Blocks& to, const Blocks& from) {
  const int n = mesh_.size(), me = mesh_.rank();
  const uint64_t slot = ++step_;
  const Mesh::Describe describe = [this] { return describe_call(); };
  std::vector<MeshMessage> messages;
  for (int i = 1; i < n; ++i)
    if (const Block& b = from[static_cast<size_t>((me + n - i) % n)]; b.bytes)
      messages.push_back(mesh_.receive((me + n - i) % n, slot, b.data, b.bytes, describe));
  for (int i = 1; i < n; ++i)
    if (const Block& b = to[static_cast<size_t>((me + i) % n)]; b.bytes)
      messages.push_back(mesh_.send((me + i) % n, slot, b.data, b.bytes, describe));
  mesh_.wait(messages, deadline(), describe);
}

}  // namespace warptape::distributed
