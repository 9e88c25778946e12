// Runs elementwise instructions a second time where that lowers the most memory in use at any one time: what
// is next read much later, as backward does, need not be kept until then if all that it is computed from is
// kept anyway (the cheap operators of Chen et al. 2016, arXiv 1604.06174). The same instruction on the same
// bits gives the same bits.
#include <algorithm>

#include "graph/liveness.h"

namespace warptape::graph {
namespace {

constexpr int64_t kLeastPart = 256;  // values below this part of the peak are not worth a launch

struct Candidate {
  uint32_t place, before;  // which instruction runs again, and before which
  int64_t bytes;
};

// Whether the memory holds at `until` what it held at `from`, without costing anything.
bool is_kept(const Program& p, const Liveness& uses, uint32_t memory, uint32_t from, uint32_t until) {
  const auto& writes = uses[memory].writes;
  const auto next = std::upper_bound(writes.begin(), writes.end(), from);
  if (next != writes.end() && *next < until) return false;
  return p.memories[memory].out || (!writes.empty() && uses[memory].last() >= until);
}

// Takes the instruction at `place` as the candidate if it is one and saves more at the peak.
void consider(const Program& p, const Liveness& uses, uint32_t place, uint32_t peak, Candidate& best) {
  const Insn& insn = p.insns[p.steps[place].insns[0]];
  if (insn.kind != CallKind::Elementwise) return;
  const uint32_t m = insn.out[0].memory;
  const auto bytes = static_cast<int64_t>(p.memories[m].bytes);
  if (bytes <= best.bytes || !uses.is_temporary(m) || uses[m].writes.size() > 1) return;
  const std::vector<uint32_t>& reads = uses[m].reads;
  const auto next = std::lower_bound(reads.begin(), reads.end(), peak);
  // What is first read behind the peak is better computed later, which fusion does.
  if (next == reads.begin() || next == reads.end() || *next == peak) return;
  if (std::all_of(insn.in.begin(), insn.in.end(), [&](const Operand& o) {
        return o.memory != m && is_kept(p, uses, o.memory, place, *next);
      }))
    best = {place, *next, bytes};
}

// The instruction runs again, into a memory with a name of its own, which later ones read.
void repeat(Program& p, const Candidate& c) {
  Insn again = p.insns[p.steps[c.place].insns[0]];
  const uint32_t before = again.out[0].memory, after = static_cast<uint32_t>(p.memories.size());
  p.memories.push_back(p.memories[before]);
  p.memories.back().again = p.storage_of(before);
  again.out[0].memory = after;
  const uint32_t number = p.steps[c.before].insns[0];
  for (size_t k = c.before; k < p.steps.size(); ++k)
    for (Operand& o : p.insns[p.steps[k].insns[0]].in)
      if (o.memory == before) o.memory = after;
  for (Step& s : p.steps)
    if (s.insns[0] >= number) ++s.insns[0];
  p.insns.insert(p.insns.begin() + number, std::move(again));
  p.steps.insert(p.steps.begin() + c.before, Step{{number}});
  ++p.recomputed;
}

bool lower_peak(Program& p, int64_t least_bytes) {
  const Liveness uses(p);
  const std::vector<int64_t> in_use = uses.profile();
  const auto peak = std::max_element(in_use.begin(), in_use.end());
  if (peak == in_use.end()) return false;
  const auto at = static_cast<uint32_t>(peak - in_use.begin());
  Candidate best{0, 0, std::max(least_bytes, *peak / kLeastPart) - 1};
  for (uint32_t place = 0; place < at; ++place) consider(p, uses, place, at, best);
  if (!best.before) return false;
  repeat(p, best);
  return true;
}

}  // namespace

void recompute(Program& program, int64_t least_bytes) {
  while (lower_peak(program, least_bytes)) {
  }
}

}  // namespace warptape::graph
