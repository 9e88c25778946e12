// Slot "copy": from any dtype and layout to any other; a scalar input fills. Contiguous copies are one pass,
// transposes go by square tiles, the rest runs through the elementwise driver.

#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/vector/tile.h"
#include "kernels/cpu/view/convert.h"
#include "kernels/dispatch.h"
#include "kernels/runtime/parallel.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

constexpr int64_t kGrain = 65536;  // elements a worker takes at once
constexpr int64_t kTile = 64;      // edge of the tiles that a transpose walks through

template <class T>
void move_or_fill(int64_t n, void* out, const void* const* in, unsigned scalar_mask) {
  if (!scalar_mask) {
    std::memcpy(out, in[0], size_t(n) * sizeof(T));
    return;
  }
  T value;
  std::memcpy(&value, in[0], sizeof(T));
  T* o = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) o[i] = value;
}

// to[i * to_stride + j] = from[j * from_stride + i], all in elements.
template <class T>
WT_FN void transpose_plain(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows,
                           int64_t cols) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) to[i * to_stride + j] = from[j * from_stride + i];
}

WT_FN void transpose_square(const uint32_t* from, int64_t fs, uint32_t* to, int64_t ts) {
  __m128 r[4];
  for (int k = 0; k < 4; ++k) r[k] = _mm_loadu_ps(reinterpret_cast<const float*>(from + k * fs));
  _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
  for (int k = 0; k < 4; ++k) _mm_storeu_ps(reinterpret_cast<float*>(to + k * ts), r[k]);
}
WT_FN void transpose_square(const uint64_t* from, int64_t fs, uint64_t* to, int64_t ts) {
  __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + fs));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi64(a, b));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + ts), _mm_unpackhi_epi64(a, b));
}
// Rounds of interleaving the first half of the rows with the second transpose eight rows of two bytes, or 16
// of one.
template <class T>
WT_FN void transpose_square(const T* from, int64_t fs, T* to, int64_t ts) {
  typedef T Lanes __attribute__((vector_size(16)));
  constexpr int kRows = 16 / sizeof(T);
  Lanes r[kRows], t[kRows], index;
  for (int k = 0; k < kRows; ++k) index[k] = T(k / 2 + k % 2 * kRows);
  for (int k = 0; k < kRows; ++k) std::memcpy(&r[k], from + k * fs, 16);
  for (int round = 1; round < kRows; round *= 2) {
    for (int k = 0; k < kRows / 2; ++k) {
      t[2 * k] = __builtin_shuffle(r[k], r[k + kRows / 2], index);
      t[2 * k + 1] = __builtin_shuffle(r[k], r[k + kRows / 2], index + T(kRows / 2));
    }
    for (int k = 0; k < kRows; ++k) r[k] = t[k];
  }
  for (int k = 0; k < kRows; ++k) std::memcpy(to + k * ts, &r[k], 16);
}

template <class T>
void transpose_tile(const T* from, int64_t fs, T* to, int64_t ts, int64_t rows, int64_t cols) {
  if constexpr (sizeof(T) == 16) {
    transpose_plain(from, fs, to, ts, rows, cols);
  } else {
    constexpr int64_t kEdge = 16 / sizeof(T);
    const int64_t full_rows = rows / kEdge * kEdge, full_cols = cols / kEdge * kEdge;
    for (int64_t i = 0; i < full_rows; i += kEdge)
      for (int64_t j = 0; j < full_cols; j += kEdge)
        transpose_square(from + j * fs + i, fs, to + i * ts + j, ts);
    transpose_plain(from + full_cols * fs, fs, to + full_cols, ts, full_rows, cols - full_cols);
    transpose_plain(from + full_rows, fs, to + full_rows * ts, ts, rows - full_rows, cols);
  }
}

// The dim along which the input is packed while the output is packed along the last one; -1 if there is none.
int transposed_dim(const ElementwisePlan& plan) {
  const Operand& out = plan.operands[0];
  const Operand& in = plan.operands[1];
  const int64_t item = int64_t(itemsize(out.dtype));
  const int last = plan.ndim - 1;
  if (out.dtype != in.dtype || in.host_scalar || last < 1) return -1;
  if (out.strides[last] != item || in.strides[last] == item || in.strides[last] == 0 || plan.sizes[last] < 4)
    return -1;
  for (int d = 0; d < last; ++d)
    if (in.strides[d] == item && plan.sizes[d] >= 4) return d;
  return -1;
}

// All (outer index, band of kTile rows along dim `d`) pairs from begin to end.
template <class T>
void transpose_bands(const ElementwisePlan& plan, int d, int64_t begin, int64_t end) {
  constexpr int64_t kItem = sizeof(T);
  const Operand& out = plan.operands[0];
  const Operand& in = plan.operands[1];
  const int last = plan.ndim - 1;
  const int64_t bands = (plan.sizes[d] + kTile - 1) / kTile;
  const int64_t rows = plan.sizes[d], cols = plan.sizes[last];
  for (int64_t unit = begin; unit < end; ++unit) {
    int64_t outer = unit / bands, from = 0, to = 0;
    for (int k = last - 1; k >= 0; --k) {
      if (k == d) continue;
      from += outer % plan.sizes[k] * in.strides[k];
      to += outer % plan.sizes[k] * out.strides[k];
      outer /= plan.sizes[k];
    }
    const int64_t i = unit % bands * kTile;
    const int64_t height = rows - i < kTile ? rows - i : kTile;
    const T* f = reinterpret_cast<const T*>(in.data + from + i * kItem);
    T* t = reinterpret_cast<T*>(out.data + to + i * out.strides[d]);
    const int64_t fs = in.strides[last] / kItem, ts = out.strides[d] / kItem;
    for (int64_t j = 0; j < cols; j += kTile)
      transpose_tile(f + j * fs, fs, t + j, ts, height, cols - j < kTile ? cols - j : kTile);
  }
}

void transpose(const ElementwisePlan& plan, int d) {
  const int64_t cols = plan.sizes[plan.ndim - 1];
  const int64_t units = plan.numel / (cols * plan.sizes[d]) * ((plan.sizes[d] + kTile - 1) / kTile);
  const int64_t per_unit = cols * (plan.sizes[d] < kTile ? plan.sizes[d] : kTile);
  const int64_t grain = per_unit >= kGrain ? 1 : kGrain / per_unit;
  dispatch_size(MoveTypes{}, itemsize(plan.operands[0].dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    cpu::parallel_for(units, grain, [&](int64_t b, int64_t e) { transpose_bands<T>(plan, d, b, e); });
  });
}

bool try_contiguous(const ElementwisePlan& plan) {
  const Operand& out = plan.operands[0];
  const Operand& in = plan.operands[1];
  const int64_t to = int64_t(itemsize(out.dtype)), from = int64_t(itemsize(in.dtype));
  if (plan.ndim > 1 || in.host_scalar) return false;
  if (plan.numel > 1 && (out.strides[0] != to || in.strides[0] != from)) return false;
  ConvertFn* convert = converter(in.dtype, out.dtype);
  cpu::parallel_for(plan.numel, kGrain,
                    [&](int64_t b, int64_t e) { convert(e - b, out.data + b * to, in.data + b * from); });
  return true;
}

// Into packed memory of the same dtype.
bool try_gather(const ElementwisePlan& plan) {
  const Operand &out = plan.operands[0], &in = plan.operands[1];
  const size_t item = itemsize(out.dtype);
  if (plan.ndim == 0 || in.host_scalar || in.dtype != out.dtype || !is_packed(plan, out)) return false;
  cpu::parallel_for(plan.numel, kGrain, [&](int64_t begin, int64_t end) {
    Position<ElementwisePlan> at;
    at.set(plan, begin);
    move_strided(plan, in, at, end - begin, out.data + begin * int64_t(item), item, true);
  });
  return true;
}

constexpr Loops kLoops{nullptr, nullptr, nullptr, 1, false, false, false};

void copy(const LaunchContext& ctx, const ElementwisePlan& given) {
  if (given.numel == 0 || try_contiguous(given)) return;
  const int d = transposed_dim(given);
  if (d >= 0) return transpose(given, d);
  if (try_gather(given)) return;
  ElementwisePlan plan = given;
  plan.compute = given.operands[0].dtype;  // the loop only moves; conversion is the driver's
  dispatch_size(MoveTypes{}, itemsize(plan.compute), [&](auto tag) {
    using T = typename decltype(tag)::type;
    run_with_loop(ctx, plan, kLoops, move_or_fill<T>);
  });
}
WT_KERNEL(copy, copy);

}  // namespace

LoopFn* copy_loop(size_t itemsize) {
  LoopFn* loop = nullptr;
  dispatch_size(MoveTypes{}, itemsize, [&](auto tag) { loop = &move_or_fill<typename decltype(tag)::type>; });
  return loop;
}

}  // namespace warptape::kernels::WARPTAPE_ISA
