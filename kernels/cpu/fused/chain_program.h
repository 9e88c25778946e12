// A chain as it is run, tile by tile. Between steps a value is held as bool, int64_t, float or double,
// which hold all values of its own dtype; it is in registers, or at a place: an operand's elements, or a slot
// of a tile's elements in scratch memory. Successive handlers make one item, which runs block by block;
// the other items run a loop or a conversion over the whole tile.
#pragma once

#include "kernels/cpu/fused/chain.h"
#include "kernels/cpu/vector/tile.h"

namespace warptape::kernels::WARPTAPE_ISA {

inline constexpr int kMaxChainValues = kMaxChainInputs + kMaxChainSteps;
inline constexpr int kMaxChainPlaces = kMaxChainInputs + kMaxChainOutputs + 8 * kMaxChainValues;
inline constexpr int kMaxMovingPlaces = kMaxChainInputs + kMaxChainOutputs + 4 * kMaxChainValues;
inline constexpr int kMaxFixedPlaces = 2 * kMaxChainValues;
inline constexpr uint16_t kNoPlace = 0xffff;

// The operands that a tile brings: outputs first. Inputs of one value for all are not among them.
struct ChainOperands {
  int ndim;
  int count;
  int64_t numel;
  int64_t sizes[kMaxDims];
  Operand operands[kMaxChainInputs + kMaxChainOutputs];
};

struct ChainItem {
  const ChainInsn* handlers;  // or
  ConvertFn* convert;         // of in[0], or
  LoopFn* loop;
  int64_t count;     // elements; 0: those of the tile
  uint64_t touched;  // operands that the handlers read or write, as bits
  uint16_t out, in[kMaxStepInputs];
  uint8_t inputs, scalar_mask;
  bool check_divisor;
};

template <int kCapacity>
struct ChainItems {
  int count = 0;
  ChainItem items[kCapacity];
  ChainItem& add() { return items[count++] = ChainItem{}; }
};

struct ChainProgram {
  ChainOperands operands;
  TileWalk<ChainOperands> tiles;
  int64_t most;     // elements of a tile
  int64_t scratch;  // bytes
  uint32_t tails;   // where in it there is a block of every operand, for the rest of a tile

  int places;
  char* at[kMaxChainPlaces];         // of numbers; else null and
  uint32_t offset[kMaxChainPlaces];  // in scratch memory. Those of operands vary.
  int64_t step[kMaxChainPlaces];     // bytes from block to block
  // Those that handlers use, in the order of the numbers that handlers have for them: ones that move on from
  // block to block, and from kMaxMovingPlaces on ones that do not.
  int moving, fixed;
  uint16_t moving_place[kMaxMovingPlaces], fixed_place[kMaxFixedPlaces];
  alignas(16) char numbers[4 * kMaxChainValues][16];

  ChainInsn insns[6 * kMaxChainSteps + 3 * kMaxChainOutputs];
  ChainItems<2 * kMaxChainValues> once;                    // for each thread's part
  ChainItems<5 * kMaxChainInputs + kMaxChainSteps> first;  // for each tile: what inputs need
  ChainItems<10 * kMaxChainSteps + 2 * kMaxChainOutputs> then;
};

// What a handler does, for those that may join others, and which of its operands is in memory.
struct HandlerForm {
  uint8_t form, in_memory;
};
// Joins the handlers [begin, end) where one for several is faster; returns their new end.
int combine_handlers(ChainInsn* insns, const HandlerForm* forms, int begin, int end);

// `program` refers to itself: it is not to be moved.
void build_program(const LaunchContext& ctx, const ChainPlan& plan, ChainProgram& program);

extern const StepFormulas kCopyFormulas;

}  // namespace warptape::kernels::WARPTAPE_ISA
