#include "graph/region.h"

#include "autograd/engine.h"
#include "core/profiler.h"
#include "graph/scope.h"

namespace warptape::graph {

void (*wait_for)(RegionMutex& mutex) = [](RegionMutex& mutex) { mutex.lock(); };

GilHooks gil_hooks;

Region& Region::of_thread() {
  thread_local Region region;
  return region;
}

void Region::around_backward(bool begins) {
  Region& r = of_thread();
  if (!begins) return r.leave();
  if (!r.compiled_) r.compiled_ = std::make_shared<Compiled>();
  if (r.depth_++) return;
  if (r.sample_.choice && r.sample_.choice->saw_backward()) r.sample_.turn.timed = false;
  r.sample_.backward = true;
  r.begin();
}

bool Region::enter(std::shared_ptr<Compiled> compiled) {
  if (depth_) return ++depth_;
  Choice& choice = compiled->choices.of(thread_state.grad_mode);
  const bool continues = sample_.turn.timed && sample_.choice == &choice && !sample_.backward &&
                         choice.continues(sample_.turn, sample_.calls);
  if (sample_.turn.timed && !continues) sample_.choice->add(sample_.turn.way, sample_.seconds, sample_.built);
  compiled_ = std::move(compiled);
  if (continues) {
    ++sample_.calls;
  } else {
    sample_ = {.choice = &choice};
    if (compiled_->adaptive && !compiled_->fullgraph) sample_.turn = choice.next();
  }
  ++compiled_->counts.calls;
  if (sample_.turn.way == Way::Eager && !sample_.turn.timed) return false;
  ++depth_;
  begin();
  return true;
}

void Region::begin() {
  if (sample_.turn.way == Way::Noted) {
    thread_state.deferral = this;
    thread_state.dispatch |= kCapture;
  } else {
    times_backward = sample_.turn.timed;
  }
  if (sample_.turn.timed) sample_.since = std::chrono::steady_clock::now();
}

void Region::leave() {
  if (--depth_) return;
  struct AtEnd {
    Region& region;
    ~AtEnd() { region.finish(); }
  } at_end{*this};
  if (sample_.turn.way == Way::Eager) return;
  thread_state.deferral = nullptr;
  thread_state.dispatch &= ~kCapture;
  RegionLock lock(mutex_);
  if (!memories_.empty()) run_pending();
}

void Region::finish() {
  times_backward = false;
  if (!sample_.turn.timed) return;
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - sample_.since;
  sample_.seconds += spent.count();
}

bool Region::set_capture(bool on) {
  const bool was = thread_state.deferral != nullptr;
  if (!entered()) return was;
  if (recording_ && !on) recording_->refuse("it calls what torch.compiler.disable keeps out");
  thread_state.deferral = on ? this : nullptr;
  thread_state.dispatch = on ? thread_state.dispatch | kCapture : thread_state.dispatch & ~kCapture;
  return was;
}

thread_local const char* failed_op = nullptr;

Call& Region::add(CallKind kind, const void* callee) {
  Call& call = calls_.emplace_back();
  call.kind = kind;
  call.callee = callee;
  call.in_backward = in_backward_pass();
  // Python does not know private ops by name.
  if (!scopes_.empty() && scopes_.front()->is_op && *scopes_.front()->name != '_')
    call.asked = scopes_.front()->name;
  return call;
}

bool (*seen_by_others)(const Storage& s) = [](const Storage& s) { return s.exported() && !s.shared(); };

Memory& Region::memory_of(Storage& s, bool is_new) {
  exposed_ |= s.exported() && seen_by_others(s);
  if (s.pending) {
    auto& m = *static_cast<Memory*>(s.pending);
    // Another region's: what is pending there comes first.
    if (m.region == this) return m;
    if (m.region || !m.promise || is_promised(s)) force_storage(s);
  }
  if (s.device().is_cuda()) note_stream(s.device());
  Memory& m = memories_.emplace_back();
  m.region = this;
  m.storage = &s;
  m.number = static_cast<uint32_t>(memories_.size() - 1);
  m.depth = static_cast<uint32_t>(scopes_.size());
  std::optional<RegionLock> promises;
  if (!is_new) promises.emplace(promise_mutex());  // else there is no promise yet
  m.promise = promise_of(s);
  s.pending = &m;
  return m;
}

void Region::note_stream(Device device) {
  for (const auto& [known, stream] : streams_)
    if (known == device) return;
  streams_.emplace_back(device, runtime_of(device.type).current_stream(device.index));
}

// Makes the streams current for the calling thread. Where they are another thread's, wait() is for what they
// were given: this thread may have waited for them before.
class InStreams {
 public:
  explicit InStreams(const std::vector<std::pair<Device, StreamHandle>>& streams) {
    for (const auto& [device, stream] : streams) {
      DeviceRuntime& runtime = runtime_of(device.type);
      const StreamHandle before = runtime.current_stream(device.index);
      if (before == stream) continue;
      before_.emplace_back(device, before);
      runtime.set_current_stream(device.index, stream);
    }
  }
  void wait() const {
    for (const auto& [device, before] : before_) {
      DeviceRuntime& runtime = runtime_of(device.type);
      runtime.synchronize_stream(device.index, runtime.current_stream(device.index));
    }
  }
  ~InStreams() {
    for (const auto& [device, stream] : before_)
      runtime_of(device.type).set_current_stream(device.index, stream);
  }
  InStreams(const InStreams&) = delete;
  InStreams& operator=(const InStreams&) = delete;

 private:
  std::vector<std::pair<Device, StreamHandle>> before_;
};

void Region::made(Storage& s) {
  RegionLock lock(mutex_);
  memory_of(s, true).state = Memory::State::Unwritten;
}

// Before a call is noted that reads the tensor: what computes it, if it is promised, is noted as well. Not
// inside of a scope, which may take back what it notes.
void Region::meet(const Tensor& t) {
  if (!t.defined() || !t.storage().pending) return;
  Storage& s = t.storage();
  if (!static_cast<const Memory*>(s.pending)->promise) return;
  if (!scopes_.empty() || recording_) {
    if (is_promised(s)) force_storage(s);
    return;
  }
  const RegionLock lock(mutex_);
  for (const Tensor& input : read_by_promise(s)) {
    meet(input);
    memory_of(input.storage());
  }
  const RegionLock promises(promise_mutex());
  const std::unique_ptr<Promise> promise = take_promise(s);
  if (!promise) return;
  Call& call = calls_.emplace_back(std::move(promise->call));
  call.in_backward = in_backward_pass();
  const auto in = std::exchange(call.in, {}), out = std::exchange(call.out, {});
  for (const Tensor& from : in) read(call, from);
  for (size_t k = 0; k < out.size(); ++k)
    write(call, k == promise->which ? on_storage(t->storage, out[k]) : out[k]);
}

// Before somebody writes to the storage.
void Region::settle_promises(const Tensor& t) {
  if (!t.defined() || !t.storage().pending) return;
  if (static_cast<const Memory*>(t.storage().pending)->promise) fulfil_promises_on(t.storage());
}

void Region::storage_gone(Memory& m) { m.storage = nullptr; }

size_t Region::held(const Storage& s) const {
  return s.pending ? static_cast<const Memory*>(s.pending)->held : 0;
}

Tensor Region::hold(const Tensor& t) {
  if (!t.defined()) return {};
  ++memory_of(t.storage()).held;
  return alias(t);
}

void Region::read(Call& call, const Tensor& t) {
  Memory& m = memory_of(t.storage());
  // What an op made and has not written, a kernel that was skipped was to write.
  if (m.state == Memory::State::Unwritten && m.depth && m.depth <= scopes_.size())
    scopes_[m.depth - 1]->poisoned = true;
  call.in.push_back(hold(t));
}

void Region::write(Call& call, const Tensor& t) {
  Memory& m = memory_of(t.storage());
  if (m.state == Memory::State::Read) t.storage().put_aside();
  m.state = Memory::State::Written;
  call.out.push_back(hold(t));
}

bool Region::in_whole() const { return !scopes_.empty() && scopes_.back()->whole; }

// A launch inside of an op that is noted as a whole.
void Region::skip(const Tensor& out) {
  if (memory_of(out.storage()).state == Memory::State::Read && !out.storage().is_deferred()) throw NotWhole{};
  scopes_.back()->skipped = true;
}

void Region::elementwise(ElementwiseSlot& slot, DType compute, const Tensor& out,
                         std::span<const ElementwiseInput> inputs) {
  RegionLock lock(mutex_);
  if (in_whole()) return skip(out);
  for (const ElementwiseInput& in : inputs)
    if (in.tensor) meet(*in.tensor);
  settle_promises(out);
  Call& call = add(CallKind::Elementwise, &slot);
  call.compute = compute;
  for (const ElementwiseInput& in : inputs) {
    call.operands.push_back(in.tensor ? static_cast<int8_t>(call.in.size()) : kIsNumber);
    if (in.tensor)
      read(call, *in.tensor);
    else
      call.numbers.push_back(in.scalar);
  }
  write(call, out);
  settle();
}

void Region::sum_to(const Tensor& out, const Tensor& t) {
  RegionLock lock(mutex_);
  if (in_whole()) return skip(out);
  meet(t);
  settle_promises(out);
  Call& call = add(CallKind::SumTo, nullptr);
  read(call, t);
  write(call, out);
  settle();
}

void Region::kernel(const KernelInfo& info, std::span<const Tensor> in, std::span<const Tensor> out,
                    int64_t rows, const KernelFunction& f) {
  RegionLock lock(mutex_);
  if (in_whole()) {
    for (const Tensor& t : out)
      if (t.defined()) skip(t);
    return;
  }
  for (const Tensor& t : in) meet(t);
  for (const Tensor& t : out) settle_promises(t);
  Call& call = add(CallKind::Kernel, &info);
  call.kernel = f;
  call.rows = rows;
  for (const Tensor& t : in) {
    call.operands.push_back(t.defined() ? static_cast<int8_t>(call.in.size()) : int8_t{kIsNumber});
    if (t.defined()) read(call, t);
  }
  for (size_t k = 0; k < out.size(); ++k) {
    if (!out[k].defined()) continue;
    write(call, out[k]);
    call.results.push_back(static_cast<int16_t>(k));
  }
  settle();
}

// NumPy may read or write what it sees at any time, without a call that is seen here: what touches it cannot
// wait.
void Region::settle() {
  if (!exposed_ || !scopes_.empty()) return;
  if (recording_) recording_->refuse("NumPy or somebody else sees memory that it uses");
  RegionLock lock(mutex_);
  run_pending();
}

// The calls from number `count` on were a try.
void Region::truncate(size_t count) {
  const uint32_t made = scopes_.empty() ? 0 : scopes_.back()->memories;
  while (calls_.size() > count) {
    for (const auto* list : {&calls_.back().in, &calls_.back().out})
      for (const Tensor& t : *list) --static_cast<Memory*>(t.storage().pending)->held;
    for (const Tensor& t : calls_.back().out) {
      auto& m = *static_cast<Memory*>(t.storage().pending);
      if (m.number >= made && !t.storage().data()) m.state = Memory::State::Unwritten;
    }
    calls_.pop_back();
  }
}

void Region::force(Storage& s) {
  RegionLock lock(mutex_);
  if (!s.pending) return;  // another thread was faster
  auto& m = *static_cast<Memory*>(s.pending);
  if (!scopes_.empty()) {
    // An op asks for data. Before it has done anything, what is pending runs and the op goes on; else it is
    // run from its beginning without being noted.
    const Scope& outermost = *scopes_.front();
    if (m.state == Memory::State::Unwritten || calls_.size() > outermost.calls ||
        memories_.size() > outermost.memories || outermost.skipped || thread_state.asked_meta)
      throw NotDeferrable{};
  }
  flush();
}

void Region::flush() {
  if (recording_) recording_->refuse("a value is read before its end");
  RegionLock lock(mutex_);
  if (memories_.empty()) return;
  if (depth_) {
    ++compiled_->counts.reads;
    if (!scopes_.empty()) ++compiled_->counts.read_by[scopes_.front()->name];
    WT_CHECK(!compiled_->fullgraph || calls_.empty(), Error,
             "compile: with fullgraph=True no value may be read before the end of the compiled function; "
             "this line reads one (item(), print, bool(), numpy() and the like)");
  }
  run_pending();
}

// Ends what is known of the storages. Those that a failure left unwritten stay deferred, and raise when they
// are read.
void Region::release(std::deque<Memory>& memories, bool failed) {
  static Memory lost;
  const RegionLock promises(promise_mutex());
  for (Memory& m : memories) {
    if (!m.storage) continue;
    Storage& s = *m.storage;
    s.pending = m.promise;
    if (!s.is_deferred() || is_promised(s)) continue;
    if (m.state == Memory::State::Written && failed)
      s.pending = &lost;
    else
      s.materialize();
  }
}

// Whether the run is one in which it is watched who reads its results. Most are read by the same code every
// time: what is not read by then is looked at now and then.
static bool watches(const Executable& program) { return program.runs <= 8 || program.runs % 64 == 0; }

// See Note [Promises].
void Region::leave_to_backward(const Executable& program, std::vector<std::unique_ptr<Promise>> promises,
                               const std::deque<Memory>& memories) {
  const bool watched = !program.promisable.empty() && !recording_ && watches(program);
  if (promises.empty() && !watched) return;
  std::vector<const Memory*> numbered(program.program.memories.size());
  for (const Memory& m : memories)
    if (m.number < numbered.size()) numbered[m.number] = &m;
  // Those that read others' first: with what nobody needs goes what it reads.
  for (auto p = promises.rbegin(); p != promises.rend(); ++p) {
    if (Storage* s = numbered[(*p)->memory]->storage) give_promise(*s, std::move(*p));
    p->reset();
  }
  for (uint32_t memory : program.promisable)
    if (Storage* s = numbered[memory]->storage; watched && s) watch(*s, program.fates, memory);
}

void Region::run_pending() {
  const WithoutGil without_gil;
  std::vector<Call> calls = std::exchange(calls_, {});
  calls_.reserve(std::min<size_t>(calls.size(), 1024));  // what comes next is often alike
  std::deque<Memory> memories = std::exchange(memories_, {});
  exposed_ = false;
  for (Scope* s : scopes_) s->calls = s->memories = 0;
  const InStreams in_streams(std::exchange(streams_, {}));
  Paused paused;
  // Whoever reads now may be inside of these; what is pending was not.
  Restore hooks(thread_state.saved_tensor_hooks, decltype(thread_state.saved_tensor_hooks)());
  Restore<bool> anomaly(thread_state.anomaly_mode, false);
  for (Memory& m : memories)
    if (m.storage && m.storage->has_aside()) m.storage->give_back();
  std::shared_ptr<Executable> program;
  std::vector<std::unique_ptr<Promise>> promises;
  try {
    if (!calls.empty()) {
      const ProfiledScope profiled("Torch-Compiled Region", EventKind::Region);
      ++compiled_->counts.runs;
      program = compiled_->programs.find(calls, memories, !recording_);
      if (recording_) recording_->take(program, calls, memories);
      sample_.built |= !program->runs;
      // Kernels of devices end later than the call that launched them.
      if (program->on_device) compiled_->choices.keep_noting();
      promises = Programs::run(*program, calls);
    }
    in_streams.wait();
  } catch (...) {
    calls.clear();
    release(memories, true);
    throw;
  }
  calls.clear();
  if (program) leave_to_backward(*program, std::move(promises), memories);
  release(memories, false);
}

}  // namespace warptape::graph
