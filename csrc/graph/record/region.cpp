#include "graph/record/region.h"

#include "autograd/engine.h"
#include "core/profiler.h"
#include "graph/ir/storage_state.h"
#include "graph/record/scope.h"

namespace warptape::graph {

void Region::around_backward(bool begins) {
  Region& r = of_thread();
  if (!begins) return r.leave();
  if (!r.compiled_) r.compiled_ = std::make_shared<Compiled>();
  if (r.depth_++) return;
  if (r.sample_.tuner && r.sample_.tuner->saw_backward()) r.sample_.measurement.timed = false;
  r.sample_.backward = true;
  r.begin();
}

bool Region::enter(std::shared_ptr<Compiled> compiled) {
  if (depth_) return ++depth_;
  ModeTuner& tuner = compiled->tuners.of(thread_state().grad_mode);
  const bool continues = sample_.measurement.timed && sample_.tuner == &tuner && !sample_.backward &&
                         tuner.continues(sample_.measurement, sample_.calls);
  if (sample_.measurement.timed && !continues)
    sample_.tuner->add(sample_.measurement.mode, sample_.seconds, sample_.built);
  compiled_ = std::move(compiled);
  if (continues) {
    ++sample_.calls;
  } else {
    sample_ = {.tuner = &tuner};
    if (compiled_->adaptive && !compiled_->fullgraph) sample_.measurement = tuner.next();
  }
  ++compiled_->counts.calls;
  if (sample_.measurement.mode == Mode::Eager && !sample_.measurement.timed) return false;
  ++depth_;
  begin();
  return true;
}

void Region::begin() {
  if (sample_.measurement.mode == Mode::Recorded) {
    own_thread_state().deferral = this;
    own_thread_state().dispatch |= kCapture;
  } else {
    own_thread_state().times_backward = sample_.measurement.timed;
  }
  if (sample_.measurement.timed) sample_.since = std::chrono::steady_clock::now();
}

void Region::leave() {
  if (--depth_) return;
  struct AtEnd {
    Region& region;
    ~AtEnd() { region.finish(); }
  } at_end{*this};
  if (sample_.measurement.mode == Mode::Eager) return;
  own_thread_state().deferral = nullptr;
  own_thread_state().dispatch &= ~kCapture;
  RegionLock lock(mutex_);
  run_pending();
}

void Region::finish() {
  own_thread_state().times_backward = false;
  if (!sample_.measurement.timed) return;
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - sample_.since;
  sample_.seconds += spent.count();
}

void Region::start_recording(std::unique_ptr<Recording> recording) {
  const RegionLock lock(mutex_);
  recording_ = std::move(recording);
  interrupted_ = false;
}

std::unique_ptr<Recording> Region::release_recording() {
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
    call.public_op = scopes_.front()->name;
  return call;
}

void Region::record_stream(Device device) {
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
  if (s.device().is_cuda()) record_stream(s.device());
  Memory& m = memories_.add(s);
  m.state = Memory::State::Unwritten;
  m.depth = static_cast<uint32_t>(scopes_.size());
  begin_writing_new(s, *this);
}

Tensor Region::hold(Memory& m, const Tensor& t) {
  ++m.references;
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

bool Region::in_opaque() const { return !scopes_.empty() && scopes_.back()->opaque; }

// A launch inside of an op that is recorded as opaque.
void Region::skip(const Tensor& out) {
  const RegionLock lock(mutex_);
  if (memory_of(out.storage()).state == Memory::State::Read && !out.storage().is_deferred())
    throw NotOpaque{};
  scopes_.back()->skipped = true;
}

void Region::elementwise(ElementwiseSlot& slot, DType compute, const Tensor& out,
                         std::span<const ElementwiseInput> inputs) {
  if (in_opaque()) return skip(out);
  for (const ElementwiseInput& in : inputs)
    if (in.tensor) force_before_use(*in.tensor);
  record([&] {
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
  if (in_opaque()) return skip(out);
  force_before_use(t);
  record([&] {
    claim(out.storage());
    memory_of(t.storage());
    Call& call = add(CallKind::SumTo, nullptr);
    read(call, t);
    write(call, out);
  });
}

void Region::kernel(const KernelInfo& info, std::span<const Tensor> in, std::span<const Tensor> out,
                    int64_t rows, const KernelFunction& f) {
  if (in_opaque()) {
    for (const Tensor& t : out)
      if (t.defined()) skip(t);
    return;
  }
  for (const Tensor& t : in) force_before_use(t);
  record([&] {
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
void Region::flush_if_exposed() {
  if (!exposed_ || !scopes_.empty()) return;
  if (recording_) recording_->refuse("NumPy or somebody else sees memory that it uses");
  RegionLock lock(mutex_);
  run_pending();
}

// The calls from number `count` on were a try.
void Region::truncate(size_t count) {
  const uint32_t first_new = scopes_.empty() ? 0 : scopes_.back()->memories;
  while (calls_.size() > count) {
    for (const auto* list : {&calls_.back().in, &calls_.back().out})
      for (const Tensor& t : *list) --memories_.of(t).references;
    for (const Tensor& t : calls_.back().out) {
      Memory& m = memories_.of(t);
      if (m.number >= first_new && !t.storage().data()) m.state = Memory::State::Unwritten;
    }
    calls_.pop_back();
  }
}

// By the region's own thread.
void Region::flush() {
  if (recording_) recording_->refuse("a value is read before its end");
  const RegionLock lock(mutex_);
  if (depth_ && !memories_.empty()) {
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

// See Note [Rematerialization].
static void leave_to_backward(const Executable& program, std::vector<std::unique_ptr<Remat>> remats,
                              const Batch& batch) {
  const bool watched = !program.rematerializable.empty() && batch.may_rematerialize && watches(program);
  if (remats.empty() && !watched) return;
  std::vector<const Memory*> numbered(program.program.memories.size());
  for (const Memory& m : batch.memories)
    if (m.storage && m.number < numbered.size()) numbered[m.number] = &m;
  // Those that read others' first: with what nobody needs goes what it reads.
  for (auto p = remats.rbegin(); p != remats.rend(); ++p) {
    const Memory* m = numbered[(*p)->memory];
    if (m && m->storage->use_count() > 1) attach_remat(*m->storage, std::move(*p));
    p->reset();
  }
  for (uint32_t memory : program.rematerializable)
    if (const Memory* m = numbered[memory]; watched && m) watch(*m->storage, program.use_summary, memory);
}

// Ends what is known of the storages. Those that a failure left unwritten stay deferred, and raise when they
// are read. All at once for who runs Remats.
void Region::release(Batch& batch, bool failed, const Executable* program,
                     std::vector<std::unique_ptr<Remat>> remats) {
  Memories& memories = batch.memories;
  const RegionLock lock(remat_mutex());
  for (const auto& p : remats)
    for (const Tensor& t : p->call.in)
      if (Storage* s = memories.visible_of(t.storage())) t->storage = Ref<Storage>::share(s);
  for (Memory& m : memories)
    if (m.detached && !m.detached->is_deferred()) m.storage->attach(std::move(m.detached));
  if (program) leave_to_backward(*program, std::move(remats), batch);
  for (Memory& m : memories) {
    if (!m.storage) continue;
    Storage& s = *m.storage;
    if (writer_of(s, std::memory_order_relaxed) == this) {
      if (s.is_evicted())
        s.restore();
      else if (s.is_deferred() && m.state == Memory::State::Written && failed && !is_rematerialized(s))
        s.lose();
      else if (s.is_deferred() && s.use_count() > 1 && !is_rematerialized(s))
        s.materialize();
      end_writing(s);
    }
    if (m.registered) end_reading(s);
  }
}

std::shared_ptr<Batch> Region::extract_pending() {
  auto batch = std::make_shared<Batch>();
  batch->calls = std::exchange(calls_, {});
  calls_.reserve(std::min<size_t>(batch->calls.size(), 1024));  // what comes next is often alike
  batch->memories = std::exchange(memories_, std::exchange(spare_, {}));
  batch->streams = std::exchange(streams_, {});
  batch->compiled = compiled_;
  batch->may_rematerialize = !recording_;
  for (Scope* s : scopes_) s->calls = s->memories = 0;
  running_.push_back(batch);
  return batch;
}

// With the region locked, which it is not while calls run. When it returns, the thread of the region finds
// nothing pending and nothing that another thread runs.
void Region::run_pending() {
  const WithoutGil without_gil;
  if (is_own()) exposed_ = false;
  if (!memories_.empty()) {
    const std::shared_ptr<Batch> batch = extract_pending();
    struct AtEnd {
      Region& region;
      const std::shared_ptr<Batch>& batch;
      ~AtEnd() {
        std::erase(region.running_, batch);
        batch->memories.clear();
        region.spare_ = std::move(batch->memories);
      }
    } at_end{*this, batch};
    const RegionUnlock unlocked(mutex_);
    run(*batch);
  }
  if (running_.empty() || !is_own()) return;
  const auto running = running_;
  const RegionUnlock unlocked(mutex_);
  for (const auto& b : running)
    if (!b->runs_here()) b->wait();
}

void Region::run(Batch& batch) {
  struct AtEnd {
    Batch& batch;
    ~AtEnd() { batch.end(); }
  } at_end{batch};
  const InStreams in_streams(batch.streams);
  Paused paused;
  // Whoever reads now may be inside of these; what is pending was not.
  Restore hooks(own_thread_state().saved_tensor_hooks, decltype(thread_state().saved_tensor_hooks)());
  Restore<bool> anomaly(own_thread_state().anomaly_mode, false);
  std::vector<Call>& calls = batch.calls;
  Memories& memories = batch.memories;
  std::shared_ptr<Executable> program;
  std::vector<std::unique_ptr<Remat>> remats;
  try {
    if (!calls.empty()) {
      const ProfiledScope profiled("Torch-Compiled Region", EventKind::Region);
      ++batch.compiled->counts.runs;
      program = batch.compiled->programs.find(calls, memories, batch.may_rematerialize);
      if (is_own() && recording_) recording_->capture_program(program, calls, memories);
      if (is_own()) sample_.built |= !program->runs;
      // Kernels of devices end later than the call that launched them.
      if (program->on_device) batch.compiled->tuners.always_record();
      std::vector<bool> rematerialized(program->remat_calls.empty() ? 0 : program->program.memories.size());
      for (const RematCall& r : program->remat_calls) rematerialized[r.memory] = true;
      memories.detach(this, calls, rematerialized);
      remats = Programs::run(*program, calls);
    }
    in_streams.wait();
  } catch (...) {
    calls.clear();
    release(batch, true, nullptr, {});
    throw;
  }
  calls.clear();
  release(batch, false, program.get(), std::move(remats));
}

}  // namespace warptape::graph
