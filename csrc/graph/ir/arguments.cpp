#include "graph/ir/arguments.h"
#include "op/visit.h"

#include <algorithm>

namespace warptape::graph {
namespace {

template <class T>
void put(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put(std::string& to, const Scalar& s) {
  put(to, s.kind());
  put(to, s.to_double());
  put(to, s.to_int());
  put(to, s.to_complex().im);
}

void put_argument(std::string& to, ArgType type, const Value& v) {
  put(to, v.present);
  if (!v.present) return;
  const auto bytes = [&](size_t item) {
    put(to, v.list.size);
    to.append(static_cast<const char*>(v.list.data), v.list.size * item);
  };
  visit(type, v,
        Overloaded{
            [&](const auto& x) { put(to, x); },  // numbers, DType, Generator
            [&](const Tensor& t) { put(to, t.defined()); },
            [&](TensorList list) { put(to, list.size()); },
            [&](std::span<const OptTensor> list) {
              for (const OptTensor& t : list) put(to, t && t->defined());
            },
            [&](Device d) { put(to, d.type), put(to, d.index); },
            [&](IntList) { bytes(sizeof(int64_t)); },
            [&](std::span<const double>) { bytes(sizeof(double)); },
            [&](std::string_view) { bytes(1); },
            [&](ScalarList list) {
              put(to, list.size());
              for (const Scalar& s : list) put(to, s);
            },
            [&](std::span<const Shape> list) {
              for (const Shape& s : list) {
                put(to, s.size());
                for (int64_t n : s) put(to, n);
              }
            },
        });
}

}  // namespace

bool put_arguments(std::string& to, const std::vector<Call>& calls, std::string& why) {
  std::vector<const Node*> nodes;
  for (const Call& c : calls) {
    put(to, c.keys.size());
    put(to, c.dispatch);
    put(to, c.autocast_dtype);
    put(to, c.autocast_cuda_dtype);
    for (const Scalar& s : c.numbers) put(to, s);
    nodes.push_back(c.node);
    if (c.kind == CallKind::Kernel) {
      put(to, c.kernel.run);
      put(to, c.kernel.data);
    }
    if (c.kind == CallKind::Op) {
      for (size_t i = 0; i < c.args->values.size(); ++i)
        put_argument(to, c.op().args[i].type, c.args->values[i]);
      for (const bool required : c.args->required_grad) put(to, required);
    } else if (c.kind == CallKind::Backward) {
      const auto at = std::ranges::find(nodes, c.backward->node.get());
      if (at == nodes.end()) return why = "it runs the backward of calls before it", false;
      put(to, at - nodes.begin());
      put(to, c.backward->last);
      for (const bool wanted : c.backward->wanted) put(to, wanted);
    }
  }
  return true;
}

}  // namespace warptape::graph
