// What a step of a chain runs: the op's loop over contiguous memory and, for simple formulas of float, a
// handler that has its first operand and its result in registers.
#pragma once

#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/fused/chain.h"

namespace warptape::kernels::WARPTAPE_ISA {

// ---- handlers: a program is a row of them, each of which ends by calling the next ----
inline constexpr int kChainVectors = 8;  // as many as the calling convention passes in registers
inline constexpr int64_t kChainBlock = kChainVectors * VFloat::kLanes;  // floats that one call works on

struct ChainInsn;
using ChainVector = Raw<float>;
using ChainHandler = void(const ChainInsn* insn, char* const* places, ChainVector, ChainVector, ChainVector,
                          ChainVector, ChainVector, ChainVector, ChainVector, ChainVector);
struct ChainInsn {
  ChainHandler* run;
  uint16_t place[kMaxStepInputs];  // of the operands that are not in registers; floats, or bytes for a mask
  uint16_t out;                    // where a predicate writes its bytes
};

// The operand in registers is number `first`, or the one after it where there is one.
struct ChainHandlers {
  uint8_t first;
  ChainHandler* with[2];
  uint8_t form[2];  // of each: see paired()
};

// A jump to the next handler takes about as long as a simple formula: those that often follow each other have
// a handler for both.
inline constexpr uint8_t kNoForm = 0xff, kLoadForm = 0, kStoreForm = 1;
// Null where there is none. It has the first one's operand in memory at place[0], the second one's at
// place[1]; `of_one`: both at place[0], which it reads once.
ChainHandler* paired(uint8_t first, uint8_t second, bool of_one);

// Several in a row with at most two operands in memory between them, place[0] and place[1], which it reads
// once: they stay in registers. Null where the processor has too few of these. Operations follow it as bytes
// up to kRunEnd, in the room of instructions; `out` says where the next instruction is.
extern ChainHandler* const kChainRun;
bool form_reads(uint8_t form);
constexpr uint8_t run_operation(uint8_t form, int operand) { return uint8_t(2 * form + operand); }
inline constexpr uint8_t kRunEnd = run_operation(kStoreForm, 0);

extern const ChainInsn kChainEnd;
extern ChainHandler* const kChainLoad;      // place[0] to registers
extern ChainHandler* const kChainStore;     // registers to place[0]
extern ChainHandler* const kRoundBFloat16;  // in registers, as if stored and loaded
extern ChainHandler* const kRoundHalf;      // null where the processor has no instruction for it

// ---- what a ChainFormula is ----
struct StepFormula {
  LoopFn* loop;  // null for copies
  const ChainHandlers* handlers;
  DType compute;
  bool predicate, mask_first, divides_integers;
};
struct StepFormulas {
  StepFormula f32, f64, i64;
  bool needs_number = false;  // as the last input
};

// `handlers` is null for a formula without.
constexpr StepFormulas step_formulas(const Loops& l, const ChainHandlers* handlers) {
  return {{l.f32, handlers, DType::Float32, l.predicate, l.mask_first, false},
          {l.f64, nullptr, DType::Float64, l.predicate, l.mask_first, false},
          {l.i64, nullptr, DType::Int64, l.predicate, l.mask_first, l.divides_integers}};
}
// Of the lists in kernels/elementwise/ops, each beside its loops; null where the list has no
// such slot.
const StepFormulas* find_arithmetic(const char* slot);
const StepFormulas* find_math(const char* slot);
const StepFormulas* find_activation(const char* slot);
const StepFormulas* find_loss(const char* slot);

}  // namespace warptape::kernels::WARPTAPE_ISA
