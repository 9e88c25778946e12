// One direction of one recurrent layer over all steps.
//
// Shapes: B batch, T steps, N rows in all (the sum of the batch sizes), I input, H hidden, R what recurs (H,
// or less where weight_hr projects), G gates. Rows of a step lie together, step after step, longest sequence
// first: batch_sizes never grow, and a sequence is the same row in every step that it takes part in.
#include "ops/nn/recurrent.h"

#include "autograd/engine.h"
#include "kernels/nn/recurrent.h"
#include "ops/elementwise/activation.h"
#include "ops/kernel_inputs.h"
#include "ops/linalg/matmul.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

constexpr const char* kName = "recurrent_layer";

using Mode = kernels::Recurrence;
kernels::Slot<kernels::RecurrentFn> recurrent_slot{"recurrent"};
kernels::Slot<kernels::RecurrentBackwardFn> recurrent_backward_slot{"recurrent_backward"};
constexpr int64_t gates_of(Mode m) { return m == Mode::Lstm ? 4 : m == Mode::Gru ? 3 : 1; }

// The places of the tensors of a call, by which nodes know them, too.
enum : size_t { kX, kH, kC, kWeightIh, kWeightHh, kBiasIh, kBiasHh, kWeightHr, kInputs };

struct Layer {
  Tensor in[kInputs];  // undefined where absent
  Shape batch_sizes;
  Mode mode;
  bool reverse;

  const Tensor& operator[](size_t i) const { return in[i]; }
  OptTensor maybe(size_t i) const { return in[i].defined() ? OptTensor(in[i]) : OptTensor(); }
  int64_t rows() const { return in[kX].sizes()[0]; }
  int64_t hidden() const { return in[kWeightHh].sizes()[0] / gates_of(mode); }
};

// ---- composed ------------------------------------------------------------------------------------------

Tensor gate(const Tensor& all, int64_t i, int64_t hidden) { return narrow(all, 1, i * hidden, hidden); }

// One step of b sequences: x [b, G * H] already projected, h [b, R] and c [b, H] are replaced.
void composed_step(const Layer& l, const Tensor& x, Tensor& h, Tensor& c) {
  const int64_t n = l.hidden();
  const Tensor p = linear(h, l[kWeightHh], l.maybe(kBiasHh));
  if (l.mode == Mode::Gru) {
    const Tensor reset = sigmoid(gate(x, 0, n) + gate(p, 0, n));
    const Tensor update = sigmoid(gate(x, 1, n) + gate(p, 1, n));
    const Tensor fresh = tanh(gate(x, 2, n) + reset * gate(p, 2, n));
    h = fresh + update * (h - fresh);
    return;
  }
  const Tensor z = x + p;
  if (l.mode != Mode::Lstm) {
    h = l.mode == Mode::Tanh ? tanh(z) : relu(z);
    return;
  }
  c = sigmoid(gate(z, 1, n)) * c + sigmoid(gate(z, 0, n)) * tanh(gate(z, 2, n));
  h = sigmoid(gate(z, 3, n)) * tanh(c);
  if (l[kWeightHr].defined()) h = linear(h, l[kWeightHr], std::nullopt);
}

// What is left of `before` below the first rows, which `first` replaces.
Tensor with_first_rows(const Tensor& first, const Tensor& before) {
  const int64_t b = first.sizes()[0], all = before.sizes()[0];
  if (b == all) return first;
  const Tensor both[] = {first, narrow(before, 0, b, all - b)};
  return cat(both, 0);
}

// {output [N, R], h [B, R]} and, of an LSTM, c [B, H].
std::vector<Tensor> composed(const Layer& l) {
  const Tensor x = linear(l[kX], l[kWeightIh], l.maybe(kBiasIh));
  const size_t steps = l.batch_sizes.size();
  std::vector<Tensor> outputs(steps);
  Tensor h = l[kH], c = l[kC];
  int64_t row = l.reverse ? x.sizes()[0] : 0;
  for (size_t i = 0; i < steps; ++i) {
    const size_t step = l.reverse ? steps - 1 - i : i;
    const int64_t b = l.batch_sizes[step];
    if (l.reverse) row -= b;
    Tensor h_now = narrow(h, 0, 0, b), c_now = c.defined() ? narrow(c, 0, 0, b) : c;
    composed_step(l, narrow(x, 0, row, b), h_now, c_now);
    outputs[step] = h_now;
    h = with_first_rows(h_now, h);
    if (c.defined()) c = with_first_rows(c_now, c);
    if (!l.reverse) row += b;
  }
  std::vector<Tensor> out{cat(outputs, 0), h};
  if (c.defined()) out.push_back(c);
  return out;
}

// The gradients, recorded: those of the composed form, run anew on inputs that are the graph's only leaves.
void composed_backward(Gradients& g, const Layer& l) {
  Layer own = l;
  std::vector<Tensor> inputs, roots, gradients;
  for (size_t i = 0; i < kInputs; ++i) {
    if (!g.wants(i)) continue;
    own.in[i] = view(l[i], l[i].sizes());
    inputs.push_back(own.in[i]);
  }
  const std::vector<Tensor> outputs = composed(own);
  for (size_t j = 0; j < outputs.size(); ++j) {
    if (!g[j].defined()) continue;
    roots.push_back(outputs[j]);
    gradients.push_back(g[j]);
  }
  BackwardOptions options;
  options.create_graph = options.retain_graph = options.allow_unused = true;
  options.accumulate = false;
  std::vector<Tensor> found = run_backward(roots, gradients, inputs, options);
  for (size_t i = 0, k = 0; i < kInputs; ++i)
    if (g.wants(i)) g.set(i, std::move(found[k++]));
}

// ---- fused ---------------------------------------------------------------------------------------------

// The kernels know no 16-bit dtypes: what recurs stays in float32, products over all steps do not.
Tensor in_compute(const Tensor& x) {
  return x.defined() ? raw_contiguous(raw_cast(x, stats_dtype(x.dtype()))) : x;
}
Tensor fresh_compute(const Layer& l, Shape sizes) {
  return empty(sizes, {stats_dtype(l[kX].dtype()), l[kX].device()});
}
Tensor copy_in_compute(const Layer& l, const Tensor& x, const Tensor& like) {
  if (!like.defined()) return {};
  Tensor out = fresh_compute(l, like.sizes());
  x.defined() ? raw_copy(out, x) : raw_fill(out, 0);
  return out;
}
void* data_of(const Tensor& t) { return t.defined() ? t.planned_data() : nullptr; }

// The tensors a plan points to.
struct Planned {
  Shape first;
  Tensor weight, bias;
  kernels::RecurrentPlan plan;

  explicit Planned(const Layer& l) : weight(in_compute(l[kWeightHh])), bias(in_compute(l[kBiasHh])) {
    first.push_back(0);
    for (int64_t b : l.batch_sizes) first.push_back(first.back() + b);
    plan = {weight.dtype(),   l.mode,     l.reverse,    static_cast<int64_t>(l.batch_sizes.size()),
            l.batch_sizes[0], l.hidden(), first.data(), weight.planned_data(),
            data_of(bias)};
  }
};

struct FusedData {
  Shape batch_sizes;
  Mode mode;
  bool reverse;
};

// saved: the inputs but weight_hr; gates, cells and the output as the kernel left them
void fused_backward(Node& n, Gradients& g, const Layer& l) {
  const Tensor gates = n.saved(kWeightHr), cells = n.saved(kWeightHr + 1), out = n.saved(kWeightHr + 2);
  const Tensor h0 = in_compute(l[kH]), c0 = in_compute(l[kC]), d_out = in_compute(g[0]);
  const Tensor d_h = copy_in_compute(l, g[1], h0);
  const Tensor d_c = copy_in_compute(l, c0.defined() ? g[2] : Tensor(), c0);
  const Shape wide{l.rows(), l[kWeightHh].sizes()[0]};
  const Tensor d_in = fresh_compute(l, wide);
  const Tensor d_hidden = l.mode == Mode::Gru ? fresh_compute(l, wide) : d_in;
  const Tensor previous = fresh_compute(l, Shape{l.rows(), l.hidden()});
  const Planned p(l);
  if (!d_in.is_meta() && l.rows())
    recurrent_backward_slot(Launch(d_in.device()), p.plan,
                            kernels::RecurrentGradients{data_of(gates), data_of(cells), out.data(), h0.data(),
                                                        data_of(c0), data_of(d_out), d_h.data(), data_of(d_c),
                                                        d_in.data(), d_hidden.data(), previous.data()});
  const DType dtype = l[kX].dtype();
  const Tensor up = raw_cast(d_in, dtype), up_hidden = d_hidden.same(d_in) ? up : raw_cast(d_hidden, dtype);
  if (g.wants(kX)) g.set(kX, matmul(up, l[kWeightIh]));
  g.set(kH, d_h);
  if (d_c.defined()) g.set(kC, d_c);
  if (g.wants(kWeightIh)) g.set(kWeightIh, matmul(transpose(up, 0, 1), l[kX]));
  if (g.wants(kWeightHh)) g.set(kWeightHh, matmul(transpose(up_hidden, 0, 1), raw_cast(previous, dtype)));
  const Tensor bias = g.wants(kBiasIh) ? raw_reduce_to(d_in, Shape{wide[1]}) : Tensor();
  if (bias.defined()) g.set(kBiasIh, bias);
  if (g.wants(kBiasHh))
    g.set(kBiasHh,
          bias.defined() && d_hidden.same(d_in) ? raw_clone(bias) : raw_reduce_to(d_hidden, Shape{wide[1]}));
}

void recurrent_backward(Node& n, Gradients& g) {
  const FusedData& d = n.data<FusedData>();
  Layer l{{}, d.batch_sizes, d.mode, d.reverse};
  bool graph = false;
  for (size_t i = 0; i < kWeightHr; ++i) graph |= needs_grad(l.in[i] = n.saved(i));
  for (size_t j = 0; j < g.outputs(); ++j) graph |= needs_grad(g[j]);
  graph ? composed_backward(g, l) : fused_backward(n, g, l);
}
constexpr NodeType kLayerNode{"RecurrentLayerBackward0", recurrent_backward};

std::vector<Tensor> fused(const Layer& l) {
  bool recorded = false;
  for (const Tensor& t : l.in) recorded |= needs_grad(t);
  const NoGrad no_grad;
  const DType dtype = l[kX].dtype();
  const Tensor gates = in_compute(linear(l[kX], l[kWeightIh], l.maybe(kBiasIh)));
  const Tensor out = fresh_compute(l, Shape{l.rows(), l.hidden()});
  const Tensor cells = gates_of(l.mode) > 1 ? fresh_compute(l, out.sizes()) : Tensor();
  const Tensor h = copy_in_compute(l, l[kH], l[kH]), c = copy_in_compute(l, l[kC], l[kC]);
  const Planned p(l);
  if (!out.is_meta() && l.rows())
    recurrent_slot(Launch(out.device()), p.plan,
                   kernels::RecurrentTensors{gates.data(), data_of(cells), out.data(), h.data(), data_of(c)});
  std::vector<Tensor> results{raw_cast(out, dtype), raw_cast(h, dtype)};
  if (c.defined()) results.push_back(raw_cast(c, dtype));
  if (!recorded) return results;
  Ref<Node> n = make_node(kLayerNode);
  for (const Tensor& t : l.in) add_edge(*n, t);
  for (size_t i = 0; i < kWeightHr; ++i) n->save(l[i]);
  n->save(cells.defined() ? gates : Tensor());
  n->save(cells);
  n->emplace<FusedData>(FusedData{l.batch_sizes, l.mode, l.reverse});
  for (const Tensor& t : results) set_history(t, n);
  out.same(results[0]) ? n->save_output(results[0]) : n->save(out);
  return results;
}

// ---- the op --------------------------------------------------------------------------------------------

Mode mode_of(std::string_view name) {
  if (name == "LSTM") return Mode::Lstm;
  if (name == "GRU") return Mode::Gru;
  if (name == "RNN_RELU") return Mode::Relu;
  WT_CHECK(name == "RNN_TANH", ValueError, kName,
           ": expected mode 'LSTM', 'GRU', 'RNN_TANH' or 'RNN_RELU', got '", name, "'");
  return Mode::Tanh;
}

void check_steps(const Layer& l) {
  WT_CHECK(!l.batch_sizes.empty(), ShapeError, kName,
           ": Expected sequence length to be larger than 0 in RNN");
  int64_t rows = 0, before = l.batch_sizes[0];
  for (int64_t b : l.batch_sizes) {
    WT_CHECK(b >= 0 && b <= before, ShapeError, kName, ": expected batch sizes that never grow, got ",
             l.batch_sizes);
    rows += before = b;
  }
  WT_CHECK(l[kX].ndim() == 2 && l[kX].sizes()[0] == rows, ShapeError, kName, ": expected input [", rows,
           ", features], the rows of all steps, got ", l[kX].sizes());
}

void check_tensors(const Layer& l) {
  check_floating(kName, l[kX]);
  const Tensor& w = l[kWeightHh];
  WT_CHECK(w.ndim() == 2 && w.sizes()[0] > 0 && w.sizes()[0] % gates_of(l.mode) == 0, ShapeError, kName,
           ": expected weight_hh [", gates_of(l.mode), " * hidden, hidden], got ", w.sizes());
  const int64_t hidden = l.hidden(), gates = w.sizes()[0], batch = l.batch_sizes[0];
  const bool lstm = l.mode == Mode::Lstm, projects = l[kWeightHr].defined();
  WT_CHECK(lstm == l[kC].defined() && (lstm || !projects), Error, kName,
           ": expected cx with an LSTM alone, and weight_hr with no other");
  const int64_t features = l[kWeightIh].sizes().size() ? l[kWeightIh].sizes().back() : 0;
  const int64_t recurs = projects && l[kWeightHr].ndim() == 2 ? l[kWeightHr].sizes()[0] : hidden;
  const std::pair<const char*, Shape> expected[kInputs] = {
      {"input", Shape{l[kX].sizes()[0], features}},
      {"hx", Shape{batch, recurs}},
      {"cx", Shape{batch, hidden}},
      {"weight_ih", Shape{gates, features}},
      {"weight_hh", Shape{gates, recurs}},
      {"bias_ih", Shape{gates}},
      {"bias_hh", Shape{gates}},
      {"weight_hr", Shape{recurs, hidden}},
  };
  for (size_t i = 0; i < kInputs; ++i) {
    const Tensor& t = l[i];
    if (!t.defined()) continue;
    const auto& [what, sizes] = expected[i];
    WT_CHECK(t.dtype() == l[kX].dtype(), DtypeError, kName, ": expected ", what, " of the input's dtype ",
             l[kX].dtype(), ", got ", t.dtype(), "; convert one with .to(dtype)");
    WT_CHECK(t.sizes() == sizes, ShapeError, kName, ": expected ", what, " ", sizes, ", got ", t.sizes());
  }
}

// Other devices have no kernel, and projections are rare. One step of a few sequences reads a large weight
// once: as dot products, without packing it.
bool suits_fused(const Layer& l) {
  if (l[kX].device().is_accelerator() || l[kWeightHr].defined()) return false;
  return l.batch_sizes.size() > 1 || l.rows() > 8 || l.hidden() < 256;
}

std::vector<Tensor> recurrent_layer_impl(const Tensor& input, IntList batch_sizes, const Tensor& hx,
                                         const OptTensor& cx, const Tensor& weight_ih,
                                         const Tensor& weight_hh, const OptTensor& bias_ih,
                                         const OptTensor& bias_hh, const OptTensor& weight_hr,
                                         std::string_view mode, bool reverse) {
  Shape steps(batch_sizes.begin(), batch_sizes.end());
  // One size is that of every step.
  if (steps.size() == 1 && steps[0] > 0 && input.ndim() == 2 && input.sizes()[0] > steps[0] &&
      input.sizes()[0] % steps[0] == 0)
    steps.resize(static_cast<size_t>(input.sizes()[0] / steps[0]), steps[0]);
  const Layer l{{input, hx, or_undefined(cx), weight_ih, weight_hh, or_undefined(bias_ih),
                 or_undefined(bias_hh), or_undefined(weight_hr)},
                std::move(steps),
                mode_of(mode),
                reverse};
  check_steps(l);
  check_tensors(l);
  return suits_fused(l) ? fused(l) : composed(l);
}

}  // namespace

decltype(recurrent_layer) recurrent_layer{
    kName,
    recurrent_layer_impl,
    kPrivate | kChecked | kLower,
    {"input",
     {"batch_sizes", kRepeats},
     "hx",
     "cx",
     "weight_ih",
     "weight_hh",
     "bias_ih",
     "bias_hh",
     "weight_hr",
     "mode",
     {"reverse", false}},
    "One direction of one recurrent layer: [output, h] and, of an LSTM, c."};

}  // namespace warptape::ops
