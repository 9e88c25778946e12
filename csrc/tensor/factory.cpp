#include "tensor/factory.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/context.h"
#include "core/device_runtime.h"
#include "core/errors.h"
#include "kernels/dispatch.h"
#include "kernels/reduce/reduce.h"
#include "tensor/deferral.h"
#include "tensor/memory_format.h"
#include "tensor/plan.h"
#include "tensor/run_kernel.h"

namespace warptape {
namespace {

ElementwiseSlot copy_slot{"copy"};
ElementwiseSlot add_slot{"add"};
kernels::Slot<kernels::ReduceFn> sum_slot{"sum"};

Tensor make(Ref<Storage>&& storage, DType dtype, Shape&& sizes, Shape&& strides, int64_t offset = 0) {
  Tensor out(Ref<TensorImpl>::adopt(
      new TensorImpl(std::move(storage), dtype, std::move(sizes), std::move(strides), offset)));
  out->inference = thread_state().inference_mode;
  return out;
}

// A storage that was resized to 0 holds no element of the tensors on it, which keep their geometry.
bool is_resized_away(const Tensor& t) { return !t.storage().bytes() && t.numel(); }

// Throws unless every element of `out` lies within its storage: no caller of alias() reaches beyond it,
// whatever sizes it was asked for.
void check_extent(const Tensor& t, const TensorImpl& out) {
  int64_t last = out.offset;
  bool fits = last >= 0, any = true;
  for (size_t d = 0; d < out.sizes.size(); ++d) {
    int64_t step;
    any &= out.sizes[d] != 0;
    fits &= out.sizes[d] >= 0 && (out.strides[d] >= 0 || out.sizes[d] <= 1);
    fits &= !any || (!__builtin_mul_overflow(out.sizes[d] - 1, out.strides[d], &step) &&
                     !__builtin_add_overflow(last, step, &last));
  }
  const size_t held = out.storage->bytes() / warptape::itemsize(out.dtype);
  if (__builtin_expect(fits && (!any || static_cast<size_t>(last) < held), 1)) return;
  WT_CHECK(fits && (t.storage().is_opaque() || is_resized_away(t)), ShapeError, "view: sizes ", out.sizes,
           ", strides ", out.strides, " and offset ", out.offset, " reach beyond the ", held,
           " elements of the storage");
}

void copy_across(const Tensor& dst, const Tensor& src, bool non_blocking) {
  DeviceType type = dst.device().is_host() ? src.device().type : dst.device().type;
  Tensor from = raw_contiguous(raw_cast(expand_view(src, dst.sizes()), dst.dtype()));
  Tensor to = dst.is_contiguous() ? dst : empty(dst.sizes(), options_of(dst));
  runtime_of(type).copy(to.data(), to.device(), from.data(), from.device(),
                        static_cast<size_t>(to.numel()) * to.itemsize(),
                        // What is copied on from the host must be there.
                        non_blocking && (to.same(dst) || !to.device().is_host()));
  if (!to.same(dst)) raw_copy(dst, to);
}

}  // namespace

void raw_resize(const char* op, const Tensor& t, const Shape& sizes, const Shape& strides) {
  const int64_t numel = numel_of(sizes, op);
  const size_t bytes = static_cast<size_t>(numel + t.offset()) * t.itemsize();
  if (numel && t.storage().bytes() < bytes) resize_storage(op, t.storage(), bytes);
  t->set_geometry(sizes, strides, t.offset());
}

void resize_storage(const char* op, Storage& storage, size_t bytes) {
  WT_CHECK(!storage.exported(), Error, op,
           ": Trying to resize storage that is not resizable: other owners see its memory");
  storage.resize(bytes);
}

Tensor empty(IntList sizes, TensorOptions options) {
  int64_t n = numel_of(sizes, "empty");
  return make(Storage::allocate(static_cast<size_t>(n) * itemsize(options.dtype), options.device),
              options.dtype, Shape(sizes), contiguous_strides(sizes));
}

Tensor empty_strided(IntList sizes, IntList strides, TensorOptions options) {
  WT_CHECK(sizes.size() == strides.size(), ShapeError,
           "empty_strided: expected as many strides as sizes, got ", AsShape{sizes}, " and ",
           AsShape{strides});
  int64_t extent = numel_of(sizes, "empty_strided") == 0 ? 0 : 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    WT_CHECK(strides[i] >= 0, ValueError, "empty_strided: expected strides of at least 0, got ",
             AsShape{strides});
    int64_t step;
    bool overflow = extent && (__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) ||
                               __builtin_add_overflow(extent, step, &extent) || extent > INT64_MAX / 16);
    WT_CHECK(!overflow, ShapeError,
             "empty_strided: Storage size calculation overflowed with sizes=", AsShape{sizes},
             " and strides=", AsShape{strides});
  }
  return make(Storage::allocate(static_cast<size_t>(extent) * itemsize(options.dtype), options.device),
              options.dtype, Shape(sizes), Shape(strides));
}

Tensor empty_pinned(IntList sizes, DType dtype) {
  const auto bytes = static_cast<size_t>(numel_of(sizes, "pin_memory")) * itemsize(dtype);
  struct Block {
    void* data;
    size_t bytes;
  };
  Allocator& allocator = runtime_of(DeviceType::CUDA).host_allocator();
  auto block = std::make_unique<Block>(Block{allocator.allocate(bytes), bytes});
  void* data = block->data;
  auto give_back = [](void* p) {
    std::unique_ptr<Block> held(static_cast<Block*>(p));
    runtime_of(DeviceType::CUDA).host_allocator().deallocate(held->data, held->bytes);
  };
  return make(Storage::wrap(data, bytes, {}, give_back, block.release()), dtype, Shape(sizes),
              contiguous_strides(sizes));
}

Tensor empty_like_layout(const Tensor& t, DType dtype) {
  const TensorOptions options{dtype, t.device()};
  if (t.is_contiguous())
    return make(Storage::allocate(static_cast<size_t>(t.numel()) * itemsize(dtype), options.device), dtype,
                Shape(t.sizes()), contiguous_strides(t.sizes()));
  return empty_like_in("empty_like", t, options, MemoryFormat::Preserve);
}

Tensor full(IntList sizes, Scalar value, TensorOptions options) {
  Tensor out = empty(sizes, options);
  raw_fill(out, value);
  return out;
}

Tensor zeros(IntList sizes, TensorOptions options) {
  Tensor out = empty(sizes, options);
  if (out.storage().is_deferred()) {
    raw_fill(out, 0);
  } else if (options.device.is_host()) {
    if (out.numel()) std::memset(out.data(), 0, static_cast<size_t>(out.numel()) * out.itemsize());
  } else if (!out.is_meta() && out.numel()) {
    runtime_of(options.device.type)
        .fill_zero(out.data(), options.device.index, static_cast<size_t>(out.numel()) * out.itemsize());
  }
  return out;
}

Tensor scalar_tensor(Scalar value, DType dtype, Device device) { return full({}, value, {dtype, device}); }

Tensor alias(const Tensor& t, Shape sizes, Shape strides, int64_t offset) {
  return alias(t, std::move(sizes), std::move(strides), offset, t.dtype());
}
Tensor alias(const Tensor& t, Shape sizes, Shape strides, int64_t offset, DType dtype) {
  Tensor out = make(Ref<Storage>(t->storage), dtype, std::move(sizes), std::move(strides), offset);
  check_extent(t, *out.impl());
  out->inference = t->inference;
  out->own_version = t->own_version;
  return out;
}

Tensor alias(const Tensor& t) {
  Tensor out(Ref<TensorImpl>::adopt(
      new TensorImpl(t->storage, t.dtype(), Shape(t.sizes()), Shape(t.strides()), t.offset())));
  out->inference = t->inference;
  out->own_version = t->own_version;
  return out;
}

Tensor expand_view(const Tensor& t, IntList sizes, const char* op) {
  if (IntList(t.sizes()).size() == sizes.size() && std::equal(sizes.begin(), sizes.end(), t.sizes().begin()))
    return t;
  return alias(t, Shape(sizes), broadcast_strides(t.sizes(), t.strides(), sizes, op), t.offset());
}

Tensor raw_parts(const Tensor& t) {
  Shape sizes = t.sizes(), strides = t.strides();
  for (int64_t& s : strides) s *= 2;
  sizes.push_back(2), strides.push_back(1);
  return alias(t, std::move(sizes), std::move(strides), t.offset() * 2, real_of(t.dtype()));
}

Tensor raw_part(const Tensor& t, int64_t which) {
  Shape strides = t.strides();
  for (int64_t& s : strides) s *= 2;
  return alias(t, t.sizes(), std::move(strides), t.offset() * 2 + which, real_of(t.dtype()));
}

std::optional<Shape> view_strides(const Tensor& t, IntList sizes) {
  if (t.numel() == 0) return contiguous_strides(sizes);
  Shape out(sizes.size(), 1);
  auto to = static_cast<int64_t>(sizes.size()) - 1;
  int64_t run = 1, run_stride = t.ndim() ? t.strides().back() : 1;  // the run of mergeable dims seen so far
  for (int64_t d = t.ndim() - 1; d >= 0; --d) {
    run *= t.sizes()[d];
    bool breaks = d == 0 || (t.sizes()[d - 1] != 1 && t.strides()[d - 1] != run * run_stride);
    if (!breaks) continue;
    int64_t given = 1;
    while (to >= 0 && (given < run || sizes[to] == 1)) {
      out[to] = given * run_stride;
      given *= sizes[to--];
    }
    if (given != run) return std::nullopt;
    if (d > 0) {
      run = 1;
      run_stride = t.strides()[d - 1];
    }
  }
  while (to >= 0) {
    if (sizes[to] != 1) return std::nullopt;
    out[to--] = 1;
  }
  return out;
}

void raw_copy(const Tensor& dst, const Tensor& src, bool non_blocking) {
  if (dst.numel() == 0 || dst.device().is_meta()) return;
  WT_CHECK(!src.device().is_meta(), NotImplementedError,
           "Cannot copy out of meta tensor; no data! Make the tensor on a real device, or a module's by "
           "torch.nn.Module.to_empty() instead of to()");
  if (dst.device() != src.device() && (!dst.device().is_host() || !src.device().is_host()))
    return copy_across(dst, src, non_blocking);
  const ElementwiseInput in[] = {src};
  const bool storage = is_storage_only(src.dtype()) || is_storage_only(dst.dtype());
  run_elementwise(copy_slot, compute_dtype(storage ? dst.dtype() : promote(src.dtype(), dst.dtype())), dst,
                  in);
}

namespace {

bool fits_integer(const Scalar& v, DType t) {
  if (v.exceeds_int64()) return t == DType::UInt64;
  const double limit = std::ldexp(1.0, static_cast<int>(8 * itemsize(t)) - has_sign(t));
  const double low = has_sign(t) ? -limit : v.is_floating() || v.is_complex() ? 0.0 : 1 - limit;
  return v.to_double() >= low && (v.to_double() < limit || (t == DType::Int64 && !v.is_floating()));
}

bool fits_float(double v, DType t) {
  double largest = t == DType::Float16    ? 65504.0
                   : t == DType::BFloat16 ? 0x1.fep127
                   : t == DType::Float32  ? double{std::numeric_limits<float>::max()}
                                          : std::numeric_limits<double>::max();
  if (is_float8(t))
    kernels::dispatch(kernels::Float8Types{}, t, [&](auto tag) { largest = decltype(tag)::type::kMax; });
  return !(std::abs(v) > largest) || std::isinf(v);
}

}  // namespace

void check_fits(const Scalar& value, DType dtype) {
  if (dtype == DType::Bool) return;
  const DType part = real_of(dtype);
  const bool fits = !is_differentiable(dtype)
                        ? fits_integer(value, dtype)
                        : fits_float(value.to_double(), part) && fits_float(value.to_complex().im, part);
  const bool real = is_complex(dtype) || value.to_complex().im == 0;
  WT_CHECK(fits && real, Error, "value cannot be converted to type ", dtype, " without overflow");
}

const ElementwiseSlot& copy_kernel() { return copy_slot; }

void raw_fill(const Tensor& dst, Scalar value) {
  check_fits(value, dst.dtype());
  const ElementwiseInput in[] = {value};
  run_elementwise(copy_slot, compute_dtype(dst.dtype()), dst, in);
}

Tensor raw_cast(const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  Tensor out = empty_like_layout(t, dtype);
  raw_copy(out, t);
  return out;
}

Tensor raw_contiguous(const Tensor& t) {
  if (t.is_contiguous()) return t;
  Tensor out = empty(t.sizes(), options_of(t));
  raw_copy(out, t);
  return out;
}

Tensor raw_clone(const Tensor& t) {
  Tensor out = empty_like_layout(t, t.dtype());
  raw_copy(out, t);
  return out;
}

void raw_add(const Tensor& out, const Tensor& a, const Tensor& b) {
  const ElementwiseInput in[] = {a, b};
  run_elementwise(add_slot, compute_dtype(out.dtype()), out, in);
}

void raw_sum_to(const Tensor& out, const Tensor& t) {
  if (out.device().is_meta() || out.numel() == 0) return;
  if (thread_state().deferral) return thread_state().deferral->sum_to(out, t);
  sum_slot(Launch(t.device()), out.view(), t.view());
}

Tensor raw_reduce_to(const Tensor& t, IntList sizes) {
  if (is_complex(t.dtype())) {
    Shape with_parts(sizes);
    with_parts.push_back(2);
    Tensor sums = raw_reduce_to(raw_parts(t), with_parts);
    return alias(sums, Shape(sizes), contiguous_strides(sizes), 0, t.dtype());
  }
  size_t shift = t.sizes().size() - sizes.size();
  Shape kept(t.sizes().size(), 1);
  std::copy(sizes.begin(), sizes.end(), kept.begin() + static_cast<std::ptrdiff_t>(shift));
  Tensor out = empty(kept, options_of(t));
  raw_sum_to(out, t);
  return alias(out, Shape(sizes), contiguous_strides(sizes), 0);
}

namespace {
Scalar element(DType dtype, const void* data) {
  Scalar out;
  const auto read = [&](auto tag) {
    using T = typename decltype(tag)::type;
    T v;
    std::memcpy(&v, data, sizeof v);
    if constexpr (is_complex(kernels::dtype_of<T>))
      out = Complex<double>(v.re, v.im);
    else if constexpr (std::is_same_v<T, kernels::Bool>)
      out = static_cast<bool>(v);
    else if constexpr (std::is_integral_v<T>) {
      out = std::is_signed_v<T> ? Scalar(static_cast<int64_t>(v))
                                : Scalar::of_unsigned(static_cast<uint64_t>(v));
    } else if constexpr (std::is_same_v<T, double>)
      out = v;
    else
      out = static_cast<double>(static_cast<float>(v));
  };
  if (!kernels::try_dispatch(kernels::ComplexTypes{}, dtype, read) &&
      !kernels::try_dispatch(kernels::WideUnsignedTypes{}, dtype, read) &&
      !kernels::try_dispatch(kernels::Float8Types{}, dtype, read))
    kernels::dispatch(kernels::AllTypes{}, dtype, read, "item");
  return out;
}
}  // namespace

Scalar item(const Tensor& t) {
  WT_CHECK(t.numel() == 1, ShapeError, "item: a Tensor with ", t.numel(),
           " elements cannot be converted to Scalar");
  WT_CHECK(!t.device().is_meta(), DeviceError, "item: a meta tensor has no data");
  if (t.device().is_host()) return element(t.dtype(), t.data());
  Tensor host = empty({}, {t.dtype(), {}});
  raw_copy(host, alias(t, {}, {}, t.offset()));
  return element(t.dtype(), host.data());
}

kernels::LaunchContext launch_context(Device device, kernels::IndexFault* fault) {
  kernels::LaunchContext ctx;
  ctx.device = device.type;
  ctx.device_index = device.index;
  ctx.fault = fault;
  if (!device.is_host()) {
    DeviceRuntime& runtime = runtime_of(device.type);
    ctx.stream = runtime.current_stream(device.index);
    ctx.fault = runtime.fault_record(device.index);
  }
  return ctx;
}

void* Launch::allocate(void* self, size_t bytes) {
  auto* launch = static_cast<Launch*>(self);
  Device device{launch->ctx_.device, static_cast<int8_t>(launch->ctx_.device_index)};
  launch->scratch_.push_back(Storage::allocate_now(bytes, device));
  return launch->scratch_.back()->data();
}

Launch::~Launch() = default;

void check_index(const kernels::IndexFault& fault, const char* op, int64_t dim) {
  WT_CHECK(!fault.set, IndexError, op, ": index ", fault.index, " is out of bounds for dimension ", dim,
           " with size ", fault.bound);
}

}  // namespace warptape
