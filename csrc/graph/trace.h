// Recording a graph: what a thread calls between the beginning and the end of a trace.
//
// A call is recorded where it enters an op from outside, as Python or the engine's user wrote it; ops that it
// is composed of are not. The call itself runs as ever. A tensor that no recorded call made is a constant:
// parameters, buffers, and what was made by other means than ops. Numbers that Python computes are recorded
// as they are; where they follow from the sizes of inputs, generalise() makes expressions of them.
#pragma once

#include <span>
#include <unordered_map>

#include "graph/graph.h"

namespace warptape::graph {

class WT_API Tracer {
 public:
  // Begins: what the thread calls from now on is recorded, in the tracer that was begun last.
  explicit Tracer(std::span<const Tensor> inputs);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Of the thread; null outside of a trace.
  static Tracer* current();
  // Gives constants names, those of a module's parameters for one.
  void name(const Tensor& t, std::string name);
  Graph finish(std::span<const Tensor> outputs);
  void end();  // without a graph

  void call(const OpInfo& op, std::span<Value> args, Result& out);
  // Records control flow over the graphs of its branches, each recorded by a tracer that was begun within
  // this one, and runs it. A branch's graph takes `operands` lists in order; tensors of this trace that it
  // used otherwise are added to its inputs.
  struct Branch {
    Graph graph;
    std::vector<Tensor> captured;
  };
  std::vector<Tensor> control(Callee callee, std::vector<std::vector<Tensor>> operands,
                              std::vector<Branch> branches);
  // What this tracer's function used of the one that it was begun within.
  std::vector<Tensor> captured() const { return captured_; }
  // Somebody reads a value, which the graph cannot depend on. Set whether that is an error or a warning.
  void read(const char* by) const;
  bool reads_are_errors = false;

 private:
  ValueId ref(const Tensor& t);
  ValueId add(const Tensor& t, GraphValue::Kind kind);
  Attr attr(const Arg& arg, const Value& v);

  Tracer* outer_;
  uint32_t dispatch_;  // of the thread, before
  Graph graph_;
  std::unordered_map<const void*, ValueId> ids_;        // by tensor
  std::unordered_map<const void*, uint32_t> memories_;  // by storage
  std::unordered_map<const void*, std::string> names_;
  std::vector<Tensor> kept_, captured_;  // so that no address is met twice
};

// The file and line of the Python code that is running. Set by the bindings.
extern WT_API std::string (*where_called)();

// The graph for all sizes, from graphs recorded at several: traces[mask] was recorded with symbol s at
// high[s] where bit s of mask is set, else at low[s]. Every integer becomes the polynomial, linear in each
// symbol, that has the recorded values.
// Throws a NotImplementedError naming the first call that differs otherwise, or is not there in all.
WT_API Graph generalise(std::vector<Graph> traces, std::vector<Symbol> symbols, IntList low, IntList high);
// Throws a NotImplementedError where `trace`, recorded at these sizes, is not what the graph says. Sizes of
// results that are not become unknown: nothing depends on them.
WT_API void check_trace(Graph& graph, const Graph& trace, IntList symbols);

// Whether an op that returns no tensor looks at values: it does not work without them.
bool reads_values(const OpInfo& op, std::span<const Value> args);

WT_API void init_trace();  // once: sets the interceptor

}  // namespace warptape::graph
