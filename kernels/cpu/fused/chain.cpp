// Slots "find_chain_formula" and "chain".

#include "kernels/cpu/fused/chain_parts.h"
#include "kernels/cpu/fused/chain_program.h"
#include "kernels/runtime/parallel.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int64_t kCacheBytes = 20 << 10;  // of scratch memory in use at once
constexpr int kFewPlaces = 8;
constexpr int64_t kLeastAtOnce = 512, kMostAtOnce = 2048;  // elements of a tile; multiples of any block

// Elements that a worker takes at once: what elementwise kernels take, less where there are many steps, so
// that their work is shared, too, but not in needlessly many parts.
int64_t grain_of(const ChainPlan& plan) {
  constexpr int64_t kOfOneStep = 32768, kLeast = 2 * kMostAtOnce, kParts = 64;
  const int64_t alike = kOfOneStep * 4 / (3 + plan.steps), parts = plan.numel / kParts;
  const int64_t grain = alike > parts ? alike : parts < kOfOneStep ? parts : kOfOneStep;
  return grain < kLeast ? kLeast : grain / kMostAtOnce * kMostAtOnce;
}

// ---- scratch memory ----
bool is_slot(const ChainProgram& p, int place) { return place >= p.operands.count && p.step[place] != 0; }

// As many elements at once as the first level of the cache has room for.
int64_t elements_at_once(const ChainProgram& p) {
  int64_t bytes = p.tiles.blocks ? 8 : 0;
  for (int e = p.operands.count; e < p.places; ++e) bytes += p.step[e] / kChainBlock;
  for (int k = 0; k < p.operands.count; ++k)
    if (p.tiles.operands[k].access != Access::kDirect) bytes += p.tiles.operands[k].wanted_item;
  if (bytes * kMostAtOnce <= kCacheBytes) return kMostAtOnce;
  const int64_t fit = kCacheBytes / bytes / kChainBlock * kChainBlock;
  return fit < kLeastAtOnce ? kLeastAtOnce : fit;
}

// Where handlers, or one loop without slots, are all there is: slots need hold no more than a block, and
// tiles may be long.
bool runs_in_one(const ChainProgram& p) {
  if (p.tiles.blocks || p.then.count != 1) return false;
  for (int i = 0; i < p.first.count; ++i)
    if (!p.first.items[i].count) return false;
  if (p.then.items[0].handlers) return true;
  for (int e = 0; e < p.places; ++e)
    if (is_slot(p, e)) return false;
  return true;
}

void lay_out_scratch(ChainProgram& p) {
  auto& s = p.tiles;
  const bool in_one = runs_in_one(p);
  s.block = in_one ? kChainBlock : elements_at_once(p);
  p.most = in_one ? p.operands.numel : s.block;
  p.scratch = 0;
  // An odd number of cache lines each, so that slots begin in different sets of the cache.
  const auto reserve = [&](int64_t bytes) {
    const int64_t at = p.scratch;
    p.scratch += ((bytes + 63) / 64 | 1) * 64;
    return uint32_t(at);
  };
  for (int e = p.operands.count; e < p.places; ++e) {
    if (p.at[e]) continue;
    p.offset[e] = reserve(is_slot(p, e) ? p.step[e] / kChainBlock * s.block : kChainBlock * 4);
    if (in_one) p.step[e] = 0;
  }
  for (int k = 0; k < p.operands.count; ++k)
    if (s.operands[k].access != Access::kDirect)
      s.operands[k].buffer = reserve(s.block * s.operands[k].wanted_item);
  s.raw = s.blocks ? reserve(s.block * 8) : 0;
  p.tails = reserve(p.operands.count * kChainBlock * 4);
}

// One thread's part of a chain.
class ChainRun {
 public:
  ChainRun(const LaunchContext& ctx, const ChainProgram& program)
      : ctx_(ctx), p_(program), scratch_(static_cast<char*>(cpu::thread_scratch(size_t(program.scratch)))) {}

  void run(int64_t begin, int64_t end) {
    const auto& tiles = p_.tiles;
    const int count = p_.operands.count, outputs = tiles.outputs;
    for (int e = count; e < p_.places; ++e) places_[e] = p_.at[e] ? p_.at[e] : scratch_ + p_.offset[e];
    run_items(p_.once, 0);
    walk(tiles, begin, end, p_.most, scratch_,
         [&](const auto& at, char* const* operands, int64_t n, const void* const* in, unsigned) {
           for (int k = 0; k < outputs; ++k)
             places_[k] = is_direct(k) ? operands[k] : scratch_ + tiles.operands[k].buffer;
           for (int k = outputs; k < count; ++k)
             places_[k] = const_cast<char*>(static_cast<const char*>(in[k - outputs]));
           run_items(p_.first, n);
           run_items(p_.then, n);
           for (int k = 0; k < outputs; ++k)
             if (!is_direct(k)) finish_output(tiles, k, at, n, scratch_);
         });
  }

 private:
  bool is_direct(int operand) const { return p_.tiles.operands[operand].access == Access::kDirect; }

  void run_items(const auto& items, int64_t n) {
    for (int i = 0; i < items.count; ++i) {
      const ChainItem& item = items.items[i];
      const int64_t count = item.count ? item.count : n;
      if (item.handlers)
        run_handlers(item, count);
      else if (item.convert)
        item.convert(count, places_[item.out], places_[item.in[0]]);
      else
        run_loop(item, count);
    }
  }

  void run_loop(const ChainItem& item, int64_t n) {
    const void* in[kMaxStepInputs] = {};
    for (int k = 0; k < item.inputs; ++k) in[k] = places_[item.in[k]];
    if (item.check_divisor) check_divisor(ctx_, static_cast<const int64_t*>(in[1]), n, item.scalar_mask & 2);
    item.loop(n, places_[item.out], in, item.scalar_mask);
  }

  void run_handlers(const ChainItem& item, int64_t n) {
    constexpr int kLanes = VInt::kLanes;
    alignas(64) char* places[kMaxMovingPlaces + kMaxFixedPlaces];
    alignas(64) int64_t step[kMaxMovingPlaces + kLanes];
    for (int i = 0; i < p_.moving; ++i) {
      places[i] = places_[p_.moving_place[i]];
      step[i] = p_.step[p_.moving_place[i]];
    }
    for (int i = 0; i < kLanes; ++i) step[p_.moving + i] = 0;
    for (int i = 0; i < p_.fixed; ++i) places[kMaxMovingPlaces + i] = places_[p_.fixed_place[i]];
    for (; n >= kChainBlock; n -= kChainBlock) {
      run_block(item, places);
      move_on(places, step);
    }
    if (n > 0) run_tail(item, places, n);
  }

  // A few places are moved one by one, for they were stored so: see one_by_one().
  void move_on(char** places, const int64_t* step) const {
    if (p_.moving <= kFewPlaces)
      for (int i = 0; i < p_.moving; ++i) {
        int64_t by = step[i];
        one_by_one(by);
        places[i] += by;
      }
    else
      for (int i = 0; i < p_.moving; i += VInt::kLanes)
        (VInt::load(places + i) + VInt::load(step + i)).store(places + i);
  }

  // Fewer elements than a block has: operands that are used in place pass through memory of a whole block.
  void run_tail(const ChainItem& item, char** places, int64_t n) {
    char* there[kMaxChainInputs + kMaxChainOutputs];
    const auto each = [&](int end, auto&& move) {
      for (int i = 0; i < p_.moving; ++i) {
        const int k = p_.moving_place[i];
        if (k < end && (item.touched >> k & 1) && is_direct(k))
          move(k, places[i], size_t(n * p_.tiles.operands[k].item));
      }
    };
    each(p_.operands.count, [&](int k, char*& place, size_t bytes) {
      there[k] = place;
      place = scratch_ + p_.tails + k * kChainBlock * 4;
      std::memcpy(place, there[k], bytes);
    });
    run_block(item, places);
    each(p_.tiles.outputs, [&](int k, char*& place, size_t bytes) { std::memcpy(there[k], place, bytes); });
  }

  static void run_block(const ChainItem& item, char* const* places) {
    const ChainVector zero{};
    item.handlers->run(item.handlers, places, zero, zero, zero, zero, zero, zero, zero, zero);
  }

  const LaunchContext& ctx_;
  const ChainProgram& p_;
  char* scratch_;
  char* places_[kMaxChainPlaces];
};

const ChainFormula* find_chain_formula(const LaunchContext&, const char* slot, DType compute,
                                       bool by_number) {
  const StepFormula* found = nullptr;
  if (!std::strcmp(slot, "copy")) {
    found = &kCopyFormulas.f32;
  } else {
    const StepFormulas* of = find_arithmetic(slot);
    for (auto* find : {&find_math, &find_activation, &find_loss})
      if (!of) of = find(slot);
    if (!of || (of->needs_number && !by_number)) return nullptr;
    if (compute == DType::Float32) found = &of->f32;
    if (compute == DType::Float64) found = &of->f64;
    if (compute == DType::Int64) found = &of->i64;
    if (!found || !found->loop) return nullptr;
  }
  return reinterpret_cast<const ChainFormula*>(found);
}
WT_KERNEL(find_chain_formula, find_chain_formula);

// A load that crosses a cache line takes twice as long, and steps read operands again and again: how many
// elements come before one from which on most accesses cross none.
int64_t unaligned_head(const ChainPlan& plan) {
  constexpr int64_t kLine = 64, kItem = 4, kWorthwhile = 4096;
  if (plan.ndim != 1 || plan.numel < kWorthwhile) return 0;
  int accesses[kLine / kItem] = {};
  const auto count = [&](const Operand& op, int times) {
    const auto beyond = int64_t(reinterpret_cast<uintptr_t>(op.data) % kLine);
    if (itemsize(op.dtype) == kItem && op.strides[0] == kItem && beyond % kItem == 0)
      accesses[(kLine - beyond) % kLine / kItem] += times;
  };
  for (int o = 0; o < plan.outputs; ++o) count(plan.output[o].to, 1);
  for (int i = 0; i < plan.steps; ++i)
    for (int k = 0; k < plan.step[i].count; ++k)
      if (const int v = plan.step[i].in[k]; v < plan.inputs && !plan.input[v].host_scalar)
        count(plan.input[v], 1);
  int best = 0;
  for (int head = 1; head < kLine / kItem; ++head)
    if (accesses[head] > accesses[best]) best = head;
  return best;
}

void run_all(const LaunchContext& ctx, const ChainPlan& plan, const ChainProgram& program) {
  const int64_t head = unaligned_head(plan);
  cpu::parallel_for(plan.numel - head, grain_of(plan), [&](int64_t begin, int64_t end) {
    ChainRun run(ctx, program);
    if (begin == 0 && head) run.run(0, head);
    run.run(begin + head, end + head);
  });
}

void chain(const LaunchContext& ctx, const ChainPlan& plan) {
  if (plan.numel == 0) return;
  ChainProgram program;
  build_program(ctx, plan, program);
  lay_out_scratch(program);
  run_all(ctx, plan, program);
}
WT_KERNEL(chain, chain);

}  // namespace

ChainParts::ChainParts(const LaunchContext& ctx, const ChainPlan& plan)
    : ctx_(ctx), plan_(plan), program_(new ChainProgram) {
  build_program(ctx, plan, *program_);
  lay_out_scratch(*program_);
}

ChainParts::~ChainParts() { delete program_; }

void ChainParts::run(int64_t begin, int64_t end) const { ChainRun(ctx_, *program_).run(begin, end); }

void ChainParts::run_all() const { WARPTAPE_ISA::run_all(ctx_, plan_, *program_); }

}  // namespace warptape::kernels::WARPTAPE_ISA
