// einsum: operands are contracted from left to right, each step one batched matrix product (or a
// multiplication where nothing is summed).
#include <array>

#include "ops/elementwise/elementwise.h"
#include "ops/linalg/matmul.h"
#include "ops/view/copy.h"
#include "ops/view/view.h"

namespace warptape::ops {
namespace {

// Labels: 0-25 are A-Z, 26-51 a-z (the order of an implicit output), from 52 on the dims of the ellipsis,
// aligned at their end.
constexpr int kLetters = 52, kMaxLabels = kLetters + 64;
using Labels = SmallVector<int, 8>;

struct Term {
  Tensor t;
  Labels labels;  // one per dim, each once
};

bool has(const Labels& l, int label) { return std::find(l.begin(), l.end(), label) != l.end(); }

std::string text_of(int label) {
  if (label >= kLetters) return "...";
  return std::string(1, static_cast<char>(label < 26 ? 'A' + label : 'a' + label - 26));
}

// "aB...c" with `dims` dims behind the ellipsis; -1 marks it while its size is not known.
Labels parse_labels(std::string_view text) {
  Labels labels;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == ' ') continue;
    if (c == '.') {
      WT_CHECK(text.substr(i, 3) == "..." && !has(labels, -1), ShapeError,
               "einsum: found '.' that is not part of one ellipsis ('...') in '", text, "'");
      labels.push_back(-1);
      i += 2;
      continue;
    }
    bool upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z';
    WT_CHECK(upper || lower, ShapeError, "einsum: invalid subscript '", c, "' in '", text,
             "'; subscripts are in [a-zA-Z]");
    labels.push_back(upper ? c - 'A' : c - 'a' + 26);
  }
  return labels;
}

Labels with_ellipsis(const Labels& labels, int64_t dims, int64_t most) {
  Labels out;
  for (int label : labels) {
    if (label >= 0) out.push_back(label);
    for (int64_t d = 0; label < 0 && d < dims; ++d)
      out.push_back(static_cast<int>(kLetters + most - dims + d));
  }
  return out;
}

struct Equation {
  std::vector<Labels> inputs;
  Labels output;
};

Labels implicit_output(const std::vector<Labels>& inputs, int64_t ellipsis) {
  std::array<int, kMaxLabels> count{};
  for (const Labels& in : inputs)
    for (int label : in) ++count[label];
  Labels out;
  for (int64_t d = 0; d < ellipsis; ++d) out.push_back(static_cast<int>(kLetters + d));
  for (int label = 0; label < kLetters; ++label)
    if (count[label] == 1) out.push_back(label);
  return out;
}

Equation parse(std::string_view equation, TensorList operands) {
  size_t arrow = equation.find("->");
  std::string_view left = equation.substr(0, arrow);
  Equation e;
  std::vector<int64_t> behind;  // dims of each operand's ellipsis
  int64_t most = 0;
  for (size_t i = 0;; ++i) {
    size_t comma = left.find(',');
    WT_CHECK(i < operands.size(), ShapeError, "einsum: more operands in the equation '", equation,
             "' than the ", operands.size(), " given");
    Labels labels = parse_labels(left.substr(0, comma));
    int64_t named = static_cast<int64_t>(labels.size()) - has(labels, -1), ndim = operands[i].ndim();
    WT_CHECK(has(labels, -1) ? named <= ndim : named == ndim, ShapeError,
             "einsum: the number of subscripts for operand ", i, " (", named,
             ") does not match its number of dims (", ndim, ") and no ellipsis was given");
    e.inputs.push_back(std::move(labels));
    behind.push_back(ndim - named);
    most = std::max(most, ndim - named);
    if (comma == std::string_view::npos) break;
    left.remove_prefix(comma + 1);
  }
  WT_CHECK(e.inputs.size() == operands.size(), ShapeError, "einsum: the equation '", equation, "' names ",
           e.inputs.size(), " operands, but ", operands.size(), " were given");
  for (size_t i = 0; i < operands.size(); ++i) e.inputs[i] = with_ellipsis(e.inputs[i], behind[i], most);
  e.output = arrow == std::string_view::npos
                 ? implicit_output(e.inputs, most)
                 : with_ellipsis(parse_labels(equation.substr(arrow + 2)), most, most);
  return e;
}

using Sizes = std::array<int64_t, kMaxLabels>;  // of each label; -1 where it does not occur

Sizes label_sizes(const Equation& e, TensorList operands) {
  Sizes sizes;
  sizes.fill(-1);
  for (size_t i = 0; i < operands.size(); ++i)
    for (size_t d = 0; d < e.inputs[i].size(); ++d) {
      int64_t &known = sizes[e.inputs[i][d]], here = operands[i].sizes()[d];
      WT_CHECK(known == -1 || known == 1 || here == 1 || known == here, ShapeError,
               "einsum: operands do not broadcast: subscript ", text_of(e.inputs[i][d]), " has size ", here,
               " in operand ", i, " and ", known, " before");
      if (known == -1 || known == 1) known = here;
    }
  for (size_t i = 0; i < e.output.size(); ++i) {
    WT_CHECK(sizes[e.output[i]] >= 0, ShapeError, "einsum: output subscript ", text_of(e.output[i]),
             " does not appear in any input");
    WT_CHECK(std::count(e.output.begin(), e.output.end(), e.output[i]) == 1, ShapeError,
             "einsum: output subscript ", text_of(e.output[i]), " appears more than once in the output");
  }
  return sizes;
}

// Takes diagonals of repeated labels and drops dims of size 1 that broadcast.
Term make_term(Tensor t, Labels labels, const Sizes& sizes) {
  for (size_t i = 0; i < labels.size(); ++i)
    for (size_t j = labels.size() - 1; j > i; --j) {
      if (labels[j] != labels[i]) continue;
      WT_CHECK(t.sizes()[i] == t.sizes()[j], ShapeError, "einsum: subscript ", text_of(labels[i]),
               " is repeated for one operand but the sizes don't match, ", t.sizes()[j],
               " != ", t.sizes()[i]);
      t = region(t, [&](Shape& size, Shape& strides, int64_t&) {
        strides[i] += strides[j];
        size.erase(j), strides.erase(j);
      });
      labels.erase(j);
    }
  for (size_t d = labels.size(); d-- > 0;) {
    if (t.sizes()[d] != 1 || sizes[labels[d]] == 1) continue;
    t = squeeze_dim(t, static_cast<int64_t>(d));
    labels.erase(d);
  }
  return {std::move(t), std::move(labels)};
}

// Sums over the labels that `keep` refuses.
template <class F>
void sum_out(Term& x, F&& keep) {
  Shape ones = x.t.sizes(), left;
  Labels labels;
  for (size_t d = 0; d < x.labels.size(); ++d) {
    if (keep(x.labels[d])) {
      labels.push_back(x.labels[d]), left.push_back(ones[d]);
    } else {
      ones[d] = 1;
    }
  }
  if (labels.size() == x.labels.size()) return;
  const Tensor terms = x.t.dtype() == DType::Bool ? cast(x.t, DType::Int64) : x.t;  // as sum counts them
  x.t = reshape(tape_reduce_to(terms, ones), left);
  x.labels = std::move(labels);
}

// The term's dims in the order of the labels.
Tensor arranged(const Term& x, const Labels& order) {
  Shape dims;
  for (int label : order)
    dims.push_back(std::find(x.labels.begin(), x.labels.end(), label) - x.labels.begin());
  return permute(x.t, dims);
}

Labels joined(std::initializer_list<const Labels*> parts) {
  Labels out;
  for (const Labels* p : parts) out.append(p->begin(), p->end());
  return out;
}

struct Groups {
  Labels batch, summed, only_a, only_b;
};

Tensor multiplied(const Term& a, const Term& b, const Groups& g) {
  Tensor x = arranged(a, joined({&g.batch, &g.only_a})), y = arranged(b, joined({&g.batch, &g.only_b}));
  Shape sx = x.sizes(), sy = y.sizes();
  for (size_t i = 0; i < g.only_b.size(); ++i) sx.push_back(1);
  for (size_t i = 0; i < g.only_a.size(); ++i) sy.insert(g.batch.size(), 1);
  return mul(reshape(x, sx), reshape(y, sy));
}

Term contract(Term a, Term b, const Sizes& sizes, const std::array<bool, kMaxLabels>& needed) {
  sum_out(a, [&](int l) { return needed[l] || has(b.labels, l); });
  sum_out(b, [&](int l) { return needed[l] || has(a.labels, l); });
  Groups g;
  for (int l : a.labels) (!has(b.labels, l) ? g.only_a : needed[l] ? g.batch : g.summed).push_back(l);
  for (int l : b.labels)
    if (!has(a.labels, l)) g.only_b.push_back(l);
  Labels result = joined({&g.batch, &g.only_a, &g.only_b});
  if (g.summed.empty()) return {multiplied(a, b, g), std::move(result)};

  auto product = [&](const Labels& labels) {
    int64_t n = 1;
    for (int l : labels) n *= sizes[l];
    return n;
  };
  Shape batch, out;
  for (int l : g.batch) batch.push_back(sizes[l]);
  for (int l : result) out.push_back(sizes[l]);
  Shape left = batch, right = batch;
  left.push_back(product(g.only_a)), left.push_back(product(g.summed));
  right.push_back(product(g.summed)), right.push_back(product(g.only_b));
  Tensor x = reshape(arranged(a, joined({&g.batch, &g.only_a, &g.summed})), left);
  Tensor y = reshape(arranged(b, joined({&g.batch, &g.summed, &g.only_b})), right);
  return {reshape(matmul(x, y), out), std::move(result)};
}

Tensor einsum_impl(std::string_view equation, TensorList operands) {
  WT_CHECK(!operands.empty(), ShapeError, "einsum: must provide at least one operand");
  Equation e = parse(equation, operands);
  Sizes sizes = label_sizes(e, operands);
  Term result = make_term(operands[0], e.inputs[0], sizes);
  for (size_t i = 1; i < operands.size(); ++i) {
    std::array<bool, kMaxLabels> needed{};
    for (int l : e.output) needed[l] = true;
    for (size_t later = i + 1; later < operands.size(); ++later)
      for (int l : e.inputs[later]) needed[l] = true;
    result = contract(std::move(result), make_term(operands[i], e.inputs[i], sizes), sizes, needed);
  }
  sum_out(result, [&](int l) { return has(e.output, l); });
  return arranged(result, e.output);
}

}  // namespace

decltype(einsum) einsum{
    "einsum",
    einsum_impl,
    kFunction | kComplex | Aliasing::Argument,
    {"equation", {"operands", kVarArgs}},
    "Sums products of operands over the subscripts that the output lacks, as in \"bij,bjk->bik\"."};
}  // namespace warptape::ops
