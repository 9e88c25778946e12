// Autocast: the interceptors that cast an op's floating arguments as its declaration says. CUDA tensors have
// one of their own, which takes the calls that have such a tensor; the other takes the rest.
//
// Parameters are used many times in one step, so the narrow copies of float32 leaves live until the outermost
// context ends. float64 is never cast, and an op that writes an argument keeps its dtypes.
#include "ops/autocast.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>

#include "op/visit.h"
#include "ops/view/copy.h"

namespace warptape {
namespace {

struct CachedCast {
  Tensor leaf, narrow;
  uint32_t version;
};
struct CastCache {
  std::unordered_map<const TensorImpl*, CachedCast> casts;
  int depth = 0;
  bool on = true;
};
PerThread<CastCache> cache;

struct Mode {
  bool cuda;
  DType narrow() const { return cuda ? thread_state().autocast_cuda_dtype : thread_state().autocast_dtype; }
};

bool castable(const Tensor& t, Mode mode) {
  return t.defined() && is_floating(t.dtype()) && t.dtype() != DType::Float64 &&
         t.device().is_cuda() == mode.cuda;
}

Tensor cast_cached(const Tensor& t, DType dtype, Mode mode) {
  // A copy made while nothing is recorded would cut the parameter off from a later recorded use.
  bool keeps = cache->on && cache->depth > 0 && thread_state().grad_mode && dtype == mode.narrow() &&
               t.dtype() == DType::Float32 && requires_grad(t) && is_leaf(t) && !is_view(t);
  if (!keeps) return ops::cast(t, dtype);
  auto at = cache->casts.find(t.impl());
  if (at != cache->casts.end() && at->second.version == t.version() && at->second.narrow.dtype() == dtype)
    return at->second.narrow;
  Tensor narrow = ops::cast(t, dtype);
  cache->casts.insert_or_assign(t.impl(), CachedCast{t, narrow, t.version()});
  return narrow;
}

// The arguments with their floating tensors in another dtype, and what they point to.
class CastArgs {
 public:
  CastArgs(const OpInfo& op, std::span<Value> args, DType dtype, Mode mode) : dtype_(dtype), mode_(mode) {
    for (size_t i = 0; i < args.size(); ++i) {
      Value& v = args[i];
      if (op.args[i].optional && !v.present) continue;
      visit(op.args[i].type, v,
            Overloaded{
                [](const auto&) {},
                [&](const Tensor& t) { v.tensor = &one(t); },
                [&](TensorList) { list<Tensor>(v, tensors_); },
                [&](std::span<const OptTensor>) { list<OptTensor>(v, optional_tensors_); },
            });
    }
  }

 private:
  Tensor converted(const Tensor& t) { return castable(t, mode_) ? cast_cached(t, dtype_, mode_) : t; }
  OptTensor converted(const OptTensor& t) { return t ? OptTensor(converted(*t)) : t; }
  const Tensor& one(const Tensor& t) {
    if (!castable(t, mode_) || t.dtype() == dtype_) return t;
    tensors_.push_back({converted(t)});
    return tensors_.back()[0];
  }
  template <class T>
  void list(Value& v, std::list<std::vector<T>>& keep) {
    std::vector<T>& made = keep.emplace_back();
    for (const T& t : std::span(static_cast<const T*>(v.list.data), v.list.size))
      made.push_back(converted(t));
    v.list.data = made.data();
  }

  DType dtype_;
  Mode mode_;
  std::list<std::vector<Tensor>> tensors_;  // lists: what was made before stays where it is
  std::list<std::vector<OptTensor>> optional_tensors_;
};

// Calls see(t) for every tensor among the arguments, but for those in lists of optional ones (indices).
template <class F>
void each_tensor(const OpInfo& op, std::span<const Value> args, F&& see) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].optional && !args[i].present) continue;
    if (op.args[i].type == ArgType::Tensor) see(*args[i].tensor);
    if (op.args[i].type != ArgType::TensorList) continue;
    for (const Tensor& t : TensorList(static_cast<const Tensor*>(args[i].list.data), args[i].list.size))
      see(t);
  }
}

// The widest of the floating arguments and the narrow dtype.
DType widest(const OpInfo& op, std::span<const Value> args, Mode mode) {
  DType out = mode.narrow();
  each_tensor(op, args, [&](const Tensor& t) {
    const bool wider = t.defined() && is_floating(t.dtype()) && out != DType::Float64;
    if (wider) out = promote(out, t.dtype());
  });
  return out;
}

bool has_cuda(const OpInfo& op, std::span<const Value> args) {
  bool found = false;
  each_tensor(op, args, [&](const Tensor& t) { found |= t.defined() && t.device().is_cuda(); });
  return found;
}

bool autocast_call(const OpInfo& op, std::span<Value> args, Result& out, Mode mode) {
  const Autocast kind = op.autocast(mode.cuda);
  if (kind == Autocast::Keep || has_cuda(op, args) != mode.cuda) return false;
  WT_CHECK(kind != Autocast::Refuse, NotImplementedError, op.name,
           ": unsafe to autocast, for narrow floats do not hold what it computes; use a form that takes "
           "logits, such as ",
           op.name, "_with_logits, or leave autocast for this call");
  for (const Arg& a : op.args)
    if (a.marks & kWritten) return false;
  if (kind == Autocast::Float32Form) {
    op.float32_form->call(*op.float32_form, args.data(), out);
    return true;
  }
  const DType dtype = kind == Autocast::Lower     ? mode.narrow()
                      : kind == Autocast::Float32 ? DType::Float32
                                                  : widest(op, args, mode);
  if (dtype == DType::Float64) return false;
  CastArgs cast(op, args, dtype, mode);
  // The whole call is done here, where autocast is off, so that the ops it is composed of keep these dtypes.
  op.call(op, args.data(), out);
  return true;
}

bool autocast_cpu(const OpInfo& op, std::span<Value> args, Result& out, Keep&) {
  return autocast_call(op, args, out, {false});
}
bool autocast_cuda(const OpInfo& op, std::span<Value> args, Result& out, Keep&) {
  return autocast_call(op, args, out, {true});
}

[[maybe_unused]] const bool registered =
    (set_interceptor(kAutocast, autocast_cpu), set_interceptor(kAutocastCuda, autocast_cuda), true);

}  // namespace

void enter_autocast() { ++cache->depth; }
void leave_autocast() {
  if (--cache->depth == 0) clear_autocast_cache();
}
bool set_autocast_cache(bool on) { return std::exchange(cache->on, on); }
void clear_autocast_cache() { cache->casts.clear(); }

}  // namespace warptape
