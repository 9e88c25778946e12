// Calling ops from extensions: values into the arguments of the overload that takes them, and results back.
#include <deque>
#include <unordered_map>

#include "capi/extension/extension_parts.h"
#include "op/visit.h"

namespace warptape::extension {
namespace {

// Owns what the arguments of one call point to.
struct Frame {
  explicit Frame(size_t num_args) { tensors.reserve(num_args); }
  SmallVector<Tensor, 8> tensors;  // with room for all: values point to them
  std::deque<std::vector<Tensor>>& all_lists() { return lists ? *lists : lists.emplace(); }
  std::deque<std::vector<OptTensor>>& all_optionals() { return optionals ? *optionals : optionals.emplace(); }
  std::deque<std::vector<Scalar>>& all_numbers() { return numbers ? *numbers : numbers.emplace(); }

 private:
  std::optional<std::deque<std::vector<Tensor>>> lists;  // rare
  std::optional<std::deque<std::vector<OptTensor>>> optionals;
  std::optional<std::deque<std::vector<Scalar>>> numbers;
};

bool is_number(const wtx_value& v) { return v.kind >= WTX_KIND_BOOL && v.kind <= WTX_KIND_COMPLEX; }

Scalar scalar_of(const wtx_value& v) {
  if (v.kind == WTX_KIND_BOOL) return v.i != 0;
  if (v.kind == WTX_KIND_INT) return v.i;
  if (v.kind == WTX_KIND_DOUBLE) return v.d[0];
  return Complex<double>{v.d[0], v.d[1]};
}

// Lists without items are lists of anything.
bool is_list_of(const wtx_value& v, wtx_kind kind) {
  const bool list = v.kind == WTX_KIND_TENSORS || v.kind == WTX_KIND_INTS || v.kind == WTX_KIND_DOUBLES ||
                    v.kind == WTX_KIND_NUMBERS;
  return v.kind == kind || (list && v.list.size == 0);
}

// Whether an argument takes the value.
bool takes(const Arg& arg, const wtx_value& v) {
  if (v.kind == WTX_KIND_NONE) return arg.optional;
  return visit_type(
      arg.type,
      Overloaded{
          [&](std::type_identity<Tensor>) { return v.kind == WTX_KIND_TENSOR && (v.tensor || arg.optional); },
          [&](std::type_identity<TensorList>) { return is_list_of(v, WTX_KIND_TENSORS); },
          [&](std::type_identity<std::span<const OptTensor>>) { return is_list_of(v, WTX_KIND_TENSORS); },
          [&](std::type_identity<int64_t>) { return v.kind == WTX_KIND_INT || v.kind == WTX_KIND_BOOL; },
          [&](std::type_identity<double>) { return is_number(v) && v.kind != WTX_KIND_COMPLEX; },
          [&](std::type_identity<bool>) { return v.kind == WTX_KIND_BOOL; },
          [&](std::type_identity<Scalar>) { return is_number(v); },
          [&](std::type_identity<IntList>) { return is_list_of(v, WTX_KIND_INTS); },
          [&](std::type_identity<std::span<const double>>) { return is_list_of(v, WTX_KIND_DOUBLES); },
          [&](std::type_identity<DType>) { return v.kind == WTX_KIND_DTYPE; },
          [&](std::type_identity<Device>) { return v.kind == WTX_KIND_DEVICE; },
          [&](std::type_identity<std::string_view>) { return v.kind == WTX_KIND_STRING; },
          [&](std::type_identity<ScalarList>) { return is_list_of(v, WTX_KIND_NUMBERS); },
          [](auto) { return false; },
      });
}

void to_list(const Arg& arg, const wtx_value& v, Value& out, Frame& frame) {
  const std::span items(static_cast<wtx_tensor* const*>(v.list.data), v.list.size);
  if (arg.type == ArgType::OptTensorList) {
    auto& list = frame.all_optionals().emplace_back();
    for (const wtx_tensor* t : items) list.push_back(t ? OptTensor(tensor_of(t)) : std::nullopt);
    out.list = {list.data(), list.size()};
  } else {
    auto& list = frame.all_lists().emplace_back();
    for (const wtx_tensor* t : items) list.push_back(tensor_of(t));
    out.list = {list.data(), list.size()};
  }
}

void to_numbers(const wtx_value& v, Value& out, Frame& frame) {
  const std::span items(static_cast<const wtx_value*>(v.list.data), v.list.size);
  auto& list = frame.all_numbers().emplace_back();
  for (const wtx_value& item : items) {
    WT_CHECK(is_number(item), TypeError, "an item of a list of numbers is none");
    list.push_back(scalar_of(item));
  }
  out.list = {list.data(), list.size()};
}

Value argument(const Arg& arg, const wtx_value& v, Frame& frame) {
  Value out;
  if (v.kind == WTX_KIND_NONE || (v.kind == WTX_KIND_TENSOR && !v.tensor)) return out;
  out.present = true;
  visit_type(arg.type,
             Overloaded{
                 [&](std::type_identity<Tensor>) {
                   frame.tensors.push_back(tensor_of(v.tensor));
                   out.tensor = &frame.tensors.back();
                 },
                 [&](std::type_identity<TensorList>) { to_list(arg, v, out, frame); },
                 [&](std::type_identity<std::span<const OptTensor>>) { to_list(arg, v, out, frame); },
                 [&](std::type_identity<ScalarList>) { to_numbers(v, out, frame); },
                 [&](std::type_identity<int64_t>) { out.i = v.i; },
                 [&](std::type_identity<double>) { out.d = scalar_of(v).to_double(); },
                 [&](std::type_identity<bool>) { out.b = v.i != 0; },
                 [&](std::type_identity<Scalar>) { out.scalar = scalar_of(v); },
                 [&](std::type_identity<DType>) { out.dtype = dtype_of(v.i); },
                 [&](std::type_identity<Device>) { out.device = device_of(v.device); },
                 [&](auto) { out.list = {v.list.data, v.list.size}; },
             });
  return out;
}

// ---- names ----

// As PyTorch's C++ calls the ops of its modules: at::linalg_norm, at::fft_rfft.
std::vector<std::string> names_of(const char* name, uint32_t flags) {
  std::vector<std::string> names;
  if (flags & (kFunction | kMethod | kNN | kPrivate)) names.emplace_back(name);
  constexpr std::pair<uint32_t, const char*> modules[] = {
      {kLinalg, "linalg_"}, {kFFT, "fft_"}, {kSpecial, "special_"}};
  for (const auto& [flag, prefix] : modules)
    if (flags & flag) names.push_back(prefix + std::string(name));
  return names;
}

using Overloads = std::vector<const OpInfo*>;
struct Hash : std::hash<std::string_view> {
  using is_transparent = void;
};

// In the order of their definition; what torch and Tensor have before what only other modules have.
std::unordered_map<std::string, Overloads, Hash, std::equal_to<>> find_ops() {
  std::unordered_map<std::string, Overloads, Hash, std::equal_to<>> found;
  Overloads ops;
  for (const OpInfo* op = all_ops(); op; op = op->next) ops.push_back(op);
  std::reverse(ops.begin(), ops.end());
  std::stable_partition(ops.begin(), ops.end(),
                        [](const OpInfo* op) { return op->flags & (kFunction | kMethod); });
  for (const OpInfo* op : ops) {
    for (const auto& name : names_of(op->name, op->flags)) found[name].push_back(op);
    for (const Alias* a = all_aliases(); a; a = a->next)
      for (const char* end : {"", "_"}) {  // the in-place form has an alias, too, where it is for all places
        if (op->name != std::string(a->of) + end || (a->places && *end)) continue;
        const std::string name = std::string(a->name) + end;
        for (const auto& n : names_of(name.c_str(), a->places ? a->places : op->flags))
          found[n].push_back(op);
      }
  }
  return found;
}

std::string kinds_text(std::span<const wtx_value> args) {
  constexpr const char* names[] = {"None",  "Tensor",  "Tensor[]", "bool",   "int", "float",   "complex",
                                   "int[]", "float[]", "dtype",    "Device", "str", "Scalar[]"};
  std::string text;
  for (const wtx_value& v : args) text += (text.empty() ? "" : ", ") + std::string(names[v.kind]);
  return text;
}

const OpInfo& find_op(const char* name, std::span<const wtx_value> args) {
  static const auto ops = find_ops();
  const auto at = ops.find(std::string_view(name));
  WT_CHECK(at != ops.end(), NotImplementedError, "there is no op ", name);
  for (const OpInfo* op : at->second) {
    bool fits = op->args.size() == args.size();
    for (size_t i = 0; fits && i < args.size(); ++i) fits = takes(op->args[i], args[i]);
    if (fits) return *op;
  }
  throw TypeError(message(name, ": no overload takes (", kinds_text(args), ")"));
}

// ---- results ----

// Where the list of a result lies until the thread's next call.
struct ResultLists {
  std::vector<wtx_tensor*> handles;
  Shape ints;
};
PerThread<ResultLists> result_lists;

void give_list(std::vector<Tensor>& tensors, wtx_value& out) {
  std::vector<wtx_tensor*>& handles = result_lists->handles;
  handles.clear();
  for (Tensor& t : tensors) handles.push_back(give(std::move(t)));
  out.kind = WTX_KIND_TENSORS;
  out.list = {handles.data(), handles.size()};
}

void give_number(const Scalar& s, wtx_value& out) {
  if (s.is_complex()) {
    out.kind = WTX_KIND_COMPLEX;
    out.d[0] = s.to_complex().re, out.d[1] = s.to_complex().im;
  } else if (s.is_floating() || s.exceeds_int64()) {
    out.kind = WTX_KIND_DOUBLE, out.d[0] = s.to_double();
  } else {
    out.kind = s.is_bool() ? WTX_KIND_BOOL : WTX_KIND_INT, out.i = s.to_int();
  }
}

void give_result(Result& r, wtx_value& out) {
  switch (r.kind) {
    case Result::Kind::None:
      out.kind = WTX_KIND_NONE;
      break;
    case Result::Kind::Tensor:
      out.kind = WTX_KIND_TENSOR, out.tensor = give(std::move(r.tensor));
      break;
    case Result::Kind::TensorAndList:
      r.tensors.insert(r.tensors.begin(), std::move(r.tensor));
      [[fallthrough]];
    case Result::Kind::Tuple:
    case Result::Kind::List:
    case Result::Kind::OneOrMany:
      give_list(r.tensors, out);
      break;
    case Result::Kind::IntList:
    case Result::Kind::IntTuple:
      result_lists->ints = std::move(r.ints);
      out.kind = WTX_KIND_INTS, out.list = {result_lists->ints.data(), result_lists->ints.size()};
      break;
    case Result::Kind::DType:
      out.kind = WTX_KIND_DTYPE, out.i = static_cast<int64_t>(r.dtype);
      break;
    default:
      give_number(r.scalar, out);
  }
}

int call(const char* name, const wtx_value* args, size_t num_args, wtx_value* out) {
  return guarded([&] {
    const OpInfo& op = find_op(name, {args, num_args});
    Frame frame(num_args);
    SmallVector<Value, 8> values;
    for (size_t i = 0; i < num_args; ++i) values.push_back(argument(op.args[i], args[i], frame));
    Result result;
    op.call(op, values.data(), result);
    give_result(result, *out);
  });
}

}  // namespace

void fill_calls(wtx_api& api) { api.call = call; }

}  // namespace warptape::extension
