// From the number of an element to its place in strided memory.
#pragma once

#include "kernels/cuda/common/launch.cuh"

namespace warptape::kernels::cuda {

// Division by a number known at launch: a multiplication where both fit 31 bits (Granlund and Montgomery,
// "Division by invariant integers using multiplication", PLDI 1994), else the real thing.
struct FastDivide {
  int64_t divisor = 1;
  uint32_t factor = 0, shift = 0;  // of the 32-bit way

  FastDivide() = default;
  explicit FastDivide(int64_t d) : divisor(d) {
    if (d <= 0 || d > INT32_MAX) return;
    while ((int64_t{1} << shift) < d) ++shift;
    factor = static_cast<uint32_t>((((uint64_t{1} << shift) - d) << 32) / d + 1);
  }
  WT_DEVICE uint32_t quotient32(uint32_t n) const { return (__umulhi(n, factor) + n) >> shift; }
  template <bool Wide>
  WT_DEVICE int64_t quotient(int64_t n) const {
    if constexpr (Wide)
      return n / divisor;
    else
      return quotient32(static_cast<uint32_t>(n));
  }
};

inline constexpr int kIndexDims = 8;        // launchers loop over what is beyond: see for_dims
inline constexpr int kManyDims = kMaxDims;  // or have maps of so many: slower, and of 1 KB an operand

// Offsets of `Count` operands at one linear index, the last dim fastest. Strides in any unit.
template <int Count>
struct Offsets {
  int64_t of[Count];
};
template <int Count, int Dims = kIndexDims>
struct IndexMap {
  int ndim = 0;
  bool wide = false;  // 64-bit division is needed
  FastDivide sizes[Dims];
  int64_t strides[Count][Dims] = {};

  // numel is what linear indices stay below.
  void set_dims(int n, const int64_t* dims, int64_t numel) {
    ndim = n;
    wide = numel > INT32_MAX;
    for (int d = 0; d < n; ++d) sizes[d] = FastDivide(dims[d]);
  }

  // The loop stays one: mostly there is one dim, and with divisions for each of `Dims` a kernel is little
  // else.
  WT_DEVICE Offsets<Count> operator()(int64_t linear) const {
    Offsets<Count> r{};
#pragma unroll 1
    for (int d = ndim - 1; d >= 0; --d) {
      const int64_t size = sizes[d].divisor;
      const int64_t q = d == 0 ? 0 : wide ? linear / size : sizes[d].quotient32(uint32_t(linear));
#pragma unroll
      for (int k = 0; k < Count; ++k) r.of[k] += (linear - q * size) * strides[k][d];
      linear = q;
    }
    return r;
  }
  // Of several linear indices side by side.
  template <int Each>
  WT_DEVICE void locate(int64_t (&linear)[Each], Offsets<Count> (&places)[Each]) const {
#pragma unroll
    for (int u = 0; u < Each; ++u) places[u] = {};
#pragma unroll 1
    for (int d = ndim - 1; d >= 0; --d) {
      const FastDivide size = sizes[d];
#pragma unroll
      for (int u = 0; u < Each; ++u) {
        const int64_t q = d == 0 ? 0 : wide ? linear[u] / size.divisor : size.quotient32(uint32_t(linear[u]));
        const int64_t at = linear[u] - q * size.divisor;
        linear[u] = q;
#pragma unroll
        for (int k = 0; k < Count; ++k) places[u].of[k] += at * strides[k][d];
      }
    }
  }
};

// The map of `Count` views with the sizes of the first (strides in elements); false when there are too many
// dims even after neighbours that are one run everywhere were merged.
template <int Count, int Dims>
bool make_index_map(IndexMap<Count, Dims>& map, const View* const (&views)[Count]) {
  const View& first = *views[0];
  int64_t dims[kMaxDims];
  int64_t strides[Count][kMaxDims];
  int n = 0;
  for (int d = 0; d < first.ndim; ++d) {
    if (first.sizes[d] == 1) continue;
    bool merges = n > 0;
    for (int k = 0; merges && k < Count; ++k)
      merges = strides[k][n - 1] == views[k]->strides[d] * first.sizes[d];
    const int at = merges ? n - 1 : n++;
    dims[at] = merges ? dims[at] * first.sizes[d] : first.sizes[d];
    for (int k = 0; k < Count; ++k) strides[k][at] = views[k]->strides[d];
  }
  if (n > Dims) return false;
  map.set_dims(n, dims, first.numel());
  for (int k = 0; k < Count; ++k)
    for (int d = 0; d < n; ++d) map.strides[k][d] = strides[k][d];
  return true;
}

}  // namespace warptape::kernels::cuda
