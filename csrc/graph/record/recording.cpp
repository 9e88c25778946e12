#include "graph/record/recording.h"

#include <algorithm>

#include "graph/ir/arguments.h"
#include "graph/record/region.h"

namespace warptape::graph {
namespace {

using From = ReplayMemory::From;

int64_t begin_of(const Tensor& t) { return t.offset() * static_cast<int64_t>(t.itemsize()); }

ViewSpec view_on(uint32_t memory, const Tensor& t) {
  return {memory, t.dtype(), t.sizes(), t.strides(), t.offset()};
}

// A tensor without memory, where a call's argument was one.
Tensor stand_in() {
  static Storage* const nothing = Storage::wrap(nullptr, 0, {}, [](void*) {}, nullptr).release();
  return Tensor(Ref<TensorImpl>::adopt(
      new TensorImpl(Ref<Storage>::share(nothing), DType::Float32, Shape{0}, Shape{1}, 0)));
}

}  // namespace

void refuse_replay(const char* why) {
  if (Recording* r = Region::of_thread().recording()) r->refuse(why);
}

Recording::Recording(std::vector<Tensor> arguments, std::vector<Tensor> known)
    : generator_(default_generator(Device{})->state()) {
  for (const Tensor& t : arguments) {
    arguments_.push_back(before(t));
    argument_impls_.insert(t.impl());
  }
  for (const Tensor& t : known)
    if (!argument_impls_.contains(t.impl())) known_.push_back(before(t));
}

Recording::~Recording() = default;

Recording::Before Recording::before(const Tensor& t) {
  Before b{t, {}, view_on(0, t), &t.storage(), t.version(), requires_grad(t), nullptr};
  if (!t->extra) return b;
  b.node = meta_of(t)->node.get();
  b.grad = meta_of(t)->grad;
  return b;
}

void Recording::refuse(std::string why) {
  if (why_.empty()) why_ = std::move(why);
}

void Recording::observe(const OpInfo& op, std::span<const Value> args) {
  for (size_t i = 0; i < args.size(); ++i)
    if (op.args[i].type == ArgType::Generator && args[i].present && args[i].generator)
      refuse("it draws from a generator of its own");
  each_tensor(op, args, [&](const Tensor& t) {
    const Storage& s = t.storage();
    if (!s.has_contents() || produced_impls_.contains(t.impl())) return;
    if (observed_impls_.insert(t.impl()).second) observed_.push_back(t);
  });
}

// What the call makes of arguments, by views, was not there before it. Where such a tensor has gone and
// another one has its address, that one was made in the call as well.
void Recording::produced(Result& out) {
  each_result(out, [&](const Tensor& t) {
    if (t.defined() && !observed_impls_.contains(t.impl()) && !argument_impls_.contains(t.impl()))
      produced_impls_.insert(t.impl());
  });
}

std::vector<Tensor> Recording::known() const {
  std::vector<Tensor> out;
  for (const Tensor& t : observed_)
    if (t.ref()->use_count() > 1 && !argument_impls_.contains(t.impl())) out.push_back(t);
  return out;
}

void Recording::end(std::vector<Tensor> results) {
  results_ = std::move(results);
  ended_ = true;
}

void Recording::capture_program(const std::shared_ptr<Executable>& program, const std::vector<Call>& calls,
                                const Memories& memories) {
  if (!ended_ || out_) refuse("a value is read before its end");
  on_device_ |= program->on_device;
  if (on_device_) refuse("its memory is not the CPU's");
  if (!why_.empty()) return;
  out_ = std::make_shared<Recorded>();
  out_->program = program;
  std::string why;
  if (!put_arguments(out_->arguments, calls, why)) refuse(why);
  check_draws(calls);
  find_sources(memories);
  check_sources();
  if (!why_.empty() || !complete_) return;
  retain_observed();
  record_calls(calls);
  record_results();
}

// For each memory of the program where it comes from.
void Recording::find_sources(const Memories& memories) {
  out_->memories.resize(out_->program->program.memories.size());
  storages_.resize(out_->memories.size());
  // Memories that are computed again are the same storage, and have no record of their own.
  for (const Memory& m : memories) {
    if (m.number >= out_->memories.size()) continue;
    if (!m.storage->device().is_cpu()) refuse("its memory is not the CPU's");
    numbers_[m.storage.get()] = m.number;
    ReplayMemory& to = out_->memories[m.number];
    to.bytes = m.storage->bytes();
    if (!m.storage->has_contents() || !to.bytes) continue;
    storages_[m.number] = m.storage;
    const auto is_it = [&](const Before& b) { return b.storage == m.storage.get(); };
    const auto argument = std::ranges::find_if(arguments_, is_it);
    if (argument != arguments_.end()) {
      to.from = From::Argument;
      to.index = static_cast<uint32_t>(argument - arguments_.begin());
      to.begin = begin_of(argument->tensor);
    } else if (std::ranges::any_of(known_, is_it)) {
      to.from = From::Retained;  // retain_observed() says by which
    } else {
      complete_ = false;
    }
  }
}

// What ops of the call read that is neither an argument nor made in it.
void Recording::check_sources() {
  std::unordered_set<const void*> known;
  for (const Before& b : known_) known.insert(b.tensor.impl());
  for (const Tensor& t : observed_) {
    if (argument_impls_.contains(t.impl())) continue;
    if (!t.device().is_cpu()) refuse("its memory is not the CPU's");
    complete_ &= known.contains(t.impl());
    for (const Before& b : arguments_)
      if (b.storage == &t.storage())
        refuse("an argument shares memory with a tensor that it reads otherwise");
    for (const auto* list : {&arguments_, &known_})
      for (const Before& b : *list)
        if (b.grad.defined() && &b.grad.storage() == &t.storage())
          refuse("it reads the gradient of a tensor");
  }
}

uint32_t Recording::add_memory(const Tensor& t, From from, size_t index) {
  ReplayMemory& m = out_->memories.emplace_back();
  m.from = from;
  m.index = static_cast<uint32_t>(index);
  m.bytes = t.storage().bytes();
  m.begin = begin_of(t);
  storages_.push_back(t->storage);
  return static_cast<uint32_t>(out_->memories.size() - 1);
}

// Keeps the tensors that were there, also those of which the call took the shape alone.
void Recording::retain_observed() {
  std::unordered_set<const Storage*> sourced;
  for (const Before& b : known_) {
    if (!observed_impls_.contains(b.tensor.impl())) continue;
    const auto index = static_cast<uint32_t>(out_->retained.size());
    retained_.emplace(b.tensor.impl(), index);
    const auto at = numbers_.find(b.storage);
    const uint32_t number = at != numbers_.end() ? at->second : add_memory(b.tensor, From::Retained, index);
    numbers_[b.storage] = number;
    ReplayMemory& m = out_->memories[number];
    if (sourced.insert(b.storage).second) {
      m.from = From::Retained;
      m.index = index;
      m.begin = begin_of(b.tensor);
    }
    out_->retained.push_back({b.tensor, b.view, b.requires_grad});
    out_->retained.back().view.memory = number;
  }
  for (size_t i = 0; i < out_->memories.size(); ++i)
    if (out_->memories[i].from == From::Retained && !sourced.contains(storages_[i].get())) complete_ = false;
}

void Recording::record_calls(const std::vector<Call>& calls) {
  Recorded& r = *out_;
  const std::vector<CallUse> uses = r.program->uses(calls.size());
  const auto view = [&](const Tensor& t) {
    const uint32_t number = numbers_.at(&t.storage());
    ReplayMemory& m = r.memories[number];
    if (m.from != From::New && t.numel()) {
      int64_t first = begin_of(t), last = first + static_cast<int64_t>(t.itemsize());
      for (int64_t d = 0; d < t.ndim(); ++d)
        last += (t.sizes()[d] - 1) * t.strides()[d] * static_cast<int64_t>(t.itemsize());
      m.first = std::min(m.first, first);
      m.last = std::max(m.last, last);
    }
    return view_on(number, t);
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& c = calls[i];
    if (c.kind == CallKind::Backward) return refuse("it runs a backward pass");
    CallShape& shape = r.calls.emplace_back();
    shape.use = uses[i];
    if (shape.use.any) {
      shape.call = copy_of(c, [](const Tensor&) { return stand_in(); });
      for (const Tensor& t : c.in) shape.in.push_back(view(t));
      for (const Tensor& t : c.out) shape.out.push_back(view(t));
    } else {
      shape.call.kind = c.kind;
      shape.call.public_op = c.public_op;
    }
    for (size_t k = 0; k < shape.in.size(); ++k)
      if (shape.use.in >> k & 1) r.memories[shape.in[k].memory].bound = true;
    for (const ViewSpec& p : shape.out) r.memories[p.memory].bound |= shape.use.out;
    shape.call.keys = c.keys;
  }
}

// Whether the default generator is where the keys of the calls leave it: nothing else drew, or seeded it.
void Recording::check_draws(const std::vector<Call>& calls) {
  const Ref<Generator> generator = default_generator(Device{});
  Generator repeated;
  repeated.set_state(generator_);
  Restore<KeyTape*> none(own_thread_state().key_tape, nullptr);
  bool same = true;
  for (const Call& c : calls)
    for (const kernels::PhiloxKey& key : c.keys) {
      const kernels::PhiloxKey k =
          repeated.next_philox(key.call >> 63 ? PhiloxUse::Fill : PhiloxUse::Dropout);
      same &= k.seed == key.seed && k.call == key.call;
    }
  if (!same || repeated.state() != generator->state())
    refuse("it draws random numbers, or seeds them, in a way that cannot be repeated");
}

std::optional<uint32_t> Recording::memory_of(const Tensor& t) {
  if (const auto at = numbers_.find(&t.storage()); at != numbers_.end()) return at->second;
  if (!t.storage().bytes()) {
    out_->memories.emplace_back();
    storages_.emplace_back();
    return numbers_[&t.storage()] = static_cast<uint32_t>(out_->memories.size() - 1);
  }
  for (size_t i = 0; i < arguments_.size(); ++i)  // of which no call uses the memory
    if (arguments_[i].storage == &t.storage())
      return numbers_[&t.storage()] = add_memory(arguments_[i].tensor, From::Argument, i);
  return {};
}

// The number among what a replay gives.
std::optional<uint32_t> Recording::add_output(const Tensor& t) {
  for (const auto& [known, number] : outputs_)
    if (known.same(t)) return number;
  ReplayResult g;
  for (size_t i = 0; i < arguments_.size() && g.is == ReplayResult::Is::New; ++i)
    if (arguments_[i].tensor.same(t)) g.is = ReplayResult::Is::Argument, g.index = static_cast<uint32_t>(i);
  if (const auto at = retained_.find(t.impl()); at != retained_.end())
    g.is = ReplayResult::Is::Retained, g.index = at->second;
  if (g.is == ReplayResult::Is::New) {
    if (requires_grad(t)) refuse("a result requires gradients: replays record no tape (use torch.no_grad())");
    if (t->own_version || !t.device().is_cpu()) refuse("a result is no usual tensor of the CPU");
    if (!produced_impls_.contains(t.impl())) refuse("a result is made by no op");
    const std::optional<uint32_t> memory = memory_of(t);
    if (!memory) refuse("a result is made by no op");
    if (!why_.empty()) return {};
    g.view = view_on(*memory, t);
    g.inference = t->inference;
    if (is_view(t)) {
      const std::optional<uint32_t> base = add_output(meta_of(t)->view->base);
      if (!base) return {};
      g.base = static_cast<int32_t>(*base);
      g.origin = meta_of(t)->view->origin;
    }
  }
  out_->outputs.push_back(std::move(g));
  outputs_.emplace_back(t, static_cast<uint32_t>(out_->outputs.size() - 1));
  return outputs_.back().second;
}

void Recording::record_results() {
  for (const Tensor& t : results_) {
    const std::optional<uint32_t> number = add_output(t);
    if (!number) return;
    out_->results.push_back(*number);
  }
  // Nobody else keeps what the call made.
  std::vector<bool> stays(out_->memories.size());
  for (const ReplayResult& g : out_->outputs)
    if (g.is == ReplayResult::Is::New) stays[g.view.memory] = true;
  const auto& memories = out_->program->program.memories;
  for (size_t m = 0; m < memories.size(); ++m)
    if (!memories[m].in && memories[m].out && out_->memories[m].bytes && !stays[m])
      refuse("what it computes is kept elsewhere than in its results");
}

// Shapes, memory, history and gradients of what was there are as they were.
void Recording::check_unchanged() {
  for (const auto* list : {&arguments_, &known_})
    for (const Before& b : *list) {
      const Tensor& t = b.tensor;
      const AutogradMeta* meta = t->extra ? meta_of(t) : nullptr;
      if (!b.view.fits(t) || &t.storage() != b.storage || requires_grad(t) != b.requires_grad ||
          (meta ? meta->node.get() : nullptr) != b.node)
        refuse("it changes the shape, the memory or the history of a tensor that was there before");
      if (meta ? !meta->grad.same(b.grad) : b.grad.defined()) refuse("it sets the gradient of a tensor");
    }
}

// By how much a call raises versions.
void Recording::count_changes() {
  for (size_t i = 0; i < out_->memories.size(); ++i) {
    if (!storages_[i]) continue;
    for (const auto* list : {&arguments_, &known_})
      for (const Before& b : *list)
        if (b.storage == storages_[i].get()) out_->memories[i].changes = storages_[i]->version() - b.version;
  }
  for (const auto& [t, number] : outputs_)
    if (const ReplayResult& g = out_->outputs[number]; g.is == ReplayResult::Is::New)
      if (ReplayMemory& m = out_->memories[g.view.memory]; m.from == From::New) m.changes = t.version();
}

std::shared_ptr<Recorded> Recording::finish() {
  if (!out_) refuse("it calls no op");
  check_unchanged();
  if (!why_.empty() || !complete_) return {};
  count_changes();
  return std::move(out_);
}

}  // namespace warptape::graph
