#include "core/shape.h"

#include <ostream>

#include "core/errors.h"

namespace warptape {

std::ostream& operator<<(std::ostream& out, AsShape s) {
  out << '[';
  for (size_t i = 0; i < s.list.size(); ++i) out << (i ? ", " : "") << s.list[i];
  return out << ']';
}

std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << AsShape{s}; }

int64_t numel_of(IntList sizes, const char* op) {
  WT_CHECK(sizes.size() <= kernels::kMaxDims, ShapeError, op, ": expected at most ", kernels::kMaxDims,
           " dimensions, got ", sizes.size());
  int64_t n = 1;
  bool empty = false, overflow = false;
  for (int64_t s : sizes) {
    WT_CHECK(s >= 0, ShapeError, op, ": expected sizes of at least 0, got ", AsShape{sizes});
    if (s == 0) empty = true;
    overflow |= __builtin_mul_overflow(n, s == 0 ? 1 : s, &n);
  }
  int64_t bytes;
  overflow |= __builtin_mul_overflow(n, int64_t{8}, &bytes);
  WT_CHECK(!overflow, ShapeError, op, empty ? ": Stride" : ": Storage size",
           " calculation overflowed with sizes=", AsShape{sizes});
  return empty ? 0 : n;
}

Shape contiguous_strides(IntList sizes) {
  Shape strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
  return strides;
}

bool is_contiguous(IntList sizes, IntList strides) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  int64_t expect = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != expect) return false;
    expect *= sizes[i];
  }
  return true;
}

int64_t wrap_dim(int64_t dim, int64_t ndim, const char* op) {
  int64_t n = std::max<int64_t>(ndim, 1);
  WT_CHECK(dim >= -n && dim < n, IndexError, op, ": Dimension out of range (expected to be in range of [", -n,
           ", ", n - 1, "], but got ", dim, ")");
  return dim < 0 ? dim + n : dim;
}

Shape wrap_dims(IntList dims, int64_t ndim, const char* op) {
  Shape out;
  for (int64_t d : dims) {
    int64_t w = wrap_dim(d, ndim, op);
    WT_CHECK(std::find(out.begin(), out.end(), w) == out.end(), ShapeError, op, ": dim ", w,
             " appears multiple times in the list of dims ", AsShape{dims});
    out.push_back(w);
  }
  return out;
}

Shape broadcast_shapes(IntList a, IntList b, const char* op) {
  const bool swapped = a.size() < b.size();
  if (swapped) std::swap(a, b);
  Shape out(a);
  size_t shift = a.size() - b.size();
  for (size_t i = b.size(); i-- > 0;) {  // from the last dim, which is the one that PyTorch names
    int64_t& s = out[shift + i];
    if (s == b[i] || b[i] == 1) continue;
    WT_CHECK(s == 1, ShapeError, op, ": shapes ", AsShape{swapped ? b : a}, " and ", AsShape{swapped ? a : b},
             " do not broadcast: The size of tensor a (", swapped ? b[i] : s,
             ") must match the size of tensor b (", swapped ? s : b[i], ") at non-singleton dimension ",
             shift + i);
    s = b[i];
  }
  return out;
}

Shape broadcast_strides(IntList sizes, IntList strides, IntList to, const char* op) {
  WT_CHECK(to.size() >= sizes.size(), ShapeError, op, ": the number of sizes provided (", to.size(),
           ") must be greater or equal to the number of dimensions in the tensor (", sizes.size(), ")");
  Shape out(to.size(), 0);
  size_t shift = to.size() - sizes.size();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t wanted = to[shift + i];
    WT_CHECK(sizes[i] == wanted || sizes[i] == 1, ShapeError, op, ": The expanded size of the tensor (",
             wanted, ") must match the existing size (", sizes[i], ") at non-singleton dimension ", shift + i,
             ". Target sizes: ", AsShape{to}, ". Tensor sizes: ", AsShape{sizes});
    if (wanted == sizes[i]) out[shift + i] = strides[i];
  }
  return out;
}

Shape infer_size(IntList sizes, int64_t numel, const char* op) {
  Shape out(sizes);
  int64_t known = 1, hole = -1;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == -1) {
      WT_CHECK(hole < 0, ShapeError, op, ": only one dimension can be inferred, got ", AsShape{sizes});
      hole = static_cast<int64_t>(i);
    } else {
      WT_CHECK(out[i] >= 0 && !__builtin_mul_overflow(known, out[i], &known), ShapeError, op,
               ": invalid shape ", AsShape{sizes});
    }
  }
  if (hole >= 0) {
    WT_CHECK(known != 0 || numel != 0, ShapeError, op, ": cannot reshape tensor of 0 elements into shape ",
             AsShape{sizes}, " because the unspecified dimension size -1 can be any value");
    WT_CHECK(known != 0, ShapeError, op, ": shape ", AsShape{sizes}, " is invalid for input of size ", numel);
    out[hole] = numel / known;
    known *= out[hole];
  }
  WT_CHECK(known == numel, ShapeError, op, ": shape ", AsShape{sizes}, " is invalid for input of size ",
           numel);
  return out;
}

}  // namespace warptape
