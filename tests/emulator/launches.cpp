// What a launch shows that the kernel's run does not: pointers to the host's memory among its arguments,
// which a kernel could follow here and not on a GPU, and bytes of them that nobody set; and how large its
// blocks are, for tools/launch_limits.py.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "internal.h"

namespace emulator {
namespace {

constexpr uint32_t kUnset = 0xFEFEFEFE;  // what -ftrivial-auto-var-init=pattern leaves in a variable

struct Range {
  uintptr_t from = 0, to = 0;
  bool holds(uintptr_t p) const { return p >= from && p < to; }
};

uintptr_t heap_start() {
  static const uintptr_t start = [] {
    uintptr_t found = 0;
    char line[512];
    FILE* maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
      if (strstr(line, "[heap]")) found = strtoull(line, nullptr, 16);
    if (maps) fclose(maps);
    // Below 4 GiB, where a program's heap lies that is not position independent, as Debian's Python,
    // addresses look like a float or an integer beside zeros.
    return found >> 32 ? found : 0;
  }();
  return start;
}

// The part of the calling thread's stack that is in use.
Range own_stack() {
  thread_local uintptr_t top = [] {
    pthread_attr_t attributes;
    void* base = nullptr;
    size_t bytes = 0;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &base, &bytes);
    pthread_attr_destroy(&attributes);
    return reinterpret_cast<uintptr_t>(base) + bytes;
  }();
  return {reinterpret_cast<uintptr_t>(__builtin_frame_address(0)), top};
}

}  // namespace

void check_argument(const void* argument, size_t bytes, const char* type) {
  {
    auto held = lock();
    take_addresses(argument, bytes);
  }
  // Asked each time: tests that hand such pointers in take it away.
  if (!getenv("WARPTAPE_EMULATOR_POINTERS")) return;
  for (size_t at = 0; at + sizeof kUnset <= bytes; at += sizeof kUnset)
    if (!memcmp(static_cast<const char*>(argument) + at, &kUnset, sizeof kUnset))
      die("%s: an argument of type %s has bytes from %zu on that nobody set", next_launch_name(), type, at);
  const uintptr_t heap = heap_start(), heap_end = reinterpret_cast<uintptr_t>(sbrk(0));
  const Range stack = own_stack();
  for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
    uintptr_t word;
    memcpy(&word, static_cast<const char*>(argument) + at, sizeof word);
    if (!stack.holds(word) && !(heap && Range{heap, heap_end}.holds(word))) continue;
    if (place_of(reinterpret_cast<const void*>(word)).device == kPageable)
      die("%s: an argument of type %s holds the address %#zx of the host's memory at byte %zu",
          next_launch_name(), type, size_t(word), at);
  }
}

// A line as soon as a kernel's blocks grow: not every process lives to its end (those of pytest-xdist).
void count_launch(const void* kernel, unsigned threads, size_t shared) {
  static const char* file = getenv("WARPTAPE_EMULATOR_LAUNCHES");
  if (!file) return;
  static auto& largest = *new std::map<const void*, std::pair<unsigned, size_t>>;
  auto& most = largest[kernel];
  if (threads <= most.first && shared <= most.second) return;
  most = {std::max(most.first, threads), std::max(most.second, shared)};
  Dl_info info;
  FILE* out = dladdr(kernel, &info) ? fopen(file, "a") : nullptr;
  if (!out) return;
  const size_t place = reinterpret_cast<uintptr_t>(kernel) - reinterpret_cast<uintptr_t>(info.dli_fbase);
  fprintf(out, "%zx %u %zu\n", place, most.first, most.second);
  fclose(out);
}

}  // namespace emulator
