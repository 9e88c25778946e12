// Records the calls of ops for a profile, with their arguments where it asks for shapes.
#include "core/profiler.h"

#include <bit>

#include "op/profile.h"
#include "op/visit.h"

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
  visit(type, v,
        Overloaded{
            [&](const auto&) { to.push_back(kPutNone); },
            [&](const Tensor& t) { put(to, t); },
            [&](TensorList list) { put_tensors(to, list); },
            [&](int64_t i) { to.insert(to.end(), {kPutInt, i}); },
            [&](bool b) { to.insert(to.end(), {kPutBool, b}); },
            [&](double d) { put_double(to, d); },
            [&](const Scalar& s) {
              if (s.is_complex()) return to.push_back(kPutNone);
              if (is_floating(s.dtype())) return put_double(to, s.to_double());
              to.insert(to.end(), {kPutInt, s.to_int()});
            },
            [&](IntList list) {
              to.push_back(kPutInts);
              put_list(to, list);
            },
        });
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
