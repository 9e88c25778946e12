#include "graph/record/region.h"

#include "autograd/engine.h"
#include "core/profiler.h"
#include "graph/record/scope.h"

namespace warptape::graph {

void (*wait_for)(RegionMutex& mutex) = [](RegionMutex& mutex) { mutex.lock(); };

GilHooks gil_hooks;

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
  Choice& choice = compiled->choices.of(thread_state().grad_mode);
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
    own_thread_state().deferral = this;
    own_thread_state().dispatch |= kCapture;
  } else {
    own_thread_state().times_backward = sample_.turn.timed;
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
  own_thread_state().deferral = nullptr;
  own_thread_state().dispatch &= ~kCapture;
  RegionLock lock(mutex_);
  if (!memories_.empty()) run_pending();
}

void Region::finish() {
  own_thread_state().times_backward = false;
  if (!sample_.turn.timed) return;
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - sample_.since;
  sample_.seconds += spent.count();
}

void Region::record(std::unique_ptr<Recording> recording) {
  const RegionLock lock(mutex_);
  recording_ = std::move(recording);
  interrupted_ = false;
}

std::unique_ptr<Recording> Region::take_recording() {
  const RegionLock lock(mutex_);
  if (recording_ && interrupted_)
    recording_->refuse("another thread reads or writes its memory before its end");
  return std::move(recording_);
}

bool Region::set_capture(bool on) {
  const bool was = thread_state().deferral != nullptr;
  if (!entered()) return was;
  if (recording_ && !on) recording_->refuse("it calls what torch.compiler.disable keeps out");
  own_thread_state().deferral = on ? this : nullptr;
  own_thread_state().dispatch = on ? thread_state().dispatch | kCapture : thread_state().dispatch & ~kCapture;
  return was;
}

PerThread<const char*> failed_op;

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
  const RegionLock lock(mutex_);
  if (s.device().is_cuda()) note_stream(s.device());
  Memory& m = memories_.add(s);
  m.state = Memory::State::Unwritten;
  m.depth = static_cast<uint32_t>(scopes_.size());
  s.writer.store(this, std::memory_order_relaxed);
}

Tensor Region::hold(Memory& m, const Tensor& t) {
  ++m.held;
  return alias(t);
}

void Region::read(Call& call, const Tensor& t) {
  Memory& m = memory_of(t.storage());
  // What an op made and has not written, a kernel that was skipped was to write.
  if (m.state == Memory::State::Unwritten && m.depth && m.depth <= scopes_.size())
    scopes_[m.depth - 1]->poisoned = true;
  call.in.push_back(hold(m, t));
}

void Region::write(Call& call, const Tensor& t) {
  Memory& m = claim(t.storage());
  m.state = Memory::State::Written;
  call.out.push_back(hold(m, t));
}

bool Region::in_whole() const { return !scopes_.empty() && scopes_.back()->whole; }

// A launch inside of an op that is noted as a whole.
void Region::skip(const Tensor& out) {
  const RegionLock lock(mutex_);
  if (memory_of(out.storage()).state == Memory::State::Read && !out.storage().is_deferred()) throw NotWhole{};
  scopes_.back()->skipped = true;
}

void Region::elementwise(ElementwiseSlot& slot, DType compute, const Tensor& out,
                         std::span<const ElementwiseInput> inputs) {
  if (in_whole()) return skip(out);
  for (const ElementwiseInput& in : inputs)
    if (in.tensor) meet(*in.tensor);
  note([&] {
    claim(out.storage());
    for (const ElementwiseInput& in : inputs)
      if (in.tensor) memory_of(in.tensor->storage());
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
  });
}

void Region::sum_to(const Tensor& out, const Tensor& t) {
  if (in_whole()) return skip(out);
  meet(t);
  note([&] {
    claim(out.storage());
    memory_of(t.storage());
    Call& call = add(CallKind::SumTo, nullptr);
    read(call, t);
    write(call, out);
  });
}

void Region::kernel(const KernelInfo& info, std::span<const Tensor> in, std::span<const Tensor> out,
                    int64_t rows, const KernelFunction& f) {
  if (in_whole()) {
    for (const Tensor& t : out)
      if (t.defined()) skip(t);
    return;
  }
  for (const Tensor& t : in) meet(t);
  note([&] {
    for (const Tensor& t : out)
      if (t.defined()) claim(t.storage());
    for (const Tensor& t : in)
      if (t.defined()) memory_of(t.storage());
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
      call.results.push_back(static_cast<int32_t>(k));
    }
  });
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
      for (const Tensor& t : *list) --memories_.of(t).held;
    for (const Tensor& t : calls_.back().out) {
      Memory& m = memories_.of(t);
      if (m.number >= made && !t.storage().data()) m.state = Memory::State::Unwritten;
    }
    calls_.pop_back();
  }
}

// By the region's own thread.
void Region::flush() {
  if (recording_) recording_->refuse("a value is read before its end");
  const RegionLock lock(mutex_);
  if (memories_.empty()) return;
  if (depth_) {
    ++compiled_->counts.reads;
    if (!scopes_.empty()) compiled_->counts.read_by.add(scopes_.front()->name);
    WT_CHECK(!compiled_->fullgraph || calls_.empty(), Error,
             "compile: with fullgraph=True no value may be read before the end of the compiled function; "
             "this line reads one (item(), print, bool(), numpy() and the like)");
  }
  run_pending();
}

// Whether the run is one in which it is watched who reads its results. Most are read by the same code every
// time: what is not read by then is looked at now and then.
static bool watches(const Executable& program) { return program.runs <= 8 || program.runs % 64 == 0; }

// See Note [Promises].
void Region::leave_to_backward(const Executable& program, std::vector<std::unique_ptr<Promise>> promises,
                               const Memories& memories) const {
  const bool watched = !program.promisable.empty() && !recording_ && watches(program);
  if (promises.empty() && !watched) return;
  std::vector<const Memory*> numbered(program.program.memories.size());
  for (const Memory& m : memories)
    if (m.storage && m.number < numbered.size()) numbered[m.number] = &m;
  // Those that read others' first: with what nobody needs goes what it reads.
  for (auto p = promises.rbegin(); p != promises.rend(); ++p) {
    const Memory* m = numbered[(*p)->memory];
    if (m && m->storage->use_count() > 1) give_promise(*m->storage, std::move(*p));
    p->reset();
  }
  for (uint32_t memory : program.promisable)
    if (const Memory* m = numbered[memory]; watched && m) watch(*m->storage, program.fates, memory);
}

// Ends what is known of the storages. Those that a failure left unwritten stay deferred, and raise when they
// are read. All at once for who computes promises.
void Region::release(Memories& memories, bool failed, const Executable* program,
                     std::vector<std::unique_ptr<Promise>> promises) {
  const RegionLock lock(promise_mutex());
  for (const auto& p : promises)
    for (const Tensor& t : p->call.in)
      if (Storage* s = memories.visible_of(t.storage())) t->storage = Ref<Storage>::share(s);
  for (Memory& m : memories)
    if (m.detached && !m.detached->is_deferred()) m.storage->attach(std::move(m.detached));
  if (program) leave_to_backward(*program, std::move(promises), memories);
  for (Memory& m : memories) {
    if (!m.storage) continue;
    Storage& s = *m.storage;
    if (s.writer.load(std::memory_order_relaxed) == this) {
      if (s.has_aside())
        s.give_back();
      else if (s.is_deferred() && m.state == Memory::State::Written && failed && !is_promised(s))
        s.lose();
      else if (s.is_deferred() && s.use_count() > 1 && !is_promised(s))
        s.materialize();
      s.writer.store(nullptr, std::memory_order_release);
    }
    if (m.registered) s.readers.fetch_sub(1, std::memory_order_release);
  }
}

void Region::run_pending() {
  const WithoutGil without_gil;
  std::vector<Call> calls = std::exchange(calls_, {});
  calls_.reserve(std::min<size_t>(calls.size(), 1024));  // what comes next is often alike
  Memories memories = std::exchange(memories_, std::exchange(spare_, {}));
  exposed_ = false;
  for (Scope* s : scopes_) s->calls = s->memories = 0;
  const InStreams in_streams(std::exchange(streams_, {}));
  Paused paused;
  // Whoever reads now may be inside of these; what is pending was not.
  Restore hooks(own_thread_state().saved_tensor_hooks, decltype(thread_state().saved_tensor_hooks)());
  Restore<bool> anomaly(own_thread_state().anomaly_mode, false);
  Recording* const recording = is_own() ? recording_.get() : nullptr;
  std::shared_ptr<Executable> program;
  std::vector<std::unique_ptr<Promise>> promises;
  try {
    if (!calls.empty()) {
      const ProfiledScope profiled("Torch-Compiled Region", EventKind::Region);
      ++compiled_->counts.runs;
      program = compiled_->programs.find(calls, memories, !recording_);
      if (recording) recording->take(program, calls, memories);
      sample_.built |= !program->runs;
      // Kernels of devices end later than the call that launched them.
      if (program->on_device) compiled_->choices.keep_noting();
      std::vector<bool> promised(program->recipes.empty() ? 0 : program->program.memories.size());
      for (const Recipe& r : program->recipes) promised[r.memory] = true;
      memories.detach(this, calls, promised);
      promises = Programs::run(*program, calls);
    }
    in_streams.wait();
  } catch (...) {
    calls.clear();
    release(memories, true, nullptr, {});
    throw;
  }
  calls.clear();
  release(memories, false, program.get(), std::move(promises));
  memories.clear();
  spare_ = std::move(memories);
}

}  // namespace warptape::graph
