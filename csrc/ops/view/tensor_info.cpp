// What tensors and dtypes say of themselves.
#include "autograd/recording.h"
#include "op/forms.h"
#include "op/op.h"
#include "tensor/memory_format.h"

namespace warptape::ops {
namespace {

int64_t dim(const Tensor& x) { return x.ndim(); }
int64_t numel(const Tensor& x) { return x.numel(); }
Shape size(const Tensor& x) { return x.sizes(); }
int64_t size_of(const Tensor& x, int64_t d) { return x.size(d); }
std::vector<int64_t> stride(const Tensor& x) { return {x.strides().begin(), x.strides().end()}; }
int64_t stride_of(const Tensor& x, int64_t d) {
  WT_CHECK(x.ndim() > 0, IndexError, "stride: Dimension specified as ", d, " but tensor has no dimensions");
  return x.strides()[wrap_dim(d, x.ndim(), "stride")];
}
int64_t get_device(const Tensor& x) { return x.device().is_accelerator() ? x.device().index : -1; }
int64_t element_size(const Tensor& x) { return static_cast<int64_t>(x.itemsize()); }
int64_t storage_offset(const Tensor& x) { return x.offset(); }
int64_t data_ptr(const Tensor& x) {
  return x.numel() ? static_cast<int64_t>(reinterpret_cast<intptr_t>(x.data())) : 0;
}
bool is_contiguous_impl(const Tensor& x, std::optional<std::string_view> format) {
  return is_contiguous_in(x, memory_format("is_contiguous", format, MemoryFormat::Contiguous));
}
bool is_signed(const Tensor& x) { return has_sign(x.dtype()); }
bool is_nonzero(const Tensor& x) {
  WT_CHECK(x.numel() > 0, ShapeError, "is_nonzero: Boolean value of Tensor with no values is ambiguous");
  WT_CHECK(x.numel() == 1, ShapeError,
           "is_nonzero: Boolean value of Tensor with more than one value is ambiguous: ", x);
  return item(x).to_bool();
}
bool is_floating_point(const Tensor& x) { return is_floating(x.dtype()); }
bool is_complex_tensor(const Tensor& x) { return is_complex(x.dtype()); }
bool is_inference(const Tensor& x) { return x->inference; }
Scalar item_impl(const Tensor& x) { return item(x); }
Tensor requires_grad_impl(const Tensor& x, bool value) {
  WT_CHECK(!value || (!is_opaque(x) && !(recording_transforms() && requires_grad(x))), Error,
           "Tensor.requires_grad_(): called inside of a function that torch.func transforms, whose variables "
           "are the transform's own; call it outside, or take torch.func.grad, vjp or jacrev");
  set_requires_grad(x, value);
  return x;
}
bool is_same_size(const Tensor& a, const Tensor& b) { return a.sizes() == b.sizes(); }

// What a user's own function made of `of` without a tape: it takes part in gradients, and whoever asks for
// one through it is told so.
void refuse_derivative(Node& n, Gradients&) {
  throw NotImplementedError(message(
      n.data<std::string>(),
      ": a graph has no part of the backward of an autograd.Function. Write the function with ops that "
      "have gradients, or as a torch.library.custom_op with register_autograd"));
}
constexpr NodeType kWithoutDerivative{"WithoutDerivativeBackward0", refuse_derivative};

Tensor without_derivative(const Tensor& x, TensorList of, std::string_view name) {
  Tensor out = alias(x);
  if (!thread_state().grad_mode || !any_requires_grad(of)) return out;
  Ref<Node> n = record_list(kWithoutDerivative, of);
  n->emplace<std::string>(name);
  set_history(out, n);
  return out;
}

// ---- promotion ----

void add_operand(PromotionState& state, const Tensor& t) {
  t.ndim() ? state.add_dimensioned(t.dtype()) : state.add_zero_dim(t.dtype());
}
void add_operand(PromotionState& state, const Scalar& s) { state.add_scalar(s.dtype()); }
template <class A, class B>
DType result_type(const A& a, const B& b) {
  PromotionState state;
  add_operand(state, a);
  add_operand(state, b);
  return state.result();
}
DType promote_types(DType a, DType b) { return promote(a, b); }
bool can_cast_impl(DType from, DType to) { return can_cast(from, to); }

using ToInt = Op<int64_t(const Tensor&)>;
using ToBool = Op<bool(const Tensor&)>;
const ToInt dim_op{"dim", dim, kMethod | kComplex | kTellsDims, {"input"}, "Number of dims."},
    numel_op{"numel", numel, kFunction | kMethod | kComplex, {"input"}, "Number of elements."},
    element_size_op{
        "element_size", element_size, kMethod | kComplex | kTellsNoSizes, {"input"}, "Bytes of one element."},
    storage_offset_op{
        "storage_offset", storage_offset, kMethod | kComplex, {"input"}, "Elements before the first one."},
    data_ptr_op{
        "data_ptr", data_ptr, kMethod | kComplex | kTellsAddress, {"input"}, "Address of the first element."};
const Alias ndimension{"ndimension", "dim"}, nelement{"nelement", "numel", kMethod};
const Op<Shape(const Tensor&)> size_op{"size", size, kMethod | kComplex, {"input"}, "Sizes."};
const Op<std::vector<int64_t>(const Tensor&)> stride_op{
    "stride", stride, kMethod | kComplex, {"input"}, "Strides in elements."};
const Op<int64_t(const Tensor&, int64_t)> size_of_op = overload_with(size_op, size_of, {"input", "dim"}, {},
                                                                     "Size of one dim."),
                                          stride_of_op = overload_with(stride_op, stride_of, {"input", "dim"},
                                                                       {}, "Stride of one dim, in elements.");
const ToInt get_device_op{"get_device",
                          get_device,
                          kFunction | kMethod | kComplex | kTellsNoSizes,
                          {"input"},
                          "The number of the tensor's GPU, -1 on the CPU."};
const Op<bool(const Tensor&, std::optional<std::string_view>)> is_contiguous_op{
    "is_contiguous",
    is_contiguous_impl,
    kMethod | kComplex | kTellsNoSizes,
    {"input", {"memory_format", none}},
    "Whether elements lie without gaps in the order of memory_format, by default row-major."};
const ToBool is_signed_op{"is_signed",
                          is_signed,
                          kFunction | kMethod | kComplex | kTellsNoSizes,
                          {"input"},
                          "Whether the dtype has negative numbers."},
    is_nonzero_op{"is_nonzero",
                  is_nonzero,
                  kFunction | kMethod | kComplex,
                  {"input"},
                  "Whether the only element is not 0."},
    is_floating_op{"is_floating_point",
                   is_floating_point,
                   kFunction | kMethod | kComplex | kTellsNoSizes,
                   {"input"},
                   "Whether the dtype is a float."},
    is_complex_op{"is_complex",
                  is_complex_tensor,
                  kFunction | kMethod | kComplex | kTellsNoSizes,
                  {"input"},
                  "Whether the dtype is complex."},
    is_inference_op{"is_inference",
                    is_inference,
                    kMethod | kComplex | kTellsNoSizes,
                    {"input"},
                    "Whether it was made under inference_mode."};
const Op<Scalar(const Tensor&)> item_op{
    "item", item_impl, kMethod | kComplex, {"input"}, "The one element as a Python number."};
const Op<Tensor(const Tensor&, bool)> requires_grad_op{"requires_grad_",
                                                       requires_grad_impl,
                                                       kMethod | kComplex | Aliasing::Argument | kSetsFlags,
                                                       {"input", {"requires_grad", true}},
                                                       "Sets requires_grad in place."};
const Op<bool(const Tensor&, const Tensor&)> is_same_size_op{"is_same_size",
                                                             is_same_size,
                                                             kFunction | kMethod | kComplex,
                                                             {"input", "other"},
                                                             "Whether the sizes are equal."};

const Op<Tensor(const Tensor&, TensorList, std::string_view)> without_derivative_op{
    "_without_derivative",
    without_derivative,
    kPrivate | kComplex | Aliasing::View | kChecked,
    {"input", "of", "name"},
    "The same memory, as a result of the tensors `of` whose gradient a graph does not have."};

const char kResultDoc[] = "The dtype of an arithmetic op on two tensors or numbers.";
const Op<DType(const Tensor&, const Tensor&)> result_type_tt{
    "result_type",
    result_type<Tensor, Tensor>,
    kFunction | kComplex | kMixedDevices | kTellsNoSizes,
    {"tensor1", "tensor2"},
    kResultDoc};
const Op<DType(const Tensor&, const Scalar&)> result_type_ts{"result_type",
                                                             result_type<Tensor, Scalar>,
                                                             kFunction | kComplex | kTellsNoSizes,
                                                             {"tensor", "other"},
                                                             kResultDoc};
const auto result_type_st = overload_with(result_type_ts, result_type<Scalar, Tensor>, {"scalar", "tensor"});
const auto result_type_ss =
    overload_with(result_type_ts, result_type<Scalar, Scalar>, {"scalar1", "scalar2"});
const Op<DType(DType, DType)> promote_types_op{"promote_types",
                                               promote_types,
                                               kFunction | kComplex | kTellsNoSizes,
                                               {"type1", "type2"},
                                               "The smallest dtype that both convert to."};
const Op<bool(DType, DType)> can_cast_op{"can_cast",
                                         can_cast_impl,
                                         kFunction | kComplex | kTellsNoSizes,
                                         {"from_", "to"},
                                         "Whether a result of one dtype may be stored in another."};

}  // namespace
}  // namespace warptape::ops
