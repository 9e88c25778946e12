// What the caching allocator of a device holds and did, by the names of torch.cuda.memory._snapshot().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace warptape {

// As Frontend::stack() gives it, shared by whoever lists it; null where it was not asked for.
using CallStack = std::shared_ptr<const std::string>;

enum class MemoryAction : uint8_t {
  Alloc,          // a tensor got a block
  FreeRequested,  // and gave it back
  FreeCompleted,  // so did the work of other streams: it may be handed out again
  SegmentAlloc,   // the allocator took memory from the device
  SegmentFree,    // and gave it back
  OutOfMemory,
  Snapshot,
};

struct MemoryHistoryOptions {
  // Of what the stacks are kept, each with those before it: blocks that are held, what took memory, what gave
  // it back.
  enum Stacks : uint8_t { kNone, kHeld, kAllocs, kAll };
  bool on = false;
  Stacks stacks = kNone;
  size_t max_actions = 0;  // the latest are kept
  uint32_t skipped = 0;    // a bit for each MemoryAction
  bool clears = false;     // what was noted so far
};

struct MemoryHistoryEntry {
  MemoryAction action;
  uint64_t address;  // of OutOfMemory: the bytes that are free on the device
  size_t bytes;      // as asked for; of Snapshot: that are active
  void* stream;
  uint64_t pool;    // of captured graphs; 0 for the common one
  int64_t time_us;  // since the epoch
  CallStack stack;
};

struct MemoryBlockState {
  uint64_t address;
  size_t bytes, requested;
  const char* state;
  CallStack stack;
};

struct MemorySegmentState {
  uint64_t address;
  size_t bytes;
  void* stream;
  bool small;
  uint64_t pool;
  std::vector<MemoryBlockState> blocks;  // in the order of addresses, without gaps
};

struct MemorySnapshot {
  std::vector<MemorySegmentState> segments;
  std::vector<MemoryHistoryEntry> history;  // the oldest first
};

}  // namespace warptape
