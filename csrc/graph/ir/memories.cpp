#include "graph/ir/memories.h"

#include "graph/ir/storage_state.h"

namespace warptape::graph {

Memories::Entry& Memories::entry_of(const Storage& s) {
  const size_t mask = table_.size() - 1;
  size_t at = (reinterpret_cast<uintptr_t>(&s) * 0x9e3779b97f4a7c15 >> 32) & mask;
  while (table_[at].epoch == epoch_ && table_[at].storage != &s) at = (at + 1) & mask;
  return table_[at];
}

void Memories::grow() {
  table_.assign(std::max<size_t>(64, 2 * table_.size()), {});
  for (Memory& m : list_) entry_of(*m.storage) = {m.storage.get(), &m, epoch_};
}

Memory& Memories::add(Storage& s) {
  if (2 * (list_.size() + 1) > table_.size()) grow();
  Memory& m = list_.emplace_back();
  m.storage = Ref<Storage>::share(&s);
  m.number = static_cast<uint32_t>(list_.size() - 1);
  entry_of(s) = {&s, &m, epoch_};
  return m;
}

void Memories::clear() {
  list_.clear();
  operands_.clear();
  ++epoch_;
}

const std::vector<Memory*>& Memories::of_operands(const std::vector<Call>& calls) {
  operands_.clear();
  for (const Call& c : calls)
    for (const auto* list : {&c.in, &c.out})
      for (const Tensor& t : *list) operands_.push_back(&of(t));
  return operands_;
}

void Memories::detach(const Deferral* writer, std::vector<Call>& calls,
                      const std::vector<bool>& rematerialized) {
  bool any = false;
  for (Memory& m : list_) {
    if (m.number == kNoNumber) continue;
    const bool written = writer_of(*m.storage, std::memory_order_relaxed) == writer;
    if (m.visible) {
      if (written && m.storage->is_deferred()) any = true, m.detached = m.storage->detach();
    } else if (m.number >= rematerialized.size() || !rematerialized[m.number]) {
      if (written) {
        if (m.storage->is_evicted()) m.storage->restore();  // who captures the calls looks at its address
        end_writing(*m.storage);
      }
      if (m.registered) end_reading(*m.storage);
      m.storage = {};
    }
  }
  if (!any) return;
  size_t next = 0;
  for (Call& c : calls)
    for (const auto* list : {&c.in, &c.out})
      for (const Tensor& t : *list)
        if (const Memory& m = *operands_[next++]; m.detached) t->storage = m.detached;
}

Storage* Memories::visible_of(const Storage& detached) const {
  for (const Memory& m : list_)
    if (m.detached.get() == &detached) return m.storage.get();
  return nullptr;
}

}  // namespace warptape::graph
