// Moves between channels and space. Legend: C channels, H and W space, r the factor, g groups.
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

// The sizes before the last three, then `rest`.
Shape batched(const Tensor& x, std::initializer_list<int64_t> rest) {
  Shape out(x.sizes().begin(), x.sizes().end() - 3);
  for (int64_t n : rest) out.push_back(n);
  return out;
}

// New memory also where the elements already lie in order, as in PyTorch.
Tensor in_layout_of(const Tensor& x, const Tensor& out) {
  return contiguous_in(&out.storage() == &x.storage() ? clone(out) : out, suggested_format(x));
}

// x's dims before the last `order.size()` as they are, those in the given order.
Tensor permute_last(const Tensor& x, std::initializer_list<int64_t> order) {
  const int64_t before = x.ndim() - static_cast<int64_t>(order.size());
  Shape dims;
  for (int64_t d = 0; d < before; ++d) dims.push_back(d);
  for (int64_t d : order) dims.push_back(before + d);
  return permute(x, dims);
}

void check_image(const char* op, const Tensor& x, const char* factor, int64_t r) {
  WT_CHECK(x.ndim() >= 3, ShapeError, op, " expects input to have at least 3 dimensions, but got input with ",
           x.ndim(), " dimension(s)");
  WT_CHECK(r > 0, ShapeError, op, " expects a positive ", factor, ", but got ", r);
}

Tensor pixel_shuffle_impl(const Tensor& x, int64_t r) {
  check_image("pixel_shuffle", x, "upscale_factor", r);
  const int64_t nd = x.ndim(), c = x.sizes()[nd - 3], h = x.sizes()[nd - 2], w = x.sizes()[nd - 1];
  WT_CHECK(c % (r * r) == 0, ShapeError,
           "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
           "upscale_factor, but input.size(-3)=",
           c, " is not divisible by ", r * r);
  Tensor blocks = permute_last(reshape(x, batched(x, {c / (r * r), r, r, h, w})), {0, 3, 1, 4, 2});
  return in_layout_of(x, reshape(blocks, batched(x, {c / (r * r), h * r, w * r})));
}

Tensor pixel_unshuffle_impl(const Tensor& x, int64_t r) {
  check_image("pixel_unshuffle", x, "downscale_factor", r);
  const int64_t nd = x.ndim(), c = x.sizes()[nd - 3], h = x.sizes()[nd - 2], w = x.sizes()[nd - 1];
  for (auto [name, dim, size] : {std::tuple{"height", -2, h}, std::tuple{"width", -1, w}})
    WT_CHECK(size % r == 0, ShapeError, "pixel_unshuffle expects ", name,
             " to be divisible by downscale_factor, but input.size(", dim, ")=", size,
             " is not divisible by ", r);
  if (x.numel() == 0) return clone(x);  // of its own sizes, as PyTorch's
  Tensor blocks = permute_last(reshape(x, batched(x, {c, h / r, r, w / r, r})), {0, 2, 4, 1, 3});
  return in_layout_of(x, reshape(blocks, batched(x, {c * r * r, h / r, w / r})));
}

Tensor channel_shuffle_impl(const Tensor& x, int64_t groups) {
  WT_CHECK(x.ndim() > 2, ShapeError, "channel_shuffle expects input with > 2 dims, but got input with sizes ",
           x.sizes());
  WT_CHECK(
      groups > 0, ShapeError,
      "channel_shuffle: Number of groups to divide channels in must be positive. Value of groups:", groups);
  const int64_t n = x.sizes()[0], c = x.sizes()[1];
  WT_CHECK(c % groups == 0, ShapeError,
           "channel_shuffle: Number of channels must be divisible by groups. Got ", c, " channels and ",
           groups, " groups.");
  const int64_t area = numel_of(IntList(x.sizes()).subspan(2));
  Tensor blocks = reshape(x, Shape{n, groups, c / groups, area});
  return contiguous_in(reshape(transpose(blocks, 1, 2), x.sizes()), suggested_format(x));
}

constexpr OpFacts kPlaces = kFunction | kNN | kComplex;
using ShuffleOp = Op<Tensor(const Tensor&, int64_t)>;
const ShuffleOp pixel_shuffle{"pixel_shuffle",
                              pixel_shuffle_impl,
                              kPlaces,
                              {"input", "upscale_factor"},
                              "[*, C r^2, H, W] -> [*, C, H r, W r]."},
    pixel_unshuffle{"pixel_unshuffle",
                    pixel_unshuffle_impl,
                    kPlaces,
                    {"input", "downscale_factor"},
                    "[*, C, H r, W r] -> [*, C r^2, H, W]."},
    channel_shuffle{"channel_shuffle",
                    channel_shuffle_impl,
                    kPlaces,
                    {"input", "groups"},
                    "[N, C, *] -> the same, the channels of the groups interleaved."};
const Alias native_channel_shuffle{"native_channel_shuffle", "channel_shuffle"};

}  // namespace
}  // namespace warptape::ops
