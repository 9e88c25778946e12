// Runs the tensor-core kernels of attention on the emulated device, without the rest of warptape, so that a
// test can also compile them with a planted fault: test_attention KERNEL DTYPE INPUT OUTPUT. KERNEL is mma or
// wgmma. INPUT has a header of int64, the starts of sequences if there are some as int32, and q [B, H, T, D],
// k [B, K, S, D], v [B, K, S, E], dout [B, H, T, E] as float32, then a mask [B, 1, T, S] if there is one;
// OUTPUT gets out, lse, dq, dk and dv as float32, and what a test has to compare them with it computes
// itself.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/common/runtime.h"
#include "kernels/cuda/libraries/plain.h"

namespace warptape::kernels {
void unhandled_dtype(const char*, DType) { throw std::runtime_error("dtype"); }

namespace cuda {
namespace {
int g_capability = 90;
}
bool launch_blocking = false;
void use_device(int) {}
int multi_processor_count(int) { return 4; }
int capability(int) { return g_capability; }
void finish_blocking(const LaunchContext&, const char*) {}
void raise_error(cudaError_t error, const char* op) {
  throw std::runtime_error(std::string(op) + ": " + cudaGetErrorName(error));
}
void raise_library_error(const std::string& text) { throw std::runtime_error(text); }

namespace {

void* device_memory(size_t bytes) {
  void* p = nullptr;
  check(cudaMalloc(&p, bytes ? bytes : 1), "test");
  return p;
}

// [a, b, c, d] contiguous, on the device.
struct Tensor {
  int64_t sizes[4], strides[4];
  View view;

  Tensor(DType dtype, int64_t a, int64_t b, int64_t c, int64_t d)
      : sizes{a, b, c, d}, strides{b * c * d, c * d, d, 1} {
    view.data = device_memory(size_t(a * b * c * d) * itemsize(dtype));
    view.sizes = sizes, view.strides = strides, view.ndim = 4, view.dtype = dtype;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  void read(FILE* file) const {
    std::vector<float> values(size_t(view.numel()));
    if (fread(values.data(), 4, values.size(), file) != values.size()) throw std::runtime_error("input");
    if (view.dtype == DType::Bool) {
      const std::vector<char> bools(values.begin(), values.end());
      check(cudaMemcpy(view.data, bools.data(), bools.size(), cudaMemcpyHostToDevice), "test");
      return;
    }
    std::vector<uint16_t> bits(values.size());
    for (size_t i = 0; i < bits.size(); ++i)
      bits[i] = view.dtype == DType::BFloat16 ? BFloat16(values[i]).bits : Half(values[i]).bits;
    check(cudaMemcpy(view.data, bits.data(), 2 * bits.size(), cudaMemcpyHostToDevice), "test");
  }
  void clear() const { check(cudaMemset(view.data, 0, size_t(view.numel()) * itemsize(view.dtype)), "test"); }
  void write(FILE* file) const {
    std::vector<float> values(size_t(view.numel()));
    std::vector<char> raw(values.size() * itemsize(view.dtype));
    check(cudaMemcpy(raw.data(), view.data, raw.size(), cudaMemcpyDeviceToHost), "test");
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t bits;
      memcpy(&bits, raw.data() + 2 * i, 2);
      if (view.dtype == DType::Float32) memcpy(&values[i], raw.data() + 4 * i, 4);
      if (view.dtype == DType::BFloat16) values[i] = float(*reinterpret_cast<BFloat16*>(&bits));
      if (view.dtype == DType::Float16) values[i] = float(*reinterpret_cast<Half*>(&bits));
    }
    fwrite(values.data(), 4, values.size(), file);
  }
};

struct Header {
  int64_t b, h, k, t, s, d, e, first, last, sequences, most_queries, most_keys;
  int64_t mask;     // 0: none, 1: of bools, 2: added
  int64_t dropout;  // in percent
};

const int32_t* read_numbers(FILE* file, int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  if (fread(numbers.data(), 4, numbers.size(), file) != numbers.size()) throw std::runtime_error("input");
  void* p = device_memory(4 * numbers.size());
  check(cudaMemcpy(p, numbers.data(), 4 * numbers.size(), cudaMemcpyHostToDevice), "test");
  return static_cast<const int32_t*>(p);
}

void run(DType dtype, FILE* from, FILE* to) {
  Header n;
  if (fread(&n, sizeof n, 1, from) != 1) throw std::runtime_error("header");
  AttentionPlan plan{};
  if (n.sequences) {
    const int32_t* starts = read_numbers(from, n.sequences + 1);
    plan.sequences = {starts,     read_numbers(from, n.sequences + 1), nullptr, n.sequences, n.most_queries,
                      n.most_keys};
  }
  const Tensor q(dtype, n.b, n.h, n.t, n.d), k(dtype, n.b, n.k, n.s, n.d), v(dtype, n.b, n.k, n.s, n.e);
  const Tensor up(dtype, n.b, n.h, n.t, n.e), out(dtype, n.b, n.h, n.t, n.e);
  const Tensor lse(DType::Float32, 1, n.b, n.h, n.t);
  const Tensor dq(dtype, n.b, n.h, n.t, n.d), dk(dtype, n.b, n.k, n.s, n.d), dv(dtype, n.b, n.k, n.s, n.e);
  for (const Tensor* x : {&q, &k, &v, &up}) x->read(from);
  if (n.sequences)
    for (const Tensor* x : {&out, &lse, &dq, &dk, &dv}) x->clear();
  plan.q = q.view, plan.k = k.view, plan.v = v.view;
  plan.scale = 1 / __builtin_sqrt(double(n.d));
  plan.band = {n.first, n.last};
  View rows = lse.view;
  rows.sizes += 1, rows.strides += 1, rows.ndim = 3;
  Tensor mask(n.mask == 1 ? DType::Bool : dtype, n.b, 1, n.t, n.s);
  if (n.mask) {
    mask.read(from);
    mask.strides[1] = 0;
    plan.mask = mask.view;
  }
  plan.dropout_p = double(n.dropout) / 100;
  plan.key.seed = 7, plan.key.call = 3;
  plan.numbers.queries = uint64_t(n.t), plan.numbers.keys = uint64_t(n.s);
  LaunchContext ctx{};
  ctx.device = DeviceType::CUDA;
  ctx.allocate = [](void*, size_t bytes) { return device_memory(bytes); };
  if (g_capability == 90 && !suits_wgmma(ctx, plan, {&out.view, &dq.view, &dk.view, &dv.view, &up.view}))
    throw std::runtime_error("WGMMA does not take it");
  if (!suits_mma(plan, {&out.view})) throw std::runtime_error("tensor cores do not take it");
  attention_own(ctx, out.view, rows, plan);
  attention_backward_own(ctx, dq.view, dk.view, dv.view, up.view, out.view, rows, plan);
  check(cudaDeviceSynchronize(), "test");
  for (const Tensor* x : {&out, &lse, &dq, &dk, &dv}) x->write(to);
}

}  // namespace
}  // namespace cuda
}  // namespace warptape::kernels

int main(int argc, char** argv) {
  using warptape::DType;
  if (argc != 5) return 2;
  warptape::kernels::cuda::g_capability = strcmp(argv[1], "wgmma") ? 80 : 90;
  FILE *from = fopen(argv[3], "rb"), *to = fopen(argv[4], "wb");
  if (!from || !to) return 2;
  try {
    warptape::kernels::cuda::run(strcmp(argv[2], "float16") ? DType::BFloat16 : DType::Float16, from, to);
  } catch (const std::exception& e) {
    fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  fclose(from);
  return fclose(to) != 0;
}
