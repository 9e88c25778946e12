#pragma once
#include "bindings/common.h"

namespace warptape::bindings {

// The Python part of what only this tensor's object keeps alive: hooks, contexts of custom functions, tensor
// objects that their impls own. See Note [Garbage collection of the tape] in gc.cpp.
int traverse_autograd(const Tensor& t, visitproc visit, void* arg);
void clear_autograd(const Tensor& t);

// How many Python objects the tape and the tensors hold: the collector's walk is skipped while there is none.
void count_python_parts(int change);

// Anything that holds Python objects inside the tape derives from this, so that the collector finds them.
struct PythonPart {
  PythonPart();
  virtual ~PythonPart();
  virtual int visit(visitproc visit, void* arg) const = 0;
};

// A dict {id: callable} of hooks; the same dict is what the handles returned to Python remove from.
struct HookDict final : TensorHook, NodeHook, PythonPart {
  HookDict();
  ~HookDict() override;
  void call(Tensor& gradient) override;
  void call(std::span<Tensor> inputs, std::span<Tensor> outputs) override;
  int visit(visitproc visit, void* arg) const override;
  PyObject* dict;
  bool returns = true;  // false: what the hooks return is ignored (post-accumulate)
};

// What the innermost saved_tensors_hooks makes of the tensor; null without hooks.
Ref<PackedTensor> pack_saved_tensor(const Tensor& t);

PyObject* wrap_node(const Ref<Node>& node);  // None for null
void init_gc(PyObject* module);              // gc.cpp
void init_hooks(PyObject* module);           // hooks.cpp
void init_nodes(PyObject* module);           // node_object.cpp
void init_functions(PyObject* module);       // function.cpp
TapeFrontend& python_tape();                 // tape_frontend.cpp

}  // namespace warptape::bindings
