// Slots "find_chain_formula" and "chain": which formulas a chain's kernel may have, and its launch.
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/chain_source.h"
#include "kernels/elementwise_ops.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

static_assert(kMostChainOperands == kMaxChainInputs + kMaxChainOutputs);

// ---- formulas ----
const ChainFormula* of_type(const ChainFormula (&formulas)[3], unsigned types, DType compute) {
  if (is_complex(compute) || !(types & (is_floating(compute) ? kFloats : kIntegers))) return nullptr;
  return &formulas[compute == DType::Float32 ? 0 : compute == DType::Float64 ? 1 : 2];
}

const ChainFormula* find_chain_formula(const LaunchContext&, const char* slot, DType compute) {
  static constexpr ChainFormula copy{nullptr, DType::Float32, true};
  if (!std::strcmp(slot, "copy")) return &copy;
#define WT_IF_SLOT_OF(slot_name, F, exact)                                                   \
  if (!std::strcmp(slot, #slot_name)) {                                                      \
    static constexpr ChainFormula all[] = {                                                  \
        {#F, DType::Float32, exact}, {#F, DType::Float64, exact}, {#F, DType::Int64, true}}; \
    return of_type(all, F::kTypes, compute);                                                 \
  }
#define WT_IF_EXACT(slot_name, F) WT_IF_SLOT_OF(slot_name, F, true)
#define WT_IF_SLOT(slot_name, F) WT_IF_SLOT_OF(slot_name, F, false)
  WT_ARITHMETIC_OPS(WT_IF_EXACT)
  WT_IF_EXACT(relu, Relu);
  WT_MATH_OPS(WT_IF_SLOT)
  WT_IF_SLOT(pow, Pow);
  WT_ACTIVATION_OPS(WT_IF_SLOT)
  WT_LOSS_OPS(WT_IF_SLOT)
  WT_LOSS_BACKWARD_OPS(WT_IF_SLOT)
  return nullptr;
}
WT_KERNEL(find_chain_formula, find_chain_formula);

// ---- launching ----
const Operand& operand(const ChainPlan& plan, int k) {
  return k < plan.inputs ? plan.input[k] : plan.output[k - plan.inputs].to;
}

// Whether every access of `width` elements lies as the device wants it. The rest of one long dim is apart.
bool takes_groups(const ChainPlan& plan, int width) {
  const int last = plan.ndim - 1;
  if (width == 1 || plan.sizes[last] < width || (last > 0 && plan.sizes[last] % width)) return false;
  for (int k = 0; k < plan.inputs + plan.outputs; ++k) {
    const Operand& o = operand(plan, k);
    if (o.host_scalar || !is_packed(plan, o)) continue;
    const int64_t bytes = width * static_cast<int64_t>(itemsize(o.dtype));
    if (!is_aligned(o.data, static_cast<size_t>(bytes))) return false;
    for (int d = 0; d < last; ++d)
      if (o.strides[d] % bytes) return false;
  }
  return true;
}

template <int N, int D>
void run(const LaunchContext& ctx, const ChainPlan& plan, const ChainKernel& kernel) {
  const int last = plan.ndim - 1;
  const int64_t length = plan.sizes[last];
  ChainArgs<N, D> a{};
  for (int k = 0; k < plan.inputs + plan.outputs; ++k) {
    const Operand& o = operand(plan, k);
    if (o.host_scalar) {
      pack_value(&a.at[k], number_type(plan, k), o.data, o.dtype);
      continue;
    }
    a.at[k] = reinterpret_cast<uint64_t>(o.data);
    for (int d = 0; d < plan.ndim; ++d) a.strides[D - plan.ndim + d][k] = o.strides[d];
  }
  for (int d = 0; d < plan.ndim; ++d) a.sizes[D - plan.ndim + d] = FastDivide(plan.sizes[d]);
  const auto start = [&](const void* function, int64_t groups) {
    a.groups = groups;
    a.wide = groups > INT32_MAX;
    const int64_t blocks = ceil_div(groups, kChainThreads * chain_loads(plan));
    launch(ctx, "chain", reinterpret_cast<void (*)(ChainArgs<N, D>)>(const_cast<void*>(function)),
           dim3(unsigned(blocks)), dim3(kChainThreads), 0, a);
  };
  int64_t done = 0;
  if (const int width = kernel.width; takes_groups(plan, width)) {
    done = length / width * width;
    a.sizes[D - 1] = FastDivide(length / width);
    for (int64_t& stride : a.strides[D - 1]) stride *= width;
    start(kernel.wide, plan.numel / length * (length / width));
    for (int64_t& stride : a.strides[D - 1]) stride /= width;
    a.sizes[D - 1] = FastDivide(length);
  }
  if (done == length) return;
  for (int k = 0; k < N; ++k) a.at[k] += static_cast<uint64_t>(done * a.strides[D - 1][k]);
  start(kernel.element, plan.numel / length * (length - done));
}

void chain(const LaunchContext& ctx, const ChainPlan& plan) {
  const auto& kernel = static_cast<const ChainKernel&>(*plan.prepared);
  const auto with = [&]<int N>(std::integral_constant<int, N>) {
    switch (chain_dims(plan)) {
      case 1:
        return run<N, 1>(ctx, plan, kernel);
      case 2:
        return run<N, 2>(ctx, plan, kernel);
      case 4:
        return run<N, 4>(ctx, plan, kernel);
      default:
        return run<N, 8>(ctx, plan, kernel);
    }
  };
  if (plan.inputs + plan.outputs <= kFewChainOperands)
    with(std::integral_constant<int, kFewChainOperands>());
  else
    with(std::integral_constant<int, kMostChainOperands>());
}
WT_KERNEL(chain, chain);

}  // namespace
}  // namespace warptape::kernels::cuda
