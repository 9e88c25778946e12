// Object detection: boxes that suppress each other, regions of feature maps pooled into bins, and convolution
// at displaced places. All arrays are contiguous, of float32 or float64.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

// Slot "nms": boxes [4, n] as (x1, y1, x2, y2), the best first -> the positions of those kept, in their
// order, in `kept` [n]; returns their number. A box goes where one kept before it overlaps it by more than
// `threshold`, as intersection over union. `areas` [n] and `dead` [n] are memory to work in.
using NmsFn = int64_t(const LaunchContext&, DType, int64_t n, const void* boxes, double threshold,
                      int64_t* kept, void* areas, uint8_t* dead);

// Bin b of all regions along one dim is element first[b] to first[b + 1]: weight[e] times the map's place[e].
struct BinTaps {
  const int64_t *first, *place;
  const double* weight;
};

// A pooled value is a weighted sum over rows and columns of its region's map.
struct RoiBins {
  DType dtype;
  int64_t images, channels, height, width;  // of the maps
  int64_t regions, rows, columns;           // bins of a region: rows * columns
  bool by_position;      // bin (i, j) of channel c reads the map's channel (c * rows + i) * columns + j
  const int64_t* image;  // [regions]: of which image
  BinTaps y, x;          // bins regions * rows and regions * columns
};

// Slot "roi_bins": maps [images, channels, height, width] -> out [regions, channels of the result, rows,
// columns]; "roi_bins_backward" is its transpose, the gradient of the maps from that of `out`.
using RoiBinsFn = void(const LaunchContext&, const RoiBins&, void* out, const void* in);

// Bounds of bins in whole pixels, an end not among them: [regions * rows, 2] and [regions * columns, 2].
struct RoiWindows {
  DType dtype;
  int64_t images, channels, height, width;
  int64_t regions, rows, columns;
  const int64_t *image, *y, *x;
};

// Slot "roi_max": the maxima [regions, channels, rows, columns] and where in the map they lie (row * width +
// column; -1 and a maximum of 0 for a bin without pixels).
using RoiMaxFn = void(const LaunchContext&, const RoiWindows&, void* out, int32_t* place, const void* maps);

struct DeformPlan {
  DType dtype;
  int64_t n, channels, height, width;
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t groups;  // of channels that share their offsets
  int64_t out_height, out_width;
};

// What a convolution at displaced places multiplies with its weight. Slot "deform_columns": x [n, channels,
// height, width] read bilinearly at the kernel's taps moved by offset [n, groups, taps, (y, x), out_height,
// out_width], times mask [n, groups, taps, out_height, out_width] or null -> columns [n, channels, taps,
// out_height * out_width].
using DeformColumnsFn = void(const LaunchContext&, const DeformPlan&, void* columns, const void* x,
                             const void* offset, const void* mask);
// Slots "deform_input" and "deform_places": from the gradient g of the columns those of x, and of offset and
// mask (null without one).
using DeformInputFn = void(const LaunchContext&, const DeformPlan&, void* grad_x, const void* g,
                           const void* offset, const void* mask);
using DeformPlacesFn = void(const LaunchContext&, const DeformPlan&, void* grad_offset, void* grad_mask,
                            const void* g, const void* x, const void* offset, const void* mask);

}  // namespace warptape::kernels
