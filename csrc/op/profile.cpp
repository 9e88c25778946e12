// Records the calls of ops for a profile, with their arguments where it asks for shapes.
#include "core/profiler.h"

#include <bit>

#include "op/profile.h"

namespace warptape {
namespace {

using Numbers = std::vector<int64_t>;

void put_list(Numbers& to, IntList list) {
  to.push_back(static_cast<int64_t>(list.size()));
  to.insert(to.end(), list.begin(), list.end());
}

void put(Numbers& to, const Tensor& t) {
  if (!t.defined()) return to.push_back(kPutNone);
  to.push_back(kPutTensor);
  to.push_back(static_cast<int64_t>(t.dtype()));
  put_list(to, t.sizes());
  put_list(to, t.strides());
}

void put_tensors(Numbers& to, TensorList list) {
  to.push_back(kPutTensors);
  to.push_back(static_cast<int64_t>(list.size()));
  for (const Tensor& t : list) put(to, t);
}

void put_double(Numbers& to, double d) {
  to.push_back(kPutDouble);
  to.push_back(std::bit_cast<int64_t>(d));
}

void put(Numbers& to, ArgType type, const Value& v) {
  if (!v.present) return to.push_back(kPutNone);
  switch (type) {
    case ArgType::Tensor:
      return put(to, *v.tensor);
    case ArgType::TensorList:
      return put_tensors(to, ArgTraits<TensorList>::unbox(v));
    case ArgType::Int:
      return to.insert(to.end(), {kPutInt, v.i}), void();
    case ArgType::Bool:
      return to.insert(to.end(), {kPutBool, v.b}), void();
    case ArgType::Double:
      return put_double(to, v.d);
    case ArgType::Scalar:
      if (v.scalar.is_complex()) return to.push_back(kPutNone);
      if (is_floating(v.scalar.dtype())) return put_double(to, v.scalar.to_double());
      return to.insert(to.end(), {kPutInt, v.scalar.to_int()}), void();
    case ArgType::IntList:
      to.push_back(kPutInts);
      return put_list(to, ArgTraits<IntList>::unbox(v));
    default:
      to.push_back(kPutNone);
  }
}

void put(Numbers& to, const Result& out) {
  const bool one = out.kind == Result::Kind::Tensor || out.kind == Result::Kind::TensorAndList;
  to.push_back(static_cast<int64_t>(out.tensors.size()) + one);
  if (one) put(to, out.tensor);
  for (const Tensor& t : out.tensors) put(to, t);
}

bool record_call(const OpInfo& op, std::span<Value> args, Result& out, Keep&) {
  if (!thread_state().profiler) return false;
  const ProfiledScope scope(op.name, EventKind::Op, next_node_sequence());
  if (scope.event() == ProfilerEvent::kNone) return false;
  ProfilerThread& t = *thread_state().profiler;
  Numbers numbers;
  if (t.options.shapes)
    for (size_t i = 0; i < args.size(); ++i) put(numbers, op.args[i].type, args[i]);
  {
    // What the op calls is recorded, too.
    Restore<uint32_t> again(own_thread_state().dispatch, thread_state().dispatch | kProfile);
    op.run(op, args.data(), out);
  }
  if (!t.options.shapes || thread_state().profiler != &t) return true;
  put(numbers, out);
  std::lock_guard lock(t.mutex);
  if (t.closed) return true;
  t.events[scope.event()].args = static_cast<uint32_t>(t.numbers.size());
  t.numbers.push_back(static_cast<int64_t>(args.size()));
  t.numbers.insert(t.numbers.end(), numbers.begin(), numbers.end());
  return true;
}

[[maybe_unused]] const bool registered = (set_interceptor(kProfile, record_call), true);

}  // namespace
}  // namespace warptape
