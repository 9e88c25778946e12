// What a declaration states of its op beside the arguments: the only place where it is known.
#pragma once

#include <cstdint>

namespace warptape {

// Where Python finds the op, and facts of yes or no.
enum OpFlag : uint32_t {
  kFunction = 1u << 0,      // warptape.name(...)
  kMethod = 1u << 1,        // Tensor.name(...): the first argument is self
  kNN = 1u << 2,            // warptape.nn.functional.name(...)
  kOut = 1u << 3,           // takes out=: the result is copied into it, cast where it can be, not recorded
  kLinalg = 1u << 4,        // warptape.linalg.name(...)
  kPrivate = 1u << 5,       // warptape._C._private.name(...): for the Python layer only
  kSpecial = 1u << 6,       // warptape.special.name(...)
  kFFT = 1u << 7,           // warptape.fft.name(...)
  kMixedDevices = 1u << 8,  // its tensors may lie on several devices
  kComplex = 1u << 9,       // takes complex numbers; DtypeError for all others
  kNonDifferentiable = 1u << 10,  // what it does not record has no gradient by its nature
  kRandom = 1u << 11,             // draws from a generator
  // What else PyTorch asks of an op's out=, or does with it.
  kOutExact = 1u << 12,       // its dtype must be the result's; uint8 also takes bools
  kOutDtype = 1u << 13,       // its dtype is what the argument `dtype` is by default
  kOutApart = 1u << 14,       // it may not overlap an argument
  kOutNumel = 1u << 15,       // it keeps its shape where it has as many elements as the result
  kUninitialized = 1u << 16,  // the result has any contents
  kChecked = 1u << 17,        // of a private op: checks its arguments as public ones do, so files may call it
  kEpilogue = 1u << 18,       // of a product or convolution: its kernel runs elementwise code on its blocks
  kIdempotent = 1u << 19,     // f(f(x)) is f(x)
  kInvolution = 1u << 20,     // f(f(x)) is x
  kTellsNoSizes = 1u << 21,   // what it tells of a tensor depends neither on its sizes nor on its data
  kTellsAddress = 1u << 22,   // tells where a tensor's data lies
  kTellsDims = 1u << 23,      // tells how many dims a tensor has
  kOutRows = 1u << 24,        // resized, it is contiguous instead of laid out as the result is
  kOutColumns = 1u << 25,     // the same, but for an empty one
  kLinear = 1u << 26,         // linear in its tensors taken together: views, movement, sums
  kSetsFlags = 1u << 27,      // changes what a tensor says of itself (requires_grad), not its data
  kCopies = 1u << 28,         // gives the values of its argument in memory of its own
  kDetaches = 1u << 29,       // its result has no history
  kSignal = 1u << 30,         // warptape.signal.windows.name(...)
  kMasked = 1u << 31,         // warptape.masked.name(...)
  kPlaces = kFunction | kMethod | kNN | kLinalg | kPrivate | kSpecial | kFFT | kSignal | kMasked,
};

// What the op is to passes over graphs.
enum class Role : uint8_t {
  Opaque,      // none of the others
  Pointwise,   // each element of the result follows from the elements at its place
  Product,     // of matrices: the first two tensors are the factors
  AddProduct,  // the first tensor and the product of the two after it
  Convolution,
};

// Whether the op may give a result on the memory of an argument.
enum class Aliasing : uint8_t {
  None,
  View,        // the memory, or a part of it, in another geometry
  Reshape,     // the same: with the argument's sizes it is the argument; at times a copy
  Conversion,  // the argument itself where it has the dtype and the device that are asked for
  Layout,      // the argument itself where it lies as asked
  Dropout,     // the argument itself in evaluation
  Argument,    // an argument or a view of it, by chance
};

// What autocast does with an op's floating arguments; Refuse: narrow floats do not hold what it computes.
// Float32Form: another op takes them as they are, and gives what Float32 would.
enum class Autocast : uint8_t { Keep, Lower, Float32, Widest, Refuse, Float32Form };

// How vmap calls an op whose tensors have the mapped dim in front.
enum class Batching : uint8_t {
  Composed,   // tried as composed of other ops
  Pointwise,  // as it is: the tensors broadcast
  AlongDims,  // arguments marked kDimIndex count the dims of the first tensor, and are moved by one
  ToSizes,    // the first IntList is the shape of the result, and gets the mapped size in front
  Leading,    // as it is: works on the last dims, and takes any in front of them
  Fold1d,     // the dim goes into the batch dim of an op with that many spatial dims
  Fold2d,
  Fold3d,
};

namespace transforms {
struct Call;
}
struct OpInfo;
struct Result;
// Does a mapped call, or returns false where it is not made for the arguments.
using BatchRule = bool (*)(transforms::Call& call, Result& out);

// What a declaration states beside its arguments: OpFlags and the facts below, joined by |. Of each of the
// latter it states one.
struct OpFacts {
  constexpr OpFacts(uint32_t f = 0) : flags(f) {}
  constexpr OpFacts(Role r) : role(r) {}
  constexpr OpFacts(Aliasing a) : aliasing(a) {}
  constexpr OpFacts(Batching b) : batching(b) {}
  constexpr explicit OpFacts(BatchRule r) : batch_rule(r) {}
  constexpr OpFacts(Autocast on_cpu, Autocast on_cuda) : autocast_cpu(on_cpu), autocast_cuda(on_cuda) {}

  uint32_t flags = 0;  // of OpFlag
  Role role = Role::Opaque;
  Aliasing aliasing = Aliasing::None;
  Batching batching = Batching::Composed;
  Autocast autocast_cpu = Autocast::Keep, autocast_cuda = Autocast::Keep;
  BatchRule batch_rule = nullptr;        // goes before `batching`: see op/batching.h
  const OpInfo* float32_form = nullptr;  // of Autocast::Float32Form

  constexpr Autocast autocast(bool cuda) const { return cuda ? autocast_cuda : autocast_cpu; }
};

constexpr OpFacts operator|(OpFacts a, const OpFacts& b) {
  const auto join = [](auto& to, auto from) {
    if (from == decltype(from){}) return;
    if (to != decltype(from){} && to != from) throw "a declaration states two facts of one kind";
    to = from;
  };
  a.flags |= b.flags;
  join(a.role, b.role);
  join(a.aliasing, b.aliasing);
  join(a.batching, b.batching);
  join(a.autocast_cpu, b.autocast_cpu);
  join(a.autocast_cuda, b.autocast_cuda);
  join(a.batch_rule, b.batch_rule);
  join(a.float32_form, b.float32_form);
  return a;
}

// Where no operand is a class, operators are looked up by an enum among them.
constexpr OpFacts operator|(const OpFacts& a, Role b) { return a | OpFacts(b); }
constexpr OpFacts operator|(const OpFacts& a, Aliasing b) { return a | OpFacts(b); }
constexpr OpFacts operator|(const OpFacts& a, Batching b) { return a | OpFacts(b); }

inline constexpr OpFacts kPointwise = OpFacts(Role::Pointwise) | Batching::Pointwise;
inline constexpr OpFacts kAlongDims = Batching::AlongDims, kToSizes = Batching::ToSizes,
                         kLeading = Batching::Leading, kFold1d = Batching::Fold1d, kFold2d = Batching::Fold2d,
                         kFold3d = Batching::Fold3d;
inline constexpr OpFacts kLowerCpu{Autocast::Lower, Autocast::Keep},
    kLowerCuda{Autocast::Keep, Autocast::Lower},
    kLower = kLowerCpu | kLowerCuda, kFloat32Cpu{Autocast::Float32, Autocast::Keep},
    kFloat32Cuda{Autocast::Keep, Autocast::Float32}, kFloat32 = kFloat32Cpu | kFloat32Cuda,
    kWidestCpu{Autocast::Widest, Autocast::Keep}, kWidestCuda{Autocast::Keep, Autocast::Widest},
    kWidest = kWidestCpu | kWidestCuda, kRefuseCuda{Autocast::Keep, Autocast::Refuse};
constexpr OpFacts float32_form_cuda(const OpInfo& form) {
  OpFacts facts{Autocast::Keep, Autocast::Float32Form};
  facts.float32_form = &form;
  return facts;
}

}  // namespace warptape
