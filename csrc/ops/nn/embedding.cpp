#include "ops/nn/embedding.h"

#include "kernels/nn/embedding.h"
#include "op/batching.h"
#include "ops/index/gather.h"
#include "ops/index/index.h"
#include "ops/kernel_inputs.h"
#include "ops/reduce/reduce.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::EmbeddingFn> embedding_slot{"embedding"};
kernels::Slot<kernels::EmbeddingBackwardFn> embedding_backward_slot{"embedding_backward"};

struct TableData {
  int64_t vocab, padding_idx;  // padding_idx -1: none
  bool by_frequency = false;   // the gradient of a row is divided by how often it is looked up
  bool sparse = false;         // the gradient is a sparse tensor of the rows that are looked up
};

Tensor table_gradient(const Tensor& grad, const Tensor& indices, const TableData& d);

// out[..., :] = table[indices[...], :]
Tensor take_rows(const Tensor& table, const Tensor& indices, const TableData& d);

// Of each index [*, 1], how many are equal to it.
Tensor how_often(const Tensor& indices, const Tensor& like, int64_t vocab) {
  NoGrad off;
  const Tensor at = raw_cast(reshape(indices, Shape{-1}), DType::Int64);
  const Tensor ones = full(at.sizes(), 1, options_of(at));
  const Tensor counts = index_add(zeros(Shape{vocab}, options_of(at)), 0, at, ones, 1);
  Shape sizes = indices.sizes();
  sizes.push_back(1);
  return raw_cast(reshape(index_select(counts, 0, at), sizes), like.dtype());
}

void take_rows_backward(Node& n, Gradients& g) {
  const TableData& d = n.data<TableData>();
  const Tensor indices = n.saved(0);
  const Tensor up = d.by_frequency ? g[0] / how_often(indices, g[0], d.vocab) : g[0];
  const bool sparse = d.sparse && tape_frontend() && !is_opaque(up) && !is_opaque(indices);
  g.set(0, sparse ? tape_frontend()->sparse_gradient(indices, up, d.vocab, d.padding_idx)
                  : table_gradient(up, indices, {d.vocab, d.padding_idx}));
}
constexpr NodeType kTakeRows{"EmbeddingBackward0", take_rows_backward};

// The padding row took no part in the sum, so nothing flows back from it.
void table_gradient_backward(Node& n, Gradients& g) {
  const TableData& d = n.data<TableData>();
  Tensor up = g[0];
  if (d.padding_idx >= 0) {
    Tensor mask = full(Shape{d.vocab, 1}, 1.0, options_of(up));
    raw_fill(alias(mask, Shape{1}, Shape{1}, d.padding_idx), 0);
    up = up * mask;
  }
  g.set(0, take_rows(up, n.saved(0), d));
}
constexpr NodeType kTableGradient{"EmbeddingDenseBackwardBackward0", table_gradient_backward};

Tensor with_history(const NodeType& type, const Tensor& out, const Tensor& x, const Tensor& indices,
                    const TableData& d) {
  if (needs_grad(x)) {
    Ref<Node> n = record(type, x);
    n->save(indices);
    n->emplace<TableData>(d);
    set_history(out, n);
  }
  return out;
}

Tensor table_gradient(const Tensor& grad, const Tensor& indices, const TableData& d) {
  const int64_t dim = grad.sizes().back();
  Tensor out = empty(Shape{d.vocab, dim}, options_of(grad));
  if (out.numel() && !out.is_meta()) {
    Tensor g = raw_contiguous(grad), index = raw_contiguous(raw_cast(indices, DType::Int64));
    embedding_backward_slot(Launch(grad.device()), out.view(), g.view(), index.view(), index.numel(), d.vocab,
                            dim, d.padding_idx);
  }
  return with_history(kTableGradient, out, grad, indices, d);
}

Tensor take_rows(const Tensor& table, const Tensor& indices, const TableData& d) {
  const int64_t dim = table.sizes()[1];
  Shape sizes = indices.sizes();
  sizes.push_back(dim);
  Tensor out = empty(sizes, options_of(table));
  if (out.numel() && !out.is_meta()) {
    Tensor from = raw_contiguous(table), index = raw_contiguous(raw_cast(indices, DType::Int64));
    Launch launch(table.device());
    embedding_slot(launch, out.view(), from.view(), index.view(), index.numel(), d.vocab, dim);
    launch.check_index("embedding", 0);
  }
  return with_history(kTakeRows, out, table, indices, d);
}

// Rows that are looked up and longer than max_norm are shortened to it, in place. A row that is looked up
// twice is written twice with the same values.
void renormalise(const Tensor& weight, const Tensor& indices, const TableData& d, double max_norm,
                 double norm_type) {
  NoGrad no_grad;
  Tensor table = detach(weight);
  Tensor rows = take_rows(table, indices, d);
  Shape kept = rows.sizes();
  kept.back() = 1;
  Tensor norms = pow_ts(sum_to(pow_ts(abs(rows), Scalar(norm_type)), kept), Scalar(1 / norm_type));
  Tensor factors = clamp(Scalar(max_norm) / (norms + Scalar(1e-7)), std::nullopt, Scalar(1.0));
  const OptTensor index = raw_cast(indices, DType::Int64);
  index_put_(table, {&index, 1}, rows * factors, false);
}

Tensor embedding_impl(const Tensor& indices, const Tensor& weight, std::optional<int64_t> padding_idx,
                      std::optional<double> max_norm, double norm_type, bool scale_grad_by_freq,
                      bool sparse) {
  WT_CHECK(indices.dtype() == DType::Int64 || indices.dtype() == DType::Int32, DtypeError,
           "embedding: expected indices of dtype int64 or int32, got ", indices,
           "; convert them with .long()");
  WT_CHECK(weight.ndim() == 2, ShapeError, "embedding: 'weight' must be 2-D, got ", weight);
  check_same_device("embedding", weight, indices, "input");
  TableData d{weight.sizes()[0], padding_idx.value_or(-1), scale_grad_by_freq, sparse};
  if (padding_idx) {
    WT_CHECK(*padding_idx >= -d.vocab && *padding_idx < d.vocab, ValueError,
             "embedding: padding_idx must be within num_embeddings, ", d.vocab, ", got ", *padding_idx);
    if (d.padding_idx < 0) d.padding_idx += d.vocab;
  }
  if (max_norm) renormalise(weight, indices, d, *max_norm, norm_type);
  return take_rows(weight, indices, d);
}

// torch.embedding: the table first; a negative padding_idx is none.
Tensor root_embedding(const Tensor& weight, const Tensor& indices, int64_t padding_idx,
                      bool scale_grad_by_freq, bool sparse) {
  return embedding(indices, weight, padding_idx < 0 ? std::nullopt : std::optional(padding_idx), std::nullopt,
                   2.0, scale_grad_by_freq, sparse);
}
const Op<Tensor(const Tensor&, const Tensor&, int64_t, bool, bool)> root{
    "embedding",
    root_embedding,
    kFunction,
    {"weight", "indices", Arg::integer("padding_idx", -1), {"scale_grad_by_freq", false}, {"sparse", false}},
    "Rows of weight [vocab, dim] at the indices; row padding_idx gets no gradient. With "
    "scale_grad_by_freq that of a row is divided by how often it is looked up."};

Tensor one_hot_impl(const Tensor& x, int64_t classes) {
  const char* op = "one_hot";
  WT_CHECK(x.dtype() == DType::Int64, DtypeError, op,
           " is only applicable to index tensor of type LongTensor, got ", x.dtype());
  WT_CHECK(x.numel() > 0 || classes > 0, ShapeError, op,
           ": Can not infer total number of classes from empty tensor.");
  WT_CHECK(!x.device().is_meta() || classes >= 0, DeviceError, op,
           ": a meta tensor has no data to count the classes by; give num_classes");
  if (x.numel() > 0 && !x.device().is_meta()) {
    WT_CHECK(item(amin(x, IntList{}, false)).to_int() >= 0, Error, op,
             ": Class values must be non-negative.");
    const int64_t most = item(amax(x, IntList{}, false)).to_int();
    if (classes == -1) classes = most + 1;
    WT_CHECK(most < classes, Error, op, ": Class values must be smaller than num_classes.");
  }
  Shape sizes = x.sizes();
  sizes.push_back(classes);
  return scatter_value(zeros(sizes, options_of(x)), -1, unsqueeze(x, -1), 1);
}
const Op<Tensor(const Tensor&, int64_t)> one_hot{
    "one_hot",
    one_hot_impl,
    kNN,
    {"tensor", Arg::integer("num_classes", -1)},
    "int64 [*] -> int64 [*, num_classes], 1 at each index; one more class than the largest index unless "
    "given."};

}  // namespace

decltype(embedding) embedding{
    "embedding",
    embedding_impl,
    kNN | batching::embedding,
    {"input",
     {"weight", kUpdated},
     {"padding_idx", none},
     {"max_norm", none, kSwitch},
     {"norm_type", 2.0},
     {"scale_grad_by_freq", false},
     {"sparse", false}},
    "Rows of weight [vocab, dim] at the indices; row padding_idx gets no gradient. With "
    "scale_grad_by_freq that of a row is divided by how often it is looked up."};

}  // namespace warptape::ops
