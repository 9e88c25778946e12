// A graph: the ops that a function called, as values and calls, without Python.
//
// It is recorded from one run of the function (trace.h), or from several with other sizes (symbolic.h), and
// can be printed, parsed, checked, saved, loaded and run. A value is one tensor; a call in place makes a new
// value of the tensor that it changed. Running a graph makes the same calls of the same ops as the function
// did, so that autograd, autocast and devices mean what they mean to eager code. What a program (ir.h) is to
// kernels and memory, a graph is to ops and tensors.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "graph/ir/expr.h"
#include "op/op.h"

namespace warptape::graph {

// A size or another integer: a number, or an expression of the graph.
struct Dim {
  // Unknown: of results, and of inputs that may have any; `value` in the example.
  static constexpr int32_t kNumber = -1, kUnknown = -2;
  int64_t value = 0;
  int32_t expr = kNumber;
  bool operator==(const Dim&) const = default;
};
using Dims = SmallVector<Dim, 5>;

struct ValueId {
  static constexpr uint32_t kNone = UINT32_MAX;  // an argument that is no tensor
  uint32_t id = kNone;
  bool operator==(const ValueId&) const = default;
};

// An argument of a call, owned. std::monostate is None.
using Attr =
    std::variant<std::monostate, ValueId, std::vector<ValueId>, Dim, double, bool, Complex<double>, Dims,
                 std::vector<Dims>, std::vector<double>, std::vector<Scalar>, DType, Device, std::string>;

struct Graph;

// What a call calls: an op, or the control flow ops of torch with their branches as graphs.
enum class Callee : uint8_t {
  Op,
  Cond,       // args: predicate, operands; graphs: taken if true, else
  WhileLoop,  // args: carried values, further operands; graphs: condition, body
  Scan,       // args: carried values, scanned values (along dim 0), further operands; graphs: body
};

// What of a thread's state a call was recorded in. What is not set is as the caller has it.
struct WT_API CallMode {
  bool no_grad = false;
  uint32_t autocast = 0;  // kAutocast, kAutocastCuda
  DType cpu = DType::BFloat16, cuda = DType::Float16;
  bool operator==(const CallMode&) const = default;
};

struct WT_API GraphCall {
  Callee callee = Callee::Op;
  const OpInfo* op = nullptr;  // of Op
  std::vector<Attr> args;      // of Op: as declared
  std::vector<ValueId> out;
  std::vector<std::shared_ptr<const Graph>> graphs;
  CallMode mode;
  bool refused = false;  // a file calls a private op: running the call is an error
  bool binds = false;    // a result's size is a symbol that nothing before it has
  std::string source;    // file:line of the caller
  // The form of `op` that Run may call to write the result onto the first argument, which nobody reads again:
  // where the run holds that memory alone and no gradient needs it. Not part of the text.
  const OpInfo* in_place = nullptr;
  // What the kernel makes of the weight, a constant, once; see graph/ir/packed_weights.h. Not in the text.
  Tensor packed;

  const char* name() const;
};

struct GraphValue {
  enum class Kind : uint8_t { Input, Constant, Result };
  Kind kind = Kind::Result;
  DType dtype = DType::Float32;
  Device device;
  Dims sizes;
  std::string name;        // of a constant: of the parameter, if it is one
  bool any_sizes = false;  // any number of dims too; `sizes` are of as many as the example has
  uint32_t memory = 0;     // values with the same number lie on the same memory
  Tensor tensor;           // of a constant
};

// A symbol, and what it may be. Each is a size of an input, or depends on values: then it is bound by the
// first call of which a result has it alone as a size.
struct Symbol {
  std::string name;
  int64_t min = 0, max = INT64_MAX;
};

class RunMemory;

struct WT_API Graph {
  std::vector<GraphValue> values;
  std::vector<GraphCall> calls;
  std::vector<ValueId> inputs, outputs;
  std::vector<Symbol> symbols;
  std::vector<Expr> exprs;
  // The symbol that the size is, if it is one alone.
  std::optional<uint8_t> symbol(Dim d) const {
    return d.expr < 0 ? std::nullopt : exprs[static_cast<size_t>(d.expr)].symbol();
  }
  // The size of this expression.
  Dim size(const Expr& e, int64_t value);
  // Of runs without gradients, if they keep it in one block. Copies of the graph share it.
  std::shared_ptr<RunMemory> run_memory;

  // See graph_text.cpp for the grammar. `constant(name)` gives parse() the tensors of the constants.
  std::string text() const;
  static Graph parse(std::string_view text, const std::function<Tensor(std::string_view name)>& constant);

  // Runs the graph on its inputs, as eager code would.
  // Throws a ShapeError, DtypeError or DeviceError that names the input which does not fit.
  // `constants` stand for those with these numbers.
  std::vector<Tensor> run(std::span<const Tensor> tensors,
                          std::span<const std::pair<uint32_t, Tensor>> constants = {}) const;
  // Call by call, what no later call reads; outputs are never listed.
  const std::vector<std::vector<uint32_t>>& dead_after() const { return dead_after_; }
  // Appends a value, on memory of its own.
  ValueId add(GraphValue value);
  // The tensor as a constant; without a name it is called after its number.
  ValueId add_constant(const Tensor& t, std::string name = "");
  // Checks the graph and prepares it to be run: to be called when it is complete.
  // Throws an Error that names the first call which reads a value that nothing made or a symbol that is not
  // bound, makes a value that there is already, or has an argument which its op does not take.
  void finish();

 private:
  std::vector<std::vector<uint32_t>> dead_after_;
};

// Runs a call of control flow on its operands, a list for each argument.
WT_API std::vector<Tensor> run_control(const GraphCall& c, std::vector<std::vector<Tensor>> operands);

// The tensor itself, or a copy where it lies on another device.
WT_API Tensor moved(const Tensor& t, Device device);

// Tells declarations with other arguments apart, also across versions of this library.
WT_API uint32_t signature_hash(const OpInfo& op);
// The op of that name and signature. Throws a NotImplementedError that says what there is.
WT_API const OpInfo& find_op(std::string_view name, uint32_t signature);
// Whether programs of files may call it.
bool may_be_in_files(const OpInfo& op);

// Calls f(dim) for each integer of the argument.
template <class F>
void each_dim(const Attr& a, F&& f) {
  if (auto* d = std::get_if<Dim>(&a)) f(*d);
  if (auto* list = std::get_if<Dims>(&a))
    for (const Dim& d : *list) f(d);
  if (auto* lists = std::get_if<std::vector<Dims>>(&a))
    for (const Dims& list : *lists)
      for (const Dim& d : list) f(d);
}

// Calls f(ValueId&) for each reference to a value among the arguments.
template <class Call, class F>
void each_id(Call& call, F&& f) {
  for (auto& a : call.args) {
    if (auto* r = std::get_if<ValueId>(&a)) f(*r);
    if (auto* list = std::get_if<std::vector<ValueId>>(&a))
      for (auto& r : *list) f(r);
  }
}

}  // namespace warptape::graph
