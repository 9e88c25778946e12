// The callable that Python sees for an op: one object per name and place, called by vectorcall.
#include "bindings/ops/out_argument.h"
#include "bindings/ops/override.h"
#include "op/forms.h"
#include "ops/elementwise/elementwise.h"
// After Python.h, which it does not include itself.
#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

namespace warptape::bindings {
namespace {

struct OpFunction {
  PyObject_HEAD vectorcallfunc vectorcall;
  const OpGroup* group;
  bool binds;      // a method: attribute access on an instance binds it
  PyObject* dict;  // attributes that programs set, as on PyTorch's functions
};
PyTypeObject* op_function_type;

const OpGroup* group_of(PyObject* self) { return reinterpret_cast<OpFunction*>(self)->group; }

// What else is known of the ops of a name. A call with the tensors alone that the first overload begins with,
// the other arguments left out, is not parsed.
struct CallableGroup : OpGroup {
  static constexpr size_t kMaxValues = 10;
  Py_ssize_t fewest = 1,
             most = 0;          // of tensors in such a call; no number where other arguments must be given
  std::vector<Value> defaults;  // of all arguments of the first overload
};

void prepare_tensor_calls(CallableGroup& group) {
  const std::vector<Arg>& args = group.overloads.front()->args;
  const auto required = [](const Arg& arg) {
    return arg.def.kind == ArgDefault::Kind::Required && arg.type != ArgType::Generator;
  };
  size_t tensors = 0;
  while (tensors < args.size() && args[tensors].type == ArgType::Tensor &&
         !(args[tensors].marks & (kKeywordOnly | kVarArgs)))
    ++tensors;
  size_t needed = args.size();
  while (needed && !required(args[needed - 1])) --needed;
  if (needed > tensors || args.size() > CallableGroup::kMaxValues) return;
  group.fewest = std::max<Py_ssize_t>(static_cast<Py_ssize_t>(needed), 1);
  group.most = static_cast<Py_ssize_t>(tensors);
  group.defaults.resize(args.size());
  for (size_t i = needed; i < args.size(); ++i) use_default(args[i], group.defaults[i]);
}

std::map<std::string, CallableGroup*> functions, methods;

PyObject* op_vectorcall(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* f = reinterpret_cast<OpFunction*>(self);
  return call_group(*f->group, nullptr, args, PyVectorcall_NARGS(nargsf), kwnames);
}

PyObject* op_bind(PyObject* self, PyObject* instance, PyObject*) {
  if (!instance || !reinterpret_cast<OpFunction*>(self)->binds) return Py_NewRef(self);
  return PyMethod_New(self, instance);
}

PyObject* op_repr(PyObject* self) { return PyUnicode_FromFormat("<op %s>", group_of(self)->name.c_str()); }
PyObject* op_name(PyObject* self, void*) { return PyUnicode_FromString(group_of(self)->name.c_str()); }
std::string doc_of(const OpInfo& op) {
  return op.inplace_of ? message(op.inplace_of->name, " in place.") : op.doc;
}
// As "csrc/ops/nn/softmax.cpp:118", whatever folder it was compiled in.
std::string declared_at(const OpInfo& op) {
  const std::string_view file = op.declared_at.file_name();
  const size_t root = file.rfind("/csrc/");
  return message(root == file.npos ? file : file.substr(root + 1), ":", op.declared_at.line());
}
PyObject* op_doc(PyObject* self, void*) {
  PyObject* own = reinterpret_cast<OpFunction*>(self)->dict;
  if (PyObject* set = own ? PyDict_GetItemString(own, "__doc__") : nullptr) return Py_NewRef(set);
  std::ostringstream out;
  const OpGroup& group = *group_of(self);
  for (const OpInfo* op : group.overloads) out << signature_text(*op, group.name) << "\n";
  out << "\n" << doc_of(*group.overloads.front());
  return guarded([&] {
    Object docs = checked(PyImport_ImportModule("warptape.core.op_docs"));
    return checked(PyObject_CallMethod(docs.get(), "with_example", "Oss", self, out.str().c_str(),
                                       declared_at(*group.overloads.front()).c_str()))
        .release();
  });
}
int set_doc(PyObject* self, PyObject* text, void*) {
  Object attributes(PyObject_GenericGetDict(self, nullptr));
  if (!attributes) return -1;
  return PyDict_SetItemString(attributes.get(), "__doc__", text ? text : Py_None);
}
Object describe(const OpInfo& op, const char* name, uint32_t flags, const char* of = nullptr);
PyObject* op_declarations(PyObject* self, void*) {
  return guarded([&] {
    Object list = checked(PyList_New(0));
    const OpGroup& group = *group_of(self);
    for (const OpInfo* op : group.overloads)
      checked(PyList_Append(list.get(), describe(*op, group.name.c_str(), op->flags).get()));
    return list.release();
  });
}
PyObject* op_signature(PyObject* self, void*) {
  return guarded([&] {
    Object docs = checked(PyImport_ImportModule("warptape.core.op_docs"));
    return checked(PyObject_CallMethod(docs.get(), "signature", "O", self)).release();
  });
}
PyObject* op_reduce(PyObject* self, PyObject*) { return op_name(self, nullptr); }
// What the declarations say of the op, for Python code that runs ops by rules of their kind.
template <uint32_t flag>
PyObject* op_has(PyObject* self, void*) {
  return PyBool_FromLong(
      std::ranges::all_of(group_of(self)->overloads, [](const OpInfo* op) { return op->flags & flag; }));
}
PyObject* op_binds(PyObject* self, void*) {
  return PyBool_FromLong(reinterpret_cast<OpFunction*>(self)->binds);
}
PyObject* op_pointwise(PyObject* self, void*) {
  return PyBool_FromLong(std::ranges::all_of(
      group_of(self)->overloads, [](const OpInfo* op) { return op->batching == Batching::Pointwise; }));
}
PyObject* op_role(PyObject* self, void*) {
  constexpr const char* roles[] = {"opaque", "pointwise", "product", "add_product", "convolution"};
  return PyUnicode_FromString(roles[static_cast<int>(group_of(self)->overloads.front()->role)]);
}
PyObject* op_aliasing(PyObject* self, void*) {
  constexpr const char* kinds[] = {"none", "view", "reshape", "conversion", "layout", "dropout", "argument"};
  return PyUnicode_FromString(kinds[static_cast<int>(group_of(self)->overloads.front()->aliasing)]);
}

PyGetSetDef op_getset[] = {{"__name__", op_name, nullptr, nullptr, nullptr},
                           {"__qualname__", op_name, nullptr, nullptr, nullptr},
                           {"__doc__", op_doc, set_doc, nullptr, nullptr},
                           {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                           {"__signature__", op_signature, nullptr, nullptr, nullptr},
                           {"_declarations", op_declarations, nullptr, nullptr, nullptr},
                           {"_is_method", op_binds, nullptr, nullptr, nullptr},
                           {"_is_pointwise", op_pointwise, nullptr, nullptr, nullptr},
                           {"_is_linear", op_has<kLinear>, nullptr, nullptr, nullptr},
                           {"_is_random", op_has<kRandom>, nullptr, nullptr, nullptr},
                           {"_is_copy", op_has<kCopies>, nullptr, nullptr, nullptr},
                           {"_has_no_gradient", op_has<kNonDifferentiable>, nullptr, nullptr, nullptr},
                           {"_role", op_role, nullptr, nullptr, nullptr},
                           {"_aliasing", op_aliasing, nullptr, nullptr, nullptr},
                           {}};
PyObject* op_written(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
PyMethodDef op_methods[] = {
    {"__reduce__", op_reduce, METH_NOARGS, nullptr},
    {"_written", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(op_written)),
     METH_FASTCALL | METH_KEYWORDS, "The tensors that a call with these arguments changes in place."},
    {}};
PyMemberDef op_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(OpFunction, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(OpFunction, dict), READONLY, nullptr},
    {}};
PyType_Slot op_slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                          {Py_tp_descr_get, reinterpret_cast<void*>(op_bind)},
                          {Py_tp_repr, reinterpret_cast<void*>(op_repr)},
                          {Py_tp_getset, op_getset},
                          {Py_tp_methods, op_methods},
                          {Py_tp_members, op_members},
                          {}};
PyType_Spec op_spec = {"warptape.OpFunction", sizeof(OpFunction), 0,
                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
                           Py_TPFLAGS_DISALLOW_INSTANTIATION,
                       op_slots};

[[noreturn]] void no_overload(const OpGroup& group, const CallArgs& call) {
  std::ostringstream out;
  if (group.overloads.size() == 1) {
    Frame frame;
    parse(*group.overloads[0], group.arg_names[0], call, frame, true);
    out << group.name << "(): " << frame.problem << "; expected "
        << signature_text(*group.overloads[0], group.name);
  } else {
    out << group.name << "() received an invalid combination of arguments - got (";
    const char* comma = "";
    for (Py_ssize_t i = call.self ? -1 : 0; i < call.nargs; ++i, comma = ", ")
      out << comma << Py_TYPE(i < 0 ? call.self : call.args[i])->tp_name;
    for (Py_ssize_t k = 0; call.kwnames && k < PyTuple_GET_SIZE(call.kwnames); ++k, comma = ", ")
      out << comma << shown_text(PyTuple_GET_ITEM(call.kwnames, k)) << "="
          << Py_TYPE(call.args[call.nargs + k])->tp_name;
    out << "), but expected one of:";
    for (size_t i = 0; i < group.overloads.size(); ++i) {
      Frame frame;
      parse(*group.overloads[i], group.arg_names[i], call, frame, true);
      out << "\n * " << signature_text(*group.overloads[i], group.name) << "\n      " << frame.problem;
    }
  }
  throw TypeError(std::move(out).str());
}

PyObject* op_written(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  return guarded([&] {
    const OpGroup& group = *group_of(self);
    const CallArgs call{nullptr, args, nargs, kwnames && PyTuple_GET_SIZE(kwnames) ? kwnames : nullptr};
    for (size_t i = 0; i < group.overloads.size(); ++i) {
      const OpInfo& op = *group.overloads[i];
      Frame frame(true);
      if (!parse(op, group.arg_names[i], call, frame, false)) continue;
      std::vector<Tensor> written;
      each_written(op, {frame.values, op.args.size()}, [&](const Tensor& t) {
        if (t.defined()) written.push_back(t);
      });
      return wrap_tuple(written);
    }
    no_overload(group, call);
  });
}

// A list that an op writes to is what it returns, the same object.
PyObject* written_list(const OpInfo& op, const CallArgs& call) {
  if (op.args.empty() || op.args[0].type != ArgType::TensorList || !(op.args[0].marks & kWritten)) return {};
  PyObject* list = call.nargs ? call.args[0] : nullptr;
  for (Py_ssize_t k = 0; !list && call.kwnames && k < PyTuple_GET_SIZE(call.kwnames); ++k)
    if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(call.kwnames, k), op.args[0].name))
      list = call.args[k];
  return Py_XNewRef(list);
}

PyObject* call_overload(const OpGroup& group, size_t i, Frame& frame, const CallArgs& call) {
  const OpInfo& op = *group.overloads[i];
  Result result;
  // A call on a device may wait for it, which is work enough to let go of the GIL.
  if (__builtin_expect(frame.on_device, 0)) frame.work = std::max(frame.work, GilRelease::kWorthIt);
  if (__builtin_expect(frame.out != nullptr, 0)) prepare_out(op, frame);
  {
    // What is recorded runs without the GIL later: graph/record/region.h.
    GilRelease release(thread_state().deferral ? 0 : frame.work);
    op.call(op, frame.values, result);
  }
  if (frame.out) return finish_out(op, frame, result);
  if (result.kind == Result::Kind::Tensor) return wrap(result.tensor);
  if (result.kind == Result::Kind::None)
    if (PyObject* list = written_list(op, call)) return list;
  return wrap(std::move(result), group.result_types[i]);
}

// A call with plain tensors alone; false where it is none.
bool call_on_tensors(const CallableGroup& group, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                     PyObject*& out) {
  const Py_ssize_t given = nargs + (self ? 1 : 0);
  if (given < group.fewest || given > group.most) return false;
  const OpInfo& op = *group.overloads.front();
  alignas(Value) std::byte raw[CallableGroup::kMaxValues * sizeof(Value)];
  auto* values = reinterpret_cast<Value*>(raw);
  int64_t work = 0;
  for (Py_ssize_t i = 0; i < given; ++i) {
    PyObject* o = !self ? args[i] : i ? args[i - 1] : self;
    if (!is_tensor(o) || !tensor_of(o)->plain) return false;
    auto* value = new (values + i) Value;
    value->present = true;
    value->tensor = &tensor_of(o);
    work += value->tensor->numel();
  }
  std::uninitialized_copy(group.defaults.begin() + given, group.defaults.end(), values + given);
  Result result;
  {
    GilRelease release(thread_state().deferral ? 0 : work);
    op.call(op, values, result);
  }
  out = result.kind == Result::Kind::Tensor ? wrap(result.tensor)
                                            : wrap(std::move(result), group.result_types.front());
  return true;
}

// One Python object with __slots__-free attributes to hold the ops of one place.
Object make_place(PyObject* module, const char* name) {
  Object place = checked(PyModule_New((std::string("warptape._C.") + name).c_str()));
  checked(PyModule_AddObjectRef(module, name, place.get()));
  return place;
}

PyObject* return_types;  // warptape._C._return_types

// Each result on a line of its own, as PyTorch has it.
PyObject* named_result_repr(PyObject* self) {
  return guarded([&] {
    PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(self));
    Object home = checked(PyObject_GetAttrString(type, "__module__"));
    Object names = checked(PyObject_GetAttrString(type, "__match_args__"));
    Object text =
        checked(PyUnicode_FromFormat("%U.%s(", home.get(), strrchr(Py_TYPE(self)->tp_name, '.') + 1));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names.get()); ++i)
      text = checked(PyUnicode_FromFormat("%U%s\n%U=%R", text.get(), i ? "," : "",
                                          PyTuple_GET_ITEM(names.get(), i), PyTuple_GET_ITEM(self, i)));
    return checked(PyUnicode_FromFormat("%U)", text.get())).release();
  });
}

// The class of an op's named results; function and method share it.
PyTypeObject* named_result(const OpInfo& op) {
  if (op.return_names.empty()) return nullptr;
  static auto* made = new std::map<std::string, PyTypeObject*>();
  // PyTorch's linalg has results of other names than the older functions.
  const bool linalg = (op.flags & kLinalg) && !(op.flags & kFunction);
  const std::string type_name = std::string(linalg ? "linalg_" : "") + op.name;
  std::string key = type_name;
  for (const char* n : op.return_names) key.append(",").append(n);
  PyTypeObject*& type = (*made)[key];
  if (type) return type;
  std::vector<PyStructSequence_Field> fields;
  for (const char* n : op.return_names) fields.push_back({n, nullptr});
  fields.push_back({nullptr, nullptr});
  auto* name = new std::string(std::string("warptape.return_types.") + type_name);
  PyStructSequence_Desc desc{name->c_str(), op.doc, fields.data(), static_cast<int>(op.return_names.size())};
  type = PyStructSequence_NewType(&desc);
  if (type) type->tp_repr = named_result_repr;
  if (!type || PyObject_SetAttrString(return_types, type_name.c_str(), reinterpret_cast<PyObject*>(type)) < 0)
    throw PythonErrorSet();
  return type;
}

void add_overload(CallableGroup& group, const OpInfo& op) {
  group.name = op.name;
  group.overloads.push_back(&op);
  std::vector<PyObject*> names;
  for (const Arg& a : op.args) names.push_back(PyUnicode_InternFromString(a.name));
  group.arg_names.push_back(std::move(names));
  group.result_types.push_back(named_result(op));
  if (group.overloads.size() == 1) prepare_tensor_calls(group);
}

struct AliasName {
  std::string name, of;
  uint32_t places;
};
// In-place forms included.
std::vector<AliasName> aliases() {
  std::vector<AliasName> names;
  for (const Alias* a = all_aliases(); a; a = a->next) {
    names.push_back({a->name, a->of, a->places});
    if (!a->places) names.push_back({std::string(a->name) + "_", std::string(a->of) + "_", 0});
  }
  std::reverse(names.begin(), names.end());
  return names;
}

void publish(PyObject* place, OpGroup& group, bool binds) {
  auto* f = PyObject_New(OpFunction, op_function_type);
  if (!f) throw PythonErrorSet();
  f->vectorcall = op_vectorcall;
  f->group = &group;
  f->binds = binds;
  f->dict = nullptr;
  group.callable = reinterpret_cast<PyObject*>(f);
  checked(PyObject_SetAttrString(place, group.name.c_str(), group.callable));
}

// `of`: the name of which this one is another, or null.
Object describe(const OpInfo& op, const char* name, uint32_t flags, const char* of) {
  constexpr const char* kinds[] = {"None",  "Tensor",    "tuple",        "list", "bool",
                                   "int",   "float",     "Number",       "ints", "int tuple",
                                   "dtype", "OneOrMany", "TensorAndList"};
  const OpInfo* form = form_of(op);
  if (!of && form) of = form->name;
  constexpr const char* rules[] = {"keep", "lower", "float32", "widest", "refuse", "float32"};
  Object args = checked(PyList_New(0));
  for (const Arg& a : op.args) {
    Object arg = checked(Py_BuildValue("(ssOOOOs)", a.name, type_text(a), a.optional ? Py_True : Py_False,
                                       a.def.kind != ArgDefault::Kind::Required ? Py_True : Py_False,
                                       (a.marks & kKeywordOnly) ? Py_True : Py_False,
                                       (a.marks & kVarArgs) ? Py_True : Py_False, default_text(a).c_str()));
    checked(PyList_Append(args.get(), arg.get()));
  }
  Object names = checked(PyList_New(0));
  for (const char* n : op.return_names)
    checked(PyList_Append(names.get(), checked(PyUnicode_FromString(n)).get()));
  return checked(Py_BuildValue("(sIOssOs(ss)z)", name, flags, args.get(), kinds[static_cast<int>(op.returns)],
                               signature_text(op, name).c_str(), names.get(), doc_of(op).c_str(),
                               rules[static_cast<int>(op.autocast(false))],
                               rules[static_cast<int>(op.autocast(true))], of));
}

// [(name, flags, arguments, return kind, signature, names of results, doc, autocast on (CPU, CUDA), name of
// the op that it is a form or another name of, or None)] of every op and alias, for stubs and the op table.
PyObject* list_ops(PyObject*, PyObject*) {
  return guarded([&] {
    std::vector<const OpInfo*> ops;
    for (const OpInfo* op = all_ops(); op; op = op->next) ops.push_back(op);
    std::reverse(ops.begin(), ops.end());
    Object list = checked(PyList_New(0));
    for (const OpInfo* op : ops) checked(PyList_Append(list.get(), describe(*op, op->name, op->flags).get()));
    for (const auto& [name, of, places] : aliases())
      for (const OpInfo* op : ops)
        if (of == op->name) {
          const uint32_t flags = places ? (op->flags & ~kPlaces) | places : op->flags;
          checked(PyList_Append(list.get(), describe(*op, name.c_str(), flags, op->name).get()));
        }
    return list.release();
  });
}
PyMethodDef module_methods[] = {{"_list_ops", list_ops, METH_NOARGS, "Every op's declaration, oldest first."},
                                {}};

}  // namespace

PyObject* call_group(const OpGroup& group, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                     PyObject* kwnames) {
  return guarded(
      [&]() -> PyObject* {
        if (__builtin_expect(overridden(self, args, nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0)), 0)) {
          Object func = self ? tensor_attribute(group.name.c_str()) : Object::share(group.callable);
          return call_override(func.get(), self, args, nargs, kwnames);
        }
        const CallArgs call{self, args, nargs, kwnames && PyTuple_GET_SIZE(kwnames) ? kwnames : nullptr};
        // All groups are made here.
        if (PyObject* out; !call.kwnames &&
                           call_on_tensors(static_cast<const CallableGroup&>(group), self, args, nargs, out))
          return out;
        // An overload that takes a device's tensor as it is goes before one that would wait for its number.
        for (bool read_devices : {false, true})
          for (size_t i = 0; i < group.overloads.size(); ++i) {
            Frame frame(read_devices);
            if (parse(*group.overloads[i], group.arg_names[i], call, frame, false))
              return call_overload(group, i, frame, call);
          }
        no_overload(group, call);
      },
      static_cast<PyObject*>(nullptr), group.name.c_str());
}

const OpGroup* find_op(const char* name) {
  for (const auto* groups : {&functions, &methods})
    if (auto it = groups->find(name); it != groups->end()) return it->second;
  return nullptr;
}

void init_ops(PyObject* module) {
  op_function_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpec(&op_spec)).release());
  checked(PyModule_AddFunctions(module, module_methods));
  return_types = make_place(module, "_return_types").release();
  struct Place {
    OpFlag bit;
    Object object;
    bool binds;
    std::map<std::string, CallableGroup*> groups;
  };
  Place places[] = {{kFunction, make_place(module, "_functions"), false, {}},
                    {kMethod, Object::share(reinterpret_cast<PyObject*>(tensor_base_type)), true, {}},
                    {kNN, make_place(module, "_nn"), false, {}},
                    {kLinalg, make_place(module, "_linalg"), false, {}},
                    {kSpecial, make_place(module, "_special"), false, {}},
                    {kFFT, make_place(module, "_fft"), false, {}},
                    {kSignal, make_place(module, "_windows"), false, {}},
                    {kMasked, make_place(module, "_masked"), false, {}},
                    {kPrivate, make_place(module, "_private"), false, {}}};
  std::vector<const OpInfo*> ops;
  for (const OpInfo* op = all_ops(); op; op = op->next) ops.push_back(op);
  for (size_t i = ops.size(); i-- > 0;)
    for (Place& p : places)
      if (ops[i]->flags & p.bit) {
        CallableGroup*& group = p.groups[ops[i]->name];
        if (!group) group = new CallableGroup;
        add_overload(*group, *ops[i]);
      }
  for (const auto& [name, of, only] : aliases())
    for (Place& p : places) {
      if (only && !(only & p.bit)) continue;
      const Place* from =
          only ? std::ranges::find_if(places, [&](auto& q) { return q.groups.contains(of); }) : &p;
      if (auto at = from->groups.find(of); at != from->groups.end())
        (p.groups[name] = new CallableGroup(*at->second))->name = name;
    }
  for (Place& p : places)
    for (auto& [name, group] : p.groups) publish(p.object.get(), *group, p.binds);
  functions = places[0].groups;
  methods = places[1].groups;
}

}  // namespace warptape::bindings
