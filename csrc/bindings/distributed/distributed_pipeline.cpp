// A backward pass in two halves: what pipelines need of the engine.
#include "autograd/split_backward.h"
#include "bindings/common.h"
#include "bindings/distributed/distributed.h"

namespace warptape::bindings {

namespace py = pybind11;

template <>
inline constexpr bool kBound<DeferredBackward> = true;

namespace {

std::vector<Tensor> tensors_or_none(const py::sequence& list) {
  std::vector<Tensor> out;
  for (py::handle item : list) {
    WT_CHECK(item.is_none() || is_tensor(item.ptr()), TypeError, "backward: expected tensors or None, got ",
             Py_TYPE(item.ptr())->tp_name);
    out.push_back(item.is_none() ? Tensor() : tensor_of(item.ptr()));
  }
  return out;
}

}  // namespace

void init_distributed_pipeline(py::module_& m) {
  py::class_<DeferredBackward>(m, "_DeferredBackward")
      .def(py::init<>())
      .def(
          "run_inputs",
          [](DeferredBackward& rest, const py::sequence& roots, const py::sequence& gradients,
             const py::sequence& inputs) {
            const auto r = tensors_or_none(roots), g = tensors_or_none(gradients),
                       i = tensors_or_none(inputs);
            std::vector<Tensor> out;
            {
              GilRelease unlocked;
              out = run_backward_inputs(r, g, i, rest);
            }
            return py::reinterpret_steal<py::object>(wrap_tuple(out));
          },
          "The gradients of inputs, None where unused; the rest is left for run_rest.")
      .def("run_rest", &run_deferred, py::call_guard<GilRelease>(),
           "Does what is left and adds to the leaves' .grad; nothing is left then.");
}

}  // namespace warptape::bindings
