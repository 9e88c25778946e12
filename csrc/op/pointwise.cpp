#include "op/pointwise.h"

#include <algorithm>

#include "tensor/memory_format.h"

namespace warptape {
namespace {

// Bool results are compared, everything else computed, in the promoted dtype; integers that give floats in
// the float.
DType compute_of(const char* op, ResultRule rule, DType promoted, DType result) {
  const DType t = is_predicate(rule) ? promoted : result;
  if (is_storage_only(t)) {
    const bool by_bits = rule == ResultRule::Bits && is_integral(t);
    WT_CHECK(by_bits || rule == ResultRule::Equal, NotImplementedError, op, ": not implemented for ", t,
             ", which is for storage; convert with .to(dtype) first");
  }
  return compute_dtype(t);
}

DType result_of(ResultRule rule, DType promoted) {
  if (is_predicate(rule)) return DType::Bool;
  if (rule == ResultRule::Float && !is_differentiable(promoted)) return rank_context().default_dtype;
  return promoted;
}

// The value of an integer as one of the dtype, which counts modulo a power of two.
int64_t wrapped(int64_t v, DType t) {
  const int unused = 64 - 8 * static_cast<int>(itemsize(t));
  const uint64_t bits = static_cast<uint64_t>(v) << unused;
  return has_sign(t) ? static_cast<int64_t>(bits) >> unused : static_cast<int64_t>(bits >> unused);
}

// Numbers and 0-dim tensors do not widen the dtype of the others, so they may hold integers that it does not.
// PyTorch converts them first: 300 counts as 44 beside uint8. Comparisons see them as they are; a number
// beyond int64 is then more than whatever the tensor holds.
class Inputs {
 public:
  Inputs(ResultRule rule, std::span<const PointwiseInput> given) : inputs_(given) {
    if (is_predicate(rule)) {
      for (size_t i = 0; i < given.size(); ++i)
        if (const Scalar& s = given[i].scalar; !given[i].tensor && s.exceeds_int64() && is_compared_to_less())
          replace(i, Scalar(__builtin_inf()));
    }
    // The common case, two tensors of one dtype, needs no promotion.
    promoted_ = given.size() == 1 ? given[0].tensor->dtype() : promoted_dtype(inputs_);
    const bool same = rule == ResultRule::Same || rule == ResultRule::Bits;
    if (!same || !is_integral(promoted_)) return;
    for (size_t i = 0; i < given.size(); ++i) {
      if (const Tensor* t = given[i].tensor) {
        if (t->dtype() == promoted_) continue;
        replace(i, tensors_.emplace_back(raw_cast(*t, promoted_)));
      } else if (const int64_t v = given[i].scalar.to_int(); v != wrapped(v, promoted_)) {
        replace(i, Scalar(wrapped(v, promoted_)));
      }
    }
  }
  DType promoted() const { return promoted_; }
  operator std::span<const PointwiseInput>() const { return inputs_; }

 private:
  bool is_compared_to_less() const {
    return std::ranges::all_of(inputs_, [](const PointwiseInput& in) {
      return !in.tensor || (!is_differentiable(in.tensor->dtype()) && in.tensor->dtype() != DType::UInt64);
    });
  }
  void replace(size_t i, const PointwiseInput& by) {
    if (own_.empty()) own_.append(inputs_.begin(), inputs_.end());
    own_[i] = by;
    inputs_ = own_;
  }
  std::span<const PointwiseInput> inputs_;
  SmallVector<PointwiseInput, 4> own_;
  SmallVector<Tensor, 4> tensors_;
  DType promoted_;
};

}  // namespace

DType promoted_dtype(std::span<const PointwiseInput> inputs) {
  PromotionState state;
  for (const auto& in : inputs) {
    if (!in.tensor) {
      state.add_scalar(in.scalar.dtype());
    } else if (in.tensor->ndim() == 0) {
      state.add_zero_dim(in.tensor->dtype());
    } else {
      state.add_dimensioned(in.tensor->dtype());
    }
  }
  return state.result();
}

Device common_device(const char* op, std::span<const PointwiseInput> inputs) {
  const Tensor* found = nullptr;
  for (const auto& in : inputs) {
    if (!in.tensor || (found && in.tensor->device() == found->device())) continue;
    bool movable = in.tensor->ndim() == 0 && in.tensor->device().is_host();
    if (!found || (found->ndim() == 0 && found->device().is_host())) {
      if (!(found && movable)) found = in.tensor;
      continue;
    }
    WT_CHECK(movable, DeviceError, op,
             ": Expected all tensors to be on the same device, but found at least two devices, ",
             found->device(), " and ", in.tensor->device(), "! Move one with .to(device)");
  }
  return found ? found->device() : default_device();
}

Shape common_shape(const char* op, std::span<const PointwiseInput> inputs) {
  Shape out;
  bool first = true;
  for (const auto& in : inputs) {
    if (!in.tensor) continue;
    out = first ? in.tensor->sizes() : broadcast_shapes(out, in.tensor->sizes(), op);
    first = false;
  }
  return out;
}

Tensor pointwise_output(const char* op, std::span<const PointwiseInput> inputs, DType dtype) {
  const Tensor* first = nullptr;
  bool same = true, contiguous = true, one_order = true;
  for (const auto& in : inputs) {
    if (!in.tensor) continue;
    contiguous &= in.tensor->is_contiguous();
    if (!first) {
      first = in.tensor;
    } else {
      same &= in.tensor->sizes() == first->sizes() && in.tensor->device() == first->device();
      one_order &= in.tensor->strides() == first->strides();
    }
  }
  if (same && (contiguous || one_order)) return empty_like_layout(*first, dtype);
  Shape sizes = common_shape(op, inputs);
  const TensorOptions options{dtype, common_device(op, inputs)};
  // Dims of size 1 may have other strides than those in rows, which the result then has, too.
  const auto in_rows = [](const PointwiseInput& in) {
    return !in.tensor || in.tensor->strides() == contiguous_strides(in.tensor->sizes());
  };
  if (contiguous && std::ranges::all_of(inputs, in_rows)) return empty(sizes, options);
  SmallVector<Shape, 3> strides;
  for (const auto& in : inputs)
    if (in.tensor) strides.push_back(broadcast_strides(in.tensor->sizes(), in.tensor->strides(), sizes));
  return empty_strided(sizes, ordered_strides(sizes, {strides.begin(), strides.end()}), options);
}

namespace {

// Whether the number leaves the dtype of dimensioned tensors alone, and its value, too.
bool follows(const Scalar& s, DType t) { return is_floating(t) && !s.is_complex() && !s.exceeds_int64(); }

// One elementwise call, from its inputs to the kernel. Most calls have operands that are alike: tensors in
// host memory, of one dtype and of one geometry without gaps, and numbers that follow them. Nothing is
// promoted, broadcast or converted then, and the plan has one dim.
class ElementwiseRun {
 public:
  ElementwiseRun(const char* op, ResultRule rule, std::span<const PointwiseInput> inputs)
      : op_(op), inputs_(inputs), like_(alike(inputs)) {
    if (!like_) inputs_ = general_.emplace(rule, inputs);
    const DType promoted = like_ ? like_->dtype() : general_->promoted();
    result_ = result_of(rule, promoted);
    compute_ = compute_of(op, rule, promoted, result_);
  }

  Tensor output() const {
    return like_ ? empty_like_layout(*like_, result_) : pointwise_output(op_, inputs_, result_);
  }
  // Error unless `self` has the broadcast shape and a dtype that the result can be cast to.
  void check_into(const Tensor& self) const {
    WT_CHECK(can_cast(result_, self.dtype()), DtypeError, op_, ": result type ", result_,
             " can't be cast to the desired output type ", self.dtype());
    if (like_ && like_->sizes() == self.sizes()) return;
    Shape shape = common_shape(op_, inputs_);
    WT_CHECK(broadcast_shapes(shape, self.sizes(), op_) == self.sizes(), ShapeError, op_,
             ": output with shape ", self.sizes(), " doesn't match the broadcast shape ", shape);
    common_device(op_, inputs_);
  }
  void launch(ElementwiseSlot& slot, const Tensor& out, kernels::IndexFault* fault) const {
    if (!like_ || !out->plain || !out.is_contiguous() || thread_state().deferral ||
        out.storage().is_deferred() || out.numel() != like_->numel())
      return run_elementwise(slot, compute_, out, inputs_, fault);
    if (out.numel() == 0) return;
    kernels::ElementwisePlan plan;
    union {
      int64_t i;
      double d;
    } numbers[kernels::kMaxOperands - 1];
    plan.ndim = 1;
    plan.count = static_cast<int>(inputs_.size()) + 1;
    plan.compute = compute_;
    plan.numel = plan.sizes[0] = out.numel();
    const auto set = [](kernels::Operand& to, void* data, DType dtype, bool number) {
      to.data = static_cast<char*>(data);
      to.dtype = dtype;
      to.host_scalar = number;
      to.strides[0] = number ? 0 : static_cast<int64_t>(itemsize(dtype));
    };
    set(plan.operands[0], out.data(), out.dtype(), false);
    for (size_t k = 0; k < inputs_.size(); ++k) {
      if (const Tensor* t = inputs_[k].tensor) {
        set(plan.operands[k + 1], t->data(), t->dtype(), false);
      } else {
        const Scalar& number = inputs_[k].scalar;
        number.is_floating() ? void(numbers[k].d = number.to_double()) : void(numbers[k].i = number.to_int());
        set(plan.operands[k + 1], &numbers[k], number.is_floating() ? DType::Float64 : DType::Int64, true);
      }
    }
    kernels::LaunchContext host;
    host.fault = fault;
    slot(host, plan);
  }

 private:
  // The first of operands that are alike; null where they are not.
  static const Tensor* alike(std::span<const PointwiseInput> inputs) {
    const Tensor* first = inputs[0].tensor;
    if (!first || !(*first)->plain || !first->is_contiguous()) return nullptr;
    for (const PointwiseInput& in : inputs.subspan(1)) {
      if (!in.tensor) {
        if (!follows(in.scalar, first->dtype())) return nullptr;
      } else if (!(*in.tensor)->plain || !in.tensor->is_contiguous() ||
                 in.tensor->dtype() != first->dtype() || in.tensor->sizes() != first->sizes()) {
        return nullptr;
      }
    }
    return first;
  }

  const char* op_;
  std::span<const PointwiseInput> inputs_;
  const Tensor* like_;
  std::optional<Inputs> general_;
  DType result_, compute_;
};

}  // namespace

Tensor pointwise(const char* op, ElementwiseSlot& slot, ResultRule rule,
                 std::initializer_list<PointwiseInput> inputs, kernels::IndexFault* fault) {
  const ElementwiseRun run(op, rule, {inputs.begin(), inputs.size()});
  Tensor out = run.output();
  run.launch(slot, out, fault);
  return out;
}

void pointwise_into(const char* op, ElementwiseSlot& slot, ResultRule rule, const Tensor& self,
                    std::initializer_list<PointwiseInput> inputs, kernels::IndexFault* fault) {
  const ElementwiseRun run(op, rule, {inputs.begin(), inputs.size()});
  run.check_into(self);
  run.launch(slot, self, fault);
  self.bump_version();
}

}  // namespace warptape
