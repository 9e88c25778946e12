// From a plan to a program: which values stay in registers, where the others are held and when a step's
// operands are converted.

#include "kernels/cpu/fused/chain_program.h"

namespace warptape::kernels::WARPTAPE_ISA {

constinit const StepFormulas kCopyFormulas{};

namespace {

constexpr int kAtEnd = kMaxChainSteps;  // as a step: after all others
constexpr int64_t kLongRow = 256;       // elements; shorter rows are taken several at a time

// In what a value of that dtype is held.
WT_FN DType held_as(DType t) {
  if (t == DType::Bool || t == DType::Float64) return t;
  if (is_complex(t)) refuse_compute_dtype(t);
  return is_floating(t) ? DType::Float32 : DType::Int64;
}

WT_FN int kind_of(DType held) {
  return held == DType::Float32 ? 0 : held == DType::Bool ? 1 : held == DType::Float64 ? 2 : 3;
}

struct ChainValue {
  DType dtype, held;
  bool number;  // one value, known now
  bool single;  // one value for a tile
  bool input;
  int same_as;         // the value that this one is a copy of, else itself
  int last;            // step that uses it last; -1: none
  uint16_t place[4];   // by kind; of what it is not held as, there may be copies
  uint16_t spread[4];  // of one value, as many as a block has
};

class ChainBuilder {
 public:
  ChainBuilder(const LaunchContext& ctx, const ChainPlan& plan, ChainProgram& program)
      : ctx_(ctx), plan_(plan), p_(program) {}

  void build() {
    add_operands();
    describe_values();
    find_last_uses();
    plan_tiles();
    for (step_ = 0; step_ < plan_.steps; ++step_) {
      if (value(result()).same_as == result()) add_step(plan_.step[step_]);
      free_slots();
    }
    step_ = kAtEnd;
    add_late_outputs();
    end_handlers();
  }

 private:
  // ---- values ----
  ChainValue& value(int v) { return values_[v]; }
  int result() const { return kMaxChainInputs + step_; }
  static const StepFormula& formula_of(const ChainStep& s) {
    return *reinterpret_cast<const StepFormula*>(s.formula);
  }

  void describe(int v, DType dtype) {
    ChainValue& x = value(v);
    x = ChainValue{dtype, held_as(dtype), false, false, false, v, -1, {}, {}};
    for (int kind = 0; kind < 4; ++kind) x.place[kind] = x.spread[kind] = kNoPlace;
  }

  void describe_values() {
    for (int k = 0; k < plan_.inputs; ++k) {
      describe(k, plan_.input[k].dtype);
      ChainValue& x = value(k);
      x.input = true;
      x.number = x.single = input_operand_[k] < 0;
      if (x.number)
        x.place[kind_of(x.held)] = add_number(plan_.input[k].data, x.dtype, x.dtype, x.held);
      else
        x.place[kind_of(x.held)] = uint16_t(input_operand_[k]);
    }
    for (step_ = 0; step_ < plan_.steps; ++step_) {
      const ChainStep& s = plan_.step[step_];
      describe(result(), s.result);
      ChainValue& x = value(result());
      x.number = true;
      for (int k = 0; k < s.count; ++k) x.number &= value(root(s.in[k])).number;
      // A copy that changes nothing: to the same dtype, or to a wider one that is held alike.
      const ChainValue& from = value(root(s.in[0]));
      if (!formula_of(s).loop && x.held == from.held && (x.dtype == from.dtype || x.dtype == x.held)) {
        x.same_as = root(s.in[0]);
        x.number = false;
      }
      x.single = x.number;
    }
  }

  int root(int v) { return value(v).same_as; }

  void find_last_uses() {
    for (int i = 0; i < plan_.steps; ++i)
      for (int k = 0; k < plan_.step[i].count; ++k) value(root(plan_.step[i].in[k])).last = i;
    for (int o = 0; o < plan_.outputs; ++o) {
      output_value_[o] = root(plan_.output[o].value);
      ChainValue& x = value(output_value_[o]);
      output_late_[o] = x.input || x.number;
      if (output_late_[o]) x.last = kAtEnd;
    }
    for (int o = 0; o < plan_.outputs; ++o) {
      const int v = output_value_[o];
      if (output_late_[o] || !overwrites_later_input(o, v - kMaxChainInputs)) continue;
      output_late_[o] = true;
      value(v).last = kAtEnd;
    }
  }

  // ---- operands ----
  static bool is_number(const ChainPlan& plan, const Operand& op) {
    if (op.host_scalar || plan.numel == 1) return true;
    return all_zero(op.strides, plan.ndim);
  }

  void add_operands() {
    ChainOperands& all = p_.operands;
    all.ndim = plan_.ndim;
    all.numel = plan_.numel;
    for (int d = 0; d < plan_.ndim; ++d) all.sizes[d] = plan_.sizes[d];
    all.count = 0;
    for (int o = 0; o < plan_.outputs; ++o) all.operands[all.count++] = plan_.output[o].to;
    for (int k = 0; k < plan_.inputs; ++k) {
      input_operand_[k] = is_number(plan_, plan_.input[k]) ? -1 : all.count;
      if (input_operand_[k] >= 0) all.operands[all.count++] = plan_.input[k];
    }
    if (all.ndim == 0) {  // a row of one
      all.ndim = 1;
      all.sizes[0] = 1;
      for (int k = 0; k < all.count; ++k)
        all.operands[k].strides[0] = int64_t(itemsize(all.operands[k].dtype));
    }
    p_.places = all.count;
    p_.moving = p_.fixed = 0;
  }

  void plan_tiles() {
    auto& s = p_.tiles;
    const ChainOperands& all = p_.operands;
    s.plan = &all;
    s.outputs = plan_.outputs;
    s.rows = all.ndim == 1 || all.sizes[all.ndim - 1] >= kLongRow;
    s.blocks = false;
    for (int k = 0; k < all.count; ++k) {
      const bool output = k < plan_.outputs;
      const DType held = output ? value(output_value_[k]).held : held_as(all.operands[k].dtype);
      OperandPlan& how = s.operands[k];
      how = plan_operand(all, all.operands[k], held, output, s.rows);
      p_.step[k] = how.access == Access::kScalar ? 0 : kChainBlock * int64_t(how.wanted_item);
      s.blocks |= how.access == Access::kConvert || how.access == Access::kGather;
    }
    for (int k = 0; k < plan_.inputs; ++k)
      if (input_operand_[k] >= 0) value(k).single = s.operands[input_operand_[k]].access == Access::kScalar;
  }

  // True if the operand is written in place while an input in the same memory is still to be read.
  bool overwrites_later_input(int output, int step) {
    const ChainOperands& all = p_.operands;
    for (int k = 0; k < plan_.inputs; ++k) {
      if (input_operand_[k] < 0 || value(k).last <= step) continue;
      if (all.operands[input_operand_[k]].data == all.operands[output].data) return true;
    }
    return false;
  }

  // ---- places ----
  uint16_t new_place(int64_t step) {
    const int e = p_.places++;
    p_.at[e] = nullptr;
    p_.step[e] = step;
    return uint16_t(e);
  }

  static int64_t item_of(int kind) { return kind == 0 ? 4 : kind == 1 ? 1 : 8; }

  uint16_t new_slot(int kind) { return new_place(kChainBlock * item_of(kind)); }
  uint16_t slot(int kind) { return free_count_[kind] ? free_[kind][--free_count_[kind]] : new_slot(kind); }

  // The results' slots of values that no later step uses.
  void free_slots() {
    const ChainStep& s = plan_.step[step_];
    for (int k = 0; k < s.count; ++k) free_slots_of(root(s.in[k]));
    free_slots_of(root(result()));
  }
  void free_slots_of(int v) {
    ChainValue& x = value(v);
    if (x.last > step_ || x.single) return;
    for (int kind = 0; kind < 4; ++kind) {
      const uint16_t e = x.place[kind];
      if (e == kNoPlace || e < p_.operands.count) continue;
      free_[kind][free_count_[kind]++] = e;
      x.place[kind] = kNoPlace;
    }
  }

  // `data`, of dtype `from`, rounded to `dtype` and converted to `to`.
  uint16_t add_number(const char* data, DType from, DType dtype, DType to) {
    const uint16_t e = new_place(0);
    char rounded[16];
    converter(from, dtype)(1, rounded, data);
    p_.at[e] = p_.numbers[numbers_++];
    converter(dtype, to)(1, p_.at[e], rounded);
    return e;
  }

  void add_convert(ChainItem& item, DType from, DType to, uint16_t in, uint16_t out, bool single) {
    item.convert = converter(from, to);
    item.in[0] = in;
    item.inputs = 1;
    item.out = out;
    item.count = single ? 1 : 0;
  }

  // Where v is in memory as `wanted`.
  uint16_t place_of(int v, DType wanted) {
    ChainValue& x = value(v);
    const int kind = kind_of(wanted);
    if (x.place[kind] != kNoPlace) return x.place[kind];
    if (wanted == x.held) return save();  // it is in registers
    const uint16_t from = place_of(v, x.held);
    if (x.number) return x.place[kind] = add_number(p_.at[from], x.held, x.held, wanted);
    if (!x.input) {
      end_handlers();
      x.place[kind] = slot(kind);
      add_convert(p_.then.add(), x.held, wanted, from, x.place[kind], false);
    } else {  // before all steps, so in a slot that none of them has had
      x.place[kind] = x.single ? new_place(0) : new_slot(kind);
      add_convert(p_.first.add(), x.held, wanted, from, x.place[kind], x.single);
    }
    return x.place[kind];
  }

  // The same for a handler, which reads whole blocks.
  uint16_t block_of(int v, DType wanted) {
    const uint16_t e = place_of(v, wanted);
    ChainValue& x = value(v);
    if (!x.single) return e;
    uint16_t& spread = x.spread[kind_of(wanted)];
    if (spread != kNoPlace) return spread;
    const int64_t item = item_of(kind_of(wanted));
    spread = new_place(0);
    ChainItem& fill = x.number ? p_.once.add() : p_.first.add();
    set_loop(fill, copy_loop(size_t(item)), 1, spread);
    fill.in[0] = e;
    fill.scalar_mask = 1;
    fill.count = kChainBlock;
    return spread;
  }

  void set_loop(ChainItem& item, LoopFn* loop, int inputs, uint16_t out) {
    item.loop = loop;
    item.inputs = uint8_t(inputs);
    item.out = out;
  }

  // ---- handlers ----
  ChainInsn& emit(ChainHandler* handler, uint8_t form = kNoForm, uint8_t in_memory = 0) {
    if (!open_) {
      open_ = &p_.then.add();
      open_->handlers = p_.insns + insns_;
    }
    forms_[insns_] = {form, in_memory};
    ChainInsn& insn = p_.insns[insns_++];
    insn.run = handler;
    return insn;
  }
  // The number that handlers have for a place.
  uint16_t index_of(uint16_t e) {
    if (e < p_.operands.count) open_->touched |= uint64_t{1} << e;
    if (!indexed_[e]) {
      const bool moves = p_.step[e] != 0;
      indexed_[e] = true;
      index_[e] = uint16_t(moves ? p_.moving : kMaxMovingPlaces + p_.fixed);
      (moves ? p_.moving_place[p_.moving++] : p_.fixed_place[p_.fixed++]) = e;
    }
    return index_[e];
  }
  void emit_move(ChainHandler* handler, uint16_t e) {
    ChainInsn& insn = emit(handler, handler == kChainLoad ? kLoadForm : kStoreForm);
    insn.place[0] = index_of(e);
    if (handler == kChainStore) stored_ = e;
  }

  // The value in registers goes to a slot.
  uint16_t save() {
    const uint16_t e = slot(0);
    emit_move(kChainStore, e);
    return value(in_registers_).place[0] = e;
  }
  void save_if_used_from(int step) {
    if (in_registers_ >= 0 && value(in_registers_).last >= step && value(in_registers_).place[0] == kNoPlace)
      save();
  }

  void end_handlers() {
    if (!open_) return;
    save_if_used_from(step_);
    if (!replace_lone_handler()) {
      const auto begin = int(open_->handlers - p_.insns);
      insns_ = combine_handlers(p_.insns, forms_, begin, insns_);
      p_.insns[insns_++] = kChainEnd;
    }
    open_ = nullptr;
    in_registers_ = -1;
  }

  // One step between a load and a store is faster as a loop over the tile.
  bool replace_lone_handler() {
    const ChainInsn* first = open_->handlers;
    const auto count = p_.insns + insns_ - first;
    if (count != (lone_predicate_ ? 2 : 3) || first->run != kChainLoad || first[1].run != lone_handler_)
      return false;
    if (!lone_predicate_) {
      if (first[2].run != kChainStore) return false;
      lone_.out = stored_;
    }
    *open_ = lone_;
    insns_ -= int(count);
    return true;
  }

  // ---- outputs ----
  // Where step_'s result, held as that, is to be left by a loop or a predicate.
  uint16_t destination(int v) {
    const int kind = kind_of(value(v).held);
    for (int o = 0; o < plan_.outputs; ++o) {
      if (output_value_[o] != v || output_late_[o] || output_done_[o]) continue;
      output_done_[o] = true;
      return value(v).place[kind] = uint16_t(o);
    }
    return value(v).place[kind] = slot(kind);
  }

  // To those outputs of v that do not have it yet.
  void publish(int v) {
    for (int o = 0; o < plan_.outputs; ++o) {
      if (output_value_[o] != v || output_late_[o] || output_done_[o]) continue;
      output_done_[o] = true;
      if (in_registers_ == v) {
        emit_move(kChainStore, uint16_t(o));
        if (value(v).place[0] == kNoPlace) value(v).place[0] = uint16_t(o);
      } else {
        add_move(v, uint16_t(o));
      }
    }
  }

  void add_move(int v, uint16_t to) {
    const ChainValue& x = value(v);
    const uint16_t from = place_of(v, x.held);
    end_handlers();
    ChainItem& item = p_.then.add();
    set_loop(item, copy_loop(itemsize(x.held)), 1, to);
    item.in[0] = from;
    item.scalar_mask = x.single;
  }

  void add_late_outputs() {
    for (int inputs = 1; inputs >= 0; --inputs) {  // inputs first: other outputs may overwrite them
      for (int o = 0; o < plan_.outputs; ++o) {
        const int v = output_value_[o];
        if (output_done_[o] || value(v).input != bool(inputs)) continue;
        output_done_[o] = true;
        if (value(v).held != DType::Float32) {
          add_move(v, uint16_t(o));
          continue;
        }
        load(v);
        emit_move(kChainStore, uint16_t(o));
      }
    }
  }

  void load(int v) {
    if (in_registers_ == v) return;
    const uint16_t e = block_of(v, DType::Float32);
    save_if_used_from(step_);
    emit_move(kChainLoad, e);
    in_registers_ = v;
  }

  // ---- steps ----
  static ChainHandler* rounding(DType dtype) {
    return dtype == DType::BFloat16 ? kRoundBFloat16 : dtype == DType::Float16 ? kRoundHalf : nullptr;
  }

  // The result in registers is rounded for later steps; storing it does that by itself.
  void round_for_later(int v) {
    const DType dtype = value(v).dtype;
    bool later = value(v).last > step_;
    for (int o = 0; o < plan_.outputs; ++o)
      later |= output_value_[o] == v && p_.operands.operands[o].dtype != dtype;
    if (ChainHandler* handler = later ? rounding(dtype) : nullptr) emit(handler);
  }

  static DType operand_type(const StepFormula& f, int k) {
    return f.mask_first && k == 0 ? DType::Bool : f.compute;
  }

  void add_step(const ChainStep& s) {
    const StepFormula& f = formula_of(s);
    if (value(result()).number) return add_number(s, f);
    if (!f.loop) return add_cast(s);
    const DType from = f.predicate ? DType::Bool : f.compute;
    if (f.handlers && (from == s.result || (!f.predicate && rounding(s.result))))
      add_handler(s, f);
    else
      add_loop(s, f, from);
  }

  // Of numbers alone: computed now.
  void add_number(const ChainStep& s, const StepFormula& f) {
    ChainValue& x = value(result());
    const void* in[kMaxStepInputs] = {};
    for (int k = 0; k < s.count; ++k) {
      const int v = root(s.in[k]);
      in[k] = p_.at[place_of(v, f.loop ? operand_type(f, k) : value(v).held)];
    }
    DType from = value(root(s.in[0])).held;
    char computed[16];
    if (f.loop) {
      from = f.predicate ? DType::Bool : f.compute;
      if (f.divides_integers) check_divisor(ctx_, static_cast<const int64_t*>(in[1]), 1, true);
      // Of one element no op's kernel treats operands as scalars, unless it has to convert the result.
      f.loop(1, computed, in, from == s.result ? 0 : ~0u);
      in[0] = computed;
    }
    x.place[kind_of(x.held)] = add_number(static_cast<const char*>(in[0]), from, x.dtype, x.held);
  }

  void add_cast(const ChainStep& s) {
    const int from = root(s.in[0]), v = result();
    ChainValue& x = value(v);
    if (value(from).held == DType::Float32 && rounding(x.dtype)) {
      load(from);
      save_if_used_from(step_ + 1);
      round_for_later(v);
      in_registers_ = v;
      publish(v);
    } else {
      const bool single = value(from).single;
      const uint16_t e = single ? block_of_any(from) : place_of(from, value(from).held);
      end_handlers();
      add_rounding(value(from).held, e, v);
      publish(v);
    }
  }

  // A tile full of a single value.
  uint16_t block_of_any(int v) {
    const ChainValue& x = value(v);
    const int kind = kind_of(x.held);
    const uint16_t from = place_of(v, x.held), e = new_slot(kind);
    ChainItem& fill = p_.first.add();
    set_loop(fill, copy_loop(itemsize(x.held)), 1, e);
    fill.in[0] = from;
    fill.scalar_mask = 1;
    return e;
  }

  // From `e`, which has values of dtype `from`, to v: as stored in its dtype and loaded again.
  void add_rounding(DType from, uint16_t e, int v) {
    const ChainValue& x = value(v);
    if (x.dtype == x.held) return add_convert(p_.then.add(), from, x.held, e, destination(v), false);
    const uint16_t narrow = slot(2);
    add_convert(p_.then.add(), from, x.dtype, e, narrow, false);
    add_convert(p_.then.add(), x.dtype, x.held, narrow, destination(v), false);
    free_[2][free_count_[2]++] = narrow;
  }

  void add_handler(const ChainStep& s, const StepFormula& f) {
    const ChainHandlers& h = *f.handlers;
    const int v = result();
    const auto wanted = [&](int k) { return operand_type(f, k); };
    // Conversions first: they end what is in registers.
    for (int k = 0; k < s.count; ++k)
      if (root(s.in[k]) != in_registers_ || wanted(k) != DType::Float32) place_of(root(s.in[k]), wanted(k));
    int at = h.first;
    if (h.with[1] && root(s.in[at]) != in_registers_ && root(s.in[at + 1]) == in_registers_) ++at;
    const int there = root(s.in[at]);
    uint16_t places[kMaxStepInputs] = {};
    for (int k = 0; k < s.count; ++k)
      if (k != at) places[k] = block_of(root(s.in[k]), wanted(k));
    const bool loads = in_registers_ != there;
    load(there);
    if (!f.predicate) save_if_used_from(step_ + 1);
    const uint16_t out = f.predicate ? destination(v) : uint16_t{0};
    const int which = at - h.first;
    ChainInsn& insn = emit(h.with[which], h.form[which], uint8_t(1 - at));
    for (int k = 0; k < s.count; ++k)
      if (k != at) insn.place[k] = index_of(places[k]);
    if (loads) describe_lone(s, f, insn, out);
    if (f.predicate) {
      insn.out = index_of(out);
    } else {
      round_for_later(v);
      in_registers_ = v;
    }
    publish(v);
  }

  // The step as a loop, should its handler stay the only one.
  void describe_lone(const ChainStep& s, const StepFormula& f, const ChainInsn& insn, uint16_t out) {
    lone_handler_ = insn.run;
    lone_predicate_ = f.predicate;
    lone_ = ChainItem{};
    set_loop(lone_, f.loop, s.count, out);
    for (int k = 0; k < s.count; ++k) {
      const int v = root(s.in[k]);
      lone_.in[k] = place_of(v, operand_type(f, k));
      lone_.scalar_mask |= uint8_t(value(v).single << k);
    }
  }

  void add_loop(const ChainStep& s, const StepFormula& f, DType from) {
    const int v = result();
    uint16_t places[kMaxStepInputs] = {};
    unsigned scalars = 0;
    for (int k = 0; k < s.count; ++k) {
      places[k] = place_of(root(s.in[k]), operand_type(f, k));
      scalars |= unsigned(value(root(s.in[k])).single) << k;
    }
    end_handlers();
    const bool exact = from == s.result;
    ChainItem& item = p_.then.add();
    set_loop(item, f.loop, s.count, exact ? destination(v) : slot(kind_of(from)));
    for (int k = 0; k < s.count; ++k) item.in[k] = places[k];
    item.scalar_mask = uint8_t(scalars);
    item.check_divisor = f.divides_integers;
    if (!exact) {
      add_rounding(from, item.out, v);
      free_[kind_of(from)][free_count_[kind_of(from)]++] = item.out;
    }
    publish(v);
  }

  const LaunchContext& ctx_;
  const ChainPlan& plan_;
  ChainProgram& p_;
  int step_ = 0, insns_ = 0, numbers_ = 0;
  HandlerForm forms_[sizeof(ChainProgram::insns) / sizeof(ChainInsn)];
  int in_registers_ = -1;                 // which value
  ChainItem* open_ = nullptr;             // the item that takes handlers
  ChainHandler* lone_handler_ = nullptr;  // that could as well be this:
  ChainItem lone_;
  bool lone_predicate_ = false;
  uint16_t stored_ = 0;  // to where registers were last
  int input_operand_[kMaxChainInputs];
  int output_value_[kMaxChainOutputs];
  bool output_late_[kMaxChainOutputs], output_done_[kMaxChainOutputs] = {};
  int free_count_[4] = {};
  bool indexed_[kMaxChainPlaces] = {};
  uint16_t index_[kMaxChainPlaces];
  uint16_t free_[4][2 * kMaxChainValues];
  ChainValue values_[kMaxChainValues];
};

}  // namespace

void build_program(const LaunchContext& ctx, const ChainPlan& plan, ChainProgram& program) {
  ChainBuilder(ctx, plan, program).build();
}

}  // namespace warptape::kernels::WARPTAPE_ISA
