// Images of other sizes. Every mode but nearest and area is a weighted sum along one dim after the other: a
// table says which elements with which weights make each new one, and its transpose makes the gradient.
#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/nn/resample.h"
#include "ops/conv/pool.h"
#include "ops/elementwise/elementwise.h"
#include "ops/index/gather.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::ResampleFn> resample_slot{"resample"};

// Of a kernels::ResamplePlan, on the input's device.
struct Table {
  int64_t in, out;
  Tensor first, place, weight;
};

struct Entry {
  int64_t place;
  double weight;
};
using Rows = std::vector<std::vector<Entry>>;  // for each new element those that it is made of

Table table_of(const Rows& rows, int64_t in, Device device) {
  int64_t count = 0;
  for (const auto& row : rows) count += static_cast<int64_t>(row.size());
  const auto out = static_cast<int64_t>(rows.size());
  Tensor first = empty(Shape{out + 1}, {DType::Int64, {}}), place = empty(Shape{count}, {DType::Int64, {}}),
         weight = empty(Shape{count}, {DType::Float64, {}});
  auto *f = first.data_as<int64_t>(), *p = place.data_as<int64_t>();
  auto* w = weight.data_as<double>();
  int64_t at = 0;
  for (int64_t i = 0; i < out; ++i) {
    f[i] = at;
    for (const Entry& e : rows[static_cast<size_t>(i)]) p[at] = e.place, w[at++] = e.weight;
  }
  f[out] = at;
  auto moved = [&](const Tensor& t) { return to(t, device, std::nullopt, false, false); };
  return {in, out, moved(first), moved(place), moved(weight)};
}

Rows transposed(const Rows& rows, int64_t in) {
  Rows out(static_cast<size_t>(in));
  for (size_t i = 0; i < rows.size(); ++i)
    for (const Entry& e : rows[i])
      out[static_cast<size_t>(e.place)].push_back({static_cast<int64_t>(i), e.weight});
  return out;
}

// Tables are constants, not values of the graph: a second pass backward finds them, as in PyTorch.
struct ResampleData {
  int64_t dim;
  Table table, back;
};

Tensor resample(const Tensor& x, int64_t dim, const Table& table, const Table& back);
void resample_backward(Node& n, Gradients& g) {
  const auto& d = n.data<ResampleData>();
  g.set(0, resample(g[0], d.dim, d.back, d.table));
}
constexpr NodeType kResample{"UpsampleBackward0", resample_backward};

Tensor resample(const Tensor& x, int64_t dim, const Table& table, const Table& back) {
  Shape sizes = x.sizes();
  sizes[dim] = table.out;
  const MemoryFormat format = suggested_format(x);
  Tensor out = empty_in(sizes, options_of(x), format);
  if (out.numel() && !out.is_meta()) {
    Tensor from = raw_in(x, format);
    const int64_t inner = out.strides()[dim];
    kernels::ResamplePlan p{x.dtype(),
                            x.numel() / (table.in * inner),
                            table.in,
                            table.out,
                            inner,
                            table.first.data_as<int64_t>(),
                            table.place.data_as<int64_t>(),
                            table.weight.data_as<double>()};
    resample_slot(Launch(x.device()), p, out.data(), from.data());
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(kResample, x);
    n->emplace<ResampleData>(dim, table, back);
    set_history(out, n);
  }
  return out;
}

// ---- places and weights --------------------------------------------------------------------------------

// How far apart in the input two neighbours of the output are.
double step_of(int64_t in, int64_t out, std::optional<double> scale, bool align) {
  if (align) return out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0.0;
  return scale && *scale > 0 ? 1 / *scale : static_cast<double>(in) / static_cast<double>(out);
}

double triangle(double x) { return std::max(1 - std::abs(x), 0.0); }
// "Cubic Convolution Interpolation for Digital Image Processing", equation 15.
double cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

struct Filter {
  int64_t taps;  // 2: linear, 4: cubic
  bool antialias, align;
  // With antialias the filter is as much wider as the image shrinks, and a is -0.5 instead of -0.75.
  double at(double x) const { return taps == 2 ? triangle(x) : cubic(x, antialias ? -0.5 : -0.75); }
};

Rows filter_rows(int64_t in, int64_t out, double step, const Filter& f) {
  const double wider = f.antialias ? std::max(step, 1.0) : 1.0,
               support = static_cast<double>(f.taps) / 2 * wider;
  Rows rows(static_cast<size_t>(out));
  for (int64_t i = 0; i < out; ++i) {
    // Of the new element among the old ones, whose centres are whole numbers.
    const double centre =
        f.align ? step * static_cast<double>(i) : step * (static_cast<double>(i) + 0.5) - 0.5;
    auto low = static_cast<int64_t>(std::floor(centre - support + 1)),
         high = f.antialias ? static_cast<int64_t>(std::floor(centre + support + 1)) : low + f.taps;
    if (f.antialias) low = std::max<int64_t>(low, 0), high = std::min(high, in);
    // Beyond the border its element counts.
    std::map<int64_t, double> weights;
    double total = 0;
    for (int64_t j = low; j < high; ++j) {
      const double w = f.at((static_cast<double>(j) - centre) / wider);
      weights[std::clamp<int64_t>(j, 0, in - 1)] += w;
      total += w;
    }
    for (auto [place, w] : weights)
      if (w != 0) rows[static_cast<size_t>(i)].push_back({place, w / total});
  }
  return rows;
}

// PyTorch's numbers: weights are whole multiples of 2^-bits that fit into 16 bits; rounded after each dim.
int round_weights(Rows& rows) {
  double most = 0;
  for (const auto& row : rows)
    for (const Entry& e : row) most = std::max(most, e.weight);
  int bits = 0;
  while (bits < 22 && static_cast<int64_t>(0.5 + most * std::ldexp(1, bits + 1)) < (1 << 15)) ++bits;
  for (auto& row : rows)
    for (Entry& e : row) e.weight = std::trunc(e.weight * std::ldexp(1, bits) + std::copysign(0.5, e.weight));
  return bits;
}

Tensor filtered(const Tensor& x, int64_t dim, int64_t n, double step, const Filter& f) {
  const int64_t in = x.sizes()[dim];
  // The node keeps the tables: where one is recorded they are made, though x has no memory yet.
  if (x.device().is_meta() || (!needs_grad(x) && x.is_meta()))
    return resample(x, dim, {in, n, {}, {}, {}}, {});
  Rows rows = filter_rows(in, n, step, f);
  if (x.dtype() != DType::UInt8) {
    Table back = needs_grad(x) ? table_of(transposed(rows, in), n, x.device()) : Table{};
    return resample(x, dim, table_of(rows, in, x.device()), back);
  }
  const int bits = round_weights(rows);
  Tensor sums = resample(cast(x, DType::Float64), dim, table_of(rows, in, x.device()), {});
  Tensor values = floor((sums + std::ldexp(0.5, bits)) * std::ldexp(1, -bits));
  return cast(clamp(values, Scalar(0), Scalar(255)), DType::UInt8);
}

// In the arithmetic that PyTorch finds the places in.
template <class T>
Tensor nearest_places(int64_t in, int64_t n, T step, bool exact) {
  Tensor places = empty(Shape{n}, {DType::Int64, {}});
  for (int64_t i = 0; i < n; ++i) {
    const T at = exact ? std::max(step * (static_cast<T>(i) + T(0.5)) - T(0.5), T(0)) + T(0.5)
                       : step * static_cast<T>(i);
    places.data_as<int64_t>()[i] = std::min(static_cast<int64_t>(std::floor(static_cast<float>(at))), in - 1);
  }
  return places;
}

Tensor nearest(const Tensor& x, int64_t dim, int64_t n, double step, bool exact) {
  // The kernel sees row-major tensors: channels last are such with the channels as their last dim.
  if (suggests_channels_last(x)) {
    const bool image = x.ndim() == 4;
    const Shape last = image ? Shape{0, 2, 3, 1} : Shape{0, 2, 3, 4, 1},
                back = image ? Shape{0, 3, 1, 2} : Shape{0, 4, 1, 2, 3};
    return permute(nearest(permute(x, last), dim - 1, n, step, exact), back);
  }
  const int64_t in = x.sizes()[dim];
  if (x.is_meta()) return index_select(x, dim, empty(Shape{n}, {DType::Int64, x.device()}));
  Tensor places = x.dtype() == DType::Float64 ? nearest_places<double>(in, n, step, exact)
                                              : nearest_places<float>(in, n, static_cast<float>(step), exact);
  return index_select(x, dim, to(places, x.device(), std::nullopt, false, false));
}

// ---- the op --------------------------------------------------------------------------------------------

using Sizes = std::optional<IntList>;
using Scales = std::optional<std::span<const double>>;

constexpr const char* kOp = "interpolate";

// The spatial sizes asked for; `scales` is cleared where the sizes alone count.
Shape wanted_sizes(const Tensor& x, const Sizes& size, Scales& scales, bool recompute) {
  const auto spatial = static_cast<size_t>(x.ndim() - 2);
  WT_CHECK(!size || !scales, ValueError, kOp, ": only one of size or scale_factor should be defined");
  WT_CHECK(size || scales, ValueError, kOp, ": either size or scale_factor should be defined");
  WT_CHECK(!size || !recompute, ValueError, kOp,
           ": recompute_scale_factor is not meaningful when size is explicitly specified.");
  const size_t given = size ? size->size() : scales->size();
  WT_CHECK(given == 1 || given == spatial, ValueError, kOp, ": Input and ", size ? "output" : "scale_factor",
           " must have the same number of spatial dimensions, but got input with sizes ", x.sizes(), " and ",
           given, " numbers. Please provide input tensor in (N, C, d1, d2, ...,dK) format");
  Shape out;
  for (size_t d = 0; d < spatial; ++d)
    out.push_back(size ? (*size)[given == 1 ? 0 : d]
                       : static_cast<int64_t>(std::floor(static_cast<double>(x.sizes()[d + 2]) *
                                                         (*scales)[given == 1 ? 0 : d])));
  if (recompute) scales.reset();
  return out;
}

struct Mode {
  std::string_view name;
  int64_t ndim;  // of the input; 0: 3 to 5
  int64_t taps;  // of the filter
};
constexpr Mode kModes[]{{"nearest", 0, 0},  {"nearest-exact", 0, 0}, {"area", 0, 0},   {"linear", 3, 2},
                        {"bilinear", 4, 2}, {"trilinear", 5, 2},     {"bicubic", 4, 4}};

const Mode& mode_of(const Tensor& x, std::string_view name) {
  const auto* mode = std::ranges::find(kModes, name, &Mode::name);
  WT_CHECK(mode != std::end(kModes) && x.ndim() >= 3 && x.ndim() <= 5, NotImplementedError, kOp,
           ": Input Error: Only 3D, 4D and 5D input Tensors supported (got ", x.ndim(),
           "D) for the modes: nearest | linear | bilinear | bicubic | trilinear | area | nearest-exact (got ",
           name, ")");
  WT_CHECK(!mode->ndim || mode->ndim == x.ndim(), NotImplementedError, kOp, ": Got ", x.ndim(),
           "D input, but ", name, " mode needs ", mode->ndim, "D input");
  return *mode;
}

void check_dtype(const Tensor& x, const Mode& mode) {
  const bool image = mode.ndim == 4 || mode.name.starts_with("nearest");
  WT_CHECK(is_floating(x.dtype()) || (x.dtype() == DType::UInt8 && image), NotImplementedError, kOp,
           ": mode '", mode.name, "' is not implemented for ", x.dtype());
}

// The spatial dims in the order that has the least to do: those that shrink, outermost first, then the
// others, innermost first. With rounding between them it is PyTorch's, innermost first.
Shape order_of(IntList have, const Shape& sizes, bool rounds) {
  Shape order;
  const auto count = static_cast<int64_t>(sizes.size());
  for (int64_t d = 0; d < count; ++d)
    if (!rounds && sizes[d] < have[static_cast<size_t>(d)]) order.push_back(d);
  for (int64_t d = count; d-- > 0;)
    if (rounds || sizes[d] >= have[static_cast<size_t>(d)]) order.push_back(d);
  return order;
}

Tensor area(const Tensor& x, const Shape& sizes) {
  return (x.ndim() == 3   ? adaptive_avg_pool1d
          : x.ndim() == 4 ? adaptive_avg_pool2d
                          : adaptive_avg_pool3d)(x, sizes);
}

Tensor interpolate_impl(const Tensor& x, Sizes size, Scales scales, std::string_view name,
                        std::optional<bool> align_corners, std::optional<bool> recompute_scale_factor,
                        bool antialias) {
  WT_CHECK(x.ndim() > 2, NotImplementedError, kOp,
           ": Input Error: Only 3D, 4D and 5D input Tensors supported (got ", x.ndim(), "D)");
  const bool filters = !(name == "nearest" || name == "area" || name == "nearest-exact");
  WT_CHECK(
      filters || !align_corners, ValueError, kOp,
      ": align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | "
      "trilinear");
  const Shape sizes = wanted_sizes(x, size, scales, recompute_scale_factor.value_or(false));
  WT_CHECK(
      !antialias || ((name == "bilinear" || name == "bicubic") && x.ndim() == 4), ValueError, kOp,
      ": Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input");
  const Mode& mode = mode_of(x, name);
  check_dtype(x, mode);
  const IntList have = IntList(x.sizes()).subspan(2);
  const bool some = std::ranges::all_of(have, [](int64_t n) { return n > 0; }) && x.sizes()[1] > 0;
  WT_CHECK(some && std::ranges::all_of(sizes, [](int64_t n) { return n > 0; }), ShapeError, kOp,
           ": Input and output sizes should be greater than 0, but got input ", x.sizes(), " and output ",
           sizes);
  if (mode.name == "area") return area(x, sizes);
  const bool align = align_corners.value_or(false),
             narrow = x.dtype() == DType::Float16 || x.dtype() == DType::BFloat16;
  // One rounding at the end.
  Tensor out = narrow && filters ? cast(x, DType::Float32) : x;
  for (int64_t d : order_of(have, sizes, filters && x.dtype() == DType::UInt8)) {
    const int64_t dim = d + 2;
    std::optional<double> scale;
    if (scales) scale = (*scales)[scales->size() == 1 ? 0 : static_cast<size_t>(d)];
    const double step = step_of(x.sizes()[dim], sizes[d], scale, filters && align);
    out = filters ? filtered(out, dim, sizes[d], step, {mode.taps, antialias, align})
                  : nearest(out, dim, sizes[d], step, mode.name == "nearest-exact");
  }
  return cast(out, x.dtype());
}

// ---- former names --------------------------------------------------------------------------------------

void warn_of(const char* name) {
  warn(message("`nn.functional.", name, "` is deprecated. Use `nn.functional.interpolate` instead."));
}
Tensor upsample_impl(const Tensor& x, Sizes size, Scales scales, std::string_view mode,
                     std::optional<bool> align_corners) {
  warn_of("upsample");
  return interpolate_impl(x, size, scales, mode, align_corners, std::nullopt, false);
}
Tensor upsample_nearest_impl(const Tensor& x, Sizes size, Scales scales) {
  warn_of("upsample_nearest");
  return interpolate_impl(x, size, scales, "nearest", std::nullopt, std::nullopt, false);
}
Tensor upsample_bilinear_impl(const Tensor& x, Sizes size, Scales scales) {
  warn_of("upsample_bilinear");
  return interpolate_impl(x, size, scales, "bilinear", true, std::nullopt, false);
}

const Arg kSize{"size", none}, kScale{"scale_factor", none}, kMode{"mode", "nearest"},
    kAlign{"align_corners", none};
const Op<Tensor(const Tensor&, Sizes, Scales, std::string_view, std::optional<bool>, std::optional<bool>,
                bool)>
    interpolate{
        "interpolate",
        interpolate_impl,
        kNN | kFloat32Cuda,
        {"input", kSize, kScale, kMode, kAlign, {"recompute_scale_factor", none}, {"antialias", false}},
        "[N, C, *spatial] resized: mode nearest, nearest-exact, linear, bilinear, trilinear, bicubic or "
        "area. antialias widens the filter of bilinear and bicubic where the image shrinks."};
const Op<Tensor(const Tensor&, Sizes, Scales, std::string_view, std::optional<bool>)> upsample{
    "upsample",
    upsample_impl,
    kNN | kFloat32Cuda,
    {"input", kSize, kScale, kMode, kAlign},
    "interpolate under its former name."};
const Op<Tensor(const Tensor&, Sizes, Scales)> upsample_nearest{"upsample_nearest",
                                                                upsample_nearest_impl,
                                                                kNN | kFloat32Cuda,
                                                                {"input", kSize, kScale},
                                                                "interpolate to the nearest element."},
    upsample_bilinear{"upsample_bilinear",
                      upsample_bilinear_impl,
                      kNN | kFloat32Cuda,
                      {"input", kSize, kScale},
                      "interpolate between elements with aligned corners."};

}  // namespace
}  // namespace warptape::ops
