// Drops copies that change the layout alone: who reads such a copy reads what was copied instead, through
// strides. Products of matrices take any strides, other copies become one with the one before them, which may
// undo it, and where a copy left the layout as it was, everybody reads the original.
//
// The original must still hold what was copied when it is read. Results are the same to the bit: a product's
// kernel packs both operands and adds in an order that does not depend on their strides, but where there are
// few rows or columns (kernels::kFewRows).
#include <algorithm>

#include "graph/ir/ir.h"
#include "kernels/linalg/matmul.h"

namespace warptape::graph {
namespace {

bool same_layout(const Operand& a, const Operand& b) {
  if (a.sizes != b.sizes) return false;
  for (size_t d = 0; d < a.sizes.size(); ++d)
    if (a.sizes[d] != 1 && a.strides[d] != b.strides[d]) return false;
  return true;
}

bool is_layout_copy(const Program& p, const Insn& insn) {
  if (!insn.copies || insn.in.size() != 1) return false;
  const Operand &from = insn.in[0], &to = insn.out[0];
  return from.dtype == to.dtype && from.sizes == to.sizes && from.memory != to.memory && to.numel() > 0 &&
         to.is_dense() && p.memories[from.memory].device.is_cpu() && p.memories[to.memory].device.is_cpu();
}

// What `view`, a view of a copy's result, is of the original: each dim that the view steps through is one of
// the copy's. Where the copy changed the layout none if dims were merged or split, or the view begins
// elsewhere.
std::optional<Operand> original_of(const Insn& copy, const Operand& view) {
  const Operand &from = copy.in[0], &to = copy.out[0];
  if (view.dtype != to.dtype) return {};
  const auto read = view.bytes(), result = to.bytes();
  if (same_layout(from, to) && read && result && read->first >= result->first &&
      read->second <= result->second)
    return Operand{from.memory, from.dtype, from.offset + view.offset - to.offset, view.sizes, view.strides};
  if (view.offset != to.offset) return {};
  Operand out{from.memory, from.dtype, from.offset, view.sizes, view.strides};
  SmallVector<bool, 8> matched(to.sizes.size(), false);
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] == 1) continue;
    size_t at = 0;
    const auto is_it = [&] {
      return !matched[at] && to.sizes[at] >= view.sizes[d] && to.strides[at] == view.strides[d];
    };
    while (at < to.sizes.size() && !is_it()) ++at;
    if (at == to.sizes.size()) return {};
    matched[at] = true;
    out.strides[d] = from.strides[at];
  }
  return out;
}

// Whether the instruction multiplies matrices whose k-th operand may have any strides.
bool accepts_strides(const Insn& insn, size_t k) {
  const Role role = insn.op ? insn.op->role : Role::Opaque;
  if (role != Role::Product && role != Role::AddProduct) return false;
  const size_t first = role == Role::AddProduct && insn.kind == CallKind::Op ? 1 : 0;
  const bool forward = insn.kind == CallKind::Op && k >= first && k < first + 2 &&
                       insn.in.size() >= first + 2 && insn.out.size() == 1;
  const bool backward = insn.kind == CallKind::Backward && !insn.out.empty();
  const Operand& mine = insn.in[k];
  if (!(forward || backward) || !is_floating(mine.dtype)) return false;
  const auto suits = [&](const Operand& o) {
    const size_t n = o.sizes.size();
    return o.dtype == mine.dtype && n >= 2 && o.sizes[n - 1] > kernels::kFewRows &&
           o.sizes[n - 2] > kernels::kFewRows &&
           // The rows of several matrices are one operand only where their strides allow.
           (mine.sizes.size() == 2 || n > 2);
  };
  const auto operands = std::span(insn.in.data(), insn.in.size());
  return std::ranges::all_of(backward ? operands : operands.subspan(first, 2), suits) &&
         (backward ? insn.out[0].dtype == mine.dtype : suits(insn.out[0]));
}

bool accepts(const Program& p, const Insn& reader, size_t k, const Operand& original) {
  return same_layout(reader.in[k], original) || is_layout_copy(p, reader) || accepts_strides(reader, k);
}

class CopyDropper {
 public:
  explicit CopyDropper(Program& p)
      : program_(p), step_of_(p.insns.size()), reads_(p.memories.size()), writes_(p.memories.size()) {
    for (uint32_t k = 0; k < p.steps.size(); ++k) {
      step_of_[p.steps[k].insns[0]] = k;
      for (const Operand& o : at(k).in)
        if (reads_[o.memory].empty() || reads_[o.memory].back() != k) reads_[o.memory].push_back(k);
    }
    for (uint32_t i = 0; i < p.insns.size(); ++i)
      for (const Operand& o : p.insns[i].out) writes_[o.memory].push_back(i);
  }

  void run() {
    std::vector<bool> dropped(program_.steps.size());
    for (uint32_t k = 0; k < dropped.size(); ++k) dropped[k] = drop(k);
    program_.copies += static_cast<int64_t>(std::ranges::count(dropped, true));
    size_t k = 0;
    std::erase_if(program_.steps, [&](const Step&) { return dropped[k++]; });
  }

 private:
  struct Read {
    uint32_t step;
    size_t operand;
    Operand original;
  };

  Insn& at(uint32_t step) { return program_.insns[program_.steps[step].insns[0]]; }
  // Whether the memory is written behind the first step, and not behind the last: in the order in which they
  // run or in which they were recorded, in which what is dead writes, too.
  bool is_written(uint32_t memory, uint32_t first, uint32_t last) const {
    const uint32_t recorded_first = program_.steps[first].insns[0],
                   recorded_last = program_.steps[last].insns[0];
    return std::ranges::any_of(writes_[memory], [&](uint32_t i) {
      return (i > recorded_first && i <= recorded_last) ||
             (step_of_[i] && *step_of_[i] > first && *step_of_[i] <= last);
    });
  }

  // Whether nobody needs the copy at that step any more.
  bool drop(uint32_t step) {
    const Insn& copy = at(step);
    if (!is_layout_copy(program_, copy)) return false;
    const uint32_t from = copy.in[0].memory, to = copy.out[0].memory;
    const ProgramMemory& result = program_.memories[to];
    if (result.in || result.recomputes || program_.memories[from].recomputes || writes_[to].size() != 1)
      return false;
    std::vector<Read> reads;
    bool all = !result.out;
    for (uint32_t k : reads_[to])
      for (size_t i = 0; i < at(k).in.size(); ++i) {
        if (at(k).in[i].memory != to) continue;
        const auto original = k > step ? original_of(copy, at(k).in[i]) : std::nullopt;
        if (original && !is_written(from, step, k) && accepts(program_, at(k), i, *original))
          reads.push_back({k, i, *original});
        else
          all = false;
      }
    for (const Read& r : reads)
      if (all || is_layout_copy(program_, at(r.step))) propagate(copy, r);
    return all;
  }

  void propagate(const Insn& copy, const Read& r) {
    Insn& reader = at(r.step);
    Operand& operand = reader.in[r.operand];
    program_.propagated_layouts.push_back({reader.call, static_cast<uint32_t>(r.operand), copy.call,
                                           r.original.offset - copy.in[0].offset, operand, r.original});
    operand = r.original;
    auto& list = reads_[r.original.memory];
    if (std::ranges::find(list, r.step) == list.end()) list.push_back(r.step);
  }

  Program& program_;
  std::vector<std::optional<uint32_t>> step_of_;       // by instruction: its step; none of what is dead
  std::vector<std::vector<uint32_t>> reads_, writes_;  // by memory: steps; instructions
};

}  // namespace

void drop_copies(Program& program, const ProgramOptions&) { CopyDropper(program).run(); }

void rebind(const Program& program, std::vector<Call>& calls) {
  for (const PropagatedLayout& r : program.propagated_layouts) {
    const Tensor& from = calls[r.copy].in[0];
    calls[r.call].replace_input(r.operand, alias(from, r.now.sizes, r.now.strides, from.offset() + r.offset));
  }
}

}  // namespace warptape::graph
