#include "ops/nn/softmax.h"

#include "kernels/nn/softmax.h"
#include "ops/kernel_inputs.h"
#include "tensor/run_kernel.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::SoftmaxFn> softmax_slot{"softmax"}, log_softmax_slot{"log_softmax"};
kernels::Slot<kernels::SoftmaxBackwardFn> softmax_backward_slot{"softmax_backward"},
    log_softmax_backward_slot{"log_softmax_backward"};

// The tensor as [outer, n, inner] around `dim`.
struct Split {
  int64_t outer = 1, n = 1, inner = 1;
  Split(const Shape& sizes, int64_t dim) {
    for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d)
      (d < dim ? outer : d == dim ? n : inner) *= sizes[d];
  }
};

using kernels::View;
template <bool kLog>
constexpr KernelInfo kForward{kLog ? "log_softmax" : "softmax", 0b1, 0b1};
template <bool kLog>
constexpr KernelInfo kBackward{kLog ? "log_softmax_backward" : "softmax_backward", 0b11, 0b1};

template <bool kLog>
Tensor fused_backward(const Tensor& grad, const Tensor& out, int64_t dim) {
  Tensor g = raw_contiguous(grad), y = raw_contiguous(out);
  Tensor dx = empty(y.sizes(), options_of(y));
  if (dx.numel()) {
    const Split s(y.sizes(), dim);
    run_kernel(kBackward<kLog>, {g, y}, {dx}, s.outer,
               [n = s.n, inner = s.inner](const auto& ctx, const View* in, const View* out, int64_t rows) {
                 (kLog ? log_softmax_backward_slot : softmax_backward_slot)(ctx, out[0], in[0], in[1], rows,
                                                                            n, inner);
               });
  }
  return dx;
}

template <bool kLog>
void backward(Node& n, Gradients& g) {
  Tensor y = n.saved(0);
  const int64_t dim = n.data<int64_t>();
  if (!needs_grad(g[0], y)) return g.set(0, fused_backward<kLog>(g[0], y, dim));
  Shape kept = y.sizes();
  if (!kept.empty()) kept[dim] = 1;
  if constexpr (kLog)
    // softmax(log_softmax(x)) is softmax(x)
    g.set(0, g[0] - softmax(y, dim, std::nullopt) * sum_to(g[0], kept));
  else
    g.set(0, y * (g[0] - sum_to(g[0] * y, kept)));
}
constexpr NodeType kSoftmax{"SoftmaxBackward0", backward<false>},
    kLogSoftmax{"LogSoftmaxBackward0", backward<true>};

template <bool kLog>
Tensor forward(const Tensor& input, int64_t dim, std::optional<DType> dtype) {
  constexpr const char* op = kLog ? "log_softmax" : "softmax";
  Tensor x = dtype ? tape_cast(input, *dtype) : input;
  check_floating(op, x);
  dim = wrap_dim(dim, x.ndim(), op);
  Tensor from = raw_contiguous(x);
  Tensor out = empty(x.sizes(), options_of(x));
  if (out.numel()) {
    const Split s(x.sizes(), dim);
    run_kernel(kForward<kLog>, {from}, {out}, s.outer,
               [n = s.n, inner = s.inner](const auto& ctx, const View* in, const View* to, int64_t rows) {
                 (kLog ? log_softmax_slot : softmax_slot)(ctx, to[0], in[0], rows, n, inner);
               });
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(kLog ? kLogSoftmax : kSoftmax, x);
    n->emplace<int64_t>(dim);
    set_history(out, n);
    n->save_output(out);
  }
  return out;
}

// torch.nn.functional's: dim may be left out, and there is an argument for the depth of a warning.
template <bool kLog>
Tensor functional(const Tensor& input, std::optional<int64_t> dim, int64_t, std::optional<DType> dtype) {
  const int64_t nd = input.ndim();
  if (!dim)
    warn(message("Implicit dimension choice for ", kLog ? "log_softmax" : "softmax",
                 " has been deprecated. Change the call to include dim=X as an argument."));
  const int64_t implied = nd == 0 || nd == 1 || nd == 3 ? 0 : 1;
  return (kLog ? log_softmax : softmax)(input, dim.value_or(implied), dtype);
}

using FunctionalOp = Op<Tensor(const Tensor&, std::optional<int64_t>, int64_t, std::optional<DType>)>;
const FunctionalOp nn_softmax{
    "softmax",
    functional<false>,
    kNN | kComplex | kFloat32Cuda | kAlongDims,
    {"input", {"dim", none, kDimIndex}, Arg::integer("_stacklevel", 3), {"dtype", none}},
    "exp(input) / sum(exp(input)) over dim."};
const FunctionalOp nn_log_softmax{
    "log_softmax",
    functional<true>,
    kNN | kComplex | kFloat32Cuda | kAlongDims,
    {"input", {"dim", none, kDimIndex}, Arg::integer("_stacklevel", 3), {"dtype", none}},
    "log(softmax(input, dim)), computed without overflow."};

}  // namespace

decltype(softmax) softmax{"softmax",
                          forward<false>,
                          kFunction | kMethod | kComplex | kFloat32Cuda | kOut | kOutExact | kAlongDims,
                          {"input", {"dim", kDimIndex}, {"dtype", none}},
                          "exp(input) / sum(exp(input)) over dim; input is converted to dtype first."};
decltype(log_softmax) log_softmax{
    "log_softmax",
    forward<true>,
    kFunction | kMethod | kComplex | kFloat32Cuda | kOut | kOutExact | kAlongDims,
    {"input", {"dim", kDimIndex}, {"dtype", none}},
    "log(softmax(input, dim)), computed without overflow."};

}  // namespace warptape::ops
