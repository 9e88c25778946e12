// What torchvision's compiled ops do with boxes: suppression of those that overlap, and regions of feature
// maps pooled into bins ("Mask R-CNN", "Fast R-CNN", "R-FCN", "Light-Head R-CNN"). They are found as
// torch.ops.torchvision.*. Legend: N images, C channels of the maps, H x W pixels, K regions as (image, x1,
// y1, x2, y2), P x Q bins.
#include "kernels/extra/vision.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/dispatch.h"
#include "ops/index/gather.h"
#include "ops/index/sort.h"
#include "ops/kernel_inputs.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::NmsFn> nms_slot{"nms"};
kernels::Slot<kernels::RoiBinsFn> roi_bins_slot{"roi_bins"}, roi_bins_backward_slot{"roi_bins_backward"};
kernels::Slot<kernels::RoiMaxFn> roi_max_slot{"roi_max"};

void check_real(const char* op, const Tensor& x) {
  WT_CHECK(x.dtype() == DType::Float32 || x.dtype() == DType::Float64, DtypeError, op,
           ": expected float32 or float64, got ", x, "; convert it with .float()");
}

// ---- nms -----------------------------------------------------------------------------------------------

Tensor nms_impl(const Tensor& boxes, const Tensor& scores, double threshold) {
  const char* op = "nms";
  WT_CHECK(boxes.ndim() == 2, ShapeError, op, ": boxes should be a 2d tensor, got ", boxes.ndim(), "D");
  WT_CHECK(boxes.sizes()[1] == 4, ShapeError, op, ": boxes should have 4 elements in dimension 1, got ",
           boxes.sizes()[1]);
  WT_CHECK(scores.ndim() == 1, ShapeError, op, ": scores should be a 1d tensor, got ", scores.ndim(), "D");
  WT_CHECK(boxes.sizes()[0] == scores.sizes()[0], ShapeError, op,
           ": boxes and scores should have same number of elements in dimension 0, got ", boxes.sizes()[0],
           " and ", scores.sizes()[0]);
  WT_CHECK(boxes.dtype() == scores.dtype(), DtypeError, op,
           ": dets should have the same type as scores, got ", boxes, " and ", scores);
  check_real(op, boxes);
  WT_CHECK(!boxes.device().is_meta(), NotImplementedError, op,
           ": how many boxes stay depends on their values, and a meta tensor has none");
  NoGrad off;
  const int64_t n = boxes.sizes()[0];
  const Tensor order = argsort(scores, 0, true, true);
  const Tensor sorted = raw_contiguous(transpose(index_select(boxes, 0, order), 0, 1));
  const Tensor kept = empty(Shape{n}, options_of(order)), areas = empty(Shape{n}, options_of(boxes)),
               dead = empty(Shape{n}, {DType::UInt8, boxes.device()});
  const int64_t count = n ? nms_slot(Launch(boxes.device()), boxes.dtype(), n, sorted.data(), threshold,
                                     kept.data_as<int64_t>(), areas.data(), dead.data_as<uint8_t>())
                          : 0;
  return index_select(order, 0, narrow(kept, 0, 0, count));
}

// ---- bins ----------------------------------------------------------------------------------------------

struct Regions {
  const char* op;
  double scale;  // from the boxes' units to pixels of the map
  int64_t rows, columns;
  int64_t sampling;         // places read in a bin along each dim; 0 or less: about one per pixel
  bool aligned;             // pixel centres lie at whole numbers plus a half
  bool by_position;         // every bin has channels of its own
  bool whole_pixels;        // bins are whole pixels, all of them read
  Shape maps;               // [N, C, H, W]
  bool last_pixel = false;  // boxes of whole pixels include their last one, as roi_pool's do
};

// One box along one dim, in pixels of the map.
template <class T>
struct Extent {
  T start, length;
};

template <class T>
Extent<T> extent_of(const Regions& d, T low, T high) {
  const T scale = static_cast<T>(d.scale);
  if (d.whole_pixels) {
    const T start = std::round(low * scale);
    const T length = std::round(high * scale) - start + static_cast<T>(d.last_pixel);
    return {start, std::max(length, T(1))};
  }
  const T shift = d.aligned ? T(0.5) : T(0), start = low * scale - shift,
          length = high * scale - shift - start;
  return {start, d.aligned ? length : std::max(length, T(1))};
}

// Places and weights of all regions along one dim, as kernels::BinTaps.
struct Taps {
  std::vector<int64_t> first{0}, place;
  std::vector<double> weight;

  void add(int64_t at, double w) {
    for (size_t e = place.size(); e-- > static_cast<size_t>(first.back());)
      if (place[e] == at) {
        weight[e] += w;
        return;
      }
    place.push_back(at);
    weight.push_back(w);
  }
  void end_bin() { first.push_back(static_cast<int64_t>(place.size())); }
  kernels::BinTaps view() const { return {first.data(), place.data(), weight.data()}; }
};

// Places read in a bin; 0 for a box that is not finite.
template <class T>
int64_t samples_of(const Regions& d, const Extent<T>& e, int64_t bins) {
  if (d.sampling > 0) return d.sampling;
  const T per = std::ceil(e.length / static_cast<T>(bins));
  return per >= 1 && per < T(1e15) ? static_cast<int64_t>(per) : 0;
}

// The bins of one region that read `grid` places each, between pixels; each counts `weight`. A place more
// than a pixel outside of the map counts 0.
template <class T>
void add_places(const Extent<T>& e, int64_t bins, int64_t grid, int64_t size, double weight, Taps& taps) {
  const T bin = e.length / static_cast<T>(bins), last = static_cast<T>(size - 1);
  for (int64_t b = 0; b < bins; ++b, taps.end_bin()) {
    const T low = e.start + static_cast<T>(b) * bin, step = bin / static_cast<T>(grid);
    int64_t from = 0, to = size ? grid : 0;  // a map without pixels has no place to read
    if (step > 0 && size) {                  // a region may be far larger than the map
      const auto within = [&](T at) { return std::clamp((at - low) / step, T(0), static_cast<T>(grid)); };
      from = std::max<int64_t>(static_cast<int64_t>(within(T(-1))) - 2, 0);
      to = std::min(static_cast<int64_t>(within(last + 1)) + 2, grid);
    }
    for (int64_t i = from; i < to; ++i) {
      T at = low + (static_cast<T>(i) + T(0.5)) * bin / static_cast<T>(grid);
      if (!(at >= T(-1) && at <= last + 1)) continue;
      at = std::clamp(at, T(0), last);
      const auto pixel = static_cast<int64_t>(at);
      const double part = static_cast<double>(at - static_cast<T>(pixel));
      taps.add(pixel, weight * (1 - part));
      if (part > 0) taps.add(pixel + 1, weight * part);
    }
  }
}

// First and last pixel (not among them) of a bin of whole pixels, within [0, most].
template <class T>
std::array<int64_t, 2> window_of(T start, T bin, int64_t b, int64_t most) {
  const auto bound = [&](T at) {  // a NaN counts as 0
    return at > 0 ? static_cast<int64_t>(std::min(at, static_cast<T>(most))) : int64_t{0};
  };
  return {bound(std::floor(static_cast<T>(b) * bin) + start),
          bound(std::ceil(static_cast<T>(b + 1) * bin) + start)};
}

template <class T>
struct Box {
  int64_t image;
  Extent<T> y, x;
};

template <class T>
Box<T> box_of(const Regions& d, const T* roi) {
  WT_CHECK(roi[0] >= 0 && roi[0] < static_cast<T>(d.maps[0]), IndexError, d.op, ": region of image ", roi[0],
           ", expected 0 to ", d.maps[0] - 1);
  return {static_cast<int64_t>(roi[0]), extent_of(d, roi[2], roi[4]), extent_of(d, roi[1], roi[3])};
}

struct Table {
  std::vector<int64_t> image;
  Taps y, x;
};

template <class T>
void add_region(const Regions& d, const Box<T>& box, Table& table) {
  table.image.push_back(box.image);
  const int64_t height = d.maps[2], width = d.maps[3];
  if (!d.whole_pixels) {
    const int64_t gy = samples_of(d, box.y, d.rows), gx = samples_of(d, box.x, d.columns);
    const double all = std::max(static_cast<double>(gy) * static_cast<double>(gx), 1.0);
    add_places(box.y, d.rows, gy, height, 1 / all, table.y);
    add_places(box.x, d.columns, gx, width, 1.0, table.x);
    return;
  }
  const auto add = [](const Extent<T>& e, int64_t bins, int64_t size, Taps& taps) {
    for (int64_t b = 0; b < bins; ++b, taps.end_bin()) {
      const auto [low, high] = window_of(e.start, e.length / static_cast<T>(bins), b, size - 1);
      for (int64_t at = low; at < high; ++at) taps.add(at, 1.0 / static_cast<double>(high - low));
    }
  };
  add(box.y, d.rows, height, table.y);
  add(box.x, d.columns, width, table.x);
}

// f(region number, box, of type T) for all regions.
template <class F>
void each_region(const Regions& d, const Tensor& rois, F f) {
  const Tensor all = raw_contiguous(to(detach(rois), Device{}, std::nullopt, false, false));
  kernels::dispatch(
      kernels::Types<float, double>{}, rois.dtype(),
      [&](auto t) {
        using T = typename decltype(t)::type;
        for (int64_t k = 0; k < rois.sizes()[0]; ++k) f(k, box_of(d, all.data_as<T>() + 5 * k));
      },
      d.op);
}

Shape pooled_sizes(const Regions& d, int64_t regions) {
  return {regions, d.by_position ? d.maps[1] / (d.rows * d.columns) : d.maps[1], d.rows, d.columns};
}

kernels::RoiBins bins_of(const Regions& d, const Table& t, DType dtype) {
  return {dtype,  d.maps[0], d.maps[1],     d.maps[2],      d.maps[3],  static_cast<int64_t>(t.image.size()),
          d.rows, d.columns, d.by_position, t.image.data(), t.y.view(), t.x.view()};
}

Table table_of(const Regions& d, const Tensor& rois) {
  Table table;
  each_region(d, rois, [&](int64_t, const auto& box) { add_region(d, box, table); });
  return table;
}

Tensor pool(const Tensor& x, const Tensor& rois, const Regions& d);
Tensor spread(const Tensor& g, const Tensor& rois, const Regions& d);

void pool_backward(Node& n, Gradients& g) { g.set(0, spread(g[0], n.saved(0), n.data<Regions>())); }
void spread_backward(Node& n, Gradients& g) { g.set(0, pool(g[0], n.saved(0), n.data<Regions>())); }
constexpr NodeType kPool{"RoiBinsBackward0", pool_backward},
    kSpread{"RoiBinsBackwardBackward0", spread_backward};

Tensor with_history(const NodeType& type, const Tensor& out, const Tensor& x, const Tensor& rois,
                    const Regions& d) {
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->save(rois);
    n->emplace<Regions>(d);
    set_history(out, n);
  }
  return out;
}

// maps [N, C, H, W] -> [K, C or C / (P * Q), P, Q]
Tensor pool(const Tensor& x, const Tensor& rois, const Regions& d) {
  Tensor out = empty(pooled_sizes(d, rois.sizes()[0]), options_of(x));
  if (out.numel() && !out.is_meta()) {
    const Table table = table_of(d, rois);
    roi_bins_slot(Launch(x.device()), bins_of(d, table, x.dtype()), out.data(), raw_contiguous(x).data());
  }
  return with_history(kPool, out, x, rois, d);
}

// Its transpose.
Tensor spread(const Tensor& g, const Tensor& rois, const Regions& d) {
  Tensor out = empty(d.maps, options_of(g));
  if (out.numel() && !out.is_meta()) {
    const Table table = table_of(d, rois);
    roi_bins_backward_slot(Launch(g.device()), bins_of(d, table, g.dtype()), out.data(),
                           raw_contiguous(g).data());
  }
  return with_history(kSpread, out, g, rois, d);
}

void check_regions(const Tensor& x, const Tensor& rois, const Regions& d) {
  WT_CHECK(rois.ndim() == 2 && rois.sizes()[1] == 5, ShapeError, d.op,
           ": rois must have shape as Tensor[K, 5], got ", rois);
  WT_CHECK(d.maps.size() == 4, ShapeError, d.op, ": expected maps [N, C, H, W], got ", AsShape{d.maps});
  WT_CHECK(x.dtype() == rois.dtype(), DtypeError, d.op,
           ": Expected tensor for input to have the same type as tensor for rois, got ", x, " and ", rois);
  check_real(d.op, x);
  WT_CHECK(d.rows > 0 && d.columns > 0, ValueError, d.op, ": expected bins, got ", d.rows, " x ", d.columns);
  WT_CHECK(!d.by_position || d.maps[1] % (d.rows * d.columns) == 0, ShapeError, d.op,
           ": input channels must be a multiple of pooling height * pooling width, got ", d.maps[1], " and ",
           d.rows, " x ", d.columns);
}

Tensor checked_pool(const Tensor& x, const Tensor& rois, const Regions& d) {
  check_regions(x, rois, d);
  return pool(x, rois, d);
}
Tensor checked_spread(const Tensor& g, const Tensor& rois, const Regions& d) {
  check_regions(g, rois, d);
  WT_CHECK(g.sizes() == pooled_sizes(d, rois.sizes()[0]), ShapeError, d.op, ": expected a gradient ",
           AsShape{pooled_sizes(d, rois.sizes()[0])}, ", got ", g);
  return spread(g, rois, d);
}

// The map's channel that each value read, as int32.
Tensor channels_of(const Tensor& pooled) {
  const Shape& s = pooled.sizes();
  if (pooled.is_meta()) return empty(s, {DType::Int32, pooled.device()});
  Tensor out = empty(s, {DType::Int32, Device{}});
  for (int64_t i = 0, each = s[1] * s[2] * s[3]; i < out.numel(); ++i)
    out.data_as<int32_t>()[i] = static_cast<int32_t>(i % each);
  return to(out, pooled.device(), std::nullopt, false, false);
}

Tensor roi_align_impl(const Tensor& x, const Tensor& rois, double scale, int64_t rows, int64_t columns,
                      int64_t sampling, bool aligned) {
  return checked_pool(x, rois,
                      {"roi_align", scale, rows, columns, sampling, aligned, false, false, x.sizes()});
}
Tensor roi_align_backward_impl(const Tensor& g, const Tensor& rois, double scale, int64_t rows,
                               int64_t columns, int64_t n, int64_t c, int64_t h, int64_t w, int64_t sampling,
                               bool aligned) {
  return checked_spread(
      g, rois, {"_roi_align_backward", scale, rows, columns, sampling, aligned, false, false, {n, c, h, w}});
}

using Pooled = std::tuple<Tensor, Tensor>;
Pooled by_position(const Tensor& x, const Tensor& rois, const Regions& d) {
  Tensor out = checked_pool(x, rois, d);
  Tensor channels = channels_of(out);
  return {std::move(out), std::move(channels)};
}
Pooled ps_roi_align_impl(const Tensor& x, const Tensor& rois, double scale, int64_t rows, int64_t columns,
                         int64_t sampling) {
  return by_position(x, rois, {"ps_roi_align", scale, rows, columns, sampling, true, true, false, x.sizes()});
}
Pooled ps_roi_pool_impl(const Tensor& x, const Tensor& rois, double scale, int64_t rows, int64_t columns) {
  return by_position(x, rois, {"ps_roi_pool", scale, rows, columns, 0, false, true, true, x.sizes()});
}
Tensor ps_roi_align_backward_impl(const Tensor& g, const Tensor& rois, const Tensor& /*channels*/,
                                  double scale, int64_t rows, int64_t columns, int64_t sampling, int64_t n,
                                  int64_t c, int64_t h, int64_t w) {
  return checked_spread(
      g, rois, {"_ps_roi_align_backward", scale, rows, columns, sampling, true, true, false, {n, c, h, w}});
}
Tensor ps_roi_pool_backward_impl(const Tensor& g, const Tensor& rois, const Tensor& /*channels*/,
                                 double scale, int64_t rows, int64_t columns, int64_t n, int64_t c, int64_t h,
                                 int64_t w) {
  return checked_spread(g, rois,
                        {"_ps_roi_pool_backward", scale, rows, columns, 0, false, true, true, {n, c, h, w}});
}

// ---- roi_pool ------------------------------------------------------------------------------------------

// Adds each value of g [K, C, P, Q] to the map's pixel `place`; -1 is none.
Tensor spread_maxima(const Tensor& g, const Tensor& rois, const Tensor& place, const Regions& d) {
  if (g.is_meta()) return empty(d.maps, options_of(g));
  const int64_t k = rois.sizes()[0], c = d.maps[1], area = d.maps[2] * d.maps[3];
  Tensor base;  // [K, C, 1, 1]: the first pixel of the map
  {
    NoGrad off;
    base = reshape(cast(select(rois, 1, 0), DType::Int64), Shape{k, 1, 1, 1}) * c;
    Tensor channel = empty(Shape{1, c, 1, 1}, {DType::Int64, Device{}});
    for (int64_t i = 0; i < c; ++i) channel.data_as<int64_t>()[i] = i;
    base = (base + to(channel, base.device(), std::nullopt, false, false)) * area;
  }
  const Tensor at = base + cast(clamp(place, Scalar(0), std::nullopt), DType::Int64);
  const Tensor values = where_ts(ge_ts(place, 0), g, Scalar(0.0));
  const Tensor flat = index_add(zeros(Shape{numel_of(d.maps)}, options_of(g)), 0, reshape(at, Shape{-1}),
                                reshape(values, Shape{-1}), 1);
  return reshape(flat, d.maps);
}

void roi_pool_node(Node& n, Gradients& g) {
  if (g[0].defined()) g.set(0, spread_maxima(g[0], n.saved(0), n.saved(1), n.data<Regions>()));
}
constexpr NodeType kRoiPool{"RoiPoolBackward0", roi_pool_node};

kernels::RoiWindows windows_of(const Regions& d, const Tensor& rois, std::vector<int64_t>& image,
                               std::vector<int64_t>& y, std::vector<int64_t>& x) {
  const auto add = [](const auto& e, int64_t bins, int64_t size, std::vector<int64_t>& to) {
    using T = std::remove_cvref_t<decltype(e.start)>;
    for (int64_t b = 0; b < bins; ++b)
      for (int64_t bound : window_of(e.start, e.length / static_cast<T>(bins), b, size)) to.push_back(bound);
  };
  each_region(d, rois, [&](int64_t, const auto& box) {
    image.push_back(box.image);
    add(box.y, d.rows, d.maps[2], y);
    add(box.x, d.columns, d.maps[3], x);
  });
  return {rois.dtype(), d.maps[0], d.maps[1],    d.maps[2], d.maps[3], rois.sizes()[0],
          d.rows,       d.columns, image.data(), y.data(),  x.data()};
}

Pooled roi_pool_impl(const Tensor& x, const Tensor& rois, double scale, int64_t rows, int64_t columns) {
  Regions d{"roi_pool", scale, rows, columns, 0, false, false, true, x.sizes()};
  d.last_pixel = true;
  check_regions(x, rois, d);
  const Shape sizes = pooled_sizes(d, rois.sizes()[0]);
  Tensor out = empty(sizes, options_of(x)), place = empty(sizes, {DType::Int32, x.device()});
  if (out.numel() && !out.is_meta()) {
    std::vector<int64_t> image, ys, xs;
    const kernels::RoiWindows windows = windows_of(d, rois, image, ys, xs);
    roi_max_slot(Launch(x.device()), windows, out.data(), place.data_as<int32_t>(), raw_contiguous(x).data());
  }
  if (needs_grad(x)) {
    Ref<Node> n = record(kRoiPool, x);
    n->save(rois);
    n->save(place);
    n->emplace<Regions>(d);
    set_history(out, n);
    set_history(place, n);
  }
  return {std::move(out), std::move(place)};
}
Tensor roi_pool_backward_impl(const Tensor& g, const Tensor& rois, const Tensor& place, double scale,
                              int64_t rows, int64_t columns, int64_t n, int64_t c, int64_t h, int64_t w) {
  const Regions d{"_roi_pool_backward", scale, rows, columns, 0, false, false, true, {n, c, h, w}};
  check_regions(g, rois, d);
  return spread_maxima(g, rois, place, d);
}

// ---- declarations --------------------------------------------------------------------------------------

#define WT_REGIONS "spatial_scale", "pooled_height", "pooled_width"
#define WT_MAPS "batch_size", "channels", "height", "width"

const Op<Tensor(const Tensor&, const Tensor&, double)> nms{
    "torchvision_nms",
    nms_impl,
    kPrivate | kChecked,
    {"dets", "scores", "iou_threshold"},
    "Of boxes [n, 4] as (x1, y1, x2, y2) with scores [n] the numbers of those that no better one overlaps by "
    "more than iou_threshold (intersection over union), the best first."};
const Op<Tensor(const Tensor&, const Tensor&, double, int64_t, int64_t, int64_t, bool)> roi_align{
    "torchvision_roi_align",
    roi_align_impl,
    kPrivate | kChecked,
    {"input", "rois", WT_REGIONS, "sampling_ratio", "aligned"},
    "Maps [N, C, H, W] at rois [K, 5], (image, x1, y1, x2, y2) -> [K, C, P, Q]: means of sampling_ratio^2 "
    "bilinear values per bin, of about one per pixel where it is 0 or less (Mask R-CNN)."};
const Op<Tensor(const Tensor&, const Tensor&, double, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                int64_t, bool)>
    roi_align_backward{"torchvision__roi_align_backward",
                       roi_align_backward_impl,
                       kPrivate | kChecked,
                       {"grad", "rois", WT_REGIONS, WT_MAPS, "sampling_ratio", "aligned"},
                       "The gradient of roi_align's maps."};
const Op<Pooled(const Tensor&, const Tensor&, double, int64_t, int64_t)> roi_pool{
    "torchvision_roi_pool",
    roi_pool_impl,
    kPrivate | kChecked,
    {"input", "rois", WT_REGIONS},
    "Maps [N, C, H, W] at rois [K, 5] -> ([K, C, P, Q], int32 places): the maxima of bins of whole pixels "
    "(Fast R-CNN)."};
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, double, int64_t, int64_t, int64_t, int64_t,
                int64_t, int64_t)>
    roi_pool_backward{"torchvision__roi_pool_backward",
                      roi_pool_backward_impl,
                      kPrivate | kChecked,
                      {"grad", "rois", "argmax", WT_REGIONS, WT_MAPS},
                      "The gradient of roi_pool's maps."},
    ps_roi_pool_backward{"torchvision__ps_roi_pool_backward",
                         ps_roi_pool_backward_impl,
                         kPrivate | kChecked,
                         {"grad", "rois", "channel_mapping", WT_REGIONS, WT_MAPS},
                         "The gradient of ps_roi_pool's maps."};
const Op<Pooled(const Tensor&, const Tensor&, double, int64_t, int64_t, int64_t)> ps_roi_align{
    "torchvision_ps_roi_align",
    ps_roi_align_impl,
    kPrivate | kChecked,
    {"input", "rois", WT_REGIONS, "sampling_ratio"},
    "roi_align in which every bin reads channels of its own: [N, C * P * Q, H, W] -> ([K, C, P, Q], int32 "
    "channels) (Light-Head R-CNN)."};
const Op<Pooled(const Tensor&, const Tensor&, double, int64_t, int64_t)> ps_roi_pool{
    "torchvision_ps_roi_pool",
    ps_roi_pool_impl,
    kPrivate | kChecked,
    {"input", "rois", WT_REGIONS},
    "Means of bins of whole pixels, every bin from channels of its own: [N, C * P * Q, H, W] -> ([K, C, P, "
    "Q], "
    "int32 channels) (R-FCN)."};
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, double, int64_t, int64_t, int64_t, int64_t,
                int64_t, int64_t, int64_t)>
    ps_roi_align_backward{"torchvision__ps_roi_align_backward",
                          ps_roi_align_backward_impl,
                          kPrivate | kChecked,
                          {"grad", "rois", "channel_mapping", WT_REGIONS, "sampling_ratio", WT_MAPS},
                          "The gradient of ps_roi_align's maps."};
#undef WT_REGIONS
#undef WT_MAPS

}  // namespace
}  // namespace warptape::ops
