// What a tensor says of itself.
#include "ops/op.h"

namespace warptape::ops {
namespace {

int64_t dim(const Tensor& x) { return x.ndim(); }
int64_t numel(const Tensor& x) { return x.numel(); }
Shape size(const Tensor& x) { return x.sizes(); }
int64_t size_of(const Tensor& x, int64_t d) { return x.size(d); }
int64_t stride_of(const Tensor& x, int64_t d) {
  WT_CHECK(x.ndim() > 0, IndexError, "stride: a 0-dim tensor has no strides");
  return x.stride(d);
}
int64_t element_size(const Tensor& x) { return static_cast<int64_t>(x.itemsize()); }
int64_t storage_offset(const Tensor& x) { return x.offset(); }
int64_t data_ptr(const Tensor& x) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(x.data())); }
bool is_contiguous_impl(const Tensor& x) { return x.is_contiguous(); }
bool is_floating_point(const Tensor& x) { return is_floating(x.dtype()); }
bool is_complex_tensor(const Tensor& x) { return is_complex(x.dtype()); }
bool is_inference(const Tensor& x) { return x->inference; }
Scalar item_impl(const Tensor& x) { return item(x); }
Tensor requires_grad_impl(const Tensor& x, bool value) {
  set_requires_grad(x, value);
  return x;
}
bool is_same_size(const Tensor& a, const Tensor& b) { return a.sizes() == b.sizes(); }

using ToInt = Op<int64_t(const Tensor&)>;
using ToBool = Op<bool(const Tensor&)>;
const ToInt dim_op{"dim", dim, kMethod | kComplex, {"input"}, "Number of dims."},
    ndimension_op{"ndimension", dim, kMethod | kComplex, {"input"}, "Number of dims."},
    numel_op{"numel", numel, kFunction | kMethod | kComplex, {"input"}, "Number of elements."},
    nelement_op{"nelement", numel, kMethod | kComplex, {"input"}, "Number of elements."},
    element_size_op{"element_size", element_size, kMethod | kComplex, {"input"}, "Bytes of one element."},
    storage_offset_op{
        "storage_offset", storage_offset, kMethod | kComplex, {"input"}, "Elements before the first one."},
    data_ptr_op{"data_ptr", data_ptr, kMethod | kComplex, {"input"}, "Address of the first element."};
const Op<Shape(const Tensor&)> size_op{"size", size, kMethod | kComplex, {"input"}, "Sizes."};
const Op<int64_t(const Tensor&, int64_t)> size_of_op{
    "size", size_of, kMethod | kComplex, {"input", "dim"}, "Size of one dim."},
    stride_of_op{
        "_stride", stride_of, kPrivate | kComplex, {"input", "dim"}, "Stride of one dim, in elements."};
const ToBool is_contiguous_op{"_is_contiguous",
                              is_contiguous_impl,
                              kPrivate | kComplex,
                              {"input"},
                              "Whether elements lie in order without gaps."},
    is_floating_op{"is_floating_point",
                   is_floating_point,
                   kFunction | kMethod | kComplex,
                   {"input"},
                   "Whether the dtype is a float."},
    is_complex_op{"is_complex",
                  is_complex_tensor,
                  kFunction | kMethod | kComplex,
                  {"input"},
                  "Whether the dtype is complex."},
    is_inference_op{"is_inference",
                    is_inference,
                    kMethod | kComplex,
                    {"input"},
                    "Whether it was made under inference_mode."};
const Op<Scalar(const Tensor&)> item_op{
    "item", item_impl, kMethod | kComplex, {"input"}, "The one element as a Python number."};
const Op<Tensor(const Tensor&, bool)> requires_grad_op{"requires_grad_",
                                                       requires_grad_impl,
                                                       kMethod | kComplex,
                                                       {"input", {"requires_grad", true}},
                                                       "Sets requires_grad in place."};
const Op<bool(const Tensor&, const Tensor&)> is_same_size_op{"is_same_size",
                                                             is_same_size,
                                                             kFunction | kMethod | kComplex,
                                                             {"input", "other"},
                                                             "Whether the sizes are equal."};

}  // namespace
}  // namespace warptape::ops
