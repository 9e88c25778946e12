// warptape._C
#include <pybind11/pybind11.h>

#include "bindings/autograd/autograd.h"
#include "bindings/device/cuda.h"
#include "bindings/distributed/distributed.h"
#include "bindings/errors.h"
#include "bindings/ops/override.h"
#include "core/build_info.h"
#include "core/device_runtime.h"
#include "core/environment.h"
#include "core/memory/memory_trace.h"
#include "kernels/runtime/parallel.h"
#include "kernels/runtime/services.h"

namespace warptape::bindings {
namespace {

class PythonServices final : public kernels::Services {
 public:
  // Runs the handlers of signals that came; Ctrl-C's raises KeyboardInterrupt. Outside of the main thread it
  // does nothing.
  void check_interrupt() override {
    GilGuard gil;
    if (PyErr_CheckSignals() < 0) throw PythonErrorSet();
  }

  // Of what pip installed.
  std::string lapack_library() override {
    GilGuard gil;
    try {
      auto find = pybind11::module_::import("importlib.util").attr("find_spec");
      pybind11::object spec = find("scipy_openblas32");
      if (spec.is_none()) return "";
      const auto package = spec.attr("origin").cast<std::string>();
      return package.substr(0, package.rfind('/')) + "/lib/libscipy_openblas.so";
    } catch (pybind11::error_already_set& e) {
      e.restore();
      throw PythonErrorSet();
    }
  }
};

// What is neither hot nor a tensor: settings, statistics, build information.
void bind_settings(pybind11::module_& m) {
  m.def("get_num_threads", [] { return kernels::cpu::num_threads(); }, "Threads that one op may use.");
  m.def(
      "set_num_threads",
      [](int n) {
        WT_CHECK(n >= 1, ValueError, "set_num_threads: expected a positive integer, got ", n);
        kernels::cpu::set_num_threads(n);
      },
      pybind11::arg("n"), "Sets the threads that one op may use; results do not depend on it.");
  m.def("_get_default_dtype",
        [] { return pybind11::reinterpret_steal<pybind11::object>(wrap(rank_context().default_dtype)); });
  m.def("_set_default_dtype", [](pybind11::handle d) {
    WT_CHECK(is_dtype(d.ptr()), TypeError, "set_default_dtype: expected a dtype");
    WT_CHECK(is_floating(dtype_of(d.ptr())), TypeError,
             "set_default_dtype: only floating-point types are supported as the default type");
    rank_context().default_dtype = dtype_of(d.ptr());
  });
  m.def("_get_default_device",
        [] { return pybind11::reinterpret_steal<pybind11::object>(wrap(default_device())); });
  m.def("_set_default_device",
        [](pybind11::handle d) { rank_context().default_device = device_of(d.ptr()); });
  m.def("_resolve_device", [](pybind11::handle d) {
    return pybind11::reinterpret_steal<pybind11::object>(wrap(resolved(device_of(d.ptr()))));
  });
  // What libraries ask of torch._C though it changes nothing here.
  m.def("_log_api_usage_once", [](const pybind11::args&) {}, "Does nothing: nobody counts calls here.");
  m.def("_get_tracing_state", [] { return pybind11::none(); }, "None: nothing is traced here.");
  m.attr("_GLIBCXX_USE_CXX11_ABI") = true;
  m.def("_seed_cuda", [](uint64_t seed) { rank_context().cuda_generators.manual_seed(seed); });
  m.def("_set_deterministic", [](bool on) { rank_context().deterministic_algorithms = on; });
  m.def("_set_deterministic_fill_uninitialized_memory",
        [](bool on) { rank_context().fill_uninitialized_memory = on; });
  m.def("_get_deterministic_fill_uninitialized_memory",
        [] { return rank_context().fill_uninitialized_memory; });
  m.def("_get_deterministic", [] { return rank_context().deterministic_algorithms; });
  m.def("_set_plugin_folder", [](const std::string& path) { set_plugin_folder(path.c_str()); });
  m.def("_set_package_folders",
        [](std::vector<std::string> folders) { set_package_folders(std::move(folders)); });
  m.def("_memory_stats", [] {
    MemoryStats s = cpu_allocator().stats();
    pybind11::dict d;
    d["allocated_bytes"] = s.allocated;
    d["peak_allocated_bytes"] = s.peak_allocated;
    d["reserved_bytes"] = s.reserved;
    d["peak_reserved_bytes"] = s.peak_reserved;
    d["allocations"] = s.allocations;
    d["cache_hits"] = s.cache_hits;
    return d;
  });
  m.def("_build_info", [] {
    pybind11::dict d;
    for (const auto& [name, value] : build_info()) d[pybind11::str(name)] = value;
    d["cuda"] = plugin_build(DeviceType::CUDA);
    return d;
  });
  m.def("_reset_peak_memory", [] { cpu_allocator().reset_peak(); });
  m.def("_empty_cache", [] { cpu_allocator().empty_cache(); });
  m.def("_start_memory_trace", &start_memory_trace);
  m.def("_memory_trace_length", &memory_trace_length);
  m.def(
      "_end_memory_trace",
      [] {
        pybind11::list events;
        for (const MemoryEvent& e : end_memory_trace())
          events.append(pybind11::make_tuple(e.time, reinterpret_cast<uintptr_t>(e.data), e.bytes,
                                             to_string(e.device)));
        return events;
      },
      "[(nanoseconds, address, bytes, device)]; negative bytes were given back.");
}

}  // namespace
}  // namespace warptape::bindings

PYBIND11_MODULE(_C, m) {
  namespace b = warptape::bindings;
  pybind11::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const warptape::Error&) {
      b::set_python_error();
    } catch (const warptape::PythonErrorSet&) {
    }
  });
  try {
    b::init_frontend();
    b::init_errors(m.ptr());
    warptape::check_environment();
    b::init_dtypes_devices(m.ptr());
    b::init_layouts(m.ptr());
    b::init_tensor_type(m.ptr());
    b::init_overrides(m.ptr());
    b::init_ops(m.ptr());
    b::init_numpy(m.ptr());
    b::init_bytes_dlpack(m.ptr());
    b::init_storages(m.ptr());
    b::init_autograd(m.ptr());
    b::bind_settings(m);
    b::init_profiler(m.ptr());
    b::init_transforms(m.ptr());
    b::init_graph(m.ptr());
    b::init_inference(m.ptr());
    b::init_trace(m.ptr());
    b::init_extensions(m.ptr());
    b::init_cuda(m);
    b::init_distributed(m);
    warptape::kernels::install(*new b::PythonServices);
  } catch (const warptape::PythonErrorSet&) {
    throw pybind11::error_already_set();
  }
}
