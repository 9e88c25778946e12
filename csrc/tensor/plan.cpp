#include "tensor/plan.h"

#include "core/errors.h"
#include "tensor/deferral.h"

namespace warptape {
namespace {

using kernels::ElementwisePlan;
using kernels::kMaxOperands;

struct Geometry {
  Shape strides[kMaxOperands];  // in elements, seen with the output's sizes
};

// Fast way: every tensor is contiguous and has the output's sizes.
bool all_flat(const Tensor& out, std::span<const ElementwiseInput> inputs) {
  if (!out.is_contiguous()) return false;
  for (const auto& in : inputs)
    if (in.tensor && in.tensor->ndim() != 0 &&
        !(in.tensor->is_contiguous() && in.tensor->sizes() == out.sizes()))
      return false;
  return true;
}

// Orders dims so that the output's fastest is last, then merges neighbours that are one run in every operand.
void fill_dims(ElementwisePlan& plan, const Shape& sizes, const Geometry& g) {
  SmallVector<int, 8> order;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1) order.push_back(static_cast<int>(d));
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return g.strides[0][a] > g.strides[0][b]; });
  int n = 0;
  for (int d : order) {
    bool merges = n > 0;
    for (int k = 0; merges && k < plan.count; ++k) {
      int64_t inner = g.strides[k][d] * static_cast<int64_t>(itemsize(plan.operands[k].dtype));
      merges = plan.operands[k].strides[n - 1] == inner * sizes[d];
    }
    int at = merges ? n - 1 : n++;
    plan.sizes[at] = merges ? plan.sizes[at] * sizes[d] : sizes[d];
    for (int k = 0; k < plan.count; ++k)
      plan.operands[k].strides[at] = g.strides[k][d] * static_cast<int64_t>(itemsize(plan.operands[k].dtype));
  }
  if (n == 0) {
    plan.sizes[n++] = 1;
    for (int k = 0; k < plan.count; ++k) plan.operands[k].strides[0] = 0;
  }
  plan.ndim = n;
}

void set_operand(kernels::Operand& operand, const Tensor& t, Device device) {
  operand.data = static_cast<char*>(t.data());
  operand.dtype = t.dtype();
  operand.host_scalar = t.ndim() == 0 && t.device() != device;
}

void fill_flat(ElementwisePlan& plan, const Tensor& out, std::span<const ElementwiseInput> inputs) {
  plan.ndim = 1;
  plan.sizes[0] = plan.numel;
  plan.operands[0].strides[0] = static_cast<int64_t>(out.itemsize());
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Tensor* t = inputs[k].tensor;
    bool repeated = !t || t->numel() == 1;
    plan.operands[k + 1].strides[0] = repeated ? 0 : static_cast<int64_t>(t->itemsize());
  }
}

void fill_strided(ElementwisePlan& plan, const Tensor& out, std::span<const ElementwiseInput> inputs) {
  Geometry g;
  g.strides[0] = out.strides();
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Tensor* t = inputs[k].tensor;
    g.strides[k + 1] =
        t ? broadcast_strides(t->sizes(), t->strides(), out.sizes()) : Shape(out.sizes().size(), 0);
  }
  fill_dims(plan, out.sizes(), g);
}

}  // namespace

PlannedElementwise::PlannedElementwise(DType compute, const Tensor& out,
                                       std::span<const ElementwiseInput> inputs) {
  plan_.count = static_cast<int>(inputs.size()) + 1;
  plan_.compute = compute;
  plan_.numel = out.numel();
  set_operand(plan_.operands[0], out, out.device());
  for (size_t k = 0; k < inputs.size(); ++k) {
    kernels::Operand& operand = plan_.operands[k + 1];
    if (inputs[k].tensor) {
      set_operand(operand, *inputs[k].tensor, out.device());
      continue;
    }
    const Scalar& s = inputs[k].scalar;
    const bool floating = s.is_floating() || (s.exceeds_int64() && is_differentiable(compute));
    operand.dtype = s.is_complex() ? DType::Complex128 : floating ? DType::Float64 : DType::Int64;
    if (s.is_complex()) {
      numbers_[k].c = s.to_complex();
    } else if (floating) {
      numbers_[k].d = s.to_double();
    } else {
      numbers_[k].i = s.to_int();
    }
    operand.data = reinterpret_cast<char*>(&numbers_[k]);
    operand.host_scalar = true;
  }
  if (all_flat(out, inputs)) {
    fill_flat(plan_, out, inputs);
  } else {
    fill_strided(plan_, out, inputs);
  }
}

Deferral::~Deferral() = default;

namespace {

// Kernels of devices know dtypes that are only stored where they copy.
void check_stored(std::string_view slot, const Tensor& out, std::span<const ElementwiseInput> inputs) {
  auto check = [&](const Tensor& t) {
    WT_CHECK(!is_storage_only(t.dtype()) || slot == "copy", NotImplementedError, slot,
             ": not implemented for ", t.dtype(), " on ", out.device(),
             ", which is for storage; convert with .to(dtype) first");
  };
  check(out);
  for (const ElementwiseInput& in : inputs)
    if (in.tensor) check(*in.tensor);
}

}  // namespace

void run_elementwise(ElementwiseSlot& slot, DType compute, const Tensor& out,
                     std::span<const ElementwiseInput> inputs, kernels::IndexFault* fault) {
  if (out.device().is_meta() || out.numel() == 0) return;
  if (__builtin_expect(thread_state().deferral != nullptr, 0) && !fault)
    return thread_state().deferral->elementwise(slot, compute, out, inputs);
  if (out.is_meta()) return;
  if (!out.device().is_host()) check_stored(slot.name(), out, inputs);
  const PlannedElementwise planned(compute, out, inputs);
  slot(launch_context(out.device(), fault), *planned);
}

}  // namespace warptape
