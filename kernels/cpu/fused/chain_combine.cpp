// Handlers that follow each other become one: pairs of simple formulas, and runs over at most two operands.

#include "kernels/cpu/fused/chain_program.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int kLeastSavedReads = 3;  // of a run, to be worth its table of operations

class Combiner {
 public:
  Combiner(ChainInsn* insns, const HandlerForm* forms, int begin, int end)
      : insns_(insns), forms_(forms), end_(end), next_(begin), made_(begin) {}

  int combine() {
    while (next_ < end_)
      if (!make_run()) make_pair();
    return made_;
  }

 private:
  uint16_t operand_of(int insn) const { return insns_[insn].place[forms_[insn].in_memory]; }

  // Takes as many as read at most two operands between them; false where that would save little.
  bool make_run() {
    if (!kChainRun) return false;
    uint16_t places[2] = {};
    int operands = 0, reads = 0, count = 0;
    uint8_t operations[6 * kMaxChainSteps + 3 * kMaxChainOutputs + 1];
    for (; next_ + count < end_; ++count) {
      const uint8_t form = forms_[next_ + count].form;
      if (form == kNoForm || form == kStoreForm) break;
      int which = 0;
      if (form_reads(form)) {
        const uint16_t place = operand_of(next_ + count);
        while (which < operands && places[which] != place) ++which;
        if (which == 2) break;
        places[which] = place;
        if (which == operands) ++operands;
        ++reads;
      }
      operations[count] = run_operation(form, which);
    }
    if (reads < operands + kLeastSavedReads) return false;
    if (operands == 1) places[1] = places[0];
    operations[count] = kRunEnd;
    // These fit: there are at most as many bytes as handlers, and one.
    const auto room = int((count + sizeof(ChainInsn)) / sizeof(ChainInsn));
    ChainInsn& run = insns_[made_];
    run = {kChainRun, {places[0], places[1]}, uint16_t(1 + room)};
    std::memcpy(static_cast<void*>(&run + 1), operations, size_t(count) + 1);
    made_ += 1 + room;
    next_ += count;
    return true;
  }

  void make_pair() {
    ChainInsn insn = insns_[next_];
    const HandlerForm a = forms_[next_];
    const HandlerForm b = next_ + 1 < end_ ? forms_[next_ + 1] : HandlerForm{kNoForm, 0};
    if (ChainHandler* both = paired(a.form, b.form, false)) {
      insn.place[0] = insn.place[a.in_memory];
      insn.place[1] = operand_of(++next_);
      ChainHandler* of_one = insn.place[0] == insn.place[1] ? paired(a.form, b.form, true) : nullptr;
      insn.run = of_one ? of_one : both;
    }
    insns_[made_++] = insn;
    ++next_;
  }

  ChainInsn* const insns_;
  const HandlerForm* const forms_;
  const int end_;
  int next_, made_;
};

}  // namespace

int combine_handlers(ChainInsn* insns, const HandlerForm* forms, int begin, int end) {
  return Combiner(insns, forms, begin, end).combine();
}

}  // namespace warptape::kernels::WARPTAPE_ISA
