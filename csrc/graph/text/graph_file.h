// A graph as a file: safetensors with the constants under their names, the text of the graph as the uint8
// tensor "__graph__", what its user adds as "__spec__", and the CRC-32 of all data in the metadata.
#pragma once

#include "graph/ir/graph.h"

namespace warptape::graph {

// Throws a NotImplementedError for a constant that safetensors has no dtype for or that is not dense memory.
WT_API std::string to_bytes(const Graph& graph, const std::string& spec);

struct LoadedGraph {
  Graph graph;
  std::string spec;
};
// Throws a ValueError that says what is wrong with the file, a NotImplementedError for an op that this
// version does not have with these arguments.
WT_API LoadedGraph from_bytes(std::string_view bytes);

}  // namespace warptape::graph
