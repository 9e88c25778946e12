// What regions keep on a storage, apart from their own tables: the region that will write it, how many read
// it, and how its contents are computed again. Code of this layer reads and changes that by these functions
// alone.
#pragma once

#include <atomic>

#include "tensor/deferral.h"
#include "tensor/storage.h"

namespace warptape::graph {

struct RematState;  // see rematerialize.cpp

// The region whose pending calls write the storage, or null: see Note [Regions and threads].
inline Deferral* writer_of(const Storage& s, std::memory_order order = std::memory_order_seq_cst) {
  return s.writer.load(order);
}
// False where another region writes it.
inline bool begin_writing(Storage& s, Deferral& region) {
  Deferral* nobody = nullptr;
  return s.writer.compare_exchange_strong(nobody, &region);
}
// Of a storage that no other thread knows yet.
inline void begin_writing_new(Storage& s, Deferral& region) {
  s.writer.store(&region, std::memory_order_relaxed);
}
// Who finds no writer then finds what it wrote.
inline void end_writing(Storage& s) { s.writer.store(nullptr, std::memory_order_release); }

// How many regions have the storage in their tables, but for new storages.
inline uint32_t reader_count(const Storage& s) { return s.readers.load(); }
inline void begin_reading(Storage& s) { s.readers.fetch_add(1); }
inline void end_reading(Storage& s) { s.readers.fetch_sub(1, std::memory_order_release); }

// What Note [Rematerialization] needs of the storage, or null. What it points to is guarded by remat_mutex().
inline RematState* remat_state(const Storage& s) {
  return static_cast<RematState*>(s.promise.load(std::memory_order_acquire));
}
inline void set_remat_state(Storage& s, RematState* state) {
  s.promise.store(state, std::memory_order_release);
}

}  // namespace warptape::graph
