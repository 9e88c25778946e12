// Python as what stands above the library: see core/frontend.h.
#include "core/frontend.h"

#include "bindings/autograd/autograd.h"
#include "bindings/caller.h"
#include "bindings/device/profiler_calls.h"
#include "bindings/tensor/numpy.h"
#include "bindings/tensor/tensor_object.h"

namespace warptape::bindings {
const wtx_python* extension_functions();  // ops/extension.cpp

namespace {

bool is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

class PythonFrontend final : public Frontend {
 public:
  // The warning names the line that called the op.
  void warn(const char* text, Warning kind) override {
    GilGuard gil;
    Object category = Object::share(PyExc_UserWarning);
    if (kind == Warning::Tracer) {
      Object jit = checked(PyImport_ImportModule("warptape.compiler.jit"));
      category = checked(PyObject_GetAttrString(jit.get(), "TracerWarning"));
    }
    if (PyErr_WarnEx(category.get(), text, 1) < 0) throw PythonErrorSet();
  }

  std::string stack(bool waits) override {
    if (!PyGILState_Check() && (!waits || !PyGILState_GetThisThreadState() || is_ending())) return "";
    const GilGuard gil;
    std::string out;
    Object frame(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
    while (frame) {
      auto* f = reinterpret_cast<PyFrameObject*>(frame.get());
      Object code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
      auto* c = reinterpret_cast<PyCodeObject*>(code.get());
      out += message(shown_text(c->co_filename), "(", PyFrame_GetLineNumber(f), "): ", shown_text(c->co_name),
                     "\n");
      frame = Object(reinterpret_cast<PyObject*>(PyFrame_GetBack(f)));
    }
    return out;
  }

  std::string traceback() override {
    GilGuard gil;
    Object traceback(PyImport_ImportModule("traceback"));
    Object lines(
        traceback ? from_python([&] { return PyObject_CallMethod(traceback.get(), "format_stack", nullptr); })
                  : nullptr);
    Object empty_text(PyUnicode_FromString(""));
    Object text(lines ? PyUnicode_Join(empty_text.get(), lines.get()) : nullptr);
    if (!text) {
      PyErr_Clear();
      return "";
    }
    return shown_text(text.get());
  }

  std::string call_site() override {
    const GilGuard gil;
    return bindings::call_site();
  }

  std::shared_ptr<void> watch_calls(const ProfilerOptions& options) override {
    return PythonCalls::watch(options);
  }

  void* release_gil() override { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; }
  void reacquire_gil(void* state) override {
    from_python([&] { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); });
  }

  void release_object(void* object) override { bindings::release_object(object); }
  bool accesses(const Storage& exported) override { return seen_by_numpy(exported); }
  const wtx_python* extension_functions() override { return bindings::extension_functions(); }
  TapeFrontend* tape() override { return &python_tape(); }
};

}  // namespace

void init_frontend() { install(*new PythonFrontend); }

}  // namespace warptape::bindings
