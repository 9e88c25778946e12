#include "graph/lower/program.h"

#include <chrono>

#include "core/profiler.h"
#include "graph/record/region.h"
#include "graph/run/captured.h"

namespace warptape::graph {
namespace {

int64_t byte_offset(const Tensor& t) { return t.offset() * static_cast<int64_t>(t.itemsize()); }

// A batch may be a view of a data set that begins elsewhere in each call: offsets count from the first byte
// that any call uses, rounded down so that they are whole elements of every dtype.
void find_bases(const std::vector<Call>& calls, const std::vector<Memory*>& operands) {
  for (Memory* m : operands) m->base = m->storage->has_contents() ? INT64_MAX : 0;
  size_t next = 0;
  for (const Call& c : calls)
    for (const auto* list : {&c.in, &c.out})
      for (const Tensor& t : *list) {
        Memory& m = *operands[next++];
        m.base = std::min(m.base, byte_offset(t) & ~int64_t{15});
      }
}

int64_t offset_of(const Memory& m, const Tensor& t) {
  return (byte_offset(t) - m.base) / static_cast<int64_t>(t.itemsize());
}

void add_operand(std::vector<uint64_t>& form, const Tensor& t, Memory& m, uint32_t& next) {
  if (m.number == kNoNumber) m.number = next++;
  const Device device = t.device();
  form.push_back(uint64_t{m.number} << 32 | static_cast<uint64_t>(device.index & 63) << 26 |
                 static_cast<uint64_t>(device.type) << 24 | static_cast<uint64_t>(t.dtype()) << 16 |
                 static_cast<uint64_t>(t.ndim()));
  form.push_back(static_cast<uint64_t>(offset_of(m, t)));
  for (int64_t s : t.sizes()) form.push_back(static_cast<uint64_t>(s));
  for (int64_t s : t.strides()) form.push_back(static_cast<uint64_t>(s));
}

// The calls without numbers, arguments and addresses, as words: two regions with equal words run one program.
// Numbers the memories in the order of their use.
std::vector<uint64_t> form_of(const std::vector<Call>& calls, Memories& memories) {
  for (Memory& m : memories) m.number = kNoNumber;
  const std::vector<Memory*>& operands = memories.of_operands(calls);
  find_bases(calls, operands);
  uint32_t next = 0;
  size_t operand = 0;
  std::vector<uint64_t> form;
  form.reserve(calls.size() * 24);
  for (const Call& c : calls) {
    form.push_back(reinterpret_cast<uint64_t>(c.callee));
    form.push_back(static_cast<uint64_t>(c.kind) | static_cast<uint64_t>(c.compute) << 8 |
                   uint64_t{c.in.size()} << 16 | uint64_t{c.out.size()} << 32 |
                   uint64_t{c.in_backward} << 63);
    uint64_t places = 1;
    for (int8_t at : c.operands) places = places << 8 | static_cast<uint8_t>(at);
    form.push_back(places);
    if (c.kind == CallKind::Kernel) {
      uint64_t results = 1;
      for (int32_t at : c.results) results = results << 8 | static_cast<uint8_t>(at);
      form.push_back(results);
      form.push_back(static_cast<uint64_t>(c.rows));
    }
    for (const auto* list : {&c.in, &c.out})
      for (const Tensor& t : *list) add_operand(form, t, *operands[operand++], next);
  }
  // By number: the order in which the region met the memories may differ between equal forms.
  const size_t calls_end = form.size();
  form.resize(calls_end + (next + 31) / 32);
  for (Memory& m : memories) {
    if (m.number == kNoNumber) continue;
    m.visible = m.storage->use_count() > m.held;
    const uint64_t bits = (m.visible ? 2u : 0u) | (m.storage->has_contents() ? 0u : 1u);
    form[calls_end + m.number / 32] |= bits << (m.number % 32 * 2);
  }
  return form;
}

uint64_t hash_of(const std::vector<uint64_t>& words) {
  uint64_t h = 0x9e3779b97f4a7c15;
  for (uint64_t w : words) {
    h = (h ^ w) * 0xff51afd7ed558ccd;
    h ^= h >> 32;
  }
  return h;
}

Operand operand_of(const Memory& m, const Tensor& t) {
  return {m.number, t.dtype(), offset_of(m, t), t.sizes(), t.strides()};
}

// Which of the instruction's operands are by rows.
void describe_rows(Insn& insn, const Call& call) {
  const KernelInfo& info = call.kernel_info();
  insn.checked = info.index_dim >= 0;
  insn.over = info.over >= 0;
  if (info.rows_in | info.rows_out) insn.rows = call.rows;
  for (size_t k = 0; k < call.operands.size(); ++k) {
    if (call.operands[k] == kIsNumber) continue;
    insn.given_in |= 1u << k;
    insn.rows_in |= (info.rows_in >> k & 1) << call.operands[k];
  }
  for (size_t k = 0; k < call.results.size(); ++k) {
    insn.given_out |= 1u << call.results[k];
    insn.rows_out |= (info.rows_out >> call.results[k] & 1) << k;
  }
}

Program program_of(const std::vector<Call>& calls, const Memories& memories) {
  Program p;
  for (const Memory& m : memories) {
    if (m.number == kNoNumber) continue;
    if (p.memories.size() <= m.number) p.memories.resize(m.number + 1);
    // What was not new may be read by others and was written by others.
    p.memories[m.number] = {m.storage->bytes() - static_cast<size_t>(m.base),
                            m.storage->device(),
                            m.storage->has_contents(),
                            m.visible,
                            {}};
  }
  for (const Call& c : calls) {
    Insn& i = p.insns.emplace_back();
    i.call = static_cast<uint32_t>(p.insns.size() - 1);
    i.kind = c.kind;
    i.compute = c.compute;
    i.in_backward = c.in_backward;
    i.callee = c.callee;
    i.name = c.name();
    if (c.kind == CallKind::Op) i.op = &c.op();
    if (c.kind == CallKind::Backward) i.op = op_of_node(i.name);
    if (c.kind == CallKind::Kernel)
      describe_rows(i, c);
    else
      i.operands = c.operands;
    for (const Tensor& t : c.in) i.in.push_back(operand_of(memories.of(t), t));
    for (const Tensor& t : c.out) i.out.push_back(operand_of(memories.of(t), t));
    p.steps.push_back({{i.call}});
  }
  return p;
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// For each memory that is computed again the call and the output that do so.
std::vector<std::pair<uint32_t, uint32_t>> writers_again(const Program& p) {
  std::vector<std::pair<uint32_t, uint32_t>> out(p.memories.size());
  for (const Insn& insn : p.insns)
    for (uint32_t k = 0; k < insn.out.size(); ++k)
      if (p.memories[insn.out[k].memory].again) out[insn.out[k].memory] = {insn.call, k};
  return out;
}

std::vector<Ends> ends_of(const Program& p, size_t calls) {
  std::vector<Ends> ends(p.steps.size());
  const auto again = writers_again(p);
  std::vector<bool> needed(calls, false);
  // By storage: the name under which later steps use it.
  std::vector<std::optional<uint32_t>> later(p.memories.size());
  for (size_t k = p.steps.size(); k-- > 0;) {
    for (uint32_t i : p.steps[k].insns) {
      const Insn& insn = p.insns[i];
      if (!needed[insn.call]) ends[k].calls.push_back(insn.call);
      needed[insn.call] = true;
      for (const auto* list : {&insn.in, &insn.out})
        for (const Operand& o : *list) {
          std::optional<uint32_t>& name = later[p.storage_of(o.memory)];
          if (name && *name != o.memory) ends[k].storages.push_back(again[*name]);
          name = o.memory;
        }
    }
  }
  return ends;
}

// With `fates`, a program that leaves to backward what is promised.
std::shared_ptr<Executable> build(const std::vector<Call>& calls, const Memories& memories,
                                  std::vector<uint64_t> form, const Programs& passes,
                                  const std::shared_ptr<Fates>& fates) {
  const auto begin = Clock::now();
  auto e = std::make_shared<Executable>();
  e->form = std::move(form);
  e->program = program_of(calls, memories);
  remove_dead(e->program);
  if (passes.drops_copies) drop_copies(e->program);
  if (passes.schedules) schedule(e->program);
  if (fates) e->recipes = plan_promises(e->program, *fates, passes.least_recomputed_bytes);
  if (passes.recomputes) recompute(e->program, passes.least_recomputed_bytes);
  if (passes.fuses) fuse(e->program, passes.least_row_bytes);
  if (passes.fuses && passes.fuses_epilogues)
    fuse_epilogues(e->program, passes.tunes ? 0 : passes.least_epilogue_bytes);
  if (passes.fuses && passes.fuses_prologues) fuse_prologues(e->program, passes.least_prologue_bytes);
  verify(e->program);
  const auto readers = e->program.readers();
  for (const Step& s : e->program.steps) {
    const size_t before = e->program.product_of(s).value_or(0);  // instructions of the prologue
    const bool by_rows =
        before || std::ranges::any_of(s.insns, [&](uint32_t i) { return e->program.insns[i].rows > 0; });
    const bool on_device = !e->program.memories[e->program.insns[s.insns[0]].out[0].memory].device.is_cpu();
    const Step rest{{s.insns.begin() + static_cast<std::ptrdiff_t>(before), s.insns.end()}};
    const bool chained = rest.insns.size() > 1 && (before || !by_rows || on_device);
    e->chains.push_back(chained ? std::make_unique<Chain>(e->program, rest, readers) : nullptr);
    e->rows.push_back(s.insns.size() > 1 && by_rows && !on_device
                          ? std::make_unique<RowStep>(e->program, s, readers)
                          : nullptr);
    if (passes.tunes) e->tunings.push_back(e->program.has_epilogue(s) ? std::make_unique<Tuning>() : nullptr);
  }
  e->ends = ends_of(e->program, calls.size());
  std::vector<bool> runs(calls.size());
  for (const Step& s : e->program.steps)
    for (uint32_t i : s.insns) runs[e->program.insns[i].call] = true;
  for (uint32_t i = 0; i < calls.size(); ++i)
    if (!runs[i]) e->dead.push_back(i);
  if (std::ranges::any_of(e->chains, [](const auto& c) { return c && c->on_device(); })) {
    for (const Step& s : e->program.steps)
      for (uint32_t i : s.insns) e->apart.push_back({{i}});
    std::swap(e->program.steps, e->apart);
    e->ends_apart = ends_of(e->program, calls.size());
    std::swap(e->program.steps, e->apart);
  }
  const auto on_cuda = [](const ProgramMemory& m) { return m.device.is_cuda(); };
  e->on_device = std::ranges::any_of(e->program.memories, on_cuda);
  if (passes.captures && e->on_device) e->captured = std::make_shared<Captured>();
  e->fates = fates ? fates : std::make_shared<Fates>();
  if (!fates && !e->on_device) e->promisable = promisable(e->program, passes.least_recomputed_bytes);
  e->build_seconds = seconds_since(begin);
  return e;
}

}  // namespace

const char* Executable::problem() const {
  for (const auto& c : chains)
    if (const char* why = c ? c->problem() : nullptr) return why;
  return nullptr;
}

bool Executable::waits() const {
  return std::ranges::any_of(chains, [](const auto& c) { return c && c->waits(); });
}

std::string Executable::problem_text() const {
  if (const char* why = problem()) return why;
  const std::string why = captured ? captured->problem() : "";
  return why.empty() ? "" : "not captured: " + why;
}

std::vector<std::string> Executable::tuned() const {
  std::vector<std::string> out;
  for (size_t k = 0; k < tunings.size(); ++k) {
    const auto found = tunings[k] ? tunings[k]->measured() : std::nullopt;
    if (!found) continue;
    const Step& step = program.steps[k];
    const Insn& product = program.insns[step.insns[*program.product_of(step)]];
    const auto [apart, within] = *found;
    out.push_back(message(product.name, " ", AsShape{product.out[0].sizes}, ": ",
                          within <= apart ? "with its epilogue" : "apart", ", ", 1e6 * within, " us with, ",
                          1e6 * apart, " us apart"));
  }
  return out;
}

static std::string name_of(const Program& program, const Step& step) {
  std::string out;
  for (uint32_t i : step.insns) (out += out.empty() ? "" : "+") += program.insns[i].name;
  return out;
}

// Drops what the call holds, which costs less than a new call in its place.
static void let_go(Call& call) {
  call.in.clear();
  call.out.clear();
  call.args.reset();
  call.backward.reset();
}

void Executable::run_step(const Step& step, const Chain* chain, Tuning* tuning, const RowStep* rows,
                          const Ends& ends, std::vector<Call>& calls) const {
  const auto product = program.product_of(step);
  Call& first = calls[program.insns[step.insns[product.value_or(0)]].call];
  const char* asked = first.asked;
  for (uint32_t i : step.insns)
    if (program.insns[i].checked) asked = calls[program.insns[i].call].asked;
  const auto run_alone = [&] { chain ? chain->run(calls, tuning) : graph::run(first); };
  const ProfiledScope profiled([&] { return name_of(program, step); }, EventKind::Kernel);
  try {
    if (rows && product)
      rows->run_before(calls, run_alone);
    else if (rows)
      rows->run(calls);
    else
      run_alone();
  } catch (...) {
    *failed_op = asked;
    throw;
  }
  // Storages first, as calls hold them.
  for (const auto& [call, output] : ends.storages) calls[call].out[output].storage().drop();
  for (uint32_t i : ends.calls) let_go(calls[i]);
}

std::vector<CallUse> Executable::uses(size_t calls) const {
  std::vector<CallUse> out(calls);
  const CallUse all{true, true, ~0u};
  for (size_t k = 0; k < program.steps.size(); ++k) {
    const Step& step = program.steps[k];
    if (chains[k] && !rows[k] && !program.product_of(step))
      chains[k]->mark_uses(out);
    else
      for (uint32_t i : step.insns) out[program.insns[i].call] = all;
    for (const auto& [call, output] : ends[k].storages) out[call] = all;
  }
  for (const Relaid& r : program.relaid) out[r.copy] = out[r.call] = all;
  return out;
}

void Executable::run(std::vector<Call>& calls) const {
  for (uint32_t i : dead) let_go(calls[i]);  // what they hold would keep memory alive
  if (problem())
    for (size_t k = 0; k < apart.size(); ++k)
      run_step(apart[k], nullptr, nullptr, nullptr, ends_apart[k], calls);
  else
    for (size_t k = 0; k < program.steps.size(); ++k)
      run_step(program.steps[k], chains[k].get(), tunings.empty() ? nullptr : tunings[k].get(), rows[k].get(),
               ends[k], calls);
}

std::vector<std::shared_ptr<Executable>> Programs::all() const {
  std::lock_guard lock(mutex_);
  return all_;
}

// The variant of the program that promises what is known to be read by backward alone; the program where
// there is nothing to gain.
std::shared_ptr<Executable> Programs::promising(const std::shared_ptr<Executable>& program,
                                                const std::vector<Call>& calls, const Memories& memories) {
  Fates& fates = *program->fates;
  const auto is_read = [&](uint32_t memory) {
    return program->promising && std::ranges::any_of(program->promising->recipes, [&](const Recipe& r) {
             return std::ranges::find(r.in, memory) != r.in.end();
           });
  };
  for (const Memory& m : memories)
    if (m.storage->exported() && fates.exposed.insert(m.number).second) fates.changed |= is_read(m.number);
  fates.exposed.erase(kNoNumber);
  if (std::exchange(fates.changed, false)) {
    std::erase(all_, program->promising);
    auto made = build(calls, memories, {}, *this, program->fates);
    program->promising = made->recipes.empty() ? nullptr : made;
    if (program->promising) all_.push_back(made);
  }
  return program->promising ? program->promising : program;
}

void Programs::make_room() {
  const auto oldest = std::ranges::min_element(by_hash_, {}, [](const auto& p) { return p.second->found; });
  const auto is_it = [&](const auto& e) { return e == oldest->second || e == oldest->second->promising; };
  std::erase_if(all_, is_it);
  by_hash_.erase(oldest);
}

std::shared_ptr<Executable> Programs::find(const std::vector<Call>& calls, Memories& memories,
                                           bool promises) {
  std::vector<uint64_t> form = form_of(calls, memories);
  const RegionLock fates(promise_mutex());
  std::lock_guard lock(mutex_);
  const bool promise = promises && this->promises && recomputes;
  const auto chosen = [&] {
    last_->found = ++finds_;
    return promise ? promising(last_, calls, memories) : last_;
  };
  if (last_ && last_->form == form) return chosen();
  const uint64_t hash = hash_of(form);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto at = begin; at != end; ++at)
    if (at->second->form == form) {
      last_ = at->second;
      return chosen();
    }
  auto made = build(calls, memories, std::move(form), *this, nullptr);
  if (by_hash_.size() >= kMost) make_room();
  made->found = ++finds_;
  by_hash_.emplace(hash, made);
  all_.push_back(made);
  return last_ = made;
}

std::vector<std::unique_ptr<Promise>> Programs::run(Executable& program, std::vector<Call>& calls) {
  ++program.runs;
  rebind(program.program, calls);
  auto promises = make_promises(program.recipes, program.fates, calls);
  if (program.captured && !program.waits())
    program.captured->run(program, calls);
  else
    program.run(calls);
  return promises;
}

}  // namespace warptape::graph
