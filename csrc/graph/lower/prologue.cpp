// Steps that run by rows (elementwise instructions, norm, softmax) and make the first operand of a product of
// matrices run in its kernel, on the rows that a task is about to pack: the operand need not come from
// memory, and has none of its own.
#include <algorithm>

#include "graph/lower/rows.h"

namespace warptape::graph {
namespace {

// Of fewer rows, or less work, the kernel cuts the product otherwise: it would need the operand as a whole.
constexpr int64_t kLeastRows = 112;
constexpr double kLeastWork = 8e6;

// Ops that multiply the rows of their first operand with one matrix.
bool accepts_prologue(const Insn& insn) {
  return is_product(insn) && insn.op->role == Role::Product && insn.in.size() >= 2 &&
         insn.in[0].sizes.size() >= 2 && insn.in[1].sizes.size() == 2 && insn.out[0].numel() > 0 &&
         insn.in[0].dtype == insn.out[0].dtype;  // else autocast converts the operand
}

bool is_contiguous(const Operand& o) { return o.strides == contiguous_strides(o.sizes); }

template <class F>
bool any_operand(const Insn& insn, bool in, bool out, F&& f) {
  return (in && std::ranges::any_of(insn.in, f)) || (out && std::ranges::any_of(insn.out, f));
}

// Whether the step's product or epilogue reads what the instruction writes, but for the operand, or writes
// what it reads or writes.
bool is_used_in_full(const Program& p, const Step& step, const Insn& insn) {
  const size_t at = *p.product_of(step);
  const uint32_t operand = p.insns[step.insns[at]].in[0].memory;
  const auto touched = [&](bool in, bool out) {
    return [&p, &insn, in, out](const Operand& o) {
      return any_operand(insn, in, out, [&](const Operand& other) {
        return p.storage_of(other.memory) == p.storage_of(o.memory);
      });
    };
  };
  for (size_t k = at; k < step.insns.size(); ++k) {
    const Insn& other = p.insns[step.insns[k]];
    const auto reads = [&](const Operand& o) { return o.memory != operand && touched(false, true)(o); };
    if (any_operand(other, true, false, reads) || any_operand(other, false, true, touched(true, true)))
      return true;
  }
  return false;
}

class PrologueFuser {
 public:
  PrologueFuser(Program& p, int64_t least_bytes) : program_(p), least_bytes_(least_bytes) {}

  void run() {
    for (size_t k = 0; k < program_.steps.size(); ++k) {
      const Insn* product = pays(program_.steps[k]);
      if (!product) continue;
      for (size_t j = k; j-- > 0;) {
        if (!writes(program_.steps[j], product->in[0].memory)) continue;
        if (try_join(j, k)) --k;
        break;
      }
    }
  }

 private:
  // The product that the step begins with, if it is worth a prologue.
  const Insn* pays(const Step& step) const {
    const Insn& insn = program_.insns[step.insns[0]];
    if (!accepts_prologue(insn) || itemsize(insn.in[0].dtype) == 2) return nullptr;
    const int64_t bytes = insn.in[0].numel() * static_cast<int64_t>(itemsize(insn.in[0].dtype));
    if (bytes < least_bytes_) return nullptr;
    if (least_bytes_ < kLeastPrologueBytes) return &insn;  // for tests
    const int64_t rows = insn.in[0].numel() / insn.in[0].sizes.back();
    const double work =
        static_cast<double>(insn.out[0].numel()) * static_cast<double>(insn.in[0].sizes.back());
    return rows >= kLeastRows && work >= kLeastWork ? &insn : nullptr;
  }
  bool writes(const Step& step, uint32_t memory) const {
    return std::ranges::any_of(step.insns, [&](uint32_t i) {
      return any_operand(program_.insns[i], false, true,
                         [&](const Operand& o) { return o.memory == memory; });
    });
  }
  // The prologue runs where the product does, or both where the prologue did.
  bool try_join(size_t prologue, size_t product) {
    const Step &first = program_.steps[prologue], &last = program_.steps[product];
    if (program_.product_of(first) || is_product(program_.insns[first.insns[0]])) return false;
    Step both = first;
    both.insns.insert(both.insns.end(), last.insns.begin(), last.insns.end());
    for (uint32_t i : first.insns)
      if (refuses_prologue(program_, both, program_.insns[i])) return false;
    const auto between = std::span(program_.steps).subspan(prologue + 1, product - prologue - 1);
    size_t position = product;
    if (!std::ranges::none_of(between, [&](const Step& s) { return program_.depends(s, first); })) {
      if (!std::ranges::none_of(between, [&](const Step& s) { return program_.depends(last, s); }))
        return false;
      position = prologue;
    }
    ++program_.fused;
    program_.steps[position] = std::move(both);
    program_.steps.erase(program_.steps.begin() +
                         static_cast<std::ptrdiff_t>(position == product ? prologue : product));
    return true;
  }

  Program& program_;
  int64_t least_bytes_;
};

}  // namespace

bool Program::has_prologue(const Step& step) const { return product_of(step).value_or(0) > 0; }

int64_t Program::prologues() const {
  return std::ranges::count_if(steps, [this](const Step& s) { return has_prologue(s); });
}

const char* refuses_prologue(const Program& p, const Step& step, const Insn& insn) {
  const size_t at = *p.product_of(step);
  const Insn& product = p.insns[step.insns[at]];
  if (!accepts_prologue(product)) return "is before what multiplies no rows with one matrix";
  const Operand& operand = product.in[0];
  const ProgramMemory& m = p.memories[operand.memory];
  if (m.in || m.out || m.recomputes || !m.device.is_cpu() || operand.offset || !is_floating(operand.dtype) ||
      is_complex(operand.dtype) || !is_contiguous(operand) || operand.numel() < 2 ||
      static_cast<int64_t>(m.bytes) != operand.numel() * static_cast<int64_t>(itemsize(operand.dtype)))
    return "is the prologue of a product whose operand is not real, floating, new, whole and on the CPU";
  const int64_t rows = operand.numel() / operand.sizes.back();
  const bool by_rows = insn.kind == CallKind::Kernel ? is_row_kernel(p, insn, 1) && insn.rows == rows
                                                     : is_fusable(p, insn) && runs_by_rows(insn, rows);
  if (insn.checked) return "may find a bad index in a prologue";
  if (!by_rows) return "does not run by the rows of the product behind it";
  const Insn& last = p.insns[step.insns[at - 1]];
  const auto is_operand = [&](const Operand& o) { return o.memory == operand.memory; };
  if (!any_operand(last, false, true, is_operand))
    return "is in a prologue that does not end with the operand";
  if (any_operand(insn, false, true, [&](const Operand& o) {
        return is_operand(o) &&
               (o.dtype != operand.dtype || o.offset || o.numel() != operand.numel() || !is_contiguous(o));
      }))
    return "writes the product's operand in another order";
  // Who else needs the operand, or needs all of what is made by rows.
  const auto up_to_product = std::span(step.insns).first(at + 1);
  for (const Step& s : p.steps)
    for (uint32_t i : s.insns)
      if (any_operand(p.insns[i], true, true, is_operand) &&
          std::ranges::find(up_to_product, i) == up_to_product.end())
        return "makes an operand that others use, too";
  if (std::ranges::count_if(product.in, is_operand) != 1) return "makes both operands of a product";
  return is_used_in_full(p, step, insn) ? "uses what the step's product or epilogue uses as a whole"
                                        : nullptr;
}

void fuse_prologues(Program& program, const ProgramOptions& options) {
  PrologueFuser(program, options.least_prologue_bytes).run();
}

}  // namespace warptape::graph
