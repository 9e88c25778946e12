// Complex numbers as CUDA's libraries take them, for Note [Emulated CUDA].
#pragma once

struct alignas(8) cuComplex {
  float x, y;
};
struct alignas(16) cuDoubleComplex {
  double x, y;
};
