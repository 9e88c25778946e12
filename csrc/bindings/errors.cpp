// C++ errors to Python exceptions. The classes are made here, once, and live in warptape._C.
#include "bindings/errors.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <new>

#include "graph/record/region.h"
#include "op/forms.h"
#include "ops/linalg/linalg.h"

namespace warptape::bindings {
namespace {

PyObject *shape_error, *dtype_error, *device_error, *argument_error, *out_of_memory_error;
PyObject *backend_error, *network_error, *store_error, *linalg_error;

// `second` may be null.
PyObject* make_error(PyObject* module, const char* name, PyObject* first, PyObject* second, const char* doc) {
  Object bases = checked(PyTuple_Pack(second ? 2 : 1, first, second));
  std::string full = std::string("warptape.") + name;
  Object type = checked(PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.get(), nullptr));
  checked(PyModule_AddObjectRef(module, name, type.get()));
  return type.release();
}

}  // namespace

void sleep_until_exit() {
  for (;;) pause();
}

void init_errors(PyObject* module) {
  shape_error = make_error(module, "ShapeError", PyExc_RuntimeError, PyExc_ValueError,
                           "Shapes do not fit: what was expected, what came.");
  dtype_error = make_error(module, "DtypeError", PyExc_RuntimeError, PyExc_TypeError,
                           "A dtype that the operation does not take.");
  device_error = make_error(module, "DeviceError", PyExc_RuntimeError, PyExc_ValueError,
                            "Tensors on different devices, or a device that cannot be used.");
  argument_error = make_error(module, "ArgumentError", PyExc_RuntimeError, PyExc_ValueError,
                              "A number or option outside of what the operation takes.");
  out_of_memory_error = make_error(module, "OutOfMemoryError", PyExc_RuntimeError, PyExc_MemoryError,
                                   "Memory is exhausted; everything is as it was before the call.");
  linalg_error = make_error(module, "LinAlgError", PyExc_RuntimeError, nullptr,
                            "A matrix for which there is no answer: singular, or not positive definite.");
  PyObject* dist = make_error(module, "DistError", PyExc_RuntimeError, nullptr,
                              "Something went wrong between the ranks of a distributed job.");
  backend_error = make_error(module, "DistBackendError", dist, nullptr,
                             "A collective failed: a rank died, called something else, or was late.");
  network_error = make_error(module, "DistNetworkError", dist, nullptr,
                             "A connection between ranks failed or was refused.");
  store_error =
      make_error(module, "DistStoreError", dist, nullptr, "A key of the store did not come in time.");
  make_error(module, "QueueEmptyError", store_error, nullptr, "A queue of the store has no value.");
}

namespace {

// The message, with the name of the op that Python called in front when a part of the op reported the error.
std::string text(const std::exception& e, const char* op) {
  std::string what = e.what();
  if (!op || what.find(op) != std::string::npos) return what;
  // An op over a list reports, in the first line, what the op of one tensor reports, as in PyTorch.
  const OpGroup* group = find_op(op);
  if (group && is_over_lists(*group->overloads[0])) return what + "\n(for a tensor of " + op + ")";
  return std::string(op) + ": " + what;
}

}  // namespace

void set_python_error(const char* op) {
  if (const char* recorded = std::exchange(*graph::failed_op, nullptr)) op = recorded;
  try {
    throw;
  } catch (const PythonErrorSet&) {
  } catch (pybind11::error_already_set& e) {
    e.restore();
  } catch (const ShapeError& e) {
    PyErr_SetString(shape_error, text(e, op).c_str());
  } catch (const DtypeError& e) {
    PyErr_SetString(dtype_error, text(e, op).c_str());
  } catch (const DeviceError& e) {
    PyErr_SetString(device_error, text(e, op).c_str());
  } catch (const LinAlgError& e) {
    PyErr_SetString(linalg_error, text(e, op).c_str());
  } catch (const OutOfMemoryError& e) {
    PyErr_SetString(out_of_memory_error, text(e, op).c_str());
  } catch (const DistBackendError& e) {
    PyErr_SetString(backend_error, text(e, op).c_str());
  } catch (const DistNetworkError& e) {
    PyErr_SetString(network_error, text(e, op).c_str());
  } catch (const DistStoreError& e) {
    PyErr_SetString(store_error, text(e, op).c_str());
  } catch (const IndexError& e) {
    PyErr_SetString(PyExc_IndexError, text(e, op).c_str());
  } catch (const TypeError& e) {
    PyErr_SetString(PyExc_TypeError, text(e, op).c_str());
  } catch (const ValueError& e) {
    PyErr_SetString(argument_error, text(e, op).c_str());
  } catch (const AssertionError& e) {
    PyErr_SetString(PyExc_AssertionError, text(e, op).c_str());
  } catch (const NotImplementedError& e) {
    PyErr_SetString(PyExc_NotImplementedError, text(e, op).c_str());
  } catch (const std::bad_alloc&) {
    PyErr_SetString(out_of_memory_error, "host memory is exhausted");
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, text(e, op).c_str());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "unknown C++ exception");
  }
}

}  // namespace warptape::bindings
