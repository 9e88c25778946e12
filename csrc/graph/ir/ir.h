// The program of a region: which instructions there are, on which memories, and in which steps they run.
//
// A memory is what a storage is to eager code: bytes that instructions read and write through operands, each
// a strided view. An instruction that writes a memory which another has written or read before works in
// place.
//   %0..   memories; `in` came from outside, `out` is seen outside when the program has run. A memory that is
//          `again` another is the same storage, which lost its contents in between and is computed again.
// Numbers (a learning rate, a step) are no part of a program: each run takes them from its own calls, and so
// it does with the arguments of ops.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/ir/call.h"

namespace warptape::graph {

struct Operand {
  uint32_t memory;
  DType dtype;
  int64_t offset;  // in elements
  Shape sizes, strides;
  bool operator==(const Operand&) const = default;
  int64_t numel() const;
  // Whether the elements fill a run of memory, in any order of the dims.
  bool is_dense() const;
  // The range of bytes of the memory that it reaches; none if that does not fit into 63 bits.
  std::optional<std::pair<int64_t, int64_t>> bytes() const;
};

struct Insn {
  uint32_t call = 0;  // whose arguments and tensors it takes
  CallKind kind;
  DType compute;             // of Elementwise
  bool in_backward = false;  // a backward pass recorded it
  const void* callee;        // null: of a program that was read from text
  const char* name;
  const OpInfo* op = nullptr;  // of an Op; of a Backward, the op whose it is; null where no op has the name
  SmallVector<Operand, 3> in, out;
  SmallVector<int8_t, 4> operands;  // of Elementwise: as in Call
  bool copies = false;              // an Elementwise that stores its operand as it is, or cast
  // Of a Kernel that may run on some rows at a time: how many there are, and bits for the operands that are
  // by rows.
  int64_t rows = 0;
  uint32_t rows_in = 0, rows_out = 0;
  bool checked = false;  // a Kernel that may find a bad index
  bool over = false;     // a Kernel whose first result may be where a tensor of its geometry was
  // Of a Kernel: which of its tensors `in` and `out` are, in this order, as bits.
  uint32_t present_in = 0, present_out = 0;
  bool is_all_by_rows() const { return rows > 0 && rows_out == (1u << out.size()) - 1; }
};

inline constexpr uint32_t kMaxMemories = 1 << 20;  // of a text; more are a broken one

struct ProgramMemory {
  size_t bytes = 0;
  Device device;
  bool in = false, out = false;
  std::optional<uint32_t> recomputes;  // the memory whose storage it is, from then on
};

// Instructions that run in one pass over memory, or one that runs alone. One of them may be a product of
// matrices or a convolution: those behind it are its epilogue, those before it, of a product, its prologue.
struct Step {
  std::vector<uint32_t> insns;
};

// An operand that was read from a copy and is read from what was copied instead: see layout.cpp.
struct PropagatedLayout {
  uint32_t call, operand, copy;  // calls of the reader and of the copy
  int64_t offset;                // in elements, from what was copied
  Operand before, now;
};

struct WT_API Program {
  std::vector<ProgramMemory> memories;
  std::vector<Insn> insns;
  std::vector<Step> steps;  // each of one instruction before fuse(); instructions of no step are dead
  // What the passes did: instructions removed, moved ahead of a neighbour, added to compute a result again,
  // and those that joined another's step.
  int64_t removed = 0, moved = 0, recomputed = 0, fused = 0;
  int64_t row_kernels = 0;  // of those that joined, kernels that run on some rows at a time
  int64_t copies = 0;       // that were dropped
  std::vector<PropagatedLayout> propagated_layouts;

  std::shared_ptr<const void> names;  // of instructions that were read from text

  // See program_text.cpp for the grammar. parse() throws a ValueError that names the line, also for what
  // verify() refuses; the program cannot be executed.
  std::string text() const;
  static Program parse(std::string_view text);
  // The program as it was before all passes.
  Program recorded() const;
  // For each memory how far from its beginning instructions read or write it.
  std::vector<int64_t> bytes_reached() const;
  // The number of the memory that names the storage: of memories that are one storage, the first.
  uint32_t storage_of(uint32_t memory) const { return memories[memory].recomputes.value_or(memory); }
  // For each memory the instructions of steps that read it, in order.
  std::vector<std::vector<uint32_t>> readers() const;
  // Of several instructions the place of the product or convolution.
  std::optional<size_t> product_of(const Step& step) const;
  bool has_epilogue(const Step& step) const;
  bool has_prologue(const Step& step) const;
  int64_t epilogues() const;
  int64_t prologues() const;
  // Whether `step` has to stay behind `before`.
  bool depends(const Step& step, const Step& before) const;
};

// What is wrong with a program, and at which instruction.
class WT_API Unsound : public Error {
 public:
  Unsound(const std::string& why, const std::string& text, size_t insn)
      : Error("graph: " + why + "\n" + text), why(why), insn(insn) {}
  ~Unsound() override;
  std::string why;
  size_t insn;
};

// Throws an Unsound that names the first instruction which reads or writes through an operand that leaves its
// memory, runs in no step although something needs it, or in two, or runs before what it needs.
void verify(const Program& program);

// Of values that are computed again; of the results of products; of the operands of products.
inline constexpr int64_t kLeastRecomputedBytes = 32 << 10, kLeastEpilogueBytes = 128 << 10,
                         kLeastPrologueBytes = 1 << 20;
// Of kernels that run by rows. What is smaller stays in the last level of a cache from one kernel to the
// next, where more passes over memory take no longer.
inline constexpr int64_t kLeastRowBytes = 16 << 20;

// Which passes build a program, and the least data for which some of them are worth it. Measured: below, what
// preparing an epilogue costs is not gained.
struct ProgramOptions {
  bool drops_copies = true, schedules = true, recomputes = true, fuses = true, fuses_epilogues = true,
       fuses_prologues = true;
  bool tunes = false;  // measures what is faster, for mode="max-autotune"
  int64_t least_recomputed_bytes = kLeastRecomputedBytes, least_epilogue_bytes = kLeastEpilogueBytes,
          least_row_bytes = kLeastRowBytes, least_prologue_bytes = kLeastPrologueBytes;
};

// The passes: each is a file and a row of program_passes().
void remove_dead(Program& program, const ProgramOptions& options = {});
void drop_copies(Program& program, const ProgramOptions& options = {});
void schedule(Program& program, const ProgramOptions& options = {});
void recompute(Program& program, const ProgramOptions& options);  // of values
void fuse(Program& program, const ProgramOptions& options);  // elementwise instructions, and kernels by rows
void fuse_epilogues(Program& program, const ProgramOptions& options);  // of products and convolutions
void fuse_prologues(Program& program, const ProgramOptions& options);  // of what products read

struct ProgramPass {
  enum class Stage : uint8_t { Instructions, Steps, Epilogues };  // the latest that it accepts
  const char* name;
  bool (*wanted)(const ProgramOptions& options);
  void (*run)(Program& program, const ProgramOptions& options);
  Stage stage;
};
// In their order.
WT_API std::span<const ProgramPass> program_passes();
// Runs the pass of that name, and checks the program.
// Throws a ValueError where there is no such pass, or the program is past it.
WT_API void run_pass(Program& program, std::string_view name, const ProgramOptions& options);

// Gives calls the operands that drop_copies() chose.
void rebind(const Program& program, std::vector<Call>& calls);

// Whose kernel runs epilogues.
bool is_product(const Insn& insn);
bool is_convolution(const Insn& insn);
// Why the instruction cannot run on blocks of the product's result, in the product's kernel; null if it can.
const char* refuses_epilogue(const Program& program, const Insn& product, const Insn& insn);
// Why the instruction before the product cannot make the step's rows of its operand there; null if it can.
const char* refuses_prologue(const Program& program, const Step& step, const Insn& insn);

}  // namespace warptape::graph
