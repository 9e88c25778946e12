#include "bindings/ops/parse.h"

#include "bindings/graph/symbolic_int.h"
#include "graph/record/trace.h"
#include "op/visit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

namespace warptape::bindings {
namespace {

// NumPy's scalars and whatever else behaves as an int.
bool to_int(PyObject* o, int64_t& out) {
  if (PyBool_Check(o)) {
    out = o == Py_True;
    return true;
  }
  if (!PyLong_Check(o)) {
    if (PyFloat_Check(o) || !PyIndex_Check(o)) return false;
    if (is_tensor(o) &&
        (tensor_of(o).numel() != 1 || category(tensor_of(o).dtype()) != DTypeCategory::Integral))
      return false;
    Object index(PyNumber_Index(o));
    if (!index) {
      PyErr_Clear();
      return false;
    }
    return to_int(index.get(), out);
  }
  int overflow = 0;
  out = PyLong_AsLongLongAndOverflow(o, &overflow);
  WT_CHECK(!overflow, ValueError, "Overflow when unpacking long: expected an int of 64 bits");
  return true;
}

bool to_double(PyObject* o, double& out, bool read_devices) {
  if (PyFloat_Check(o)) {
    out = PyFloat_AS_DOUBLE(o);
    return true;
  }
  if (PyLong_CheckExact(o)) {  // of any size
    out = PyLong_AsDouble(o);
    if (out == -1 && PyErr_Occurred()) throw PythonErrorSet();
    return true;
  }
  Scalar s;
  if (!to_scalar(o, s, read_devices) || s.is_complex()) return false;
  out = s.to_double();
  return true;
}

bool to_ints(PyObject* o, Shape& out, bool none_items = false) {
  Object items = frozen(o);
  Py_ssize_t n = PyTuple_GET_SIZE(items.get());
  out.reserve(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    int64_t x;
    PyObject* item = PyTuple_GET_ITEM(items.get(), i);
    if (none_items && item == Py_None)
      x = kNoItem;
    else if (PyBool_Check(item) || !(to_int(item, x) || to_mark(item, x)))
      return false;
    out.push_back(x);
  }
  return true;
}

bool is_list(PyObject* o) { return PyTuple_Check(o) || PyList_Check(o); }

bool to_int_list(PyObject* o, Frame& frame, Value& v, bool single_too, bool none_items = false) {
  if (!is_list(o)) {
    int64_t& single = frame.singles[frame.singles_used];
    if (!single_too || PyBool_Check(o) || !(to_int(o, single) || to_mark(o, single))) return false;
    v.list = {&single, 1};
    ++frame.singles_used;
    return true;
  }
  Shape& shape = frame.shapes.emplace_back();
  if (!to_ints(o, shape, none_items)) return false;
  v.list = {shape.data(), shape.size()};
  return true;
}

// Items that are ints stand for lists of one.
bool to_int_lists(PyObject* o, Frame& frame, Value& v) {
  if (!is_list(o)) return false;
  auto& lists = frame.int_lists.emplace_back();
  Object items = frozen(o);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
    PyObject* item = PyTuple_GET_ITEM(items.get(), i);
    int64_t one;
    Shape& ints = lists.emplace_back();
    if (is_list(item) ? !to_ints(item, ints) : PyBool_Check(item) || !to_int(item, one)) return false;
    if (!is_list(item)) ints.push_back(one);
  }
  v.list = {lists.data(), lists.size()};
  return true;
}

// A number stands for a list of one.
bool to_double_list(PyObject* o, Frame& frame, Value& v) {
  auto& list = frame.double_lists.emplace_back();
  double one;
  if (is_list(o)) {
    Object items = frozen(o);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
      if (!to_double(PyTuple_GET_ITEM(items.get(), i), one, frame.read_devices)) return false;
      list.push_back(one);
    }
  } else {
    if (PyBool_Check(o) || !to_double(o, one, frame.read_devices)) return false;
    list.push_back(one);
  }
  v.list = {list.data(), list.size()};
  return true;
}

bool to_scalar_list(PyObject* o, Frame& frame, Value& v) {
  if (!is_list(o)) return false;
  auto& list = frame.scalar_lists.emplace_back();
  Object items = frozen(o);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i)
    if (!to_scalar(PyTuple_GET_ITEM(items.get(), i), list.emplace_back(), frame.read_devices)) return false;
  v.list = {list.data(), list.size()};
  return true;
}

bool to_tensor_list(PyObject* o, Frame& frame, Value& v) {
  if (!is_list(o)) return false;
  auto& list = frame.tensor_lists.emplace_back();
  Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
  list.reserve(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(o, i);
    if (!is_tensor(item)) return false;
    list.push_back(tensor_of(item));
    frame.work += list.back().numel();
    frame.on_device |= !list.back().device().is_host();
  }
  v.list = {list.data(), list.size()};
  return true;
}

bool to_opt_tensor_list(PyObject* o, Frame& frame, Value& v) {
  if (!is_list(o)) return false;
  auto& list = frame.opt_lists.emplace_back();
  Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(o, i);
    if (item != Py_None && !is_tensor(item)) return false;
    list.push_back(item == Py_None ? OptTensor() : OptTensor(tensor_of(item)));
  }
  v.list = {list.data(), list.size()};
  return true;
}

bool to_string_view(PyObject* o, Value& v) {
  if (!PyUnicode_Check(o)) {
    const char* format = memory_format_name(o);
    if (format) v.list = {format, std::strlen(format)};
    return format;
  }
  const std::string_view text = utf8(o);
  v.list = {text.data(), text.size()};
  return true;
}

bool to_dtype(PyObject* o, Value& v) {
  const std::optional<DType> dtype = as_dtype(o);
  if (dtype) v.dtype = *dtype;
  return dtype.has_value();
}

[[gnu::noinline]] bool to_device(PyObject* o, Value& v) {
  if (!is_device(o) && !PyUnicode_Check(o) && !(PyLong_Check(o) && !PyBool_Check(o))) return false;
  v.device = resolved(device_of(o));
  return true;
}

[[gnu::noinline]] bool to_bool(PyObject* o, bool& out) {
  if (PyBool_Check(o)) return out = o == Py_True, true;
  if (std::strncmp(Py_TYPE(o)->tp_name, "numpy.bool", 10) == 0) return out = PyObject_IsTrue(o) == 1, true;
  return false;
}

// Converts one argument; false when its type does not fit.
bool convert(const Arg& arg, PyObject* o, Frame& frame, Value& v) {
  v.present = true;
  return visit_type(arg.type, [&]<class T>(std::type_identity<T>) -> bool {
    if constexpr (std::is_same_v<T, Tensor>) {
      if (!is_tensor(o)) return false;
      v.tensor = &tensor_of(o);
      frame.work += v.tensor->numel();
      frame.on_device |= !v.tensor->device().is_host();
      return true;
    } else if constexpr (std::is_same_v<T, TensorList>) {
      return to_tensor_list(o, frame, v);
    } else if constexpr (std::is_same_v<T, std::span<const OptTensor>>) {
      return to_opt_tensor_list(o, frame, v);
    } else if constexpr (std::is_same_v<T, int64_t>) {
      return !PyBool_Check(o) ? to_int(o, v.i) || to_mark(o, v.i) : (v.i = o == Py_True, true);
    } else if constexpr (std::is_same_v<T, double>) {
      return to_double(o, v.d, frame.read_devices);
    } else if constexpr (std::is_same_v<T, bool>) {
      return to_bool(o, v.b);
    } else if constexpr (std::is_same_v<T, Scalar>) {
      // One that is not computed yet: an overload that takes it as a tensor goes first.
      if (!frame.read_devices && (arg.marks & kKeywordOnly) && is_tensor(o) &&
          tensor_of(o).storage().is_deferred())
        return false;
      if (to_scalar(o, v.scalar, frame.read_devices)) return true;
      int64_t mark;
      return to_mark(o, mark) && (v.scalar = mark, true);
    } else if constexpr (std::is_same_v<T, IntList>) {
      return to_int_list(o, frame, v, true, arg.marks & kNoneItems);
    } else if constexpr (std::is_same_v<T, std::span<const Shape>>) {
      return to_int_lists(o, frame, v);
    } else if constexpr (std::is_same_v<T, std::span<const double>>) {
      return to_double_list(o, frame, v);
    } else if constexpr (std::is_same_v<T, ScalarList>) {
      return to_scalar_list(o, frame, v);
    } else if constexpr (std::is_same_v<T, DType>) {
      return to_dtype(o, v);
    } else if constexpr (std::is_same_v<T, Device>) {
      return to_device(o, v) && (frame.work += v.device.is_accelerator() ? GilRelease::kWorthIt : 0, true);
    } else if constexpr (std::is_same_v<T, std::string_view>) {
      return to_string_view(o, v);
    } else {
      return (v.generator = generator_of(o)) != nullptr;
    }
  });
}

bool no_fit(Frame& frame, bool explain, auto&&... parts) {
  if (explain) frame.problem = message(parts...);
  return false;
}

// Other names for the same arguments: NumPy's, and those of PyTorch's methods where its function has another.
std::string_view alias_of(std::string_view name) {
  if (name == "axis") return "dim";
  if (name == "keepdims") return "keepdim";
  if (name == "x" || name == "self" || name == "a" || name == "A") return "input";
  if (name == "x2") return "other";
  if (name == "split_size") return "split_size_or_sections";
  return name;
}

int find_name(std::span<PyObject* const> names, PyObject* key) {
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == key) return static_cast<int>(i);
  const std::string given = shown_text(key);
  std::string_view text = given;
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (size_t i = 0; i < names.size(); ++i)
      if (utf8(names[i]) == text) return static_cast<int>(i);
    text = alias_of(text);
  }
  return -1;
}

// Gathers x.view(2, 3) into one list argument; the arguments from `at` on are its items.
bool convert_varargs(const Arg& arg, PyObject* const* args, Py_ssize_t n, Frame& frame, Value& v) {
  Object tuple = checked(PyTuple_New(n));
  for (Py_ssize_t i = 0; i < n; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(args[i]));
  v.present = true;
  if (arg.type == ArgType::TensorList) return to_tensor_list(tuple.get(), frame, v);
  if (arg.type == ArgType::IntLists) return to_int_lists(tuple.get(), frame, v);
  return to_int_list(tuple.get(), frame, v, false);
}

}  // namespace

void use_default(const Arg& arg, Value& v) {
  const ArgDefault& d = arg.def;
  v.present = d.kind != ArgDefault::Kind::None;
  visit_type(arg.type, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, int64_t>) {
      v.i = d.i;
    } else if constexpr (std::is_same_v<T, bool>) {
      v.b = d.i != 0;
    } else if constexpr (std::is_same_v<T, double>) {
      v.d = d.kind == ArgDefault::Kind::Double ? d.d : static_cast<double>(d.i);
    } else if constexpr (std::is_same_v<T, Scalar>) {
      v.scalar = d.kind == ArgDefault::Kind::Double ? Scalar(d.d)
                 : d.kind == ArgDefault::Kind::Bool ? Scalar(d.i != 0)
                                                    : Scalar(d.i);
    } else if constexpr (std::is_same_v<T, IntList>) {
      v.list = {d.items.data(), d.count};
    } else if constexpr (std::is_same_v<T, TensorList> || std::is_same_v<T, std::span<const Shape>>) {
      v.list = {nullptr, 0};
    } else if constexpr (std::is_same_v<T, std::string_view>) {
      v.list = {d.text, d.text ? std::strlen(d.text) : 0};
    } else if constexpr (std::is_same_v<T, DType>) {
      v.dtype = d.dtype;
    } else {
      v.present = false;
    }
  });
}

bool to_scalar(PyObject* o, Scalar& out, bool read_devices) {
  if (PyFloat_Check(o)) return out = PyFloat_AS_DOUBLE(o), true;
  if (PyBool_Check(o)) return out = (o == Py_True), true;
  if (PyLong_Check(o)) {
    int overflow = 0;
    int64_t i = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (!overflow) return out = i, true;
    const unsigned long long bits = PyLong_AsUnsignedLongLong(o);  // OverflowError beyond 64 bits
    if (PyErr_Occurred()) throw PythonErrorSet();
    return out = Scalar::of_unsigned(bits), true;
  }
  if (is_tensor(o)) {
    const Tensor& t = tensor_of(o);
    const graph::Tracer* tracer = graph::Tracer::recording();
    if (t.ndim() != 0 || t.device().is_meta() || (!read_devices && (tracer || !t.device().is_host())))
      return false;
    if (tracer) tracer->read(t, "an argument that is a number");
    return out = item(t), true;
  }
  if (PyComplex_Check(o)) {
    const Py_complex c = PyComplex_AsCComplex(o);
    return out = Complex<double>(c.real, c.imag), true;
  }
  if (PyUnicode_Check(o) || PySequence_Check(o)) return false;
  // NumPy's scalars: integers have __index__, the others only __float__.
  if (std::strncmp(Py_TYPE(o)->tp_name, "numpy.bool", 10) == 0) return out = PyObject_IsTrue(o) == 1, true;
  if (std::strcmp(Py_TYPE(o)->tp_name, "numpy.complex64") == 0) {
    Object number = checked(PyObject_CallMethod(o, "__complex__", nullptr));
    return to_scalar(number.get(), out);
  }
  Object number(PyIndex_Check(o)                                                 ? PyNumber_Index(o)
                : Py_TYPE(o)->tp_as_number && Py_TYPE(o)->tp_as_number->nb_float ? PyNumber_Float(o)
                                                                                 : nullptr);
  if (number) return to_scalar(number.get(), out);
  PyErr_Clear();
  return false;
}

Shape to_shape(PyObject* o, const char* what) {
  Shape out;
  int64_t one;
  if (!PySequence_Check(o) && to_int(o, one)) return {one};
  Object list(PySequence_Tuple(o));
  if (!list) {
    PyErr_Clear();
    throw TypeError(message(what, ": expected ints, got ", Py_TYPE(o)->tp_name));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(list.get()); ++i) {
    PyObject* item = PyTuple_GET_ITEM(list.get(), i);
    WT_CHECK(to_int(item, one), TypeError, what, ": expected ints, got ", Py_TYPE(item)->tp_name,
             " at position ", i);
    out.push_back(one);
  }
  return out;
}

namespace {

// Positional arguments; returns how many parameters they filled, or -1.
int parse_positional(const OpInfo& op, const CallArgs& call, Frame& frame, bool explain) {
  const int count = static_cast<int>(op.args.size());
  Py_ssize_t given = call.nargs + (call.self ? 1 : 0);
  auto get = [&](Py_ssize_t i) { return call.self ? (i == 0 ? call.self : call.args[i - 1]) : call.args[i]; };
  int at = 0;
  for (Py_ssize_t i = 0; i < given; ++i, ++at) {
    if (at >= count || (op.args[at].marks & kKeywordOnly)) {
      no_fit(frame, explain, "takes ", at, " positional arguments but ", given, " were given");
      return -1;
    }
    const Arg& arg = op.args[at];
    PyObject* o = get(i);
    if ((arg.marks & kVarArgs) && (arg.type == ArgType::IntLists || !is_list(o))) {
      Py_ssize_t rest = given - i;
      PyObject* const* first = call.args + (i - (call.self ? 1 : 0));
      if (!convert_varargs(arg, first, rest, frame, frame.values[at])) {
        const auto fits = [&](PyObject* item) {
          return arg.type == ArgType::TensorList ? is_tensor(item) : PyLong_Check(item) || is_list(item);
        };
        PyObject* const* bad = std::find_if_not(first, first + rest, fits);
        no_fit(frame, explain, "argument '", arg.name, "' must be ", type_text(arg), ", not ",
               Py_TYPE(bad == first + rest ? o : *bad)->tp_name);
        return -1;
      }
      return at + 1;
    }
    if (o == Py_None && arg.optional) continue;
    if (!convert(arg, o, frame, frame.values[at])) {
      no_fit(frame, explain, "argument '", arg.name, "' (position ", i + 1, ") must be ", type_text(arg),
             ", not ", Py_TYPE(o)->tp_name);
      return -1;
    }
  }
  return at;
}

bool is_layout_option(PyObject* key) { return PyUnicode_CompareWithASCIIString(key, "layout") == 0; }

// What PyTorch's factories take beside: all tensors of ops are strided, and none is pinned from the start.
bool is_default_option(const OpInfo& op, PyObject* key, PyObject* value) {
  const bool factory = std::any_of(op.args.begin(), op.args.end(), [](const Arg& arg) {
    return arg.type == ArgType::Device && (arg.marks & kKeywordOnly);
  });
  if (!factory) return false;
  if (PyUnicode_CompareWithASCIIString(key, "pin_memory") == 0) return value == Py_None || value == Py_False;
  if (!is_layout_option(key)) return false;
  const char* layout = value == Py_None ? "torch.strided" : layout_name(value);
  const bool strided = !layout || std::strcmp(layout, "torch.strided") == 0;
  // PyTorch's windows are Python, which raises this.
  WT_CHECK(strided || !(op.flags & kSignal), ValueError, op.name,
           " is implemented for strided tensors only, got: ", layout);
  WT_CHECK(strided, NotImplementedError, op.name, ": tensors of layout ", layout,
           " are made by Tensor.to_sparse and torch.sparse_coo_tensor");
  return layout;
}

bool parse_keywords(const OpInfo& op, std::span<PyObject* const> names, const CallArgs& call, Frame& frame,
                    bool* seen, bool explain) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(call.kwnames); ++k) {
    PyObject* key = PyTuple_GET_ITEM(call.kwnames, k);
    PyObject* o = call.args[call.nargs + k];
    int at = find_name(names, key);
    if (at < 0) {
      if ((op.flags & kOut) && PyUnicode_CompareWithASCIIString(key, "out") == 0) {
        if (o != Py_None) frame.out = o;
        continue;
      }
      if (is_default_option(op, key, o)) continue;
      if (is_layout_option(key))
        return no_fit(frame, explain, "argument 'layout' must be torch.layout, not ", Py_TYPE(o)->tp_name);
      return no_fit(frame, explain, "got an unexpected keyword argument '", shown_text(key), "'");
    }
    const Arg& arg = op.args[at];
    if (seen[at]) return no_fit(frame, explain, "got multiple values for argument '", arg.name, "'");
    seen[at] = true;
    if (o == Py_None && arg.optional) continue;
    if (!convert(arg, o, frame, frame.values[at]))
      return no_fit(frame, explain, "argument '", arg.name, "' must be ", type_text(arg), ", not ",
                    Py_TYPE(o)->tp_name);
  }
  return true;
}

}  // namespace

bool parse(const OpInfo& op, std::span<PyObject* const> names, const CallArgs& call, Frame& frame,
           bool explain) {
  const int count = static_cast<int>(op.args.size());
  std::uninitialized_default_construct_n(frame.values, count);
  int filled = parse_positional(op, call, frame, explain);
  if (filled < 0) return false;
  if (filled == count && !call.kwnames) return true;
  bool seen[kMaxArgs] = {};
  std::fill_n(seen, filled, true);
  if (call.kwnames && !parse_keywords(op, names, call, frame, seen, explain)) return false;
  for (int i = 0; i < count; ++i) {
    if (seen[i]) continue;
    const Arg& arg = op.args[i];
    if (arg.def.kind == ArgDefault::Kind::Required && arg.type != ArgType::Generator)
      return no_fit(frame, explain, "missing required argument '", arg.name, "'");
    use_default(arg, frame.values[i]);
  }
  return true;
}

const char* type_text(const Arg& arg) {
  if (arg.type == ArgType::String && std::strcmp(arg.name, "memory_format") == 0)
    return "torch.memory_format";
  return visit_type(
      arg.type, Overloaded{
                    [](std::type_identity<Tensor>) { return "Tensor"; },
                    [](std::type_identity<TensorList>) { return "tuple of Tensors"; },
                    [](std::type_identity<std::span<const OptTensor>>) { return "tuple of Tensors or None"; },
                    [](std::type_identity<int64_t>) { return "int"; },
                    [](std::type_identity<double>) { return "float"; },
                    [](std::type_identity<bool>) { return "bool"; },
                    [](std::type_identity<Scalar>) { return "Number"; },
                    [](std::type_identity<IntList>) { return "tuple of ints"; },
                    [](std::type_identity<std::span<const Shape>>) { return "tuple of tuples of ints"; },
                    [](std::type_identity<std::span<const double>>) { return "tuple of floats"; },
                    [](std::type_identity<ScalarList>) { return "tuple of Numbers"; },
                    [](std::type_identity<DType>) { return "torch.dtype"; },
                    [](std::type_identity<Device>) { return "torch.device"; },
                    [](std::type_identity<std::string_view>) { return "str"; },
                    [](std::type_identity<Generator*>) { return "torch.Generator"; },
                });
}

std::string default_text(const Arg& arg) {
  std::ostringstream out;
  switch (arg.def.kind) {
    case ArgDefault::Kind::Required:
      break;
    case ArgDefault::Kind::None:
      out << "None";
      break;
    case ArgDefault::Kind::Bool:
      out << (arg.def.i ? "True" : "False");
      break;
    case ArgDefault::Kind::Int:
      out << arg.def.i;
      break;
    case ArgDefault::Kind::Double:
      out << arg.def.d;
      break;
    case ArgDefault::Kind::String:
      out << "'" << arg.def.text << "'";
      break;
    case ArgDefault::Kind::IntList:
      out << AsShape{arg.def.ints()};
      break;
    case ArgDefault::Kind::DType:
      out << "torch." << name(arg.def.dtype);
      break;
  }
  return std::move(out).str();
}

std::string signature_text(const OpInfo& op, std::string_view called) {
  std::ostringstream out;
  out << called << "(";
  bool keyword_only = false;
  for (size_t i = 0; i < op.args.size(); ++i) {
    const Arg& arg = op.args[i];
    out << (i ? ", " : "");
    if ((arg.marks & kKeywordOnly) && !keyword_only) out << "*, ", keyword_only = true;
    out << type_text(arg) << " " << arg.name;
    if (const std::string value = default_text(arg); !value.empty()) out << "=" << value;
  }
  out << ")";
  return std::move(out).str();
}

}  // namespace warptape::bindings
