#include "graph/lower/rows.h"

#include <algorithm>

#include "kernels/runtime/parallel.h"
#include "ops/linalg/matmul_plan.h"

namespace warptape::graph {
namespace {

kernels::Slot<kernels::ChainFn> chain_slot{"chain"};

constexpr int64_t kAtOnce = 32768, kLeastAtOnce = 8192;  // elements of a block
constexpr int64_t kParts = 16;                           // blocks, at least, where they are not too small
constexpr int64_t kLeastRows = 4;                        // fewer are too few parts for several threads
constexpr int64_t kPage = 4096, kShift = 256;            // bytes
constexpr int64_t kOutside = -1, kPrologue = -2;         // of RowStep::inside_

bool is_contiguous_operand(const Operand& o) { return o.strides == contiguous_strides(o.sizes); }

int64_t bytes_of(const Operand& o) { return o.numel() * static_cast<int64_t>(itemsize(o.dtype)); }

bool broadcasts(const Shape& from, const Shape& to) {
  if (from.size() > to.size()) return false;
  const size_t first = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d)
    if (from[d] != 1 && from[d] != to[first + d]) return false;
  return true;
}

// How many of the first dims make the rows; none where a row begins within a dim.
std::optional<size_t> row_dims(const Shape& sizes, int64_t rows) {
  int64_t n = 1;
  for (size_t d = 0; d <= sizes.size(); ++d) {
    if (n == rows) return d;
    if (d < sizes.size()) n *= sizes[d];
  }
  return {};
}

}  // namespace

bool runs_by_rows(const Insn& insn, int64_t rows) {
  const Operand& out = insn.out[0];
  const auto dims = row_dims(out.sizes, rows);
  if (!dims || !is_contiguous_operand(out)) return false;
  for (const Operand& o : insn.in) {
    if (!broadcasts(o.sizes, out.sizes)) return false;
    const Shape strides = broadcast_strides(o.sizes, o.strides, out.sizes);
    std::optional<size_t> before;
    for (size_t d = 0; d < *dims; ++d) {
      if (out.sizes[d] == 1) continue;
      if (before && strides[*before] != strides[d] * out.sizes[d]) return false;
      before = d;
    }
  }
  return true;
}

bool is_row_kernel(const Program& program, const Insn& insn, int64_t least_bytes) {
  if (insn.kind != CallKind::Kernel || insn.rows < kLeastRows || !(insn.rows_in & 1) || !(insn.rows_out & 1))
    return false;
  const auto fits = [&](const auto& operands, uint32_t by_rows) {
    for (size_t k = 0; k < operands.size(); ++k) {
      const Operand& o = operands[k];
      if (!program.memories[o.memory].device.is_cpu() || !is_contiguous_operand(o)) return false;
      if ((by_rows >> k & 1) && (o.numel() == 0 || o.numel() % insn.rows)) return false;
    }
    return true;
  };
  return insn.is_all_by_rows() && !insn.in.empty() && !insn.out.empty() &&
         bytes_of(insn.in[0]) >= least_bytes && fits(insn.in, insn.rows_in) &&
         fits(insn.out, insn.rows_out) && row_dims(insn.in[0].sizes, insn.rows).has_value();
}

// An address that depends on the rows: where it is in the work, and how far it moves with each row.
struct RowStep::Address {
  size_t part;
  int kind;  // 0: input of the chain, 1: its output, 2: read by the kernel, 3: written by it
  size_t index;
  int64_t step;    // bytes
  int64_t inside;  // as in inside_
};

// All that a run needs, of which each thread has its own.
struct RowStep::Work {
  struct Launching {
    kernels::ChainPlan plan;
    Chain::Numbers numbers;
    kernels::View views[2][kMaxKernelTensors];
    int64_t per_row = 0;  // of the chain's first dim
  };
  std::vector<Launching> parts;
  std::vector<Address> addresses;
};

RowStep::RowStep(const Program& program, const Step& step,
                 const std::vector<std::vector<uint32_t>>& readers) {
  Step elementwise;
  const auto end_chain = [&] {
    if (elementwise.insns.empty()) return;
    parts_.emplace_back().chain = std::make_unique<Chain>(program, elementwise, readers);
    elementwise.insns.clear();
  };
  int64_t row = 1;  // elements
  const std::optional<size_t> product = program.product_of(step);
  if (product) {
    const Insn& insn = program.insns[step.insns[*product]];
    prologue_ = insn.in[0];
    product_ = insn.call;
    row = prologue_->sizes.back();
    rows_ = prologue_->numel() / row;
    row_bytes_ = row * static_cast<int64_t>(itemsize(prologue_->dtype));
  }
  for (uint32_t i : std::span(step.insns).first(product.value_or(step.insns.size()))) {
    const Insn& insn = program.insns[i];
    if (insn.kind != CallKind::Kernel) {
      elementwise.insns.push_back(i);
      continue;
    }
    end_chain();
    Part& part = parts_.emplace_back();
    part.call = insn.call;
    part.insn = insn;
    rows_ = insn.rows;
    row = std::max(row, insn.in[0].numel() / rows_);
  }
  end_chain();
  const int64_t share = std::max(rows_ / kParts, kLeastAtOnce / row);
  at_once_ = std::clamp<int64_t>(std::min(kAtOnce / row, share), 1, rows_);
  find_inside(program, step, readers);
}

// What nobody outside of the step sees has no memory of its own.
void RowStep::find_inside(const Program& program, const Step& step,
                          const std::vector<std::vector<uint32_t>>& readers) {
  inside_.assign(program.memories.size(), kOutside);
  if (prologue_) inside_[prologue_->memory] = kPrologue;
  std::vector<bool> outside(program.memories.size(), false);
  for (size_t k = 0; k < program.insns.size(); ++k)
    if (std::ranges::find(step.insns, k) == step.insns.end())
      for (const Operand& o : program.insns[k].out) outside[o.memory] = true;
  for (uint32_t i : step.insns)
    for (const Operand& o : program.insns[i].out) {
      const ProgramMemory& m = program.memories[o.memory];
      const bool read_inside = std::ranges::all_of(readers[o.memory], [&](uint32_t r) {
        return std::ranges::find(step.insns, r) != step.insns.end();
      });
      if (m.in || m.out || m.recomputes || outside[o.memory] || !read_inside) continue;
      if (inside_[o.memory] != kOutside) continue;
      if (o.offset || static_cast<int64_t>(m.bytes) != bytes_of(o)) continue;
      inside_[o.memory] = scratch_;
      // Each begins a bit before where the last one does in its page: loads would wait for stores whose
      // addresses are the same in a page.
      scratch_ += (bytes_of(o) / rows_ * at_once_ + 2 * kPage - 1) / kPage * kPage - kShift;
    }
}

char* RowStep::address_of(uint32_t memory, const Tensor& t) const {
  if (inside_[memory] != kOutside) return nullptr;
  if (t.storage().is_deferred()) t.storage().materialize();  // of any contents, where it is read
  return static_cast<char*>(t.data());
}

RowStep::Work RowStep::prepare(std::vector<Call>& calls) const {
  Work work;
  work.parts.resize(parts_.size());
  for (size_t p = 0; p < parts_.size(); ++p) {
    Work::Launching& to = work.parts[p];
    if (const Chain* chain = parts_[p].chain.get()) {
      chain->fill(calls, to.plan, to.numbers, [&](uint32_t m, const Tensor& t) { return address_of(m, t); });
      to.per_row = to.plan.sizes[0] / rows_;
      const auto add = [&](int kind, int index, const kernels::Operand& o, uint32_t memory) {
        work.addresses.push_back(
            {p, kind, static_cast<size_t>(index), o.strides[0] * to.per_row, inside_[memory]});
      };
      for (int k = 0; k < to.plan.inputs; ++k)
        if (!to.plan.input[k].host_scalar) add(0, k, to.plan.input[k], chain->input_memory(k));
      for (int k = 0; k < to.plan.outputs; ++k) add(1, k, to.plan.output[k].to, chain->output_memory(k));
      continue;
    }
    const Insn& insn = parts_[p].insn;
    Call& call = calls[parts_[p].call];
    if (inside_[insn.out[0].memory] == kOutside) reuse_input_memory(call);
    const auto add = [&](int which, size_t position, const Operand& o, const Tensor& t, bool by_rows) {
      kernels::View& v = to.views[which][position];
      v = {address_of(o.memory, t),    t.sizes().data(), t.strides().data(),
           static_cast<int>(t.ndim()), t.dtype(),        false};
      if (by_rows) work.addresses.push_back({p, 2 + which, position, bytes_of(o) / rows_, inside_[o.memory]});
    };
    for (size_t k = 0; k < call.operands.size(); ++k)
      if (const int8_t at = call.operands[k]; at != kIsNumber)
        add(0, k, insn.in[static_cast<size_t>(at)], call.in[static_cast<size_t>(at)], insn.rows_in >> at & 1);
    for (size_t k = 0; k < call.out.size(); ++k)
      add(1, static_cast<size_t>(call.results[k]), insn.out[k], call.out[k], insn.rows_out >> k & 1);
  }
  return work;
}

// On the calling thread. `prologue_rows`: where the rows of a prologue's result go.
void RowStep::run_rows(const Work& work, const std::vector<Call>& calls, int64_t begin, int64_t end,
                       char* prologue_rows, kernels::IndexFault* fault) const {
  static PerThread<std::vector<char>> of_thread;
  std::vector<char>& memory = *of_thread;
  if (static_cast<int64_t>(memory.size()) < scratch_ + 2 * kPage)
    memory.resize(static_cast<size_t>(scratch_ + 2 * kPage));
  char* scratch = memory.data() + (-reinterpret_cast<uintptr_t>(memory.data()) & (kPage - 1)) + kPage / 2;
  Work mine = work;
  for (int64_t row = begin; row < end; row += at_once_) {
    const int64_t rows = std::min(at_once_, end - row);
    for (const Address& a : mine.addresses) {
      const Work::Launching& from = work.parts[a.part];
      Work::Launching& to = mine.parts[a.part];
      const auto move = [&](auto& data, const auto& all_rows) {
        data = a.inside >= 0           ? scratch + a.inside
               : a.inside == kPrologue ? prologue_rows + (row - begin) * a.step
                                       : static_cast<char*>(all_rows) + row * a.step;
      };
      if (a.kind == 0) move(to.plan.input[a.index].data, from.plan.input[a.index].data);
      if (a.kind == 1) move(to.plan.output[a.index].to.data, from.plan.output[a.index].to.data);
      if (a.kind >= 2) move(to.views[a.kind - 2][a.index].data, from.views[a.kind - 2][a.index].data);
    }
    for (size_t p = 0; p < parts_.size(); ++p) {
      Work::Launching& to = mine.parts[p];
      if (parts_[p].chain) {
        to.plan.sizes[0] = rows * to.per_row;
        to.plan.numel = work.parts[p].plan.numel / rows_ * rows;
        chain_slot(Launch(Device()), to.plan);
      } else {
        const KernelFunction& f = calls[parts_[p].call].kernel;
        f.run(f.data.data(), Launch(Device(), fault), to.views[0], to.views[1], rows);
      }
    }
  }
}

void RowStep::run(std::vector<Call>& calls) const {
  const Work work = prepare(calls);
  const int64_t blocks = std::max<int64_t>(rows_ / at_once_ / kParts, 1);  // that a thread takes in one go
  kernels::IndexFault fault;
  kernels::cpu::parallel_for(rows_, at_once_ * blocks, [&](int64_t begin, int64_t end) {
    run_rows(work, calls, begin, end, nullptr, &fault);
  });
  if (fault.set) check(calls, fault);
}

// After all rows, for what came before the kernel that found a bad index is to have happened. What others see
// is not written behind it in a step (fuse.cpp).
void RowStep::check(const std::vector<Call>& calls, const kernels::IndexFault& fault) const {
  for (const Part& part : parts_) {
    if (part.chain || !part.insn.checked) continue;
    const KernelInfo& info = calls[part.call].kernel_info();
    check_index(fault, info.name, info.index_dim);
  }
}

struct RowStep::Making {
  const RowStep& step;
  const Work& work;
  const std::vector<Call>& calls;
};

const void* RowStep::make_rows(const void* making, int64_t begin, int64_t end) {
  static PerThread<std::vector<char>> of_thread;
  std::vector<char>& memory = *of_thread;
  const auto& m = *static_cast<const Making*>(making);
  const auto bytes = static_cast<size_t>((end - begin) * m.step.row_bytes_) + 64;
  if (memory.size() < bytes) memory.resize(bytes);
  char* prologue_rows = memory.data() + (-reinterpret_cast<uintptr_t>(memory.data()) & 63);
  m.step.run_rows(m.work, m.calls, begin, end, prologue_rows);
  return prologue_rows;
}

void RowStep::run_before(std::vector<Call>& calls, const std::function<void()>& f) const {
  const Work work = prepare(calls);
  const Making making{*this, work, calls};
  ops::Prologue prologue{{make_rows, &making}, &calls[product_].in[0].storage()};
  Restore<ops::Prologue*> pending(own_thread_state().prologue, &prologue);
  f();
  WT_CHECK(prologue.taken, Error, "graph: ", calls[product_].name(), " did not take its prologue");
}

}  // namespace warptape::graph
