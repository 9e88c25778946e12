// Which calls of a compiled function are replayed: see Note [Replays], csrc/graph/run/replay.h.
#include "bindings/bound_object.h"
#include "bindings/graph/value_signature.h"
#include "graph/record/region.h"
#include "graph/record/trace.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace warptape::bindings {
namespace replaying {
class Replays;
}
template <>
inline constexpr bool kBound<replaying::Replays> = true;

namespace replaying {

using graph::Compiled;
using graph::Recorded;
using graph::Region;

constexpr int kAlike = 2;                    // calls like the one before them, before there are replays
constexpr size_t kMostSlots = 16;            // kinds of calls
constexpr size_t kMostKnown = 10000;         // tensors
constexpr int kMostFailures = 20;            // calls in a row that gave nothing to replay
constexpr uint32_t kReplayable = kAutocast;  // what may be set in the thread's word

PyObject* missed = nullptr;  // says that a call was not replayed

// What of the thread and its rank decides what ops do.
struct ThreadKey {
  uint32_t dispatch;
  bool grad_mode, inference_mode, deterministic, fills;
  DType autocast, autocast_cuda, by_default;
  Device device;
  const RankContext* rank;
  bool operator==(const ThreadKey&) const = default;

  static ThreadKey now() {
    const RankContext& r = rank_context();
    return {thread_state().dispatch,
            thread_state().grad_mode,
            thread_state().inference_mode,
            r.deterministic_algorithms,
            r.fill_uninitialized_memory,
            thread_state().autocast_dtype,
            thread_state().autocast_cuda_dtype,
            r.default_dtype,
            r.default_device,
            &r};
  }
};

// One kind of calls: alike in arguments, and in what they find.
struct Slot {
  Described key;
  ThreadKey thread;
  std::shared_ptr<Recorded> recorded;
  Described results;
  uint64_t module_changes = 0;  // when they were last compared
  // By argument: the tensor that it was in all calls, which the function may have from elsewhere as well;
  // undefined once calls were alike with different ones.
  std::vector<Tensor> only;
  int alike = 0;
  int64_t until_check = 0;  // replays

  bool is_for(const std::vector<Tensor>& tensors) const {
    for (size_t i = 0; i < only.size(); ++i)
      if (only[i].defined() && !only[i].same(tensors[i])) return false;
    return true;
  }
  bool like(const Slot& o) const { return recorded->like(*o.recorded) && results == o.results; }
};

// A call that runs with its Python.
struct Watching final : graph::Recording {
  Watching(const Replays* owner, Described key, std::vector<Tensor> known)
      : Recording(key.tensors, std::move(known)),
        owner(owner),
        key(std::move(key)),
        thread(ThreadKey::now()) {}

  const Replays* owner;
  Described key;
  ThreadKey thread;
  uint64_t module_changes = graph::module_changes;
  // Those that this call would have been a replay of, but maybe for the tensors that they are for.
  std::vector<std::shared_ptr<Slot>> fit;
  std::shared_ptr<Slot> check;  // of these, the one that it is to be compared with
};

thread_local std::unique_ptr<Watching> prepared;

// Of one compiled function. Every member is guarded by the GIL.
class Replays {
 public:
  explicit Replays(std::shared_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}

  // The result of a replay, or `_MISSED`.
  py::object replay(const py::tuple& args, const py::dict& kwargs);
  // The call that was missed and has been entered is recorded.
  void record();
  // It has returned `out`. Text where it was to be compared and was not alike; else empty.
  std::string finish(const py::object& out, const py::tuple& args, const py::dict& kwargs);
  std::vector<std::string> problems() const {
    return problem_.empty() ? std::vector<std::string>() : std::vector{"not replayed: " + problem_};
  }

  int64_t check_every = 1000;  // replays of a kind, then one call is compared
  int64_t replays = 0;

 private:
  void fail(std::string why);
  std::string compare(Watching& w, std::shared_ptr<Slot> made);

  std::shared_ptr<Compiled> compiled_;
  std::vector<std::shared_ptr<Slot>> slots_;
  std::vector<Tensor> known_;
  std::string problem_;
  int failures_ = 0;
};

void Replays::fail(std::string why) {
  problem_ = std::move(why);
  ++failures_;
  // It is recorded or run eagerly, as is faster.
  if (failures_ >= kMostFailures) compiled_->adaptive = !compiled_->fullgraph, slots_.clear(), known_.clear();
}

py::object Replays::replay(const py::tuple& args, const py::dict& kwargs) {
  const auto miss = [] { return py::reinterpret_borrow<py::object>(missed); };
  const ThreadState& s = thread_state();
  prepared.reset();
  if (failures_ >= kMostFailures || Region::of_thread().depth() || graph::Tracer::current() ||
      (s.dispatch & ~kReplayable) || s.anomaly_mode || s.saved_tensor_hooks || s.key_tape)
    return miss();
  Described key;
  if (!key.add(args.ptr()) || !key.add(kwargs.ptr())) return fail("its arguments have " + key.why()), miss();
  const ThreadKey thread = ThreadKey::now();
  std::vector<std::shared_ptr<Slot>> fit;
  std::shared_ptr<Slot> check;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const std::shared_ptr<Slot> slot = slots_[i];  // other threads run where Python code is called
    if (slot->thread != thread || !(slot->key == key) || !slot->recorded->fits(key.tensors)) continue;
    fit.push_back(slot);
    if (slot->alike < kAlike || !slot->is_for(key.tensors) || slot->module_changes != graph::module_changes)
      continue;
    if (--slot->until_check < 0) {
      check = slot;
      break;
    }
    graph::Replay replay(slot->recorded, key.tensors);
    {
      const GilRelease release;
      replay.execute();
    }
    const std::vector<Tensor> results = replay.finish();
    ++replays;
    failures_ = 0;
    problem_.clear();
    ++compiled_->counts.calls;
    ++compiled_->counts.runs;
    return py::reinterpret_steal<py::object>(slot->results.build(results).release());
  }
  std::erase_if(known_, [](const Tensor& t) { return t.ref()->use_count() == 1; });
  if (known_.size() > kMostKnown) known_.clear(), slots_.clear(), fit.clear(), check = nullptr;
  prepared = std::make_unique<Watching>(this, std::move(key), known_);
  prepared->fit = std::move(fit);
  prepared->check = std::move(check);
  return miss();
}

void Replays::record() {
  if (!prepared) return;
  Region& region = Region::of_thread();
  if (prepared->owner == this && region.depth() == 1) region.start_recording(std::move(prepared));
  prepared.reset();
}

// What the function has to leave as it was, and what it may return.
void check(Watching& w, const Described& results, const py::tuple& args, const py::dict& kwargs) {
  if (graph::module_changes != w.module_changes) w.refuse("it changes attributes of modules");
  for (const Item& item : results.items)
    if (item.kind == Item::Kind::Object || item.type.get() == reinterpret_cast<PyObject*>(&PyMethod_Type))
      w.refuse("it returns an object that is no tensor");
  Described now;
  bool same = now.add(args.ptr()) && now.add(kwargs.ptr()) && now == w.key;
  for (size_t i = 0; same && i < now.tensors.size(); ++i) same = now.tensors[i].same(w.key.tensors[i]);
  if (!same) w.refuse("it changes its arguments");
  for (const Item& made : results.items)
    for (const Item& given : now.items)
      if (made.identity && made.kind == Item::Kind::Container && made.identity == given.identity)
        w.refuse("it returns a list or dict that it was given");
}

std::string Replays::finish(const py::object& out, const py::tuple& args, const py::dict& kwargs) {
  Region& region = Region::of_thread();
  auto* w = region.depth() == 1 ? static_cast<Watching*>(region.recording()) : nullptr;
  Described results;
  if (w) {
    if (!results.add(out.ptr())) w->refuse("it returns " + results.why());
    check(*w, results, args, kwargs);
    w->end(results.tensors);
  }
  try {
    const GilRelease release;
    region.leave();
  } catch (...) {
    if (w) region.release_recording();
    throw;
  }
  if (!w) return "";
  const std::unique_ptr<graph::Recording> recording = region.release_recording();
  if (w->is_on_device())
    failures_ = kMostFailures;  // programs are captured there: see Note [Captured programs]
  if (failures_ >= kMostFailures) return "";
  std::shared_ptr<Slot> made;
  if (std::shared_ptr<Recorded> recorded = w->finish()) {
    for (size_t i = 0; i < results.tensors.size(); ++i) {
      const graph::ReplayResult& g = recorded->outputs[recorded->results[i]];
      if (g.is == graph::ReplayResult::Is::New && Py_TYPE(results.objects[i]) != tensor_type)
        w->refuse(std::string("it returns a new ") + Py_TYPE(results.objects[i])->tp_name);
    }
    made = std::make_shared<Slot>(
        Slot{w->key, w->thread, std::move(recorded), std::move(results), w->module_changes, w->key.tensors});
    made->key.tensors.clear();
    made->key.objects.clear();
    made->results.tensors.clear();
    made->results.objects.clear();
  }
  if (!w->why().empty()) made = nullptr;
  for (const Tensor& t : w->known())
    if (!std::ranges::any_of(known_, [&](const Tensor& k) { return k.same(t); })) known_.push_back(t);
  return compare(*w, std::move(made));
}

std::string Replays::compare(Watching& w, std::shared_ptr<Slot> made) {
  std::string broken, why = w.why();
  if (why.empty() && !w.is_complete())
    why = "it reads tensors that are made anew, and by no op, in each call";
  bool known = false;
  for (const auto& slot : w.fit) {
    if (made && slot->like(*made)) {
      ++slot->alike;
      slot->module_changes = made->module_changes;
      slot->until_check = check_every;
      for (size_t i = 0; i < slot->only.size(); ++i)
        if (!slot->only[i].same(made->only[i])) slot->only[i] = {};
      known = true;
      continue;
    }
    // That tensors are others may say why it is not alike, but for numbers.
    if (!slot->is_for(w.key.tensors) && (!made || slot->recorded->arguments == made->recorded->arguments))
      continue;
    // What another thread does to modules meanwhile says nothing of the function.
    if (slot == w.check && (made || w.module_changes == graph::module_changes))
      broken = why.empty() ? "it calls other ops, with other numbers, or on other tensors" : why;
    std::erase(slots_, slot);
    fail("its calls differ, though their arguments are alike");
  }
  if (!made) fail(why);
  if (!made || known) return broken;
  if (slots_.size() == kMostSlots) slots_.erase(slots_.begin()), fail("it is called in too many ways");
  slots_.push_back(std::move(made));
  return broken;
}

}  // namespace replaying

void init_replay(py::module_& m) {
  using namespace replaying;
  missed = checked(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type))).release();
  m.attr("_MISSED") = py::reinterpret_borrow<py::object>(missed);
  py::class_<Replays>(m, "_Replays", py::module_local(), "Replayed calls: see csrc/graph/run/replay.h.")
      .def_readwrite("check_every", &Replays::check_every)
      .def_readonly("replays", &Replays::replays)
      .def_property_readonly("problems", &Replays::problems)
      .def("replay", &Replays::replay)
      .def("record", &Replays::record)
      .def("finish", &Replays::finish);
  m.def("_replays_of", [](Compiled& c) { return Replays(c.shared_from_this()); });
  m.def("_module_changed", [] { ++graph::module_changes; });
  m.def("_compare_by_identity",
        [](const py::object& type) { Py_XSETREF(Described::by_identity, Py_NewRef(type.ptr())); });
  m.def("_refuse_replay", [](const char* why) { graph::refuse_replay(why); });
}

}  // namespace warptape::bindings
