// Views of the parts of a dim, as a list: split, chunk, unbind. All are outputs of one node, whose backward
// writes the gradient of the whole once; a node for each part would fill as large a buffer, and add it.
#include <algorithm>
#include <memory>
#include <numeric>

#include "kernels/runtime/interrupt.h"
#include "op/forms.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"
#include "ops/view/view_copy.h"

namespace warptape::ops {
namespace {

// The dim, the lengths of the parts along it, and the sizes of what they are of.
struct Parts {
  int64_t dim;
  Shape lengths;  // empty where each is one index and has the dim no more
  Shape sizes;

  Shape sizes_of(size_t i) const {
    Shape part = sizes;
    if (lengths.empty())
      part.erase(dim);
    else
      part[dim] = lengths[i];
    return part;
  }
};

void parts_backward(Node& n, Gradients& g) {
  const Parts& p = n.data<Parts>();
  Tensor any;
  for (size_t i = 0; i < g.outputs() && !any.defined(); ++i) any = g[i];
  std::vector<Tensor> parts;
  parts.reserve(g.outputs());
  for (size_t i = 0; i < g.outputs(); ++i)
    parts.push_back(g[i].defined() ? tape_expand(g[i], p.sizes_of(i))
                                   : zeros(p.sizes_of(i), options_of(any)));
  g.set(0, (p.lengths.empty() ? stack : cat)(parts, p.dim));
}
constexpr NodeType kSplit{"SplitBackward0", parts_backward},
    kSplitSizes{"SplitWithSizesBackward0", parts_backward}, kUnbind{"UnbindBackward0", parts_backward};

// Refused at once where memory cannot hold so many.
void check_count(int64_t count) {
  constexpr int64_t kViewBytes = 256, kFew = 1 << 20;
  if (count <= kFew) return;
  std::unique_ptr<char[]> room(new char[static_cast<size_t>(count * kViewBytes)]);
  asm volatile("" : : "r"(room.get()));  // else the compiler leaves out what is only asked for
}

std::vector<Tensor> views_of(const NodeType& type, const Tensor& x, int64_t count, Parts parts,
                             bool tracked = true) {
  constexpr int64_t kPiece = 4096;
  check_count(count);
  const Ref<Node> node = needs_grad(x) && count ? record(type, x) : Ref<Node>();
  std::vector<Tensor> out;
  out.reserve(static_cast<size_t>(count));
  const int64_t stride = x.strides()[parts.dim];
  Shape strides = x.strides();
  if (parts.lengths.empty()) strides.erase(parts.dim);
  for (int64_t i = 0, at = 0; i < count; ++i) {
    if (i % kPiece == kPiece - 1) kernels::cpu::poll_interrupt();
    const int64_t length = parts.lengths.empty() ? 1 : parts.lengths[i];
    out.push_back(
        alias(x, parts.sizes_of(static_cast<size_t>(i)), strides, x.offset() + (length ? at * stride : 0)));
    at += length;
    if (tracked)
      set_view(out.back(), x, ViewOrigin::MultipleOutputs);
    else
      out.back()->own_version = Ref<VersionCounter>::adopt(new VersionCounter);
    if (node) set_history(out.back(), node);
  }
  if (node) node->emplace<Parts>(std::move(parts));
  return out;
}

template <bool TRACKED = true>
std::vector<Tensor> split_sizes_impl(const Tensor& x, IntList lengths, int64_t dim) {
  WT_CHECK(x.ndim() > 0, ShapeError, "split: split expects at least a 1-dimensional tensor");
  dim = wrap_dim(dim, x.ndim(), "split");
  int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  WT_CHECK(
      sum == x.sizes()[dim] && std::all_of(lengths.begin(), lengths.end(), [](int64_t n) { return n >= 0; }),
      ShapeError, "split: split_with_sizes expects split_sizes to sum exactly to ", x.sizes()[dim],
      " (input tensor's size at dimension ", dim, "), but got split_sizes=", AsShape{lengths});
  if (lengths.empty()) return {};
  return views_of(kSplitSizes, x, static_cast<int64_t>(lengths.size()), {dim, Shape(lengths), x.sizes()},
                  TRACKED);
}

template <bool TRACKED = true>
std::vector<Tensor> split_impl(const Tensor& x, int64_t size, int64_t dim) {
  WT_CHECK(x.ndim() > 0, ShapeError, "split: split expects at least a 1-dimensional tensor");
  dim = wrap_dim(dim, x.ndim(), "split");
  int64_t n = x.sizes()[dim];
  WT_CHECK(size > 0 || (size == 0 && n == 0), ValueError,
           "split: split expects split_size be positive, but got split_size=", size);
  const int64_t count = n ? (n - 1) / size + 1 : 1;
  check_count(count);
  Shape lengths(static_cast<size_t>(count), size);
  lengths.back() = n - (count - 1) * size;
  return views_of(kSplit, x, count, {dim, std::move(lengths), x.sizes()}, TRACKED);
}

template <bool TRACKED = true>
std::vector<Tensor> chunk_impl(const Tensor& x, int64_t chunks, int64_t dim) {
  WT_CHECK(x.ndim() > 0, ShapeError, "chunk: chunk expects at least a 1-dimensional tensor");
  WT_CHECK(chunks > 0, ValueError, "chunk: chunk expects `chunks` to be greater than 0, got: ", chunks);
  dim = wrap_dim(dim, x.ndim(), "chunk");
  int64_t n = x.sizes()[dim], size = (n + chunks - 1) / chunks;
  if (n) return split_impl<TRACKED>(x, size, dim);
  check_count(chunks);
  return views_of(kSplit, x, chunks, {dim, Shape(static_cast<size_t>(chunks), 0), x.sizes()}, TRACKED);
}

std::vector<Tensor> unbind_impl(const Tensor& x, int64_t dim) {
  WT_CHECK(x.ndim() > 0, IndexError, "unbind: Dimension specified as ", dim, " but tensor has no dimensions");
  dim = wrap_dim(dim, x.ndim(), "unbind");
  return views_of(kUnbind, x, x.sizes()[dim], {dim, Shape(), x.sizes()});
}

constexpr OpFacts kList = kFunction | kMethod | kComplex | kAlongDims | kLinear | Aliasing::View;

}  // namespace

const Op<std::vector<Tensor>(const Tensor&, int64_t, int64_t)> split{
    "split",
    split_impl<>,
    kList,
    {"tensor", "split_size_or_sections", Arg::integer("dim", 0, kDimIndex)},
    "Views of split_size each; the last may be shorter."};
const Op<std::vector<Tensor>(const Tensor&, IntList, int64_t)> split_sizes =
    overload_of(split, split_sizes_impl<>, {}, "Views of the given lengths.");
const Op<std::vector<Tensor>(const Tensor&, IntList, int64_t)> split_with_sizes{
    "split_with_sizes",
    split_sizes_impl<>,
    kList,
    {"input", "split_sizes", Arg::integer("dim", 0, kDimIndex)},
    "Views of the given lengths."};
const Op<std::vector<Tensor>(const Tensor&, int64_t, int64_t)> chunk{
    "chunk",
    chunk_impl<>,
    kList,
    {"input", "chunks", Arg::integer("dim", 0, kDimIndex)},
    "At most `chunks` views of equal length (the last may be shorter)."};
// Each may be changed in place: the tape does not know them as views, and counts the changes of each alone.
// That others of the memory are changed with it is for the caller to rule out.
const decltype(split) unsafe_split{
    "unsafe_split",
    split_impl<false>,
    kList,
    {"input", "split_size", Arg::integer("dim", 0, kDimIndex)},
    "split whose parts may be changed in place, where nobody uses the input any more."},
    unsafe_chunk{"unsafe_chunk",
                 chunk_impl<false>,
                 kList,
                 {"input", "chunks", Arg::integer("dim", 0, kDimIndex)},
                 "chunk whose parts may be changed in place, where nobody uses the input any more."};
const decltype(split_sizes) unsafe_split_with_sizes{
    "unsafe_split_with_sizes",
    split_sizes_impl<false>,
    kList,
    {"input", "split_sizes", Arg::integer("dim", 0, kDimIndex)},
    "split_with_sizes whose parts may be changed in place, where nobody uses the input any more."};
decltype(unbind) unbind{"unbind",
                        unbind_impl,
                        kList,
                        {"input", Arg::integer("dim", 0, kDimIndex)},
                        "One view per index of a dim."};
const auto split_copy = copy_of<split>("split_copy");
const auto split_with_sizes_copy = copy_of<split_with_sizes>("split_with_sizes_copy");
const auto unbind_copy = copy_of<unbind>("unbind_copy");

}  // namespace warptape::ops
