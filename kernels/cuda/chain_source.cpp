#include "kernels/cuda/chain_source.h"

#include <algorithm>

namespace warptape::kernels::cuda {
namespace {

const char* type_of(DType t) {
  constexpr const char* kNames[] = {"Bool",    "uint8_t", "int8_t",   "int16_t", "int32_t",
                                    "int64_t", "Half",    "BFloat16", "float",   "double"};
  return kNames[static_cast<int>(t)];
}

// Where the elements of a group have a value: members of `in`, or locals.
std::string value(const ChainPlan& plan, int v) {
  const std::string n = std::to_string(v);
  if (v >= kMaxChainInputs) return "s" + std::to_string(v - kMaxChainInputs);
  return plan.input[v].host_scalar ? "n" + n : "in.v" + n + "[j]";
}

std::string step_text(const ChainPlan& plan, const ChainStep& s) {
  const std::string result = type_of(s.result), first = value(plan, s.in[0]);
  if (!s.formula->name) {
    const bool fill = s.in[0] < kMaxChainInputs && plan.input[s.in[0]].host_scalar;
    return fill ? first : "cast<" + result + ">(" + first + ")";
  }
  std::string text = "step<";
  text += s.formula->name;
  text += std::string(", ") + type_of(s.formula->compute) + ", " + result + ">(";
  for (int k = 0; k < s.count; ++k) text += (k ? ", " : "") + value(plan, s.in[k]);
  return text + ")";
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

int chain_width(const ChainPlan& plan) {
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

std::string chain_source(const ChainPlan& plan) {
  const int operands = plan.inputs + plan.outputs, width = chain_width(plan);
  const std::string places = operands <= 8 ? "kFewChainOperands" : "kMostChainOperands";
  const std::string args = "const ChainArgs<" + places + ", " + std::to_string(chain_dims(plan)) + ">& a";
  const std::string parameters = "(" + args + ", const Offsets<" + places + ">& at, ";
  std::string members, reads, numbers, steps, outputs, stores;
  for (int k = 0; k < plan.inputs; ++k) {
    const std::string n = std::to_string(k);
    if (plan.input[k].host_scalar) {
      const std::string type = type_of(number_type(plan, k));
      numbers += "    const " + type + " n" + n + " = number<" + type + ">(a, " + n + ");\n";
      continue;
    }
    members += std::string("    Packed<") + type_of(plan.input[k].dtype) + ", W> v" + n + ";\n";
    reads += std::string("    read_group<") + (is_packed(plan, plan.input[k]) ? "true" : "false") +
             ">(a, at, " + n + ", in.v" + n + ");\n";
  }
  for (int k = 0; k < plan.steps; ++k)
    steps += std::string("      const ") + type_of(plan.step[k].result) + " s" + std::to_string(k) + " = " +
             step_text(plan, plan.step[k]) + ";\n";
  for (int k = 0; k < plan.outputs; ++k) {
    const std::string n = std::to_string(k), type = type_of(plan.output[k].to.dtype);
    outputs += "    Packed<" + type + ", W> o" + n + ";\n";
    steps += "      o" + n + "[j] = cast<" + type + ">(" + value(plan, plan.output[k].value) + ");\n";
    stores += "    write_group<W>(a, at, " + std::to_string(plan.inputs + k) + ", o" + n + ");\n";
  }
  const auto kernel = [&](const char* name, int w) {
    return std::string("extern \"C\" __global__ void __launch_bounds__(kChainThreads) ") + name +
           "(const __grid_constant__ " + args.substr(6, args.size() - 9) + " a) {\n  run_chain<Chain, " +
           std::to_string(chain_loads(plan)) + ", " + std::to_string(w) + ">(a);\n}\n";
  };
  return "#include \"kernels/cuda/chain.cuh\"\n\nnamespace warptape::kernels::cuda {\nstruct Chain {\n"
         "  template <int W>\n  struct Values {\n" +
         members + "  };\n  template <int W>\n  WT_DEVICE static void read" + parameters +
         "Values<W>& in) {\n" + reads + "  }\n  template <int W>\n  WT_DEVICE static void write" +
         parameters + "const Values<W>& in) {\n" + numbers + outputs +
         "#pragma unroll\n    for (int j = 0; j < W; ++j) {\n" + steps + "    }\n" + stores + "  }\n};\n" +
         kernel("chain", 1) + (width > 1 ? kernel("chain_wide", width) : "") + "}\n";
}

}  // namespace warptape::kernels::cuda
