// Images read at any places: grid_sample and the grids of affine maps. Legend: N batch, C channels, D depth,
// H height, W width (out: of the result).
#include <algorithm>
#include <cmath>

#include "kernels/nn/grid.h"
#include "ops/index/gather.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/matmul.h"
#include "ops/recompute.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

using Mode = kernels::GridMode;
using Padding = kernels::GridPadding;

kernels::Slot<kernels::GridSampleFn> sample_slot{"grid_sample"};
kernels::Slot<kernels::GridInputFn> input_slot{"grid_sample_input"};
kernels::Slot<kernels::GridGridFn> grid_slot{"grid_sample_grid"};

struct Sampling {
  Mode mode;
  Padding padding;
  bool align;
};

// ---- composed: what second gradients and devices without kernels use ------------------------------------

// Positions in [-1, 1] -> in pixels: -1 and 1 are the centres of the outer pixels if `align`, else their
// outer edges.
Tensor pixels(const Tensor& grid, int64_t size, bool align) {
  const auto n = static_cast<double>(size);
  return align ? (grid + 1) * ((n - 1) / 2) : ((grid + 1) * n - 1) / 2;
}

// x mirrored at both ends of [low, high] until it lies inside.
Tensor reflected(const Tensor& x, double low, double high) {
  const double span = high - low;
  if (span <= 0) return x * 0;
  Tensor away = abs(x - low), turns = floor(detach(away) / span), rest = away - turns * span;
  return where(eq_ts(remainder_ts(turns, 2), 0), rest + low, high - rest);
}

// Positions in pixels as the padding mode maps them into the image, NaN to 0; unchanged for zeros.
Tensor inside(const Tensor& x, int64_t size, const Sampling& s) {
  if (s.padding == Padding::Zeros) return x;
  const auto n = static_cast<double>(size);
  Tensor at = x;
  if (s.padding == Padding::Reflection) at = s.align ? reflected(x, 0, n - 1) : reflected(x, -0.5, n - 0.5);
  // As in PyTorch, no gradient passes on the border.
  const Tensor still = detach(at), within = logical_and(gt_ts(still, 0), lt_ts(still, size - 1));
  return where(within, at, clamp(where_st(isnan(still), Scalar(0.0), still), Scalar(0), Scalar(size - 1)));
}

// A whole position and its weight; no weight is 1.
struct Tap {
  Tensor at, weight;
};

// Weights of the four pixels around a position, t past the second ("Cubic Convolution Interpolation for
// Digital Image Processing", equation 15, a = -0.75).
std::vector<Tap> cubic_taps(const Tensor& x, int64_t size, const Sampling& s) {
  const double a = -0.75;
  auto near = [&](const Tensor& d) { return ((d * (a + 2) - (a + 3)) * d) * d + 1; };
  auto far = [&](const Tensor& d) { return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a; };
  Tensor low = floor(detach(x)), t = x - low;
  std::vector<Tap> taps{{low - 1, far(t + 1)}, {low, near(t)}, {low + 1, near(1 - t)}, {low + 2, far(2 - t)}};
  for (Tap& tap : taps) tap.at = inside(tap.at, size, s);
  return taps;
}

// What counts along one dim.
std::vector<Tap> taps_of(const Tensor& x, int64_t size, const Sampling& s) {
  if (s.mode == Mode::Bicubic) return cubic_taps(x, size, s);
  Tensor at = inside(x, size, s);
  if (s.mode == Mode::Nearest) return {{round(detach(at), 0), Tensor()}};
  Tensor low = floor(detach(at));
  return {{low, low + 1 - at}, {low + 1, at - low}};
}

// flat [N, C, D * H * W] at whole positions [N, *out] per dim; zeros for those outside.
Tensor read(const Tensor& flat, const std::vector<Tensor>& places, IntList sizes) {
  Tensor index, valid;
  for (size_t d = 0; d < places.size(); ++d) {
    Tensor ok = logical_and(ge_ts(places[d], 0), lt_ts(places[d], sizes[d]));
    Tensor at = cast(where_ts(ok, places[d], Scalar(0.0)), DType::Int64);
    valid = d ? logical_and(valid, ok) : ok;
    index = d ? index * sizes[d] + at : at;
  }
  const int64_t n = flat.sizes()[0], c = flat.sizes()[1];
  Shape out{n, c};
  out.append(places[0].sizes().begin() + 1, places[0].sizes().end());
  Tensor where_to =
      expand(unsqueeze(flatten(index, 1, -1), 1), Shape{n, c, index.numel() / std::max<int64_t>(n, 1)});
  return where_ts(unsqueeze(valid, 1), reshape(gather(flat, 2, where_to, false), out), Scalar(0.0));
}

void check_grid(const Tensor& x, const Tensor& grid, Mode mode) {
  const char* op = "grid_sampler(): expected";
  const int64_t nd = x.ndim();
  WT_CHECK(x.device() == grid.device(), DeviceError, op, " input and grid to be on same device, got ",
           x.device(), " and ", grid.device());
  WT_CHECK(x.dtype() == grid.dtype(), DtypeError, op, " input and grid to have same dtype, but input has ",
           x.dtype(), " and grid has ", grid.dtype());
  check_floating("grid_sampler()", x);
  const std::string sizes =
      message("but got input with sizes ", x.sizes(), " and grid with sizes ", grid.sizes());
  WT_CHECK((nd == 4 || nd == 5) && grid.ndim() == nd, ShapeError, op,
           " 4D or 5D input and grid with same number of dimensions, ", sizes);
  WT_CHECK(x.sizes()[0] == grid.sizes()[0], ShapeError, op, " grid and input to have same batch size, ",
           sizes);
  WT_CHECK(grid.sizes().back() == nd - 2, ShapeError, op, " grid to have size ", nd - 2,
           " in last dimension, ", sizes);
  WT_CHECK(std::ranges::all_of(IntList(x.sizes()).subspan(2), [](int64_t n) { return n > 0; }), ShapeError,
           op, " input to have non-empty spatial dimensions, ", sizes);
  WT_CHECK(mode != Mode::Bicubic || nd == 4, ShapeError,
           "grid_sampler(): bicubic interpolation only supports 4D input");
}

Tensor composed_sample(const Tensor& x, const Tensor& grid, const Sampling& s) {
  const IntList sizes = IntList(x.sizes()).subspan(2);
  const auto n = static_cast<int64_t>(sizes.size());
  Tensor flat = flatten(x, 2, -1);
  std::vector<std::vector<Tap>> taps;
  for (int64_t d = 0; d < n; ++d)
    taps.push_back(taps_of(pixels(select(grid, -1, n - 1 - d), sizes[d], s.align), sizes[d], s));
  const size_t each = taps[0].size();
  size_t corners = 1;
  for (int64_t d = 0; d < n; ++d) corners *= each;
  Tensor total;
  for (size_t corner = 0; corner < corners; ++corner) {
    std::vector<Tensor> places;
    Tensor weight;
    size_t rest = corner;
    for (const auto& dim : taps) {
      const Tap& tap = dim[rest % each];
      rest /= each;
      places.push_back(tap.at);
      if (tap.weight.defined()) weight = weight.defined() ? weight * tap.weight : tap.weight;
    }
    Tensor part = read(flat, places, sizes);
    if (weight.defined()) part = part * unsqueeze(weight, 1);
    total = total.defined() ? total + part : part;
  }
  // The gradient of a nearest place is 0.
  if (s.mode == Mode::Nearest && needs_grad(grid))
    total = total +
            unsqueeze(
                where_ts(zeros(Shape{}, {DType::Bool, grid.device()}), select(grid, -1, 0), Scalar(0.0)), 1);
  return total;
}

// ---- fused ---------------------------------------------------------------------------------------------

void sample_backward(Node& n, Gradients& g) {
  const auto& p = n.data<kernels::GridPlan>();
  const Tensor saved[]{n.saved(0), n.saved(1)};
  const auto& [x, grid] = saved;
  if (needs_grad(g[0], x, grid))
    return recomputed_backward(saved, g, [&](std::span<const Tensor> in) {
      return composed_sample(in[0], in[1], {p.mode, p.padding, p.align});
    });
  const Tensor up = raw_contiguous(g[0]);
  const bool none = up.is_meta() || !up.numel();
  const auto gradient_of = [&](const Tensor& t) {
    return none && !t.is_meta() ? zeros(t.sizes(), options_of(t)) : empty(t.sizes(), options_of(t));
  };
  const Launch launch(up.device());
  if (g.wants(0)) {
    Tensor dx = gradient_of(x);
    if (!none) input_slot(launch, p, dx.data(), up.data(), grid.data());
    g.set(0, std::move(dx));
  }
  if (g.wants(1)) {
    const bool constant = p.mode == Mode::Nearest && !up.is_meta();
    Tensor dgrid = constant ? zeros(grid.sizes(), options_of(grid)) : gradient_of(grid);
    if (!none && !constant) grid_slot(launch, p, dgrid.data(), up.data(), x.data(), grid.data());
    g.set(1, std::move(dgrid));
  }
}
constexpr NodeType kSample{"GridSamplerBackward0", sample_backward};

Tensor sample(const Tensor& input, const Tensor& places, const Sampling& s) {
  check_grid(input, places, s.mode);
  if (input.device().is_host() && opmath_dtype(input.dtype()) != input.dtype())
    return cast(sample(cast(input, DType::Float32), cast(places, DType::Float32), s), input.dtype());
  // Kernels are the CPU's, of float32 and float64.
  if (input.device().is_accelerator() || (input.dtype() != DType::Float32 && input.dtype() != DType::Float64))
    return composed_sample(input, places, s);
  const Tensor x = contiguous(input), grid = contiguous(places);
  kernels::GridPlan p{x.dtype(), s.mode, s.padding, s.align, x.sizes()[0], x.sizes()[1], x.ndim() - 2, {}, 1};
  std::copy(x.sizes().begin() + 2, x.sizes().end(), p.size);
  Shape sizes{p.n, p.channels};
  sizes.append(grid.sizes().begin() + 1, grid.sizes().end() - 1);
  for (size_t d = 2; d < sizes.size(); ++d) p.places *= sizes[d];
  Tensor out = empty(sizes, options_of(x));
  if (out.numel() && !out.is_meta()) sample_slot(Launch(x.device()), p, out.data(), x.data(), grid.data());
  if (needs_grad(x, grid)) {
    Ref<Node> n = record(kSample, x, grid);
    n->save(x);
    n->save(grid);
    n->emplace<kernels::GridPlan>(p);
    set_history(out, n);
  }
  return out;
}

bool aligned(std::optional<bool> align_corners) {
  if (!align_corners)
    warn(
        "Default grid_sample and affine_grid behavior has changed to align_corners=False since 1.3.0. Please "
        "specify align_corners=True if the old behavior is desired. See the documentation of grid_sample for "
        "details.");
  return align_corners.value_or(false);
}

Tensor grid_sample_impl(const Tensor& x, const Tensor& grid, std::string_view mode, std::string_view padding,
                        std::optional<bool> align_corners) {
  constexpr std::string_view kModes[]{"bilinear", "nearest", "bicubic"},
      kPaddings[]{"zeros", "border", "reflection"};
  const auto* m = std::ranges::find(kModes, mode);
  const auto* p = std::ranges::find(kPaddings, padding);
  WT_CHECK(m != std::end(kModes), ValueError,
           "nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: '",
           mode, "'");
  WT_CHECK(p != std::end(kPaddings), ValueError,
           "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but "
           "got: '",
           padding, "'");
  return sample(x, grid,
                {static_cast<Mode>(m - kModes), static_cast<Padding>(p - kPaddings), aligned(align_corners)});
}
Tensor grid_sampler_impl(const Tensor& x, const Tensor& grid, int64_t mode, int64_t padding, bool align) {
  WT_CHECK(mode >= 0 && mode <= 2 && padding >= 0 && padding <= 2, ValueError,
           "grid_sampler: expected interpolation_mode and padding_mode from 0 to 2, got ", mode, " and ",
           padding);
  return sample(x, grid, {static_cast<Mode>(mode), static_cast<Padding>(padding), align});
}

template <int Spatial>
Tensor grid_sampler_of(const Tensor& x, const Tensor& grid, int64_t mode, int64_t padding, bool align) {
  WT_CHECK(x.ndim() == Spatial + 2, ShapeError, "grid_sampler_", Spatial, "d: expected an input of ",
           Spatial + 2, " dims, got ", x);
  return grid_sampler_impl(x, grid, mode, padding, align);
}

// ---- affine maps ---------------------------------------------------------------------------------------

// [*spatial, n + 1]: the homogeneous coordinates of each position, x first.
Tensor base_grid(IntList spatial, bool align, const TensorOptions& options) {
  const auto n = static_cast<int64_t>(spatial.size());
  Tensor base = full(Shape{}, 1.0, {DType::Float64, {}});
  Shape sizes(spatial.begin(), spatial.end());
  std::vector<Tensor> axes;
  for (int64_t d = n; d-- > 0;) {
    const int64_t length = spatial[d];
    Tensor axis = empty(Shape{length}, {DType::Float64, {}});
    const double last = static_cast<double>(std::max<int64_t>(length - 1, 1)),
                 reach = align ? 1.0 : static_cast<double>(length - 1) / static_cast<double>(length);
    for (int64_t i = 0; i < length; ++i)
      axis.data_as<double>()[i] = length > 1 ? (2 * static_cast<double>(i) / last - 1) * reach : 0.0;
    Shape shape(sizes.size(), 1);
    shape[d] = length;
    axes.push_back(expand(reshape(axis, shape), sizes));
  }
  axes.push_back(expand(base, sizes));
  return to(stack(axes, -1), options.device, options.dtype, false, false);
}

Tensor affine_grid(const Tensor& theta, IntList size, bool align) {
  const auto n = static_cast<int64_t>(size.size()) - 2;
  Tensor base = base_grid(size.subspan(2), align, options_of(theta));
  Tensor grid = matmul(reshape(base, Shape{1, -1, n + 1}), transpose(theta, 1, 2));
  Shape sizes{size[0]};
  sizes.append(size.begin() + 2, size.end());
  sizes.push_back(n);
  return reshape(grid, sizes);
}

void check_theta(const Tensor& theta, IntList size) {
  const char* op = "affine_grid";
  WT_CHECK(is_floating(theta.dtype()), ValueError, op,
           ": Expected theta to have floating point type, but got ", theta.dtype());
  const auto n = static_cast<int64_t>(size.size()) - 2;
  WT_CHECK(n == 2 || n == 3, NotImplementedError, op,
           " only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. Got size ",
           AsShape{size});
  WT_CHECK(theta.ndim() == 3 && theta.sizes()[1] == n && theta.sizes()[2] == n + 1, ValueError, op,
           ": Expected a batch of ", n, "D affine matrices of shape Nx", n, "x", n + 1, " for size ",
           AsShape{size}, ". Got ", theta.sizes());
  WT_CHECK(std::ranges::all_of(size, [](int64_t s) { return s > 0; }), ValueError, op,
           ": Expected non-zero, positive output size. Got ", AsShape{size});
}

Tensor affine_grid_impl(const Tensor& theta, IntList size, std::optional<bool> align_corners) {
  check_theta(theta, size);
  return affine_grid(theta, size, aligned(align_corners));
}
Tensor affine_grid_generator_impl(const Tensor& theta, IntList size, bool align) {
  check_theta(theta, size);
  return affine_grid(theta, size, align);
}

const Op<Tensor(const Tensor&, const Tensor&, std::string_view, std::string_view, std::optional<bool>)>
    grid_sample{"grid_sample",
                grid_sample_impl,
                kNN | kFloat32Cpu | kWidestCuda,
                {"input", "grid", {"mode", "bilinear"}, {"padding_mode", "zeros"}, {"align_corners", none}},
                "[N, C, H, W] read at grid [N, Hout, Wout, 2], (x, y) in [-1, 1] -> [N, C, Hout, Wout]; or "
                "[N, C, D, H, W] at [N, Dout, Hout, Wout, 3]. mode is bilinear, nearest or bicubic (images "
                "only); outside is zeros, the nearest edge (border) or a mirror image (reflection)."};
const Op<Tensor(const Tensor&, const Tensor&, int64_t, int64_t, bool)> grid_sampler{
    "grid_sampler",
    grid_sampler_impl,
    kFunction | kFloat32Cpu | kWidestCuda,
    {"input", "grid", "interpolation_mode", "padding_mode", "align_corners"},
    "nn.functional.grid_sample, its modes by number."},
    grid_sampler_2d{"grid_sampler_2d",
                    grid_sampler_of<2>,
                    kFunction | kFloat32Cpu | kWidestCuda,
                    {"input", "grid", "interpolation_mode", "padding_mode", "align_corners"},
                    "grid_sampler of images."},
    grid_sampler_3d{"grid_sampler_3d",
                    grid_sampler_of<3>,
                    kFunction | kFloat32Cpu | kWidestCuda,
                    {"input", "grid", "interpolation_mode", "padding_mode", "align_corners"},
                    "grid_sampler of volumes."};
const Op<Tensor(const Tensor&, IntList, std::optional<bool>)> affine_grid_op{
    "affine_grid",
    affine_grid_impl,
    kNN,
    {"theta", "size", {"align_corners", none}},
    "theta [N, 2, 3] and size (N, C, H, W) -> grid [N, H, W, 2] for grid_sample: where the affine map theta "
    "takes each position; or [N, 3, 4] and (N, C, D, H, W) -> [N, D, H, W, 3]."};
const Op<Tensor(const Tensor&, IntList, bool)> affine_grid_generator{"affine_grid_generator",
                                                                     affine_grid_generator_impl,
                                                                     kFunction,
                                                                     {"theta", "size", "align_corners"},
                                                                     "nn.functional.affine_grid."};

}  // namespace
}  // namespace warptape::ops
