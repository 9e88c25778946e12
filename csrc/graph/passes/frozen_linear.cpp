// Linear layers of a frozen graph: their weights are packed once.
#include <map>

#include "graph/ir/packed_weights.h"
#include "kernels/linalg/matmul.h"

namespace warptape::graph {
namespace {

// Few rows read the weight where it is: packed it would lie in memory for nobody.
bool has_few_rows(const GraphValue& x) {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < x.sizes.size(); ++d) {
    if (x.sizes[d].expr != Dim::kNumber) return false;
    rows *= x.sizes[d].value;
  }
  return !x.any_sizes && rows <= kernels::kFewRows;
}

}  // namespace

void pack_linear_weights(Graph& g, const Effects& effects) {
  std::map<uint32_t, Tensor> packed;  // by value: layers may share a weight
  for (GraphCall& c : g.calls) {
    if (c.op != &ops::linear) continue;
    const auto *x = std::get_if<ValueId>(&c.args[0]), *w = std::get_if<ValueId>(&c.args[1]);
    if (!x || !w || g.values[w->id].kind != GraphValue::Kind::Constant) continue;
    const Tensor& weight = g.values[w->id].tensor;
    if (effects.is_written(*w) || weight.storage().exported() || has_few_rows(g.values[x->id])) continue;
    auto [at, is_new] = packed.try_emplace(w->id);
    if (is_new) at->second = ops::pack_linear_weight(weight);
    set_packed(c, weight, at->second);
  }
}

}  // namespace warptape::graph
