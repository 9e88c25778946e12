// In place of cuBLASLt. A call is checked when it is made, by what the documentation demands and by what the
// heuristic was told: shapes, leading dims, alignments, workspace, memory that is there and on the handle's
// device, operands that the result does not overlap. Then it is one task of its stream, which sums in float
// (double of float64) and rounds once. An algorithm is for the product that the heuristic was asked about; of
// float8 also for one with other columns of B, as cublasLtMatmulAlgoCheck says.
#include "cublasLt.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "internal.h"
#include "kernels/complex.h"
#include "kernels/float8.h"
#include "kernels/types.h"

using warptape::BFloat16;
using warptape::Complex;
using warptape::Half;
using warptape::kernels::Float8E4M3FN;

struct cublasLtContext {
  int device;
};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *bias = nullptr, *aux = nullptr;
  int64_t aux_ld = 0;
  const float *a_scale = nullptr, *b_scale = nullptr;  // of float8 operands; null: 1
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  int64_t rows, cols, ld;
  int32_t batch = 1;
  int64_t stride = 0;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace = 0;
  uint32_t reductions = 7, alignments[4] = {256, 256, 256, 256};
};

namespace {

constexpr auto kOk = CUBLAS_STATUS_SUCCESS;
constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE;
constexpr auto kUnsupported = CUBLAS_STATUS_NOT_SUPPORTED;

template <class T>
cublasStatus_t take(T& into, const void* value, size_t bytes) {
  if (!value || bytes != sizeof(T)) return kInvalid;
  std::memcpy(&into, value, bytes);
  return kOk;
}

size_t bytes_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_C_64F:
      return 16;
    case CUDA_C_32F:
    case CUDA_R_64F:
      return 8;
    case CUDA_R_32F:
      return 4;
    case CUDA_R_8F_E4M3:
      return 1;
    default:
      return 2;
  }
}
bool is_complex(cudaDataType_t type) { return type == CUDA_C_32F || type == CUDA_C_64F; }
bool is_wide(cudaDataType_t type) { return type == CUDA_C_64F || type == CUDA_R_64F; }
bool has_bias(uint32_t e) { return e & CUBLASLT_EPILOGUE_BIAS; }
bool is_gelu(uint32_t e) { return (e & 160) == 160; }
bool is_dgelu(uint32_t e) { return (e & 192) == 192; }
bool sums_rows(uint32_t e) { return e == CUBLASLT_EPILOGUE_DGELU_BGRAD; }
bool sums_depth(uint32_t e) { return e == CUBLASLT_EPILOGUE_BGRADB; }
bool is_epilogue(uint32_t e) {
  constexpr uint32_t known[] = {CUBLASLT_EPILOGUE_DEFAULT,  CUBLASLT_EPILOGUE_BIAS,
                                CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                CUBLASLT_EPILOGUE_DGELU,    CUBLASLT_EPILOGUE_DGELU_BGRAD,
                                CUBLASLT_EPILOGUE_BGRADB};
  return std::ranges::find(known, e) != std::end(known);
}

// A product as it was described: what an algorithm is for.
struct Problem {
  cublasLtMatmulDescOpaque_t desc;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;
  int64_t rows() const { return d.rows; }
  int64_t cols() const { return d.cols; }
  int64_t depth() const { return desc.transa == CUBLAS_OP_N ? a.cols : a.rows; }
  bool is_float8() const { return a.type == CUDA_R_8F_E4M3; }
  // Of all but the pointers, which change from call to call, and the columns of B where the algorithm is for
  // any number of them.
  uint64_t hash() const {
    uint64_t h = 14695981039346656037u;
    auto mix = [&](auto x) { h = (h ^ static_cast<uint64_t>(x)) * 1099511628211u; };
    mix(desc.compute), mix(desc.scale), mix(desc.transa), mix(desc.transb), mix(desc.epilogue);
    mix(desc.aux_ld);
    for (const auto* l : {&a, &b, &c, &d}) {
      mix(l->type), mix(l->rows), mix(l->ld), mix(l->batch), mix(l->stride);
      mix(is_float8() && l != &a ? 0 : l->cols);
    }
    return h;
  }
};

bool is_layout(const cublasLtMatrixLayoutOpaque_t& l) {
  return l.rows > 0 && l.cols > 0 && l.ld >= l.rows && l.batch > 0;
}

bool agrees(const Problem& p) {
  const auto& [desc, a, b, c, d] = p;
  const bool ta = desc.transa == CUBLAS_OP_T, tb = desc.transb == CUBLAS_OP_T;
  return is_layout(a) && is_layout(b) && is_layout(c) && is_layout(d) && is_epilogue(desc.epilogue) &&
         (ta ? a.cols : a.rows) == d.rows && (tb ? b.rows : b.cols) == d.cols &&
         p.depth() == (tb ? b.cols : b.rows) && c.rows == d.rows && c.cols == d.cols && a.batch == d.batch &&
         b.batch == d.batch && c.batch == d.batch &&
         (d.batch == 1 || d.stride >= d.ld * (d.cols - 1) + d.rows);
}

// Float8 operands: A transposed and B not, sizes and steps of 16 bytes, results of float32 or bfloat16.
bool is_supported_float8(const Problem& p) {
  const auto& [desc, a, b, c, d] = p;
  auto even = [](const auto& l) {
    const auto bytes = static_cast<int64_t>(bytes_of(l.type));
    return l.rows * bytes % 16 == 0 && l.ld * bytes % 16 == 0;
  };
  return b.type == CUDA_R_8F_E4M3 && c.type == d.type && (d.type == CUDA_R_32F || d.type == CUDA_R_16BF) &&
         desc.compute == CUBLAS_COMPUTE_32F && desc.scale == CUDA_R_32F && desc.transa == CUBLAS_OP_T &&
         desc.transb == CUBLAS_OP_N && desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT && even(a) && even(b) &&
         even(d) && d.rows % 16 == 0 && d.batch == 1;
}

// The table of types, and what epilogues want: 16 bytes beside D, steps of 8 numbers, no batch, no float64,
// no complex numbers.
bool is_supported(const Problem& p) {
  const auto& [desc, a, b, c, d] = p;
  if (p.is_float8()) return is_supported_float8(p);
  if (desc.a_scale || desc.b_scale) return false;
  if (a.type != d.type || b.type != d.type || c.type != d.type) return false;
  const bool wide = is_wide(d.type), complex = is_complex(d.type);
  const cudaDataType_t scale = complex ? d.type : wide ? CUDA_R_64F : CUDA_R_32F;
  if (wide != (desc.compute == CUBLAS_COMPUTE_64F) || desc.scale != scale) return false;
  if (desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && d.type != CUDA_R_32F && d.type != CUDA_C_32F)
    return false;
  if (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
  if (wide || complex) return false;
  if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS) return true;
  auto aligned = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  return d.batch == 1 && aligned(desc.bias) && aligned(desc.aux) &&
         (!(is_gelu(desc.epilogue) || is_dgelu(desc.epilogue)) ||
          (desc.aux_ld % 8 == 0 && desc.aux_ld >= d.rows));
}

// Bytes from the first to the last element.
size_t extent(const cublasLtMatrixLayoutOpaque_t& l) {
  const int64_t numbers = (l.batch - 1) * l.stride + (l.cols - 1) * l.ld + l.rows;
  return static_cast<size_t>(numbers) * bytes_of(l.type);
}

using emulator::lies_on;

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

// ---- the task -------------------------------------------------------------------------------------------

template <class S>
S gelu(S x, S& slope) {
  const S root = S(0.7978845608028654), cube = S(0.044715);
  const S t = std::tanh(root * (x + cube * x * x * x));
  slope = S(0.5) * (1 + t) + S(0.5) * x * (1 - t * t) * root * (1 + 3 * cube * x * x);
  return S(0.5) * x * (1 + t);
}

template <class In, class T = In>
struct Product {
  using Input = In;
  using Output = T;
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;
  Problem p;
  const In *a, *b;
  const T* c;
  T* d;
  S alpha, beta;

  // A number as the tensor cores take it: TF32 has 10 bits of mantissa.
  S taken(In value) const {
    if constexpr (std::is_same_v<In, float>)
      if (p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && std::isfinite(value)) {
        constexpr uint32_t kHalf = 1u << 12, kDropped = (1u << 13) - 1;
        return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + kHalf) & ~kDropped);
      }
    return S(value);
  }

  // op(X) of one batch as [rows, cols] by columns, in the type of sums.
  std::vector<S> read(const In* x, const cublasLtMatrixLayoutOpaque_t& l, bool transpose) const {
    std::vector<S> out(static_cast<size_t>(l.rows * l.cols));
    for (int64_t j = 0; j < l.cols; ++j)
      for (int64_t i = 0; i < l.rows; ++i)
        out[static_cast<size_t>(transpose ? j + i * l.cols : i + j * l.rows)] = taken(x[i + j * l.ld]);
    return out;
  }

  void operator()() const {
    for (int64_t batch = 0; batch < p.d.batch; ++batch) multiply(batch);
  }

  void multiply(int64_t batch) const {
    const int64_t rows = p.rows(), cols = p.cols(), depth = p.depth();
    const uint32_t epilogue = p.desc.epilogue;
    const std::vector<S> left = read(a + batch * p.a.stride, p.a, p.desc.transa == CUBLAS_OP_T);
    const std::vector<S> right = read(b + batch * p.b.stride, p.b, p.desc.transb == CUBLAS_OP_T);
    std::vector<double> row_sums(static_cast<size_t>(rows));
    std::vector<S> column(static_cast<size_t>(rows));
    for (int64_t j = 0; j < cols; ++j) {
      std::ranges::fill(column, S(0));
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k) {
        const S r = right[static_cast<size_t>(k + j * depth)];
        const S* l = left.data() + k * rows;
        for (int64_t i = 0; i < rows; ++i) column[static_cast<size_t>(i)] += l[i] * r;
        sum += static_cast<double>(r);
      }
      if (sums_depth(epilogue)) static_cast<T*>(p.desc.bias)[j] = T(static_cast<S>(sum));
      store(batch, j, column, row_sums);
    }
    if (!sums_rows(epilogue)) return;
    for (int64_t i = 0; i < rows; ++i)
      static_cast<T*>(p.desc.bias)[i] = T(static_cast<S>(row_sums[static_cast<size_t>(i)]));
  }

  void store(int64_t batch, int64_t j, const std::vector<S>& column, std::vector<double>& row_sums) const {
    const uint32_t epilogue = p.desc.epilogue;
    T* aux = static_cast<T*>(p.desc.aux) + j * p.desc.aux_ld;
    for (int64_t i = 0; i < p.rows(); ++i) {
      S x = alpha * column[static_cast<size_t>(i)], slope;
      if (p.desc.a_scale) x *= *p.desc.a_scale;
      if (p.desc.b_scale) x *= *p.desc.b_scale;
      if (beta != 0) x += beta * S(c[batch * p.c.stride + i + j * p.c.ld]);
      if (has_bias(epilogue)) x += S(static_cast<const T*>(p.desc.bias)[i]);
      if (is_gelu(epilogue)) {
        aux[i] = T(x);
        x = gelu(x, slope);
      } else if (is_dgelu(epilogue)) {
        gelu(S(aux[i]), slope);
        x *= slope;
        row_sums[static_cast<size_t>(i)] += static_cast<double>(x);
      }
      d[batch * p.d.stride + i + j * p.d.ld] = T(x);
    }
  }
};

// Of complex numbers, which have no epilogues.
template <class R>
struct ComplexProduct {
  using T = Complex<R>;
  using Input = T;
  using Output = T;
  Problem p;
  const T *a, *b, *c;
  T* d;
  T alpha, beta;

  void operator()() const {
    auto read = [](const T* x, const cublasLtMatrixLayoutOpaque_t& l, bool turned, int64_t i, int64_t j) {
      return turned ? x[j + i * l.ld] : x[i + j * l.ld];
    };
    for (int64_t n = 0; n < p.d.batch; ++n)
      for (int64_t j = 0; j < p.cols(); ++j)
        for (int64_t i = 0; i < p.rows(); ++i) {
          T sum(0);
          for (int64_t k = 0; k < p.depth(); ++k)
            sum = sum + read(a + n * p.a.stride, p.a, p.desc.transa == CUBLAS_OP_T, i, k) *
                            read(b + n * p.b.stride, p.b, p.desc.transb == CUBLAS_OP_T, k, j);
          sum = alpha * sum;
          if (beta != T(0)) sum = sum + beta * c[n * p.c.stride + i + j * p.c.ld];
          d[n * p.d.stride + i + j * p.d.ld] = sum;
        }
  }
};

struct Pointers {
  const void *a, *b, *c;
  void* d;
  const void *alpha, *beta;
};

template <class P>
emulator::Work work_of(const Problem& p, const Pointers& at) {
  P out{p,
        static_cast<const typename P::Input*>(at.a),
        static_cast<const typename P::Input*>(at.b),
        static_cast<const typename P::Output*>(at.c),
        static_cast<typename P::Output*>(at.d),
        {},
        {}};
  std::memcpy(&out.alpha, at.alpha, sizeof out.alpha);  // now: the caller's variables do not stay
  std::memcpy(&out.beta, at.beta, sizeof out.beta);
  return out;
}

emulator::Work work_of(const Problem& p, const Pointers& at) {
  if (p.is_float8())
    return p.d.type == CUDA_R_32F ? work_of<Product<Float8E4M3FN, float>>(p, at)
                                  : work_of<Product<Float8E4M3FN, BFloat16>>(p, at);
  switch (p.d.type) {
    case CUDA_C_32F:
      return work_of<ComplexProduct<float>>(p, at);
    case CUDA_C_64F:
      return work_of<ComplexProduct<double>>(p, at);
    case CUDA_R_64F:
      return work_of<Product<double>>(p, at);
    case CUDA_R_16F:
      return work_of<Product<Half>>(p, at);
    case CUDA_R_16BF:
      return work_of<Product<BFloat16>>(p, at);
    default:
      return work_of<Product<float>>(p, at);
  }
}

bool reads_c(const Problem& p, const void* beta) {
  double wide[2] = {};
  float narrow[2] = {};
  std::memcpy(is_wide(p.desc.scale) ? static_cast<void*>(wide) : narrow, beta, bytes_of(p.desc.scale));
  return wide[0] != 0 || wide[1] != 0 || narrow[0] != 0 || narrow[1] != 0;
}

// Memory that is there, as aligned as the heuristic was told, and apart from what is written.
bool is_memory(int device, const Problem& p, const Pointers& at, const uint64_t* alignments) {
  const void* operands[] = {at.a, at.b, at.c, at.d};
  const cublasLtMatrixLayoutOpaque_t* layouts[] = {&p.a, &p.b, &p.c, &p.d};
  for (int i = 0; i < 4; ++i) {
    if (i == 2 && !reads_c(p, at.beta)) continue;
    if (!lies_on(device, operands[i], extent(*layouts[i]))) return false;
    const uint64_t least = p.is_float8() ? std::max<uint64_t>(alignments[i], 16) : alignments[i];
    if (reinterpret_cast<uintptr_t>(operands[i]) % least) return false;
    if (i < 2 && overlap(operands[i], extent(*layouts[i]), at.d, extent(p.d))) return false;
  }
  for (const float* scale : {p.desc.a_scale, p.desc.b_scale})
    if (scale && !lies_on(device, scale, sizeof(float))) return false;
  const uint32_t e = p.desc.epilogue;
  const size_t bytes = bytes_of(p.d.type), rows = static_cast<size_t>(p.rows());
  const auto aux_numbers = static_cast<size_t>((p.cols() - 1) * p.desc.aux_ld + p.rows());
  if ((has_bias(e) || sums_rows(e)) && !lies_on(device, p.desc.bias, rows * bytes)) return false;
  if (sums_depth(e) && !lies_on(device, p.desc.bias, static_cast<size_t>(p.cols()) * bytes)) return false;
  return !(is_gelu(e) || is_dgelu(e)) || lies_on(device, p.desc.aux, aux_numbers * bytes);
}

bool refuses(const char* what) {
  const char* refused = std::getenv("WARPTAPE_EMULATED_REFUSE");
  return refused && !std::strcmp(refused, what);
}

constexpr int64_t kLongDepth = 1024;
constexpr uint64_t kMagic = 0x6c745f616c676f;

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  auto held = emulator::lock();
  if (emulator::unsafe_call() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext{emulator::current_device()};
  return kOk;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case kOk:
      return "CUBLAS_STATUS_SUCCESS";
    case kInvalid:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case kUnsupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = new cublasLtMatmulDescOpaque_t{compute, scale};
  return kOk;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return delete desc, kOk; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(desc->transa, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(desc->transb, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(desc->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(desc->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return take(desc->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return take(desc->b_scale, value, bytes);
  }
  return kInvalid;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  *layout =
      new cublasLtMatrixLayoutOpaque_t{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld};
  return kOk;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return delete layout, kOk; }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t what, const void* value,
                                                size_t bytes) {
  if (what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return take(layout->batch, value, bytes);
  return take(layout->stride, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return kOk;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return delete p, kOk; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, size_t bytes) {
  if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return take(preference->workspace, value, bytes);
  if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return take(preference->reductions, value, bytes);
  return take(preference->alignments[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  const Problem p{*desc, *a, *b, *c, *d};
  if (!handle || wanted < 1 || !agrees(p)) return kInvalid;
  if (!is_supported(p) || refuses("matmul")) return kUnsupported;
  cublasLtMatmulHeuristicResult_t out{};
  out.algo.data[0] = kMagic, out.algo.data[1] = p.hash();
  for (int i = 0; i < 4; ++i) out.algo.data[3 + i] = preference->alignments[i];
  // Sums that are split go by way of the workspace, if there is enough of it.
  const uint64_t split = static_cast<uint64_t>(p.rows() * p.cols() * p.d.batch) * 2 * sizeof(double);
  if (p.depth() >= kLongDepth && split <= preference->workspace &&
      (preference->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE))
    out.workspaceSize = split;
  out.algo.data[2] = out.workspaceSize;
  for (; *found < std::min(wanted, 2); ++*found) {
    results[*found] = out;
    results[*found].algo.data[7] = static_cast<uint64_t>(*found);
  }
  return kOk;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Problem p{*desc, *a, *b, *c, *d};
  if (!handle || !algorithm || algorithm->data[0] != kMagic || !agrees(p)) return kInvalid;
  result->workspaceSize = algorithm->data[2];  // `algo` is not written
  result->state =
      is_supported(p) && algorithm->data[1] == p.hash() && !refuses("algorithms") ? kOk : kUnsupported;
  return result->state;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  const Problem p{*desc, *a_layout, *b_layout, *c_layout, *d_layout};
  if (!handle || !algorithm || algorithm->data[0] != kMagic || !agrees(p)) return kInvalid;
  if (algorithm->data[1] != p.hash() || !is_supported(p)) return kInvalid;
  if (refuses("algorithms") || (refuses("algorithm") && algorithm->data[7] == 0)) return kUnsupported;
  const size_t needed = algorithm->data[2];
  auto held = emulator::lock();
  if (needed > workspace_bytes || reinterpret_cast<uintptr_t>(workspace) % 16 ||
      (needed && !lies_on(handle->device, workspace, needed)))
    return kInvalid;
  if (emulator::resolve(stream)->device != handle->device) return kInvalid;
  const Pointers at{a, b, c, d, alpha, beta};
  if (!is_memory(handle->device, p, at, algorithm->data + 3)) return kInvalid;
  const emulator::Work product = work_of(p, at);
  auto run = [=] {
    product();
    if (needed) std::memset(workspace, 0xcd, needed);  // it holds nothing that anybody may rely on
  };
  const auto error = emulator::enqueue(stream, run, {a, b, c, d, workspace}, "cuBLASLt");
  return error == cudaSuccess ? kOk : CUBLAS_STATUS_EXECUTION_FAILED;
}
