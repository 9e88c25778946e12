#include "graph/run/replay.h"

#include <algorithm>

#include "graph/ir/storage_state.h"
#include "graph/record/region.h"

namespace warptape::graph {
namespace {

using From = ReplayMemory::From;

// Programs count offsets from multiples of it: see find_bases().
constexpr int64_t kAlike = 16;

int64_t begin_of(const Tensor& t) { return t.offset() * static_cast<int64_t>(t.itemsize()); }

}  // namespace

std::atomic<uint64_t> module_changes{0};

bool ReplayMemory::like(const ReplayMemory& o) const {
  if (from != o.from || index != o.index || changes != o.changes) return false;
  if (from == From::New) return bytes == o.bytes;
  return last == 0 || o.last == 0 ? last == o.last
                                  : first - begin == o.first - o.begin && last - begin == o.last - o.begin;
}

bool ReplayResult::like(const ReplayResult& o) const {
  return is == o.is && index == o.index && view.memory == o.view.memory && view.dtype == o.view.dtype &&
         view.sizes == o.view.sizes && view.strides == o.view.strides && inference == o.inference &&
         base == o.base && origin == o.origin;
}

bool Recorded::like(const Recorded& o) const {
  const auto alike = [](const auto& a, const auto& b) { return a.like(b); };
  const auto same = [](const Retained& a, const Retained& b) {
    return a.tensor.same(b.tensor) && a.view == b.view && a.requires_grad == b.requires_grad;
  };
  return program == o.program && arguments == o.arguments && results == o.results &&
         std::ranges::equal(memories, o.memories, alike) && std::ranges::equal(outputs, o.outputs, alike) &&
         std::ranges::equal(retained, o.retained, same);
}

bool Recorded::fits(std::span<const Tensor> arguments) {
  for (const Retained& k : retained)
    if (!k.view.fits(k.tensor) || requires_grad(k.tensor) != k.requires_grad) return false;
  for (const ReplayMemory& m : memories) {
    if (m.from == From::New) continue;
    const Tensor& t = outside(m, arguments);
    const Storage& s = t.storage();
    const int64_t shift = m.from == From::Argument ? begin_of(t) - m.begin : 0;
    if (writer_of(s) || s.is_deferred() || (m.changes && s.pending()) || !t.device().is_cpu() ||
        shift % kAlike)
      return false;
    if (s.exported() && accessed_externally(s)) return false;  // by which memories may overlap
    if (m.last && (m.first + shift < 0 || m.last + shift > static_cast<int64_t>(s.bytes()))) return false;
  }
  return are_apart(arguments);
}

// Whether memories that were distinct are, and retained tensors lie on that of the first on theirs.
bool Recorded::are_apart(std::span<const Tensor> arguments) {
  bool moved = retained_on_.size() != retained.size();
  retained_on_.resize(retained.size());
  for (size_t i = 0; i < retained.size(); ++i) {
    const Storage* s = &retained[i].tensor.storage();
    moved |= std::exchange(retained_on_[i], s) != s;
  }
  if (moved) {
    apart_.clear();
    for (const Retained& k : retained)
      if (&retained[memories[k.view.memory].index].tensor.storage() != &k.tensor.storage())
        return retained_on_.clear(), false;
    for (const ReplayMemory& m : memories)
      if (m.from == From::Retained) apart_.push_back(&retained[m.index].tensor.storage());
    std::ranges::sort(apart_);
    if (std::ranges::adjacent_find(apart_) != apart_.end()) return retained_on_.clear(), false;
  }
  SmallVector<const Storage*, 16> others;
  for (const ReplayMemory& m : memories) {
    if (m.from != From::Argument) continue;
    others.push_back(&arguments[m.index].storage());
    if (std::ranges::binary_search(apart_, others.back())) return false;
  }
  std::ranges::sort(others);
  return std::ranges::adjacent_find(others) == others.end();
}

Replay::Replay(std::shared_ptr<Recorded> recorded, std::span<const Tensor> arguments)
    : recorded_(std::move(recorded)), arguments_(arguments) {
  const auto& memories = recorded_->memories;
  storages_.reserve(memories.size());
  versions_.reserve(memories.size());
  const Device cpu{};
  std::vector<bool> stays(memories.size());
  for (const ReplayResult& g : recorded_->outputs)
    if (g.is == ReplayResult::Is::New) stays[g.view.memory] = true;
  for (size_t i = 0; i < memories.size(); ++i) {
    const ReplayMemory& m = memories[i];
    int64_t shift = 0;
    if (m.from == From::New && !m.bound && !stays[i]) {
      storages_.emplace_back();
    } else if (m.from == From::New) {
      storages_.push_back(m.bytes ? Storage::deferred(m.bytes, cpu) : Storage::allocate_now(0, cpu));
    } else {
      const Tensor& t = recorded_->outside(m, arguments);
      storages_.push_back(t->storage);
      if (m.from == From::Argument) shift = begin_of(t) - m.begin;
    }
    shifts_.push_back(shift);
    versions_.push_back(storages_.back() ? storages_.back()->version() : 0);
  }
  calls_.reserve(recorded_->calls.size());
  for (const CallShape& shape : recorded_->calls) calls_.push_back(bind(shape));
  // As in a region, what is new and no output goes with the last call that needs it.
  for (size_t m = 0; m < memories.size(); ++m)
    if (memories[m].from == From::New && !stays[m]) storages_[m] = {};
}

Tensor Replay::bind(const ViewSpec& p) const {
  const int64_t shift = shifts_[p.memory] / static_cast<int64_t>(warptape::itemsize(p.dtype));
  return Tensor(Ref<TensorImpl>::adopt(
      new TensorImpl(storages_[p.memory], p.dtype, p.sizes, p.strides, p.offset + shift)));
}

Call Replay::bind(const CallShape& shape) const {
  std::vector<kernels::PhiloxKey> keys;
  if (!shape.call.keys.empty()) {
    const Ref<Generator> generator = default_generator(Device{});
    std::lock_guard lock(generator->mutex);
    for (const kernels::PhiloxKey& key : shape.call.keys)
      keys.push_back(generator->next_philox(key.call >> 63 ? PhiloxUse::Fill : PhiloxUse::Dropout));
  }
  Call unused;
  unused.kind = shape.call.kind;
  unused.public_op = shape.call.public_op;
  if (!shape.use.any) return unused;
  SmallVector<Tensor, 3> in;
  for (size_t k = 0; k < shape.in.size(); ++k)
    in.push_back(shape.use.in >> k & 1 ? bind(shape.in[k]) : Tensor());
  size_t next = 0;
  Call out = copy_of(shape.call, [&](const Tensor&) { return in[next++]; });
  out.keys = std::move(keys);
  out.in = std::move(in);
  for (const ViewSpec& p : shape.out) out.out.push_back(shape.use.out ? bind(p) : Tensor());
  return out;
}

void Replay::execute() {
  try {
    Programs::run(*recorded_->program, calls_);
  } catch (...) {
    calls_.clear();
    count_changes();
    throw;
  }
  calls_.clear();
}

void Replay::count_changes() {
  for (size_t m = 0; m < storages_.size(); ++m)
    if (storages_[m]) storages_[m]->set_version(versions_[m] + recorded_->memories[m].changes);
}

std::vector<Tensor> Replay::finish() {
  const Recorded& r = *recorded_;
  count_changes();
  std::vector<Tensor> tensors;
  tensors.reserve(r.outputs.size());
  for (const ReplayResult& g : r.outputs) {
    if (g.is != ReplayResult::Is::New) {
      tensors.push_back(g.is == ReplayResult::Is::Argument ? arguments_[g.index]
                                                           : r.retained[g.index].tensor);
      continue;
    }
    Storage& s = *storages_[g.view.memory];
    if (s.is_deferred()) s.materialize();  // that of empty(): nobody wrote it
    Tensor t = bind(g.view);
    t->inference = g.inference;
    if (g.base >= 0) set_view(t, tensors[static_cast<size_t>(g.base)], g.origin);
    tensors.push_back(std::move(t));
  }
  std::vector<Tensor> out;
  for (uint32_t i : r.results) out.push_back(tensors[i]);
  return out;
}

}  // namespace warptape::graph
