#include "kernels/cuda/fused/chain_source.h"

#include <algorithm>
#include <utility>

namespace warptape::kernels::cuda {
namespace {

const char* type_of(DType t) {
  constexpr const char* kNames[] = {"Bool",    "uint8_t", "int8_t",   "int16_t", "int32_t",
                                    "int64_t", "Half",    "BFloat16", "float",   "double"};
  return kNames[static_cast<int>(t)];
}

// The text of a chain's kernel, part by part.
class Text {
 public:
  explicit Text(const ChainPlan& plan);
  std::string write() const;

 private:
  std::string value(int v) const;
  std::string step(const ChainStep& s) const;
  std::string row_step(const ChainStep& s) const;
  std::string steps_before_rows() const;
  std::string row_functions() const;
  std::string numbers() const;
  std::string read(int input, const std::string& to) const;
  std::string kernel(const char* name, int width) const;
  void need(int v);

  const ChainPlan& plan_;
  bool early_[kMaxChainInputs] = {};  // inputs that are read before the rows' sums are known; else all
  bool before_[kMaxChainSteps] = {};  // steps that the rows' kernel needs
  std::string places_, args_, parameters_;
};

bool by_rows(const ChainPlan& plan) { return plan.rows.step >= 0; }
const ChainStep& row_step_of(const ChainPlan& plan) { return plan.step[plan.rows.step]; }

Text::Text(const ChainPlan& plan) : plan_(plan) {
  places_ = plan.inputs + plan.outputs <= 8 ? "kFewChainOperands" : "kMostChainOperands";
  args_ = "ChainArgs<" + places_ + ", " + std::to_string(chain_dims(plan)) + ">";
  parameters_ = "(const " + args_ + "& a, const Offsets<" + places_ + ">& at, ";
  if (!by_rows(plan)) {
    std::fill_n(early_, plan.inputs, true);
    return;
  }
  const ChainStep& s = row_step_of(plan);
  need(s.in[0]);
  if (is_backward(s.formula->rows)) need(s.in[1]);
}

void Text::need(int v) {
  if (v < kMaxChainInputs) {
    early_[v] = true;
    return;
  }
  const int k = v - kMaxChainInputs;
  if (std::exchange(before_[k], true)) return;
  for (int i = 0; i < plan_.step[k].count; ++i) need(plan_.step[k].in[i]);
}

// Where the elements of a group have a value: members of `in`, or locals.
std::string Text::value(int v) const {
  const std::string n = std::to_string(v);
  if (v >= kMaxChainInputs) return "s" + std::to_string(v - kMaxChainInputs);
  return plan_.input[v].host_scalar ? "n" + n : (early_[v] ? "in.v" : "v") + n + "[j]";
}

std::string Text::row_step(const ChainStep& s) const {
  const RowPlaces at = places_of(s.formula->rows);
  const auto coefficient = [&](int place) {
    const bool given = place >= 0 && place < s.count && s.in[place] != kAbsent;
    return given ? ", true, " + value(s.in[place]) : std::string(", false, ") + type_of(s.result) + "{}";
  };
  if (is_backward(s.formula->rows))
    return "norm_step(" + value(s.in[0]) + ", " + value(s.in[1]) + ", stats" + coefficient(at.weight) + ")";
  return "norm_step(" + value(s.in[0]) + ", stats" + coefficient(at.weight) + coefficient(at.bias) + ")";
}

std::string Text::step(const ChainStep& s) const {
  if (s.formula->rows != RowKernel::None) return row_step(s);
  const std::string result = type_of(s.result), first = value(s.in[0]);
  if (!s.formula->name) {
    const bool fill = s.in[0] < kMaxChainInputs && plan_.input[s.in[0]].host_scalar;
    return fill ? first : "cast<" + result + ">(" + first + ")";
  }
  std::string text = "step<";
  text += s.formula->name;
  text += std::string(", ") + type_of(s.formula->compute) + ", " + result + ">(";
  for (int k = 0; k < s.count; ++k) text += (k ? ", " : "") + value(s.in[k]);
  return text + ")";
}

std::string Text::read(int input, const std::string& to) const {
  return std::string("    read_group<") + (is_packed(plan_, plan_.input[input]) ? "true" : "false") +
         ">(a, at, " + std::to_string(input) + ", " + to + ");\n";
}

std::string Text::numbers() const {
  std::string out;
  for (int k = 0; k < plan_.inputs; ++k) {
    if (!plan_.input[k].host_scalar) continue;
    const std::string n = std::to_string(k), type = type_of(number_type(plan_, k));
    out += "    const " + type + " n" + n + " = number<" + type + ">(a, " + n + ");\n";
  }
  return out;
}

std::string Text::steps_before_rows() const {
  std::string out;
  for (int k = 0; k < plan_.rows.step; ++k)
    if (before_[k])
      out += std::string("      const ") + type_of(plan_.step[k].result) + " s" + std::to_string(k) + " = " +
             step(plan_.step[k]) + ";\n";
  return out;
}

// What chain_rows.cuh asks for: see there.
std::string Text::row_functions() const {
  const ChainStep& s = row_step_of(plan_);
  const bool backward = is_backward(s.formula->rows);
  const std::string packed = "Packed<Row, W>& ";
  std::string out = "  template <int W>\n  WT_DEVICE static void row(const " + args_ +
                    "& a, const Values<W>& in, " + packed + (backward ? "dy, " + packed + "x" : "x") +
                    ") {\n" + numbers() + "#pragma unroll\n    for (int j = 0; j < W; ++j) {\n" +
                    steps_before_rows();
  if (backward) out += "      dy[j] = " + value(s.in[0]) + ";\n";
  out += "      x[j] = " + value(s.in[backward]) + ";\n    }\n  }\n";
  if (!backward) return out;
  const int weight = places_of(s.formula->rows).weight;
  out += "  template <int W>\n  WT_DEVICE static bool weight" + parameters_ + "Compute<Row> (&w)[W]) {\n";
  if (weight >= s.count || s.in[weight] == kAbsent) return out + "    return false;\n  }\n";
  const int input = s.in[weight];
  return out + "    Packed<" + type_of(plan_.input[input].dtype) + ", W> v;\n" + read(input, "v") +
         "#pragma unroll\n    for (int j = 0; j < W; ++j) w[j] = widen<Compute<Row>>(v[j]);\n" +
         "    return true;\n  }\n";
}

std::string Text::kernel(const char* name, int width) const {
  const std::string head = "extern \"C\" __global__ void __launch_bounds__(";
  if (!by_rows(plan_))
    return head + "kChainThreads) " + name + "(const __grid_constant__ " + args_ +
           " a) {\n  run_chain<Chain, " + std::to_string(chain_loads(plan_)) + ", " + std::to_string(width) +
           ">(a);\n}\n";
  const RowKernel k = row_step_of(plan_).formula->rows;
  return head + (is_backward(k) ? "kNormBackwardThreads) " : "kNormThreads) ") + name +
         "(const __grid_constant__ Row" + args_ + " a) {\n  " +
         (is_backward(k) ? "run_norm_backward_chain" : "run_norm_chain") + "<Chain, " +
         (is_centered(k) ? "true" : "false") + ">(a);\n}\n";
}

std::string Text::write() const {
  std::string members, reads, late, steps, outputs, stores;
  for (int k = 0; k < plan_.inputs; ++k) {
    if (plan_.input[k].host_scalar) continue;
    const std::string v = "v" + std::to_string(k);
    (early_[k] ? members : late) +=
        std::string("    Packed<") + type_of(plan_.input[k].dtype) + ", W> " + v + ";\n";
    if (early_[k])
      reads += read(k, "in." + v);
    else
      late += read(k, v);
  }
  for (int k = 0; k < plan_.steps; ++k)
    steps += std::string("      const ") + type_of(plan_.step[k].result) + " s" + std::to_string(k) + " = " +
             step(plan_.step[k]) + ";\n";
  for (int k = 0; k < plan_.outputs; ++k) {
    const std::string n = std::to_string(k), type = type_of(plan_.output[k].to.dtype);
    outputs += "    Packed<" + type + ", W> o" + n + ";\n";
    steps += "      o" + n + "[j] = cast<" + type + ">(" + value(plan_.output[k].value) + ");\n";
    stores += "    write_group<W>(a, at, " + std::to_string(plan_.inputs + k) + ", o" + n + ");\n";
  }
  const bool rows = by_rows(plan_);
  const int width = chain_width(plan_);
  return std::string("#include \"kernels/cuda/fused/") + (rows ? "chain_rows" : "chain") +
         ".cuh\"\n\nnamespace warptape::kernels::cuda {\nstruct Chain {\n" +
         (rows ? std::string("  using Row = ") + type_of(row_type(plan_)) + ";\n" : "") +
         "  template <int W>\n  struct Values {\n" + members +
         "  };\n  template <int W>\n  WT_DEVICE static void read" + parameters_ + "Values<W>& in) {\n" +
         reads + "  }\n" +
         (rows ? row_functions() + "  template <int W, class Stats>" : "  template <int W>") +
         "\n  WT_DEVICE static void write" + parameters_ + "const Values<W>& in" +
         (rows ? ", const Stats& stats" : "") + ") {\n" + numbers() + late + outputs +
         "#pragma unroll\n    for (int j = 0; j < W; ++j) {\n" + steps + "    }\n" + stores + "  }\n};\n" +
         kernel("chain", 1) + (width > 1 ? kernel("chain_wide", width) : "") + "}\n";
}

}  // namespace

DType number_type(const ChainPlan& plan, int input) {
  for (int k = 0; k < plan.steps; ++k) {
    const ChainStep& s = plan.step[k];
    if (std::find(s.in, s.in + s.count, input) != s.in + s.count)
      return s.formula->name ? s.formula->compute : s.result;
  }
  return DType::Float64;
}

bool is_packed(const ChainPlan& plan, const Operand& operand) {
  return operand.strides[plan.ndim - 1] == static_cast<int64_t>(itemsize(operand.dtype));
}

DType row_type(const ChainPlan& plan) { return row_step_of(plan).result; }

int chain_width(const ChainPlan& plan) {
  if (by_rows(plan)) return 1;
  size_t widest = 1;
  const auto fits = [&](const Operand& o) {
    if (o.host_scalar) return true;
    if (is_packed(plan, o)) widest = std::max(widest, itemsize(o.dtype));
    return is_packed(plan, o) || o.strides[plan.ndim - 1] == 0;
  };
  for (int k = 0; k < plan.inputs; ++k)
    if (!fits(plan.input[k])) return 1;
  for (int k = 0; k < plan.outputs; ++k)
    if (!is_packed(plan, plan.output[k].to) || !fits(plan.output[k].to)) return 1;
  return static_cast<int>(16 / widest);
}

int chain_dims(const ChainPlan& plan) {
  for (int dims : {1, 2, 4, 8})
    if (plan.ndim <= dims) return dims;
  return 0;
}

int chain_loads(const ChainPlan& plan) { return plan.inputs <= 4 ? 2 : 1; }

std::string chain_key(const ChainPlan& plan) {
  std::string key{static_cast<char>(chain_dims(plan)), static_cast<char>(chain_width(plan)),
                  static_cast<char>(plan.inputs), static_cast<char>(plan.steps)};
  for (int k = 0; k < plan.inputs; ++k) {
    const Operand& o = plan.input[k];
    key += o.host_scalar ? '\xff' : static_cast<char>(static_cast<int>(o.dtype) << 1 | is_packed(plan, o));
  }
  for (int k = 0; k < plan.steps; ++k) {
    const ChainStep& s = plan.step[k];
    key.append(reinterpret_cast<const char*>(&s.formula), sizeof s.formula);
    key += static_cast<char>(s.count);
    key.append(reinterpret_cast<const char*>(s.in), s.count);
    key += static_cast<char>(s.result);
  }
  for (int k = 0; k < plan.outputs; ++k)
    key += {static_cast<char>(plan.output[k].value), static_cast<char>(plan.output[k].to.dtype)};
  return key;
}

std::string chain_source(const ChainPlan& plan) { return Text(plan).write(); }

}  // namespace warptape::kernels::cuda
