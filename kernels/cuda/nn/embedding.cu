// Rows of a table by index, and the sum of gradients by index; see Note [order].
#include "kernels/nn/embedding.h"

#include "kernels/cuda/index/order.cuh"
#include "kernels/cuda/index/rows.cuh"
#include "kernels/slot.h"

namespace warptape::kernels::cuda {
namespace {

void embedding(const LaunchContext& ctx, const View& out, const View& table, const View& indices,
               int64_t count, int64_t vocab, int64_t dim) {
  RowCopy c{};
  c.to = out.data;
  c.from = table.data;
  c.row_bytes = dim * int64_t(itemsize(table.dtype));
  c.from_step = c.row_bytes;
  c.keys = indices.as<const int64_t>();
  c.key_step = 1;
  c.count = count;
  c.bound = vocab;
  take_rows(ctx, "embedding", c);
}

void embedding_backward(const LaunchContext& ctx, const View& dtable, const View& grad, const View& indices,
                        int64_t count, int64_t vocab, int64_t dim, int64_t padding_idx) {
  const char* op = "embedding_backward";
  use_device(ctx.device_index);
  check(cudaMemsetAsync(dtable.data, 0, size_t(vocab * dim) * itemsize(dtable.dtype),
                        static_cast<cudaStream_t>(ctx.stream)),
        op);
  OrderedWrite w{};
  w.dtype = dtable.dtype;
  w.mode = ScatterMode::Add;
  w.replaces = count <= kMostPositions;  // else a later chunk adds to an earlier one
  w.to = dtable.data;
  w.to_step = dim;
  w.from = grad.data;
  w.bound = uint64_t(vocab);
  w.column_count = dim;
  w.rows.set_dims(1, &count, count);
  w.rows.strides[0][0] = dim;
  w.columns.set_dims(1, &dim, dim);
  w.columns.strides[0][0] = w.columns.strides[1][0] = 1;
  for (; w.first < count; w.first += kMostPositions) {
    const int64_t some = count - w.first < kMostPositions ? count - w.first : kMostPositions;
    const Sorted pairs =
        pairs_of_index(ctx, op, indices.as<const int64_t>() + w.first, 1, some, vocab, padding_idx);
    write_ordered(ctx, op, sort_pairs(ctx, op, pairs, some, bits_of(w.bound)), some, w);
  }
}

}  // namespace

WT_KERNEL(embedding, embedding);
WT_KERNEL(embedding_backward, embedding_backward);

}  // namespace warptape::kernels::cuda
