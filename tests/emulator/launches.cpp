// What a launch shows that the kernel's run does not: pointers to the host's memory among its arguments,
// which a kernel could follow here and not on a GPU; and how large its blocks are, for
// tools/launch_limits.py.
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
    return found;
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

struct Launches {
  std::map<size_t, std::pair<unsigned, size_t>> largest;  // by the kernel's place in the plugin
  ~Launches() {
    FILE* out = fopen(getenv("WARPTAPE_EMULATOR_LAUNCHES"), "a");
    if (!out) return;
    for (const auto& [offset, most] : largest) fprintf(out, "%zx %u %zu\n", offset, most.first, most.second);
    fclose(out);
  }
};

}  // namespace

void check_argument(const void* argument, size_t bytes, const char* type) {
  static const bool wanted = getenv("WARPTAPE_EMULATOR_POINTERS");
  {
    auto held = lock();
    take_addresses(argument, bytes);
  }
  if (!wanted) return;
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

void count_launch(const void* kernel, unsigned threads, size_t shared) {
  static const bool wanted = getenv("WARPTAPE_EMULATOR_LAUNCHES");
  if (!wanted) return;
  static Launches all;  // written at the process's end
  Dl_info info;
  if (!dladdr(kernel, &info)) return;
  auto& most = all.largest[reinterpret_cast<uintptr_t>(kernel) - reinterpret_cast<uintptr_t>(info.dli_fbase)];
  most = {std::max(most.first, threads), std::max(most.second, shared)};
}

}  // namespace emulator
