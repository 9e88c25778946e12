#include "ops/optim/optim.h"

#include <algorithm>
#include <limits>

#include "kernels/optim/multi_tensor.h"
#include "ops/kernel_inputs.h"
#include "tensor/memory_format.h"

namespace warptape::ops {
namespace {

kernels::Slot<kernels::FusedAdamFn> fused_adam_slot("fused_adam");
kernels::Slot<kernels::FusedSgdFn> fused_sgd_slot("fused_sgd");
kernels::Slot<kernels::ListNormFn> list_norm_slot("list_norm");
kernels::Slot<kernels::ListScaleFn> list_scale_slot("list_scale");
kernels::Slot<kernels::ListAddFn> list_add_slot("list_add");

// The tensors that belong together, as memory in one order: themselves where they have one dense layout, else
// contiguous copies that are written back at the end.
class Aligned {
 public:
  // Takes the pointer of `t` in the layout of `first`; `written` ones are copied back.
  void* pointer(const Tensor& first, const Tensor& t, bool written) {
    if (is_dense(first) && (t.strides() == first.strides() || (t.is_contiguous() && first.is_contiguous())))
      return t.data();
    Tensor copy = empty_strided(first.sizes(), dense_strides(first), options_of(t));
    raw_copy(copy, t);
    if (written) back_.emplace_back(t, copy);
    kept_.push_back(copy);
    return copy.data();
  }
  void write_back() {
    for (auto& [to, from] : back_) raw_copy(to, from);
  }

 private:
  static Shape dense_strides(const Tensor& t) {
    return is_dense(t) ? t.strides() : contiguous_strides(t.sizes());
  }
  std::vector<std::pair<Tensor, Tensor>> back_;
  std::vector<Tensor> kept_;
};

// Every list as long as the first and, element by element, of its shape, device and dtype, or of `dtype`.
void check_lists(const char* op, TensorList params,
                 std::initializer_list<std::pair<TensorList, const char*>> others,
                 std::optional<DType> dtype = {}) {
  for (const auto& [list, what] : others) {
    WT_CHECK(list.size() == params.size(), ValueError, op, ": expected ", params.size(), " tensors in ", what,
             ", got ", list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      WT_CHECK(list[i].sizes() == params[i].sizes(), ShapeError, op, ": expected ", what, "[", i,
               "] of shape ", params[i].sizes(), ", got ", list[i]);
      const DType expected = dtype.value_or(params[i].dtype());
      WT_CHECK(list[i].dtype() == expected, DtypeError, op, ": expected ", what, "[", i, "] of dtype ",
               expected, ", got ", list[i]);
      check_same_device(op, params[i], list[i], what);
    }
  }
}

// Whether no two of them have memory in common, so that they can be written in any order.
bool are_apart(TensorList list) {
  std::vector<const Tensor*> order;
  for (const Tensor& t : list)
    if (t.numel()) order.push_back(&t);
  const auto place = [](const Tensor* t) { return std::pair(&t->storage(), t->offset()); };
  const auto before = [&](const Tensor* a, const Tensor* b) { return place(a) < place(b); };
  if (!std::ranges::is_sorted(order, before)) std::ranges::sort(order, before);
  for (size_t i = 1; i < order.size(); ++i)
    if (overlap_of(*order[i - 1], *order[i]) != Overlap::None) return false;
  return true;
}

void check_writable(const char* op, TensorList list) {
  for (const Tensor& t : list) {
    check_floating(op, t);
    check_same_device(op, list[0], t, "a tensor of the list");
    check_inplace(t, op, needs_grad(t));
  }
}

// The lists that an optimizer writes: one step over all of them at once needs memory of its own for each.
void check_apart(const char* op, std::initializer_list<TensorList> lists) {
  std::vector<Tensor> all;
  for (const TensorList list : lists) all.insert(all.end(), list.begin(), list.end());
  WT_CHECK(are_apart(all), Error, op, kOverlap);
}

const float* float_value(const char* op, const Tensor& param, const OptTensor& t, const char* what) {
  if (!t) return nullptr;
  check_same_device(op, param, *t, what);
  WT_CHECK(t->dtype() == DType::Float32 && t->numel() == 1, DtypeError, op, ": expected ", what,
           " to be one float32 value, got ", *t);
  return t->data_as<float>();
}

// A learning rate on the device, which a captured step reads at each replay.
OptTensor as_float(const OptTensor& t) { return t ? OptTensor(raw_cast(*t, DType::Float32)) : t; }

// float32 copies of the parameters, or none; what dtype the optimizer's states have then.
using Masters = std::optional<TensorList>;
std::optional<DType> check_masters(const char* op, TensorList params, const Masters& masters) {
  if (!masters) return {};
  for (const Tensor& p : params)
    WT_CHECK(itemsize(p.dtype()) == 2, DtypeError, op,
             ": master_params are for parameters of float16 and bfloat16, got ", p);
  check_lists(op, params, {{*masters, "master_params"}}, DType::Float32);
  return DType::Float32;
}
float* master_of(const Masters& masters, Aligned& aligned, const Tensor& p, size_t i) {
  return masters ? static_cast<float*>(aligned.pointer(p, (*masters)[i], true)) : nullptr;
}

void bump(TensorList list) {
  for (const Tensor& t : list) t.bump_version();
}

template <bool kDecoupled>
void fused_adam(TensorList params, TensorList grads, TensorList exp_avgs, TensorList exp_avg_sqs,
                TensorList max_exp_avg_sqs, TensorList state_steps, double lr, double beta1, double beta2,
                double weight_decay, double eps, bool amsgrad, bool maximize, const OptTensor& grad_scale,
                const OptTensor& found_inf, const OptTensor& lr_tensor, const Masters& masters) {
  const char* op = kDecoupled ? "_fused_adamw_" : "_fused_adam_";
  if (params.empty()) return;
  check_writable(op, params);
  check_lists(op, params, {{grads, "grads"}});
  const auto states = check_masters(op, params, masters);
  check_lists(op, params, {{exp_avgs, "exp_avgs"}, {exp_avg_sqs, "exp_avg_sqs"}}, states);
  if (amsgrad) check_lists(op, params, {{max_exp_avg_sqs, "max_exp_avg_sqs"}}, states);
  WT_CHECK(state_steps.size() == params.size(), ValueError, op, ": expected ", params.size(),
           " tensors in state_steps, got ", state_steps.size());
  if (params[0].is_meta()) return;
  check_apart(op, {params, exp_avgs, exp_avg_sqs, amsgrad ? max_exp_avg_sqs : TensorList(),
                   masters.value_or(TensorList())});
  Aligned aligned;
  std::vector<kernels::AdamItem> items;
  items.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    items.push_back({aligned.pointer(p, p, true), aligned.pointer(p, grads[i], grad_scale.has_value()),
                     aligned.pointer(p, exp_avgs[i], true), aligned.pointer(p, exp_avg_sqs[i], true),
                     amsgrad ? aligned.pointer(p, max_exp_avg_sqs[i], true) : nullptr,
                     float_value(op, p, state_steps[i], "state_steps"), p.numel(), p.dtype(),
                     master_of(masters, aligned, p, i)});
  }
  const Tensor& first = params[0];
  const OptTensor rate = as_float(lr_tensor);
  const kernels::AdamPlan plan{lr,
                               float_value(op, first, rate, "lr_tensor"),
                               beta1,
                               beta2,
                               weight_decay,
                               eps,
                               kDecoupled,
                               amsgrad,
                               maximize,
                               float_value(op, first, grad_scale, "grad_scale"),
                               float_value(op, first, found_inf, "found_inf")};
  fused_adam_slot(Launch(params[0].device()), items.data(), static_cast<int64_t>(items.size()), plan);
  aligned.write_back();
  for (TensorList list : {params, exp_avgs, exp_avg_sqs}) bump(list);
  if (amsgrad) bump(max_exp_avg_sqs);
  if (masters) bump(*masters);
}

void fused_sgd(TensorList params, TensorList grads, TensorList momentum_buffers, double weight_decay,
               double momentum, double lr, double dampening, bool nesterov, bool maximize, bool is_first_step,
               const OptTensor& grad_scale, const OptTensor& found_inf, const OptTensor& lr_tensor,
               const Masters& masters) {
  const char* op = "_fused_sgd_";
  if (params.empty()) return;
  const bool has_momentum = momentum != 0;
  check_writable(op, params);
  check_lists(op, params, {{grads, "grads"}});
  const auto states = check_masters(op, params, masters);
  if (has_momentum) check_lists(op, params, {{momentum_buffers, "momentum_buffer_list"}}, states);
  if (params[0].is_meta()) return;
  check_apart(op, {params, has_momentum ? momentum_buffers : TensorList(), masters.value_or(TensorList())});
  Aligned aligned;
  std::vector<kernels::SgdItem> items;
  items.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    items.push_back({aligned.pointer(p, p, true), aligned.pointer(p, grads[i], grad_scale.has_value()),
                     has_momentum ? aligned.pointer(p, momentum_buffers[i], true) : nullptr, p.numel(),
                     p.dtype(), master_of(masters, aligned, p, i)});
  }
  const Tensor& first = params[0];
  const OptTensor rate = as_float(lr_tensor);
  const kernels::SgdPlan plan{lr,
                              float_value(op, first, rate, "lr_tensor"),
                              momentum,
                              dampening,
                              weight_decay,
                              nesterov,
                              maximize,
                              is_first_step,
                              float_value(op, first, grad_scale, "grad_scale"),
                              float_value(op, first, found_inf, "found_inf")};
  fused_sgd_slot(Launch(params[0].device()), items.data(), static_cast<int64_t>(items.size()), plan);
  aligned.write_back();
  bump(params);
  if (has_momentum) bump(momentum_buffers);
  if (masters) bump(*masters);
}

// ---- lists, for the ops of foreach.cpp -----------------------------------------------------------------

// Whether the kernels over lists take it: floating tensors of one device, none of them recorded.
bool is_simple(TensorList list, TensorList others = {}) {
  if (!others.empty() && others.size() != list.size()) return false;
  for (size_t i = 0; i < list.size(); ++i) {
    const Tensor& t = list[i];
    if (!is_floating(t.dtype()) || t.device() != list[0].device() || needs_grad(t)) return false;
    if (!others.empty() && (others[i].sizes() != t.sizes() || others[i].dtype() != t.dtype() ||
                            others[i].device() != t.device() || needs_grad(others[i])))
      return false;
  }
  return true;
}

// Items over the memory of `list`; tensors that are not dense go through copies.
std::vector<kernels::ListItem> items_of(TensorList list, Aligned& aligned, TensorList others = {}) {
  std::vector<kernels::ListItem> items;
  items.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i)
    items.push_back({aligned.pointer(list[i], list[i], true),
                     others.empty() ? nullptr : aligned.pointer(list[i], others[i], false), list[i].numel(),
                     list[i].dtype()});
  return items;
}

Arg keyword(const char* name) { return {name, kKeywordOnly}; }
Arg optional_keyword(const char* name) { return {name, none, kKeywordOnly}; }
#define WT_SCALE_ARGS                                                                           \
  optional_keyword("grad_scale"), optional_keyword("found_inf"), optional_keyword("lr_tensor"), \
      Arg("master_params", none, kKeywordOnly | kUpdated)
#define WT_ADAM_ARGS              \
  {{"self", kUpdated},            \
   "grads",                       \
   {"exp_avgs", kUpdated},        \
   {"exp_avg_sqs", kUpdated},     \
   {"max_exp_avg_sqs", kUpdated}, \
   "state_steps",                 \
   keyword("lr"),                 \
   keyword("beta1"),              \
   keyword("beta2"),              \
   keyword("weight_decay"),       \
   keyword("eps"),                \
   keyword("amsgrad"),            \
   keyword("maximize"),           \
   WT_SCALE_ARGS}

}  // namespace

decltype(_fused_adam_) _fused_adam_("_fused_adam_", fused_adam<false>, kFunction, WT_ADAM_ARGS,
                                    "One step of Adam over lists of tensors, in place.");
decltype(_fused_adamw_) _fused_adamw_("_fused_adamw_", fused_adam<true>, kFunction, WT_ADAM_ARGS,
                                      "One step of AdamW over lists of tensors, in place.");
decltype(_fused_sgd_) _fused_sgd_("_fused_sgd_", fused_sgd, kFunction,
                                  {{"self", kUpdated},
                                   "grads",
                                   {"momentum_buffer_list", kUpdated},
                                   keyword("weight_decay"),
                                   keyword("momentum"),
                                   keyword("lr"),
                                   keyword("dampening"),
                                   keyword("nesterov"),
                                   keyword("maximize"),
                                   keyword("is_first_step"),
                                   WT_SCALE_ARGS},
                                  "One step of SGD over lists of tensors, in place.");

bool scale_at_once(TensorList list, double factor, const Tensor& factor_tensor) {
  if (!is_simple(list) || !are_apart(list)) return false;
  if (factor_tensor.defined() &&
      (!is_simple({&factor_tensor, 1}) || factor_tensor.device() != list[0].device()))
    return false;
  check_writable("_foreach_mul_", list);
  if (list[0].is_meta()) return true;
  Aligned aligned;
  auto items = items_of(list, aligned);
  const Tensor read =
      factor_tensor.defined() ? raw_cast(factor_tensor, stats_dtype(factor_tensor.dtype())) : Tensor();
  list_scale_slot(Launch(list[0].device()), items.data(), static_cast<int64_t>(items.size()), factor,
                  view_of(read));
  aligned.write_back();
  bump(list);
  return true;
}

bool add_at_once(TensorList list, TensorList others, double alpha) {
  if (!is_simple(list, others) || !are_apart(list)) return false;
  check_writable("_foreach_add_", list);
  if (list[0].is_meta()) return true;
  Aligned aligned;
  auto items = items_of(list, aligned, others);
  list_add_slot(Launch(list[0].device()), items.data(), static_cast<int64_t>(items.size()), alpha);
  aligned.write_back();
  bump(list);
  return true;
}

std::optional<std::vector<Tensor>> norms_at_once(TensorList list, double order) {
  if (order != 1 && order != 2 && order != std::numeric_limits<double>::infinity()) return {};
  if (!is_simple(list)) return {};
  std::vector<Tensor> out, kept;
  std::vector<kernels::ListItem> items;
  for (const Tensor& t : list) {
    if (t.dtype() != list[0].dtype()) return {};
    kept.push_back(is_dense(t) ? t : raw_contiguous(t));
    items.push_back({kept.back().planned_data(), nullptr, t.numel(), t.dtype()});
  }
  Tensor norms = empty(Shape{static_cast<int64_t>(list.size())}, options_of(list[0]));
  if (!norms.is_meta())
    list_norm_slot(Launch(norms.device()), norms.view(), items.data(), static_cast<int64_t>(items.size()),
                   order);
  for (size_t i = 0; i < list.size(); ++i)
    out.push_back(alias(norms, Shape{}, Shape{}, static_cast<int64_t>(i)));
  return out;
}

}  // namespace warptape::ops
