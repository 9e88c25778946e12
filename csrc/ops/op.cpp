#include "ops/op.h"

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
    if (t.ndim() == 0 && t.device().is_cpu()) return;
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
}  // namespace

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

OpInfo::OpInfo(const char* n, uint32_t f, std::span<const Arg> a, std::span<const ArgKind> kinds,
               const char* d, std::span<const char* const> names, Result::Kind r, CallFn c, CallFn own)
    : name(n),
      flags(f),
      args(a.begin(), a.end()),
      doc(d),
      returns(r),
      return_names(names.begin(), names.end()),
      call(c),
      run(own),
      next(std::exchange(newest, this)) {
  for (size_t i = 0; i < kinds.size(); ++i)
    args.at(i).type = kinds[i].type, args.at(i).optional = kinds[i].optional;
}

OpInfo::OpInfo(const char* n, const OpInfo& of)
    : name(n),
      flags((of.flags & (kMixedDevices | kComplex | kRandom | kLinear | 7u << 27)) | kMethod),
      args(of.args),
      doc(of.doc),
      returns(of.returns),
      return_names(of.return_names),
      inplace_of(&of),
      call(of.call),
      run(of.run),
      next(std::exchange(newest, this)) {
  args[0].marks |= kWritten;
}

Alias::Alias(const char* n, const char* o, uint32_t p)
    : name(n), of(o), places(p), next(std::exchange(newest_alias, this)) {}
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
  Keep keep;
  for (uint32_t rest = thread_state.dispatch; rest; rest &= rest - 1) {
    int bit = std::countr_zero(rest);
    Restore<uint32_t> off(thread_state.dispatch, thread_state.dispatch & ~(1u << bit));
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
