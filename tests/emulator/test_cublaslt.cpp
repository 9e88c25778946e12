// Checks of the stand-in for cuBLASLt: products are right, and each planted mistake of a caller is refused.
#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cublasLt.h"
#include "cuda_runtime.h"

namespace {

int g_failures = 0;
#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      fprintf(stderr, "%s: %s:%d: %s\n", g_case.c_str(), __FILE__, __LINE__, #condition); \
      ++g_failures;                                                                       \
    }                                                                                     \
  } while (0)
std::string g_case;

constexpr int64_t kRows = 16, kCols = 6, kDepth = 5;
constexpr size_t kBytes = 1 << 17;

// D [16, 6] = A^T [16, 5] B [5, 6], float32, with what a caller says of it; a mistake changes some of it.
struct Call {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F, type = CUDA_R_32F;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  size_t epilogue_bytes = sizeof(uint32_t);
  int64_t a_rows = kDepth, a_ld = 8, b_ld = 8, d_ld = kRows, aux_ld = kRows;
  uint32_t alignments = 256;
  size_t a_offset = 0, aux_offset = 0, d_offset = 0;  // bytes
  uint64_t workspace = 0, given_workspace = 0;
  int64_t depth = kDepth;
  bool host_a = false, d_is_b = false;
  std::function<void(cublasLtMatmulDesc_t, cublasLtMatrixLayout_t)> between = [](auto, auto) {};
  std::complex<float> alpha = 1, beta = 0;  // of real numbers the real parts
};

struct Ran {
  cublasStatus_t set, heuristic, product;
  std::vector<float> a, b, c, d, bias, aux;
};

struct Memory {
  char *a, *b, *d, *bias, *aux, *workspace;
  Memory() {
    for (char** p : {&a, &b, &d, &bias, &aux, &workspace}) cudaMalloc(reinterpret_cast<void**>(p), kBytes);
  }
  ~Memory() {
    for (char* p : {a, b, d, bias, aux, workspace}) cudaFree(p);
  }
};

std::vector<float> filled(char* p, int seed) {
  std::vector<float> out(kBytes / sizeof(float));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(static_cast<int>(i * 7 + seed) % 11 - 5) / 4;
  cudaMemcpy(p, out.data(), kBytes, cudaMemcpyHostToDevice);
  return out;
}
std::vector<float> read(const char* p) {
  std::vector<float> out(kBytes / sizeof(float));
  cudaMemcpy(out.data(), p, kBytes, cudaMemcpyDeviceToHost);
  return out;
}

template <class Attribute, class V>
cublasStatus_t set(cublasLtMatmulDesc_t desc, Attribute what, V value, size_t bytes = sizeof(V)) {
  return cublasLtMatmulDescSetAttribute(desc, what, &value, bytes);
}

Ran run(const Call& call) {
  static const Memory m;
  Ran out{};
  out.a = filled(m.a, 1), out.b = filled(m.b, 2), out.c = filled(m.d, 3), out.bias = filled(m.bias, 4);
  out.aux = filled(m.aux, 5);
  cublasLtHandle_t handle;
  cublasLtCreate(&handle);
  cublasLtMatmulDesc_t desc;
  cublasLtMatmulDescCreate(&desc, call.compute, call.scale);
  set(desc, CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(CUBLAS_OP_T));
  out.set = set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, call.epilogue, call.epilogue_bytes);
  set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, m.bias);
  set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, m.aux + call.aux_offset);
  set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, call.aux_ld);
  cublasLtMatrixLayout_t a, b, d;
  const auto depth = static_cast<uint64_t>(call.depth);
  const auto a_rows = static_cast<uint64_t>(call.a_rows == kDepth ? call.depth : call.a_rows);
  cublasLtMatrixLayoutCreate(&a, call.type, a_rows, kRows, std::max(call.a_ld, call.depth));
  cublasLtMatrixLayoutCreate(&b, call.type, depth, kCols, std::max(call.b_ld, call.depth));
  cublasLtMatrixLayoutCreate(&d, call.type, kRows, kCols, call.d_ld);
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulPreferenceCreate(&preference);
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof value);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, call.workspace);
  for (int i = 0; i < 4; ++i)
    prefer(static_cast<cublasLtMatmulPreferenceAttributes_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
           call.alignments);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  out.heuristic = cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference, 1, &found, &count);
  CHECK((count == 1) == (out.heuristic == CUBLAS_STATUS_SUCCESS));
  call.between(desc, d);
  static char on_host[kBytes];
  const char* at_a = call.host_a ? on_host : m.a + call.a_offset;
  char* at_d = (call.d_is_b ? m.b : m.d) + call.d_offset;
  out.product = cublasLtMatmul(handle, desc, &call.alpha, at_a, a, m.b, b, &call.beta, at_d, d, at_d, d,
                               &found.algo, m.workspace, call.given_workspace, nullptr);
  cudaDeviceSynchronize();
  out.d = read(m.d);
  if (call.epilogue & 512 || call.epilogue & 16) out.bias = read(m.bias);
  if (call.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) out.aux = read(m.aux);
  cublasLtMatmulDescDestroy(desc);
  for (auto layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulPreferenceDestroy(preference);
  return out;
}

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
bool near(double x, double y) { return std::abs(x - y) <= 1e-4 * (1 + std::abs(y)); }

// D = alpha A^T B + beta D of complex64, by pairs of floats.
void check_complex() {
  using Number = std::complex<float>;
  Call call;
  call.type = call.scale = CUDA_C_32F, call.alpha = {0.5f, -1}, call.beta = {0, 2};
  const Ran out = run(call);
  CHECK(out.heuristic == CUBLAS_STATUS_SUCCESS && out.product == CUBLAS_STATUS_SUCCESS);
  auto number = [](const std::vector<float>& x, int64_t i) { return Number(x[2 * i], x[2 * i + 1]); };
  for (int64_t j = 0; j < kCols; ++j)
    for (int64_t i = 0; i < kRows; ++i) {
      Number sum = 0;
      for (int64_t k = 0; k < kDepth; ++k)
        sum += number(out.a, k + i * call.a_ld) * number(out.b, k + j * call.b_ld);
      const Number wanted = call.alpha * sum + call.beta * number(out.c, i + j * kRows);
      CHECK(std::abs(number(out.d, i + j * kRows) - wanted) < 1e-4);
    }
}

// Each epilogue by its documentation, in float64; slopes by differences.
void check_numbers(uint32_t epilogue) {
  Call call;
  const float alpha = 0.5f, beta = epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 2.f : 0.f;
  call.epilogue = epilogue, call.alpha = alpha, call.beta = beta;
  const Ran out = run(call);
  CHECK(out.set == CUBLAS_STATUS_SUCCESS && out.heuristic == CUBLAS_STATUS_SUCCESS &&
        out.product == CUBLAS_STATUS_SUCCESS);
  const Ran before = run(Call{});
  std::vector<double> row_sums(kRows);
  for (int64_t j = 0; j < kCols; ++j) {
    double depth_sum = 0;
    for (int64_t k = 0; k < kDepth; ++k) depth_sum += out.b[k + j * call.b_ld];
    if (epilogue == CUBLASLT_EPILOGUE_BGRADB) CHECK(near(out.bias[j], depth_sum));
    for (int64_t i = 0; i < kRows; ++i) {
      double x = 0;
      for (int64_t k = 0; k < kDepth; ++k) x += double(out.a[k + i * call.a_ld]) * out.b[k + j * call.b_ld];
      x = alpha * x + beta * out.c[i + j * kRows];
      if (epilogue & CUBLASLT_EPILOGUE_BIAS) x += before.bias[i];
      const double aux = out.aux[i + j * kRows], step = 1e-5;
      if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        CHECK(near(aux, x));
        x = gelu(x);
      }
      if ((epilogue & 192) == 192) x *= (gelu(aux + step) - gelu(aux - step)) / (2 * step);
      row_sums[static_cast<size_t>(i)] += x;
      CHECK(near(out.d[i + j * kRows], x));
    }
  }
  for (int64_t i = 0; epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD && i < kRows; ++i)
    CHECK(near(out.bias[i], row_sums[static_cast<size_t>(i)]));
}

struct Mistake {
  const char* name;
  std::function<void(Call&)> plant;
  cublasStatus_t heuristic, product;
};

void check_mistakes() {
  constexpr auto kOk = CUBLAS_STATUS_SUCCESS;
  constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE;
  constexpr auto kUnsupported = CUBLAS_STATUS_NOT_SUPPORTED;
  const Mistake mistakes[] = {
      {"none", [](Call&) {}, kOk, kOk},
      {"an inner size of its own", [](Call& c) { c.a_rows = 4; }, kInvalid, kInvalid},
      {"a leading dim below the rows", [](Call& c) { c.d_ld = 12; }, kInvalid, kInvalid},
      {"sums of float64 for float32", [](Call& c) { c.compute = CUBLAS_COMPUTE_64F; }, kUnsupported,
       kInvalid},
      {"a scale of float64", [](Call& c) { c.scale = CUDA_R_64F; }, kUnsupported, kInvalid},
      {"float64 sums of complex64",
       [](Call& c) { c.type = c.scale = CUDA_C_32F, c.compute = CUBLAS_COMPUTE_64F; }, kUnsupported,
       kInvalid},
      {"a real scale of complex64", [](Call& c) { c.type = CUDA_C_32F; }, kUnsupported, kInvalid},
      {"a bias of complex64",
       [](Call& c) { c.type = c.scale = CUDA_C_32F, c.epilogue = CUBLASLT_EPILOGUE_BIAS; }, kUnsupported,
       kInvalid},
      {"an unknown epilogue", [](Call& c) { c.epilogue = 3; }, kInvalid, kInvalid},
      {"aux steps that are no eighths", [](Call& c) { c.epilogue = CUBLASLT_EPILOGUE_DGELU, c.aux_ld = 20; },
       kUnsupported, kInvalid},
      {"aux at 8 bytes", [](Call& c) { c.epilogue = CUBLASLT_EPILOGUE_DGELU, c.aux_offset = 8; },
       kUnsupported, kInvalid},
      {"an operand less aligned than said", [](Call& c) { c.a_offset = 64; }, kOk, kInvalid},
      {"and one that is as said", [](Call& c) { c.a_offset = 64, c.alignments = 64; }, kOk, kOk},
      {"memory of the host", [](Call& c) { c.host_a = true; }, kOk, kInvalid},
      {"a result beyond its memory", [](Call& c) { c.d_offset = kBytes - 256; }, kOk, kInvalid},
      {"a result over an operand", [](Call& c) { c.d_is_b = true; }, kOk, kInvalid},
      {"a workspace too small",
       [](Call& c) { c.workspace = kBytes, c.depth = 1024, c.a_ld = c.b_ld = 1024, c.a_rows = kDepth; }, kOk,
       kInvalid},
      {"a layout changed since",
       [](Call& c) {
         c.between = [](auto, auto d) {
           const int64_t stride = 128;
           cublasLtMatrixLayoutSetAttribute(d, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, 8);
         };
       },
       kOk, kInvalid},
      {"an epilogue changed since",
       [](Call& c) {
         c.between = [](auto desc, auto) {
           set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS));
         };
       },
       kOk, kInvalid},
  };
  for (const Mistake& mistake : mistakes) {
    g_case = mistake.name;
    Call call;
    mistake.plant(call);
    const Ran out = run(call);
    CHECK(out.heuristic == mistake.heuristic);
    CHECK(out.product == mistake.product);
    if (mistake.product != kOk) CHECK(out.d == out.c);  // nothing ran
  }
  g_case = "an attribute of another size";
  Call call;
  call.epilogue_bytes = 8;
  CHECK(run(call).set == kInvalid);
}

// Float8: products [32, 48] by [48, columns] with scales, one algorithm for several numbers of columns, and
// what is refused.
struct Float8Call {
  int64_t outputs = 32, inputs = 48, asked = 64, columns = 3;
  int32_t transa = CUBLAS_OP_T, transb = CUBLAS_OP_N;
  cudaDataType_t out = CUDA_R_32F;
  size_t b_offset = 0;
  bool scales = true, host_scale = false;
};

struct Float8Ran {
  cublasStatus_t heuristic, checked, product;
  std::vector<float> d;
};

Float8Ran run_float8(const Float8Call& call) {
  static const Memory m;
  std::vector<uint8_t> codes(kBytes);
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<uint8_t>(i * 13 % 0x50 | (i % 3 ? 0 : 0x80));
  cudaMemcpy(m.a, codes.data(), kBytes, cudaMemcpyHostToDevice);
  cudaMemcpy(m.b, codes.data(), kBytes, cudaMemcpyHostToDevice);
  cudaMemset(m.d, 0, kBytes);
  const float scales[2] = {0.5f, 4.f};
  cudaMemcpy(m.bias, scales, sizeof scales, cudaMemcpyHostToDevice);
  Float8Ran out{};
  cublasLtHandle_t handle;
  cublasLtCreate(&handle);
  cublasLtMatmulDesc_t desc;
  cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  set(desc, CUBLASLT_MATMUL_DESC_TRANSA, call.transa), set(desc, CUBLASLT_MATMUL_DESC_TRANSB, call.transb);
  const float* at = reinterpret_cast<const float*>(m.bias);
  if (call.scales) {
    set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.host_scale ? scales : at);
    set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at + 1);
  }
  const auto outputs = static_cast<uint64_t>(call.outputs), inputs = static_cast<uint64_t>(call.inputs);
  const bool ta = call.transa == CUBLAS_OP_T, tb = call.transb == CUBLAS_OP_T;
  cublasLtMatrixLayout_t a;
  cublasLtMatrixLayoutCreate(&a, CUDA_R_8F_E4M3, ta ? inputs : outputs, ta ? outputs : inputs,
                             ta ? call.inputs : call.outputs);
  auto layouts = [&](int64_t columns, cublasLtMatrixLayout_t& b, cublasLtMatrixLayout_t& d) {
    const auto n = static_cast<uint64_t>(columns);
    cublasLtMatrixLayoutCreate(&b, CUDA_R_8F_E4M3, tb ? n : inputs, tb ? inputs : n,
                               tb ? columns : call.inputs);
    cublasLtMatrixLayoutCreate(&d, call.out, outputs, n, call.outputs);
  };
  cublasLtMatrixLayout_t b, d, asked_b, asked_d;
  layouts(call.columns, b, d), layouts(call.asked, asked_b, asked_d);
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulPreferenceCreate(&preference);
  for (int i = 0; i < 4; ++i) {
    const uint32_t bytes = 16;
    cublasLtMatmulPreferenceSetAttribute(
        preference,
        static_cast<cublasLtMatmulPreferenceAttributes_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
        &bytes, sizeof bytes);
  }
  cublasLtMatmulHeuristicResult_t found{}, checked{};
  int count = 0;
  out.heuristic = cublasLtMatmulAlgoGetHeuristic(handle, desc, a, asked_b, asked_d, asked_d, preference, 1,
                                                 &found, &count);
  out.checked = cublasLtMatmulAlgoCheck(handle, desc, a, b, d, d, &found.algo, &checked);
  const float one = 1, zero = 0;
  out.product = cublasLtMatmul(handle, desc, &one, m.a, a, m.b + call.b_offset, b, &zero, m.d, d, m.d, d,
                               &found.algo, nullptr, 0, nullptr);
  cudaDeviceSynchronize();
  out.d = read(m.d);
  for (auto layout : {a, b, d, asked_b, asked_d}) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(desc), cublasLtMatmulPreferenceDestroy(preference);
  return out;
}

// A code of float8_e4m3fn, by its definition.
double value_of(size_t i) {
  const int code = static_cast<uint8_t>(i * 13 % 0x50 | (i % 3 ? 0 : 0x80)), exponent = code >> 3 & 15;
  const double size = exponent ? std::ldexp(8 + (code & 7), exponent - 10) : std::ldexp(code & 7, -9);
  return code & 0x80 ? -size : size;
}

void check_float8() {
  constexpr auto kOk = CUBLAS_STATUS_SUCCESS;
  constexpr auto kUnsupported = CUBLAS_STATUS_NOT_SUPPORTED;
  for (int64_t columns : {1, 3, 64}) {
    g_case = "float8, columns " + std::to_string(columns);
    Float8Call call;
    call.columns = columns;
    const Float8Ran out = run_float8(call);
    CHECK(out.heuristic == kOk && out.checked == kOk && out.product == kOk);
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = 0; i < call.outputs; ++i) {
        double x = 0;
        for (int64_t k = 0; k < call.inputs; ++k)
          x += value_of(static_cast<size_t>(k + i * call.inputs)) *
               value_of(static_cast<size_t>(k + j * call.inputs));
        CHECK(near(out.d[static_cast<size_t>(i + j * call.outputs)], 2 * x));
      }
  }
  const struct {
    const char* name;
    std::function<void(Float8Call&)> plant;
    bool offered;
  } mistakes[] = {
      {"A that is not transposed", [](Float8Call& c) { c.transa = CUBLAS_OP_N; }, false},
      {"B that is", [](Float8Call& c) { c.transb = CUBLAS_OP_T, c.columns = c.asked; }, false},
      {"inputs that are no multiple of 16", [](Float8Call& c) { c.inputs = 40; }, false},
      {"outputs that are none", [](Float8Call& c) { c.outputs = 20; }, false},
      {"results of float8", [](Float8Call& c) { c.out = CUDA_R_8F_E4M3; }, false},
      {"an operand at 8 bytes", [](Float8Call& c) { c.b_offset = 8; }, true},
      {"a scale on the host", [](Float8Call& c) { c.host_scale = true; }, true},
  };
  for (const auto& mistake : mistakes) {
    g_case = mistake.name;
    Float8Call call;
    mistake.plant(call);
    const Float8Ran out = run_float8(call);
    CHECK(out.heuristic == (mistake.offered ? kOk : kUnsupported));
    CHECK(out.product == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(out.d == std::vector<float>(out.d.size(), 0.f));  // nothing ran
  }
}

}  // namespace

int main() {
  for (uint32_t epilogue :
       {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADB}) {
    g_case = "epilogue " + std::to_string(epilogue);
    check_numbers(epilogue);
  }
  g_case = "complex numbers";
  check_complex();
  check_mistakes();
  check_float8();
  return g_failures ? 1 : 0;
}
