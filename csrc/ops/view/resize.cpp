// Other sizes for the same tensor, and the sums that undo broadcasting.
#include "ops/factory/factory.h"
#include "ops/reduce/reduce.h"
#include "ops/view/view.h"
#include "tensor/before_write.h"
#include "tensor/memory_format.h"

namespace warptape::ops {
namespace {

using Format = std::optional<std::string_view>;

// As many of the storage's elements as before stay, in the order of memory; new ones are not set.
Tensor resized(const char* op, const Tensor& self, const Shape& sizes, std::optional<MemoryFormat> format) {
  WT_CHECK(!requires_grad(self), Error, op, ": cannot resize variables that require grad");
  if (sizes == self.sizes() && !format) return self;
  numel_of(sizes, op);  // refuses what would overflow in the strides
  before_write(self);
  const size_t before = self.storage().bytes();
  raw_resize(op, self, sizes, strides_in(op, sizes, format.value_or(MemoryFormat::Contiguous)));
  if (rank_context().deterministic_algorithms && self.storage().bytes() > before) {
    const auto old = static_cast<int64_t>(before / self.itemsize());
    const Shape added{static_cast<int64_t>(self.storage().bytes() / self.itemsize()) - old};
    fill_unset(
        Tensor(Ref<TensorImpl>::adopt(new TensorImpl(self->storage, self.dtype(), added, Shape{1}, old))));
  }
  self.bump_version();
  return self;
}
Tensor resize_impl(const Tensor& self, IntList size, Format format) {
  std::optional<MemoryFormat> order;
  if (format) order = memory_format("resize_", format, MemoryFormat::Contiguous);
  return resized("resize_", self, Shape(size.begin(), size.end()), order);
}
Tensor resize_as_impl(const Tensor& self, const Tensor& other, Format format) {
  std::optional<MemoryFormat> order;
  if (format) order = memory_format("resize_as_", format, MemoryFormat::Preserve);
  if (order == MemoryFormat::Preserve) order = suggested_format(other);
  return resized("resize_as_", self, other.sizes(), order);
}

Tensor sum_to_size_impl(const Tensor& x, IntList size) {
  const Shape sizes(size.begin(), size.end());
  const auto extra = x.ndim() - static_cast<int64_t>(sizes.size());
  bool fits = extra >= 0;
  for (int64_t d = 0; fits && d < static_cast<int64_t>(sizes.size()); ++d)
    fits = sizes[d] == 1 || sizes[d] == x.sizes()[extra + d];
  WT_CHECK(fits, ShapeError, "sum_to_size: size {", sizes, "} is not expandable to size {", x.sizes(), "}.");
  if (sizes.empty()) return sum(x, std::nullopt, false, std::nullopt);
  Shape reduced;
  for (int64_t d = 0; d < x.ndim(); ++d)
    if (d < extra || sizes[d - extra] != x.sizes()[d]) reduced.push_back(d);
  return reduced.empty() ? x : reshape(sum(x, OptDims(reduced), true, std::nullopt), sizes);
}

const Arg kFormat{"memory_format", none, kKeywordOnly};
const Op<Tensor(const Tensor&, IntList, Format)> resize_{
    "resize_",
    resize_impl,
    kMethod | kComplex,
    {{"input", kWritten}, {"size", kVarArgs}, kFormat},
    "Takes on other sizes, with the elements in the order of memory; new ones are not set."};
}  // namespace

decltype(resize_as_) resize_as_{"resize_as_",
                                resize_as_impl,
                                kFunction | kMethod | kComplex | kMixedDevices,
                                {{"input", kWritten}, "the_template", kFormat},
                                "resize_ to the sizes of another tensor."};
namespace {
const Op<Tensor(const Tensor&, IntList)> sum_to_size{"sum_to_size",
                                                     sum_to_size_impl,
                                                     kMethod | kComplex | Aliasing::Argument,
                                                     {"input", {"size", kVarArgs}},
                                                     "The sums that undo broadcasting from these sizes."};

}  // namespace
}  // namespace warptape::ops
