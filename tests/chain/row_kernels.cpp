// Writes what NVRTC makes of a few chains with a norm, for tools/sass_gate.py: row_kernels CAPABILITY FOLDER.
// The sources and the way they are compiled are the library's own; no driver is needed. WARPTAPE_CACHE must
// be an empty folder.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/fused/chain_compile.h"
#include "kernels/cuda/fused/chain_source.h"

namespace warptape::kernels::cuda {
void raise_library_error(const std::string& text) { throw std::runtime_error(text); }
std::vector<std::string> package_folders() { return {}; }

namespace {

constexpr int64_t kRows = 65536, kWidth = 1024;
constexpr ChainFormula kAdd{"Add", DType::Float32, true};
constexpr ChainFormula kCopy{nullptr, DType::Float32, true};

// A chain of tensors [kRows, kWidth] and [kWidth]; values are named by what the functions return.
class Chain {
 public:
  Chain() : plan_{} {
    plan_.ndim = 2, plan_.numel = kRows * kWidth;
    plan_.sizes[0] = kRows, plan_.sizes[1] = kWidth;
  }
  uint8_t input(DType dtype, bool has_rows = true) {
    plan_.input[plan_.inputs] = operand(dtype, has_rows);
    return uint8_t(plan_.inputs++);
  }
  uint8_t step(const ChainFormula& formula, DType result, std::initializer_list<uint8_t> in) {
    ChainStep& s = plan_.step[plan_.steps];
    s.formula = &formula, s.result = result;
    for (uint8_t v : in) s.in[s.count++] = v;
    if (formula.rows != RowKernel::None) plan_.rows.step = plan_.steps;
    return uint8_t(kMaxChainInputs + plan_.steps++);
  }
  void output(uint8_t value, DType dtype) { plan_.output[plan_.outputs++] = {value, operand(dtype, true)}; }
  const ChainPlan& plan() const { return plan_; }

 private:
  static Operand operand(DType dtype, bool has_rows) {
    Operand o{};
    o.dtype = dtype;
    o.strides[1] = int64_t(itemsize(dtype));
    o.strides[0] = has_rows ? kWidth * o.strides[1] : 0;
    return o;
  }
  ChainPlan plan_;
};

// x + residual, its norm, and the norm's cast to BFloat16.
Chain forward(const ChainFormula& norm, DType stream, DType residual) {
  Chain c;
  const uint8_t x = c.input(stream), r = c.input(residual), weight = c.input(stream, false);
  const uint8_t sum = c.step(kAdd, stream, {x, r});
  const bool has_bias = norm.rows == RowKernel::LayerNorm;
  const uint8_t y = has_bias ? c.step(norm, stream, {sum, weight, c.input(stream, false)})
                             : c.step(norm, stream, {sum, weight});
  c.output(sum, stream);
  c.output(c.step(kCopy, DType::BFloat16, {y}), DType::BFloat16);
  return c;
}

// The norm's gradient of dy, added to that of the residual.
Chain backward(const ChainFormula& norm, DType dtype) {
  Chain c;
  const uint8_t dy = c.input(dtype), x = c.input(dtype), residual = c.input(dtype);
  const uint8_t weight = c.input(dtype, false);
  const uint8_t dx = c.step(norm, dtype, {dy, x, kAbsent, kAbsent, weight});
  c.output(c.step(kAdd, dtype, {dx, residual}), dtype);
  return c;
}

void write(const std::string& folder, const std::string& name, int capability, const Chain& chain) {
  std::ofstream file(folder + "/" + name + ".cubin", std::ios::binary);
  file << compile_kernel(chain_source(chain.plan()), capability);
  if (!file.flush()) throw std::runtime_error(folder + ": cannot be written");
}

void run(int capability, const std::string& folder) {
  constexpr DType kTypes[] = {DType::Float32, DType::BFloat16};
  for (RowKernel k : {RowKernel::LayerNorm, RowKernel::RmsNorm}) {
    const bool layer = k == RowKernel::LayerNorm;
    const std::string name = layer ? "layer_norm" : "rms_norm";
    for (DType dtype : kTypes) {
      const ChainFormula norm{"norm", dtype, true, k};
      const ChainFormula gradient{"norm_backward", dtype, true,
                                  layer ? RowKernel::LayerNormBackward : RowKernel::RmsNormBackward};
      const std::string of = dtype == DType::Float32 ? "_float" : "_BFloat16";
      write(folder, name + "_forward" + of, capability, forward(norm, dtype, DType::BFloat16));
      write(folder, name + "_backward" + of, capability, backward(gradient, dtype));
    }
  }
}

}  // namespace
}  // namespace warptape::kernels::cuda

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    warptape::kernels::cuda::run(std::atoi(argv[1]), argv[2]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
