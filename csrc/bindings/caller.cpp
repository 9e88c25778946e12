#include "bindings/caller.h"

namespace py = pybind11;

namespace warptape::bindings {
namespace {
std::string package_folder;
}

void set_package_folder(std::string path) { package_folder = std::move(path); }

std::string call_site() {
  Object frame(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame) {
    auto* f = reinterpret_cast<PyFrameObject*>(frame.get());
    Object code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
    auto* c = reinterpret_cast<PyCodeObject*>(code.get());
    const std::string file = shown_text(c->co_filename);
    if (!file.starts_with(package_folder))
      return file + ":" + std::to_string(PyFrame_GetLineNumber(f)) + " in " + shown_text(c->co_name);
    frame = Object(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
  }
  return "warptape";
}

std::vector<Tensor> tensors_of(const py::sequence& list, const char* what) {
  std::vector<Tensor> out;
  for (py::handle item : list) {
    WT_CHECK(is_tensor(item.ptr()), TypeError, what, ": expected tensors, got ",
             Py_TYPE(item.ptr())->tp_name);
    out.push_back(tensor_of(item.ptr()));
  }
  return out;
}

}  // namespace warptape::bindings
