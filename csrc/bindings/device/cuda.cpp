// warptape._C._cuda: the device runtime for python/warptape/cuda. Handles are ints. Made on first use, so
// that importing the package does not pay for it. Whatever may wait for a device releases the GIL.
#include "bindings/device/cuda.h"

#include "bindings/bound_object.h"
#include "bindings/common.h"
#include "core/device_runtime.h"
#include "graph/record/region.h"
#include "graph/record/trace.h"
#include "ops/fft/fft.h"

namespace py = pybind11;

namespace warptape::bindings {
namespace {

DeviceRuntime& runtime() { return runtime_of(DeviceType::CUDA); }
// For what depends on the order of work: calls that a compiled region has recorded come first.
DeviceRuntime& runtime_in_order() {
  if (thread_state().deferral) thread_state().deferral->flush();
  return runtime();
}
Device cuda_device(int index) { return resolved({DeviceType::CUDA, static_cast<int8_t>(index)}); }
StreamHandle as_handle(uintptr_t p) { return reinterpret_cast<void*>(p); }

using Unlocked = py::call_guard<GilRelease>;

// ---- devices ----

py::object why_not() {
  std::string why;
  bool there;
  {
    GilRelease unlocked;
    there = find_runtime(DeviceType::CUDA, &why);
  }
  return there ? py::object(py::none()) : py::object(py::str(why));
}

// 0 for every reason not to have one; why_not() says which.
int device_count() {
  DeviceRuntime* r = find_runtime(DeviceType::CUDA);
  return r ? r->device_count() : 0;
}

py::dict properties(int index) {
  DeviceProperties p = runtime().properties(cuda_device(index).index);
  py::dict d;
  d["name"] = p.name;
  d["major"] = p.major;
  d["minor"] = p.minor;
  d["total_memory"] = p.total_memory;
  d["multi_processor_count"] = p.multi_processor_count;
  d["uuid"] = p.uuid;
  d["L2_cache_size"] = p.l2_cache_size;
  d["max_threads_per_multi_processor"] = p.max_threads_per_multi_processor;
  d["warp_size"] = p.warp_size;
  d["regs_per_multiprocessor"] = p.regs_per_multiprocessor;
  d["shared_memory_per_block"] = p.shared_memory_per_block;
  d["shared_memory_per_block_optin"] = p.shared_memory_per_block_optin;
  d["shared_memory_per_multiprocessor"] = p.shared_memory_per_multiprocessor;
  d["is_integrated"] = static_cast<int>(p.is_integrated);
  d["is_multi_gpu_board"] = static_cast<int>(p.is_multi_gpu_board);
  return d;
}

std::vector<std::pair<std::string, std::string>> versions() {
  DeviceRuntime* r = find_runtime(DeviceType::CUDA);
  return r ? r->versions() : std::vector<std::pair<std::string, std::string>>();
}

void bind_devices(py::module_& m) {
  m.def("why_not", why_not, "None where CUDA can be used, else what is missing.");
  m.def("in_use", [] { return device_in_use(DeviceType::CUDA); });
  m.def("device_count", device_count, Unlocked());
  m.def("current_device", [] { return runtime().current_device(); });
  m.def("set_device", [](int index) { runtime().set_current_device(cuda_device(index).index); });
  m.def("properties", properties);
  m.def("can_access_peer", [](int index, int peer) {
    return runtime().can_access_peer(cuda_device(index).index, cuda_device(peer).index);
  });
  m.def("versions", versions, Unlocked());
  m.def(
      "synchronize", [](int index) { runtime_in_order().synchronize(cuda_device(index).index); }, Unlocked());
  m.def(
      "fft_plans",
      [](int device, int what, int64_t value) {
        return ops::fft_plans(cuda_device(device), static_cast<kernels::FftPlans>(what), value);
      },
      Unlocked());
  m.def("set_switch",
        [](const std::string& name, bool on) { set_library_switch(DeviceType::CUDA, name.c_str(), on); });
  m.def("range_push", [](const std::string& text) { return runtime().range_push(text.c_str()); });
  m.def("range_pop", [] { return runtime().range_pop(); });
  m.def("mark", [](const std::string& text) { runtime().mark(text.c_str()); });
  m.def("default_generator", [](int index) {
    return py::reinterpret_steal<py::object>(
        wrap(default_generator({DeviceType::CUDA, static_cast<int8_t>(index)})));
  });
}

// ---- memory ----

NamedStats memory_stats(int index) {
  const int i = cuda_device(index).index;
  NamedStats all = runtime().memory_stats(i);
  MemoryStats s = runtime().allocator(i).stats();
  for (auto [name, value] : {std::pair{"allocated_bytes.all.current", s.allocated},
                             {"allocated_bytes.all.peak", s.peak_allocated},
                             {"reserved_bytes.all.current", s.reserved},
                             {"reserved_bytes.all.peak", s.peak_reserved}}) {
    auto same = [name = name](const auto& pair) { return pair.first == name; };
    if (std::find_if(all.begin(), all.end(), same) == all.end()) all.emplace_back(name, value);
  }
  return all;
}

bool is_pinned(py::handle o) {
  const Tensor& t = tensor_arg(o.ptr(), "is_pinned");
  return t.device().is_host() && t.data() && device_in_use(DeviceType::CUDA) &&
         runtime().is_page_locked(t.data());
}

py::object pin(py::handle o) {
  const Tensor& t = tensor_arg(o.ptr(), "pin_memory");
  WT_CHECK(t.device().is_host(), DeviceError, "cannot pin '", t.device(),
           "' only dense CPU tensors can be pinned");
  runtime();
  if (is_pinned(o)) return py::reinterpret_borrow<py::object>(o);
  Tensor out;
  {
    GilRelease unlocked;
    out = empty_pinned(t.sizes(), t.dtype());
    raw_copy(out, t);
  }
  return py::reinterpret_steal<py::object>(wrap(out));
}

void record_stream(py::handle o, int index, uintptr_t stream) {
  const Tensor& t = tensor_arg(o.ptr(), "record_stream");
  WT_CHECK(t.device().is_cuda(), DeviceError, "record_stream: expected a CUDA tensor, got one on ",
           t.device());
  if (t.data()) runtime().record_stream(t.storage().data(), index, as_handle(stream));
}

void bind_memory(py::module_& m) {
  m.def("memory_stats", memory_stats, Unlocked());
  m.def("reset_peak_memory", [](int index) { runtime().allocator(cuda_device(index).index).reset_peak(); });
  m.def("memory_info", [](int index) { return runtime().memory_info(cuda_device(index).index); }, Unlocked());
  m.def(
      "empty_cache",
      [] {
        if (!device_in_use(DeviceType::CUDA)) return;
        for (int i = 0; i < runtime().device_count(); ++i) runtime().allocator(i).empty_cache();
      },
      Unlocked());
  m.def("set_memory_fraction", [](int index, double fraction) {
    runtime().set_memory_fraction(cuda_device(index).index, fraction);
  });
  m.def("record_stream", record_stream);
  m.def("is_pinned", is_pinned);
  m.def("pin", pin);
}

// ---- streams and events ----

// Made when first recorded, on the device of that stream.
class Event {
 public:
  Event(bool timing, bool blocking) : timing_(timing), blocking_(blocking) {}
  ~Event() {
    if (handle_) runtime().free_event(handle_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(int index, uintptr_t stream) {
    WT_CHECK(!handle_ || index == index_, DeviceError, "Event.record: Event device cuda:", index_,
             " does not match recording stream's device cuda:", index, ".");
    if (!handle_) {
      handle_ = runtime().new_event(index, timing_, blocking_);
      index_ = index;
    }
    runtime_in_order().record_event(handle_, index, as_handle(stream));
    recorded_ = true;
  }
  void wait(int index, uintptr_t stream) {
    if (recorded_) runtime_in_order().wait_event(index, as_handle(stream), handle_);
  }
  bool query() { return !recorded_ || runtime_in_order().event_done(handle_); }
  void synchronize() {
    if (recorded_) runtime_in_order().synchronize_event(handle_);
  }
  double elapsed_ms(Event& end) {
    const char* op = "Event.elapsed_time";
    WT_CHECK(timing_ && end.timing_, ValueError, op,
             ": Both events must be created with argument 'enable_timing=True'.");
    WT_CHECK(recorded_ && end.recorded_, ValueError, op,
             ": Both events must be recorded before calculating elapsed time.");
    WT_CHECK(query() && end.query(), Error, op,
             ": Both events must be completed before calculating elapsed time; call synchronize() first.");
    return runtime().elapsed_ms(handle_, end.handle_);
  }
  uintptr_t handle() const { return as_int(handle_); }
  int index() const { return handle_ ? index_ : -1; }

 private:
  EventHandle handle_ = nullptr;
  int index_ = -1;
  bool timing_, blocking_, recorded_ = false;
};

}  // namespace
template <>
inline constexpr bool kBound<Event> = true;
namespace {

void bind_streams(py::module_& m) {
  m.def("current_stream",
        [](int index) { return as_int(runtime().current_stream(cuda_device(index).index)); });
  m.def("set_stream", [](int index, uintptr_t stream) {
    if (runtime().current_device() != index) runtime().set_current_device(index);
    if (runtime().current_stream(index) != as_handle(stream))
      runtime_in_order().set_current_stream(index, as_handle(stream));
  });
  m.def("new_stream", [](int index, int priority) {
    return as_int(runtime().new_stream(cuda_device(index).index, priority));
  });
  m.def(
      "stream_done",
      [](int index, uintptr_t stream) { return runtime_in_order().stream_done(index, as_handle(stream)); },
      Unlocked());
  m.def(
      "synchronize_stream",
      [](int index, uintptr_t stream) { runtime_in_order().synchronize_stream(index, as_handle(stream)); },
      Unlocked());
  py::class_<Event>(m, "Event", py::module_local())
      .def(py::init<bool, bool>())
      .def("record", &Event::record, Unlocked())
      .def("wait", &Event::wait, Unlocked())
      .def("query", &Event::query, Unlocked())
      .def("synchronize", &Event::synchronize, Unlocked())
      .def("elapsed_ms", &Event::elapsed_ms, Unlocked())
      .def_property_readonly("handle", &Event::handle)
      .def_property_readonly("device_index", &Event::index);
}

// ---- graphs ----

class Graph {
 public:
  Graph() = default;
  ~Graph() {
    try {
      if (capturing_) runtime().free_graph(runtime().end_capture(index_));
    } catch (const Error&) {  // the capture was broken already
    }
    reset();
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin(uint64_t pool, const std::string& mode) {
    WT_CHECK(!capturing_ && !graph_, Error,
             "capture_begin: this graph already holds a capture; reset() it or make another CUDAGraph");
    index_ = runtime().current_device();
    WT_CHECK(runtime().current_stream(index_), Error,
             "capture_begin: CUDA graphs must be captured on a non-default stream. (However, after "
             "capture, it's ok to replay them on the default stream.) Use `with warptape.cuda.graph(g):` "
             "or `with warptape.cuda.stream(s):`");
    runtime().fault_record(index_);  // made now: a capture cannot allocate it
    pool_ = pool ? pool : runtime().new_pool();
    runtime_in_order().begin_capture(index_, pool_, mode.c_str());
    capturing_ = true;
  }

  void end() {
    WT_CHECK(capturing_, Error, "capture_end: no capture is under way; call capture_begin() first");
    runtime_in_order();
    capturing_ = false;
    graph_ = runtime().end_capture(index_);
  }

  void replay() {
    WT_CHECK(graph_, Error, "replay: Called CUDAGraph::replay without a preceding successful capture.");
    runtime_in_order().replay(graph_);
  }

  void reset() {
    if (graph_) runtime().free_graph(graph_);
    graph_ = nullptr;
  }

  uint64_t pool() const {
    WT_CHECK(pool_, Error, "pool: Called CUDAGraph::pool() without a preceding successful capture.");
    return pool_;
  }

 private:
  GraphHandle graph_ = nullptr;
  uint64_t pool_ = 0;
  int index_ = 0;
  bool capturing_ = false;
};

}  // namespace
template <>
inline constexpr bool kBound<Graph> = true;
namespace {

void bind_graphs(py::module_& m) {
  m.def("new_pool", [] { return runtime().new_pool(); });
  m.def("is_capturing", [] { return device_in_use(DeviceType::CUDA) && runtime().is_capturing(); });
  py::class_<Graph>(m, "Graph", py::module_local())
      .def(py::init<>())
      .def("begin", &Graph::begin, Unlocked())
      .def("end", &Graph::end, Unlocked())
      .def("replay", &Graph::replay, Unlocked())
      .def("reset", &Graph::reset, Unlocked())
      .def("pool", &Graph::pool);
}

}  // namespace

void init_cuda(py::module_& m) {
  m.def("_cuda_in_use", [] { return device_in_use(DeviceType::CUDA); });
  m.def("_cuda_module", [m]() -> py::object {
    // Asked of its dict: the module's __getattr__ would load all of PyTorch's names to look for it.
    const auto names = m.attr("__dict__").cast<py::dict>();
    if (names.contains("_cuda")) return names["_cuda"];
    auto cuda = py::module_::import("types").attr("ModuleType")("warptape._C._cuda").cast<py::module_>();
    bind_devices(cuda);
    bind_memory(cuda);
    bind_memory_history(cuda);
    bind_streams(cuda);
    bind_graphs(cuda);
    refuse_pickling(cuda);
    m.attr("_cuda") = cuda;
    return cuda;
  });
}

// Its stream may wait for another rank, which may be a thread of this process.
void copy_unlocked(const Tensor& dst, const Tensor& src) {
  GilRelease release(dst.device().is_accelerator() || src.device().is_accelerator() ? GilRelease::kWorthIt
                                                                                    : 0);
  raw_copy(dst, src);
}
Scalar item_unlocked(const Tensor& t) {
  if (const graph::Tracer* tracer = graph::Tracer::recording()) tracer->read(t, "item()");
  graph::refuse_replay("item() reads a value");
  GilRelease release(t.device().is_accelerator() ? GilRelease::kWorthIt : 0);
  return item(t);
}

}  // namespace warptape::bindings
