#include "ops/kernel_inputs.h"

namespace warptape::ops {

void check_floating(const char* op, const Tensor& x) {
  WT_CHECK(is_floating(x.dtype()), DtypeError, op, ": expected a floating point tensor, got ", x,
           "; convert it with .float()");
}

void check_same_device(const char* op, const Tensor& x, const Tensor& other, const char* what) {
  WT_CHECK(!other.defined() || other.device() == x.device(), DeviceError, op,
           ": Expected all tensors to be on the same device, but found at least two devices, ", x.device(),
           " and, for ", what, ", ", other.device(), "! Move one with .to(device)");
}

}  // namespace warptape::ops
