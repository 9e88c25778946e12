// A step of kernels that run by rows, and of elementwise instructions before, between and behind them; or
// such instructions before a product of matrices, which make its first operand where it is multiplied: a
// prologue.
//
// It runs on so many rows at a time that what its parts hand to each other stays in the cache. What nobody
// else reads has memory for those rows alone. A row's result does not depend on the rows that it runs with,
// so that the bits are those of the parts on all rows.
#pragma once

#include <functional>

#include "graph/lower/chain.h"

namespace warptape::graph {

// Whether the instruction, an elementwise one, gives each of `rows` rows from that row of what it reads.
bool runs_by_rows(const Insn& insn, int64_t rows);
// Whether a step may take the instruction as a kernel that runs by rows, of so many bytes at least.
bool is_row_kernel(const Program& program, const Insn& insn, int64_t least_bytes);

class RowStep {
 public:
  RowStep(const Program& program, const Step& step, const std::vector<std::vector<uint32_t>>& readers);
  void run(std::vector<Call>& calls) const;
  // Of a prologue: runs f(), in which the product is computed.
  void run_before(std::vector<Call>& calls, const std::function<void()>& f) const;

 private:
  struct Part {
    std::unique_ptr<Chain> chain;  // or the kernel of a call:
    uint32_t call = 0;
    Insn insn;
  };
  struct Work;
  struct Making;
  struct Address;
  static const void* make_rows(const void* making, int64_t begin, int64_t end);
  void run_rows(const Work& work, const std::vector<Call>& calls, int64_t begin, int64_t end,
                char* prologue_rows, kernels::IndexFault* fault = nullptr) const;
  void check(const std::vector<Call>& calls, const kernels::IndexFault& fault) const;
  void find_inside(const Program& program, const Step& step,
                   const std::vector<std::vector<uint32_t>>& readers);
  Work prepare(std::vector<Call>& calls) const;
  char* address_of(uint32_t memory, const Tensor& t) const;

  int64_t rows_ = 0, at_once_ = 0;
  std::vector<Part> parts_;
  std::vector<int64_t> inside_;  // by memory: where it lies in a block's memory, or below 0
  int64_t scratch_ = 0;          // bytes of a block's memory
  // Of a prologue: the product's first operand, its call, and the bytes of a row.
  std::optional<Operand> prologue_;
  uint32_t product_ = 0;
  int64_t row_bytes_ = 0;
};

}  // namespace warptape::graph
