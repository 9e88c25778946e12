// backward, grad, and the modes.
#include "bindings/autograd/autograd.h"
#include "graph/record/trace.h"

#include "autograd/engine.h"
#include "ops/autocast.h"

namespace warptape::bindings {
namespace {

std::vector<Tensor> tensors_from(PyObject* o, const char* what, bool none_too) {
  std::vector<Tensor> out;
  if (o == Py_None) return out;
  Object items = is_tensor(o) ? checked(PyTuple_Pack(1, o)) : checked(PySequence_Tuple(o));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
    PyObject* item = PyTuple_GET_ITEM(items.get(), i);
    bool none = none_too && item == Py_None;
    WT_CHECK(none || is_tensor(item), TypeError, what, ": expected Tensors, got ", Py_TYPE(item)->tp_name);
    out.push_back(none ? Tensor() : tensor_of(item));
  }
  return out;
}

// _run_backward(tensors, grads, inputs, retain_graph, create_graph, allow_unused, accumulate) -> gradients of
// inputs
PyObject* run_backward_py(PyObject*, PyObject* args) {
  PyObject *roots_o, *grads_o, *inputs_o;
  int retain, create, unused, accumulate;
  if (!PyArg_ParseTuple(args, "OOOpppp", &roots_o, &grads_o, &inputs_o, &retain, &create, &unused,
                        &accumulate))
    return nullptr;
  return guarded([&] {
    WT_CHECK(!graph::Tracer::current(), NotImplementedError,
             "a backward pass cannot be traced: trace the forward function, and differentiate what the graph "
             "returns");
    auto roots = tensors_from(roots_o, "backward", false);
    auto grads = tensors_from(grads_o, "backward", true);
    auto inputs = tensors_from(inputs_o, "backward", false);
    BackwardOptions options{retain != 0, create != 0, unused != 0, accumulate != 0};
    std::vector<Tensor> results;
    {
      GilRelease release(GilRelease::kWorthIt);
      results = run_backward(roots, grads, inputs, options);
    }
    return wrap_tuple(results);
  });
}

// _queue_callback(f): see queue_callback.
PyObject* queue_callback_py(PyObject*, PyObject* f) {
  return guarded([&]() -> PyObject* {
    std::shared_ptr<PyObject> held(Py_NewRef(f), [](PyObject* o) {
      GilGuard gil;
      Py_DECREF(o);
    });
    queue_callback([held] {
      GilGuard gil;
      call_python(held.get());
    });
    Py_RETURN_NONE;
  });
}

#define WT_FLAG(field)                                                                          \
  PyObject* get_##field(PyObject*, PyObject*) { return PyBool_FromLong(thread_state().field); } \
  PyObject* set_##field(PyObject*, PyObject* o) {                                               \
    int on = PyObject_IsTrue(o);                                                                \
    if (on < 0) return nullptr;                                                                 \
    return PyBool_FromLong(std::exchange(own_thread_state().field, on != 0));                   \
  }
WT_FLAG(grad_mode)
WT_FLAG(inference_mode)
WT_FLAG(anomaly_mode)
WT_FLAG(anomaly_check_nan)
#undef WT_FLAG

PyObject* autocast_state(bool cuda) {
  const uint32_t bit = cuda ? kAutocastCuda : kAutocast;
  return Py_BuildValue("(ON)", thread_state().dispatch & bit ? Py_True : Py_False,
                       wrap(cuda ? thread_state().autocast_cuda_dtype : thread_state().autocast_dtype));
}
// _set_autocast(enabled, dtype, cuda=False) -> (enabled, dtype) before
PyObject* set_autocast(PyObject*, PyObject* args) {
  int on, cuda = 0;
  PyObject* dtype;
  if (!PyArg_ParseTuple(args, "pO|p", &on, &dtype, &cuda)) return nullptr;
  if (!is_dtype(dtype)) return PyErr_Format(PyExc_TypeError, "autocast: expected a dtype"), nullptr;
  PyObject* before = autocast_state(cuda != 0);
  const uint32_t bit = cuda ? kAutocastCuda : kAutocast;
  own_thread_state().dispatch = on ? thread_state().dispatch | bit : thread_state().dispatch & ~bit;
  ThreadState& state = own_thread_state();
  (cuda ? state.autocast_cuda_dtype : state.autocast_dtype) = dtype_of(dtype);
  return before;
}
// _get_autocast(cuda=False) -> (enabled, dtype)
PyObject* get_autocast(PyObject*, PyObject* args) {
  int cuda = 0;
  if (!PyArg_ParseTuple(args, "|p", &cuda)) return nullptr;
  return autocast_state(cuda != 0);
}
PyObject* enter_autocast_py(PyObject*, PyObject*) { return enter_autocast(), Py_NewRef(Py_None); }
PyObject* leave_autocast_py(PyObject*, PyObject*) { return leave_autocast(), Py_NewRef(Py_None); }
PyObject* clear_autocast_py(PyObject*, PyObject*) { return clear_autocast_cache(), Py_NewRef(Py_None); }
PyObject* set_autocast_cache_py(PyObject*, PyObject* on) {
  int value = PyObject_IsTrue(on);
  return value < 0 ? nullptr : PyBool_FromLong(set_autocast_cache(value != 0));
}

PyMethodDef autograd_methods[] = {
    {"_run_backward", run_backward_py, METH_VARARGS, nullptr},
    {"_queue_callback", queue_callback_py, METH_O, nullptr},
    {"is_grad_enabled", get_grad_mode, METH_NOARGS, "Whether ops are recorded on this thread."},
    {"_set_grad_enabled", set_grad_mode, METH_O, nullptr},
    {"is_inference_mode_enabled", get_inference_mode, METH_NOARGS,
     "Whether inference_mode() is on, on this thread."},
    {"_set_inference_mode", set_inference_mode, METH_O, nullptr},
    {"is_anomaly_enabled", get_anomaly_mode, METH_NOARGS, nullptr},
    {"_set_anomaly_enabled", set_anomaly_mode, METH_O, nullptr},
    {"is_anomaly_check_nan_enabled", get_anomaly_check_nan, METH_NOARGS, nullptr},
    {"_set_anomaly_check_nan", set_anomaly_check_nan, METH_O, nullptr},
    {"_set_autocast", set_autocast, METH_VARARGS, nullptr},
    {"_get_autocast", get_autocast, METH_VARARGS, nullptr},
    {"_enter_autocast", enter_autocast_py, METH_NOARGS, nullptr},
    {"_leave_autocast", leave_autocast_py, METH_NOARGS, nullptr},
    {"_set_autocast_cache", set_autocast_cache_py, METH_O, nullptr},
    {"clear_autocast_cache", clear_autocast_py, METH_NOARGS,
     "Drops the narrow copies of parameters that autocast keeps."},
    {}};

}  // namespace

void init_autograd(PyObject* module) {
  checked(PyModule_AddFunctions(module, autograd_methods));
  init_nodes(module);
  init_gc(module);
  init_hooks(module);
  init_functions(module);
}

}  // namespace warptape::bindings
