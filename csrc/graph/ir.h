// The program of a region: which instructions there are, on which memories, and in which steps they run.
//
// A memory is what a storage is to eager code: bytes that instructions read and write through operands, each
// a strided view. An instruction that writes a memory which another has written or read before works in
// place.
//   %0..   memories; `in` came from outside, `out` is seen outside when the program has run
// Numbers (a learning rate, a step) are no part of a program: each run takes them from its own calls, and so
// it does with the arguments of ops.
#pragma once

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
};

// Instructions that run in one pass over memory, or one that runs alone.
struct Step {
  std::vector<uint32_t> insns;
};

struct WT_API Program {
  std::vector<ProgramMemory> memories;
  std::vector<Insn> insns;
  std::vector<Step> steps;  // instructions of no step are dead
  // What the passes did: instructions removed, and those that joined another's step.
  int64_t removed = 0, fused = 0;

  std::string text() const;
  // For each memory the instructions of steps that read it, in order.
  std::vector<std::vector<uint32_t>> readers() const;
};

// Throws an Error that names the first instruction which reads a memory that nothing wrote, writes through an
// operand that leaves its memory, or runs in no step or two although something needs it, or before what it
// needs.
void verify(const Program& program);

// The passes, in their order.
void remove_dead(Program& program);
void fuse(Program& program);

}  // namespace warptape::graph
