// Slots "find_chain_formula" and "chain": which formulas a chain's kernel may have, and its launch.
#include "kernels/cuda/fused/chain_rows.cuh"
#include "kernels/cuda/fused/chain_source.h"
#include "kernels/cuda/norm/norm_parts.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

static_assert(kMostChainOperands == kMaxChainInputs + kMaxChainOutputs);

// ---- formulas ----
const ChainFormula* of_type(const ChainFormula (&formulas)[3], unsigned types, DType compute) {
  if (is_complex(compute) || !(types & (is_floating(compute) ? kFloats : kIntegers))) return nullptr;
  return &formulas[compute == DType::Float32 ? 0 : compute == DType::Float64 ? 1 : 2];
}

const ChainFormula* row_formula(const char* slot, DType type) {
  static constexpr DType kTypes[] = {DType::Float32, DType::BFloat16, DType::Float16};
  static constexpr struct {
    const char* slot;
    ChainFormula of[3];
  } kAll[] = {
#define WT_ROWS(slot, kernel)                                    \
  {                                                              \
    slot, {                                                      \
      {nullptr, DType::Float32, true, RowKernel::kernel},        \
          {nullptr, DType::BFloat16, true, RowKernel::kernel}, { \
        nullptr, DType::Float16, true, RowKernel::kernel         \
      }                                                          \
    }                                                            \
  }
      WT_ROWS("layer_norm", LayerNorm), WT_ROWS("rms_norm", RmsNorm),
      WT_ROWS("layer_norm_backward", LayerNormBackward), WT_ROWS("rms_norm_backward", RmsNormBackward)};
#undef WT_ROWS
  for (const auto& k : kAll)
    for (int t = 0; t < 3; ++t)
      if (!std::strcmp(slot, k.slot) && type == kTypes[t]) return &k.of[t];
  return nullptr;
}

const ChainFormula* find_chain_formula(const LaunchContext&, const char* slot, DType compute,
                                       bool by_number) {
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
  if (const ChainFormula* formula = row_formula(slot, compute)) return formula;
#define WT_OP(slot_name, F, ...) WT_IF_EXACT(slot_name, F)
#include "kernels/elementwise/ops/arithmetic.h"
#undef WT_OP
  WT_IF_EXACT(relu, Relu);
#define WT_OP(slot_name, F, ...) WT_IF_SLOT(slot_name, F)
#include "kernels/elementwise/ops/math.h"
#undef WT_OP
  if (by_number) WT_IF_SLOT(pow, Pow);
#define WT_OP(slot_name, F, ...) WT_IF_SLOT(slot_name, F)
#include "kernels/elementwise/ops/activation.h"
#include "kernels/elementwise/ops/loss.h"
#include "kernels/elementwise/ops/loss_backward.h"
#undef WT_OP
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

// Of elements.
template <int N, int D>
ChainArgs<N, D> args_of(const ChainPlan& plan) {
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
  return a;
}

// From then on of groups along the last dim, `count` in all.
template <int N, int D>
void set_groups(ChainArgs<N, D>& a, int width, int64_t length, int64_t count) {
  a.sizes[D - 1] = FastDivide(length / width);
  for (int64_t& stride : a.strides[D - 1]) stride *= width;
  a.groups = count;
  a.wide = count > INT32_MAX;
}

template <int N, int D>
void run(const LaunchContext& ctx, const ChainPlan& plan, const ChainKernel& kernel) {
  const int64_t length = plan.sizes[plan.ndim - 1], lines = plan.numel / length;
  ChainArgs<N, D> a = args_of<N, D>(plan);
  const auto start = [&](const void* function) {
    const int64_t blocks = ceil_div(a.groups, kChainThreads * chain_loads(plan));
    launch(ctx, "chain", reinterpret_cast<void (*)(ChainArgs<N, D>)>(const_cast<void*>(function)),
           dim3(unsigned(blocks)), dim3(kChainThreads), 0, a);
  };
  int64_t done = 0;
  if (const int width = kernel.width; takes_groups(plan, width)) {
    ChainArgs<N, D> elements = a;
    done = length / width * width;
    set_groups(a, width, done, lines * (done / width));
    start(kernel.wide);
    a = elements;
  }
  if (done == length) return;
  for (int k = 0; k < N; ++k) a.at[k] += static_cast<uint64_t>(done * a.strides[D - 1][k]);
  set_groups(a, 1, length, lines * (length - done));
  start(kernel.element);
}

// As norm.cu launches its own kernels.
template <class T, int N, int D>
void run_rows(const LaunchContext& ctx, const ChainPlan& plan, const ChainKernel& kernel) {
  using C = Compute<T>;
  const ChainRows& rows = plan.rows;
  const RowKernel which = plan.step[rows.step].formula->rows;
  const RowPlaces at = places_of(which);
  const bool backward = is_backward(which);
  const int64_t n = plan.sizes[plan.ndim - 1], count = plan.numel / n;
  const RowGrid g = row_grid<T>({nullptr}, count, n, backward ? kNormBackwardThreads : kNormThreads,
                                backward ? kHeld<T> : kRowPieces);
  RowChainArgs<N, D> a{args_of<N, D>(plan), count, n, g.lanes, rows.number, 0, 0, 0};
  set_groups(a.chain, kPackedWidth<T>, n, count * (n / kPackedWidth<T>));
  const View* stats = backward ? rows.in : rows.out;
  a.mean = reinterpret_cast<uint64_t>(is_centered(which) ? stats[at.mean].data : nullptr);
  a.rstd = reinterpret_cast<uint64_t>(stats[at.rstd].data);
  const bool sums = backward && (rows.out[1].data || rows.out[2].data);
  const int64_t blocks = backward ? min(kNormPartBlocks, g.blocks) : g.blocks;
  C* parts = sums ? static_cast<C*>(ctx.scratch(size_t(blocks * 2 * n) * sizeof(C))) : nullptr;
  a.parts = reinterpret_cast<uint64_t>(parts);
  launch(ctx, "chain", reinterpret_cast<void (*)(RowChainArgs<N, D>)>(const_cast<void*>(kernel.element)),
         dim3(unsigned(blocks)), dim3(unsigned(g.threads)),
         sums && g.lanes < g.threads ? size_t(2 * n) * sizeof(C) : 0, a);
  if (sums) sum_norm_parts(ctx, "chain", parts, blocks, n, rows.out[1], rows.out[2]);
}

template <int N, int D>
void run_any(const LaunchContext& ctx, const ChainPlan& plan, const ChainKernel& kernel) {
  if (plan.rows.step < 0) return run<N, D>(ctx, plan, kernel);
  dispatch(Types<float, BFloat16, Half>{}, row_type(plan),
           [&](auto t) { run_rows<typename decltype(t)::type, N, D>(ctx, plan, kernel); });
}

void chain(const LaunchContext& ctx, const ChainPlan& plan) {
  const auto& kernel = static_cast<const ChainKernel&>(*plan.prepared);
  const auto with = [&]<int N>(std::integral_constant<int, N>) {
    switch (chain_dims(plan)) {
      case 1:
        return run_any<N, 1>(ctx, plan, kernel);
      case 2:
        return run_any<N, 2>(ctx, plan, kernel);
      case 4:
        return run_any<N, 4>(ctx, plan, kernel);
      default:
        return run_any<N, 8>(ctx, plan, kernel);
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
