// From Python arguments to the values of one overload.
#pragma once

#include "bindings/common.h"

namespace warptape::bindings {

// Storage for what the values borrow, for the length of one call.
struct Frame {
  // Raw, because constructing all of them would cost more than a small op; parse() makes those that the op
  // has.
  alignas(Value) std::byte raw[kMaxArgs * sizeof(Value)];
  Value* values = reinterpret_cast<Value*>(raw);
  SmallVector<Shape, 6> shapes;  // may not move: values point into them
  SmallVector<std::vector<Tensor>, 1> tensor_lists;
  SmallVector<std::vector<OptTensor>, 1> opt_lists;
  SmallVector<std::vector<Shape>, 1> int_lists;
  SmallVector<std::vector<double>, 1> double_lists;
  SmallVector<std::vector<Scalar>, 1> scalar_lists;
  int64_t singles[kMaxArgs];  // ints given for lists
  int singles_used = 0;
  int64_t work = 0;        // elements of all tensor arguments
  bool on_device = false;  // some tensor is not the CPU's
  bool read_devices;       // numbers may be read from a device, which waits for it
  explicit Frame(bool reads = false) : read_devices(reads) {}
  PyObject* out = nullptr;  // of out=
  std::string problem;      // why this overload does not fit
};

// One call's arguments as Python gave them.
struct CallArgs {
  PyObject* self;  // or null
  PyObject* const* args;
  Py_ssize_t nargs;
  PyObject* kwnames;  // or null
};

// Fills frame.values; false (with frame.problem when `explain`) when the arguments do not fit the overload.
bool parse(const OpInfo& op, std::span<PyObject* const> names, const CallArgs& call, Frame& frame,
           bool explain);

// The value of an argument that is left out and has a default.
void use_default(const Arg& arg, Value& v);

// "add(Tensor input, Tensor other, *, Number alpha=1)"
std::string signature_text(const OpInfo& op, std::string_view called);
const char* type_text(const Arg& arg);
std::string default_text(const Arg& arg);  // as Python has it; empty where the argument is required

}  // namespace warptape::bindings
