// Products of float8 matrices over cuBLASLt: out [M, N] = x [M, K] weight^T, summed in float32. As cuBLASLt
// has it, by columns: out [N, M] = weight [K, N]^T x [K, M], the one order of float8 operands that it takes.
//
// A row must not depend on how many there are, so the heuristic is asked once a weight, for kRows rows, and
// for algorithms whose sums along k are not split among blocks; that algorithm computes every number of rows.
// Which tile a row falls into then changes with M, but not how it is summed.
#include <memory>

#include "kernels/cuda/common/plan_cache.h"
#include "kernels/cuda/libraries/cublaslt.h"
#include "kernels/quant/quant_linear.h"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

constexpr int64_t kRows = 64;        // of the product that the heuristic is asked about
constexpr uint32_t kAlignment = 16;  // bytes: of operands and of their steps
constexpr size_t kWorkspace = size_t{32} << 20;
constexpr int kFirstCapability = 89;

struct Weight {
  Operation operation;
  Layout left;
  cublasLtMatmulAlgo_t algorithm;
};

// A number of rows of a weight's products.
struct Product {
  std::shared_ptr<Weight> weight;
  Layout right, out;
  size_t workspace = 0;
};

void describe(Layout& layout, cudaDataType_t type, int64_t rows, int64_t cols) {
  check_lt(cublasLtMatrixLayoutCreate(layout.fill(), type, static_cast<uint64_t>(rows),
                                      static_cast<uint64_t>(cols), rows),
           "making a layout");
}

void describe_rows(Product& p, int64_t outputs, int64_t inputs, int64_t rows) {
  describe(p.right, CUDA_R_8F_E4M3, inputs, rows);
  describe(p.out, CUDA_R_32F, outputs, rows);
}

[[noreturn]] void raise_unsupported(int64_t outputs, int64_t inputs, const char* what) {
  raise_library_error("float8 linear: cuBLASLt has no algorithm for a weight [" + std::to_string(outputs) +
                      ", " + std::to_string(inputs) + "] " + what);
}

std::shared_ptr<Weight> find_algorithm(int device, int64_t outputs, int64_t inputs) {
  auto made = std::make_shared<Weight>();
  check_lt(cublasLtMatmulDescCreate(made->operation.fill(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
           "making an operation");
  set(made->operation, CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(CUBLAS_OP_T));
  set(made->operation, CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(CUBLAS_OP_N));
  describe(made->left, CUDA_R_8F_E4M3, inputs, outputs);
  Product asked;
  describe_rows(asked, outputs, inputs, kRows);
  Preference preference;
  check_lt(cublasLtMatmulPreferenceCreate(preference.fill()), "making a preference");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  for (auto what : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(preference, what, kAlignment);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_of(device), made->operation.get(), made->left.get(), asked.right.get(), asked.out.get(),
      asked.out.get(), preference.get(), 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0 || found.state != CUBLAS_STATUS_SUCCESS)
    raise_unsupported(outputs, inputs, "");
  made->algorithm = found.algo;
  return made;
}

std::shared_ptr<Product> make_product(int device, const std::shared_ptr<Weight>& weight, int64_t outputs,
                                      int64_t inputs, int64_t rows) {
  auto made = std::make_shared<Product>();
  made->weight = weight;
  describe_rows(*made, outputs, inputs, rows);
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(
      handle_of(device), weight->operation.get(), weight->left.get(), made->right.get(), made->out.get(),
      made->out.get(), &weight->algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.state != CUBLAS_STATUS_SUCCESS)
    raise_unsupported(outputs, inputs,
                      ("that computes " + std::to_string(rows) + " rows as it does others").c_str());
  made->workspace = result.workspaceSize;
  return made;
}

// What is kept of a device.
struct Kept {
  PlanCache<2, Weight> weights{256};
  PlanCache<3, Product> products{1024};
};
Kept& kept_of(int device) {
  static std::array<Kept*, kMaxDevices> all{};
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  Kept*& entry = all[static_cast<size_t>(device)];
  if (!entry) entry = new Kept;  // never freed: threads may outlive main
  return *entry;
}

void float8_linear(const LaunchContext& ctx, const Float8LinearPlan& p) {
  if (p.rows == 0 || p.outputs == 0) return;
  const int device = ctx.device_index;
  use_device(device);
  if (capability(device) < kFirstCapability)
    raise_library_error("float8 linear: expected a GPU of compute capability 8.9 or later, got " +
                        std::to_string(capability(device)));
  Kept& kept = kept_of(device);
  const auto weight =
      kept.weights.get({p.outputs, p.inputs}, [&] { return find_algorithm(device, p.outputs, p.inputs); });
  const auto product = kept.products.get({p.outputs, p.inputs, p.rows}, [&] {
    return make_product(device, weight, p.outputs, p.inputs, p.rows);
  });
  void* workspace = product->workspace ? ctx.scratch(product->workspace) : nullptr;
  const float one = 1, zero = 0;
  const Weight& w = *product->weight;
  check_lt(cublasLtMatmul(handle_of(device), w.operation.get(), &one, p.weight, w.left.get(), p.x,
                          product->right.get(), &zero, p.out, product->out.get(), p.out, product->out.get(),
                          &w.algorithm, workspace, product->workspace, static_cast<cudaStream_t>(ctx.stream)),
           "a product of float8");
  if (launch_blocking) finish_blocking(ctx, "float8 linear");
}

}  // namespace

WT_KERNEL(float8_linear, float8_linear);

}  // namespace warptape::kernels::cuda
