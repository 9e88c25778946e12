// What a profile recorded, as Python's objects.
#include "core/profiler.h"

#include <bit>

#include "bindings/device/profiler_calls.h"
#include "core/device_runtime.h"
#include "op/profile.h"

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace warptape::bindings {
namespace {

py::object object(PyObject* owned) { return py::reinterpret_steal<py::object>(checked(owned).release()); }

// Reads what op/profile.cpp wrote.
struct Reader {
  const int64_t* at;

  py::tuple ints() {
    py::tuple out(static_cast<size_t>(*at++));
    for (size_t i = 0; i < out.size(); ++i) out[i] = py::int_(*at++);
    return out;
  }
  py::object value() {
    switch (static_cast<PutMark>(*at++)) {
      case kPutNone:
        return py::none();
      case kPutTensor: {
        const auto dtype = static_cast<DType>(*at++);
        const py::tuple sizes = ints(), strides = ints();
        return py::make_tuple("tensor", object(wrap(dtype)), sizes, strides);
      }
      case kPutTensors:
        return py::make_tuple("tensors", values());
      case kPutInt:
        return py::int_(*at++);
      case kPutDouble:
        return py::float_(std::bit_cast<double>(*at++));
      case kPutBool:
        return py::bool_(*at++ != 0);
      case kPutInts:
        return py::list(ints());
    }
    return py::none();
  }
  py::list values() {
    py::list out;
    for (int64_t n = *at++; n > 0; --n) out.append(value());
    return out;
  }
};

py::object describe(const ProfilerThread& t, const ProfilerEvent& e) {
  constexpr const char* kinds[] = {"op", "backward", "user", "collective", "region", "kernel"};
  py::object args = py::none(), results = py::none(), stack = py::none();
  if (e.args != ProfilerEvent::kNone) {
    Reader reader{t.numbers.data() + e.args};
    args = reader.values();
    results = reader.values();
  }
  if (e.stack != ProfilerEvent::kNone) stack = py::str(t.stacks[e.stack]);
  const int64_t parent = e.parent == ProfilerEvent::kNone ? -1 : int64_t{e.parent};
  return py::make_tuple(e.name, kinds[static_cast<int>(e.kind)], parent, e.start, e.end, e.sequence,
                        e.memory[0], e.memory[1], args, results, stack);
}

py::object describe(const MemoryChange& m) {
  const int64_t event = m.event == ProfilerEvent::kNone ? -1 : int64_t{m.event};
  return py::make_tuple(m.time, m.bytes, m.address, object(wrap(m.device)), event);
}

py::object describe(const DeviceActivity& a) {
  return py::make_tuple(a.name, a.category, a.device, a.stream, a.start, a.end, a.bytes, a.event);
}

py::object take_calls(const ProfilerThread& t) {
  if (!t.calls) return py::none();
  auto& calls = *static_cast<PythonCalls*>(t.calls.get());
  calls.stop();
  return calls.take();
}

// [(id of the thread, events, memory, calls)] and what devices did.
py::tuple stop() {
  py::list out, activities;
  std::vector<DeviceActivity> done;
  for (const auto& t : stop_profile(done)) {
    py::list events, memory;
    for (const ProfilerEvent& e : t->events) events.append(describe(*t, e));
    for (const MemoryChange& m : t->memory) memory.append(describe(m));
    out.append(py::make_tuple(t->id, events, memory, take_calls(*t)));
  }
  for (const DeviceActivity& a : done) activities.append(describe(a));
  return py::make_tuple(out, activities);
}

}  // namespace

void init_profiler(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("_profiler_start", [](bool shapes, bool memory, bool stacks, bool device, bool nvtx, bool modules) {
    return start_profile({shapes, memory, stacks, device, nvtx, modules});
  });
  m.def("_profiler_codes", [](py::handle module_call, std::vector<std::string> hidden_files) {
    set_profiled_code(module_call.ptr(), std::move(hidden_files));
  });
  m.def("_profiler_stop", &stop);
  m.def("_profiler_join", &join_profile);
  m.def("_profiler_begin", [](const std::string& name) { return begin_user_event(name); });
  m.def("_profiler_end", &end_user_event);
}

}  // namespace warptape::bindings
