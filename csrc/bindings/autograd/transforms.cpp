// The levels of function transforms and the tensors inside of them, for warptape.func.
#include "autograd/recording.h"
#include "bindings/bound_object.h"
#include "bindings/common.h"
#include "ops/view/view.h"
#include "transforms/level.h"

namespace warptape::bindings {
namespace {

namespace py = pybind11;
using transforms::Kind;
using transforms::Level;
using transforms::Randomness;

py::object object(const Tensor& t) { return py::reinterpret_steal<py::object>(checked(wrap(t)).release()); }
Tensor tensor(const py::handle& o, const char* what) { return tensor_arg(o.ptr(), what); }
std::vector<Tensor> tensors(const py::sequence& items, const char* what) {
  std::vector<Tensor> out;
  for (const py::handle& o : items) out.push_back(o.is_none() ? Tensor() : tensor(o, what));
  return out;
}

const Level& level_at(int64_t id) {
  for (const Level& l : transforms::levels())
    if (l.id == id) return l;
  throw Error("this function transform has ended");
}

constexpr const char* kRandomness[] = {"error", "different", "same"};  // as in Randomness

int64_t push_vmap(int64_t size, const std::string& randomness) {
  const auto found = std::ranges::find(kRandomness, randomness);
  WT_CHECK(found != std::end(kRandomness), Error,
           "Only allowed values for randomness are 'error', 'different', or 'same'. Got ", randomness);
  return transforms::push_level(Kind::Vmap, size, static_cast<Randomness>(found - kRandomness));
}

py::object add_batch_dim(const py::object& t, int64_t dim, int64_t level) {
  Tensor x = tensor(t, "vmap");
  dim = wrap_dim(dim, x.ndim(), "vmap");
  if (dim == 0) return object(transforms::batched(x, level));
  Shape order{dim};
  for (int64_t d = 0; d < x.ndim(); ++d)
    if (d != dim) order.push_back(d);
  return object(transforms::batched(ops::permute(x, order), level));
}

py::object remove_batch_dim(const py::object& t, int64_t level, int64_t dim) {
  Tensor value = transforms::value_at(tensor(t, "vmap"), level_at(level));
  dim = wrap_dim(dim, value.ndim(), "vmap");
  Shape order;
  for (int64_t d = 1; d < value.ndim(); ++d) order.push_back(d);
  Shape placed(IntList(order).first(static_cast<size_t>(dim)));
  placed.push_back(0);
  for (int64_t d : IntList(order).subspan(static_cast<size_t>(dim))) placed.push_back(d);
  return object(ops::permute(value, placed));
}

// (primal, tangent or None)
py::tuple unpack_dual(const py::object& t, int64_t level) {
  const Tensor x = tensor(t, "jvp");
  transforms::check_not_stale(x);
  if (transforms::level_of(x) != level) return py::make_tuple(t, py::none());
  const transforms::Wrapper* w = transforms::wrapper_of(x);
  return py::make_tuple(object(w->value), w->tangent.defined() ? object(w->tangent) : py::none());
}

// None for a plain tensor, else ("vmap" or "jvp", level, value, tangent)
py::object wrapper(const py::object& t) {
  const transforms::Wrapper* w = transforms::wrapper_of(tensor(t, "_wrapper"));
  if (!w) return py::none();
  return py::make_tuple(w->tangent.defined() ? "jvp" : "vmap", w->level, object(w->value),
                        w->tangent.defined() ? object(w->tangent) : py::none());
}

py::list gradients(const py::sequence& outputs, const py::sequence& inputs, const py::sequence& vectors,
                   bool create_graph, bool retain_graph) {
  auto found = transforms::gradients(tensors(outputs, "grad"), tensors(inputs, "grad"),
                                     tensors(vectors, "grad"), create_graph, retain_graph);
  py::list out;
  for (const Tensor& t : found) out.append(t.defined() ? object(t) : py::none());
  return out;
}

}  // namespace

void init_transforms(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  transforms::init();
  m.def("_push_vmap", push_vmap);
  m.def("_push_jvp", [] { return transforms::push_level(Kind::Jvp, 0, Randomness::Error); });
  m.def("_pop_transform", transforms::pop_level);
  m.def("_forward_grad_enabled", transforms::forward_grad_enabled);
  m.def("_set_forward_grad", transforms::set_forward_grad);
  m.def("_transform_depth", [] { return transforms::levels().size(); });
  m.def("_vmap_level", [](int64_t id) {
    const Level& level = level_at(id);
    return py::make_tuple(level.size, kRandomness[static_cast<size_t>(level.randomness)]);
  });
  m.def("_level_number", [](int64_t id) {  // 1 for the outermost
    const auto& all = transforms::levels();
    return std::ranges::find(all, id, &Level::id) - all.begin() + 1;
  });
  m.def("_recording_transforms", [] { return recording_transforms(); });
  m.def("_enter_recording", [](int64_t by) { recording_transforms() += by; });
  m.def("_add_batch_dim", add_batch_dim);
  m.def("_remove_batch_dim", remove_batch_dim);
  m.def("_make_dual", [](const py::object& primal, const py::object& tangent, int64_t level) {
    return object(transforms::dual(tensor(primal, "jvp"), tensor(tangent, "jvp"), level));
  });
  m.def("_unpack_dual", unpack_dual);
  m.def("_wrapper", wrapper);
  m.def("_recorded", [](const py::object& t) { return transforms::recorded(tensor(t, "grad")); });
  m.def("_fresh_variable", [](const py::object& t) {
    transforms::LevelList all;
    for (const Level& l : transforms::levels()) all.push_back(&l);
    return object(transforms::fresh_variable(tensor(t, "grad"), all));
  });
  m.def("_without_history",
        [](const py::object& t) { return object(transforms::without_history(tensor(t, "grad"))); });
  m.def("_gradients", gradients);
}

}  // namespace warptape::bindings
