// A step of several elementwise instructions, in one pass over memory.
#pragma once

#include <mutex>

#include "graph/ir/ir.h"
#include "ops/linalg/matmul.h"

namespace warptape::graph {

// The formula that a chain runs for the instruction, or null: it is of another kind, or lies on two devices.
const kernels::ChainFormula* formula_of(const Program& program, const Insn& insn);
// The same of a kernel that runs by rows, on a device.
const kernels::ChainFormula* row_formula_of(const Program& program, const Insn& insn);
// Whether the instruction's operands lie as rows of a chain have to: see kernels::ChainRows.
bool packs_rows(const Insn& insn);
// Whether the instruction may be one of a chain.
bool is_fusable(const Program& program, const Insn& insn);

// Which variant of a step was faster: the first runs alternate between both, and then it stays with one.
class Tuning {
 public:
  static constexpr int kRuns = 4;  // of each variant, the first of which does not count

  // The variant of the next run, and what a run took.
  bool next() const;
  void add(bool variant, double seconds);
  // The least seconds of each variant; none before all are there.
  std::optional<std::pair<double, double>> measured() const;

 private:
  mutable std::mutex mutex_;
  int runs_ = 0;
  double least_[2] = {1e30, 1e30};
};

// Which tensors of a call the run of a program uses: bits for those read. What stays within a chain has
// none.
struct CallUse {
  bool any = false, out = false;
  uint32_t in = 0;
};

// Of a step with an epilogue the chain is the epilogue, which the product's kernel runs.
class Chain {
 public:
  Chain(const Program& program, const Step& step, const std::vector<std::vector<uint32_t>>& readers);
  // Takes addresses and numbers from the calls. An epilogue runs in the product's kernel, or as `tuning`
  // says.
  void run(std::vector<Call>& calls, Tuning* tuning = nullptr) const;
  // What a plan points to other than tensors.
  union Number {
    int64_t i;
    double d;
  };
  using Numbers = std::vector<Number>;
  // The plan of a run, with the numbers that it points to; address(memory, tensor) is where the tensor of a
  // call lies.
  template <class F>
  void fill(const std::vector<Call>& calls, kernels::ChainPlan& plan, Numbers& numbers, F&& address) const {
    plan = plan_;
    numbers.resize(inputs_.size());
    for (size_t k = 0; k < inputs_.size(); ++k) {
      const Call& call = calls[inputs_[k].call];
      if (inputs_[k].is_product) continue;
      if (inputs_[k].tensor == kIsNumber)
        set_number(plan.input[k], numbers[k], call.numbers[inputs_[k].number]);
      else
        plan.input[k].data =
            address(input_operands_[k].memory, call.in[static_cast<size_t>(inputs_[k].tensor)]);
    }
    for (size_t k = 0; k < outputs_.size(); ++k)
      if (!outputs_[k].is_product)
        plan.output[k].to.data = address(stored_[k], calls[outputs_[k].call].out[0]);
    if (plan.rows.step < 0) return;
    const Call& kernel = calls[row_call_];
    plan.rows.number = kernel.kernel.number;
    for (const RowOperand& b : row_operands_)
      (b.is_out ? plan.rows.out : plan.rows.in)[b.position].data =
          address(b.memory, (b.is_out ? kernel.out : kernel.in)[b.tensor]);
  }
  // Of a chain behind no product.
  void mark_uses(std::vector<CallUse>& uses) const;
  uint32_t input_memory(int k) const { return input_operands_[static_cast<size_t>(k)].memory; }
  uint32_t output_memory(int k) const { return stored_[static_cast<size_t>(k)]; }
  // Why it cannot run now, or null: on a device its kernel is compiled first, while the instructions run
  // apart.
  const char* problem() const;
  bool waits() const { return problem() && !plan_.prepared->failed; }
  bool on_device() const { return plan_.prepared != nullptr; }

 private:
  struct OperandRef {
    uint32_t call;
    int8_t tensor;  // of the call's inputs or outputs; kIsNumber
    uint8_t number = 0;
    bool is_product = false;  // the result of the product before the chain
  };
  // A tensor of the kernel by rows that has another geometry than the chain.
  struct RowOperand {
    bool is_out;
    size_t position, tensor;
    uint32_t memory;
  };
  uint8_t input(const Insn& insn, int8_t at, uint8_t& numbers);
  void add_kernel(const Insn& insn);
  bool is_aligned(const kernels::ChainPlan& plan) const;
  void store(const Program& program, const Step& step, const std::vector<std::vector<uint32_t>>& readers);
  void merge_dims(const Shape& sizes);
  bool is_product(const Operand& o) const { return product_ && product_->memory == o.memory; }
  static void run_product(Call& call, ops::Epilogue& epilogue, bool within);
  static void set_number(kernels::Operand& to, Number& number, const Scalar& s);

  kernels::ChainPlan plan_{};
  Device device_;
  std::vector<OperandRef> inputs_, outputs_;
  std::vector<Operand> input_operands_;                // of inputs_, to share what is read twice
  std::vector<uint32_t> stored_;                       // memories, of outputs_
  std::vector<std::pair<uint32_t, uint8_t>> written_;  // memory, value
  std::optional<Operand> product_;                     // the result of the product before the chain
  uint32_t product_call_ = 0;
  uint32_t row_call_ = 0;  // the kernel by rows
  std::vector<RowOperand> row_operands_;
  std::vector<uint32_t> all_calls_;     // where one is a kernel by rows
  std::optional<size_t> onto_product_;  // of outputs_: what may be computed onto the product
};

}  // namespace warptape::graph
