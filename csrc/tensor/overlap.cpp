// Whether two views of one storage have bytes in common.
#include <algorithm>
#include <array>

#include "kernels/types.h"
#include "tensor/factory.h"
#include "tensor/memory_format.h"

namespace warptape {
namespace {

struct Bytes {
  int64_t begin, end;
};

Bytes extent(const Tensor& t) {
  const auto item = static_cast<int64_t>(t.itemsize());
  int64_t last = t.offset();
  for (int64_t d = 0; d < t.ndim(); ++d) last += (t.sizes()[d] - 1) * t.strides()[d];
  return {t.offset() * item, (last + 1) * item};
}

// stride * k bytes, for a whole k in [low, high].
struct Term {
  int64_t stride, low, high;
};

class Meeting {
 public:
  Meeting(const Tensor& a, const Tensor& b) {
    add(a, 1), add(b, -1);
    std::sort(terms_.begin(), terms_.begin() + count_,
              [](const Term& x, const Term& y) { return x.stride > y.stride; });
  }

  // Whether the terms can add up to a number in [target - high, target - low]; true where that is not decided
  // within a bounded search.
  bool reaches(int64_t target, int64_t low, int64_t high, int at = 0) {
    if (--steps_ < 0) return true;
    if (at == count_) return low <= target && target <= high;
    int64_t rest_low = low, rest_high = high;
    for (int k = at + 1; k < count_; ++k)
      rest_low += terms_[k].stride * terms_[k].low, rest_high += terms_[k].stride * terms_[k].high;
    const Term& t = terms_[at];
    const auto floor_div = [&](int64_t n) { return n / t.stride - (n % t.stride < 0); };
    const int64_t first = std::max(t.low, -floor_div(rest_high - target)),
                  last = std::min(t.high, floor_div(target - rest_low));
    for (int64_t k = first; k <= last; ++k)
      if (reaches(target - k * t.stride, low, high, at + 1)) return true;
    return false;
  }

 private:
  // Dims of one stride, in either tensor, make one term.
  void add(const Tensor& t, int sign) {
    for (int64_t d = 0; d < t.ndim(); ++d) {
      const int64_t stride = t.strides()[d] * static_cast<int64_t>(t.itemsize()), most = t.sizes()[d] - 1;
      if (stride == 0 || most == 0) continue;
      auto* end = terms_.begin() + count_;
      auto* found = std::find_if(terms_.begin(), end, [&](const Term& x) { return x.stride == stride; });
      if (found == end) *found = {stride, 0, 0}, ++count_;
      (sign > 0 ? found->high : found->low) += sign * most;
    }
  }

  std::array<Term, 2 * kernels::kMaxDims> terms_;
  int count_ = 0, steps_ = 256;
};

bool same_view(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.offset() != b.offset() || a.sizes() != b.sizes()) return false;
  for (int64_t d = 0; d < a.ndim(); ++d)
    if (a.sizes()[d] != 1 && a.strides()[d] != b.strides()[d]) return false;
  return true;
}

}  // namespace

Overlap overlap_of(const Tensor& a, const Tensor& b) {
  if (a->storage != b->storage || !a.numel() || !b.numel() || a.storage().is_opaque()) return Overlap::None;
  if (same_view(a, b)) return Overlap::Full;
  const Bytes x = extent(a), y = extent(b);
  if (x.begin >= y.end || y.begin >= x.end) return Overlap::None;
  if (is_dense(a) && is_dense(b)) return Overlap::Partial;
  // An element of a and one of b meet where the distance of their first bytes is less than their sizes.
  const auto of_a = static_cast<int64_t>(a.itemsize()), of_b = static_cast<int64_t>(b.itemsize());
  return Meeting(a, b).reaches(y.begin - x.begin, 1 - of_b, of_a - 1) ? Overlap::Unordered : Overlap::None;
}

}  // namespace warptape
