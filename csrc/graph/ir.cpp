// The text of a program, and its rules.
#include "graph/ir.h"

#include <algorithm>
#include <sstream>

namespace warptape::graph {
namespace {

void write_operand(std::ostream& out, const Operand& o) {
  out << "%" << o.memory << ":" << o.dtype << AsShape{o.sizes};
  if (!(o.strides == contiguous_strides(o.sizes))) out << " strides " << AsShape{o.strides};
  if (o.offset) out << " offset " << o.offset;
}

template <class List>
void write_list(std::ostream& out, const List& list) {
  const char* comma = "";
  for (const Operand& o : list) {
    out << std::exchange(comma, ", ");
    write_operand(out, o);
  }
}

// The bytes that the operand reaches.
std::pair<int64_t, int64_t> range_of(const Operand& o) {
  int64_t low = o.offset, high = o.offset;
  for (size_t d = 0; d < o.sizes.size(); ++d) {
    if (o.sizes[d] == 0) return {0, 0};
    (o.strides[d] < 0 ? low : high) += (o.sizes[d] - 1) * o.strides[d];
  }
  const auto item = static_cast<int64_t>(itemsize(o.dtype));
  return {low * item, (high + 1) * item};
}

[[noreturn]] void refuse(const Program& p, size_t insn, const char* why) {
  throw Error(message("graph: instruction ", insn, " (", p.insns[insn].name, ") ", why, "\n", p.text()));
}

// Under each name that a storage has, it is used in other steps, and not before it is written.
void verify_again(const Program& p) {
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
          if (!writes && p.memories[o.memory].again) refuse(p, i, "reads what is not computed again yet");
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

}  // namespace

int64_t Operand::numel() const {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

std::string Program::text() const {
  std::ostringstream out;
  for (size_t m = 0; m < memories.size(); ++m)
    if (memories[m].in || memories[m].out)
      out << "%" << m << ": " << memories[m].bytes << " bytes" << (memories[m].in ? " in" : "")
          << (memories[m].out ? " out" : "") << "\n";
    else if (memories[m].again)
      out << "%" << m << ": again %" << *memories[m].again << "\n";
  const auto line = [&](const Insn& i, const char* indent) {
    out << indent;
    write_list(out, i.out);
    out << " = " << i.name << "(";
    write_list(out, i.in);
    out << ")\n";
  };
  for (const Step& s : steps) {
    if (s.insns.size() > 1) out << "fused {\n";
    for (uint32_t i : s.insns) line(insns[i], s.insns.size() > 1 ? "  " : "");
    if (s.insns.size() > 1) out << "}\n";
  }
  return std::move(out).str();
}

std::vector<std::vector<uint32_t>> Program::readers() const {
  std::vector<std::vector<uint32_t>> out(memories.size());
  for (const Step& s : steps)
    for (uint32_t i : s.insns)
      for (const Operand& o : insns[i].in) out[o.memory].push_back(i);
  return out;
}

void verify(const Program& p) {
  std::vector<int64_t> place(p.insns.size(), -1);
  int64_t next = 0;
  for (const Step& s : p.steps)
    for (uint32_t i : s.insns) {
      WT_CHECK(i < p.insns.size(), Error, "graph: a step runs instruction ", i, " of ", p.insns.size());
      if (place[i] >= 0) refuse(p, i, "runs twice");
      place[i] = next++;
    }
  std::vector<bool> written(p.memories.size(), false);
  std::vector<std::vector<size_t>> writers(p.memories.size()), readers(p.memories.size());
  const auto after = [&](size_t insn, const std::vector<size_t>& others, const char* why) {
    for (size_t o : others)
      if (place[o] >= 0 && place[o] > place[insn]) refuse(p, insn, why);
  };
  for (size_t i = 0; i < p.insns.size(); ++i) {
    const Insn& insn = p.insns[i];
    for (const auto* list : {&insn.in, &insn.out})
      for (const Operand& o : *list) {
        if (o.memory >= p.memories.size()) refuse(p, i, "names a memory that there is not");
        const auto [low, high] = range_of(o);
        if (low < 0 || high > static_cast<int64_t>(p.memories[o.memory].bytes))
          refuse(p, i, "reaches beyond its memory");
      }
    if (place[i] < 0) {
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
      if (place[i] >= 0)
        for (size_t w : writers[o.memory])
          if (w < i && place[w] < 0) refuse(p, i, "reads what a dead instruction writes");
  }
  if (p.recomputed) verify_again(p);
}

// An instruction is needed if somebody outside sees what it writes, or another that is needed reads it. What
// is written in place is written for all.
void remove_dead(Program& p) {
  std::vector<bool> needed(p.memories.size(), false);
  for (size_t m = 0; m < p.memories.size(); ++m) needed[m] = p.memories[m].out || p.memories[m].in;
  std::vector<uint32_t> live;
  for (size_t i = p.insns.size(); i-- > 0;) {
    bool wanted = false;
    for (const Operand& o : p.insns[i].out) wanted |= needed[o.memory];
    if (!wanted) continue;
    live.push_back(static_cast<uint32_t>(i));
    for (const Operand& o : p.insns[i].in) needed[o.memory] = true;
  }
  p.removed = static_cast<int64_t>(p.insns.size() - live.size());
  for (size_t i = live.size(); i-- > 0;) p.steps.push_back({{live[i]}});
}

}  // namespace warptape::graph
