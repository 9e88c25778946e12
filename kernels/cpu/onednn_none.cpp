// Built without oneDNN.
#include "kernels/cpu/onednn.h"

namespace warptape::kernels::cpu {

bool onednn_bf16() { return false; }
bool onednn_matmul(const OneDnnMatmul&, const void*, const void*, const void*, void*) { return false; }

}  // namespace warptape::kernels::cpu
