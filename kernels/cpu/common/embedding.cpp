// Rows of a table by index, and the deterministic sum of gradients by index: indices are put into groups of
// equal value by a stable counting sort, then every row of the table is written once.
#include "kernels/nn/embedding.h"

#include "kernels/cpu/common/walk.h"
#include "kernels/dispatch.h"
#include "kernels/slot.h"

namespace warptape::kernels::cpu {
namespace {

void embedding(const LaunchContext& ctx, const View& out, const View& table, const View& indices,
               int64_t count, int64_t vocab, int64_t dim) {
  const size_t row = dim * itemsize(table.dtype);
  const int64_t* p = indices.as<int64_t>();
  parallel_for(count, kWalkGrain / (dim + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (p[i] < 0 || p[i] >= vocab) {
        report_index(ctx, p[i], vocab);
        continue;
      }
      std::memcpy(out.as<char>() + i * row, table.as<char>() + p[i] * row, row);
    }
  });
}

// start[v]..start[v + 1]: the positions of index v in `order`.
struct Groups {
  const int64_t* start;
  const int64_t* order;
};

Groups group(const LaunchContext& ctx, const int64_t* indices, int64_t count, int64_t vocab,
             int64_t padding_idx) {
  auto* start = static_cast<int64_t*>(ctx.scratch((vocab + 2) * sizeof(int64_t)));
  auto* order = static_cast<int64_t*>(ctx.scratch((count + 1) * sizeof(int64_t)));
  std::memset(start, 0, (vocab + 2) * sizeof(int64_t));
  auto taken = [&](int64_t v) { return v >= 0 && v < vocab && v != padding_idx; };
  for (int64_t i = 0; i < count; ++i) {
    if (indices[i] < 0 || indices[i] >= vocab) report_index(ctx, indices[i], vocab);
    if (taken(indices[i])) ++start[indices[i] + 2];
  }
  for (int64_t v = 2; v < vocab + 2; ++v) start[v] += start[v - 1];
  // start[v + 1] is now where group v begins and moves to its end, which is where group v + 1 begins.
  for (int64_t i = 0; i < count; ++i)
    if (taken(indices[i])) order[start[indices[i] + 1]++] = i;
  return {start, order};
}

inline constexpr int64_t kPiece = 256;  // columns summed at a time, in registers or the first cache

template <class T>
void sum_rows(T* to, const T* grad, const int64_t* order, int64_t rows, int64_t dim) {
  using C = Compute<T>;
  for (int64_t first = 0; first < dim; first += kPiece) {
    const int64_t n = dim - first < kPiece ? dim - first : kPiece;
    C sum[kPiece];
    for (int64_t j = 0; j < n; ++j) sum[j] = C(0);
    for (int64_t r = 0; r < rows; ++r) {
      const T* g = grad + order[r] * dim + first;
      for (int64_t j = 0; j < n; ++j) sum[j] += C(g[j]);
    }
    for (int64_t j = 0; j < n; ++j) to[first + j] = T(sum[j]);
  }
}

void embedding_backward(const LaunchContext& ctx, const View& dtable, const View& grad, const View& indices,
                        int64_t count, int64_t vocab, int64_t dim, int64_t padding_idx) {
  const Groups groups = group(ctx, indices.as<int64_t>(), count, vocab, padding_idx);
  const int64_t work = (count / (vocab + 1) + 1) * dim;  // per row of the table, on average
  dispatch(FloatTypes{}, dtable.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    parallel_for(vocab, kWalkGrain / (work + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        T* to = dtable.as<T>() + v * dim;
        const int64_t first = groups.start[v], rows = groups.start[v + 1] - first;
        if (rows == 0)
          std::memset(static_cast<void*>(to), 0, dim * sizeof(T));
        else
          sum_rows(to, grad.as<T>(), groups.order + first, rows, dim);
      }
    });
  });
}

}  // namespace

WT_KERNEL(embedding, embedding);
WT_KERNEL(embedding_backward, embedding_backward);

}  // namespace warptape::kernels::cpu
