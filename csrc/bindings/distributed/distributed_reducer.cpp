// DistributedDataParallel's reducer and its communication hooks.
#include "distributed/group/reducer.h"

#include <pybind11/stl.h>

#include "bindings/common.h"
#include "bindings/distributed/distributed.h"

namespace warptape::bindings {

namespace py = pybind11;
using namespace distributed;

// What a hook in Python sees of a bucket.
struct BucketView : GradBucket {
  std::vector<Tensor> tensors;  // the parameters
};
template <>
inline constexpr bool kBound<BucketView> = true;
template <>
inline constexpr bool kBound<Reducer> = true;

namespace {

py::object wrapped(const Tensor& t) { return py::reinterpret_steal<py::object>(wrap(t)); }

std::vector<Tensor> tensors_of(const py::sequence& list) {
  std::vector<Tensor> out;
  for (py::handle item : list) {
    WT_CHECK(is_tensor(item.ptr()), TypeError, "DistributedDataParallel: expected tensors, got ",
             Py_TYPE(item.ptr())->tp_name);
    out.push_back(tensor_of(item.ptr()));
  }
  return out;
}

// The future that a hook in Python returned.
struct PythonReduction final : Reduction {
  explicit PythonReduction(Object f) : future(std::move(f)) {}
  ~PythonReduction() override {
    GilGuard gil;
    future = Object();
  }
  Tensor wait() override {
    GilGuard gil;
    Object value = checked(from_python([&] { return PyObject_CallMethod(future.get(), "wait", nullptr); }));
    if ((PyList_Check(value.get()) || PyTuple_Check(value.get())) && PySequence_Size(value.get()) == 1)
      value = checked(PySequence_GetItem(value.get(), 0));
    WT_CHECK(is_tensor(value.get()), TypeError,
             "communication hook: expected a future of the bucket's tensor, got one of ",
             Py_TYPE(value.get())->tp_name);
    return tensor_of(value.get());
  }
  Object future;
};

struct PythonHook final : CommHook {
  PythonHook(py::object f, std::string n, std::vector<Tensor> p)
      : hook(Object::share(f.ptr())), title(std::move(n)), parameters(std::move(p)) {}
  ~PythonHook() override {
    GilGuard gil;
    hook = Object();
  }
  const char* name() const override { return title.c_str(); }
  std::shared_ptr<Reduction> start(const GradBucket& bucket) override {
    GilGuard gil;
    BucketView view{bucket, {}};
    for (size_t i : bucket.parameters) view.tensors.push_back(parameters[i]);
    py::object arg = py::cast(std::move(view));
    Object future = call_python(hook.get(), arg.ptr());
    WT_CHECK(PyObject_HasAttrString(future.get(), "wait"), TypeError,
             "communication hook: expected a Future back, got ", Py_TYPE(future.get())->tp_name);
    return std::make_shared<PythonReduction>(std::move(future));
  }
  Object hook;
  std::string title;
  std::vector<Tensor> parameters;
};

py::dict stats_of(const Reducer& r) {
  const Reducer::Stats s = r.stats();
  py::dict out;
  out["iteration"] = s.passes;
  out["has_rebuilt_buckets"] = s.rebuilt;
  out["bucket_sizes"] = s.bucket_bytes;
  out["unused_parameters"] = s.unused;
  out["comm_hook"] = s.hook;
  out["backward_wait_seconds"] = s.wait_seconds;
  out["total_backward_wait_seconds"] = s.total_wait_seconds;
  return out;
}

}  // namespace

void init_distributed_reducer(py::module_& m) {
  py::class_<BucketView>(m, "GradBucket", "Gradients that travel together in one flat tensor.")
      .def(
          "index", [](const BucketView& b) { return b.index; }, "The bucket's place in the order of all.")
      .def(
          "is_last", [](const BucketView& b) { return b.is_last; }, "Whether it is the last of the pass.")
      .def(
          "buffer", [](const BucketView& b) { return wrapped(b.buffer); }, "The flat tensor, 1-D.")
      .def(
          "set_buffer", [](BucketView& b, py::object t) { b.buffer = tensors_of(py::make_tuple(t))[0]; },
          py::arg("buffer"), "Lets buffer() return another tensor.")
      .def(
          "gradients",
          [](const BucketView& b) { return py::reinterpret_steal<py::object>(wrap_list(b.views)); },
          "Views of the bucket's own memory, shaped as the parameters.")
      .def(
          "parameters",
          [](const BucketView& b) { return py::reinterpret_steal<py::object>(wrap_list(b.tensors)); },
          "The parameters whose gradients these are.");

  using Unlocked = py::call_guard<GilRelease>;
  py::class_<Reducer, std::shared_ptr<Reducer>>(m, "_Reducer")
      .def(py::init([](std::shared_ptr<ProcessGroup> group, py::sequence parameters,
                       std::vector<std::string> names, int64_t first, int64_t bytes, bool find_unused,
                       bool views, bool static_graph) {
             return std::make_shared<Reducer>(
                 std::move(group), tensors_of(parameters), std::move(names),
                 Reducer::Options{first, bytes, find_unused, views, static_graph});
           }),
           py::arg("group").none(false), py::arg("parameters"), py::arg("names"),
           py::arg("first_bucket_bytes"), py::arg("bucket_bytes"), py::arg("find_unused"),
           py::arg("gradients_are_views"), py::arg("static_graph"))
      .def("begin_forward", &Reducer::begin_forward, Unlocked())
      .def("prepare", [](Reducer& r, const py::sequence& outputs) { r.prepare(tensors_of(outputs)); })
      .def("begin_backward", &Reducer::begin_backward, Unlocked())
      .def("reduce", &Reducer::reduce, Unlocked())
      .def("prepare_without_reduction", &Reducer::prepare_without_reduction)
      .def("set_hook",
           [](Reducer& r, py::object f, std::string name) {
             r.set_hook(std::make_shared<PythonHook>(std::move(f), std::move(name), r.parameters()));
           })
      .def("set_compression",
           [](Reducer& r, py::handle dtype) {
             WT_CHECK(is_dtype(dtype.ptr()), TypeError, "set_compression: expected a dtype");
             r.set_hook(compress_hook(r.group(), dtype_of(dtype.ptr())));
           })
      .def("set_static_graph", &Reducer::set_static_graph)
      .def("stats", stats_of);
}

}  // namespace warptape::bindings
