#include "bindings/device/profiler_calls.h"

#include <algorithm>

namespace py = pybind11;

namespace warptape::bindings {
namespace {

constexpr const char* kCapsule = "warptape.PythonCalls";

PyObject* module_call = nullptr;  // kept for ever
std::vector<std::string>& hidden_files() {
  static auto* all = new std::vector<std::string>;
  return *all;
}

Object code_of(PyFrameObject* frame) { return Object(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame))); }

// sys.setprofile, or a C function by PyEval_SetProfile, in this thread.
bool other_profiler() {
  PyObject* get = PySys_GetObject("getprofile");  // borrowed
  Object found(get ? PyObject_CallNoArgs(get) : nullptr);
  if (!found) PyErr_Clear();
  return found && found.get() != Py_None;
}

}  // namespace

void set_profiled_code(PyObject* call, std::vector<std::string> files) {
  module_call = Py_NewRef(call);
  hidden_files() = std::move(files);
}

std::shared_ptr<void> PythonCalls::watch(const ProfilerOptions& options) {
  if (!PyGILState_Check() || other_profiler()) return nullptr;
  auto made = std::make_shared<PythonCalls>();
  made->modules_alone_ = !options.stacks;
  made->thread_ = PyThreadState_Get();
  made->begin_those_that_run();
  // The interpreter keeps the capsule, and with it the record, until its thread ends or sets another hook.
  auto* kept = new std::shared_ptr<PythonCalls>(made);
  Object capsule(PyCapsule_New(kept, kCapsule, [](PyObject* o) {
    delete static_cast<std::shared_ptr<PythonCalls>*>(PyCapsule_GetPointer(o, kCapsule));
  }));
  if (!capsule) {
    delete kept;
    throw PythonErrorSet();
  }
  PyEval_SetProfile(&PythonCalls::on_event, capsule.get());
  return made;
}

void PythonCalls::stop() {
  closed_ = true;
  const int64_t now = profiler_now();
  for (const Open& o : open_)
    if (o.call != PythonCall::kNone) calls_[o.call].end = now;
  open_.clear();
  if (PyThreadState_Get() == thread_) PyEval_SetProfile(nullptr, nullptr);
}

py::tuple PythonCalls::take() {
  auto listed = [](std::vector<Object>& objects) {
    py::list out;
    for (const Object& o : std::exchange(objects, {})) out.append(py::handle(o.get()));
    return out;
  };
  py::list calls;
  for (const PythonCall& c : std::exchange(calls_, {}))
    calls.append(py::make_tuple(c.code, c.parent == PythonCall::kNone ? -1 : int64_t{c.parent}, c.module,
                                c.start, c.end));
  return py::make_tuple(listed(codes_), listed(modules_), dropped_, calls);
}

int PythonCalls::on_event(PyObject* capsule, PyFrameObject* frame, int what, PyObject*) {
  if (what != PyTrace_CALL && what != PyTrace_RETURN) return 0;
  PythonCalls& calls = **static_cast<std::shared_ptr<PythonCalls>*>(PyCapsule_GetPointer(capsule, kCapsule));
  if (calls.closed_) {  // by another thread
    PyEval_SetProfile(nullptr, nullptr);
    return 0;
  }
  Object code = code_of(frame);
  if (calls.modules_alone_ && code.get() != module_call) return 0;
  try {
    if (what == PyTrace_CALL)
      calls.begin(frame, std::move(code));
    else
      calls.end(code.get());
  } catch (const std::bad_alloc&) {  // the record ends here
    calls.stop();
  }
  return 0;
}

void PythonCalls::begin_those_that_run() {
  std::vector<Object> frames;
  Object frame(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(thread_)));
  while (frame) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.get());
    Object outer(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
    frames.push_back(std::move(frame));
    frame = std::move(outer);
  }
  for (auto at = frames.rbegin(); at != frames.rend(); ++at) {
    auto* f = reinterpret_cast<PyFrameObject*>(at->get());
    Object code = code_of(f);
    if (!modules_alone_ || code.get() == module_call) begin(f, std::move(code));
  }
}

void PythonCalls::begin(PyFrameObject* frame, Object code) {
  PyObject* key = code.get();
  uint32_t call = PythonCall::kNone;
  const uint32_t number = number_of(std::move(code));
  if (calls_.size() >= kMaxCalls) {
    ++dropped_;
  } else if (!hidden_[number]) {
    uint32_t parent = PythonCall::kNone;
    for (auto at = open_.rbegin(); at != open_.rend() && parent == PythonCall::kNone; ++at) parent = at->call;
    const int32_t module = key == module_call ? module_of(frame) : -1;
    call = static_cast<uint32_t>(calls_.size());
    calls_.push_back({number, parent, module, profiler_now(), 0});
  }
  open_.push_back({call, key});
}

// A return whose call was not seen, as where greenlets switch, is passed over; what lies above one that was
// seen ends with it.
void PythonCalls::end(PyObject* code) {
  size_t at = open_.size();
  while (at && open_[at - 1].code != code) --at;
  if (!at) return;
  const int64_t now = profiler_now();
  for (; open_.size() >= at; open_.pop_back())
    if (open_.back().call != PythonCall::kNone) calls_[open_.back().call].end = now;
}

uint32_t PythonCalls::number_of(Object code) {
  const auto [at, fresh] = code_numbers_.try_emplace(code.get(), static_cast<uint32_t>(codes_.size()));
  if (fresh) {
    const std::string file = shown_text(reinterpret_cast<PyCodeObject*>(code.get())->co_filename);
    hidden_.push_back(std::ranges::count(hidden_files(), file) > 0);
    codes_.push_back(std::move(code));
  }
  return at->second;
}

// `self` of Module.__call__.
int32_t PythonCalls::module_of(PyFrameObject* frame) {
  Object locals(PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_locals"));
  Object self(locals ? PyMapping_GetItemString(locals.get(), "self") : nullptr);
  if (!self) {
    PyErr_Clear();
    return -1;
  }
  const auto [at, fresh] = module_numbers_.try_emplace(self.get(), static_cast<int32_t>(modules_.size()));
  if (fresh) modules_.push_back(std::move(self));
  return at->second;
}

}  // namespace warptape::bindings
