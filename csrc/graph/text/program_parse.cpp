// Reading the text form of a program; program_text.cpp has the grammar.
//
// What was read is a program to look at, to check and to run passes on. It cannot run: numbers and the
// arguments of ops are no part of a program.
#include <set>

#include "graph/ir/ir.h"
#include "graph/text/lexer.h"

namespace warptape::graph {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 40;     // of a memory
constexpr int64_t kMaxElements = int64_t{1} << 50;  // that an operand has, some of them at the same place
constexpr size_t kMaxDims = 64;

using Names = std::set<std::string, std::less<>>;

class Parser {
 public:
  explicit Parser(std::string_view text) : in_(text) {}

  Program program() {
    while (memory()) {
    }
    while (!in_.done()) line();
    for (const auto& [memory, of] : recomputed_) repeat(memory, of);
    for (size_t m = 0; m < p_.memories.size(); ++m)
      if (!declared_[m]) p_.memories[m].bytes = bytes_of(m);
    for (const auto& [memory, of] : recomputed_) p_.memories[memory].bytes = p_.memories[of].bytes;
    number();
    p_.recomputed = static_cast<int64_t>(recomputed_.size());
    p_.names = std::make_shared<Names>(std::move(names_));
    try {
      verify(p_);
    } catch (const Unsound& error) {
      for (const Line& line : lines_)
        if (line.number == error.insn) in_.refuse(error.why, line.at);
      throw;
    }
    return std::move(p_);
  }

 private:
  struct Line {
    Insn insn;
    std::optional<uint32_t> number;
    std::optional<size_t> step;  // none: dead
    size_t at;                   // in the text
  };

  uint32_t reference() {
    in_.expect("%");
    const auto m = in_.number<uint32_t>();
    if (m >= kMaxMemories) in_.fail("a smaller number of a memory before this");
    if (m >= p_.memories.size()) {
      p_.memories.resize(m + 1);
      declared_.resize(m + 1);
      reached_.resize(m + 1);
    }
    return m;
  }

  // Whether it was one.
  bool memory() {
    if (in_.peek() != '%') return false;
    const Lexer before = in_;
    in_.expect("%");
    in_.number<uint32_t>();
    in_.expect(":");
    const bool recomputes = in_.peek_word() == "recomputes";
    const bool is_one = recomputes || std::isdigit(static_cast<unsigned char>(in_.peek()));
    in_ = before;
    if (!is_one) return false;
    const uint32_t m = reference();
    in_.expect(":");
    if (declared_[m]) in_.fail(message("a memory that is not declared yet, unlike %", m, ", before this"));
    declared_[m] = true;
    if (recomputes) {
      in_.expect("recomputes");
      recomputed_.emplace_back(m, reference());
      return true;
    }
    const auto bytes = in_.number<int64_t>();
    if (bytes < 0 || bytes > kMaxBytes) in_.fail("a number of bytes before this");
    in_.expect("bytes");
    ProgramMemory& memory = p_.memories[m];
    memory.bytes = static_cast<size_t>(bytes);
    if (in_.accept("on ")) memory.device = in_.device();
    memory.in = keyword("in");
    memory.out = keyword("out");
    return true;
  }

  void repeat(uint32_t memory, uint32_t of) {
    const ProgramMemory& first = p_.memories[of];
    if (first.recomputes || first.in || first.out || memory == of)
      in_.fail(message("%", of, ", which %", memory,
                       " recomputes, to be seen by nobody and to be itself, "
                       "before this"));
    p_.memories[memory].recomputes = of;
    p_.memories[memory].device = first.device;
    reached_[of] = std::max(reached_[of], reached_[memory]);
  }

  size_t bytes_of(size_t memory) const {
    if (reached_[memory] > kMaxBytes) in_.fail(message("a smaller memory than %", memory, " before this"));
    return static_cast<size_t>(reached_[memory]);
  }

  bool keyword(std::string_view name) { return in_.peek_word() == name && in_.accept(name); }

  void line() {
    if (!keyword("fused")) {
      std::optional<uint32_t> number = label();
      const bool dead = keyword("dead");
      instruction(number, dead ? std::nullopt : std::optional(p_.steps.size()));
      if (!dead) p_.steps.emplace_back();
      return;
    }
    in_.expect("{");
    const size_t step = p_.steps.size();
    p_.steps.emplace_back();
    size_t count = 0;
    for (; !in_.accept("}"); ++count) instruction(label(), step);
    if (count < 2) in_.fail("two instructions at least in a fused step before this");
    p_.fused += static_cast<int64_t>(count) - 1;
  }
  std::optional<uint32_t> label() {
    if (!in_.accept("[")) return {};
    const auto number = in_.number<uint32_t>();
    in_.expect("]");
    return number;
  }

  void instruction(std::optional<uint32_t> number, std::optional<size_t> step) {
    const size_t at = in_.at();
    Insn i;
    i.compute = DType::Float32;
    i.callee = nullptr;
    if (in_.peek() == '%') {
      do i.out.push_back(operand());
      while (in_.accept(","));
      in_.expect("=");
    }
    const bool op = keyword("op"), node = !op && keyword("node"), kernel = !op && !node && keyword("kernel");
    i.checked = kernel && keyword("checked");
    i.over = kernel && keyword("over");
    if (kernel && keyword("rows")) rows(i);
    const bool sum = !op && !node && !kernel && in_.peek_word() == kSumTo;
    i.name = names_.emplace(in_.word()).first->c_str();
    i.kind = op       ? CallKind::Op
             : node   ? CallKind::Backward
             : kernel ? CallKind::Kernel
             : sum    ? CallKind::SumTo
                      : CallKind::Elementwise;
    if (op) i.op = op_named(i.name);
    if (node) i.op = op_of_node(i.name);
    if (i.kind == CallKind::Elementwise) {
      elementwise(i);
    } else {
      in_.expect("(");
      in_.list(")", [&] { i.in.push_back(operand()); });
      i.present_in = (1u << std::min<size_t>(i.in.size(), 31)) - 1;
      i.present_out = (1u << std::min<size_t>(i.out.size(), 31)) - 1;
    }
    if (sum && (i.in.size() != 1 || i.out.size() != 1)) in_.fail("one operand and one result before this");
    i.in_backward = in_.accept("@backward");
    lines_.push_back({std::move(i), number, step, at});
  }
  void rows(Insn& i) {
    const Shape numbers = shape();
    if (numbers.size() != 3 || numbers[0] < 1 || (numbers[1] | numbers[2]) >> 8 != 0)
      in_.fail("a number of rows and two of 8 bits before this");
    i.rows = numbers[0];
    i.rows_in = static_cast<uint32_t>(numbers[1]);
    i.rows_out = static_cast<uint32_t>(numbers[2]);
  }
  void elementwise(Insn& i) {
    if (i.out.size() != 1) in_.fail("one result of an elementwise instruction before this");
    i.compute = i.out[0].dtype;
    if (in_.accept("<")) {
      i.compute = in_.dtype();
      in_.expect(">");
    }
    in_.expect("(");
    in_.list(")", [&] {
      const bool number = keyword("number");
      i.operands.push_back(number ? int8_t{kIsNumber} : static_cast<int8_t>(i.in.size()));
      if (!number) i.in.push_back(operand());
      if (i.operands.size() > kernels::kMaxOperands - 1) in_.fail("fewer operands before this");
    });
    if (i.operands.empty()) in_.fail("an operand before this");
    i.copies = copy_kernel().name() == std::string_view(i.name);
  }

  Operand operand() {
    Operand o{};
    o.memory = reference();
    in_.expect(":");
    o.dtype = in_.dtype();
    o.sizes = shape();
    int64_t elements = 1;
    for (int64_t s : o.sizes)
      if (s < 0 || __builtin_mul_overflow(elements, std::max<int64_t>(s, 1), &elements) ||
          elements > kMaxElements)
        in_.fail("smaller sizes, none of them negative, before this");
    o.strides = keyword("strides") ? shape() : contiguous_strides(o.sizes);
    if (o.strides.size() != o.sizes.size()) in_.fail("as many strides as sizes before this");
    if (keyword("offset")) o.offset = in_.number<int64_t>();
    const auto range = o.bytes();
    if (!range) in_.fail("smaller strides before this");
    reached_[o.memory] = std::max(reached_[o.memory], range->second);
    return o;
  }
  Shape shape() {
    Shape out;
    in_.expect("[");
    in_.list("]", [&] {
      if (out.size() == kMaxDims) in_.fail("fewer dims");
      out.push_back(in_.number<int64_t>());
    });
    return out;
  }

  // Puts the instructions into the order in which they were recorded.
  void number() {
    constexpr uint32_t kNone = UINT32_MAX;
    std::vector<uint32_t> at(lines_.size(), kNone);  // the line of each number
    for (uint32_t k = 0; k < lines_.size(); ++k)
      if (const auto n = lines_[k].number) {
        if (*n >= at.size() || at[*n] != kNone)
          in_.fail(
              message("numbers of instructions below ", at.size(), ", each once, not ", *n, ", before this"));
        at[*n] = k;
      }
    uint32_t next = 0;
    for (uint32_t k = 0; k < lines_.size(); ++k) {
      if (lines_[k].number) continue;
      while (at[next] != kNone) ++next;
      at[next] = k;
      lines_[k].number = next;
    }
    for (const Line& line : lines_)
      if (line.step) p_.steps[*line.step].insns.push_back(*line.number);
    for (uint32_t k : at) {
      lines_[k].insn.call = static_cast<uint32_t>(p_.insns.size());
      p_.insns.push_back(std::move(lines_[k].insn));
    }
  }

  Lexer in_;
  Program p_;
  Names names_;
  std::vector<bool> declared_;
  std::vector<int64_t> reached_;  // by memory: its bytes that operands reach
  std::vector<std::pair<uint32_t, uint32_t>> recomputed_;
  std::vector<Line> lines_;
};

}  // namespace

Program Program::parse(std::string_view text) { return Parser(text).program(); }

}  // namespace warptape::graph
