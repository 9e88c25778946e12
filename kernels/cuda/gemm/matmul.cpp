// The matrix product over cuBLASLt: descriptors and the heuristic's algorithm are kept per shape. What it
// does not take goes to matmul_plain. See matmul_layout.h for rows and columns.
#include <vector>

#include "kernels/cuda/common/plan_cache.h"
#include "kernels/cuda/common/runtime.h"
#include "kernels/cuda/gemm/matmul_layout.h"
#include "kernels/cuda/libraries/cublaslt.h"
#include "kernels/cuda/libraries/plain.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr size_t kMaxWorkspace = size_t{32} << 20;
constexpr int kMaxAlgorithms = 4;  // that are asked for

Slot<ElementwiseFn> copy_slot{"copy"};

struct Types {
  cudaDataType_t data, scale;
  cublasComputeType_t compute;
};
Types types_of(DType dtype) {
  switch (dtype) {
    case DType::Float16:
      return {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case DType::BFloat16:
      return {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    case DType::Float64:
      return {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
    case DType::Complex128:
      return {CUDA_C_64F, CUDA_C_64F, CUBLAS_COMPUTE_64F};
    default:
      break;
  }
  const cudaDataType_t number = dtype == DType::Complex64 ? CUDA_C_32F : CUDA_R_32F;
  return {number, number, switches().matmul_allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F};
}

// How sums along k may be split among blocks: only by way of the workspace, in a fixed order, and in the
// output's narrower type only where the user lets it.
uint32_t reduction_schemes(DType dtype) {
  const Switches& s = switches();
  const bool narrow = (dtype == DType::BFloat16 && s.matmul_allow_bf16_reduced_precision_reduction) ||
                      (dtype == DType::Float16 && s.matmul_allow_fp16_reduced_precision_reduction);
  return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | (narrow ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE : 0);
}

// Bytes that address and step are both multiples of, up to the 256 that kernels ask for at most.
uint32_t alignment_of(const void* p, int64_t step, size_t bytes) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(p) | (static_cast<uint64_t>(step) * bytes) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// ---- a product and what is kept of it -------------------------------------------------------------------

// What happens to the product before it is stored; pointers as cuBLASLt takes them.
struct Epilogue {
  cublasLtEpilogue_t kind = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;  // or where the gradient of one goes
  const void* aux = nullptr;   // [n, m] by columns: what gelu is taken of
  int64_t aux_ld = 0;
};

struct Product {
  DType dtype;
  ColumnProduct shape;
  const char *left, *right;
  char* out;
  bool reads_out;  // beta is not 0
  Epilogue epilogue;
};

struct Algorithm {
  Operation operation;
  Layout left, right, out;
  std::vector<cublasLtMatmulHeuristicResult_t> results;  // best first, less those that a product refused
  std::mutex mutex;                                      // of these, and of the operation's pointers
};

using Algorithms = PlanCache<24, Algorithm>;

Algorithms& algorithms(int device) {
  static std::array<Algorithms*, kMaxDevices> all{};
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  Algorithms*& entry = all[static_cast<size_t>(device)];
  if (!entry) entry = new Algorithms(1024);  // never freed: threads may outlive main
  return *entry;
}

struct Alignments {
  uint32_t left, right, out;
  explicit Alignments(const Product& p) {
    const size_t bytes = itemsize(p.dtype);
    const Batches& b = p.shape.batches;
    left = alignment_of(p.left, b.outer_strides[1], bytes);
    right = alignment_of(p.right, b.outer_strides[0], bytes);
    out = alignment_of(p.out, b.outer_strides[2], bytes);
  }
};

Algorithms::Key key_of(const Product& p, const Types& types, const Alignments& a) {
  const ColumnProduct& s = p.shape;
  const Batches& b = s.batches;
  return {static_cast<int64_t>(p.dtype),
          types.compute,
          reduction_schemes(p.dtype),
          s.rows,
          s.cols,
          s.depth,
          s.left.transpose,
          s.left.ld,
          s.right.transpose,
          s.right.ld,
          s.ldd,
          b.count,
          b.strides[0],
          b.strides[1],
          b.strides[2],
          a.left,
          a.right,
          a.out,
          p.epilogue.kind,
          p.epilogue.bias ? alignment_of(p.epilogue.bias, 0, 1) : 0,
          p.epilogue.aux ? alignment_of(p.epilogue.aux, 0, 1) : 0,
          p.epilogue.aux_ld,
          p.reads_out,
          0};
}

void describe(Layout& layout, const Types& types, int64_t rows, int64_t cols, int64_t ld, int64_t count,
              int64_t stride) {
  check_lt(cublasLtMatrixLayoutCreate(layout.fill(), types.data, static_cast<uint64_t>(rows),
                                      static_cast<uint64_t>(cols), ld),
           "making a layout");
  if (count == 1) return;
  set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(count));
  set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
}

void set_pointers(const Operation& operation, const Epilogue& e) {
  if (e.bias) set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, e.bias);
  if (e.aux) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, e.aux);
}

std::shared_ptr<Algorithm> find_algorithm(int device, const Product& p, const Types& types,
                                          const Alignments& aligned) {
  auto made = std::make_shared<Algorithm>();
  const ColumnProduct& s = p.shape;
  const Batches& b = s.batches;
  check_lt(cublasLtMatmulDescCreate(made->operation.fill(), types.compute, types.scale),
           "making an operation");
  auto transpose = [](bool yes) { return static_cast<int32_t>(yes ? CUBLAS_OP_T : CUBLAS_OP_N); };
  set(made->operation, CUBLASLT_MATMUL_DESC_TRANSA, transpose(s.left.transpose));
  set(made->operation, CUBLASLT_MATMUL_DESC_TRANSB, transpose(s.right.transpose));
  set(made->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(p.epilogue.kind));
  if (p.epilogue.aux) set(made->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.epilogue.aux_ld);
  set_pointers(made->operation, p.epilogue);
  describe(made->left, types, s.left.rows, s.left.cols, s.left.ld, b.count, b.strides[1]);
  describe(made->right, types, s.right.rows, s.right.cols, s.right.ld, b.count, b.strides[0]);
  describe(made->out, types, s.rows, s.cols, s.ldd, b.count, b.strides[2]);

  Preference preference;
  check_lt(cublasLtMatmulPreferenceCreate(preference.fill()), "making a preference");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspace);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_schemes(p.dtype));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned.left);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned.right);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned.out);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned.out);
  int count = 0;
  made->results.resize(kMaxAlgorithms);
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_of(device), made->operation.get(), made->left.get(), made->right.get(), made->out.get(),
      made->out.get(), preference.get(), kMaxAlgorithms, made->results.data(), &count);
  made->results.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
  std::erase_if(made->results, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
  return made;
}

// By the first of the algorithms that are left. False where cuBLASLt refuses it after all: nothing was done.
bool run(const LaunchContext& ctx, const Product& p, const Algorithm& found, const void* alpha,
         const void* beta) {
  const cublasLtMatmulHeuristicResult_t& by = found.results.front();
  void* workspace = by.workspaceSize ? ctx.scratch(by.workspaceSize) : nullptr;
  const Batches& b = p.shape.batches;
  const int64_t bytes = static_cast<int64_t>(itemsize(p.dtype));
  for (int64_t i = 0; i < b.outer; ++i) {
    char* out = p.out + i * b.outer_strides[2] * bytes;
    const cublasStatus_t status = cublasLtMatmul(
        handle_of(ctx.device_index), found.operation.get(), alpha, p.left + i * b.outer_strides[1] * bytes,
        found.left.get(), p.right + i * b.outer_strides[0] * bytes, found.right.get(), beta, out,
        found.out.get(), out, found.out.get(), &by.algo, workspace, by.workspaceSize,
        static_cast<cudaStream_t>(ctx.stream));
    if (status == CUBLAS_STATUS_NOT_SUPPORTED && i == 0) return false;
    check_lt(status, "the product");
  }
  return true;
}

// False where cuBLASLt has no algorithm: nothing was done.
bool multiply(const LaunchContext& ctx, const Product& p, double alpha, double beta) {
  use_device(ctx.device_index);
  const Types types = types_of(p.dtype);
  const Alignments aligned(p);
  const auto found = algorithms(ctx.device_index).get(key_of(p, types, aligned), [&] {
    return find_algorithm(ctx.device_index, p, types, aligned);
  });
  // Each with an imaginary part behind it, which complex numbers have.
  const double scale64[4] = {alpha, 0, beta, 0};
  const float scale32[4] = {static_cast<float>(alpha), 0, static_cast<float>(beta), 0};
  const bool wide = types.compute == CUBLAS_COMPUTE_64F;
  auto scale = [&](int i) { return wide ? static_cast<const void*>(scale64 + 2 * i) : scale32 + 2 * i; };
  std::lock_guard lock(found->mutex);
  set_pointers(found->operation, p.epilogue);
  while (!found->results.empty() && !run(ctx, p, *found, scale(0), scale(1)))
    found->results.erase(found->results.begin());
  if (found->results.empty()) return false;
  if (launch_blocking) finish_blocking(ctx, "matmul");
  return true;
}

// ---- plans ----------------------------------------------------------------------------------------------

// The operand as a row-major copy; batch dims that repeat one matrix do so still.
MatrixRef dense_copy(const LaunchContext& ctx, const MatmulPlan& p, const MatrixRef& x, int64_t rows,
                     int64_t cols) {
  const auto bytes = static_cast<int64_t>(itemsize(p.dtype));
  MatrixRef dense{nullptr, cols, 1, {0, 0}};
  ElementwisePlan plan{};
  // The batch dim is 1 where one matrix is repeated.
  const int64_t sizes[4] = {x.batch_strides[0] ? p.batch[0] : 1, x.batch_strides[1] ? p.batch[1] : 1, rows,
                            cols};
  const int64_t from[4] = {x.batch_strides[0], x.batch_strides[1], x.row_stride, x.col_stride};
  const int64_t to[4] = {sizes[1] * rows * cols, rows * cols, cols, 1};
  for (int d = 0; d < 4; ++d) {
    if (sizes[d] == 1) continue;
    plan.sizes[plan.ndim] = sizes[d];
    plan.operands[0].strides[plan.ndim] = to[d] * bytes;
    plan.operands[1].strides[plan.ndim++] = from[d] * bytes;
    if (d < 2) dense.batch_strides[d] = to[d];
  }
  if (plan.ndim == 0) plan.sizes[plan.ndim++] = 1;
  plan.count = 2, plan.numel = sizes[0] * to[0];
  dense.data = ctx.scratch(static_cast<size_t>(plan.numel * bytes));
  plan.compute = p.dtype == DType::Float64 || is_complex(p.dtype) ? p.dtype : DType::Float32;
  plan.operands[0].data = static_cast<char*>(dense.data);
  plan.operands[1].data = static_cast<char*>(x.data);
  plan.operands[0].dtype = plan.operands[1].dtype = p.dtype;
  copy_slot(ctx, plan);
  return dense;
}

Product product_of(const LaunchContext& ctx, MatmulPlan plan, const Epilogue& epilogue) {
  Product p{};
  bool copy_a = false, copy_b = false;
  if (!column_product(plan, p.shape, copy_a, copy_b)) {
    if (copy_a) plan.a = dense_copy(ctx, plan, plan.a, plan.m, plan.k);
    if (copy_b) plan.b = dense_copy(ctx, plan, plan.b, plan.k, plan.n);
    column_product(plan, p.shape, copy_a, copy_b);
  }
  p.dtype = plan.dtype;
  p.left = static_cast<const char*>(plan.b.data);
  p.right = static_cast<const char*>(plan.a.data);
  p.out = static_cast<char*>(plan.c.data);
  p.reads_out = plan.beta != 0;
  p.epilogue = epilogue;
  return p;
}

void matmul(const LaunchContext& ctx, const MatmulPlan& plan) {
  if (plan.m == 0 || plan.n == 0 || plan.batch[0] == 0 || plan.batch[1] == 0) return;
  const bool complex = is_complex(plan.dtype);  // which epilogues are not for
  if ((!is_floating(plan.dtype) && !complex) || plan.k == 0 || (complex && plan.bias))
    return matmul_plain(ctx, plan);
  Epilogue epilogue;
  if (plan.bias) epilogue = {CUBLASLT_EPILOGUE_BIAS, plan.bias, nullptr, 0};
  if (!multiply(ctx, product_of(ctx, plan, epilogue), plan.alpha, plan.beta)) matmul_plain(ctx, plan);
}

// cuBLASLt's epilogues are of float16, bfloat16 and float32, and read and write what lies beside C by 16
// bytes; what the heuristic refuses for another reason ends in the plain functions likewise.
bool has_epilogues(const MatmulPlan& plan, const void* beside, int64_t ld) {
  constexpr uintptr_t kAlign = 16;
  constexpr int64_t kStep = 8;
  return plan.m > 0 && plan.n > 0 && plan.k > 0 && plan.dtype != DType::Float64 && is_floating(plan.dtype) &&
         reinterpret_cast<uintptr_t>(beside) % kAlign == 0 && ld % kStep == 0;
}

// A is cuBLASLt's right operand, so sums over A's rows are those of the gradient of a bias for B there.
void matmul_row_sums(const LaunchContext& ctx, const MatmulPlan& plan, void* sums) {
  if (has_epilogues(plan, sums, 0) &&
      multiply(ctx, product_of(ctx, plan, {CUBLASLT_EPILOGUE_BGRADB, sums, nullptr, 0}), 1, 0))
    return;
  row_sums_plain(ctx, plan, sums);
}

// `before`, row-major as C, is by columns [n, m] with C's leading dim.
void matmul_gelu_tanh(const LaunchContext& ctx, const MatmulPlan& plan, void* before) {
  const int64_t ld = plan.m == 1 ? plan.n : plan.c.row_stride;
  const auto kind = plan.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  if (has_epilogues(plan, before, ld) &&
      multiply(ctx, product_of(ctx, plan, {kind, plan.bias, before, ld}), 1, 0))
    return;
  gelu_plain(ctx, plan, before);
}

void matmul_gelu_tanh_backward(const LaunchContext& ctx, const MatmulPlan& plan, const void* before,
                               void* sums) {
  const int64_t ld = plan.m == 1 ? plan.n : plan.c.row_stride;
  const auto kind = sums ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
  if (has_epilogues(plan, before, ld) && multiply(ctx, product_of(ctx, plan, {kind, sums, before, ld}), 1, 0))
    return;
  gelu_backward_plain(ctx, plan, before, sums);
}

}  // namespace

WT_KERNEL(matmul, matmul);
WT_KERNEL(matmul_row_sums, matmul_row_sums);
WT_KERNEL(matmul_gelu_tanh, matmul_gelu_tanh);
WT_KERNEL(matmul_gelu_tanh_backward, matmul_gelu_tanh_backward);

}  // namespace warptape::kernels::cuda
