// Connectionist temporal classification. Legend: T steps, N batch, C classes, S labels.
#include "kernels/nn/ctc.h"

#include <algorithm>

#include "op/forms.h"
#include "ops/kernel_inputs.h"
#include "ops/nn/loss.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::CtcFn> ctc_slot{"ctc_loss"};
constexpr const char* kOp = "ctc_loss";

void second_backward(Node&, Gradients&) {
  throw NotImplementedError("ctc_loss: the second derivative is not implemented");
}
constexpr NodeType kSecond{"CtcLossBackwardBackward0", second_backward};

// saved: log_probs, the gradients [T, N, C] of the losses' sum
void ctc_backward(Node& n, Gradients& g) {
  Tensor x = n.saved(0), grad = n.saved(1);
  if (needs_grad(x)) {
    grad = alias(grad);
    set_history(grad, record(kSecond, x));
  }
  g.set(0, grad * reshape(g[0], Shape{1, -1, 1}));
}
constexpr NodeType kCtc{"CtcLossBackward0", ctc_backward};

// The lengths [N] of a call, in host memory.
std::vector<int64_t> lengths_of(const Tensor& lengths) {
  WT_CHECK(!is_floating(lengths.dtype()), DtypeError, kOp, ": expected integer lengths, got ",
           lengths.dtype());
  Tensor host = raw_contiguous(to(detach(lengths), Device{}, DType::Int64, false, false));
  return {host.data_as<int64_t>(), host.data_as<int64_t>() + host.numel()};
}

void check_lengths(const char* name, const std::vector<int64_t>& lengths, int64_t batch, int64_t most) {
  WT_CHECK(static_cast<int64_t>(lengths.size()) == batch, Error, kOp, ": ", name,
           " must be of size batch_size, ", batch, ", got ", lengths.size());
  for (int64_t n : lengths)
    WT_CHECK(n >= 0 && n <= most, Error, kOp, ": Expected ", name, " to have values from 0 to ", most,
             ", but got value ", n);
}

// The labels as rows [N, S] in host memory, from rows or one sample after the other.
Tensor labels_of(const Tensor& targets, bool rows, const std::vector<int64_t>& lengths, int64_t classes) {
  Tensor host = raw_contiguous(to(detach(targets), Device{}, DType::Int64, false, false));
  const int64_t most = lengths.empty() ? 0 : *std::ranges::max_element(lengths);
  const auto batch = static_cast<int64_t>(lengths.size());
  Tensor out = zeros(Shape{batch, most}, {DType::Int64, {}});
  const int64_t* from = host.data_as<int64_t>();
  for (int64_t n = 0; n < batch; ++n) {
    std::copy_n(rows ? from + n * targets.sizes()[1] : from, lengths[static_cast<size_t>(n)],
                out.data_as<int64_t>() + n * most);
    if (!rows) from += lengths[static_cast<size_t>(n)];
  }
  for (int64_t i = 0; i < out.numel(); ++i)
    WT_CHECK(out.data_as<int64_t>()[i] >= 0 && out.data_as<int64_t>()[i] < classes, IndexError, kOp,
             ": expected labels from 0 to ", classes - 1, ", got ", out.data_as<int64_t>()[i]);
  return out;
}

// [N] losses of log_probs [T, N, C].
Tensor losses_of(const Tensor& log_probs, const Tensor& labels, const std::vector<int64_t>& steps,
                 const std::vector<int64_t>& lengths, int64_t blank, bool zero_infinity) {
  const Device device = log_probs.device();
  const int64_t t = log_probs.sizes()[0], batch = log_probs.sizes()[1], most = labels.sizes()[1];
  Tensor loss = empty(Shape{batch}, options_of(log_probs)), grad;
  if (needs_grad(log_probs)) grad = empty(log_probs.sizes(), options_of(log_probs));
  Tensor from = raw_contiguous(log_probs), targets = to(labels, device, std::nullopt, false, false);
  Tensor both = empty(Shape{2, batch}, {DType::Int64, {}});
  std::ranges::copy(steps, both.data_as<int64_t>());
  std::ranges::copy(lengths, both.data_as<int64_t>() + batch);
  both = to(both, device, std::nullopt, false, false);
  Tensor scratch;
  if (device.is_accelerator()) scratch = empty(Shape{batch, t + 1, 2 * most + 1}, {DType::Float64, device});
  if (batch)
    ctc_slot(
        Launch(device),
        kernels::CtcPlan{log_probs.dtype(), t, batch, log_probs.sizes()[2], most, blank,
                         targets.data_as<int64_t>(), both.data_as<int64_t>(), both.data_as<int64_t>() + batch,
                         scratch.defined() ? scratch.data_as<double>() : nullptr, zero_infinity},
        loss.data(), grad.defined() ? grad.data() : nullptr, from.data());
  if (grad.defined()) {
    Ref<Node> n = record(kCtc, log_probs);
    n->save(log_probs);
    n->save(grad);
    set_history(loss, n);
  }
  return loss;
}

Tensor ctc(const Tensor& given, const Tensor& targets, const Tensor& input_lengths,
           const Tensor& target_lengths, int64_t blank, Reduction how, bool zero_infinity) {
  check_floating(kOp, given);
  WT_CHECK(!is_floating(targets.dtype()), DtypeError, kOp, ": targets must be integral, got ",
           targets.dtype());
  WT_CHECK(given.ndim() == 2 || given.ndim() == 3, ShapeError, kOp,
           ": expected log_probs [T, N, C] or [T, C], got ", given.sizes());
  check_same_device(kOp, given, targets, "targets");
  const bool single = given.ndim() == 2, narrow = given.itemsize() < 4;
  Tensor x = single ? unsqueeze(given, 1) : given;
  if (narrow) x = cast(x, DType::Float32);
  const int64_t batch = x.sizes()[1], classes = x.sizes()[2];
  WT_CHECK(blank >= 0 && blank < classes, Error, kOp, ": blank must be in label range, 0 to ", classes - 1,
           ", got ", blank);
  Tensor loss;
  Tensor lengths = clamp(cast(reshape(target_lengths, Shape{batch}), x.dtype()), Scalar(1), std::nullopt);
  if (x.is_meta()) {
    loss = empty(Shape{batch}, options_of(x));
  } else {
    const bool rows = targets.ndim() == 2 && !single;
    const auto steps = lengths_of(input_lengths), counts = lengths_of(target_lengths);
    WT_CHECK(!rows || targets.sizes()[0] == batch, ShapeError, kOp, ": expected targets of ", batch,
             " rows, the batch, got ", targets.sizes());
    check_lengths("input_lengths", steps, batch, x.sizes()[0]);
    check_lengths("target_lengths", counts, batch, rows ? targets.sizes()[1] : targets.numel());
    int64_t all = 0;
    for (int64_t n : counts) all += n;
    WT_CHECK(rows || all <= targets.numel(), Error, kOp, ": expected targets of ", all,
             " labels, the sum of target_lengths, got ", targets.sizes());
    loss = losses_of(x, labels_of(targets, rows, counts, classes), steps, counts, blank, zero_infinity);
  }
  if (narrow) loss = cast(loss, given.dtype());
  if (how == Reduction::Mean)
    return reduced(loss / cast(to(lengths, loss.device(), std::nullopt, false, false), loss.dtype()), how);
  if (how == Reduction::Sum || !single) return reduced(loss, how);
  return select(loss, 0, 0);
}

// ---- the ops: lengths are tensors or ints --------------------------------------------------------------

Tensor as_tensor(IntList lengths) {
  Tensor out = empty(Shape{static_cast<int64_t>(lengths.size())}, {DType::Int64, {}});
  std::ranges::copy(lengths, out.data_as<int64_t>());
  return out;
}
Tensor nn_tensors(const Tensor& x, const Tensor& targets, const Tensor& input_lengths,
                  const Tensor& target_lengths, int64_t blank, std::string_view reduction,
                  bool zero_infinity) {
  return ctc(x, targets, input_lengths, target_lengths, blank,
             reduction_of(kOp, std::nullopt, std::nullopt, reduction), zero_infinity);
}
Tensor nn_ints(const Tensor& x, const Tensor& targets, IntList input_lengths, IntList target_lengths,
               int64_t blank, std::string_view reduction, bool zero_infinity) {
  return nn_tensors(x, targets, as_tensor(input_lengths), as_tensor(target_lengths), blank, reduction,
                    zero_infinity);
}
Tensor root_tensors(const Tensor& x, const Tensor& targets, const Tensor& input_lengths,
                    const Tensor& target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  return ctc(x, targets, input_lengths, target_lengths, blank, reduction_of(kOp, reduction), zero_infinity);
}
Tensor root_ints(const Tensor& x, const Tensor& targets, IntList input_lengths, IntList target_lengths,
                 int64_t blank, int64_t reduction, bool zero_infinity) {
  return root_tensors(x, targets, as_tensor(input_lengths), as_tensor(target_lengths), blank, reduction,
                      zero_infinity);
}

const Arg kBlank = Arg::integer("blank", 0), kReduction{"reduction", "mean"},
          kNumber = Arg::integer("reduction", 0), kZero{"zero_infinity", false};
const char kDoc[] =
    "log_probs [T, N, C] or [T, C], targets [N, S] or one sample's after the other, and how many steps and "
    "labels "
    "of each sample count -> the negative log-likelihood of the labels; 'mean' divides each by its number of "
    "labels first. A sample that no path fits has an infinite loss, with zero_infinity none. The gradient "
    "takes "
    "log_probs to come from log_softmax.";
const Op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, std::string_view, bool)>
    nn_of_tensors{"ctc_loss",
                  nn_tensors,
                  kNN | kFloat32 | kMixedDevices,
                  {"log_probs", "targets", "input_lengths", "target_lengths", kBlank, kReduction, kZero},
                  kDoc};
const Op<Tensor(const Tensor&, const Tensor&, IntList, IntList, int64_t, std::string_view, bool)> nn_of_ints{
    "ctc_loss",
    nn_ints,
    kNN | kFloat32,
    {"log_probs", "targets", "input_lengths", "target_lengths", kBlank, kReduction, kZero},
    kDoc};
const auto root_of_tensors = overload_with(
    nn_of_tensors, root_tensors,
    {"log_probs", "targets", "input_lengths", "target_lengths", kBlank, kNumber, kZero}, kFunction);
const auto root_of_ints = overload_with(
    nn_of_ints, root_ints,
    {"log_probs", "targets", "input_lengths", "target_lengths", kBlank, kNumber, kZero}, kFunction);

}  // namespace
}  // namespace warptape::ops
