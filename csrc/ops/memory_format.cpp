#include "ops/memory_format.h"

namespace warptape::ops {
namespace {

constexpr const char *kContiguous = "torch.contiguous_format", *kPreserve = "torch.preserve_format";

struct ChannelsLast {
  const char* name;
  int64_t ndim;
};
constexpr ChannelsLast kChannelsLast[]{{"torch.channels_last", 4}, {"torch.channels_last_3d", 5}};

// The dims from the innermost on: 1, then the spatial ones from the last, then 0.
template <class F>
void from_innermost(int64_t ndim, F&& f) {
  f(1);
  for (int64_t d = ndim - 1; d > 1; --d) f(d);
  f(0);
}

bool is_channels_last(const Tensor& x) {
  int64_t least = 0;
  bool ordered = x.strides()[1] != 0;
  from_innermost(x.ndim(), [&](int64_t d) {
    const int64_t size = x.sizes()[d], stride = x.strides()[d];
    // Of [n, 1, 1, 1] both formats hold; it counts as contiguous.
    ordered = ordered && size != 0 && stride >= least && !(d == 0 && least == x.strides()[1]);
    least = size > 1 ? stride * size : stride;
  });
  return ordered;
}

}  // namespace

std::optional<Shape> format_strides(const char* op, const Shape& sizes, const Format& format) {
  if (!format || *format == kPreserve) return std::nullopt;
  if (*format == kContiguous) return contiguous_strides(sizes);
  for (const ChannelsLast& f : kChannelsLast) {
    if (*format != f.name) continue;
    const auto ndim = static_cast<int64_t>(sizes.size());
    WT_CHECK(ndim == f.ndim, ShapeError, op, ": required rank ", f.ndim, " tensor to use ", f.name + 6,
             " format, got ", sizes);
    Shape strides = sizes;
    int64_t step = 1;
    from_innermost(ndim, [&](int64_t d) { strides[d] = step, step *= sizes[d]; });
    return strides;
  }
  throw TypeError(message(op, ": expected a memory format, got ", *format));
}

bool has_strides(const Tensor& x, const Shape& strides) {
  for (int64_t d = 0; d < x.ndim(); ++d)
    if (x.sizes()[d] != 1 && x.strides()[d] != strides[d]) return false;
  return true;
}

const char* suggested_format(const Tensor& x) {
  for (const ChannelsLast& f : kChannelsLast)
    if (x.ndim() == f.ndim && is_channels_last(x)) return f.name;
  return kContiguous;
}

}  // namespace warptape::ops
