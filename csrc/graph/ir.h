// The program of a region: which instructions there are, on which memories, and in which steps they run.
//
// A memory is what a storage is to eager code: bytes that instructions read and write through operands, each
// a strided view. An instruction that writes a memory which another has written or read before works in
// place.
//   %0..   memories; `in` came from outside, `out` is seen outside when the program has run. A memory that is
//          `again` another is the same storage, which lost its contents in between and is computed again.
// Numbers (a learning rate, a step) are no part of a program: each run takes them from its own calls, and so
// it does with the arguments of ops.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/call.h"

namespace warptape::graph {

struct Operand {
  uint32_t memory;
  DType dtype;
  int64_t offset;  // in elements
  Shape sizes, strides;
  bool operator==(const Operand&) const = default;
  int64_t numel() const;
};

struct Insn {
  uint32_t call = 0;  // whose arguments and tensors it takes
  CallKind kind;
  DType compute;  // of Elementwise
  const void* callee;
  const char* name;
  SmallVector<Operand, 3> in, out;
  SmallVector<int8_t, 4> operands;  // of Elementwise: as in Call
};

struct ProgramMemory {
  size_t bytes = 0;
  Device device;
  bool in = false, out = false;
  std::optional<uint32_t> again;  // the memory whose storage it is, from then on
};

// Instructions that run in one pass over memory, or one that runs alone.
struct Step {
  std::vector<uint32_t> insns;
};

struct WT_API Program {
  std::vector<ProgramMemory> memories;
  std::vector<Insn> insns;
  std::vector<Step> steps;  // instructions of no step are dead
  // What the passes did: instructions removed, moved ahead of a neighbour, added to compute a result again,
  // and those that joined another's step.
  int64_t removed = 0, moved = 0, recomputed = 0, fused = 0;

  std::string text() const;
  // The number of the memory that names the storage: of memories that are one storage, the first.
  uint32_t storage_of(uint32_t memory) const { return memories[memory].again.value_or(memory); }
  // For each memory the instructions of steps that read it, in order.
  std::vector<std::vector<uint32_t>> readers() const;
};

// Throws an Error that names the first instruction which reads a memory that nothing wrote, writes through an
// operand that leaves its memory, or runs in no step or two although something needs it, or before what it
// needs.
void verify(const Program& program);

// The passes, in their order.
void remove_dead(Program& program);
void schedule(Program& program);
void recompute(Program& program, int64_t least_bytes);  // of values
void fuse(Program& program);

}  // namespace warptape::graph
