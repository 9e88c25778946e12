#include "graph/lower/chain.h"

#include <algorithm>
#include <chrono>

namespace warptape::graph {
namespace {

kernels::Slot<kernels::FindChainFormulaFn> find_slot{"find_chain_formula"};
kernels::Slot<kernels::ChainFn> chain_slot{"chain"};
kernels::Slot<kernels::PrepareChainFn> prepare_slot{"prepare_chain"};

// In bytes, as seen with `sizes`.
void set_strides(kernels::Operand& to, const Operand& from, const Shape& sizes) {
  const Shape strides = broadcast_strides(from.sizes, from.strides, sizes);
  for (size_t d = 0; d < sizes.size(); ++d)
    to.strides[d] = strides[d] * static_cast<int64_t>(itemsize(from.dtype));
}

}  // namespace

const kernels::ChainFormula* formula_of(const Program& program, const Insn& insn) {
  if (insn.kind != CallKind::Elementwise || insn.out[0].numel() == 0) return nullptr;
  const Device device = program.memories[insn.out[0].memory].device;
  for (const auto* list : {&insn.in, &insn.out})
    for (const Operand& o : *list)
      if (program.memories[o.memory].device != device || is_complex(o.dtype)) return nullptr;
  if (is_complex(insn.compute)) return nullptr;
  return find_slot(launch_context(device), insn.name, insn.compute, insn.operands.back() == kIsNumber);
}

bool packs_rows(const Insn& insn) {
  return std::ranges::all_of(insn.in, [](const Operand& o) {
    if (o.sizes.empty() || o.strides == contiguous_strides(o.sizes)) return true;
    const auto fits = [&](size_t d) {
      return o.sizes[d] == 1 || o.strides[d] * static_cast<int64_t>(itemsize(o.dtype)) % 16 == 0;
    };
    const size_t last = o.sizes.size() - 1;
    for (size_t d = 0; d < last; ++d)
      if (o.sizes[last] != 1 && !fits(d)) return false;
    return o.sizes[last] == 1 || o.strides[last] == 1;
  });
}

const kernels::ChainFormula* row_formula_of(const Program& program, const Insn& insn) {
  if (insn.kind != CallKind::Kernel || insn.rows < 1 || !(insn.rows_in & 1) || !(insn.rows_out & 1))
    return nullptr;
  if (insn.in.empty() || insn.out.empty() || insn.in[0].sizes.empty() ||
      (insn.present_in | insn.present_out) >> 5)
    return nullptr;
  const Operand &x = insn.in[0], &y = insn.out[0];
  const Device device = program.memories[y.memory].device;
  const int64_t n = x.sizes.back();
  if (!device.is_cuda() || x.sizes != y.sizes || x.dtype != y.dtype || n == 0 || x.numel() != insn.rows * n ||
      n > kernels::kLongestChainRow || n * static_cast<int64_t>(itemsize(x.dtype)) % 16)
    return nullptr;
  for (const auto* list : {&insn.in, &insn.out})
    for (const Operand& o : *list)
      if (program.memories[o.memory].device != device || o.strides != contiguous_strides(o.sizes))
        return nullptr;
  // Another dtype of the weight is converted before.
  for (size_t k = 0; k < insn.in.size(); ++k)
    if (!(insn.rows_in >> k & 1) && (insn.in[k].dtype != x.dtype && insn.in[k].dtype != DType::Float32))
      return nullptr;
  return find_slot(launch_context(device), insn.name, x.dtype, false);
}

uint8_t Chain::input(const Insn& insn, int8_t at, uint8_t& numbers) {
  if (at != kIsNumber) {
    const Operand& o = insn.in[static_cast<size_t>(at)];
    for (size_t k = written_.size(); k-- > 0;)
      if (written_[k].first == o.memory) return written_[k].second;
    for (size_t k = 0; k < input_operands_.size(); ++k)
      if (inputs_[k].tensor != kIsNumber && input_operands_[k] == o) return static_cast<uint8_t>(k);
  }
  const bool of_product = at != kIsNumber && is_product(insn.in[static_cast<size_t>(at)]);
  inputs_.push_back({insn.call, at, at == kIsNumber ? numbers++ : uint8_t{0}, of_product});
  kernels::Operand& to = plan_.input[plan_.inputs++];
  to.host_scalar = at == kIsNumber;
  if (to.host_scalar) {
    input_operands_.emplace_back();
  } else {
    input_operands_.push_back(insn.in[static_cast<size_t>(at)]);
    to.dtype = input_operands_.back().dtype;
    set_strides(to, input_operands_.back(), insn.out[0].sizes);
  }
  return static_cast<uint8_t>(plan_.inputs - 1);
}

Chain::Chain(const Program& program, const Step& step, const std::vector<std::vector<uint32_t>>& readers)
    : device_(program.memories[program.insns[step.insns[0]].out[0].memory].device) {
  const Insn& first = program.insns[step.insns[0]];
  if (program.has_epilogue(step)) product_ = first.out[0], product_call_ = first.call;
  for (uint32_t i : std::span(step.insns).subspan(product_ ? 1 : 0)) {
    const Insn& insn = program.insns[i];
    kernels::ChainStep& to = plan_.step[plan_.steps];
    to.result = insn.out[0].dtype;
    if (insn.kind == CallKind::Kernel) {
      to.formula = row_formula_of(program, insn);
      add_kernel(insn);
      for (uint32_t other : step.insns) all_calls_.push_back(program.insns[other].call);
    } else {
      to.formula = formula_of(program, insn);
      to.count = static_cast<uint8_t>(insn.operands.size());
      uint8_t numbers = 0;
      for (size_t k = 0; k < insn.operands.size(); ++k) to.in[k] = input(insn, insn.operands[k], numbers);
    }
    written_.emplace_back(insn.out[0].memory, static_cast<uint8_t>(kernels::kMaxChainInputs + plan_.steps++));
  }
  store(program, step, readers);
  merge_dims(program.insns[step.insns.back()].out[0].sizes);
  if (device_.is_cuda()) plan_.prepared = prepare_slot(launch_context(device_), plan_);
}

// The step of a kernel that runs by rows.
void Chain::add_kernel(const Insn& insn) {
  kernels::ChainStep& to = plan_.step[plan_.steps];
  plan_.rows.step = plan_.steps;
  row_call_ = insn.call;
  uint8_t numbers = 0;
  for (size_t position = 0, k = 0; insn.present_in >> position; ++position) {
    to.in[position] = kernels::kAbsent;
    to.count = static_cast<uint8_t>(position + 1);
    if (!(insn.present_in >> position & 1)) continue;
    const Operand& o = insn.in[k];
    if ((insn.rows_in >> k & 1) && o.sizes != insn.in[0].sizes)
      row_operands_.push_back({false, position, k, o.memory});
    else
      to.in[position] = input(insn, static_cast<int8_t>(k), numbers);
    ++k;
  }
  for (size_t position = 0, k = 0; insn.present_out >> position; ++position) {
    if (!(insn.present_out >> position & 1)) continue;
    plan_.rows.out[position].dtype = insn.out[k].dtype;
    if (k > 0) row_operands_.push_back({true, position, k, insn.out[k].memory});
    ++k;
  }
}

// Whether what rows read and write by 16 bytes begins at a multiple of that.
bool Chain::is_aligned(const kernels::ChainPlan& plan) const {
  const auto fits = [&](const kernels::Operand& o) {
    return o.host_scalar || o.strides[plan.ndim - 1] == 0 || reinterpret_cast<uintptr_t>(o.data) % 16 == 0;
  };
  return std::all_of(plan.input, plan.input + plan.inputs, fits) &&
         std::all_of(plan.output, plan.output + plan.outputs, [&](const auto& o) { return fits(o.to); });
}

const char* Chain::problem() const {
  return plan_.prepared ? plan_.prepared->problem.load(std::memory_order_acquire) : nullptr;
}

// What others see of the memories that the chain writes: for each the last value.
void Chain::store(const Program& program, const Step& step,
                  const std::vector<std::vector<uint32_t>>& readers) {
  const auto is_visible = [&](uint32_t memory) {
    const auto is_outside = [&](uint32_t i) { return std::ranges::find(step.insns, i) == step.insns.end(); };
    const ProgramMemory& m = program.memories[memory];
    return m.in || m.out || std::ranges::any_of(readers[memory], is_outside);
  };
  for (size_t k = written_.size(); k-- > 0;) {
    const Insn& insn = program.insns[step.insns[k + (product_ ? 1 : 0)]];
    const Operand& o = insn.out[0];
    const auto later = [&](const auto& w) { return w.first == o.memory; };
    if (std::any_of(written_.begin() + static_cast<std::ptrdiff_t>(k) + 1, written_.end(), later)) continue;
    if (!is_visible(o.memory)) continue;
    kernels::ChainOutput& out = plan_.output[plan_.outputs++];
    out.value = written_[k].second;
    out.to.dtype = o.dtype;
    out.to.host_scalar = false;
    set_strides(out.to, o, o.sizes);
    outputs_.push_back({insn.call, 0, 0, is_product(o)});
    stored_.push_back(o.memory);
    // A product that nobody else reads needs no memory of its own. What is copied is stored last.
    const auto copies = [&](uint32_t i) {
      const Insn& other = program.insns[i];
      return other.copies && std::ranges::any_of(other.in, [&](const Operand& in) { return is_product(in); });
    };
    if (!product_ || is_product(o) || is_visible(product_->memory) || std::ranges::any_of(step.insns, copies))
      continue;
    Operand there = o;
    there.memory = product_->memory;
    const auto bytes = [&](uint32_t memory) { return program.memories[memory].bytes; };
    if (there == *product_ && !program.memories[o.memory].in && bytes(o.memory) == bytes(there.memory))
      onto_product_ = outputs_.size() - 1;
  }
}

// Orders dims so that the first output's fastest is last, and merges neighbours that are one run everywhere.
void Chain::merge_dims(const Shape& sizes) {
  std::vector<kernels::Operand*> all;
  for (int k = 0; k < plan_.outputs; ++k) all.push_back(&plan_.output[k].to);
  for (int k = 0; k < plan_.inputs; ++k)
    if (!plan_.input[k].host_scalar) all.push_back(&plan_.input[k]);
  SmallVector<int, 8> order;
  plan_.numel = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    plan_.numel *= sizes[d];
    if (sizes[d] != 1) order.push_back(static_cast<int>(d));
  }
  const bool rows = plan_.rows.step >= 0;  // the last dim is one
  if (!rows)
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return all[0]->strides[a] > all[0]->strides[b]; });
  std::vector<std::vector<int64_t>> strides(all.size());
  int n = 0;
  for (int d : order) {
    bool merges = n > 0 && !(rows && d == order.back());
    for (size_t k = 0; merges && k < all.size(); ++k)
      merges = strides[k].back() == all[k]->strides[d] * sizes[static_cast<size_t>(d)];
    if (!merges) ++n;
    plan_.sizes[n - 1] =
        merges ? plan_.sizes[n - 1] * sizes[static_cast<size_t>(d)] : sizes[static_cast<size_t>(d)];
    for (size_t k = 0; k < all.size(); ++k) {
      if (!merges) strides[k].emplace_back();
      strides[k].back() = all[k]->strides[d];
    }
  }
  if (n == 0) plan_.sizes[n++] = 1;
  plan_.ndim = n;
  for (size_t k = 0; k < all.size(); ++k) {
    std::fill_n(all[k]->strides, n, 0);
    std::copy(strides[k].begin(), strides[k].end(), all[k]->strides);
  }
}

void Chain::mark_uses(std::vector<CallUse>& uses) const {
  for (const OperandRef& p : inputs_) {
    uses[p.call].any = true;
    if (p.tensor != kIsNumber) uses[p.call].in |= 1u << p.tensor;
  }
  for (const OperandRef& p : outputs_) uses[p.call].any = uses[p.call].out = true;
}

void Chain::set_number(kernels::Operand& to, Number& number, const Scalar& s) {
  const bool floating = s.is_floating() || s.exceeds_int64();
  to.dtype = floating ? DType::Float64 : DType::Int64;
  if (floating)
    number.d = s.to_double();
  else
    number.i = s.to_int();
  to.data = reinterpret_cast<char*>(&number);
}

bool Tuning::next() const {
  const std::lock_guard lock(mutex_);
  return runs_ < 2 * kRuns ? runs_ % 2 == 0 : least_[1] <= least_[0];
}

void Tuning::add(bool variant, double seconds) {
  const std::lock_guard lock(mutex_);
  if (runs_ < 2 * kRuns && runs_++ >= 2) least_[variant] = std::min(least_[variant], seconds);
}

std::optional<std::pair<double, double>> Tuning::measured() const {
  const std::lock_guard lock(mutex_);
  if (runs_ < 2 * kRuns) return {};
  return {{least_[0], least_[1]}};
}

void Chain::run(std::vector<Call>& calls, Tuning* tuning) const {
  ops::Epilogue e{plan_, product_ ? product_->dtype : DType::Float32};
  Numbers numbers;
  fill(calls, e.plan, numbers, [&](uint32_t memory, const Tensor& t) -> char* {
    if (t.storage().is_deferred()) {
      if (onto_product_ && stored_[*onto_product_] == memory) {
        calls[product_call_].out[0] = t;
        return nullptr;
      }
      t.storage().materialize();  // of any contents, where it is read
    }
    return static_cast<char*>(t.data());
  });
  if (e.plan.rows.step >= 0 && !is_aligned(e.plan)) {
    for (uint32_t c : all_calls_) graph::run(calls[c]);
    return;
  }
  const bool within = !tuning || tuning->next();
  const auto begin = std::chrono::steady_clock::now();
  if (product_) run_product(calls[product_call_], e, within);
  if (!e.taken) chain_slot(Launch(device_), e.plan);
  if (tuning)
    tuning->add(within, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

// Runs the epilogue, too, where the op comes by a product of which it is one.
void Chain::run_product(Call& call, ops::Epilogue& e, bool within) {
  Restore<ops::Epilogue*> epilogue(own_thread_state().epilogue, within ? &e : nullptr);
  graph::run(call);
  if (e.taken) return;
  e.on(call.out[0].data());
  e.taken = false;
}

}  // namespace warptape::graph
