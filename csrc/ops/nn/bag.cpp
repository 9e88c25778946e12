// Sums, means and maxima over bags of a table's rows. Legend: V rows, D columns, B bags, n indices.
#include <algorithm>

#include "kernels/nn/embedding.h"
#include "ops/elementwise/elementwise.h"
#include "ops/factory/factory.h"
#include "ops/index/gather.h"
#include "ops/index/masked.h"
#include "ops/linalg/matmul.h"
#include "ops/nn/embedding.h"
#include "ops/reduce/reduce.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

constexpr const char* kOp = "embedding_bag";
kernels::Slot<kernels::EmbeddingBagFn> bag_slot{"embedding_bag"};

// Where bags start in a 1-D input, in host memory; nothing for a 2-D one, whose rows are the bags.
std::optional<std::vector<int64_t>> starts_of(const Tensor& input, const OptTensor& offsets,
                                              bool include_last_offset) {
  WT_CHECK(input.ndim() == 1 || input.ndim() == 2, ValueError, kOp,
           ": input has to be 1D or 2D Tensor, but got Tensor of dimension ", input.ndim());
  WT_CHECK(
      input.ndim() != 2 || !offsets, ValueError, kOp,
      ": if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length "
      "sequences. However, found offsets");
  if (input.ndim() == 2) return std::nullopt;
  WT_CHECK(offsets && offsets->ndim() == 1, ValueError, kOp, ": offsets has to be a 1D Tensor");
  WT_CHECK(offsets->dtype() == DType::Int64 || offsets->dtype() == DType::Int32, DtypeError, kOp,
           ": expected offsets of dtype int64 or int32, got ", offsets->dtype());
  WT_CHECK(!include_last_offset || offsets->numel() > 0, Error, kOp,
           ": include_last_offset: number of offsets should be at least 1");
  std::vector<int64_t> given(static_cast<size_t>(offsets->numel()));
  if (!offsets->device().is_meta()) {
    Tensor host = contiguous(to(detach(*offsets), Device{}, DType::Int64, false, false));
    std::copy_n(host.data_as<int64_t>(), given.size(), given.begin());
    WT_CHECK(
        given.empty() || given[0] == 0, Error, kOp,
        ": offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position "
        "0. However, got ",
        given.empty() ? 0 : given[0]);
    WT_CHECK(given.empty() || (given.back() <= input.numel() && std::ranges::is_sorted(given)), Error, kOp,
             ": offsets have to grow, and the last may not exceed the length of input, ", input.numel(),
             "; got ", given.empty() ? 0 : given.back());
  }
  if (include_last_offset) given.pop_back();
  return given;
}

Tensor on_device(const std::vector<int64_t>& values, IntList sizes, Device device) {
  Tensor host = empty(sizes, {DType::Int64, {}});
  std::ranges::copy(values, host.data_as<int64_t>());
  return to(host, device, std::nullopt, false, false);
}

struct Bags {
  Tensor input;   // [B, L] indices, or [n] with `bag`
  Tensor counts;  // which indices count, of its shape; undefined where all do
  Tensor bag;     // of each index of a 1-D input
  int64_t count;
};

// Bags of several lengths as rows of one.
Bags as_rows(const Tensor& input, const Tensor& counts, const std::vector<int64_t>& starts) {
  const auto bags = static_cast<int64_t>(starts.size());
  int64_t longest = 0;
  auto end = [&](size_t b) { return b + 1 < starts.size() ? starts[b + 1] : input.numel(); };
  for (size_t b = 0; b < starts.size(); ++b) longest = std::max(longest, end(b) - starts[b]);
  std::vector<int64_t> places, here;
  for (size_t b = 0; b < starts.size(); ++b)
    for (int64_t i = 0; i < longest; ++i) {
      const bool inside = starts[b] + i < end(b);
      places.push_back(inside ? starts[b] + i : std::max<int64_t>(input.numel() - 1, 0));
      here.push_back(inside);
    }
  const Shape sizes{bags, longest}, flat{bags * longest};
  Tensor valid = gt_ts(on_device(here, sizes, input.device()), 0),
         at = on_device(places, flat, input.device());
  auto rows = [&](const Tensor& x) {
    return input.numel() ? reshape(index_select(x, 0, at), sizes) : zeros(sizes, options_of(x));
  };
  return {rows(input), counts.defined() ? logical_and(valid, rows(counts)) : valid, Tensor(), bags};
}

Tensor largest(const Tensor& rows, const Tensor& counts) {
  const int64_t one[] = {1};
  if (rows.sizes()[1] == 0) return sum(rows, IntList(one), false, std::nullopt);
  Tensor seen = rows;
  if (counts.defined())
    seen = masked_fill(rows, unsqueeze(logical_not(counts), -1), -std::numeric_limits<double>::infinity());
  Tensor best = squeeze_dim(gather(seen, 1, argmax(detach(seen), 1, true), false), 1);
  return counts.defined() ? masked_fill(best, logical_not(any(counts, IntList(one), true)), 0.0) : best;
}

Tensor total(const Bags& b, const Tensor& rows, const Tensor& factors) {
  const int64_t one[] = {1};
  if (!b.bag.defined())
    return factors.defined() ? squeeze_dim(matmul(unsqueeze(factors, 1), rows), 1)
                             : sum(rows, IntList(one), false, std::nullopt);
  Tensor weighted = factors.defined() ? rows * unsqueeze(factors, -1) : rows;
  return index_add(zeros(Shape{b.count, rows.sizes().back()}, options_of(rows)), 0, b.bag, weighted, 1);
}

// How many indices of each bag count, at least 1.
Tensor sizes_of(const Bags& b) {
  const int64_t one[] = {1};
  const TensorOptions options{DType::Int64, b.input.device()};
  Tensor each = b.counts.defined() ? cast(b.counts, DType::Int64) : full(b.input.sizes(), 1, options);
  Tensor sizes = b.bag.defined() ? index_add(zeros(Shape{b.count}, options), 0, b.bag, each, 1)
                                 : sum(each, IntList(one), false, std::nullopt);
  return clamp(sizes, Scalar(1), std::nullopt);
}

void check_mode(std::string_view mode, const OptTensor& per_sample_weights, const Tensor& input,
                bool scale_grad_by_freq, bool sparse) {
  WT_CHECK(mode == "sum" || mode == "mean" || mode == "max", ValueError, kOp,
           ": mode has to be one of sum, mean or max");
  WT_CHECK(mode != "max" || !scale_grad_by_freq, ValueError, kOp,
           ": max mode does not support scaling the gradient by the frequency");
  WT_CHECK(mode != "max" || !sparse, ValueError, kOp, ": max mode does not support sparse weights");
  WT_CHECK(!per_sample_weights || per_sample_weights->sizes() == input.sizes(), ValueError, kOp,
           ": If per_sample_weights is not None, then it must have the same shape as the input (",
           input.sizes(), "), got ", per_sample_weights ? per_sample_weights->sizes() : Shape{});
  WT_CHECK(
      !per_sample_weights || mode == "sum", NotImplementedError, kOp,
      ": per_sample_weights was not None. per_sample_weights is only supported for mode='sum' (got mode='",
      mode, "'). Please open a feature request on GitHub.");
}

// The sums or means by one kernel that writes no rows in between: on the CPU, where nothing is recorded.
Tensor without_rows(const Tensor& input, const Tensor& weight, const OptTensor& per_sample_weights,
                    const std::optional<std::vector<int64_t>>& offsets, bool mean, int64_t padding_idx) {
  std::vector<int64_t> starts;
  if (offsets) {
    starts = *offsets;
  } else {
    starts.resize(static_cast<size_t>(input.sizes()[0]));
    std::ranges::generate(starts,
                          [at = int64_t{0}, n = input.sizes()[1]]() mutable { return (at += n) - n; });
  }
  starts.push_back(input.numel());
  const auto bags = static_cast<int64_t>(starts.size()) - 1;
  const Tensor table = raw_contiguous(weight), at = raw_contiguous(raw_cast(input, DType::Int64));
  const Tensor factors = per_sample_weights ? raw_contiguous(*per_sample_weights) : Tensor();
  Tensor out = empty(Shape{bags, weight.sizes()[1]}, options_of(weight));
  Launch launch(out.device());
  bag_slot(launch,
           kernels::BagPlan{weight.dtype(), bags, weight.sizes()[0], weight.sizes()[1], padding_idx, mean,
                            starts.data(), at.data_as<int64_t>()},
           out.data(), table.data(), factors.defined() ? factors.data() : nullptr);
  launch.check_index("embedding", 0);
  return out;
}

// Whether without_rows() can do it.
bool all_plain(const Tensor& input, const Tensor& weight, const OptTensor& per_sample_weights) {
  const auto plain = [](const Tensor& x) { return !is_opaque(x) && !requires_grad(x); };
  const auto d = input.dtype();
  return weight.device() == Device{} && input.device() == Device{} && is_floating(weight.dtype()) &&
         (d == DType::Int64 || d == DType::Int32) && plain(weight) && plain(input) &&
         (!per_sample_weights ||
          (plain(*per_sample_weights) && per_sample_weights->dtype() == weight.dtype() &&
           per_sample_weights->device() == Device{}));
}

Tensor embedding_bag_impl(const Tensor& first, const Tensor& second, const OptTensor& offsets,
                          std::optional<double> max_norm, double norm_type, bool scale_grad_by_freq,
                          std::string_view mode, bool sparse, const OptTensor& per_sample_weights,
                          bool include_last_offset, std::optional<int64_t> padding_idx) {
  const bool swapped = second.dtype() == DType::Int64 && is_floating(first.dtype());
  if (swapped)
    warn(
        "Argument order of nn.functional.embedding_bag was changed. Usage `embedding_bag(weight, input, "
        "...)` is "
        "deprecated, and should now be `embedding_bag(input, weight, ...)`.");
  const Tensor &input = swapped ? second : first, &weight = swapped ? first : second;
  WT_CHECK(weight.ndim() == 2, ValueError, kOp,
           ": weight has to be a 2D Tensor, but got Tensor of dimension ", weight.ndim());
  check_mode(mode, per_sample_weights, input, scale_grad_by_freq, sparse);
  const auto starts = starts_of(input, offsets, include_last_offset);
  const int64_t rows_in_table = weight.sizes()[0];
  if (padding_idx && *padding_idx < 0 && *padding_idx >= -rows_in_table) *padding_idx += rows_in_table;
  const bool known = !padding_idx || (*padding_idx >= 0 && *padding_idx < rows_in_table);
  if (mode != "max" && !max_norm && known && all_plain(input, weight, per_sample_weights))
    return without_rows(input, weight, per_sample_weights, starts, mode == "mean", padding_idx.value_or(-1));
  Bags b{input, padding_idx ? ne_ts(input, *padding_idx) : Tensor(), Tensor(), input.sizes()[0]};
  if (starts && mode == "max") {
    b = as_rows(input, b.counts, *starts);
  } else if (starts) {
    b.count = static_cast<int64_t>(starts->size());
    std::vector<int64_t> bag(static_cast<size_t>(input.numel()));
    for (size_t k = 0; k < starts->size(); ++k)
      std::fill(bag.begin() + (*starts)[k],
                k + 1 < starts->size() ? bag.begin() + (*starts)[k + 1] : bag.end(), static_cast<int64_t>(k));
    b.bag = on_device(bag, input.sizes(), input.device());
  }
  Tensor rows = embedding(b.input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse);
  if (mode == "max") return largest(rows, b.counts);
  Tensor factors = per_sample_weights ? *per_sample_weights : Tensor();
  if (b.counts.defined()) {
    Tensor counts = cast(b.counts, rows.dtype());
    factors = factors.defined() ? factors * counts : counts;
  }
  Tensor out = total(b, rows, factors);
  return mode == "mean" ? out / unsqueeze(cast(sizes_of(b), out.dtype()), -1) : out;
}

const Op<Tensor(const Tensor&, const Tensor&, const OptTensor&, std::optional<double>, double, bool,
                std::string_view, bool, const OptTensor&, bool, std::optional<int64_t>)>
    embedding_bag{
        "embedding_bag",
        embedding_bag_impl,
        kNN,
        {"input",
         {"weight", kUpdated},
         {"offsets", none},
         {"max_norm", none, kSwitch},
         {"norm_type", 2.0},
         {"scale_grad_by_freq", false},
         {"mode", "mean"},
         {"sparse", false},
         {"per_sample_weights", none},
         {"include_last_offset", false},
         {"padding_idx", none}},
        "Rows of weight [V, D] at indices [B, L], or [n] in bags that start at offsets [B] -> [B, D]: "
        "the sum, mean or max of each bag, zeros for an empty one. per_sample_weights multiply the rows "
        "of a sum; indices padding_idx do not count; with include_last_offset the last offset is the "
        "end of the last bag."};

}  // namespace
}  // namespace warptape::ops
