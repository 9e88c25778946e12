// Python values as lists of what can be compared: the arguments and results of calls that are replayed.
#pragma once

#include <string>
#include <vector>

#include "bindings/common.h"
#include "graph/run/replay.h"

namespace warptape::bindings {

// One value in the order of a walk; the parts of a container follow it.
struct Item {
  enum class Kind : uint8_t { Container, Tensor, Plain, Object };
  Kind kind = Kind::Plain;
  Object type;
  size_t size = 0;  // of a container: the values in it, keys and what they stand for counted apart
  Object value;     // a plain one; a weak reference to an object
  const void* identity = nullptr;  // of an object; of a list or dict, while it is there
  // Of a tensor. The offset is that from the first tensor on the same memory, and counts if there is one.
  graph::ViewSpec view;
  Device device;
  bool requires_grad = false, has_history = false, is_view = false, inference = false, own_version = false;
  int32_t same_as = -1, shares_with = -1;  // numbers among the tensors
};

class Described {
 public:
  // False where the value cannot be compared with another one later; why() says which it is.
  bool add(PyObject* o);
  const std::string& why() const { return why_; }
  bool operator==(const Described& o) const;
  // A value of the same structure with other tensors. Null where none was added.
  Object build(std::span<const Tensor> tensors) const;

  std::vector<Item> items;
  std::vector<Tensor> tensors;
  std::vector<PyObject*> objects;  // of the tensors, borrowed

  // Objects of this class (nn.Module), functions, classes and Python modules are compared by identity.
  static PyObject* by_identity;

 private:
  bool add_container(PyObject* o);
  void add_tensor(PyObject* o);
  bool add_object(PyObject* o);
  Object build(size_t& at, size_t& tensor, std::span<const Tensor> tensors) const;
  std::string why_;
};

}  // namespace warptape::bindings
