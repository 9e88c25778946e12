// Raw tensors: making, viewing, copying, filling. Nothing here is recorded on the tape.
#pragma once

#include "tensor/scalar.h"
#include "tensor/tensor.h"

namespace warptape {

struct TensorOptions {
  DType dtype = DType::Float32;
  Device device;
};
inline TensorOptions options_of(const Tensor& t) { return {t.dtype(), t.device()}; }

WT_API Tensor empty(IntList sizes, TensorOptions options);
// Storage just large enough for the given geometry.
WT_API Tensor empty_strided(IntList sizes, IntList strides, TensorOptions options);
// In page-locked host memory, from and to which a device copies while the host goes on.
WT_API Tensor empty_pinned(IntList sizes, DType dtype);
// As `t` is laid out when its elements fill a block without gaps (any order of dims), else contiguous.
WT_API Tensor empty_like_layout(const Tensor& t, DType dtype);
WT_API Tensor full(IntList sizes, Scalar value, TensorOptions options);
WT_API Tensor zeros(IntList sizes, TensorOptions options);
// A 0-dim CPU tensor.
WT_API Tensor scalar_tensor(Scalar value, DType dtype, Device device = {});

// Gives t other sizes, with more memory where its storage holds too little. What that held stays; Error where
// others see it.
WT_API void raw_resize(const char* op, const Tensor& t, const Shape& sizes, const Shape& strides);
// More or less memory for a storage; Error where others see it.
WT_API void resize_storage(const char* op, Storage& storage, size_t bytes);
// What two tensors have in common: nothing, every element at the same index, or some. Unordered: some, where
// one has gaps, of which PyTorch says nothing.
enum class Overlap : uint8_t { None, Full, Partial, Unordered };
WT_API Overlap overlap_of(const Tensor& a, const Tensor& b);
// Whether PyTorch refuses to read the one while the other is written at other positions.
inline bool overlap(const Tensor& a, const Tensor& b) {
  const Overlap found = overlap_of(a, b);
  return found == Overlap::Full || found == Overlap::Partial;
}
inline constexpr const char* kOverlap =
    ": unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
    "memory location. Please clone() the tensor before performing the operation.";

// Another tensor on the same storage, with its own geometry and without gradient history.
WT_API Tensor alias(const Tensor& t, Shape sizes, Shape strides, int64_t offset);
WT_API Tensor alias(const Tensor& t, Shape sizes, Shape strides, int64_t offset, DType dtype);
WT_API Tensor alias(const Tensor& t);
// Views; strides only.
WT_API Tensor expand_view(const Tensor& t, IntList sizes, const char* op = "expand");
// The real and imaginary parts of a complex tensor along a new last dim; and one of them (0 or 1).
WT_API Tensor raw_parts(const Tensor& t);
WT_API Tensor raw_part(const Tensor& t, int64_t which);
// View with other sizes if strides allow, else nothing.
WT_API std::optional<Shape> view_strides(const Tensor& t, IntList sizes);

// dst = src with conversion, broadcast and copy between devices (`non_blocking`: see DeviceRuntime::copy).
// Overlapping memory is the caller's matter.
WT_API void raw_copy(const Tensor& dst, const Tensor& src, bool non_blocking = false);
// Error unless the dtype holds the number. Of uint8, negative integers from -255 on count from 256 down.
WT_API void check_fits(const Scalar& value, DType dtype);
// What the factors of an op are held in.
constexpr DType opmath_dtype(DType t) {
  return t == DType::Float16 || t == DType::BFloat16 ? DType::Float32 : t;
}
WT_API void raw_fill(const Tensor& dst, Scalar value);
WT_API Tensor raw_cast(const Tensor& t, DType dtype);  // t itself when it has that dtype
WT_API Tensor raw_contiguous(const Tensor& t);         // t itself when it is contiguous
WT_API Tensor raw_clone(const Tensor& t);              // a copy with the same layout where it is dense
// out = a + b elementwise, shapes broadcast to out's (out may be a or b)
WT_API void raw_add(const Tensor& out, const Tensor& a, const Tensor& b);
// out = the sum of t over the dims that out has with size 1.
WT_API void raw_sum_to(const Tensor& out, const Tensor& t);
// Sum over the dims in which t was broadcast from `sizes`.
WT_API Tensor raw_reduce_to(const Tensor& t, IntList sizes);
// The one element, on any device. ShapeError when there are more.
WT_API Scalar item(const Tensor& t);

// The context a kernel is launched with on the tensor's device. `fault` may be null.
WT_API kernels::LaunchContext launch_context(Device device, kernels::IndexFault* fault = nullptr);
// Throws IndexError "op: index I is out of bounds for dimension with size N" where a kernel found a bad
// index.
WT_API void check_index(const kernels::IndexFault& fault, const char* op, int64_t dim);

// As launch_context, and owns the scratch memory that the kernels ask for until the end of the scope.
class WT_API Launch {
 public:
  // Kernels report to `fault`, where others look at it, or to this.
  explicit Launch(Device device, kernels::IndexFault* fault = nullptr)
      : ctx_(launch_context(device, fault ? fault : &fault_)) {
    ctx_.allocate = &Launch::allocate;
    ctx_.allocator = this;
  }
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  operator const kernels::LaunchContext&() const { return ctx_; }
  void check_index(const char* op, int64_t dim) const { warptape::check_index(fault_, op, dim); }

 private:
  static void* allocate(void* self, size_t bytes);
  kernels::IndexFault fault_;
  kernels::LaunchContext ctx_;
  SmallVector<Ref<Storage>, 2> scratch_;
};

}  // namespace warptape
