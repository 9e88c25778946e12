// Regions of memory, some elements of which may share a memory location.
#include <algorithm>
#include <numeric>

#include "autograd/inplace_view.h"

namespace warptape {
namespace {

// By rising strides, each dim steps over all that the dims before it reach: no two elements meet.
bool steps_over(const Tensor& t, Shape dims) {
  std::sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return t.strides()[a] < t.strides()[b]; });
  int64_t reach = 0;
  for (int64_t d : dims) {
    if (t.strides()[d] <= reach) return false;
    reach += (t.sizes()[d] - 1) * t.strides()[d];
  }
  return true;
}

// Those of more than one element, the longest first.
Shape long_dims(const Tensor& t) {
  Shape dims;
  for (int64_t d = 0; d < t.ndim(); ++d)
    if (t.sizes()[d] > 1) dims.push_back(d);
  std::stable_sort(dims.begin(), dims.end(),
                   [&](int64_t a, int64_t b) { return t.sizes()[a] > t.sizes()[b]; });
  return dims;
}

}  // namespace

bool may_overlap(const Tensor& t) { return !t.is_contiguous() && !steps_over(t, long_dims(t)); }

bool has_overlap(const Tensor& t) {
  if (t.is_contiguous() || t.numel() < 2) return false;
  const Shape dims = long_dims(t);
  if (steps_over(t, dims)) return false;
  int64_t reach = 0;
  for (int64_t d : dims) reach += (t.sizes()[d] - 1) * t.strides()[d];
  if (t.numel() > reach + 1) return true;
  // Strides like (3, 2) may interleave without meeting.
  std::vector<int64_t> places{0};
  for (int64_t d : dims) {
    const size_t n = places.size();
    for (int64_t i = 1; i < t.sizes()[d]; ++i)
      for (size_t k = 0; k < n; ++k) places.push_back(places[k] + i * t.strides()[d]);
  }
  std::sort(places.begin(), places.end());
  return std::adjacent_find(places.begin(), places.end()) != places.end();
}

void add_into(const Tensor& region, const Tensor& part) {
  if (!region.numel()) return;
  // Dims in which it is repeated are summed first.
  Shape sizes = region.sizes();
  for (int64_t d = 0; d < region.ndim(); ++d)
    if (region.strides()[d] == 0) sizes[d] = 1;
  const Tensor target = alias(region, sizes, region.strides(), region.offset());
  const Tensor values = raw_reduce_to(raw_cast(expand_view(part, region.sizes()), region.dtype()), sizes);
  Shape whole, stepped;  // dims that are added at once, and those that are stepped through
  for (int64_t d : long_dims(target)) {
    whole.push_back(d);
    if (steps_over(target, whole)) continue;
    whole.pop_back();
    stepped.push_back(d);
  }
  Shape inner = sizes;
  for (int64_t d : stepped) inner[d] = 1;
  Shape at(stepped.size(), 0);
  for (bool more = true; more;) {
    int64_t to = target.offset(), from = values.offset();
    for (size_t i = 0; i < stepped.size(); ++i) {
      to += at[i] * target.strides()[stepped[i]];
      from += at[i] * values.strides()[stepped[i]];
    }
    const Tensor slice = alias(target, inner, target.strides(), to);
    raw_add(slice, slice, alias(values, inner, values.strides(), from));
    more = false;
    for (size_t i = 0; !more && i < stepped.size(); ++i) {
      more = ++at[i] < sizes[stepped[i]];
      if (!more) at[i] = 0;
    }
  }
}

}  // namespace warptape
