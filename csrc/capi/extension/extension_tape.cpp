// The tape for extensions: gradients, backward passes, and nodes whose backward an extension wrote.
#include <map>
#include <mutex>

#include "autograd/engine.h"
#include "autograd/tape.h"
#include "capi/extension/extension_parts.h"

namespace warptape::extension {
namespace {

// What a node of an extension carries.
struct NodeData {
  wtx_backward backward;
  void (*drop)(void*);
  void* context;
  ~NodeData() {
    if (drop) drop(context);
  }
};

Node& node_of(wtx_node* n) { return *reinterpret_cast<Node*>(n); }

void run(Node& node, Gradients& g) {
  const auto& data = node.data<NodeData>();
  std::vector<wtx_tensor*> gradients, results(g.inputs());
  std::vector<uint8_t> wanted;
  for (size_t j = 0; j < g.outputs(); ++j) gradients.push_back(handle(g[j]));
  for (size_t i = 0; i < g.inputs(); ++i) wanted.push_back(g.wants(i));
  const int status = data.backward(data.context, reinterpret_cast<wtx_node*>(&node), gradients.data(),
                                   gradients.size(), wanted.data(), results.data(), results.size());
  for (size_t i = 0; i < results.size(); ++i)
    if (results[i]) g.set(i, Tensor(Ref<TensorImpl>::adopt(impl_of(results[i]))));
  if (status != 0) throw_error();
}

// One type per name, kept forever: nodes refer to it.
const NodeType& type_named(const char* name) {
  static auto* types = new std::map<std::string, NodeType, std::less<>>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto [it, fresh] = types->try_emplace(name);
  if (fresh) it->second = NodeType{it->first.c_str(), run};
  return it->second;
}

std::vector<Tensor> tensors_of(wtx_tensor* const* list, size_t count) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < count; ++i) tensors.push_back(tensor_of(list[i]));
  return tensors;
}

int grad_mode(int mode) {
  const bool before = thread_state().grad_mode;
  if (mode >= 0) own_thread_state().grad_mode = mode != 0;
  return before;
}

int gradient(const wtx_tensor* t, wtx_tensor** out) {
  return guarded([&] {
    const AutogradMeta* meta = meta_of(tensor_of(t));
    *out = meta ? give(meta->grad) : nullptr;
  });
}

int set_gradient(wtx_tensor* t, wtx_tensor* value) {
  return guarded([&] { make_meta(tensor_of(t)).grad = tensor_of(value); });
}

int backward(wtx_tensor* const* roots, wtx_tensor* const* gradients, size_t num_roots,
             wtx_tensor* const* inputs, size_t num_inputs, int retain_graph, int create_graph, int accumulate,
             wtx_tensor** results) {
  return guarded([&] {
    const BackwardOptions options{.retain_graph = retain_graph != 0,
                                  .create_graph = create_graph != 0,
                                  .allow_unused = true,
                                  .accumulate = accumulate != 0};
    const auto found = run_backward(tensors_of(roots, num_roots), tensors_of(gradients, num_roots),
                                    tensors_of(inputs, num_inputs), options);
    if (results)
      for (size_t i = 0; i < found.size(); ++i) results[i] = give(found[i]);
  });
}

int make(const char* name, wtx_tensor* const* inputs, size_t num_inputs, wtx_backward fn, void (*drop)(void*),
         void* context, wtx_node** out) {
  return guarded([&] {
    Ref<Node> n = make_node(type_named(name));
    for (size_t i = 0; i < num_inputs; ++i) add_edge(*n, tensor_of(inputs[i]));
    n->emplace<NodeData>(fn, drop, context);
    *out = reinterpret_cast<wtx_node*>(n.release());
  });
}

int output(wtx_node* n, wtx_tensor* t) {
  return guarded([&] { set_history(tensor_of(t), Ref<Node>::share(&node_of(n))); });
}

int inplace(wtx_node* n, wtx_tensor* t) {
  return guarded([&] { rebase_history(tensor_of(t), Ref<Node>::share(&node_of(n))); });
}

int save(wtx_node* n, wtx_tensor* t, int number) {
  return guarded([&] {
    if (number < 0)
      node_of(n).save(tensor_of(t));
    else
      node_of(n).save_output(tensor_of(t), static_cast<uint32_t>(number));
  });
}

int saved(wtx_node* n, size_t i, wtx_tensor** out) {
  return guarded([&] {
    check_not_released(node_of(n));
    *out = give(node_of(n).saved(i));
  });
}

int as_output(wtx_tensor* t, int is_input, wtx_tensor** out) {
  return guarded([&] {
    Tensor given = tensor_of(t);
    if (!is_input && !given->extra) return void(*out = give(std::move(given)));
    Tensor fresh = alias(given);
    if (is_input || is_view(given)) {
      GradMode on(true);
      set_view(fresh, given, ViewOrigin::CustomFunction);
    }
    *out = give(std::move(fresh));
  });
}

}  // namespace

void fill_tape(wtx_api& api) {
  api.grad_mode = grad_mode;
  api.set_requires_grad = [](wtx_tensor* t, int value) {
    return guarded([&] { set_requires_grad(tensor_of(t), value != 0); });
  };
  api.gradient = gradient;
  api.set_gradient = set_gradient;
  api.backward = backward;
  api.node = make;
  api.node_release = [](wtx_node* n) { node_of(n).release(); };
  api.node_output = output;
  api.node_inplace = inplace;
  api.node_save = save;
  api.node_saved = saved;
  api.node_check = [](wtx_node* n) { return guarded([&] { check_not_released(node_of(n)); }); };
  api.check_inplace = [](wtx_tensor* t, const char* name, int recorded) {
    return guarded([&] { check_inplace(tensor_of(t), name, recorded != 0); });
  };
  api.as_output = as_output;
  api.bump_version = [](wtx_tensor* t) { return guarded([&] { tensor_of(t).bump_version(); }); };
}

}  // namespace warptape::extension
