// How an op is declared and called.
//
// An op is one object, declared in its family's header where C++ calls it and defined in its family's .cpp:
//
//   softmax.h    extern WT_API const Op<Tensor(const Tensor&, int64_t, std::optional<DType>)> softmax;
//   softmax.cpp  decltype(softmax) softmax{"softmax", softmax_impl, kFunction | kMethod,
//                                          {"input", "dim", {"dtype", none}}, "softmax over dim ..."};
//
// The C++ type gives the arguments' types; names, defaults, Python binding, docstring, stub and op table come
// from the declaration, and so do the facts about the op (OpFacts, ArgMark): there is no list of names.
// Several ops with one Python name are overloads, tried in the order of their definition in that file.
// Calling the object, from C++ or Python, passes one inline entry: it tests one thread-local word and whether
// every tensor is a real one of the CPU, and takes the checked way only where one of the two says so.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <source_location>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "autograd/tape.h"
#include "core/errors.h"
#include "op/facts.h"
#include "tensor/plan.h"

namespace warptape {

enum class ArgType : uint8_t {
  Tensor,
  TensorList,
  OptTensorList,
  Int,
  Double,
  Bool,
  Scalar,
  IntList,
  IntLists,
  DoubleList,
  DType,
  Device,
  String,
  Generator,
  ScalarList
};

// One argument or default, without its type. Borrowed: what it points to lives as long as the call.
struct Value {
  bool present = false;
  union {
    const Tensor* tensor;
    int64_t i = 0;
    double d;
    bool b;
    DType dtype;
    Generator* generator;
    struct {
      const void* data;  // Tensor, OptTensor, int64_t, Shape, double, Scalar or char
      size_t size;
    } list;
  };
  Scalar scalar;
  Device device;
};

// What an op returned, without its type.
struct Result {
  enum class Kind : uint8_t {
    None,
    Tensor,
    Tuple,
    List,
    Bool,
    Int,
    Double,
    Scalar,
    IntList,
    IntTuple,  // IntList that is no size: Python gets a plain tuple
    DType,
    OneOrMany,      // Tensor or List, as the arguments ask; `kind` then says which
    TensorAndList,  // a tuple of one tensor and a tuple of the others
  };
  Kind kind = Kind::None;
  DType dtype = DType::Float32;
  Tensor tensor;
  std::vector<Tensor> tensors;
  Scalar scalar;
  Shape ints;
};

using ScalarList = std::span<const Scalar>;
using OneOrMany = std::variant<Tensor, std::vector<Tensor>>;
using TensorAndList = std::pair<Tensor, std::vector<Tensor>>;

struct None {};
inline constexpr None none;

struct ArgDefault {
  enum class Kind : uint8_t { Required, None, Bool, Int, Double, String, IntList, DType };
  Kind kind = Kind::Required;
  int64_t i = 0;
  double d = 0;
  const char* text = nullptr;
  DType dtype = DType::Float32;
  std::array<int64_t, 4> items{};
  uint8_t count = 0;
  IntList ints() const { return {items.data(), count}; }
};

enum ArgMark : uint16_t {
  kKeywordOnly = 1,
  kVarArgs = 2,      // x.view(2, 3) as well as x.view((2, 3)); of an IntList or TensorList
  kWritten = 4,      // changed in place; the op returns it
  kNoneItems = 8,    // of an IntList: takes None among the items, which is kNoItem
  kUpdated = 16,     // changed in place beside the result, where all switches are on
  kNoGradient = 32,  // of a tensor: none leads to it; only its shape or dtype counts, or it is a choice
  kReadFirst = 64,   // read before anything is written, so it may overlap what is: see Note [Overlap]
  kSwitch = 128,     // of a flag, which is on where it is true; of another argument, on where it is given
  kDimIndex = 256,   // counts the dims of the first tensor
  kDraws = 512,      // of an op that is kRandom: it draws nothing where this is 0 or false
  kRepeats = 1024,   // of an IntList: one item stands for any number of equal ones
  kInPlace = 2048,   // of a flag: the result is written into the first argument
};
inline constexpr int64_t kNoItem = INT64_MIN;

// Trivially destructible and constexpr, which keeps the code that makes the tables of arguments small.
struct Arg {
  constexpr Arg(const char* n, int m = 0) : name(n), marks(static_cast<uint16_t>(m)) {}
  constexpr Arg(const char* n, None, int m = 0) : Arg(n, m) { def.kind = ArgDefault::Kind::None; }
  constexpr Arg(const char* n, bool v, int m = 0) : Arg(n, m) {
    def.kind = ArgDefault::Kind::Bool, def.i = v;
  }
  constexpr Arg(const char* n, double v, int m = 0) : Arg(n, m) {
    def.kind = ArgDefault::Kind::Double, def.d = v;
  }
  constexpr Arg(const char* n, const char* v, int m = 0) : Arg(n, m) {
    def.kind = ArgDefault::Kind::String, def.text = v;
  }
  constexpr Arg(const char* n, std::initializer_list<int64_t> v, int m = 0) : Arg(n, m) {
    def.kind = ArgDefault::Kind::IntList;
    for (int64_t item : v) def.items.at(def.count++) = item;
  }
  static constexpr Arg integer(const char* n, int64_t v, int m = 0) {  // an int would be read as marks
    Arg a(n, m);
    a.def.kind = ArgDefault::Kind::Int, a.def.i = v;
    return a;
  }
  const char* name;
  uint16_t marks;
  ArgDefault def;
  ArgType type = ArgType::Tensor;  // set from the C++ signature
  bool optional = false;           // takes None; likewise
};

inline constexpr size_t kMaxArgs = 26;  // of an op

// What a call changes in place: calls f(i) for each such argument. By the declaration's marks alone;
// is_on(i) says whether the switch that is argument i is on in the call.
template <class IsOn, class F>
void each_written(std::span<const Arg> args, IsOn&& is_on, F&& f) {
  bool updates = true;
  for (size_t i = 0; i < args.size(); ++i)
    if (args[i].marks & kSwitch) updates &= is_on(i);
  for (size_t i = 0; i < args.size(); ++i)
    if ((args[i].marks & kWritten) || ((args[i].marks & kUpdated) && updates)) f(i);
}

// A name together with the line of source that it is written in.
struct OpName {
  constexpr OpName(const char* n, std::source_location l = std::source_location::current())
      : text(n), line(l) {}
  const char* text;
  std::source_location line;
};

struct WT_API OpInfo : OpFacts {
  using CallFn = void (*)(const OpInfo& op, const Value* args, Result& out);
  struct ArgKind {  // what the C++ signature says of an argument
    ArgType type;
    bool optional;
  };
  // Registers the op.
  OpInfo(OpName name, const OpFacts& facts, std::span<const Arg> args, std::span<const ArgKind> kinds,
         const char* doc, std::span<const char* const> return_names, Result::Kind returns, CallFn call,
         CallFn run);
  // The in-place form of `of`; see in_place().
  OpInfo(OpName name, const OpInfo& of);
  OpInfo(const OpInfo&) = delete;

  const char* name;
  std::vector<Arg> args;
  const char* doc;
  Result::Kind returns;
  std::vector<const char*> return_names;  // of a named tuple
  const OpInfo* inplace_of = nullptr;     // of a form that in_place() made
  CallFn call;                            // as a call of the object does, by its entry
  CallFn run;                             // the op's own code, past the entry
  CallFn past_overlap;                    // `call` without what an op that writes to an argument does before
  const OpInfo* next;                     // all ops, newest first
  std::source_location declared_at;
};
WT_API const OpInfo* all_ops();
// The first op declared under the name; null if there is none.
WT_API const OpInfo* op_named(std::string_view name);
// The op whose derivative a node of PyTorch's name ("AddmmBackward0") is; null if there is none.
WT_API const OpInfo* op_of_node(std::string_view node);
// The form that writes the result of `op` into its first argument: the op itself where an argument is marked
// kInPlace, else the one that is declared ("relu_" of "relu"). Null if there is none, or it computes
// elsewhere and copies.
WT_API const OpInfo* in_place_form(const OpInfo& op);
// Whether a call may change an argument: its data, or what it says of itself.
WT_API bool may_write(const OpInfo& op);

// Another name of the ops that have the name `of`: in all places of theirs, with another of their in-place
// forms, or in the given places.
struct WT_API Alias {
  Alias(const char* name, const char* of, const OpFacts& places = {});
  const char *name, *of;
  uint32_t places;    // of OpFlag; 0 for those of the ops
  const Alias* next;  // all aliases, newest first
};
WT_API const Alias* all_aliases();

// A reason to leave the straight way: may change the arguments (keeping what it made in `keep`) and go on
// (false), or do the whole call (true).
using Keep = std::deque<Tensor>;
using Interceptor = bool (*)(const OpInfo& op, std::span<Value> args, Result& out, Keep& keep);
WT_API void set_interceptor(DispatchBit bit, Interceptor f);
// What the entry does where a call is not plain: checks the arguments against the op's flags (DeviceError for
// tensors on several devices, DtypeError for complex numbers), then asks the interceptors of all bits set,
// each with its own bit cleared, and runs the op if none of them did the call. May change the arguments.
WT_API void call_checked(const OpInfo& op, std::span<Value> args, Result& out);
// The same on a copy of the arguments.
WT_API void call_checked(const OpInfo& op, const Value* args, Result& out);

// Note [Ops without a derivative]: an op that recorded nothing although an argument requires a gradient gets
// a node whose backward raises, so that no term of a gradient is missing silently. The entry sees to it for
// every op; one whose result has no gradient by its nature is declared kNonDifferentiable.
inline bool lacks_history(const Tensor& t) {
  return t.defined() && !requires_grad(t) && is_differentiable(t.dtype());
}
// Of several results each may have its own inputs, and an op that records some of them knows of the others.
inline bool lacks_history(const std::vector<Tensor>& results) {
  const auto recorded = [](const Tensor& t) { return t.defined() && requires_grad(t); };
  return std::none_of(results.begin(), results.end(), recorded) &&
         std::any_of(results.begin(), results.end(), [](const Tensor& t) { return lacks_history(t); });
}
template <class... T>
inline bool lacks_history(const std::tuple<T...>& results) {
  const auto one = [](const auto&... t) {
    return !((t.defined() && requires_grad(t)) || ...) && (lacks_history(t) || ...);
  };
  return std::apply(one, results);
}
inline bool lacks_history(const TensorAndList& results) {
  return lacks_history(results.first) && (results.second.empty() || lacks_history(results.second));
}
inline bool lacks_history(const OneOrMany& results) {
  return std::visit([](const auto& r) { return lacks_history(r); }, results);
}
template <class T>
inline bool may_require_grad(const T& x) {
  if constexpr (std::is_same_v<T, Tensor>) {
    return x.defined() && x->extra && requires_grad(x);
  } else if constexpr (std::is_same_v<T, OptTensor>) {
    return x && may_require_grad(*x);
  } else if constexpr (std::is_same_v<T, TensorList> || std::is_same_v<T, std::span<const OptTensor>>) {
    for (const auto& t : x)
      if (may_require_grad(t)) return true;
  }
  return false;
}
WT_API void record_not_implemented(const OpInfo& op, std::span<const Value> args, Result& out);

// Calls see(t) for every defined tensor among the arguments.
WT_API void each_tensor(const OpInfo& op, std::span<const Value> args,
                        const std::function<void(const Tensor&)>& see);

// Calls f(t) for every tensor among the arguments that the call changes in place.
template <class F>
void each_written(const OpInfo& op, std::span<const Value> args, F&& f) {
  const auto is_on = [&](size_t i) {
    return args[i].present && (op.args[i].type != ArgType::Bool || args[i].b);
  };
  each_written(op.args, is_on, [&](size_t i) {
    if (!args[i].present) return;
    if (op.args[i].type == ArgType::Tensor) f(*args[i].tensor);
    if (op.args[i].type == ArgType::TensorList)
      for (size_t k = 0; k < args[i].list.size; ++k) f(static_cast<const Tensor*>(args[i].list.data)[k]);
  });
}

// Whether every op takes this argument: no complex number, no tensor of another device.
template <class T>
inline bool is_plain(const T& x) {
  if constexpr (std::is_same_v<T, Tensor>) {
    return !x.defined() || x->plain;
  } else if constexpr (std::is_same_v<T, Scalar>) {
    return !x.is_complex();
  } else if constexpr (std::is_same_v<T, DType>) {
    return x < DType::Complex64;
  } else if constexpr (std::is_same_v<T, OptTensor> || std::is_same_v<T, std::optional<Scalar>> ||
                       std::is_same_v<T, std::optional<DType>>) {
    return !x || is_plain(*x);
  } else if constexpr (std::is_same_v<T, TensorList> || std::is_same_v<T, std::span<const OptTensor>> ||
                       std::is_same_v<T, ScalarList>) {
    for (const auto& t : x)
      if (!is_plain(t)) return false;
    return true;
  } else {
    return true;
  }
}

// ---- from C++ types to values and back -----------------------------------------------------------------

template <class T> struct ArgTraits;
#define WT_ARG(TYPE, KIND, BOX, UNBOX)                            \
  template <> struct ArgTraits<TYPE> {                            \
    static constexpr ArgType kType = ArgType::KIND;               \
    static constexpr bool kOptional = false;                      \
    static void box(Value& v, const TYPE& x) { BOX; }             \
    static decltype(auto) unbox(const Value& v) { return UNBOX; } \
  }
WT_ARG(Tensor, Tensor, v.tensor = &x, (*v.tensor));
WT_ARG(int64_t, Int, v.i = x, int64_t{v.i});
WT_ARG(double, Double, v.d = x, double{v.d});
WT_ARG(bool, Bool, v.b = x, bool{v.b});
WT_ARG(Scalar, Scalar, v.scalar = x, Scalar{v.scalar});
WT_ARG(DType, DType, v.dtype = x, DType{v.dtype});
WT_ARG(Device, Device, v.device = x, Device{v.device});
WT_ARG(TensorList, TensorList, (v.list = {x.data(), x.size()}),
       (TensorList{static_cast<const Tensor*>(v.list.data), v.list.size}));
WT_ARG(std::span<const OptTensor>, OptTensorList, (v.list = {x.data(), x.size()}),
       (std::span<const OptTensor>{static_cast<const OptTensor*>(v.list.data), v.list.size}));
WT_ARG(IntList, IntList, (v.list = {x.data(), x.size()}),
       (IntList{static_cast<const int64_t*>(v.list.data), v.list.size}));
WT_ARG(std::span<const Shape>, IntLists, (v.list = {x.data(), x.size()}),
       (std::span<const Shape>{static_cast<const Shape*>(v.list.data), v.list.size}));
WT_ARG(std::span<const double>, DoubleList, (v.list = {x.data(), x.size()}),
       (std::span<const double>{static_cast<const double*>(v.list.data), v.list.size}));
WT_ARG(ScalarList, ScalarList, (v.list = {x.data(), x.size()}),
       (ScalarList{static_cast<const Scalar*>(v.list.data), v.list.size}));
WT_ARG(std::string_view, String, (v.list = {x.data(), x.size()}),
       (std::string_view{static_cast<const char*>(v.list.data), v.list.size}));
#undef WT_ARG
// The generator is always optional: null means the rank's own.
template <> struct ArgTraits<Generator*> {
  static constexpr ArgType kType = ArgType::Generator;
  static constexpr bool kOptional = true;
  static void box(Value& v, Generator* x) { v.generator = x; }
  static Generator* unbox(const Value& v) { return v.present ? v.generator : nullptr; }
};
template <class T> struct ArgTraits<std::optional<T>> {
  static constexpr ArgType kType = ArgTraits<T>::kType;
  static constexpr bool kOptional = true;
  static void box(Value& v, const std::optional<T>& x) {
    v.present = x.has_value();
    if (x) ArgTraits<T>::box(v, *x);
  }
  static std::optional<T> unbox(const Value& v) {
    if (!v.present) return std::nullopt;
    return std::optional<T>(ArgTraits<T>::unbox(v));
  }
};
template <class A> using Plain = std::remove_cvref_t<A>;

// is_plain of a boxed argument; folds to the test of its type, where that is constant.
inline bool is_plain(ArgType type, const Value& v) {
  if (!v.present) return true;
  switch (type) {
    case ArgType::Tensor:
      return is_plain(*v.tensor);
    case ArgType::Scalar:
      return is_plain(v.scalar);
    case ArgType::DType:
      return is_plain(v.dtype);
    case ArgType::TensorList:
      return is_plain(ArgTraits<TensorList>::unbox(v));
    case ArgType::OptTensorList:
      return is_plain(ArgTraits<std::span<const OptTensor>>::unbox(v));
    case ArgType::ScalarList:
      return is_plain(ArgTraits<ScalarList>::unbox(v));
    default:
      return true;
  }
}

template <class R> struct ReturnTraits;
#define WT_RETURN(TYPE, KIND, BOX, UNBOX)                     \
  template <> struct ReturnTraits<TYPE> {                     \
    static constexpr Result::Kind kKind = Result::Kind::KIND; \
    static void box(Result& r, TYPE x) { BOX; }               \
    static TYPE unbox(Result& r) { return UNBOX; }            \
  }
WT_RETURN(Tensor, Tensor, r.tensor = std::move(x), std::move(r.tensor));
WT_RETURN(std::vector<Tensor>, List, r.tensors = std::move(x), std::move(r.tensors));
WT_RETURN(bool, Bool, r.scalar = x, r.scalar.to_bool());
WT_RETURN(int64_t, Int, r.scalar = x, r.scalar.to_int());
WT_RETURN(double, Double, r.scalar = x, r.scalar.to_double());
WT_RETURN(Scalar, Scalar, r.scalar = x, r.scalar);
WT_RETURN(Shape, IntList, r.ints = std::move(x), std::move(r.ints));
WT_RETURN(std::vector<int64_t>, IntTuple, r.ints = Shape(IntList(x)),
          (std::vector<int64_t>(r.ints.begin(), r.ints.end())));
WT_RETURN(DType, DType, r.dtype = x, r.dtype);
#undef WT_RETURN
template <> struct ReturnTraits<OneOrMany> {
  static constexpr Result::Kind kKind = Result::Kind::OneOrMany;
  static void box(Result& r, OneOrMany x) {
    const bool one = std::holds_alternative<Tensor>(x);
    r.kind = one ? Result::Kind::Tensor : Result::Kind::List;
    if (one)
      r.tensor = std::get<Tensor>(std::move(x));
    else
      r.tensors = std::get<std::vector<Tensor>>(std::move(x));
  }
  static OneOrMany unbox(Result& r) {
    if (r.kind == Result::Kind::Tensor) return std::move(r.tensor);
    return std::move(r.tensors);
  }
};
template <> struct ReturnTraits<TensorAndList> {
  static constexpr Result::Kind kKind = Result::Kind::TensorAndList;
  static void box(Result& r, TensorAndList x) {
    r.tensor = std::move(x.first);
    r.tensors = std::move(x.second);
  }
  static TensorAndList unbox(Result& r) { return {std::move(r.tensor), std::move(r.tensors)}; }
};
template <class... T> struct ReturnTraits<std::tuple<T...>> {
  static constexpr Result::Kind kKind = Result::Kind::Tuple;
  static void box(Result& r, std::tuple<T...> x) {
    std::apply([&](auto&... t) { (r.tensors.push_back(std::move(t)), ...); }, x);
  }
  static std::tuple<T...> unbox(Result& r) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return std::tuple<T...>{std::move(r.tensors[I])...};
    }(std::index_sequence_for<T...>{});
  }
};

// ---- the op --------------------------------------------------------------------------------------------

template <class Sig> class Op;

template <class R, class... A>
class Op<R(A...)> : public OpInfo {
 public:
  static_assert(sizeof...(A) <= kMaxArgs);
  using Fn = R (*)(A...);
  Op(OpName name, Fn fn, const OpFacts& facts, std::initializer_list<Arg> args, const char* doc,
     std::initializer_list<const char*> return_names = {})
      : OpInfo(name, facts, args, kKinds, doc, return_names, kReturns, &call_boxed, &run_boxed), fn_(fn) {}
  Op(OpName name, Fn fn, const Op& of) : OpInfo(name, of), fn_(fn) {}

  R operator()(A... args) const {
    if (__builtin_expect((thread_state().dispatch == 0) & (is_plain(args) & ...), 1)) return apply(args...);
    return call_slow(args...);
  }

 private:
  static constexpr bool kTakesTensors =
      ((ArgTraits<Plain<A>>::kType == ArgType::Tensor || ArgTraits<Plain<A>>::kType == ArgType::TensorList) ||
       ...);
  // The op's own code; see Note [Ops without a derivative].
  R apply(A... args) const {
    if constexpr (kTakesTensors && requires(const R& r) { lacks_history(r); }) {
      R out = fn_(args...);
      if (__builtin_expect((may_require_grad(args) || ...), 0) && thread_state().grad_mode &&
          lacks_history(out))
        record_refusal(out, args...);
      return out;
    } else {
      return fn_(args...);
    }
  }
  template <class T>
  [[gnu::noinline]] void record_refusal(T& result, A... args) const {
    Value values[sizeof...(A)];
    size_t i = 0;
    ((values[i].present = true, ArgTraits<Plain<A>>::box(values[i], args), ++i), ...);
    Result out;
    ReturnTraits<T>::box(out, std::move(result));
    record_not_implemented(*this, values, out);
    result = ReturnTraits<T>::unbox(out);
  }

  static constexpr std::array<ArgKind, sizeof...(A)> kKinds{
      ArgKind{ArgTraits<Plain<A>>::kType, ArgTraits<Plain<A>>::kOptional}...};
  static constexpr Result::Kind kReturns = [] {
    if constexpr (std::is_void_v<R>)
      return Result::Kind::None;
    else
      return ReturnTraits<R>::kKind;
  }();

  [[gnu::noinline]] R call_slow(A... args) const {
    Value values[sizeof...(A)];
    size_t i = 0;
    ((values[i].present = true, ArgTraits<Plain<A>>::box(values[i], args), ++i), ...);
    Result out;
    call_checked(*this, std::span<Value>(values), out);
    if constexpr (!std::is_void_v<R>) return ReturnTraits<R>::unbox(out);
  }
  static void call_boxed(const OpInfo& info, const Value* args, Result& out) {
    const bool plain = [&]<size_t... I>(std::index_sequence<I...>) {
      return (thread_state().dispatch == 0) & (is_plain(kKinds[I].type, args[I]) & ...);
    }(std::index_sequence_for<A...>{});
    return __builtin_expect(plain, 1) ? run_boxed(info, args, out) : call_checked(info, args, out);
  }
  [[gnu::noinline]] static void run_boxed(const OpInfo& info, const Value* args, Result& out) {
    const auto run = [&]<size_t... I>(std::index_sequence<I...>) -> R {
      return static_cast<const Op&>(info).apply(ArgTraits<Plain<A>>::unbox(args[I])...);
    };
    if constexpr (std::is_void_v<R>) {
      run(std::index_sequence_for<A...>{});
    } else {
      out.kind = kReturns;
      ReturnTraits<R>::box(out, run(std::index_sequence_for<A...>{}));
    }
  }
  Fn fn_;
};

}  // namespace warptape
