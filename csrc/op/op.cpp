#include "op/forms.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>

namespace warptape {
namespace {
// Constant-initialised, so that ops may register from the static constructors of any file.
constinit const OpInfo* newest = nullptr;
constinit const Alias* newest_alias = nullptr;
constinit std::array<Interceptor, 32> interceptors{};

// Calls see(t) for every tensor among the arguments; lists of optional ones, indices, are left out on demand.
template <class F>
void each_tensor(const OpInfo& op, std::span<const Value> args, size_t i, bool indices, F&& see) {
  const Value& v = args[i];
  if (!v.present) return;
  if (op.args[i].type == ArgType::Tensor && v.tensor->defined()) see(*v.tensor);
  if (op.args[i].type == ArgType::TensorList)
    for (const Tensor& t : ArgTraits<TensorList>::unbox(v)) see(t);
  if (indices && op.args[i].type == ArgType::OptTensorList)
    for (const OptTensor& t : ArgTraits<std::span<const OptTensor>>::unbox(v))
      if (t && t->defined()) see(*t);
}
template <class F>
void each_tensor(const OpInfo& op, std::span<const Value> args, bool indices, F&& see) {
  for (size_t i = 0; i < args.size(); ++i) each_tensor(op, args, i, indices, see);
}

// All tensors lie on one device; numbers and indices in host memory may go with any.
void check_devices(const OpInfo& op, std::span<const Value> args) {
  if (op.flags & kMixedDevices) return;
  const Tensor* first = nullptr;
  each_tensor(op, args, false, [&](const Tensor& t) {
    if (t.ndim() == 0 && t.device().is_host()) return;
    if (!first) first = &t;
    WT_CHECK(t.device() == first->device(), DeviceError, op.name,
             ": Expected all tensors to be on the same device, but found at least two devices, ",
             first->device(), " and ", t.device(), "! Move one with .to(device)");
  });
}

void check_complex(const OpInfo& op, std::span<const Value> args) {
  std::optional<DType> dtype;
  each_tensor(op, args, true, [&](const Tensor& t) {
    if (is_complex(t.dtype())) dtype = t.dtype();
  });
  for (size_t i = 0; i < args.size(); ++i) {
    const bool number = op.args[i].type == ArgType::Scalar && args[i].scalar.is_complex();
    if (!args[i].present || dtype) continue;
    if (number) dtype = DType::Complex128;
    if (op.args[i].type == ArgType::DType && is_complex(args[i].dtype)) dtype = args[i].dtype;
  }
  if (!dtype) return;
  WT_CHECK(op.flags & kComplex, DtypeError, op.name, ": not implemented for ", *dtype);
}

void not_implemented_backward(Node& n, Gradients&) {
  throw NotImplementedError(message("derivative for aten::", n.data<const OpInfo*>()->name,
                                    " is not implemented; take detach() of its inputs if none is wanted"));
}
constexpr NodeType kNotImplemented{"NotImplemented", not_implemented_backward};

// ---- arguments that are written ----

// Note [Overlap]: a kernel reads and writes in an order of its own, with several threads. So an argument may
// lie in the memory of one that is written only where both are the same view of it. As PyTorch, the entry of
// every op that writes to an argument refuses what overlaps otherwise; where a tensor has gaps, of which
// PyTorch says nothing, the argument is read from a copy.
constexpr uint16_t kWrites = kWritten | kUpdated;

struct Copies {
  std::deque<Tensor> tensors;
  std::deque<std::vector<Tensor>> lists;
  std::deque<std::vector<OptTensor>> optional_lists;
};

// What is to be read instead of t, or null for t itself.
const Tensor* read_instead(const OpInfo& op, const Tensor& written, const Tensor& t, Copies& copies) {
  if (!written.defined() || !t.defined() || t->storage != written->storage) return nullptr;
  const Overlap found = overlap_of(written, t);
  if (found == Overlap::None || found == Overlap::Full) return nullptr;
  WT_CHECK(found == Overlap::Unordered, Error, op.name, kOverlap);
  Tensor copy = raw_clone(t);
  if (Edge e = gradient_edge(t)) set_gradient_edge(copy, std::move(e));
  return &copies.tensors.emplace_back(std::move(copy));
}

TensorList tensors_of(const Value& v, ArgType type) {
  return type == ArgType::TensorList ? ArgTraits<TensorList>::unbox(v) : TensorList(v.tensor, 1);
}

// Item k of a written list and item k of another go together; a single tensor goes with all.
template <class T>
void read_list_instead(const OpInfo& op, TensorList written, bool paired, Value& v, Copies& copies,
                       std::deque<std::vector<T>>& lists) {
  const std::span<const T> from(static_cast<const T*>(v.list.data), v.list.size);
  std::vector<T>* changed = nullptr;
  for (size_t k = 0; k < from.size(); ++k)
    for (size_t i = paired ? k : 0; i < (paired ? std::min(k + 1, written.size()) : written.size()); ++i) {
      const T& item = changed ? (*changed)[k] : from[k];
      const Tensor* copy = nullptr;
      if constexpr (std::is_same_v<T, Tensor>)
        copy = read_instead(op, written[i], item, copies);
      else if (item)
        copy = read_instead(op, written[i], *item, copies);
      if (!copy) continue;
      if (!changed) changed = &lists.emplace_back(from.begin(), from.end());
      (*changed)[k] = *copy;
    }
  if (changed) v.list = {changed->data(), changed->size()};
}

[[gnu::noinline]] void call_with_copies(const OpInfo& op, const Value* given, Result& out) {
  alignas(Value) std::byte raw[kMaxArgs * sizeof(Value)];
  auto* args = reinterpret_cast<Value*>(raw);
  std::uninitialized_copy_n(given, op.args.size(), args);
  Copies copies;
  for (size_t w = 0; w < op.args.size(); ++w) {
    if (!(op.args[w].marks & kWrites) || !given[w].present) continue;
    const TensorList written = tensors_of(given[w], op.args[w].type);
    const bool list = op.args[w].type == ArgType::TensorList;
    for (size_t i = 0; i < op.args.size(); ++i) {
      if (i == w || !args[i].present || (op.args[i].marks & (kWrites | kReadFirst))) continue;
      if (op.args[i].type == ArgType::Tensor) {
        for (const Tensor& t : written)
          if (const Tensor* copy = read_instead(op, t, *args[i].tensor, copies)) args[i].tensor = copy;
      } else if (op.args[i].type == ArgType::TensorList) {
        read_list_instead<Tensor>(op, written, list, args[i], copies, copies.lists);
      } else if (op.args[i].type == ArgType::OptTensorList) {
        read_list_instead<OptTensor>(op, written, list, args[i], copies, copies.optional_lists);
      }
    }
  }
  op.past_overlap(op, args, out);
}

// Whether some argument lies in the storage of one that is written and is another tensor.
bool shares_memory(const OpInfo& op, const Value* args) {
  const size_t n = op.args.size();
  for (size_t w = 0; w < n; ++w) {
    if (!(op.args[w].marks & kWrites) || !args[w].present) continue;
    const bool list = op.args[w].type == ArgType::TensorList;
    const TensorList written = tensors_of(args[w], op.args[w].type);
    const auto meets = [&](size_t k, const Tensor& t) {
      const auto one = [&](const Tensor& to) {
        return to.defined() && t.defined() && !t.same(to) && t->storage == to->storage;
      };
      return list ? k < written.size() && one(written[k]) : one(written[0]);
    };
    for (size_t i = 0; i < n; ++i) {
      const Value& v = args[i];
      if (i == w || !v.present || (op.args[i].marks & (kWrites | kReadFirst))) continue;
      if (op.args[i].type == ArgType::Tensor) {
        for (size_t k = 0; k < written.size(); ++k)
          if (meets(k, *v.tensor)) return true;
      } else if (op.args[i].type == ArgType::TensorList) {
        const TensorList from = ArgTraits<TensorList>::unbox(v);
        for (size_t k = 0; k < from.size(); ++k)
          if (meets(k, from[k])) return true;
      } else if (op.args[i].type == ArgType::OptTensorList) {
        const auto from = ArgTraits<std::span<const OptTensor>>::unbox(v);
        for (size_t k = 0; k < from.size(); ++k)
          if (from[k] && meets(k, *from[k])) return true;
      }
    }
  }
  return false;
}

void call_writing(const OpInfo& op, const Value* args, Result& out) {
  if (__builtin_expect(shares_memory(op, args), 0)) return call_with_copies(op, args, out);
  op.past_overlap(op, args, out);
}

bool writes(const OpInfo& op) {
  return std::ranges::any_of(op.args, [](const Arg& arg) { return arg.marks & kWrites; });
}

// A form that in_place() made has its whole result before it writes; PyTorch refuses elementwise ones all the
// same.
void guard_writes(OpInfo& op) {
  op.past_overlap = op.call;
  if (writes(op) && (!op.inplace_of || op.batching == Batching::Pointwise)) op.call = call_writing;
}
}  // namespace

OpFacts facts_in_place(const OpFacts& of) {
  OpFacts facts = of.flags & (kMixedDevices | kComplex | kRandom | kLinear);
  facts.batching = of.batching;
  if (of.role == Role::Pointwise) facts.role = of.role;
  return facts;
}

void record_not_implemented(const OpInfo& op, std::span<const Value> args, Result& out) {
  if (op.flags & kNonDifferentiable) return;
  const bool writes = op.args[0].marks & kWritten;
  Ref<Node> node;
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].marks & kNoGradient) continue;
    each_tensor(op, args, i, false, [&](const Tensor& t) {
      if (!requires_grad(t)) return;
      if (!node) {
        node = make_node(kNotImplemented);
        if (writes) node->edges.push_back({});  // of what is written, which rebase_history() expects first
      }
      add_edge(*node, t);
    });
  }
  if (!node) return;
  node->emplace<const OpInfo*>(&op);
  const auto see = [&](const Tensor& t) {
    if (!lacks_history(t)) return;
    writes ? rebase_history(t, node) : set_history(t, node);
  };
  see(out.tensor);
  for (const Tensor& t : out.tensors) see(t);
}

const OpInfo* all_ops() { return newest; }

const OpInfo* op_named(std::string_view name) {
  const OpInfo* found = nullptr;
  for (const OpInfo* op = newest; op; op = op->next)
    if (name == op->name) found = op;
  return found;
}

const OpInfo* op_of_node(std::string_view node) {
  constexpr std::string_view kEnd = "Backward0";
  if (!node.ends_with(kEnd)) return nullptr;
  std::string name;
  for (const char c : node.substr(0, node.size() - kEnd.size())) {
    const bool upper = c >= 'A' && c <= 'Z';
    if (upper && !name.empty()) name += '_';
    name += upper ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return op_named(name);
}

const OpInfo* in_place_form(const OpInfo& of) {
  if (std::ranges::any_of(of.args, [](const Arg& arg) { return arg.marks & kInPlace; })) return &of;
  const std::string name = message(of.name, "_");
  const auto same = [](const Arg& a, const Arg& b) { return a.type == b.type && a.optional == b.optional; };
  for (const OpInfo* op = newest; op; op = op->next)
    if (name == op->name && !op->inplace_of && !op->args.empty() && (op->args[0].marks & kWritten) &&
        std::ranges::equal(op->args, of.args, same))
      return op;
  return nullptr;
}

bool may_write(const OpInfo& op) { return (op.flags & kSetsFlags) || writes(op); }

OpInfo::OpInfo(OpName n, const OpFacts& f, std::span<const Arg> a, std::span<const ArgKind> kinds,
               const char* d, std::span<const char* const> names, Result::Kind r, CallFn c, CallFn own)
    : OpFacts(f),
      name(n.text),
      args(a.begin(), a.end()),
      doc(d),
      returns(r),
      return_names(names.begin(), names.end()),
      call(c),
      run(own),
      next(std::exchange(newest, this)),
      declared_at(n.line) {
  for (size_t i = 0; i < kinds.size(); ++i)
    args.at(i).type = kinds[i].type, args.at(i).optional = kinds[i].optional;
  guard_writes(*this);
}

OpInfo::OpInfo(OpName n, const OpInfo& of)
    : OpFacts(facts_in_place(of) | kMethod),
      name(n.text),
      args(of.args),
      doc(of.doc),
      returns(of.returns),
      return_names(of.return_names),
      inplace_of(&of),
      call(of.call),
      run(of.run),
      next(std::exchange(newest, this)),
      declared_at(n.line) {
  args[0].marks |= kWritten;
  guard_writes(*this);
}

Alias::Alias(const char* n, const char* o, const OpFacts& p)
    : name(n), of(o), places(p.flags), next(std::exchange(newest_alias, this)) {}
const Alias* all_aliases() { return newest_alias; }

void set_interceptor(DispatchBit bit, Interceptor f) {
  interceptors[std::countr_zero(static_cast<uint32_t>(bit))] = f;
}

void each_tensor(const OpInfo& op, std::span<const Value> args,
                 const std::function<void(const Tensor&)>& see) {
  each_tensor(op, args, true, see);
}

void call_checked(const OpInfo& op, std::span<Value> args, Result& out) {
  check_devices(op, args);
  check_complex(op, args);
  bool by_class = false;
  if (any_dispatch()) each_tensor(op, args, true, [&](const Tensor& t) { by_class |= has_dispatch(t); });
  uint32_t asked = thread_state().dispatch;
  // Of what a class does a graph has the ops on the tensors that it holds.
  if (by_class) asked = (asked & ~(kCapture | kTrace)) | kTorchDispatch;
  Keep keep;
  for (uint32_t rest = asked; rest; rest &= rest - 1) {
    int bit = std::countr_zero(rest);
    Restore<uint32_t> off(own_thread_state().dispatch, thread_state().dispatch & ~(1u << bit));
    if (interceptors[bit] && interceptors[bit](op, args, out, keep)) return;
  }
  op.run(op, args.data(), out);
}

static_assert(std::is_trivially_copyable_v<Value>);
void call_checked(const OpInfo& op, const Value* args, Result& out) {
  alignas(Value) std::byte raw[kMaxArgs * sizeof(Value)];  // made only where the op has arguments
  auto* values = reinterpret_cast<Value*>(raw);
  std::uninitialized_copy_n(args, op.args.size(), values);
  call_checked(op, std::span(values, op.args.size()), out);
}

}  // namespace warptape
