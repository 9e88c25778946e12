// The text form of a program.
//
//   %0: 80 bytes in out
//   %6: 4096 bytes on cuda:0
//   %7: recomputes %3
//   dead %1:float32[4, 4] = op matmul(%0:float32[4, 5], %0:float32[5, 4] strides [1, 5])
//   %2:float32[4] = op sum(%0:float32[4, 5])
//   [4] %3:bool[4] = gt<float32>(%2:float32[4], number)
//   fused {
//     %4:float32[4] = mul(%2:float32[4], number) @backward
//     %5:float32[4] = add(%4:float32[4], %2:float32[4] offset 4) @backward
//   }
//
// First the memories: those that others see, that are computed again, or that are not as large as what is
// read and written of them; all others follow from the instructions. Then the steps in the order in which
// they run, each an instruction or several in braces, one of which may be a product of matrices. An
// instruction that does not run in the order in which it was recorded has its number in that order before it;
// the rest have the numbers that are left. `op` calls an op, `node` the backward of a node of the tape,
// `kernel` a kernel; `rows [512, 1, 3]` before its name says that it may run on some of 512 rows at a time,
// and which of its operands are by rows, as bits; `checked` before that, that it may find a bad index, and
// `over`, that its first result may be where a tensor of that geometry was. What has none of these is an
// elementwise launch, with the dtype in which it computes if its result has another, or `sum_to_size`.
// `@backward`: a backward pass recorded it.
#include "graph/ir/ir.h"

#include <algorithm>
#include <sstream>

namespace warptape::graph {
namespace {

void write_operand(std::ostream& out, const Operand& o) {
  out << "%" << o.memory << ":" << o.dtype << AsShape{o.sizes};
  if (!(o.strides == contiguous_strides(o.sizes))) out << " strides " << AsShape{o.strides};
  if (o.offset) out << " offset " << o.offset;
}

void write_insn(std::ostream& out, const Insn& i) {
  const char* comma = "";
  for (const Operand& o : i.out) {
    out << std::exchange(comma, ", ");
    write_operand(out, o);
  }
  out << (i.out.empty() ? "" : " = ");
  if (i.kind == CallKind::Op) out << "op ";
  if (i.kind == CallKind::Backward) out << "node ";
  if (i.kind == CallKind::Kernel) out << "kernel ";
  if (i.checked) out << "checked ";
  if (i.over) out << "over ";
  if (i.rows) out << "rows " << Shape{i.rows, i.rows_in, i.rows_out} << " ";
  out << i.name;
  comma = "";
  if (i.kind != CallKind::Elementwise) {
    out << "(";
    for (const Operand& o : i.in) {
      out << std::exchange(comma, ", ");
      write_operand(out, o);
    }
  } else {
    if (i.compute != i.out[0].dtype) out << "<" << i.compute << ">";
    out << "(";
    for (int8_t at : i.operands) {
      out << std::exchange(comma, ", ");
      if (at == kIsNumber)
        out << "number";
      else
        write_operand(out, i.in[static_cast<size_t>(at)]);
    }
  }
  out << ")" << (i.in_backward ? " @backward" : "") << "\n";
}

struct Line {
  uint32_t insn;
  const Step* step;  // null: dead
  bool moved = false;
};

// The instructions as they are written.
std::vector<Line> lines_of(const Program& p) {
  std::vector<bool> dead(p.insns.size(), true);
  for (const Step& s : p.steps)
    for (uint32_t i : s.insns) dead[i] = false;
  std::vector<Line> lines;
  uint32_t next = 0;
  const auto dead_before = [&](uint32_t end) {
    for (; next < end; ++next)
      if (dead[next]) lines.push_back({next, nullptr});
  };
  for (const Step& s : p.steps) {
    dead_before(*std::ranges::min_element(s.insns));
    for (uint32_t i : s.insns) lines.push_back({i, &s});
  }
  dead_before(static_cast<uint32_t>(p.insns.size()));
  uint32_t later = UINT32_MAX;
  for (size_t k = lines.size(); k-- > 0;) {
    lines[k].moved = lines[k].insn > later;
    later = std::min(later, lines[k].insn);
  }
  return lines;
}

void write_memories(std::ostream& out, const Program& p) {
  const std::vector<int64_t> reached = p.bytes_reached();
  for (size_t m = 0; m < p.memories.size(); ++m) {
    const ProgramMemory& memory = p.memories[m];
    if (memory.recomputes) {
      out << "%" << m << ": recomputes %" << *memory.recomputes << "\n";
    } else if (memory.in || memory.out || !memory.device.is_cpu() ||
               memory.bytes != static_cast<size_t>(reached[m])) {
      out << "%" << m << ": " << memory.bytes << " bytes";
      if (!memory.device.is_cpu()) out << " on " << memory.device;
      out << (memory.in ? " in" : "") << (memory.out ? " out" : "") << "\n";
    }
  }
}

}  // namespace

std::string Program::text() const {
  std::ostringstream out;
  write_memories(out, *this);
  const Step* open = nullptr;
  for (const Line& line : lines_of(*this)) {
    const bool fused = line.step && line.step->insns.size() > 1;
    if (open && line.step != open) out << "}\n";
    if (fused && line.step != open) out << "fused {\n";
    open = fused ? line.step : nullptr;
    out << (fused ? "  " : "");
    if (line.moved) out << "[" << line.insn << "] ";
    if (!line.step) out << "dead ";
    write_insn(out, insns[line.insn]);
  }
  if (open) out << "}\n";
  return std::move(out).str();
}

}  // namespace warptape::graph
