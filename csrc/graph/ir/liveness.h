// When the instructions of a program use its memories.
#pragma once

#include <algorithm>

#include "graph/ir/ir.h"

namespace warptape::graph {

// By position in an order of instructions, ascending.
struct Uses {
  std::vector<uint32_t> reads, writes;
  uint32_t first() const {
    return std::min(reads.empty() ? UINT32_MAX : reads.front(), writes.empty() ? UINT32_MAX : writes.front());
  }
  uint32_t last() const {
    return std::max(reads.empty() ? 0 : reads.back(), writes.empty() ? 0 : writes.back());
  }
};

// Before fusion: each step has one instruction.
class Liveness {
 public:
  explicit Liveness(const Program& program) : program_(program), uses_(program.memories.size()) {
    for (uint32_t position = 0; position < program.steps.size(); ++position) {
      const Insn& insn = program.insns[program.steps[position].insns[0]];
      for (const Operand& o : insn.in) uses_[o.memory].reads.push_back(position);
      for (const Operand& o : insn.out) uses_[o.memory].writes.push_back(position);
    }
  }
  const Uses& operator[](uint32_t memory) const { return uses_[memory]; }

  // Whether the program makes the memory, and frees it.
  bool is_temporary(uint32_t memory) const {
    const ProgramMemory& m = program_.memories[memory];
    return !m.in && !m.out && !uses_[memory].writes.empty();
  }

  // The bytes in use while the instruction at each position runs, of memories that the program makes.
  std::vector<int64_t> profile() const {
    std::vector<int64_t> bytes(program_.steps.size() + 1, 0);
    for (uint32_t m = 0; m < uses_.size(); ++m) {
      if (program_.memories[m].in || uses_[m].writes.empty()) continue;
      const auto size = static_cast<int64_t>(program_.memories[m].bytes);
      bytes[uses_[m].first()] += size;
      if (is_temporary(m)) bytes[uses_[m].last() + 1] -= size;
    }
    for (size_t i = 1; i < bytes.size(); ++i) bytes[i] += bytes[i - 1];
    bytes.pop_back();
    return bytes;
  }

 private:
  const Program& program_;
  std::vector<Uses> uses_;
};

}  // namespace warptape::graph
