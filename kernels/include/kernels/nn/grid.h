// Images and volumes read at any places: grid_sample. All arrays are contiguous, of float32 or float64.
#pragma once

#include "kernels/types.h"

namespace warptape::kernels {

enum class GridMode : uint8_t { Bilinear, Nearest, Bicubic };
enum class GridPadding : uint8_t { Zeros, Border, Reflection };

struct GridPlan {
  DType dtype;
  GridMode mode;
  GridPadding padding;
  bool align;
  int64_t n, channels;
  int64_t dims;     // 2 or 3
  int64_t size[3];  // of the image, the last dim of which is the grid's first coordinate
  int64_t places;   // per image

  int64_t area() const { return size[0] * size[1] * (dims == 3 ? size[2] : 1); }
};

// Slot "grid_sample": x [n, channels, *size] at grid [n, places, dims] -> out [n, channels, places].
using GridSampleFn = void(const LaunchContext&, const GridPlan&, void* out, const void* x, const void* grid);
// Slots "grid_sample_input" and "grid_sample_grid": the gradients of x and of grid from that of `out`, g.
using GridInputFn = void(const LaunchContext&, const GridPlan&, void* grad_x, const void* g,
                         const void* grid);
using GridGridFn = void(const LaunchContext&, const GridPlan&, void* grad_grid, const void* g, const void* x,
                        const void* grid);

}  // namespace warptape::kernels
