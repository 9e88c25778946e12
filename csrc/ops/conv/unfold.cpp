// unfold: [N, C, H, W] -> [N, C KH KW, L], a column for each of the L windows, by one copy through a view in
// which windows overlap. fold adds the columns up where they came from, one kernel element after the other.
// Both are linear and each is the other's gradient.
#include "ops/conv/unfold.h"

#include "ops/kernel_inputs.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

struct Blocks {
  int64_t batch, channels;
  int64_t in[2], out[2], kernel[2], dilation[2], padding[2], stride[2];

  int64_t taps() const { return kernel[0] * kernel[1]; }
  int64_t count() const { return out[0] * out[1]; }
  Shape padded() const { return Shape{batch, channels, in[0] + 2 * padding[0], in[1] + 2 * padding[1]}; }
  // What kernel elements see of a contiguous padded image: [N, C, KH, KW, OH, OW].
  Tensor windows(const Tensor& image) const {
    const Shape& s = image.strides();
    return alias(
        image, Shape{batch, channels, kernel[0], kernel[1], out[0], out[1]},
        Shape{s[0], s[1], s[2] * dilation[0], s[3] * dilation[1], s[2] * stride[0], s[3] * stride[1]},
        image.offset());
  }
  // The image inside of its padding.
  Tensor inside(const Tensor& image) const {
    const Shape& s = image.strides();
    return alias(image, Shape{batch, channels, in[0], in[1]}, s,
                 image.offset() + padding[0] * s[2] + padding[1] * s[3]);
  }
};

Tensor columns_of(const Tensor& x, const Blocks& b);
Tensor image_of(const Tensor& columns, const Blocks& b);

void unfold_backward(Node& n, Gradients& g) { g.set(0, image_of(g[0], n.data<Blocks>())); }
void fold_backward(Node& n, Gradients& g) { g.set(0, columns_of(g[0], n.data<Blocks>())); }
constexpr NodeType kUnfold{"Im2ColBackward0", unfold_backward}, kFold{"Col2ImBackward0", fold_backward};

Tensor recorded(const NodeType& type, Tensor out, const Tensor& x, const Blocks& b) {
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->emplace<Blocks>(b);
    set_history(out, n);
  }
  return out;
}

Tensor columns_of(const Tensor& x, const Blocks& b) {
  Tensor out = empty(Shape{b.batch, b.channels * b.taps(), b.count()}, options_of(x));
  if (!x.is_meta() && out.numel()) {
    Tensor image = x;
    if (b.padding[0] || b.padding[1]) {
      image = zeros(b.padded(), options_of(x));
      raw_copy(b.inside(image), x);
    }
    Tensor view = b.windows(raw_contiguous(image));
    raw_copy(alias(out, view.sizes(), contiguous_strides(view.sizes()), out.offset()), view);
  }
  return recorded(kUnfold, std::move(out), x, b);
}

Tensor image_of(const Tensor& columns, const Blocks& b) {
  const TensorOptions sums{opmath_dtype(columns.dtype()), columns.device()};  // rounded once
  Tensor image = columns.is_meta() ? empty(b.padded(), sums) : zeros(b.padded(), sums);
  if (!columns.is_meta() && columns.numel()) {
    Tensor to = b.windows(image);
    Tensor dense = raw_contiguous(columns);
    Tensor from = alias(dense, to.sizes(), contiguous_strides(to.sizes()), dense.offset());
    for (int64_t tap = 0; tap < b.taps(); ++tap) {
      auto at = [&](const Tensor& t) {
        const Shape &s = t.sizes(), &st = t.strides();
        return alias(t, Shape{s[0], s[1], s[4], s[5]}, Shape{st[0], st[1], st[4], st[5]},
                     t.offset() + tap / b.kernel[1] * st[2] + tap % b.kernel[1] * st[3]);
      };
      raw_add(at(to), at(to), at(from));
    }
  }
  Tensor out = b.padding[0] || b.padding[1] ? raw_contiguous(b.inside(image)) : image;
  return recorded(kFold, raw_cast(out, columns.dtype()), columns, b);
}

// ---- checks ----

void read(const char* op, const char* what, IntList given, int64_t least, int64_t (&to)[2]) {
  WT_CHECK(given.size() == 1 || given.size() == 2, ShapeError, op, ": expected ", what,
           " to be an integer or 2 of them, got ", AsShape{given});
  for (size_t d = 0; d < 2; ++d) {
    to[d] = given[given.size() == 1 ? 0 : d];
    WT_CHECK(to[d] >= least && to[d] <= INT32_MAX, ShapeError, op, ": ", what,
             least ? " should be greater than zero" : " should be non-negative", ", but got ",
             AsShape{given});
  }
}

Blocks blocks(const char* op, IntList kernel, IntList dilation, IntList padding, IntList stride) {
  Blocks b{};
  read(op, "kernel_size", kernel, 1, b.kernel), read(op, "dilation", dilation, 1, b.dilation);
  read(op, "padding", padding, 0, b.padding), read(op, "stride", stride, 1, b.stride);
  return b;
}

void count_windows(const char* op, Blocks& b) {
  for (int d = 0; d < 2; ++d) {
    b.out[d] = (b.in[d] + 2 * b.padding[d] - b.dilation[d] * (b.kernel[d] - 1) - 1) / b.stride[d] + 1;
    const bool fits = b.in[d] + 2 * b.padding[d] >= b.dilation[d] * (b.kernel[d] - 1) + 1;
    WT_CHECK(fits, ShapeError, op, ": for images of (", b.in[0], ", ", b.in[1], "), kernel_size (",
             b.kernel[0], ", ", b.kernel[1], "), dilation (", b.dilation[0], ", ", b.dilation[1],
             ") and padding (", b.padding[0], ", ", b.padding[1],
             ") there is no sliding block: its components must be at least one");
  }
}

Tensor unfold_impl(const Tensor& x, IntList kernel, IntList dilation, IntList padding, IntList stride) {
  const char* expected = "unfold: expected 3D or 4D (batch mode) input, got ";
  WT_CHECK(x.ndim() > 2, IndexError, expected, x);
  WT_CHECK(x.ndim() < 5, ShapeError, expected, x);
  if (x.ndim() == 3) return squeeze_dim(unfold_impl(unsqueeze(x, 0), kernel, dilation, padding, stride), 0);
  if (x.dtype() != DType::Bool && !is_complex(x.dtype())) check_floating("unfold", x);
  Blocks b = blocks("unfold", kernel, dilation, padding, stride);
  b.batch = x.sizes()[0], b.channels = x.sizes()[1], b.in[0] = x.sizes()[2], b.in[1] = x.sizes()[3];
  WT_CHECK(b.channels && b.in[0] && b.in[1], ShapeError,
           "unfold: expected an input whose dims but the batch's are not empty, got ", x);
  count_windows("unfold", b);
  return columns_of(x, b);
}

Tensor fold_impl(const Tensor& x, IntList output_size, IntList kernel, IntList dilation, IntList padding,
                 IntList stride) {
  WT_CHECK(x.ndim() == 2 || x.ndim() == 3, ShapeError, "fold: expected 2D or 3D (batch mode) input, got ", x);
  if (x.ndim() == 2)
    return squeeze_dim(fold_impl(unsqueeze(x, 0), output_size, kernel, dilation, padding, stride), 0);
  check_floating("fold", x);
  Blocks b = blocks("fold", kernel, dilation, padding, stride);
  read("fold", "output_size", output_size, 1, b.in);
  b.batch = x.sizes()[0], b.channels = x.sizes()[1] / b.taps();
  WT_CHECK(
      x.sizes()[1] && x.sizes()[1] % b.taps() == 0, ShapeError,
      "fold: expected size of input's dimension 1 to be divisible by the product of kernel_size, but got "
      "input.size(1)=",
      x.sizes()[1], " and kernel_size=(", b.kernel[0], ", ", b.kernel[1], ")");
  count_windows("fold", b);
  WT_CHECK(x.sizes()[2] == b.count(), ShapeError, "fold: given output_size=(", b.in[0], ", ", b.in[1],
           "), expected size of input's dimension 2 to match the calculated number of sliding blocks ",
           b.out[0], " * ", b.out[1], " = ", b.count(), ", but got input.size(2)=", x.sizes()[2]);
  return image_of(x, b);
}

const Arg kDilation{"dilation", {1}}, kPadding{"padding", {0}}, kStride{"stride", {1}};

}  // namespace

decltype(unfold_columns) unfold_columns{
    "unfold",
    unfold_impl,
    kNN | kComplex | kAlongDims | kLinear,
    {"input", "kernel_size", kDilation, kPadding, kStride},
    "[N, C, H, W] or [C, H, W] -> [N, C KH KW, L]: the L windows of an image as columns."};
decltype(fold_columns) fold_columns{
    "fold",
    fold_impl,
    kNN,
    {"input", "output_size", "kernel_size", kDilation, kPadding, kStride},
    "[N, C KH KW, L] -> [N, C, *output_size]: columns added up where unfold takes them from."};

}  // namespace warptape::ops
