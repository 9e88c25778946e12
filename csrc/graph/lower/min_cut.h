// The least capacity that separates two nodes of a network: the minimal cut, which is the maximal flow (Ford
// and Fulkerson 1956).
#pragma once

#include <cstdint>
#include <vector>

#include "core/export.h"

namespace warptape::graph {

class WT_API Network {
 public:
  // Of edges that no cut may take. The capacities of all others add up to less.
  static constexpr int64_t kInfinite = INT64_MAX / 4;

  uint32_t add_node();
  // Throws a ValueError where there is no such node, or the capacity is negative or above kInfinite.
  void add_edge(uint32_t from, uint32_t to, int64_t capacity);

  struct Cut {
    int64_t capacity;        // kInfinite where every cut takes an infinite edge
    std::vector<bool> sink;  // of each node, whether it is on the sink's side
  };
  // Of several minimal cuts the one that is nearest to the sink. Consumes the capacities: at most once.
  // Throws a ValueError where source and sink are no two nodes.
  Cut cut(uint32_t source, uint32_t sink);

 private:
  struct Edge {
    uint32_t to;
    int64_t left;  // what may still flow; of the edge with the next number, 0 or 1 more, what may flow back
  };
  bool find_levels(uint32_t source, uint32_t sink);
  int64_t augment(uint32_t source, uint32_t sink);

  std::vector<Edge> edges_;                  // each followed by its reverse: number ^ 1
  std::vector<std::vector<uint32_t>> from_;  // by node: the numbers of its edges
  std::vector<uint32_t> level_, next_;  // by node: edges from the source; the first edge that is not full
};

}  // namespace warptape::graph
