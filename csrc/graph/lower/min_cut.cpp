// Dinic 1970: paths of fewest edges are filled until the sink is farther away. Without recursion, for a chain
// of instructions makes a path that is as long.
#include "graph/lower/min_cut.h"

#include <algorithm>

#include "core/errors.h"

namespace warptape::graph {
namespace {

constexpr uint32_t kUnreached = UINT32_MAX;

}  // namespace

uint32_t Network::add_node() {
  from_.emplace_back();
  return static_cast<uint32_t>(from_.size() - 1);
}

void Network::add_edge(uint32_t from, uint32_t to, int64_t capacity) {
  WT_CHECK(from < from_.size() && to < from_.size(), ValueError, "graph: an edge from node ", from, " to ",
           to, " of ", from_.size());
  WT_CHECK(capacity >= 0 && capacity <= kInfinite, ValueError, "graph: an edge with capacity ", capacity);
  from_[from].push_back(static_cast<uint32_t>(edges_.size()));
  edges_.push_back({to, capacity});
  from_[to].push_back(static_cast<uint32_t>(edges_.size()));
  edges_.push_back({from, 0});
}

bool Network::find_levels(uint32_t source, uint32_t sink) {
  level_.assign(from_.size(), kUnreached);
  level_[source] = 0;
  std::vector<uint32_t> queue{source};
  for (size_t k = 0; k < queue.size(); ++k)
    for (uint32_t e : from_[queue[k]])
      if (const Edge& edge = edges_[e]; edge.left && level_[edge.to] == kUnreached) {
        level_[edge.to] = level_[queue[k]] + 1;
        queue.push_back(edge.to);
      }
  return level_[sink] != kUnreached;
}

// Fills one path of fewest edges; returns what flows, 0 where there is none left.
int64_t Network::augment(uint32_t source, uint32_t sink) {
  std::vector<uint32_t> path;
  for (uint32_t node = source; node != sink;) {
    uint32_t& next = next_[node];
    const auto leads_on = [&](uint32_t e) {
      return edges_[e].left && level_[edges_[e].to] == level_[node] + 1;
    };
    while (next < from_[node].size() && !leads_on(from_[node][next])) ++next;
    if (next < from_[node].size()) {
      path.push_back(from_[node][next]);
      node = edges_[path.back()].to;
    } else if (path.empty()) {
      return 0;
    } else {  // a dead end
      node = edges_[path.back() ^ 1].to;
      path.pop_back();
      ++next_[node];
    }
  }
  int64_t flow = kInfinite;
  for (uint32_t e : path) flow = std::min(flow, edges_[e].left);
  for (uint32_t e : path) {
    edges_[e].left -= flow;
    edges_[e ^ 1].left += flow;
  }
  return flow;
}

Network::Cut Network::cut(uint32_t source, uint32_t sink) {
  WT_CHECK(source < from_.size() && sink < from_.size() && source != sink, ValueError,
           "graph: a cut between nodes ", source, " and ", sink, " of ", from_.size());
  Cut out{0, std::vector<bool>(from_.size(), false)};
  while (out.capacity < kInfinite && find_levels(source, sink)) {
    next_.assign(from_.size(), 0);
    for (int64_t flow = 1; flow && out.capacity < kInfinite; out.capacity += flow)
      flow = augment(source, sink);
  }
  out.capacity = std::min(out.capacity, kInfinite);
  // What could still send something to the sink.
  out.sink[sink] = true;
  std::vector<uint32_t> queue{sink};
  for (size_t k = 0; k < queue.size(); ++k)
    for (uint32_t e : from_[queue[k]])
      if (const uint32_t node = edges_[e].to; edges_[e ^ 1].left && !out.sink[node]) {
        out.sink[node] = true;
        queue.push_back(node);
      }
  return out;
}

}  // namespace warptape::graph
