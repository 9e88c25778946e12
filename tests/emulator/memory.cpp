// Memory of the emulated devices and page-locked memory of the host. Fresh device memory is full of 0xFF: NaN
// as a float. Each allocation ends at a page that cannot be touched, as closely as its alignment lets it.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "internal.h"

namespace emulator {
namespace {

constexpr size_t kPage = 4096;

// cudaMalloc promises 256 bytes; with less, an access just behind an allocation is seen.
size_t alignment() {
  static const size_t bytes = [] {
    const char* text = getenv("WARPTAPE_EMULATOR_ALIGNMENT");
    return text ? static_cast<size_t>(strtoull(text, nullptr, 10)) : size_t(512);
  }();
  return bytes;
}

struct Allocation {
  size_t bytes = 0;
  int device = kPageLocked;
  char* mapping = nullptr;
  size_t mapped = 0;
};
// Never destroyed, like all state of the emulator: calls may come from destructors at the very end.
auto& g_allocations = *new std::map<uintptr_t, Allocation>;  // by address
auto& g_used = *new std::map<int, size_t>;                   // by device
int g_access = 0;

bool protects() {
  static const bool on = [] {
    const char* text = getenv("WARPTAPE_EMULATOR_PROTECT");
    return text && !strcmp(text, "1");
  }();
  return on;
}

void set_access(const Allocation& a, bool allowed) {
  mprotect(a.mapping, a.mapped - kPage, allowed ? PROT_READ | PROT_WRITE : PROT_NONE);
}
void set_access(bool allowed) {
  for (auto& [address, a] : g_allocations)
    if (a.device >= 0) set_access(a, allowed);
}

cudaError_t allocate(int device, void** p, size_t bytes) {
  const size_t unit = alignment(), padded = (bytes + unit - 1) / unit * unit;
  size_t pages = (padded + kPage - 1) / kPage * kPage;
  void* mapping = mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return cudaErrorMemoryAllocation;
  char* start = static_cast<char*>(mapping);
  mprotect(start + pages, kPage, PROT_NONE);
  if (device >= 0) memset(start, 0xFF, pages);
  *p = start + pages - padded;
  g_allocations[reinterpret_cast<uintptr_t>(*p)] = {bytes, device, start, pages + kPage};
  return cudaSuccess;
}

cudaError_t release(void* p, bool host) {
  auto it = g_allocations.find(reinterpret_cast<uintptr_t>(p));
  if (it == g_allocations.end() || (it->second.device == kPageLocked) != host) return cudaErrorInvalidValue;
  g_used[it->second.device] -= it->second.bytes;
  forget_uses(p, it->second.bytes);
  munmap(it->second.mapping, it->second.mapped);
  g_allocations.erase(it);
  return cudaSuccess;
}

}  // namespace

Access::Access() {
  if (protects() && g_access++ == 0) set_access(true);
}
Access::~Access() {
  if (protects() && --g_access == 0) set_access(false);
}

Place place_of(const void* p) {
  auto address = reinterpret_cast<uintptr_t>(p);
  auto it = g_allocations.upper_bound(address);
  if (it == g_allocations.begin()) return {};
  --it;
  const Allocation& a = it->second;
  if (address - it->first >= a.bytes) return {};
  return {a.device, a.bytes - (address - it->first)};
}

size_t device_limit() {
  static const size_t limit = [] {
    const char* text = getenv("WARPTAPE_EMULATED_MEMORY");
    return text ? static_cast<size_t>(strtoull(text, nullptr, 10)) : size_t(1) << 30;
  }();
  return limit;
}
size_t device_used(int device) { return g_used[device]; }

cudaError_t allocate_device(int device, void** p, size_t bytes) {
  *p = nullptr;
  if (!bytes) return cudaSuccess;
  if (bytes > device_limit() - g_used[device]) return cudaErrorMemoryAllocation;
  if (auto e = allocate(device, p, bytes); e != cudaSuccess) return e;
  g_used[device] += bytes;
  if (protects() && !g_access) set_access(g_allocations[reinterpret_cast<uintptr_t>(*p)], false);
  return cudaSuccess;
}
cudaError_t free_device(void* p) { return release(p, false); }

cudaError_t allocate_host(void** p, size_t bytes) {
  *p = nullptr;
  if (!bytes) return cudaSuccess;
  g_used[kPageLocked] += bytes;
  return allocate(kPageLocked, p, bytes);
}
cudaError_t free_host(void* p) { return release(p, true); }

}  // namespace emulator
