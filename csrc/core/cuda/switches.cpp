#include <cstring>

#include "core/cuda/runtime.h"
#include "core/errors.h"
#include "kernels/cuda/common/runtime.h"

namespace warptape {

kernels::cuda::Switches& kernels::cuda::switches() {
  static Switches all;
  return all;
}

namespace cuda {
namespace {

bool& find_switch(const char* name) {
  using kernels::cuda::Switches;
  static constexpr struct {
    const char* name;
    bool Switches::* field;
  } table[] = {
      {"cuda.matmul.allow_tf32", &Switches::matmul_allow_tf32},
      {"cuda.matmul.allow_bf16_reduced_precision_reduction",
       &Switches::matmul_allow_bf16_reduced_precision_reduction},
      {"cuda.matmul.allow_fp16_reduced_precision_reduction",
       &Switches::matmul_allow_fp16_reduced_precision_reduction},
      {"cudnn.enabled", &Switches::cudnn_enabled},
      {"cudnn.allow_tf32", &Switches::cudnn_allow_tf32},
      {"cudnn.benchmark", &Switches::cudnn_benchmark},
      {"cudnn.deterministic", &Switches::cudnn_deterministic},
  };
  std::string known;
  for (const auto& entry : table) {
    if (!std::strcmp(entry.name, name)) return kernels::cuda::switches().*entry.field;
    known += message(known.empty() ? "" : ", ", entry.name);
  }
  throw ValueError(message("backends: there is no switch '", name, "'; known: ", known));
}

}  // namespace

bool CudaRuntime::get_switch(const char* name) { return find_switch(name); }
void CudaRuntime::set_switch(const char* name, bool on) { find_switch(name) = on; }

}  // namespace cuda
}  // namespace warptape
