// How ops and the backward of nodes are recorded: see Note [Regions].
#include "autograd/engine.h"
#include "graph/ir/storage_state.h"
#include "graph/record/scope.h"
#include "graph/record/trace.h"

namespace warptape::graph {

Scope::~Scope() {
  region_.scopes_.pop_back();
  for (const Written& w : written_) {
    Storage& s = w.tensor.storage();
    const Memory* m = region_.memories_.find(s);
    if (!m || m->state != Memory::State::Read || !s.is_evicted()) continue;
    s.restore();
    end_writing(s);
  }
}

void Scope::written(const Tensor& t) {
  if (!t.defined() || t.device().is_meta() || !t.storage().bytes()) return;
  region_.claim(t.storage());
  Written& w = written_.emplace_back();
  w.tensor = t;
  w.version = t.version();
  w.own = History::of(t);
  if (!is_view(t)) return;
  w.of_view = meta_of(t)->view->version;
  w.base = History::of(meta_of(t)->view->base);
}

void Scope::restore() {
  for (const Written& w : written_) {
    w.tensor.set_version(w.version);
    w.own.restore();
    w.base.restore();
    if (w.base.tensor.defined()) meta_of(w.tensor)->view->version = w.of_view;
  }
}

bool Scope::unfinished() const {
  for (size_t i = memories; i < region_.memories_.size(); ++i) {
    const Memory& m = region_.memories_[i];
    if (m.storage->use_count() > 1 && m.state == Memory::State::Unwritten) return true;
  }
  return false;
}

bool Scope::needs_opaque() const { return thread_state().asked_meta || poisoned || unfinished(); }

bool Scope::bumped() const {
  for (const Written& w : written_)
    if (w.tensor.version() != w.version) return true;
  return false;
}

namespace {

// Whether Python has something else of it than tensors.
bool returns_value(const Result& out) {
  using Kind = Result::Kind;
  return out.kind != Kind::None && out.kind != Kind::Tensor && out.kind != Kind::Tuple &&
         out.kind != Kind::List && out.kind != Kind::TensorAndList;
}

void remember_state(Call& call) {
  call.keys = thread_state().key_tape->keys;
  call.dispatch = thread_state().dispatch & (kAutocast | kAutocastCuda);
  call.autocast_dtype = thread_state().autocast_dtype;
  call.autocast_cuda_dtype = thread_state().autocast_cuda_dtype;
}

bool capture(const OpInfo& op, std::span<Value> args, Result& out, Keep&) {
  static_cast<Region*>(thread_state().deferral)->call(op, args, out);
  return true;
}

void force(Storage& s) {
  const bool is_read = s.is_deferred();  // else somebody is about to write it
  while (Deferral* writer = writer_of(s, std::memory_order_acquire)) static_cast<Region*>(writer)->force(s);
  if (!is_read && reader_count(s)) Region::force_readers(s);
  if (remat_state(s)) rematerialize_dependents(s);
  if (s.is_deferred()) complete(s);
}

}  // namespace

void Region::run_now(const OpInfo& op, std::span<Value> args, Result& out, KeyTape& keys) {
  if (recording_) recording_->refuse(message("the op ", op.name, " runs at once"));
  ++compiled_->counts.not_deferred;
  compiled_->counts.not_deferred_by.add(op.name);
  // What is written now may be read by what is pending; and on deferred memory the op would skip its kernels.
  bool pending = false;
  each_written(op, args, [&](const Tensor& t) {
    pending |= knows(t);
    if (t.defined()) rematerialize_before_write(t.storage());
  });
  each_tensor(op, args, [&](const Tensor& t) { pending |= t.storage().is_deferred(); });
  if (pending) run_before();
  Paused paused;
  keys.next = 0;
  Restore<KeyTape*> replayed_keys(own_thread_state().key_tape, &keys);
  out = {};
  const WithoutGil without_gil;
  op.call(op, args.data(), out);
}

// What is pending runs before an op that runs now, unless that is in the middle of one that is recorded.
void Region::run_before() {
  if (!scopes_.empty()) throw NotDeferrable{};
  RegionLock lock(mutex_);
  run_pending();
}

void Region::call(const OpInfo& op, std::span<Value> args, Result& out) {
  if (in_opaque()) return call_inside(op, args, out);
  each_tensor(op, args, [&](const Tensor& t) { force_before_use(t); });
  const bool outermost = recording_ && scopes_.empty();
  if (outermost) recording_->observe(op, args);
  const auto count = [&] {
    const RegionLock lock(mutex_);
    return calls_.size();
  };
  const size_t before = outermost ? count() : 0;
  call_or_run(op, args, out);
  if (outermost) recording_->produced(out);
  if (outermost && count() == before && returns_value(out) && reads_values(op, args))
    recording_->refuse(message(op.name, " reads a value"));
  flush_if_exposed();
}

// Of what an op calls that is recorded as opaque nothing is recorded.
void Region::call_inside(const OpInfo& op, std::span<Value> args, Result& out) {
  RegionLock lock(mutex_);
  each_written(op, args, [&](const Tensor& t) {
    if (t.defined() && t.storage().bytes() && !t.device().is_meta()) skip(t);
  });
  Restore<bool> meta_flag(own_thread_state().asked_meta, false);  // by the op itself counts
  Restore<uint32_t> nested(own_thread_state().dispatch, thread_state().dispatch | kCapture);
  op.run(op, args.data(), out);
  scopes_.back()->skipped |= thread_state().asked_meta;
}

void Region::call_or_run(const OpInfo& op, std::span<Value> args, Result& out) {
  KeyTape keys;
  Attempts& attempts = attempts_[&op];
  Tried tried = Tried::NotOpaque;
  const bool defers = !thread_state().saved_tensor_hooks && !thread_state().anomaly_mode;
  while (defers && tried == Tried::NotOpaque && keys.keys.empty() && !attempts.tend_to_fail()) {
    out = {};
    Scope scope(*this, op.name, keys, attempts);
    const auto call = [&] {
      each_written(op, args, [&](const Tensor& t) { scope.written(t); });
      scope.memories = memories_.size();
      Restore<uint32_t> nested(own_thread_state().dispatch, thread_state().dispatch | kCapture);
      op.run(op, args.data(), out);
    };
    tried = scope.attempt(attempts, call, [&] { record_op(op, args, out, scope); });
    if (tried == Tried::Recorded) return;
  }
  run_now(op, args, out, keys);
}

void Region::record_op(const OpInfo& op, std::span<const Value> args, Result& out, Scope& scope) {
  scope.undo();
  Call& call = add(CallKind::Op, &op);
  call.bumped = scope.bumped();
  call.args = std::make_unique<OpArgs>(op, args);
  each_tensor(op, call.args->values, [&](const Tensor& t) {
    Memory& m = memory_of(t.storage());
    if (m.state == Memory::State::Unwritten && m.depth && m.depth < scopes_.size())
      scopes_[m.depth - 1]->poisoned = true;
    ++m.references;
    call.in.push_back(t);
  });
  each_written(op, call.args->values, [&](const Tensor& t) {
    if (!t.defined()) return;
    write(call, t);
    call.results.push_back(kInPlaceResult);
  });
  int32_t position = 0;
  Ref<Node> node;
  each_result(out, [&](const Tensor& t) {
    if (is_unwritten(t)) {
      write(call, t);
      call.results.push_back(position);
    }
    if (t.defined() && !node) node = grad_fn(t);
    ++position;
  });
  for (size_t i = 0; node && i < node->saved_count(); ++i)
    if (const Tensor& t = node->saved_raw(i).raw(); is_unwritten(t)) {
      write(call, t);
      call.results.push_back(static_cast<int32_t>(kSavedBase + i));
    }
  if (scope.unfinished()) throw NotDeferrable{};
  const bool in_place = !call.results.empty() && call.results[0] == kInPlaceResult;
  if (in_place && call.results.back() >= kSavedBase) throw NotDeferrable{};
  call.node = node.get();
  remember_state(call);
}

void Region::backward(Node& node, Gradients& g, bool last) {
  if (recording_) recording_->refuse("it runs a backward pass");
  backward_or_run(node, g, last);
  flush_if_exposed();
}

void Region::backward_or_run(Node& node, Gradients& g, bool last) {
  KeyTape keys;
  if (in_opaque()) throw NotOpaque{};
  for (size_t i = 0; i < node.saved_count(); ++i) force_before_use(node.saved_raw(i).raw());
  for (size_t i = 0; i < g.outputs(); ++i) force_before_use(g[i]);
  Attempts& attempts = attempts_[node.type];
  // Python code, and what is written into leaves, must not run twice.
  const bool once = node.type->python_part || node.type->release || accumulator_leaf_or_null(node);
  if (once) return node.type->backward(node, g);
  bool packed = false;
  for (size_t i = 0; i < node.saved_count(); ++i) packed |= node.saved_raw(i).packed() != nullptr;
  Tried tried = Tried::NotOpaque;
  while (!packed && !thread_state().anomaly_mode && tried == Tried::NotOpaque && keys.keys.empty() &&
         !attempts.tend_to_fail()) {
    Scope scope(*this, node.type->name, keys, attempts);
    scope.is_op = false;
    const auto call = [&] {
      Gradients tried = g.retained();  // what is saved must be there for the call that counts
      node.type->backward(node, tried);
    };
    tried = scope.attempt(attempts, call, [&] { record_backward(node, g, last, scope); });
    if (tried == Tried::Recorded) return;
    for (size_t i = 0; i < g.inputs(); ++i) g.set(i, Tensor());
  }
  ++compiled_->counts.not_deferred;
  compiled_->counts.not_deferred_by.add(node.type->name);
  run_before();
  Paused paused;
  keys.next = 0;
  Restore<KeyTape*> replayed_keys(own_thread_state().key_tape, &keys);
  for (size_t i = 0; i < g.inputs(); ++i) g.set(i, Tensor());
  node.type->backward(node, g);
}

void Region::record_backward(Node& node, Gradients& g, bool last, Scope& scope) {
  if (thread_state().grad_mode) throw NotDeferrable{};
  scope.undo();
  Call& call = add(CallKind::Backward, node.type);
  call.backward = std::make_unique<NodeCall>();
  NodeCall& b = *call.backward;
  b.node = Ref<Node>::share(&node);
  b.last = last;
  const auto add_input = [&](std::vector<Tensor>& list, const Tensor& t) {
    if (t.defined()) {
      read(call, t);
      list.push_back(call.in.back());
    } else {
      list.emplace_back();
    }
  };
  for (size_t i = 0; i < node.saved_count(); ++i)
    add_input(b.saved, node.saved_raw(i).defined() ? node.saved(i) : Tensor());
  for (size_t i = 0; i < g.outputs(); ++i) add_input(b.gradients, g[i]);
  for (size_t i = 0; i < g.inputs(); ++i) {
    b.wanted.push_back(g.wants(i));
    if (!is_unwritten(g.result(i))) continue;
    write(call, g.result(i));
    call.results.push_back(static_cast<int32_t>(i));
  }
  if (scope.unfinished()) throw NotDeferrable{};
  remember_state(call);
}

namespace {
struct RegionCalls final : DeferredCalls {
  void force(Storage& s) override { graph::force(s); }
  void storage_gone(Storage& s) override { remat_storage_gone(s); }
  void begin_backward() override { Region::around_backward(true); }
  void end_backward() override { Region::around_backward(false); }
};
}  // namespace

void init() {
  static std::once_flag once;
  std::call_once(once, [] {
    set_interceptor(kCapture, capture);
    install(*new RegionCalls);
  });
}

}  // namespace warptape::graph
