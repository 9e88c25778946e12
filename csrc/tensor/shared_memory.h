// Storage in memory that processes share: files without a name (memfd), so that nothing stays behind when the
// last process that maps one ends, however it ends.
#pragma once

#include "tensor/storage.h"

namespace warptape {

// Moves the bytes of a CPU storage into shared memory and returns the file descriptor, which stays the
// storage's. Without effect on a storage that has one. OutOfMemoryError where the system refuses.
WT_API int share(Storage& storage);

// The descriptor to hand to other processes; -1 for memory without one.
WT_API int shared_descriptor(const Storage& storage);

// A storage on the first `bytes` of a file; it takes over the descriptor, and closes it at once unless
// `keep`. Kept files that this process has mapped already are mapped once.
WT_API Ref<Storage> map_shared(int descriptor, size_t bytes, bool keep);

}  // namespace warptape
