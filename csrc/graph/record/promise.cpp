// Giving, taking and fulfilling promises: see Note [Promises].
#include "graph/record/promise.h"

#include <functional>

#include "autograd/engine.h"
#include "graph/ir/liveness.h"
#include "graph/record/scope.h"

namespace warptape::graph {
namespace {

// What Storage::promise points to. Read with the lock held, but for whether there is one.
struct Held {
  std::unique_ptr<Promise> maker;  // null: the storage has its contents
  std::vector<Promise*> readers;
  std::shared_ptr<Fates> fates;
  uint32_t in_program = 0;  // the number of the memory there
};

Held* held_by(const Storage& s) { return static_cast<Held*>(s.promise.load(std::memory_order_relaxed)); }

Held& make_held(Storage& s) {
  if (Held* h = held_by(s)) return *h;
  auto* h = new Held;
  s.promise.store(h, std::memory_order_release);
  return *h;
}

void drop_if_idle(Storage& s) {
  Held* h = held_by(s);
  if (!h || h->maker || !h->readers.empty() || h->fates) return;
  s.promise.store(nullptr, std::memory_order_release);
  delete h;
}

void note_reader(Storage& s) {
  Held* h = held_by(s);
  if (!h || !h->fates) return;
  h->fates->add(h->in_program, in_backward_pass());
  h->fates.reset();  // who reads first counts
}

// The promise, which nobody has to keep any more.
std::unique_ptr<Promise> detach(Storage& s) {
  std::unique_ptr<Promise> p = std::move(held_by(s)->maker);
  for (const Tensor& t : p->call.in) {
    Held* from = held_by(t.storage());
    if (!from) continue;  // it is read twice
    std::erase(from->readers, p.get());
    drop_if_idle(t.storage());
  }
  drop_if_idle(s);
  return p;
}

void check_versions(const Promise& p) {
  for (size_t k = 0; k < p.call.in.size(); ++k)
    WT_CHECK(p.call.in[k].version() == p.versions[k], Error,
             "compile: a tensor from which a value for backward is computed again was changed in place by "
             "code that did not say so before");
}

Tensor alias_of(const Tensor& t) { return alias(t); }

std::unique_ptr<Promise> compute(Promise& p) {
  check_versions(p);
  const Paused paused;
  run(p.call);
  p.of->materialize(p.call.out[p.which].storage());
  return detach(*p.of);
}

bool is_ready(const Promise& p) {
  return std::ranges::none_of(p.call.in, [](const Tensor& t) { return t.storage().is_deferred(); });
}

Promise* maker_of(const Storage& s) {
  const Held* h = held_by(s);
  return h ? h->maker.get() : nullptr;
}

// Computes promises as long as next() has one. What they read is made ready without the lock, for it may have
// to wait for another thread.
void compute_all(const std::function<Promise*()>& next) {
  for (;;) {
    SmallVector<Tensor, 3> wanted;
    std::unique_ptr<Promise> done;  // what it held goes without the lock
    {
      const RegionLock lock(promise_mutex());
      Promise* p = next();
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

void Fates::add(uint32_t memory, bool by_backward) {
  const auto [fate, is_new] = read.try_emplace(memory);
  if (is_new) fate->second.order = static_cast<uint32_t>(read.size());
  changed |= is_new || fate->second.early < !by_backward;
  fate->second.early |= !by_backward;
}

RegionMutex& promise_mutex() {
  static auto* const mutex = new RegionMutex;  // storages may go at the process's end
  return *mutex;
}

std::vector<std::unique_ptr<Promise>> make_promises(const std::vector<Recipe>& recipes,
                                                    const std::shared_ptr<Fates>& fates,
                                                    std::vector<Call>& calls) {
  std::vector<std::unique_ptr<Promise>> promises;
  if (recipes.empty()) return promises;
  const auto memory_like = [](const Tensor& t) { return Storage::deferred(t.storage().bytes(), t.device()); };
  std::unordered_map<const Storage*, Ref<Storage>> stand_ins;
  for (const Recipe& r : recipes) {
    const Call& call = calls[r.call];
    const Tensor& of = call.out[r.which];
    auto& p = promises.emplace_back(
        new Promise{copy_of(call, alias_of), r.which, &of.storage(), fates, r.memory, {}});
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
  return promises;
}

void give_promise(Storage& s, std::unique_ptr<Promise> promise) {
  const RegionLock lock(promise_mutex());
  Held& h = make_held(s);
  promise->of = &s;
  h.fates = promise->fates;
  h.in_program = promise->memory;
  for (const Tensor& t : promise->call.in) {
    make_held(t.storage()).readers.push_back(promise.get());
    promise->versions.push_back(t.version());
  }
  h.maker = std::move(promise);
}

void watch(Storage& s, std::shared_ptr<Fates> fates, uint32_t memory) {
  const RegionLock lock(promise_mutex());
  Held& h = make_held(s);
  h.fates = std::move(fates);
  h.in_program = memory;
}

bool is_promised(const Storage& s) {
  const RegionLock lock(promise_mutex());
  return maker_of(s) != nullptr;
}

SmallVector<Tensor, 3> read_by_promise(const Storage& s) {
  const RegionLock lock(promise_mutex());
  const Held* h = held_by(s);
  return h && h->maker ? h->maker->call.in : SmallVector<Tensor, 3>();
}

std::unique_ptr<Promise> take_promise(Storage& s) {
  const RegionLock lock(promise_mutex());
  note_reader(s);
  const Held* h = held_by(s);
  if (h && h->maker) {
    check_versions(*h->maker);
    return detach(s);
  }
  drop_if_idle(s);
  return {};
}

void fulfil_promise(Storage& s) {
  compute_all([&]() -> Promise* {
    note_reader(s);
    return maker_of(s);
  });
}

void fulfil_promises_on(Storage& s) {
  if (is_promised(s)) fulfil_promise(s);
  compute_all([&]() -> Promise* {
    const Held* h = held_by(s);
    if (!h || h->readers.empty()) return nullptr;
    Promise* p = h->readers.back();
    p->fates->add(p->memory, in_backward_pass());
    return p;
  });
}

void complete(Storage& s) {
  if (s.promise.load(std::memory_order_acquire)) fulfil_promise(s);
  if (!s.is_deferred()) return;
  WT_CHECK(!s.is_lost(), Error,
           "this tensor was not computed: a call of its compiled region that came before it failed");
  s.materialize();
}

void promised_storage_gone(Storage& s) {
  std::unique_ptr<Promise> gone;
  const RegionLock lock(promise_mutex());
  Held* h = held_by(s);
  if (!h) return;
  h->fates.reset();
  if (h->maker)
    gone = detach(s);
  else
    drop_if_idle(s);
}

// ---- which values are promised --------------------------------------------------------------------------

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
Program with_backward(const Program& program, const Fates& fates, int64_t least_bytes) {
  Program p = program;
  std::map<uint32_t, uint32_t> reads;  // memories, by order
  for (const Step& s : program.steps) {
    const Insn& insn = program.insns[s.insns[0]];
    if (!can_repeat(insn)) continue;
    for (const Operand& o : insn.out) {
      ProgramMemory& m = p.memories[o.memory];
      const auto fate = fates.read.find(o.memory);
      const bool for_backward = fate != fates.read.end() && !fate->second.early;
      if (m.in || !m.out || (!for_backward && static_cast<int64_t>(m.bytes) >= least_bytes)) continue;
      m.out = false;
      if (for_backward) reads[fate->second.order] = o.memory;
    }
  }
  std::vector<uint32_t> written{static_cast<uint32_t>(p.memories.size())};
  written.insert(written.end(), fates.exposed.begin(), fates.exposed.end());
  const std::vector<int64_t> profile = Liveness(p).profile();
  const int64_t most = profile.empty() ? 0 : std::ranges::max(profile);
  p.memories.emplace_back().bytes = static_cast<size_t>(most) + 1;
  append(p, {}, written);
  for (const auto& [order, memory] : reads) append(p, {memory}, {});
  return p;
}

}  // namespace

std::vector<uint32_t> promisable(const Program& program, int64_t least_bytes) {
  std::vector<uint32_t> out;
  for (const Step& s : program.steps)
    for (uint32_t i : s.insns)
      for (const Operand& o : program.insns[i].out) {
        const ProgramMemory& m = program.memories[o.memory];
        if (can_repeat(program.insns[i]) && !program.insns[i].in_backward && m.out && !m.in &&
            static_cast<int64_t>(m.bytes) >= least_bytes)
          out.push_back(o.memory);
      }
  return out;
}

std::vector<Recipe> plan_promises(Program& program, const Fates& fates, int64_t least_bytes) {
  Program p = with_backward(program, fates, least_bytes);
  recompute(p, least_bytes);
  std::vector<Recipe> recipes;
  std::vector<bool> promised(program.memories.size());
  bool after = false;
  for (const Step& s : p.steps) {
    const Insn& insn = p.insns[s.insns[0]];
    after |= insn.call == kNoCall;
    if (!after || insn.call == kNoCall) continue;
    for (uint32_t k = 0; k < insn.out.size(); ++k) {
      const uint32_t m = p.storage_of(insn.out[k].memory);
      const bool small = static_cast<int64_t>(program.memories[m].bytes) < least_bytes;
      // What is computed and dropped several times is computed once, for its storage is the tape's.
      if (promised[m] || (program.memories[m].out && small)) continue;
      Recipe& r = recipes.emplace_back(Recipe{insn.call, k, m, {}});
      for (const Operand& o : insn.in) r.in.push_back(p.storage_of(o.memory));
      promised[m] = true;
    }
  }
  for (const Recipe& r : recipes) program.memories[r.memory].out = false;
  for (const Recipe& r : recipes)
    for (uint32_t m : r.in) program.memories[m].out |= !promised[m];
  return recipes;
}

}  // namespace warptape::graph
