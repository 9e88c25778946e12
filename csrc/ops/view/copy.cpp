#include "ops/view/copy.h"
#include "op/forms.h"

#include "op/batching.h"
#include "ops/kernel_inputs.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

void identity_backward(Node&, Gradients& g) { g.set(0, g[0]); }
constexpr NodeType kClone{"CloneBackward0", identity_backward};

void warn_of_loss(DType from, DType to) {
  if (is_complex(from) && !is_complex(to) && to != DType::Bool)
    warn("Casting complex values to real discards the imaginary part");
}

Tensor clone_as(const Tensor& x, Tensor out) {
  raw_copy(out, x);
  if (needs_grad(x)) set_history(out, record(kClone, x));
  return out;
}
Tensor clone_in(const Tensor& x, MemoryFormat format) {
  return clone_as(x, empty_like_in("clone", x, options_of(x), format));
}
Tensor clone_impl(const Tensor& x) { return clone_in(x, MemoryFormat::Preserve); }
using Format = std::optional<std::string_view>;
Tensor clone_format_impl(const Tensor& x, Format format) {
  return clone_in(x, memory_format("clone", format, MemoryFormat::Preserve));
}
Tensor contiguous_impl(const Tensor& x) {
  return x.is_contiguous() ? x : clone_as(x, empty(x.sizes(), options_of(x)));
}
Tensor contiguous_format_impl(const Tensor& x, Format name) {
  const MemoryFormat format = memory_format("contiguous", name, MemoryFormat::Contiguous);
  WT_CHECK(format != MemoryFormat::Preserve || x.is_contiguous(), Error,
           "contiguous: preserve memory format is unsupported by the contiguous operator");
  return contiguous_in(x, format);
}

// ---- conversion ----------------------------------------------------------------------------------------

struct Origin {
  DType dtype;
  Device device;
};
void to_backward(Node& n, Gradients& g) {
  const Origin& o = n.data<Origin>();
  g.set(0, to(g[0], o.device, o.dtype, false, false));
}
constexpr NodeType kTo{"ToCopyBackward0", to_backward};

Tensor to_in(const Tensor& x, std::optional<Device> device, std::optional<DType> dtype, bool copy,
             bool non_blocking, MemoryFormat format) {
  DType t = dtype.value_or(x.dtype());
  Device d = device.value_or(x.device());
  const bool stays = format == MemoryFormat::Preserve || format == suggested_format(x);
  if (!copy && t == x.dtype() && d == x.device() && stays) return x;
  warn_of_loss(x.dtype(), t);
  // A copy that the host does not wait for needs page-locked memory to arrive in.
  Tensor out = non_blocking && stays && x.is_contiguous() && d.is_host() && x.device().is_accelerator()
                   ? empty_pinned(x.sizes(), t)
                   : empty_like_in("to", x, {t, d}, format);
  raw_copy(out, x, non_blocking);
  if (needs_grad(x) && is_differentiable(t)) {
    Ref<Node> n = record(kTo, x);
    n->emplace<Origin>(x.dtype(), x.device());
    set_history(out, n);
  }
  return out;
}

Tensor to_impl(const Tensor& x, std::optional<Device> device, std::optional<DType> dtype, bool copy,
               bool non_blocking) {
  return to_in(x, device, dtype, copy, non_blocking, MemoryFormat::Preserve);
}

// The forms of Tensor.to.
using OptDevice = std::optional<Device>;
using OptDType = std::optional<DType>;
MemoryFormat format_of(Format name) { return memory_format("to", name, MemoryFormat::Preserve); }
Tensor to_device_impl(const Tensor& x, OptDevice device, OptDType dtype, bool non_blocking, bool copy,
                      Format format) {
  return to_in(x, device, dtype, copy, non_blocking, format_of(format));
}
Tensor to_dtype_impl(const Tensor& x, DType dtype, bool non_blocking, bool copy, Format format) {
  return to_in(x, std::nullopt, dtype, copy, non_blocking, format_of(format));
}
Tensor to_other_impl(const Tensor& x, const Tensor& other, bool non_blocking, bool copy, Format format) {
  return to_in(x, other.device(), other.dtype(), copy, non_blocking, format_of(format));
}
Tensor type_as_impl(const Tensor& x, const Tensor& other) {
  return to(x, other.device(), other.dtype(), false, false);
}
Tensor cpu_impl(const Tensor& x, Format format) {
  return to_in(x, Device{}, std::nullopt, false, false, format_of(format));
}
Tensor cuda_impl(const Tensor& x, OptDevice device, bool non_blocking, Format format) {
  const Device place = device ? *device : resolved(Device{DeviceType::CUDA, -1});
  WT_CHECK(place.is_cuda(), DeviceError, "cuda: Invalid device, must be cuda device, got ", place);
  return to_in(x, place, std::nullopt, false, non_blocking, format_of(format));
}
template <DType D>
Tensor convert_impl(const Tensor& x, Format format) {
  return to_in(x, std::nullopt, D, false, false, format_of(format));
}

// ---- in place ------------------------------------------------------------------------------------------

void copy_backward(Node&, Gradients& g) {
  if (g.wants(0)) g.set(0, zeros(g[0].sizes(), options_of(g[0])));
  if (g.wants(1)) g.set(1, g[0]);
}
constexpr NodeType kCopy{"CopyBackwards", copy_backward};

Tensor copy_impl(const Tensor& self, const Tensor& src, bool non_blocking) {
  Shape shape = broadcast_shapes(self.sizes(), src.sizes(), "copy_");
  WT_CHECK(shape == self.sizes(), ShapeError, "copy_: shape ", src.sizes(),
           " of the source does not broadcast to ", self.sizes());
  warn_of_loss(src.dtype(), self.dtype());
  bool recorded = needs_grad(self, src) && is_differentiable(self.dtype());
  check_inplace(self, "copy_", recorded);
  Ref<Node> n = recorded ? record(kCopy, self, src) : Ref<Node>();
  // Memory that overlaps is read whole before it is written.
  const Overlap common = overlap_of(self, src);
  if (common != Overlap::Full) raw_copy(self, common != Overlap::None ? raw_clone(src) : src, non_blocking);
  self.bump_version();
  if (n) rebase_history(self, n);
  return self;
}

void fill_backward(Node&, Gradients& g) { g.set(0, zeros(g[0].sizes(), options_of(g[0]))); }
constexpr NodeType kFill{"FillBackward0", fill_backward}, kZero{"ZeroBackward0", fill_backward};

Tensor fill_with(const char* op, const NodeType& type, const Tensor& self, const Scalar& value) {
  bool recorded = needs_grad(self);
  if (!recorded) {  // of what an expanded tensor has several times, one
    Tensor once = self;
    for (int64_t d = 0; d < self.ndim(); ++d)
      if (self.strides()[d] == 0 && self.sizes()[d] > 1) once = narrow(once, d, 0, 1);
    if (!once.same(self)) {
      fill_with(op, type, once, value);
      return self;
    }
  }
  check_inplace(self, op, recorded);
  Ref<Node> n = recorded ? record(type, self) : Ref<Node>();
  raw_fill(self, value);
  self.bump_version();
  if (n) rebase_history(self, n);
  return self;
}
Tensor fill_impl(const Tensor& self, const Scalar& value) { return fill_with("fill_", kFill, self, value); }
Tensor fill_tensor_impl(const Tensor& self, const Tensor& value) {
  WT_CHECK(value.ndim() == 0, ShapeError,
           "fill_: fill_ only supports 0-dimension value tensor but got tensor with ", value.ndim(),
           " dimensions.");
  return copy_(self, value, false);
}
Tensor filled_impl(const Tensor& x, const Scalar& value) { return fill_(clone(x), value); }
Tensor filled_tensor_impl(const Tensor& x, const Tensor& value) { return fill_tensor_impl(clone(x), value); }
Tensor zero_impl(const Tensor& self) { return fill_with("zero_", kZero, self, 0); }

// ---- joining -------------------------------------------------------------------------------------------

struct Joined {
  int64_t dim;
  SmallVector<int64_t, 8> lengths;
};
void cat_backward(Node& n, Gradients& g) {
  const Joined& j = n.data<Joined>();
  int64_t at = 0;
  for (size_t i = 0; i < j.lengths.size(); ++i) {
    if (g.wants(i))
      g.set(i, j.lengths[i] < 0 ? zeros(Shape{0}, options_of(g[0])) : narrow(g[0], j.dim, at, j.lengths[i]));
    at += std::max<int64_t>(j.lengths[i], 0);
  }
}
constexpr NodeType kCat{"CatBackward0", cat_backward};

// Many small parts, as the norms of all gradients, are noted as one call: a copy of each costs more to note
// than to make.
bool joins_many_small(const Tensor& out, size_t count) {
  return count >= 8 && out.numel() <= 64 * static_cast<int64_t>(count);
}

// PyTorch lets an empty one-dimensional tensor stand among tensors of any shape.
bool skipped(const Tensor& t) { return t.ndim() == 1 && t.numel() == 0; }

Tensor cat_impl(TensorList tensors, int64_t dim) {
  WT_CHECK(!tensors.empty(), ValueError, "cat: expected a non-empty list of Tensors");
  const Tensor* model = nullptr;
  PromotionState kinds;
  for (const Tensor& t : tensors) {
    WT_CHECK(t.ndim() > 0, ShapeError, "cat: zero-dimensional tensor cannot be concatenated");
    t.ndim() ? kinds.add_dimensioned(t.dtype()) : kinds.add_zero_dim(t.dtype());
    if (!model || skipped(*model)) model = &t;
  }
  dim = wrap_dim(dim, model->ndim(), "cat");
  Joined joined{dim, {}};
  Shape sizes = model->sizes();
  sizes[dim] = 0;
  for (const Tensor& t : tensors) {
    if (skipped(t) && model->ndim() != 1) {
      joined.lengths.push_back(-1);
      continue;
    }
    bool fits = t.ndim() == model->ndim();
    for (int64_t d = 0; fits && d < t.ndim(); ++d) fits = d == dim || t.sizes()[d] == sizes[d];
    WT_CHECK(fits, ShapeError, "cat: Sizes of tensors must match except in dimension ", dim, ": expected ",
             model->sizes(), " but got ", t.sizes());
    joined.lengths.push_back(t.sizes()[dim]);
    sizes[dim] += t.sizes()[dim];
  }
  MemoryFormat format = suggested_format(*model);
  for (const Tensor& t : tensors)
    if (suggested_format(t) != format) format = MemoryFormat::Contiguous;
  Tensor out = empty_in(sizes, {kinds.result(), model->device()}, format);
  const bool skips = joins_many_small(out, tensors.size()) && out.is_meta();
  int64_t at = 0;
  for (size_t i = 0; i < tensors.size() && !skips; ++i) {
    int64_t n = joined.lengths[i];
    if (n <= 0) continue;
    Shape part = out.sizes();
    part[dim] = n;
    raw_copy(alias(out, part, out.strides(), at * out.strides()[dim]), tensors[i]);
    at += n;
  }
  if (thread_state().grad_mode && any_requires_grad(tensors)) {
    Ref<Node> n = record_list(kCat, tensors);
    n->emplace<Joined>(std::move(joined));
    set_history(out, n);
  }
  return out;
}

Tensor stack_impl(TensorList tensors, int64_t dim) {
  WT_CHECK(!tensors.empty(), ValueError, "stack: expected a non-empty list of Tensors");
  std::vector<Tensor> rows;
  for (const Tensor& t : tensors) {
    WT_CHECK(t.sizes() == tensors[0].sizes(), ShapeError,
             "stack: stack expects each tensor to be equal size, but got ", tensors[0].sizes(),
             " at entry 0 and ", t.sizes(), " at entry ", rows.size());
    rows.push_back(unsqueeze(t, dim));
  }
  return cat(rows, wrap_dim(dim, tensors[0].ndim() + 1, "stack"));
}

constexpr OpFacts kBoth = kFunction | kMethod;

}  // namespace

Tensor contiguous_in(const Tensor& x, MemoryFormat format) {
  if (is_contiguous_in(x, format)) return x;
  return clone_as(x, empty_like_in("contiguous", x, options_of(x), format));
}
Tensor cast(const Tensor& x, DType dtype) {
  return x.dtype() == dtype ? x : to(x, std::nullopt, dtype, false, false);
}

decltype(contiguous) contiguous{"contiguous",
                                contiguous_impl,
                                kMethod | kComplex | kPointwise | kLinear | Aliasing::Layout | kIdempotent,
                                {"input"},
                                "The tensor with its elements in order; itself when they are."};
decltype(clone) clone{"clone",
                      clone_impl,
                      kBoth | kComplex | kPointwise | kLinear | kCopies,
                      {"input"},
                      "A copy with its own memory."};
namespace {
const Arg kFormat{"memory_format", none}, kFormatOnly{"memory_format", none, kKeywordOnly};
const Op<Tensor(const Tensor&, Format)>
    contiguous_format = overload_with(
        contiguous, contiguous_format_impl, {"input", kFormat}, {},
        "The tensor with its elements in the order of memory_format, by default row-major; itself when they "
        "are."),
    clone_format = overload_with(clone, clone_format_impl, {"input", kFormatOnly});
}  // namespace
const Op<Tensor(const Tensor&, const Tensor&)> fill_tensor{"fill",
                                                           filled_tensor_impl,
                                                           kFunction | kComplex,
                                                           {"input", "value"},
                                                           "A tensor of a 0-dim tensor's value."},
    fill_tensor_ =
        in_place_of(fill_tensor, fill_tensor_impl, kBoth, "Fills the tensor with a 0-dim tensor's value.");
const Op<Tensor(const Tensor&, const Scalar&)> fill =
    overload_of(fill_tensor, filled_impl, kPointwise, "A tensor of the input's shape and of one number.");
decltype(fill_) fill_ = overload_of(fill_tensor_, fill_impl, kPointwise, "Fills the tensor with a number.");
decltype(zero_) zero_{
    "zero_", zero_impl, kBoth | kComplex | kPointwise, {{"input", kWritten}}, "Fills the tensor with 0."};
decltype(copy_) copy_{"copy_",
                      copy_impl,
                      kMethod | kMixedDevices | kComplex | kPointwise,
                      {{"input", kWritten}, Arg("src", kReadFirst), {"non_blocking", false}},
                      "Copies src, broadcast and converted, into the tensor."};
const char kToDoc[] =
    "The tensor in another dtype or on another device. A copy with non_blocking between page-locked memory "
    "and "
    "a device goes on while the host does; read a host result after warptape.cuda.synchronize() only.";
// For C++: Python's forms follow.
decltype(to) to{"to",
                to_impl,
                kComplex | Aliasing::Conversion,
                {"input", {"device", none}, {"dtype", none}, {"copy", false}, {"non_blocking", false}},
                kToDoc};
namespace {
const Arg kNonBlocking{"non_blocking", false}, kCopyArg{"copy", false};
const Op<Tensor(const Tensor&, DType, bool, bool, Format)> to_dtype{
    "to",
    to_dtype_impl,
    kMethod | kComplex | kPointwise | kLinear | Aliasing::Conversion,
    {"input", "dtype", kNonBlocking, kCopyArg, kFormatOnly},
    kToDoc};
const auto to_other =
    overload_with(to_dtype, to_other_impl,
                  {"input", {"other", kNoGradient}, kNonBlocking, kCopyArg, kFormatOnly}, kMixedDevices);
const auto to_device =
    overload_with(to_dtype, to_device_impl,
                  {"input", {"device", none}, {"dtype", none}, kNonBlocking, kCopyArg, kFormatOnly});
const Op<Tensor(const Tensor&, const Tensor&)> type_as{
    "type_as",
    type_as_impl,
    kMethod | kComplex | kMixedDevices | Aliasing::Conversion,
    {"input", {"other", kNoGradient}},
    "The tensor in other's dtype and on its device."};
const Op<Tensor(const Tensor&, Format)> cpu{"cpu",
                                            cpu_impl,
                                            kMethod | kComplex | kPointwise | kLinear | Aliasing::Conversion,
                                            {"input", kFormat},
                                            "The tensor in host memory."};
const Op<Tensor(const Tensor&, OptDevice, bool, Format)> cuda{
    "cuda",
    cuda_impl,
    kMethod | kComplex | kPointwise | kLinear | Aliasing::Conversion,
    {"input", {"device", none}, kNonBlocking, kFormat},
    "The tensor on a GPU, the current one by default. DeviceError says what is missing."};
#define WT_CONVERSION(NAME, DTYPE)                                              \
  const Op<Tensor(const Tensor&, Format)> to_##NAME{form_name(#NAME, to_dtype), \
                                                    convert_impl<DType::DTYPE>, \
                                                    to_dtype,                   \
                                                    {"input", kFormat},         \
                                                    "To " #DTYPE "."}
WT_CONVERSION(float, Float32);
WT_CONVERSION(double, Float64);
WT_CONVERSION(half, Float16);
WT_CONVERSION(bfloat16, BFloat16);
WT_CONVERSION(cfloat, Complex64);
WT_CONVERSION(cdouble, Complex128);
WT_CONVERSION(long, Int64);
WT_CONVERSION(int, Int32);
WT_CONVERSION(short, Int16);
WT_CONVERSION(char, Int8);
WT_CONVERSION(byte, UInt8);
WT_CONVERSION(bool, Bool);
#undef WT_CONVERSION
}  // namespace
decltype(cat) cat{"cat",
                  cat_impl,
                  kFunction | kOut | kOutApart | kComplex | kWidest | kLinear | batching::cat,
                  {"tensors", Arg::integer("dim", 0)},
                  "Joins tensors along a dim."};
const Alias concat{"concat", "cat"}, concatenate{"concatenate", "cat"};
decltype(stack) stack{"stack",
                      stack_impl,
                      kFunction | kOut | kOutApart | kComplex | kWidest | kLinear | batching::stack,
                      {"tensors", Arg::integer("dim", 0)},
                      "Joins tensors along a new dim."};

Tensor write_in_place(const char* op, const Tensor& self, const Tensor& result) {
  WT_CHECK(can_cast(result.dtype(), self.dtype()), DtypeError, op, ": result type ", result.dtype(),
           " can't be cast to the desired output type ", self.dtype());
  WT_CHECK(result.sizes() == self.sizes(), ShapeError, op, ": output with shape ", self.sizes(),
           " doesn't match the broadcast shape ", result.sizes());
  return copy_(self, result, false);
}
}  // namespace warptape::ops
