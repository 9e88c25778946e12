// What pybind11 does not check of an object of a bound class: that it is not None (a null pointer, also as
// self), and that its constructor has run (for one that Class.__new__(Class) made alone, C++ is handed memory
// that nobody wrote). Here both are a TypeError.
#pragma once

#include <pybind11/pybind11.h>

namespace warptape::bindings {
template <class T>
inline constexpr bool kBound = false;  // specialised for each bound class, before its first use

// For the classes of a module: pickle's protocols 0 and 1 would make an object of their base class, over
// which pybind11 ends the process.
inline void refuse_pickling(const pybind11::object& module) {
  for (auto [name, type] : module.attr("__dict__").cast<pybind11::dict>())
    if (PyType_Check(type.ptr()) &&
        pybind11::detail::get_type_info(reinterpret_cast<PyTypeObject*>(type.ptr())))
      type.attr("__reduce_ex__") = pybind11::cpp_function(
          [](const pybind11::object& self, int) {
            throw pybind11::type_error(std::string("cannot pickle '") + Py_TYPE(self.ptr())->tp_name +
                                       "' object");
          },
          pybind11::is_method(type));
}
}  // namespace warptape::bindings

template <class T>
  requires warptape::bindings::kBound<T>
class pybind11::detail::type_caster<T> : public type_caster_base<T> {
 public:
  bool load(handle source, bool convert) {
    if (source.is_none()) return false;
    if (isinstance<T>(source))
      for (auto& part : values_and_holders(reinterpret_cast<instance*>(source.ptr())))
        if (!part.value_ptr())
          throw type_error("expected a " + str(type::handle_of(source).attr("__name__")).cast<std::string>() +
                           ", got one whose __init__ was not called");
    return type_caster_base<T>::load(source, convert);
  }
};
