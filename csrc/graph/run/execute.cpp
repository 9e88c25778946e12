// Running one recorded call.
#include "graph/ir/call.h"

#include "op/visit.h"
#include "ops/linalg/matmul_plan.h"
#include "tensor/memory_format.h"

namespace warptape::graph {

Tensor OpArgs::own(const Tensor& t) {
  required_grad.push_back(requires_grad(t));
  return alias(t);
}

template <class T>
void OpArgs::copy_list(Value& v) {
  const auto* from = static_cast<const char*>(v.list.data);
  auto& bytes = bytes_.emplace_back(from, from + v.list.size * sizeof(T));
  v.list.data = bytes.data();
}

OpArgs::OpArgs(const OpInfo& op, std::span<const Value> args) : values(args.begin(), args.end()) {
  tensors_.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    Value& v = values[i];
    if (!v.present) continue;
    const auto set_list = [&v](auto& list) { v.list = {list.data(), list.size()}; };
    visit(op.args[i].type, v,
          Overloaded{
              [](const auto&) {},  // in the value itself
              [&](const Tensor& t) { v.tensor = &tensors_.emplace_back(t.defined() ? own(t) : Tensor()); },
              [&](TensorList from) {
                auto& list = lists_.emplace_back();
                for (const Tensor& t : from) list.push_back(own(t));
                set_list(list);
              },
              [&](std::span<const OptTensor> from) {
                auto& list = optionals_.emplace_back();
                for (const OptTensor& t : from) list.push_back(t && t->defined() ? OptTensor(own(*t)) : t);
                set_list(list);
              },
              [&](std::span<const Shape> from) { set_list(shapes_.emplace_back(from.begin(), from.end())); },
              [&](IntList) { copy_list<int64_t>(v); },
              [&](std::span<const double>) { copy_list<double>(v); },
              [&](ScalarList) { copy_list<Scalar>(v); },
              [&](std::string_view) { copy_list<char>(v); },
          });
  }
}

void OpArgs::replace(const OpInfo& op, size_t k, const Tensor& t) {
  each_tensor(op, values, [&](const Tensor& own) {
    if (k-- == 0) const_cast<Tensor&>(own) = alias(t);  // all are in tensors_ and lists
  });
}

void Call::replace_input(size_t k, const Tensor& t) {
  in[k] = alias(t);
  if (args) args->replace(op(), k, t);
  if (!backward) return;
  // As record_backward() put them into `in`.
  for (auto* list : {&backward->saved, &backward->gradients})
    for (Tensor& own : *list)
      if (own.defined() && k-- == 0) own = alias(t);
}

const char* Call::name() const {
  switch (kind) {
    case CallKind::Op:
      return op().name;
    case CallKind::Elementwise:
      return static_cast<const ElementwiseSlot*>(callee)->name();
    case CallKind::Kernel:
      return kernel_info().name;
    case CallKind::SumTo:
      return kSumTo;
    case CallKind::Backward:
      return static_cast<const NodeType*>(callee)->name;
  }
  return "";
}

namespace {

// The result gets what was computed: its memory, unless that belongs to somebody else.
void deliver(std::span<Storage* const> inputs, const Tensor& result, const Tensor& computed) {
  Storage& s = result.storage();
  if (!s.is_deferred()) return;  // came with another result
  bool fresh = computed.strides() == result.strides() && computed.offset() == result.offset() &&
               computed.storage().bytes() == s.bytes() && !computed.storage().exported();
  fresh &=
      std::ranges::find(inputs, &computed.storage()) == inputs.end() || computed.storage().use_count() == 1;
  if (fresh) return s.materialize(computed.storage());
  s.materialize();
  raw_copy(result, computed);
}

std::vector<Storage*> storages_of(const Call& call) {
  std::vector<Storage*> out;
  for (const Tensor& t : call.in) out.push_back(&t.storage());
  return out;
}

void run_op(Call& call) {
  const OpInfo& op = call.op();
  // What the op saves for its backward it makes where it is recorded.
  const bool taped = !call.results.empty() && call.results.back() >= kSavedBase;
  GradMode grad_mode(taped);
  size_t number = 0;
  each_tensor(op, call.args->values, [&](const Tensor& t) {
    if (taped && call.args->required_grad[number++] && is_differentiable(t.dtype()))
      set_requires_grad(t, true);
  });
  Result out;
  op.run(op, call.args->values.data(), out);
  std::vector<Tensor> results;
  Ref<Node> node;
  each_result(out, [&](Tensor& t) {
    results.push_back(t);
    if (t.defined() && !node) node = grad_fn(t);
  });
  const std::vector<Storage*> inputs = storages_of(call);
  for (size_t i = 0; i < call.out.size(); ++i) {
    const int32_t what = call.results[i];
    if (what == kInPlaceResult) continue;
    deliver(inputs, call.out[i],
            what < kSavedBase ? results[static_cast<size_t>(what)]
                              : node->saved_raw(static_cast<size_t>(what - kSavedBase)).raw());
  }
}

void run_backward(Call& call) {
  NodeCall& b = *call.backward;
  Node& node = *b.node;
  GradMode grad_mode(false);
  // The node alone holds what it saved, so that backward may compute in its memory where nobody else needs
  // it.
  const std::vector<Storage*> inputs = storages_of(call);
  call.in = {};
  SmallVector<SavedTensor, 2> saved;
  for (Tensor& t : b.saved)
    saved.emplace_back(t.defined() ? SavedTensor(std::exchange(t, {}), false, 0) : SavedTensor());
  struct PutBack {
    Node& node;
    SmallVector<SavedTensor, 2> saved;
    bool released;
    ~PutBack() {
      node.exchange_saved(std::move(saved));
      node.released = released;
    }
  } put_back{node, node.exchange_saved(std::move(saved)), std::exchange(node.released, false)};
  SmallVector<Tensor, 4> results(b.wanted.size());
  Gradients g({b.gradients.data(), b.gradients.size()}, {results.data(), results.size()}, b.wanted.data(),
              b.last);
  node.type->backward(node, g);
  node.exchange_saved({});
  for (size_t i = 0; i < call.out.size(); ++i)
    deliver(inputs, call.out[i], results[static_cast<size_t>(call.results[i])]);
}

void run_elementwise(Call& call) {
  SmallVector<ElementwiseInput, 4> inputs;
  size_t number = 0;
  for (int8_t at : call.operands)
    inputs.push_back(at == kIsNumber ? ElementwiseInput(call.numbers[number++])
                                     : ElementwiseInput(call.in[static_cast<size_t>(at)]));
  auto& slot = *static_cast<ElementwiseSlot*>(const_cast<void*>(call.callee));
  warptape::run_elementwise(slot, call.compute, call.out[0], {inputs.data(), inputs.size()});
}

}  // namespace

void reuse_input_memory(Call& call) {
  const int8_t over = call.kernel_info().over;
  if (over < 0) return;
  Tensor& in = call.in[static_cast<size_t>(call.operands[static_cast<size_t>(over)])];
  Storage &from = in.storage(), &to = call.out[0].storage();
  if (!to.is_deferred() || to.is_evicted() || from.is_deferred() || from.exported() ||
      from.use_count() != 1 || from.bytes() != to.bytes() || in.offset() != 0)
    return;
  to.materialize(from);
  in = alias(call.out[0], in.sizes(), in.strides(), 0);
}

KernelViews::KernelViews(const Call& call) {
  for (size_t k = 0; k < call.operands.size(); ++k)
    if (call.operands[k] != kIsNumber) in[k] = call.in[static_cast<size_t>(call.operands[k])].view();
  for (size_t k = 0; k < call.out.size(); ++k) out[static_cast<size_t>(call.results[k])] = call.out[k].view();
}

void run(Call& call) {
  // Memory that was never written has any contents, as that of empty() has.
  for (const Tensor& t : call.in)
    if (t.storage().is_deferred() && !ops::has_prologue(t)) t.storage().materialize();
  if (call.kind == CallKind::Kernel) reuse_input_memory(call);
  for (size_t i = 0; i < call.out.size(); ++i)
    if (call.kind == CallKind::Kernel || call.results.empty() || call.results[i] == kInPlaceResult)
      if (Storage& s = call.out[i].storage(); s.is_deferred()) s.materialize();
  if (call.kind == CallKind::Elementwise) return run_elementwise(call);
  if (call.kind == CallKind::SumTo) return raw_sum_to(call.out[0], call.in[0]);
  if (call.kind == CallKind::Kernel) {
    const KernelViews views(call);
    const Launch launch(call.out[0].device());
    call.kernel.run(call.kernel.data.data(), launch, views.in, views.out, call.rows);
    const KernelInfo& info = call.kernel_info();
    if (info.index_dim >= 0) launch.check_index(info.name, info.index_dim);
    return;
  }
  KeyTape keys{std::move(call.keys), 0};
  Restore<KeyTape*> draws(own_thread_state().key_tape, &keys);
  Restore<uint32_t> dispatch(own_thread_state().dispatch, call.dispatch);
  Restore<DType> autocast(own_thread_state().autocast_dtype, call.autocast_dtype);
  Restore<DType> autocast_cuda(own_thread_state().autocast_cuda_dtype, call.autocast_cuda_dtype);
  Restore<bool> inference(own_thread_state().inference_mode, false);
  SmallVector<uint32_t, 2> versions;
  for (const Tensor& t : call.out) versions.push_back(t.version());
  if (call.kind == CallKind::Op)
    run_op(call);
  else
    run_backward(call);
  for (size_t i = 0; i < call.out.size(); ++i)
    if (call.bumped) call.out[i].set_version(versions[i]);
}

}  // namespace warptape::graph
