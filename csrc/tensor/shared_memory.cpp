#include "tensor/shared_memory.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "core/errors.h"

namespace warptape {
namespace {

using FileId = std::pair<dev_t, ino_t>;  // inodes are numbered by file system

// Of several storages when a file arrives more than once.
struct Mapping {
  void* data;
  size_t bytes;
  int descriptor;  // -1: given up
  FileId file;
  int users;
  Ref<Storage> before;  // memory that NumPy may still look at
};

std::mutex mutex;
std::map<FileId, Mapping*>& mappings() {
  static auto* all = [] {
    // A fork while another thread maps would leave the child's lock taken.
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
    return new std::map<FileId, Mapping*>;
  }();
  return *all;
}

void release(void* context) {
  auto* m = static_cast<Mapping*>(context);
  {
    std::lock_guard lock(mutex);
    if (--m->users) return;
    // A longer mapping of the file may have taken its place.
    if (auto it = mappings().find(m->file); it != mappings().end() && it->second == m) mappings().erase(it);
  }
  ::munmap(m->data, m->bytes);
  if (m->descriptor >= 0) ::close(m->descriptor);
  delete m;
}

[[noreturn]] void refuse(const char* what, size_t bytes) {
  const char* remedy = errno == EMFILE ? "; each shared storage takes a file descriptor: raise the limit "
                                         "(ulimit -n), or share fewer and larger tensors"
                                       : "";
  throw OutOfMemoryError(
      message(what, ": cannot get ", bytes, " bytes of shared memory: ", std::strerror(errno), remedy));
}

void* map(int descriptor, size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return data == MAP_FAILED ? nullptr : data;
}

FileId file_of(int descriptor) {
  struct stat s{};
  ::fstat(descriptor, &s);
  return {s.st_dev, s.st_ino};
}

int new_file() {
  int descriptor = ::memfd_create("warptape", MFD_CLOEXEC);
  rlimit limit{};
  // The usual soft limit of 1024 is for programs that call select().
  if (descriptor < 0 && errno == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
      limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    descriptor = ::memfd_create("warptape", MFD_CLOEXEC);
  }
  return descriptor;
}

}  // namespace

int shared_descriptor(const Storage& storage) {
  auto* m = static_cast<Mapping*>(storage.context_of(release));
  return m ? m->descriptor : -1;
}

int share(Storage& storage) {
  if (int known = shared_descriptor(storage); known >= 0) return known;
  WT_CHECK(storage.device().is_host(), DeviceError, "share_memory_: expected memory of the CPU, got ",
           storage.device());
  const size_t bytes = storage.bytes() ? storage.bytes() : 1;  // no empty file can be mapped
  int descriptor = new_file();
  if (descriptor < 0) refuse("share_memory_", bytes);
  void* data = ::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 ? map(descriptor, bytes) : nullptr;
  if (!data) {
    const int error = errno;
    ::close(descriptor);
    errno = error;
    refuse("share_memory_", bytes);
  }
  if (storage.bytes()) std::memcpy(data, storage.data(), storage.bytes());
  auto* m = new Mapping{data, bytes, descriptor, file_of(descriptor), 1, {}};
  {
    std::lock_guard lock((mappings(), mutex));
    mappings().emplace(m->file, m);
  }
  Ref<Storage> before = storage.move_to(data, release, m);
  if (storage.exported()) m->before = std::move(before);
  storage.mark_shared();
  return descriptor;
}

Ref<Storage> map_shared(int descriptor, size_t bytes, bool keep) {
  std::lock_guard lock((mappings(), mutex));
  const FileId file = file_of(descriptor);
  auto it = keep ? mappings().find(file) : mappings().end();
  Mapping* m = nullptr;
  if (it != mappings().end() && it->second->bytes >= bytes) {
    m = it->second;
    ++m->users;
    ::close(descriptor);
  } else {
    void* data = map(descriptor, bytes ? bytes : 1);
    const int error = errno;
    if (!data || !keep) ::close(descriptor);
    if (!data) {
      errno = error;
      refuse("shared memory", bytes);
    }
    m = new Mapping{data, bytes ? bytes : 1, keep ? descriptor : -1, file, 1, {}};
    if (keep) mappings()[file] = m;
  }
  Ref<Storage> storage = Storage::wrap(m->data, bytes, {}, release, m);
  storage->mark_shared();
  return storage;
}

}  // namespace warptape
