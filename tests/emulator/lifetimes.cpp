// Note [Lifetimes]
// The plugin's allocator says when it gives memory to a stream. What other streams did with that memory
// before must be ordered before what the stream does from then on: by events that it waits for, or because
// the host has waited. Where it is not, somebody has forgotten record_stream, and the process ends here,
// whether or not the numbers of this run are wrong. Each piece of work in a stream gets the next number of
// one count for all streams; a clock says which work of which stream is known to be done before a point. What
// uses memory is seen by the addresses that it is given: in arguments of kernels, of copies and of the
// libraries' stand-ins, not through tables in device memory. Work that is captured is compared with work of
// the same capture alone.
// WARPTAPE_EMULATOR_LIFETIMES=0 lets such faults be, for tests that plant them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "internal.h"

namespace emulator {
namespace {

struct Use {
  CUstream_st* stream;
  size_t number;
  unsigned long long capture;  // 0: none
  std::string name;
};
auto& g_uses = *new std::map<uintptr_t, std::vector<Use>>;  // by address
auto& g_host = *new Clock;                                  // what the host has waited for
thread_local std::vector<const void*> t_arguments;

size_t at(const Clock& clock, CUstream_st* stream) {
  const auto it = clock.find(stream);
  return it == clock.end() ? 0 : it->second;
}

bool is_ordered(const Use& use, CUstream_st* stream) {
  const unsigned long long capture = stream->capture ? stream->capture->id : 0;
  if (use.stream == stream || use.capture != capture) return true;
  if (capture) return at(stream->clock, use.stream) >= use.number;
  return std::max(at(stream->order, use.stream), at(g_host, use.stream)) >= use.number;
}

}  // namespace

void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, number] : from) into[stream] = std::max(into[stream], number);
}
void host_waited(const Clock& clock) { merge(g_host, clock); }

void take_addresses(const void* argument, size_t bytes) {
  for (size_t i = 0; i + sizeof(void*) <= bytes; i += sizeof(void*)) {
    const void* p;
    memcpy(&p, static_cast<const char*>(argument) + i, sizeof p);
    if (place_of(p).device >= 0) t_arguments.push_back(p);
  }
}
std::vector<const void*> taken_addresses() { return std::exchange(t_arguments, {}); }

void note_uses(CUstream_st* stream, const std::vector<const void*>& addresses, const std::string& name) {
  const auto& clock = stream->capture ? stream->clock : stream->order;
  const Use now{stream, at(clock, stream), stream->capture ? stream->capture->id : 0, name};
  for (const void* p : addresses) {
    if (place_of(p).device < 0) continue;
    auto& uses = g_uses[reinterpret_cast<uintptr_t>(p)];
    const auto same = std::find_if(uses.begin(), uses.end(), [&](const Use& u) {
      return u.stream == now.stream && u.capture == now.capture;
    });
    same == uses.end() ? uses.push_back(now) : void(*same = now);
  }
}

void forget_uses(const void* p, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(p);
  g_uses.erase(g_uses.lower_bound(first), g_uses.lower_bound(first + bytes));
}

void begin_life(const void* p, size_t bytes, cudaStream_t handle) {
  const char* wanted = getenv("WARPTAPE_EMULATOR_LIFETIMES");
  if (wanted && !strcmp(wanted, "0")) return;
  auto held = lock();
  CUstream_st* stream = handle ? resolve(handle) : default_stream(place_of(p).device);
  const auto first = reinterpret_cast<uintptr_t>(p);
  for (auto it = g_uses.lower_bound(first); it != g_uses.end() && it->first < first + bytes; ++it)
    for (const Use& use : it->second)
      if (!is_ordered(use, stream))
        die("%zu bytes at %p are given to stream %u while '%s' on stream %u may still use them: nothing "
            "orders "
            "the two, as record_stream would have",
            bytes, p, stream->number(), use.name.c_str(), use.stream->number());
  forget_uses(p, bytes);
}

}  // namespace emulator
