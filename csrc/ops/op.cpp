#include "ops/op.h"

#include <array>
#include <bit>

namespace warptape {
namespace {
// Constant-initialised, so that ops may register from the static constructors of any file.
constinit const OpInfo* newest = nullptr;
constinit const Alias* newest_alias = nullptr;
constinit std::array<Interceptor, 32> interceptors{};

thread_local const OpInfo* straight = nullptr;  // the op whose next entry is not intercepted

// Calls see(t) for every tensor among the arguments; lists of optional ones, indices, are left out on demand.
template <class F>
void each_tensor(const OpInfo& op, std::span<const Value> args, bool indices, F&& see) {
  for (size_t i = 0; i < args.size(); ++i) {
    const Value& v = args[i];
    if (!v.present) continue;
    if (op.args[i].type == ArgType::Tensor && v.tensor->defined()) see(*v.tensor);
    if (op.args[i].type == ArgType::TensorList)
      for (const Tensor& t : ArgTraits<TensorList>::unbox(v)) see(t);
    if (indices && op.args[i].type == ArgType::OptTensorList)
      for (const OptTensor& t : ArgTraits<std::span<const OptTensor>>::unbox(v))
        if (t && t->defined()) see(*t);
  }
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
}  // namespace

const OpInfo* all_ops() { return newest; }

const OpInfo* register_op(OpInfo* op) { return std::exchange(newest, op); }

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

void call_straight(const OpInfo& op, const Value* args, Result& out) {
  straight = &op;
  struct Forget {
    ~Forget() { straight = nullptr; }  // where nothing asked
  } forget;
  op.call(op, args, out);
}

bool intercept(const OpInfo& op, std::span<Value> args, Result& out, Keep& keep) {
  if (straight && std::exchange(straight, nullptr) == &op) return false;
  check_devices(op, args);
  check_complex(op, args);
  for (uint32_t rest = thread_state.dispatch; rest; rest &= rest - 1) {
    int bit = std::countr_zero(rest);
    Restore<uint32_t> off(thread_state.dispatch, thread_state.dispatch & ~(1u << bit));
    if (interceptors[bit] && interceptors[bit](op, args, out, keep)) return true;
  }
  return false;
}

}  // namespace warptape
