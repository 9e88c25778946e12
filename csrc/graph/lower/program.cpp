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

void add_operand(std::vector<uint64_t>& key, const Tensor& t, Memory& m, uint32_t& next) {
  if (m.number == kNoNumber) m.number = next++;
  const Device device = t.device();
  key.push_back(uint64_t{m.number} << 32 | static_cast<uint64_t>(device.index & 63) << 26 |
                static_cast<uint64_t>(device.type) << 24 | static_cast<uint64_t>(t.dtype()) << 16 |
                static_cast<uint64_t>(t.ndim()));
  key.push_back(static_cast<uint64_t>(offset_of(m, t)));
  for (int64_t s : t.sizes()) key.push_back(static_cast<uint64_t>(s));
  for (int64_t s : t.strides()) key.push_back(static_cast<uint64_t>(s));
}

// The calls without numbers, arguments and addresses, as words: two regions with equal words run one program.
// Numbers the memories in the order of their use.
std::vector<uint64_t> key_of(const std::vector<Call>& calls, Memories& memories) {
  for (Memory& m : memories) m.number = kNoNumber;
  const std::vector<Memory*>& operands = memories.of_operands(calls);
  find_bases(calls, operands);
  uint32_t next = 0;
  size_t operand = 0;
  std::vector<uint64_t> key;
  key.reserve(calls.size() * 24);
  for (const Call& c : calls) {
    key.push_back(reinterpret_cast<uint64_t>(c.callee));
    key.push_back(static_cast<uint64_t>(c.kind) | static_cast<uint64_t>(c.compute) << 8 |
                  uint64_t{c.in.size()} << 16 | uint64_t{c.out.size()} << 32 | uint64_t{c.in_backward} << 63);
    uint64_t operand_word = 1;
    for (int8_t at : c.operands) operand_word = operand_word << 8 | static_cast<uint8_t>(at);
    key.push_back(operand_word);
    if (c.kind == CallKind::Kernel) {
      uint64_t results = 1;
      for (int32_t at : c.results) results = results << 8 | static_cast<uint8_t>(at);
      key.push_back(results);
      key.push_back(static_cast<uint64_t>(c.rows));
    }
    for (const auto* list : {&c.in, &c.out})
      for (const Tensor& t : *list) add_operand(key, t, *operands[operand++], next);
  }
  // By number: the order in which the region found the memories may differ between equal keys.
  const size_t calls_end = key.size();
  key.resize(calls_end + (next + 31) / 32);
  for (Memory& m : memories) {
    if (m.number == kNoNumber) continue;
    m.visible = m.storage->use_count() > m.references;
    const uint64_t bits = (m.visible ? 2u : 0u) | (m.storage->has_contents() ? 0u : 1u);
    key[calls_end + m.number / 32] |= bits << (m.number % 32 * 2);
  }
  return key;
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
    insn.present_in |= 1u << k;
    insn.rows_in |= (info.rows_in >> k & 1) << call.operands[k];
  }
  for (size_t k = 0; k < call.results.size(); ++k) {
    insn.present_out |= 1u << call.results[k];
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
    i.copies = c.callee == &copy_kernel();
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
std::vector<std::pair<uint32_t, uint32_t>> recomputing_writers(const Program& p) {
  std::vector<std::pair<uint32_t, uint32_t>> out(p.memories.size());
  for (const Insn& insn : p.insns)
    for (uint32_t k = 0; k < insn.out.size(); ++k)
      if (p.memories[insn.out[k].memory].recomputes) out[insn.out[k].memory] = {insn.call, k};
  return out;
}

std::vector<Ends> ends_of(const Program& p, size_t calls) {
  std::vector<Ends> ends(p.steps.size());
  const auto recomputes = recomputing_writers(p);
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
          if (name && *name != o.memory) ends[k].storages.push_back(recomputes[*name]);
          name = o.memory;
        }
    }
  }
  return ends;
}

// With `use_summary`, a program that leaves out what backward can compute again.
std::shared_ptr<Executable> build(const std::vector<Call>& calls, const Memories& memories,
                                  std::vector<uint64_t> key, const Programs& passes,
                                  const std::shared_ptr<UseSummary>& use_summary) {
  const auto begin = Clock::now();
  auto e = std::make_shared<Executable>();
  e->key = std::move(key);
  e->program = program_of(calls, memories);
  for (const ProgramPass& pass : program_passes()) {
    if (pass.run == recompute && use_summary) e->remat_calls = plan_remats(e->program, *use_summary, passes);
    if (pass.wanted(passes)) pass.run(e->program, passes);
  }
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
  e->use_summary = use_summary ? use_summary : std::make_shared<UseSummary>();
  if (!use_summary && !e->on_device) e->rematerializable = rematerializable(e->program, passes);
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

// Drops what the call holds, which costs less than a new call.
static void clear_references(Call& call) {
  call.in.clear();
  call.out.clear();
  call.args.reset();
  call.backward.reset();
}

void Executable::run_step(const Step& step, const Chain* chain, Tuning* tuning, const RowStep* rows,
                          const Ends& ends, std::vector<Call>& calls) const {
  const auto product = program.product_of(step);
  Call& first = calls[program.insns[step.insns[product.value_or(0)]].call];
  const char* public_op = first.public_op;
  for (uint32_t i : step.insns)
    if (program.insns[i].checked) public_op = calls[program.insns[i].call].public_op;
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
    *failed_op = public_op;
    throw;
  }
  // Storages first, as calls hold them.
  for (const auto& [call, output] : ends.storages) calls[call].out[output].storage().drop();
  for (uint32_t i : ends.calls) clear_references(calls[i]);
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
  for (const PropagatedLayout& r : program.propagated_layouts) out[r.copy] = out[r.call] = all;
  return out;
}

void Executable::run(std::vector<Call>& calls) const {
  for (uint32_t i : dead) clear_references(calls[i]);  // what they hold would keep memory alive
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

// The variant of the program that leaves out what is known to be read by backward alone; the program where
// there is nothing to gain.
std::shared_ptr<Executable> Programs::rematerializing(const std::shared_ptr<Executable>& program,
                                                      const std::vector<Call>& calls,
                                                      const Memories& memories) {
  UseSummary& use_summary = *program->use_summary;
  const auto is_read = [&](uint32_t memory) {
    return program->rematerializing &&
           std::ranges::any_of(program->rematerializing->remat_calls, [&](const RematCall& r) {
             return std::ranges::find(r.in, memory) != r.in.end();
           });
  };
  for (const Memory& m : memories)
    if (m.storage->exported() && use_summary.exposed.insert(m.number).second)
      use_summary.changed |= is_read(m.number);
  use_summary.exposed.erase(kNoNumber);
  if (std::exchange(use_summary.changed, false)) {
    std::erase(all_, program->rematerializing);
    auto built = build(calls, memories, {}, *this, program->use_summary);
    program->rematerializing = built->remat_calls.empty() ? nullptr : built;
    if (program->rematerializing) all_.push_back(built);
  }
  return program->rematerializing ? program->rematerializing : program;
}

void Programs::evict_oldest() {
  const auto oldest = std::ranges::min_element(by_hash_, {}, [](const auto& p) { return p.second->found; });
  const auto is_it = [&](const auto& e) {
    return e == oldest->second || e == oldest->second->rematerializing;
  };
  std::erase_if(all_, is_it);
  by_hash_.erase(oldest);
}

std::shared_ptr<Executable> Programs::find(const std::vector<Call>& calls, Memories& memories,
                                           bool may_rematerialize) {
  std::vector<uint64_t> key = key_of(calls, memories);
  const RegionLock remat_lock(remat_mutex());
  std::lock_guard lock(mutex_);
  const bool use_remats = may_rematerialize && rematerializes && recomputes;
  const auto chosen = [&] {
    last_->found = ++finds_;
    return use_remats ? rematerializing(last_, calls, memories) : last_;
  };
  if (last_ && last_->key == key) return chosen();
  const uint64_t hash = hash_of(key);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto at = begin; at != end; ++at)
    if (at->second->key == key) {
      last_ = at->second;
      return chosen();
    }
  auto built = build(calls, memories, std::move(key), *this, nullptr);
  if (by_hash_.size() >= kMost) evict_oldest();
  built->found = ++finds_;
  by_hash_.emplace(hash, built);
  all_.push_back(built);
  return last_ = built;
}

std::vector<std::unique_ptr<Remat>> Programs::run(Executable& program, std::vector<Call>& calls) {
  ++program.runs;
  rebind(program.program, calls);
  auto remats = make_remats(program.remat_calls, program.use_summary, calls);
  if (program.captured && !program.waits())
    program.captured->run(program, calls);
  else
    program.run(calls);
  return remats;
}

}  // namespace warptape::graph
