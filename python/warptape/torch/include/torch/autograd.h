// Ops with a forward and a backward written in C++.
#pragma once

#include <memory>
#include <unordered_map>

#include "ATen/core/grad_mode.h"
#include "ATen/core/ivalue.h"
#include "torch/types.h"

namespace torch {
namespace autograd {

using Variable = at::Tensor;
using variable_list = std::vector<Variable>;
using tensor_list = variable_list;
using c10::AutoGradMode;
using c10::GradMode;
using c10::NoGradGuard;

// What forward leaves for backward.
class AutogradContext {
 public:
  AutogradContext() = default;
  AutogradContext(const AutogradContext&) = delete;
  AutogradContext& operator=(const AutogradContext&) = delete;

  // Inputs, outputs or others; backward checks that they were not changed since.
  void save_for_backward(variable_list tensors) { to_save_ = std::move(tensors); }
  variable_list get_saved_variables() const {
    variable_list out;
    wtx::check(wtx::api().node_check(node_));
    for (size_t i = 0; i < saved_; ++i) {
      wtx_tensor* t = nullptr;
      wtx::check(wtx::api().node_saved(node_, i, &t));
      out.push_back(Variable::adopt(t));
    }
    return out;
  }
  // The input that forward changed in place and returned; at most one.
  void mark_dirty(const variable_list& inputs) { dirty_ = inputs; }
  void mark_non_differentiable(const variable_list& outputs) { non_differentiable_ = outputs; }
  // Whether backward gets zeros (the default) or undefined tensors where nothing flowed.
  void set_materialize_grads(bool value) { materialize_ = value; }
  // Of the i-th tensor among forward's arguments.
  bool needs_input_grad(size_t i) const { return i < needs_.size() && needs_[i]; }

  std::unordered_map<std::string, at::IValue> saved_data;

 private:
  template <class T>
  friend struct Function;
  friend struct Recorder;
  struct Output {
    std::vector<int64_t> sizes;
    at::TensorOptions options;
  };
  wtx_node* node_ = nullptr;  // it owns this context
  size_t saved_ = 0;
  variable_list to_save_, dirty_, non_differentiable_;
  bool materialize_ = true;
  std::vector<bool> is_tensor_;  // of forward's arguments, lists of tensors counted item by item
  std::vector<bool> needs_;      // of the tensors among them
  std::vector<Output> outputs_;
  std::vector<size_t> recorded_;  // the outputs that have gradients, as the node counts them
};

inline bool holds(const variable_list& list, const Variable& t) {
  for (const Variable& item : list)
    if (item.is_same(t)) return true;
  return false;
}

// What apply does that is the same for all functions.
struct Recorder {
  static void argument(AutogradContext& ctx, variable_list& tensors, const Variable& t) {
    ctx.is_tensor_.push_back(true);
    ctx.needs_.push_back(t.defined() && t.requires_grad());
    tensors.push_back(t);
  }
  static void argument(AutogradContext& ctx, variable_list& tensors, const at::optional<Variable>& t) {
    argument(ctx, tensors, t.value_or(Variable()));
  }
  static void argument(AutogradContext& ctx, variable_list& tensors, const variable_list& list) {
    for (const Variable& t : list) argument(ctx, tensors, t);
  }
  static void argument(AutogradContext& ctx, variable_list& tensors, at::TensorList list) {
    for (const Variable& t : list) argument(ctx, tensors, t);
  }
  template <class T>
  static void argument(AutogradContext& ctx, variable_list&, const T&) {
    ctx.is_tensor_.push_back(false);
  }

  static bool needed(const AutogradContext& ctx) {
    if (!GradMode::is_enabled()) return false;
    for (bool needs : ctx.needs_)
      if (needs) return true;
    return false;
  }

  // Views and inputs that forward returned become tensors of their own.
  static void finish_outputs(AutogradContext& ctx, const variable_list& inputs, variable_list& outputs) {
    TORCH_CHECK_NOT_IMPLEMENTED(ctx.dirty_.size() <= 1, "at most one input may be marked dirty, got ",
                                ctx.dirty_.size());
    for (Variable& out : outputs) {
      if (!out.defined() || holds(ctx.dirty_, out)) continue;
      const bool given = holds(inputs, out);
      wtx_tensor* made = nullptr;
      wtx::check(wtx::api().as_output(out.unsafeGetTensorImpl(), given, &made));
      Variable fresh = Variable::adopt(made);
      for (auto* list : {&ctx.to_save_, &ctx.non_differentiable_})
        for (Variable& t : *list)
          if (t.is_same(out) && !given) t = fresh;
      if (given && holds(ctx.non_differentiable_, out)) ctx.non_differentiable_.push_back(fresh);
      out = fresh;
    }
    for (const Variable& t : ctx.dirty_)
      TORCH_CHECK(holds(outputs, t), "an input marked dirty must be returned");
  }

  static void record(std::shared_ptr<AutogradContext> ctx, const char* name, const variable_list& inputs,
                     const variable_list& outputs, wtx_backward backward) {
    const wtx_api& api = wtx::api();
    const auto check = wtx::check;
    for (const Variable& t : ctx->dirty_) check(api.check_inplace(t.unsafeGetTensorImpl(), name, 1));
    std::vector<wtx_tensor*> handles;
    for (const Variable& t : inputs) handles.push_back(t.unsafeGetTensorImpl());
    auto* held = new std::shared_ptr<AutogradContext>(ctx);
    const auto drop = [](void* p) { delete static_cast<std::shared_ptr<AutogradContext>*>(p); };
    const int status = api.node(name, handles.data(), handles.size(), backward, drop, held, &ctx->node_);
    if (status != 0) delete held;
    check(status);
    struct Release {
      wtx_node* node;
      ~Release() { wtx::api().node_release(node); }
    } release{ctx->node_};
    std::vector<int> number(outputs.size(), -1);  // as the node counts them, dirty ones first
    for (bool dirty : {true, false})
      for (size_t i = 0; i < outputs.size(); ++i) {
        const Variable& out = outputs[i];
        if (!out.defined() || holds(ctx->dirty_, out) != dirty) continue;
        if (!dirty && (holds(ctx->non_differentiable_, out) ||
                       !(at::isFloatingType(out.scalar_type()) || out.is_complex())))
          continue;
        wtx_tensor* t = out.unsafeGetTensorImpl();
        if (dirty) check(api.bump_version(t));
        check(dirty ? api.node_inplace(ctx->node_, t) : api.node_output(ctx->node_, t));
        number[i] = static_cast<int>(ctx->recorded_.size());
        ctx->recorded_.push_back(i);
      }
    for (const Variable& out : outputs)
      ctx->outputs_.push_back(out.defined() ? AutogradContext::Output{out.sizes().vec(), out.options()}
                                            : AutogradContext::Output{});
    for (const Variable& t : ctx->to_save_) {
      int place = -1;
      for (size_t i = 0; i < outputs.size(); ++i)
        if (t.defined() && outputs[i].is_same(t)) place = number[i];
      check(api.node_save(ctx->node_, t.unsafeGetTensorImpl(), place));
    }
    ctx->saved_ = ctx->to_save_.size();
    ctx->to_save_.clear(), ctx->dirty_.clear(), ctx->non_differentiable_.clear();
  }

  // The gradients of all outputs from those of the recorded ones.
  static variable_list gradients(const AutogradContext& ctx, wtx_tensor* const* given) {
    variable_list out(ctx.outputs_.size());
    for (size_t i = 0; i < ctx.recorded_.size(); ++i) out[ctx.recorded_[i]] = Variable::share(given[i]);
    if (ctx.materialize_)
      for (size_t i = 0; i < out.size(); ++i)
        if (!out[i].defined()) out[i] = at::zeros(ctx.outputs_[i].sizes, ctx.outputs_[i].options);
    return out;
  }

  // The gradients of the tensors among the arguments, from those of all of these.
  static void results(const AutogradContext& ctx, const char* name, variable_list found, wtx_tensor** out) {
    const size_t count = ctx.is_tensor_.size();
    while (found.size() > count && !found.back().defined()) found.pop_back();
    TORCH_CHECK(found.size() == count, "function ", name,
                " returned an incorrect number of gradients (expected ", count, ", got ", found.size(), ")");
    size_t place = 0;
    for (size_t i = 0; i < count; ++i) {
      TORCH_CHECK(ctx.is_tensor_[i] || !found[i].defined(), "function ", name,
                  " returned a gradient different than None at position ", i + 1,
                  ", but the corresponding forward input was not a Variable");
      if (ctx.is_tensor_[i]) out[place++] = found[i].release();
    }
  }

  static variable_list to_list(const Variable& out) { return {out}; }
  static variable_list to_list(const variable_list& out) { return out; }
};

// struct MyOp : torch::autograd::Function<MyOp> with static forward(AutogradContext*, args...), which returns
// a Tensor or a variable_list, and static backward(AutogradContext*, variable_list): a gradient per argument.
template <class T>
struct Function {
  template <class X = T, class... Args>
  static auto apply(Args&&... args) {
    auto ctx = std::make_shared<AutogradContext>();
    variable_list inputs;
    (Recorder::argument(*ctx, inputs, args), ...);
    const bool recorded = Recorder::needed(*ctx);
    auto result = [&] {
      NoGradGuard no_grad;
      return X::forward(ctx.get(), std::forward<Args>(args)...);
    }();
    variable_list outputs = Recorder::to_list(result);
    Recorder::finish_outputs(*ctx, inputs, outputs);
    if (recorded) Recorder::record(ctx, name().c_str(), inputs, outputs, backward_of_node);
    if constexpr (std::is_same<decltype(result), Variable>::value)
      return outputs[0];
    else
      return outputs;
  }

 private:
  // "MyOpBackward"
  static std::string name() {
    const std::string text = __PRETTY_FUNCTION__;
    const size_t begin = text.find("T = ") + 4;
    std::string found = text.substr(begin, text.find_first_of(";]", begin) - begin);
    if (const size_t colon = found.rfind("::"); colon != std::string::npos) found = found.substr(colon + 2);
    return found + "Backward";
  }
  static int backward_of_node(void* context, wtx_node*, wtx_tensor* const* gradients, size_t, const uint8_t*,
                              wtx_tensor** results, size_t) {
    return wtx::guarded([&] {
      AutogradContext& ctx = **static_cast<std::shared_ptr<AutogradContext>*>(context);
      Recorder::results(ctx, name().c_str(), T::backward(&ctx, Recorder::gradients(ctx, gradients)), results);
    });
  }
};

inline variable_list grad(const variable_list& outputs, const variable_list& inputs,
                          const variable_list& grad_outputs = {},
                          at::optional<bool> retain_graph = at::nullopt, bool create_graph = false,
                          bool allow_unused = false) {
  variable_list given = grad_outputs;
  given.resize(outputs.size());
  std::vector<wtx_tensor*> roots, gradients, wanted, found(inputs.size());
  for (const Variable& t : outputs) roots.push_back(t.unsafeGetTensorImpl());
  for (const Variable& t : given) gradients.push_back(t.unsafeGetTensorImpl());
  for (const Variable& t : inputs) wanted.push_back(t.unsafeGetTensorImpl());
  wtx::check(wtx::api().backward(roots.data(), gradients.data(), roots.size(), wanted.data(), wanted.size(),
                                 retain_graph.value_or(create_graph), create_graph, 0, found.data()));
  variable_list out;
  for (wtx_tensor* t : found) out.push_back(Variable::adopt(t));
  for (const Variable& t : out)
    TORCH_CHECK(allow_unused || t.defined(),
                "One of the differentiated Tensors appears to not have been used in the graph. Set "
                "allow_unused=True if this is the desired behavior.");
  return out;
}
inline void backward(const variable_list& tensors, const variable_list& grad_tensors = {},
                     at::optional<bool> retain_graph = at::nullopt, bool create_graph = false) {
  variable_list given = grad_tensors;
  given.resize(tensors.size());
  std::vector<wtx_tensor*> roots, gradients;
  for (const Variable& t : tensors) roots.push_back(t.unsafeGetTensorImpl());
  for (const Variable& t : given) gradients.push_back(t.unsafeGetTensorImpl());
  wtx::check(wtx::api().backward(roots.data(), gradients.data(), roots.size(), nullptr, 0,
                                 retain_graph.value_or(create_graph), create_graph, 1, nullptr));
}

}  // namespace autograd
using autograd::Variable;
using c10::AutoGradMode;
using c10::GradMode;
using c10::NoGradGuard;
}  // namespace torch
