// The rules of a program, its first pass, and the program before its passes.
#include "graph/ir/ir.h"

#include <algorithm>

namespace warptape::graph {
namespace {

[[noreturn]] void refuse(const Program& p, size_t insn, const char* why) {
  throw Unsound(message("instruction ", insn, " (", p.insns[insn].name, ") ", why), p.text(), insn);
}

// Under each name that a storage has, it is used in other steps, and not before it is written.
void verify_recomputed(const Program& p) {
  struct Life {
    uint32_t memory;
    size_t last;  // step
  };
  std::vector<std::vector<Life>> lives(p.memories.size());
  for (size_t k = 0; k < p.steps.size(); ++k)
    for (uint32_t i : p.steps[k].insns) {
      const auto use = [&](const Operand& o, bool writes) {
        auto& names = lives[p.storage_of(o.memory)];
        const auto life = std::ranges::find(names, o.memory, &Life::memory);
        if (life == names.end()) {
          if (!writes && p.memories[o.memory].recomputes)
            refuse(p, i, "reads what is not computed again yet");
          if (!names.empty() && names.back().last == k) refuse(p, i, "computes again what is still used");
          names.push_back({o.memory, k});
        } else if (&*life != &names.back()) {
          refuse(p, i, "uses what was computed again under its old name");
        } else {
          life->last = k;
        }
      };
      for (const Operand& o : p.insns[i].in) use(o, false);
      for (const Operand& o : p.insns[i].out) use(o, true);
    }
}

// What is read instead of a copy was not written between the copy and the reader.
void verify_propagated_layouts(const Program& p) {
  const auto insn_of = [&](uint32_t call) {
    return static_cast<size_t>(std::ranges::find(p.insns, call, &Insn::call) - p.insns.begin());
  };
  for (const PropagatedLayout& r : p.propagated_layouts) {
    const size_t reader = insn_of(r.call);
    for (size_t i = insn_of(r.copy) + 1; i <= reader; ++i)
      for (const Operand& o : p.insns[i].out)
        if (o.memory == r.now.memory) refuse(p, reader, "reads the original of a copy after it was written");
  }
}

void verify_products(const Program& p) {
  for (const Step& s : p.steps) {
    const auto product = p.product_of(s);
    for (size_t k = 0; product && k < s.insns.size(); ++k) {
      const Insn& insn = p.insns[s.insns[k]];
      const char* why = k < *product   ? refuses_prologue(p, s, insn)
                        : k > *product ? refuses_epilogue(p, p.insns[s.insns[*product]], insn)
                                       : nullptr;
      if (why) refuse(p, s.insns[k], why);
    }
  }
}

}  // namespace

Unsound::~Unsound() = default;

int64_t Operand::numel() const {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

std::optional<std::pair<int64_t, int64_t>> Operand::bytes() const {
  int64_t low = offset, high = offset, step = 0;
  bool fits = true;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return {{0, 0}};
    int64_t& end = strides[d] < 0 ? low : high;
    fits &=
        !__builtin_mul_overflow(sizes[d] - 1, strides[d], &step) && !__builtin_add_overflow(end, step, &end);
  }
  const auto item = static_cast<int64_t>(itemsize(dtype));
  fits &= !__builtin_add_overflow(high, 1, &high) && !__builtin_mul_overflow(low, item, &low) &&
          !__builtin_mul_overflow(high, item, &high);
  if (!fits) return {};
  return {{low, high}};
}

bool Operand::is_dense() const {
  SmallVector<size_t, 8> dims;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1) dims.push_back(d);
  std::sort(dims.begin(), dims.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  return std::all_of(dims.begin(), dims.end(), [&](size_t d) {
    const bool follows = strides[d] == expected;
    expected *= sizes[d];
    return follows;
  });
}

std::vector<int64_t> Program::bytes_reached() const {
  std::vector<int64_t> out(memories.size(), 0);
  for (const Insn& i : insns)
    for (const auto* list : {&i.in, &i.out})
      for (const Operand& o : *list)
        if (const auto range = o.bytes(); range && o.memory < memories.size()) {
          int64_t& most = out[storage_of(o.memory)];
          most = std::max(most, range->second);
        }
  return out;
}

Program Program::recorded() const {
  Program out;
  out.names = names;
  for (const ProgramMemory& m : memories) out.memories.push_back(m.recomputes ? ProgramMemory() : m);
  for (const Insn& i : insns) {
    if (!i.out.empty() && memories[i.out[0].memory].recomputes) continue;  // recompute() added it
    out.steps.push_back({{static_cast<uint32_t>(out.insns.size())}});
    Insn& copy = out.insns.emplace_back(i);
    for (size_t k = propagated_layouts.size(); k-- > 0;)
      if (propagated_layouts[k].call == i.call)
        copy.in[propagated_layouts[k].operand] = propagated_layouts[k].before;
    for (auto* list : {&copy.in, &copy.out})
      for (Operand& o : *list) o.memory = storage_of(o.memory);
  }
  return out;
}

std::vector<std::vector<uint32_t>> Program::readers() const {
  std::vector<std::vector<uint32_t>> out(memories.size());
  for (const Step& s : steps)
    for (uint32_t i : s.insns)
      for (const Operand& o : insns[i].in) out[o.memory].push_back(i);
  return out;
}

void verify(const Program& p) {
  std::vector<int64_t> position(p.insns.size(), -1);
  int64_t next = 0;
  for (const Step& s : p.steps)
    for (uint32_t i : s.insns) {
      WT_CHECK(i < p.insns.size(), Error, "graph: a step runs instruction ", i, " of ", p.insns.size());
      if (position[i] >= 0) refuse(p, i, "runs twice");
      position[i] = next++;
    }
  std::vector<std::vector<size_t>> writers(p.memories.size()), readers(p.memories.size());
  const auto after = [&](size_t insn, const std::vector<size_t>& others, const char* why) {
    for (size_t o : others)
      if (position[o] >= 0 && position[o] > position[insn]) refuse(p, insn, why);
  };
  for (size_t i = 0; i < p.insns.size(); ++i) {
    const Insn& insn = p.insns[i];
    for (const auto* list : {&insn.in, &insn.out})
      for (const Operand& o : *list) {
        if (o.memory >= p.memories.size()) refuse(p, i, "names a memory that there is not");
        const auto range = o.bytes();
        if (!range || range->first < 0 || range->second > static_cast<int64_t>(p.memories[o.memory].bytes))
          refuse(p, i, "reaches beyond its memory");
      }
    if (position[i] < 0) {
      // Dead: nothing that runs may read what it writes, and nobody outside may.
      for (const Operand& o : insn.out)
        if (p.memories[o.memory].out || p.memories[o.memory].in) refuse(p, i, "runs in no step");
    } else {
      for (const Operand& o : insn.in) after(i, writers[o.memory], "runs before what it reads is written");
      for (const Operand& o : insn.out) {
        after(i, writers[o.memory], "runs before an earlier write of the same memory");
        after(i, readers[o.memory], "writes a memory before it was read");
      }
    }
    for (const Operand& o : insn.in) readers[o.memory].push_back(i);
    for (const Operand& o : insn.out) writers[o.memory].push_back(i);
    for (const Operand& o : insn.in)
      if (position[i] >= 0)
        for (size_t w : writers[o.memory])
          if (w < i && position[w] < 0) refuse(p, i, "reads what a dead instruction writes");
  }
  if (p.recomputed) verify_recomputed(p);
  verify_propagated_layouts(p);
  verify_products(p);
}

// An instruction is needed if somebody outside sees what it writes, or another that is needed reads it. What
// is written in place is written for all.
void remove_dead(Program& p, const ProgramOptions&) {
  std::vector<bool> needed(p.memories.size(), false);
  for (size_t m = 0; m < p.memories.size(); ++m) needed[m] = p.memories[m].out || p.memories[m].in;
  std::vector<bool> dead(p.insns.size(), true);
  for (size_t i = p.insns.size(); i-- > 0;) {
    for (const Operand& o : p.insns[i].out) dead[i] = dead[i] && !needed[o.memory];
    if (dead[i]) continue;
    for (const Operand& o : p.insns[i].in) needed[o.memory] = true;
  }
  p.removed = std::ranges::count(dead, true);
  std::erase_if(p.steps, [&](const Step& s) { return dead[s.insns[0]]; });
}

using Stage = ProgramPass::Stage;

std::span<const ProgramPass> program_passes() {
  using O = ProgramOptions;
  static constexpr ProgramPass kPasses[] = {
      {"remove_dead", [](const O&) { return true; }, remove_dead, Stage::Instructions},
      {"layout", [](const O& o) { return o.drops_copies; }, drop_copies, Stage::Instructions},
      {"schedule", [](const O& o) { return o.schedules; }, schedule, Stage::Instructions},
      {"recompute", [](const O& o) { return o.recomputes; }, recompute, Stage::Instructions},
      {"fuse", [](const O& o) { return o.fuses; }, fuse, Stage::Instructions},
      {"fuse_epilogues", [](const O& o) { return o.fuses && o.fuses_epilogues; }, fuse_epilogues,
       Stage::Steps},
      {"fuse_prologues", [](const O& o) { return o.fuses && o.fuses_prologues; }, fuse_prologues,
       Stage::Epilogues},
  };
  return kPasses;
}

void run_pass(Program& p, std::string_view name, const ProgramOptions& options) {
  std::string names;
  for (const ProgramPass& pass : program_passes()) {
    names += names.empty() ? "" : pass.name == program_passes().back().name ? " and " : ", ";
    names += pass.name;
    if (name != pass.name) continue;
    const bool fused = std::ranges::any_of(p.steps, [](const Step& s) { return s.insns.size() > 1; });
    const bool accepts = !p.prologues() && (pass.stage == Stage::Epilogues ||
                                            (!p.epilogues() && (pass.stage == Stage::Steps || !fused)));
    WT_CHECK(accepts, ValueError, "graph: ", name, " takes programs before ",
             p.prologues()   ? "fuse_prologues"
             : p.epilogues() ? "fuse_epilogues"
                             : "fuse");
    pass.run(p, options);
    return verify(p);
  }
  throw ValueError(message("graph: there is no pass '", name, "'; there are ", names));
}

}  // namespace warptape::graph
