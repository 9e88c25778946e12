#include "bindings/caller.h"

#include <cstring>

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
    const char* file = PyUnicode_AsUTF8(c->co_filename);
    const char* function = PyUnicode_AsUTF8(c->co_name);
    if (!file || !function) throw PythonErrorSet();
    if (std::strncmp(file, package_folder.c_str(), package_folder.size()) != 0)
      return std::string(file) + ":" + std::to_string(PyFrame_GetLineNumber(f)) + " in " + function;
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
