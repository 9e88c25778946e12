// Planning, attaching and running what is computed again: see Note [Rematerialization].
#include "graph/record/rematerialize.h"

#include <functional>

#include "autograd/engine.h"
#include "graph/ir/liveness.h"
#include "graph/ir/storage_state.h"
#include "graph/record/scope.h"

namespace warptape::graph {

// Read with the lock held, but for whether there is one.
struct RematState {
  std::unique_ptr<Remat> maker;  // null: the storage has its contents
  std::vector<Remat*> readers;
  std::shared_ptr<UseSummary> use_summary;
  uint32_t in_program = 0;  // the number of the memory there
};

namespace {

RematState& make_remat_state(Storage& s) {
  if (RematState* h = remat_state(s)) return *h;
  auto* h = new RematState;
  set_remat_state(s, h);
  return *h;
}

void drop_if_idle(Storage& s) {
  RematState* h = remat_state(s);
  if (!h || h->maker || !h->readers.empty() || h->use_summary) return;
  set_remat_state(s, nullptr);
  delete h;
}

void record_reader(Storage& s) {
  RematState* h = remat_state(s);
  if (!h || !h->use_summary) return;
  h->use_summary->add(h->in_program, in_backward_pass());
  h->use_summary.reset();  // who reads first counts
}

// The Remat, which no storage refers to any more.
std::unique_ptr<Remat> detach(Storage& s) {
  std::unique_ptr<Remat> p = std::move(remat_state(s)->maker);
  for (const Tensor& t : p->call.in) {
    RematState* from = remat_state(t.storage());
    if (!from) continue;  // it is read twice
    std::erase(from->readers, p.get());
    drop_if_idle(t.storage());
  }
  drop_if_idle(s);
  return p;
}

void check_versions(const Remat& p) {
  for (size_t k = 0; k < p.call.in.size(); ++k)
    WT_CHECK(p.call.in[k].version() == p.versions[k], Error,
             "compile: a tensor from which a value for backward is computed again was changed in place by "
             "code that did not say so before");
}

Tensor alias_of(const Tensor& t) { return alias(t); }

std::unique_ptr<Remat> compute(Remat& p) {
  check_versions(p);
  const Paused paused;
  run(p.call);
  p.of->materialize(p.call.out[p.which].storage());
  return detach(*p.of);
}

bool is_ready(const Remat& p) {
  return std::ranges::none_of(p.call.in, [](const Tensor& t) { return t.storage().is_deferred(); });
}

Remat* maker_of(const Storage& s) {
  const RematState* h = remat_state(s);
  return h ? h->maker.get() : nullptr;
}

// Runs Remats as long as next() has one. What they read is made ready without the lock, for it may have to
// wait for another thread.
void compute_all(const std::function<Remat*()>& next) {
  for (;;) {
    SmallVector<Tensor, 3> wanted;
    std::unique_ptr<Remat> done;  // what it held goes without the lock
    {
      const RegionLock lock(remat_mutex());
      Remat* p = next();
      if (!p) return;
      if (is_ready(*p))
        done = compute(*p);
      else
        wanted = p->call.in;
    }
    for (const Tensor& t : wanted) {
      compute_all([&] { return maker_of(t.storage()); });  // nobody else read it
      t.data();
    }
  }
}

}  // namespace

void UseSummary::add(uint32_t memory, bool by_backward) {
  const auto [use, is_new] = read.try_emplace(memory);
  if (is_new) use->second.order = static_cast<uint32_t>(read.size());
  changed |= is_new || use->second.early < !by_backward;
  use->second.early |= !by_backward;
}

RegionMutex& remat_mutex() {
  static auto* const mutex = new RegionMutex;  // storages may go at the process's end
  return *mutex;
}

std::vector<std::unique_ptr<Remat>> make_remats(const std::vector<RematCall>& remat_calls,
                                                const std::shared_ptr<UseSummary>& use_summary,
                                                std::vector<Call>& calls) {
  std::vector<std::unique_ptr<Remat>> remats;
  if (remat_calls.empty()) return remats;
  const auto memory_like = [](const Tensor& t) { return Storage::deferred(t.storage().bytes(), t.device()); };
  std::unordered_map<const Storage*, Ref<Storage>> stand_ins;
  for (const RematCall& r : remat_calls) {
    const Call& call = calls[r.call];
    const Tensor& of = call.out[r.which];
    auto& p = remats.emplace_back(
        new Remat{copy_of(call, alias_of), r.which, &of.storage(), use_summary, r.memory, {}});
    for (const Tensor& t : call.in) p->call.in.push_back(alias(t));
    for (const Tensor& t : call.out) p->call.out.push_back(on_storage(memory_like(t), t));
    stand_ins.emplace(&of.storage(), memory_like(of));
  }
  for (Call& call : calls) {
    for (size_t k = 0; k < call.in.size(); ++k)
      if (const auto at = stand_ins.find(&call.in[k].storage()); at != stand_ins.end())
        call.replace_input(k, on_storage(at->second, call.in[k]));
    for (Tensor& t : call.out)
      if (const auto at = stand_ins.find(&t.storage()); at != stand_ins.end()) t = on_storage(at->second, t);
  }
  return remats;
}

void attach_remat(Storage& s, std::unique_ptr<Remat> remat) {
  const RegionLock lock(remat_mutex());
  RematState& h = make_remat_state(s);
  remat->of = &s;
  h.use_summary = remat->use_summary;
  h.in_program = remat->memory;
  for (const Tensor& t : remat->call.in) {
    make_remat_state(t.storage()).readers.push_back(remat.get());
    remat->versions.push_back(t.version());
  }
  h.maker = std::move(remat);
}

void watch(Storage& s, std::shared_ptr<UseSummary> use_summary, uint32_t memory) {
  const RegionLock lock(remat_mutex());
  RematState& h = make_remat_state(s);
  h.use_summary = std::move(use_summary);
  h.in_program = memory;
}

bool is_rematerialized(const Storage& s) {
  const RegionLock lock(remat_mutex());
  return maker_of(s) != nullptr;
}

SmallVector<Tensor, 3> remat_inputs(const Storage& s) {
  const RegionLock lock(remat_mutex());
  const RematState* h = remat_state(s);
  return h && h->maker ? h->maker->call.in : SmallVector<Tensor, 3>();
}

std::unique_ptr<Remat> detach_remat(Storage& s) {
  const RegionLock lock(remat_mutex());
  record_reader(s);
  const RematState* h = remat_state(s);
  if (h && h->maker) {
    check_versions(*h->maker);
    return detach(s);
  }
  drop_if_idle(s);
  return {};
}

void rematerialize(Storage& s) {
  compute_all([&]() -> Remat* {
    record_reader(s);
    return maker_of(s);
  });
}

void rematerialize_dependents(Storage& s) {
  if (is_rematerialized(s)) rematerialize(s);
  compute_all([&]() -> Remat* {
    const RematState* h = remat_state(s);
    if (!h || h->readers.empty()) return nullptr;
    Remat* p = h->readers.back();
    p->use_summary->add(p->memory, in_backward_pass());
    return p;
  });
}

void complete(Storage& s) {
  if (remat_state(s)) rematerialize(s);
  if (!s.is_deferred()) return;
  WT_CHECK(!s.is_lost(), Error,
           "this tensor was not computed: a call of its compiled region that came before it failed");
  s.materialize();
}

void remat_storage_gone(Storage& s) {
  std::unique_ptr<Remat> gone;
  const RegionLock lock(remat_mutex());
  RematState* h = remat_state(s);
  if (!h) return;
  h->use_summary.reset();
  if (h->maker)
    gone = detach(s);
  else
    drop_if_idle(s);
}

// ---- which values are computed again --------------------------------------------------------------------

namespace {

constexpr uint32_t kNoCall = UINT32_MAX;  // of instructions that stand for what comes after the program

bool can_repeat(const Insn& insn) {
  return insn.kind == CallKind::Elementwise || (insn.kind == CallKind::Kernel && insn.rows);
}

void append(Program& p, std::vector<uint32_t> in, const std::vector<uint32_t>& out) {
  Insn insn{};
  insn.call = kNoCall;
  insn.kind = CallKind::Op;
  insn.name = "after";
  for (uint32_t m : in) insn.in.push_back(Operand{m, DType::UInt8, 0, {}, {}});
  for (uint32_t m : out) insn.out.push_back(Operand{m, DType::UInt8, 0, {}, {}});
  p.steps.push_back({{static_cast<uint32_t>(p.insns.size())}});
  p.insns.push_back(std::move(insn));
}

// The program with what comes after it: a place that has the most in use, as backward's beginning has, and
// backward's reads in their order. What is seen outside for these alone is a temporary.
Program with_backward(const Program& program, const UseSummary& use_summary, int64_t least_bytes) {
  Program p = program;
  std::map<uint32_t, uint32_t> reads;  // memories, by order
  for (const Step& s : program.steps) {
    const Insn& insn = program.insns[s.insns[0]];
    if (!can_repeat(insn)) continue;
    for (const Operand& o : insn.out) {
      ProgramMemory& m = p.memories[o.memory];
      const auto use = use_summary.read.find(o.memory);
      const bool for_backward = use != use_summary.read.end() && !use->second.early;
      if (m.in || !m.out || (!for_backward && static_cast<int64_t>(m.bytes) >= least_bytes)) continue;
      m.out = false;
      if (for_backward) reads[use->second.order] = o.memory;
    }
  }
  std::vector<uint32_t> written{static_cast<uint32_t>(p.memories.size())};
  written.insert(written.end(), use_summary.exposed.begin(), use_summary.exposed.end());
  const std::vector<int64_t> profile = Liveness(p).profile();
  const int64_t most = profile.empty() ? 0 : std::ranges::max(profile);
  p.memories.emplace_back().bytes = static_cast<size_t>(most) + 1;
  append(p, {}, written);
  for (const auto& [order, memory] : reads) append(p, {memory}, {});
  return p;
}

}  // namespace

std::vector<uint32_t> rematerializable(const Program& program, const ProgramOptions& options) {
  std::vector<uint32_t> out;
  for (const Step& s : program.steps)
    for (uint32_t i : s.insns)
      for (const Operand& o : program.insns[i].out) {
        const ProgramMemory& m = program.memories[o.memory];
        if (can_repeat(program.insns[i]) && !program.insns[i].in_backward && m.out && !m.in &&
            static_cast<int64_t>(m.bytes) >= options.least_recomputed_bytes)
          out.push_back(o.memory);
      }
  return out;
}

std::vector<RematCall> plan_remats(Program& program, const UseSummary& use_summary,
                                   const ProgramOptions& options) {
  const int64_t least_bytes = options.least_recomputed_bytes;
  Program p = with_backward(program, use_summary, least_bytes);
  recompute(p, options);
  std::vector<RematCall> remat_calls;
  std::vector<bool> rematerialized(program.memories.size());
  bool after = false;
  for (const Step& s : p.steps) {
    const Insn& insn = p.insns[s.insns[0]];
    after |= insn.call == kNoCall;
    if (!after || insn.call == kNoCall) continue;
    for (uint32_t k = 0; k < insn.out.size(); ++k) {
      const uint32_t m = p.storage_of(insn.out[k].memory);
      const bool small = static_cast<int64_t>(program.memories[m].bytes) < least_bytes;
      // What is computed and dropped several times is computed once, for its storage is the tape's.
      if (rematerialized[m] || (program.memories[m].out && small)) continue;
      RematCall& r = remat_calls.emplace_back(RematCall{insn.call, k, m, {}});
      for (const Operand& o : insn.in) r.in.push_back(p.storage_of(o.memory));
      rematerialized[m] = true;
    }
  }
  for (const RematCall& r : remat_calls) program.memories[r.memory].out = false;
  for (const RematCall& r : remat_calls)
    for (uint32_t m : r.in) program.memories[m].out |= !rematerialized[m];
  return remat_calls;
}

}  // namespace warptape::graph
