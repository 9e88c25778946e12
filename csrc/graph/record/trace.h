// Recording a graph: what a thread calls between the beginning and the end of a trace.
//
// A call is recorded where it enters an op from outside, as Python or the engine's user wrote it; ops that it
// is composed of are not. The call itself runs, saving nothing for backward, on memory that is freed as in
// eager code. A tensor that no recorded call made is a constant: parameters, buffers, and what was made by
// other means than ops. Numbers that Python computes are recorded as they are; where they follow from the
// sizes of inputs, generalise() makes expressions of them. What the calls write to memory from before the
// trace, and the history that they give its tensors, is undone at its end.
#pragma once

#include <deque>
#include <span>
#include <unordered_map>

#include "graph/ir/graph.h"
#include "graph/ir/history.h"

namespace warptape::graph {

class WT_API Tracer {
 public:
  // Begins: what the thread calls from now on is recorded, in the tracer that was begun last. Grad mode is on
  // and inference mode off; both are as they were after the end.
  explicit Tracer(std::span<const Tensor> inputs);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Of the thread; null outside of a trace.
  static Tracer* current();
  // The same, but null also within a call that is recorded, whose own calls are not.
  static Tracer* recording();
  // What stands for the inputs: tensors of their own, so that one that is given twice is two values.
  const std::vector<Tensor>& inputs() const { return inputs_; }
  // From now on sizes of inputs are as those that depend on values are: the graph is for any.
  void forget_input_sizes();
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

  // Somebody reads a value of a tensor, which the graph cannot depend on. Set whether that is an error or a
  // warning.
  void read(const Tensor& t, const char* by) const;
  bool reads_are_errors = false;
  // Somebody gets a tensor's memory, or changes it: the graph would not know what happens to it.
  void refuse(const Tensor& t, const char* by) const;
  // Sizes that depend on values are symbols of the graph. Among the arguments and results of ops an integer
  // that follows from them is a mark, with which nobody computes: of which expression?
  const Expr* expr_of(int64_t mark) const;
  int64_t mark_of(const Expr& e);
  // A tensor's sizes, marks among them; nothing where they do not depend on values.
  std::optional<Shape> symbolic_sizes(const Tensor& t);
  const uint64_t number;  // of this trace
  [[noreturn]] static void refuse_size(const char* by);
  // Somebody is told a tensor's sizes, or its number of dims alone. An error where they depend on values.
  void tell_sizes(const Tensor& t, const char* by, bool number_of_dims = false);
  // Whether inputs or results were asked for these.
  bool sizes_told = false, number_of_dims_told = false;

 private:
  struct Known {
    ValueId id;
    Tensor owner;                // so that its address is met once
    bool unknown_sizes = false;  // they depend on values
  };
  struct MemoryOf {
    uint32_t number, values;  // its own, and how many of `values_` lie on it
    bool outside;             // was there before the trace
  };
  struct Written {
    Tensor all, before;  // the bytes of a storage
    uint32_t version;
  };

  ValueId ref(const Tensor& t);
  ValueId add(const Tensor& t, GraphValue::Kind kind);
  Attr attr(const Arg& arg, const Value& v);
  Dim dim(int64_t x);
  Dims dims(IntList list);
  Attr scalar(const Scalar& s);
  bool has_marks(const OpInfo& op, std::span<const Value> args) const;
  void resolve_marks(const OpInfo& op, std::span<Value> args);
  int64_t value_of(int64_t x) const;
  Dims name_sizes(const Tensor& t);
  bool are_sizes_unknown(const Tensor& t) const;
  void tell_symbolic(const OpInfo& op, std::span<const Value> args, std::span<const Tensor> tensors,
                     Result& out);
  bool knows(const Tensor& t) const;
  bool sizes_depend_on_values(const OpInfo& op, std::span<const Value> args,
                              std::span<const Tensor> tensors) const;
  void tell(const OpInfo& op, std::span<Value> args, std::span<const Tensor> tensors, Result& out);
  void save_written(const GraphCall& call, std::span<const Tensor> tensors);
  void undo_writes();
  void save_history(const Tensor& t);
  void run_without_saving(const OpInfo& op, std::span<Value> args, std::span<const Tensor> tensors,
                          Result& out);
  void drop_dead();

  Tracer* outer_;
  uint32_t dispatch_;  // of the thread, before
  bool grad_mode_, inference_mode_;
  Graph graph_;
  std::vector<Tensor> inputs_;
  std::unordered_map<const void*, Known> values_;       // by tensor
  std::unordered_map<const void*, MemoryOf> memories_;  // by storage
  std::unordered_map<const void*, std::string> names_;
  uint32_t next_memory_ = 0;
  std::vector<Tensor> named_, captured_;
  std::vector<const void*> live_;  // results
  std::vector<Written> written_;
  std::vector<History> histories_;      // of tensors from before the trace
  std::vector<int64_t> symbol_values_;  // in the example
  std::deque<Shape> unmarked_;          // of the call that is recorded
};

// The graph for all sizes, from graphs recorded at several: traces[k] with symbol s at high[s] where bit s of
// masks[k] is set, else at low[s]. There are the one of mask 0, which comes first, those with one bit, and
// those that missing_traces() names. Every integer becomes the polynomial, linear in each symbol, that has
// the recorded values. Throws a NotImplementedError naming the first call that differs otherwise, or is not
// there in all.
WT_API Graph generalise(std::vector<Graph> traces, std::span<const uint64_t> masks,
                        std::vector<Symbol> symbols, IntList low, IntList high);
// The masks of what is to be recorded, too: an integer that depends on several symbols needs each combination
// of them, and integers that depend on others share traces.
WT_API std::vector<uint64_t> missing_traces(std::vector<Graph> traces, std::span<const uint64_t> masks);
// Throws a NotImplementedError where `trace`, recorded at these sizes, is not what the graph says. A quotient
// that is no integer at these sizes is rounded from now on as the trace has it. Sizes of results that are not
// what the graph says become unknown: nothing depends on them. Without symbols the traces differ in the
// inputs' values, which the error then names.
WT_API void check_trace(Graph& graph, const Graph& trace, IntList symbols);

// Runs the op on tensors without memory, like(t) for each of its tensors.
Result run_on_meta(const OpInfo& op, std::span<const Value> args,
                   const std::function<Tensor(const Tensor& t)>& like);
// Whether an op that returns no tensor looks at values: it does not work without them.
bool reads_values(const OpInfo& op, std::span<const Value> args);

WT_API void init_trace();  // once: sets the interceptor

}  // namespace warptape::graph
