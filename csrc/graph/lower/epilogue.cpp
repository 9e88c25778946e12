// Elementwise steps that read the product of matrices or the convolution before them run in its kernel, on
// blocks that the kernel has just completed: the product need not come from memory again, and where nobody
// else reads it, has no memory of its own.
#include <algorithm>

#include "graph/lower/chain.h"

namespace warptape::graph {
namespace {

constexpr size_t kReach = 8;  // steps that an epilogue is moved ahead of, less one

bool accepts_epilogue(const Insn& insn) {
  return insn.kind == CallKind::Op && insn.out.size() == 1 && insn.op && (insn.op->flags & kEpilogue);
}

bool is_contiguous(const Operand& o) {
  int64_t expected = 1;
  for (size_t d = o.sizes.size(); d-- > 0; expected *= o.sizes[d])
    if (o.sizes[d] != 1 && o.strides[d] != expected) return false;
  return true;
}

// Whether both visit as many elements of a run of memory in the same order.
bool same_order(const Operand& a, const Operand& b) {
  if (is_contiguous(a) && is_contiguous(b)) return a.numel() == b.numel();
  if (a.sizes != b.sizes || !a.is_dense()) return false;
  for (size_t d = 0; d < a.sizes.size(); ++d)
    if (a.sizes[d] != 1 && a.strides[d] != b.strides[d]) return false;
  return true;
}

// Whether both are all of the same elements in one order.
bool same_elements(const Operand& a, const Operand& b) {
  return a.dtype == b.dtype && a.offset == b.offset && same_order(a, b);
}

template <class F>
bool any_operand(const Program& p, const Step& step, bool in, bool out, F&& f) {
  return std::ranges::any_of(step.insns, [&](uint32_t i) {
    const Insn& insn = p.insns[i];
    return (in && std::ranges::any_of(insn.in, f)) || (out && std::ranges::any_of(insn.out, f));
  });
}

class EpilogueFuser {
 public:
  EpilogueFuser(Program& p, int64_t least_bytes) : program_(p), least_bytes_(least_bytes) {}

  void run() {
    for (size_t k = 0; k < program_.steps.size(); ++k) {
      Step& step = program_.steps[k];
      if (step.insns.size() > 1 || !pays(program_.insns[step.insns[0]])) continue;
      const size_t end = std::min(program_.steps.size(), k + 1 + kReach);
      for (size_t j = k + 1; j < end; ++j) {
        if (!uses(program_.steps[j], program_.insns[step.insns[0]].out[0].memory)) continue;
        if (may_follow(k, j) && try_join(k, j) > k) --k;  // another step is at its place
        break;
      }
    }
  }

 private:
  bool uses(const Step& step, uint32_t memory) const {
    return any_operand(program_, step, true, true, [&](const Operand& o) { return o.memory == memory; });
  }

  // Of 16 bits, whose elements go through scratch memory on both sides, none was faster.
  bool pays(const Insn& insn) const {
    if (!(is_product(insn) || is_convolution(insn)) || itemsize(insn.out[0].dtype) == 2) return false;
    return insn.out[0].numel() * static_cast<int64_t>(itemsize(insn.out[0].dtype)) >= least_bytes_;
  }

  bool may_follow(size_t product, size_t epilogue) const {
    const Insn& first = program_.insns[program_.steps[product].insns[0]];
    const Step& step = program_.steps[epilogue];
    if (step.insns.size() == kernels::kMaxChainSteps) return false;
    for (uint32_t i : step.insns) {
      const Insn& insn = program_.insns[i];
      if (refuses_epilogue(program_, first, insn) || !is_fusable(program_, insn)) return false;
    }
    return true;
  }
  // The epilogue runs where the product did, or the product where the epilogue did: no step between them uses
  // the product's result. Returns the place.
  size_t try_join(size_t product, size_t epilogue) {
    const auto between = std::span(program_.steps).subspan(product + 1, epilogue - product - 1);
    const Step &first = program_.steps[product], &last = program_.steps[epilogue];
    if (std::ranges::none_of(between, [&](const Step& s) { return program_.depends(last, s); }))
      return join(product, epilogue, product);
    if (std::ranges::none_of(between, [&](const Step& s) { return program_.depends(s, first); }))
      return join(product, epilogue, epilogue);
    return product;
  }
  size_t join(size_t product, size_t epilogue, size_t position) {
    Step both = std::move(program_.steps[product]);
    const std::vector<uint32_t>& more = program_.steps[epilogue].insns;
    both.insns.insert(both.insns.end(), more.begin(), more.end());
    program_.steps[position] = std::move(both);
    program_.steps.erase(program_.steps.begin() +
                         static_cast<std::ptrdiff_t>(position == product ? epilogue : product));
    ++program_.fused;
    return position;
  }

  Program& program_;
  int64_t least_bytes_;
};

}  // namespace

bool is_product(const Insn& insn) {
  return accepts_epilogue(insn) && (insn.op->role == Role::Product || insn.op->role == Role::AddProduct);
}
bool is_convolution(const Insn& insn) { return accepts_epilogue(insn) && insn.op->role == Role::Convolution; }

std::optional<size_t> Program::product_of(const Step& step) const {
  for (size_t k = 0; step.insns.size() > 1 && k < step.insns.size(); ++k)
    if (const Insn& insn = insns[step.insns[k]]; is_product(insn) || is_convolution(insn)) return k;
  return {};
}

bool Program::has_epilogue(const Step& step) const {
  const auto product = product_of(step);
  return product && *product + 1 < step.insns.size();
}

bool Program::depends(const Step& step, const Step& before) const {
  const auto used_by = [&](bool in) {
    return [this, &before, in](const Operand& o) {
      return any_operand(*this, before, in, true, [&](const Operand& other) {
        return storage_of(other.memory) == storage_of(o.memory);
      });
    };
  };
  return any_operand(*this, step, true, false, used_by(false)) ||
         any_operand(*this, step, false, true, used_by(true));
}

int64_t Program::epilogues() const {
  return std::ranges::count_if(steps, [this](const Step& s) { return has_epilogue(s); });
}

const char* refuses_epilogue(const Program& p, const Insn& product, const Insn& insn) {
  if (insn.kind != CallKind::Elementwise || is_complex(insn.compute) || !is_floating(insn.compute))
    return "is no elementwise instruction on floating numbers, in the epilogue of a product";
  const Operand &of = product.out[0], &out = insn.out[0];
  if (!is_floating(of.dtype) || p.memories[of.memory].in || !p.memories[of.memory].device.is_cpu())
    return "is in the epilogue of a product that is not real, floating, new and on the CPU";
  // A chain takes inputs of one value when it is prepared, which is before the product.
  if (of.numel() < 2) return "is in the epilogue of a product of one number";
  if (!same_order(out, of)) return "writes other elements than the product before it";
  for (const auto* list : {&insn.in, &insn.out})
    for (const Operand& o : *list)
      if (o.memory == of.memory && !same_elements(o, of))
        return "sees the product before it in another order";
  const ProgramMemory& m = p.memories[out.memory];
  if (m.in || m.recomputes) return "writes in the epilogue of a product what others see or is computed again";
  for (const Operand& o : product.in)
    if (p.storage_of(o.memory) == p.storage_of(out.memory))
      return "writes what the product before it still reads";
  return nullptr;
}

void fuse_epilogues(Program& program, const ProgramOptions& options) {
  EpilogueFuser(program, options.tunes ? 0 : options.least_epilogue_bytes).run();
}

}  // namespace warptape::graph
