// Joins elementwise instructions of one geometry into steps of one pass over memory: those that read each
// other's results, and those that read the same.
//
// Instructions are taken in order. A step stays open as long as nothing outside of it touches what it writes,
// or writes what it reads: up to then it may run later than where it began. What needs it closes it, and a
// closed step runs where it was closed. So an open step needs no other open one, and those that one
// instruction joins become one. A step that waits keeps in memory what it reads, which leaves the cache
// meanwhile: on the CPU it is closed when others have written more than a cache holds.
//
// A kernel that runs by rows (norm, softmax) joins elementwise instructions that run by the same rows; on a
// device one kernel a step, whose chain it becomes a part of.
#include <algorithm>
#include <cstring>
#include <optional>

#include "graph/lower/rows.h"

namespace warptape::graph {
namespace {

constexpr size_t kMaxOpen = 16;
constexpr int64_t kFar = 1 << 20;  // bytes: about what the second level of a cache holds

struct Open {
  std::vector<uint32_t> insns;
  std::vector<Operand> read, written;
  std::vector<uint32_t> copied;  // memories that an instruction reads and stores as they are
  std::vector<std::pair<uint32_t, int64_t>> stored;  // memories written, and how many others read each
  Shape sizes;
  int64_t rows = 0;     // of the kernels among the instructions
  int64_t kernels = 0;  // how many these are
  size_t inputs = 0;    // streams and numbers; of merged steps at most
  bool on_cpu = true;
  bool checked = false;         // a kernel among them may find a bad index
  bool writes_outside = false;  // what others see
  int64_t passed = 0;           // bytes that others wrote since the first instruction
  size_t outputs() const {
    return static_cast<size_t>(
        std::count_if(stored.begin(), stored.end(), [](const auto& s) { return s.second > 0; }));
  }
};

bool touches(const std::vector<Operand>& list, uint32_t memory) {
  return std::any_of(list.begin(), list.end(), [&](const Operand& o) { return o.memory == memory; });
}

// Whether the instruction computes again what the step still uses, or the other way round.
bool shares_storage(const Program& p, const Insn& insn, const Open& step) {
  const auto under_another_name = [&](const Operand& a) {
    return [&p, &a](const Operand& b) {
      return a.memory != b.memory && p.storage_of(a.memory) == p.storage_of(b.memory);
    };
  };
  for (const auto* operands : {&insn.in, &insn.out})
    for (const Operand& o : *operands)
      for (const auto* list : {&step.read, &step.written})
        if (std::any_of(list->begin(), list->end(), under_another_name(o))) return true;
  return false;
}

bool writes_outside(const Program& p, const Insn& insn) {
  return std::ranges::any_of(insn.out, [&](const Operand& o) { return p.memories[o.memory].in; });
}

// Where a kernel finds a bad index, what others see was written before it and not behind it, as in eager
// code. Of two such kernels the first one is to find it.
bool preserves_order(const Program& p, const Insn& insn, const Open& step) {
  return step.checked && (insn.checked || writes_outside(p, insn));
}

// Whether the instruction has to run after the step, unless it joins it.
bool depends(const Insn& insn, const Open& step) {
  for (const Operand& o : insn.in)
    if (touches(step.written, o.memory)) return true;
  for (const Operand& o : insn.out)
    if (touches(step.written, o.memory) || touches(step.read, o.memory)) return true;
  return false;
}

int64_t bytes_of(const Insn& insn) {
  int64_t bytes = 0;
  for (const Operand& o : insn.out) bytes += o.numel() * static_cast<int64_t>(itemsize(o.dtype));
  return bytes;
}

// How many streams and numbers the instruction adds to those that the step reads.
size_t added_inputs(const Insn& insn, const Open& step) {
  size_t count = insn.kind == CallKind::Kernel ? insn.in.size() : 0;
  for (int8_t at : insn.operands) {
    if (at == kIsNumber) {
      ++count;
      continue;
    }
    const Operand& o = insn.in[static_cast<size_t>(at)];
    count += !touches(step.written, o.memory) && std::ranges::find(step.read, o) == step.read.end();
  }
  return count;
}

// In one pass an element is read and written at one place: every view of a memory that is written must be
// the same.
bool same_view(const std::vector<Operand>& list, const Operand& o) {
  return std::all_of(list.begin(), list.end(),
                     [&](const Operand& other) { return other.memory != o.memory || other == o; });
}

// What is written in the step is read there as it was written: a row from that row.
bool reads_full_rows(const Insn& insn, const Open& step) {
  return std::ranges::all_of(
      insn.in, [&](const Operand& o) { return !touches(step.written, o.memory) || o.sizes == step.sizes; });
}

bool fits_rows(const Insn& insn, const Open& step) {
  return runs_by_rows(insn, step.rows) && reads_full_rows(insn, step) && (step.on_cpu || packs_rows(insn));
}

bool fits(const Insn& insn, const Open& step) {
  const Operand& out = insn.out[0];
  if (out.sizes != step.sizes) return false;
  // A pass stores what it copies at its end, when it may have written over it.
  if (std::find(step.copied.begin(), step.copied.end(), out.memory) != step.copied.end()) return false;
  if (step.insns.size() >= kernels::kMaxChainSteps || step.outputs() + 1 >= kernels::kMaxChainOutputs ||
      step.inputs + added_inputs(insn, step) > kernels::kMaxChainInputs)
    return false;
  for (const Operand& o : insn.in)
    if (!same_view(step.written, o)) return false;
  return same_view(step.written, out) && same_view(step.read, out) && (!step.rows || fits_rows(insn, step));
}

// The same for a kernel that runs by rows.
bool kernel_fits(const Program& p, const Insn& insn, const Open& step) {
  if (insn.in[0].sizes != step.sizes || (step.rows && step.rows != insn.rows) ||
      !reads_full_rows(insn, step) || step.insns.size() >= kernels::kMaxChainSteps / 2 ||
      step.outputs() + insn.out.size() >= kernels::kMaxChainOutputs ||
      step.inputs + insn.in.size() > kernels::kMaxChainInputs)
    return false;
  for (size_t k = 0; k < insn.in.size(); ++k) {
    const bool by_rows = insn.rows_in >> k & 1;
    if (by_rows ? !same_view(step.written, insn.in[k]) : touches(step.written, insn.in[k].memory))
      return false;
  }
  for (const Operand& o : insn.out)
    if (touches(step.written, o.memory) || touches(step.read, o.memory)) return false;
  if (step.rows) return step.on_cpu;
  return std::ranges::all_of(step.insns, [&](uint32_t i) {
    const Insn& other = p.insns[i];
    return runs_by_rows(other, insn.rows) && reads_full_rows(other, step) &&
           (step.on_cpu || packs_rows(other));
  });
}

bool reads_the_same(const Insn& insn, const Open& step) {
  return std::any_of(insn.in.begin(), insn.in.end(),
                     [&](const Operand& o) { return o.numel() > 1 && touches(step.read, o.memory); });
}

bool can_merge(const Open& a, const Open& b) {
  return !a.rows && !b.rows && a.insns.size() + b.insns.size() < kernels::kMaxChainSteps &&
         a.outputs() + b.outputs() + 1 < kernels::kMaxChainOutputs &&
         a.inputs + b.inputs + kernels::kMaxStepInputs < kernels::kMaxChainInputs;
}

void merge(Open& a, const Open& b) {
  a.insns.insert(a.insns.end(), b.insns.begin(), b.insns.end());
  std::sort(a.insns.begin(), a.insns.end());
  a.read.insert(a.read.end(), b.read.begin(), b.read.end());
  a.written.insert(a.written.end(), b.written.begin(), b.written.end());
  a.copied.insert(a.copied.end(), b.copied.begin(), b.copied.end());
  a.stored.insert(a.stored.end(), b.stored.begin(), b.stored.end());
  a.inputs += b.inputs;
  a.passed = std::max(a.passed, b.passed);
  a.writes_outside |= b.writes_outside;
}

class Fuser {
 public:
  Fuser(Program& p, int64_t least_row_bytes)
      : program_(p), readers_(p.readers()), least_row_bytes_(least_row_bytes) {}

  void run() {
    std::vector<Step> steps = std::exchange(program_.steps, {});
    for (const Step& s : steps) add_instruction(s.insns[0]);
    while (!open_.empty()) close(0);
  }

 private:
  // Whether the instruction, a kernel, computes in the memory of what nobody reads after it.
  bool computes_over(uint32_t number) const {
    const Insn& insn = program_.insns[number];
    return insn.over && std::ranges::any_of(insn.in, [&](const Operand& o) {
             const ProgramMemory& m = program_.memories[o.memory];
             return o.sizes == insn.out[0].sizes && o.dtype == insn.out[0].dtype && !m.in && !m.out &&
                    std::ranges::max(readers_[o.memory]) == number;
           });
  }

  // Whether nothing but casts is around the step's kernels, and no memory is saved: others read all results,
  // or a kernel needs none of its own. Passes over all rows are faster then.
  bool gains_nothing(const Open& step) const {
    if (!step.on_cpu || !step.kernels) return false;
    bool over = false;
    for (uint32_t i : step.insns) {
      const bool kernel = program_.insns[i].kind == CallKind::Kernel;
      if (!kernel && !program_.insns[i].copies) return false;
      over |= kernel && computes_over(i);
    }
    return over || std::ranges::all_of(step.stored, [](const auto& s) { return s.second > 0; });
  }

  void close(size_t i) {
    if (gains_nothing(open_[i])) {
      for (uint32_t number : open_[i].insns) program_.steps.push_back({{number}});
      return erase(i);
    }
    program_.fused += static_cast<int64_t>(open_[i].insns.size()) - 1;
    if (open_[i].insns.size() > 1) program_.row_kernels += open_[i].kernels;
    program_.steps.push_back({std::move(open_[i].insns)});
    erase(i);
  }
  void erase(size_t i) { open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i)); }

  void add(Open& step, uint32_t number, const Insn& insn) {
    step.insns.push_back(number);
    step.inputs += added_inputs(insn, step);
    for (const Operand& o : insn.in) {
      step.read.push_back(o);
      if (insn.copies) step.copied.push_back(o.memory);
      for (auto& s : step.stored)
        if (s.first == o.memory) --s.second;
    }
    for (const Operand& out : insn.out) {
      if (!touches(step.written, out.memory)) {
        const ProgramMemory& m = program_.memories[out.memory];
        const auto uses = static_cast<int64_t>(readers_[out.memory].size());
        step.stored.emplace_back(out.memory, m.in || m.out ? INT64_MAX / 2 : uses);
      }
      step.written.push_back(out);
    }
    if (insn.kind == CallKind::Kernel) {
      ++step.kernels;
      step.rows = insn.rows;
      step.checked |= insn.checked;
    }
    step.writes_outside |= writes_outside(program_, insn);
  }

  void add_instruction(uint32_t number) {
    const Insn& insn = program_.insns[number];
    const bool kernel = is_row_kernel(program_, insn, least_row_bytes_) || row_formula_of(program_, insn);
    const bool fusable = kernel || is_fusable(program_, insn);
    const int64_t bytes = bytes_of(insn);
    std::optional<size_t> home;
    for (size_t i = 0; i < open_.size();) {
      const bool apart = (program_.recomputed && shares_storage(program_, insn, open_[i])) ||
                         preserves_order(program_, insn, open_[i]);
      const bool must = apart || depends(insn, open_[i]) || (insn.checked && open_[i].writes_outside);
      const bool may = !apart && fusable && (must || reads_the_same(insn, open_[i])) &&
                       (kernel ? kernel_fits(program_, insn, open_[i]) : fits(insn, open_[i]));
      if (may && !home) {
        home = i++;
      } else if (may && can_merge(open_[*home], open_[i])) {
        merge(open_[*home], open_[i]);
        erase(i);
      } else if (must || (open_[i].on_cpu && open_[i].passed + bytes > kFar)) {
        close(i);  // after `home`, which stays where it is
      } else {
        open_[i++].passed += bytes;
      }
    }
    if (!fusable) {
      program_.steps.push_back({{number}});
    } else if (home) {
      add(open_[*home], number, insn);
    } else {
      if (open_.size() == kMaxOpen) close(0);
      Open& step = open_.emplace_back();
      step.sizes = kernel ? insn.in[0].sizes : insn.out[0].sizes;
      step.on_cpu = program_.memories[insn.out[0].memory].device.is_cpu();
      add(step, number, insn);
    }
  }

  Program& program_;
  std::vector<std::vector<uint32_t>> readers_;
  const int64_t least_row_bytes_;
  std::vector<Open> open_;
};

}  // namespace

// An instruction whose result has another view than what it reads of the same memory cannot be in a pass.
bool is_fusable(const Program& p, const Insn& insn) {
  if (!formula_of(p, insn)) return false;
  const Operand& out = insn.out[0];
  for (size_t d = 0; d < out.sizes.size(); ++d)
    if (out.strides[d] == 0 && out.sizes[d] > 1) return false;
  return std::all_of(insn.in.begin(), insn.in.end(),
                     [&](const Operand& o) { return o.memory != out.memory || o == out; });
}

void fuse(Program& program, const ProgramOptions& options) { Fuser(program, options.least_row_bytes).run(); }

}  // namespace warptape::graph
