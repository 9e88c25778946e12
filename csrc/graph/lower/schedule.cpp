// Lets instructions that free more than they make run earlier, past others that need more memory while those
// still hold theirs. Of two neighbours that do not need each other the order with the lower peak is taken.
#include <algorithm>

#include "graph/ir/liveness.h"

namespace warptape::graph {
namespace {

constexpr uint32_t kReach = 16;  // positions that an instruction moves at most

bool uses(const Insn& insn, uint32_t memory) {
  const auto is_it = [&](const Operand& o) { return o.memory == memory; };
  return std::any_of(insn.in.begin(), insn.in.end(), is_it) ||
         std::any_of(insn.out.begin(), insn.out.end(), is_it);
}

class Scheduler {
 public:
  explicit Scheduler(Program& p) : program_(p), liveness_(p), first_(p.memories.size()), last_(first_) {
    for (uint32_t m = 0; m < p.memories.size(); ++m) {
      if (liveness_[m].writes.empty()) continue;
      first_[m] = at(liveness_[m].first());
      last_[m] = at(liveness_[m].last());
    }
  }

  void run() {
    for (uint32_t position = 1; position < program_.steps.size(); ++position)
      for (uint32_t k = position; k > 0 && k + kReach > position && pays(k); --k) swap(k);
  }

 private:
  uint32_t at(uint32_t position) const { return program_.steps[position].insns[0]; }

  // What an instruction makes, and by how much less is in use after it than with that; `other` runs right
  // before or after it.
  struct Bytes {
    int64_t allocated = 0, freed = 0;
  };
  Bytes bytes_of(uint32_t number, uint32_t other, bool is_first) const {
    Bytes b;
    const Insn& insn = program_.insns[number];
    std::vector<uint32_t> visited;
    for (const auto* list : {&insn.in, &insn.out})
      for (const Operand& o : *list) {
        if (!liveness_.is_temporary(o.memory) || std::ranges::find(visited, o.memory) != visited.end())
          continue;
        visited.push_back(o.memory);
        const auto size = static_cast<int64_t>(program_.memories[o.memory].bytes);
        const bool shared = uses(program_.insns[other], o.memory);
        const auto ends = [&](uint32_t end) { return end == number || (shared && end == other); };
        if (ends(first_[o.memory]) && (is_first || !shared)) b.allocated += size;
        if (ends(last_[o.memory]) && (!is_first || !shared)) b.freed += size;
      }
    return b;
  }

  // The most in use while the two run, above what is in use before them.
  int64_t peak(uint32_t a, uint32_t b) const {
    const Bytes first = bytes_of(a, b, true), second = bytes_of(b, a, false);
    return std::max(first.allocated, first.allocated - first.freed + second.allocated);
  }

  // Whether one of `a` and one of `b` lie in the same storage, under the same name or as what is computed
  // again.
  bool shares(const auto& a, const auto& b) const {
    return std::ranges::any_of(a, [&](const Operand& x) {
      return std::ranges::any_of(b, [&](const Operand& y) {
        return program_.storage_of(x.memory) == program_.storage_of(y.memory);
      });
    });
  }

  bool pays(uint32_t position) const {
    const uint32_t a = at(position - 1), b = at(position);
    const Insn &before = program_.insns[a], &insn = program_.insns[b];
    if (shares(insn.in, before.out) || shares(insn.out, before.out) || shares(insn.out, before.in))
      return false;
    // What others see is not changed before what might fail first.
    for (const Operand& o : insn.out)
      if (program_.memories[o.memory].in) return false;
    return peak(b, a) < peak(a, b);
  }

  void swap(uint32_t position) {
    const uint32_t a = at(position - 1), b = at(position);
    for (const auto* list : {&program_.insns[b].in, &program_.insns[b].out})
      for (const Operand& o : *list) {
        if (last_[o.memory] == b && uses(program_.insns[a], o.memory)) last_[o.memory] = a;
        if (first_[o.memory] == a && uses(program_.insns[b], o.memory)) first_[o.memory] = b;
      }
    std::swap(program_.steps[position - 1], program_.steps[position]);
    ++program_.moved;
  }

  Program& program_;
  Liveness liveness_;                   // of the order that came; which does not change what is temporary
  std::vector<uint32_t> first_, last_;  // instructions that use a memory, in the order that is
};

}  // namespace

void schedule(Program& program, const ProgramOptions&) { Scheduler(program).run(); }

}  // namespace warptape::graph
