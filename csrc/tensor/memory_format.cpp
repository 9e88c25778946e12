#include "tensor/memory_format.h"

#include "core/errors.h"

namespace warptape {
namespace {

constexpr std::string_view kNames[] = {"torch.contiguous_format", "torch.preserve_format",
                                       "torch.channels_last", "torch.channels_last_3d"};

// Dims from the innermost to the outermost.
constexpr int64_t kImages[] = {1, 3, 2, 0}, kVolumes[] = {1, 4, 3, 2, 0};
IntList channels_last_order(MemoryFormat format) {
  return format == MemoryFormat::ChannelsLast ? IntList(kImages) : IntList(kVolumes);
}

bool speaks_of_channels_last(const Tensor& t, IntList order) {
  const Shape &sizes = t.sizes(), &strides = t.strides();
  int64_t least = 0;
  if (strides[1] == 0) return false;
  for (int64_t d : order) {
    if (sizes[d] == 0 || strides[d] < least) return false;
    // [N, 1, 1, 1], and [N, C, 1, W] seen with dims exchanged, are row-major as well.
    if (d == 0 && least == strides[1]) return false;
    least = strides[d] * std::max<int64_t>(sizes[d], 1);
  }
  return true;
}

}  // namespace

MemoryFormat memory_format(const char* op, std::optional<std::string_view> name, MemoryFormat otherwise) {
  if (!name) return otherwise;
  const auto* found = std::find(std::begin(kNames), std::end(kNames), *name);
  WT_CHECK(found != std::end(kNames), TypeError, op,
           ": argument 'memory_format' must be one of torch.contiguous_format, torch.preserve_format, "
           "torch.channels_last and torch.channels_last_3d, not '",
           *name, "'");
  return static_cast<MemoryFormat>(found - kNames);
}

Shape strides_in(const char* op, IntList sizes, MemoryFormat format) {
  WT_CHECK(format != MemoryFormat::Preserve, Error, op, ": unsupported memory format Preserve");
  if (format == MemoryFormat::Contiguous) return contiguous_strides(sizes);
  const IntList order = channels_last_order(format);
  WT_CHECK(sizes.size() == order.size(), ShapeError, op, ": required rank ", order.size(), " tensor to use ",
           kNames[static_cast<int>(format)].substr(6), " format, got sizes ", AsShape{sizes});
  Shape strides(sizes.size(), 1);
  int64_t run = 1;
  for (int64_t d : order) {
    strides[d] = run;
    run *= sizes[d];
  }
  return strides;
}

bool is_contiguous_in(const Tensor& t, MemoryFormat format) {
  if (format == MemoryFormat::Contiguous || format == MemoryFormat::Preserve) return t.is_contiguous();
  const IntList order = channels_last_order(format);
  if (t.sizes().size() != order.size()) return false;
  int64_t expect = 1;
  for (int64_t d : order) {
    if (t.sizes()[d] != 1 && t.strides()[d] != expect) return false;
    expect *= t.sizes()[d];
  }
  return true;
}

MemoryFormat suggested_format(const Tensor& t) {
  if (t.ndim() == 4 && speaks_of_channels_last(t, kImages)) return MemoryFormat::ChannelsLast;
  if (t.ndim() == 5 && speaks_of_channels_last(t, kVolumes)) return MemoryFormat::ChannelsLast3d;
  return MemoryFormat::Contiguous;
}

bool is_dense(const Tensor& t) {
  if (t.is_contiguous()) return true;
  SmallVector<int64_t, 8> order;
  for (int64_t d = 0; d < t.ndim(); ++d)
    if (t.sizes()[d] != 1) order.push_back(d);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return t.strides()[a] < t.strides()[b]; });
  int64_t expect = 1;
  for (int64_t d : order) {
    if (t.strides()[d] != expect) return false;
    expect *= t.sizes()[d];
  }
  return true;
}

Tensor empty_in(IntList sizes, TensorOptions options, MemoryFormat format) {
  if (format == MemoryFormat::Contiguous) return empty(sizes, options);
  return empty_strided(sizes, strides_in("empty", sizes, format), options);
}

Tensor empty_like_in(const char* op, const Tensor& t, TensorOptions options, MemoryFormat format) {
  if (format != MemoryFormat::Preserve)
    return empty_strided(t.sizes(), strides_in(op, t.sizes(), format), options);
  if (is_dense(t)) return empty_strided(t.sizes(), t.strides(), options);
  return empty_strided(t.sizes(), ordered_strides(t.sizes(), {&t.strides(), 1}), options);
}

Tensor raw_in(const Tensor& t, MemoryFormat format) {
  if (is_contiguous_in(t, format)) return t;
  Tensor out = empty_in(t.sizes(), options_of(t), format);
  raw_copy(out, t);
  return out;
}

Shape ordered_strides(IntList sizes, std::span<const Shape> operands) {
  // Above 0: dim a lies outside of b.
  const auto compare = [&](int64_t a, int64_t b) {
    for (const Shape& strides : operands) {
      if (strides[a] == 0 || strides[b] == 0) continue;
      if (strides[a] != strides[b]) return strides[a] > strides[b] ? 1 : -1;
      if (sizes[a] > sizes[b]) return 1;
    }
    return 0;
  };
  Shape order;  // from the innermost to the outermost
  for (size_t i = 0; i < sizes.size(); ++i) {
    order.push_back(static_cast<int64_t>(sizes.size() - 1 - i));
    for (size_t at = i, before = i; before-- > 0;) {
      const int found = compare(order[before], order[at]);
      if (found < 0) break;
      if (found > 0) std::swap(order[before], order[at]), at = before;
    }
  }
  Shape strides(sizes.size(), 1);
  int64_t run = 1;
  for (int64_t d : order) {
    strides[d] = run;
    run *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

}  // namespace warptape
