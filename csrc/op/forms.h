// Forms of an op, whose declarations follow from the op's:
//
//   decltype(add) add{"add", add_impl<Tensor, Tensor>, kBoth | kComplex, {"input", "other", kAlpha}, "..."};
//   decltype(add_ts) add_ts = overload_of(add, add_impl<Tensor, Scalar>);
//   decltype(add_) add_ = in_place_of(add, add_inplace<Tensor>);
//   decltype(pow_st) pow_st = overload_with(pow, pow_impl<Scalar, Tensor>, {"self", "exponent"});
//
// A form is an op of its own, with the types of its C++ function. Names, defaults, marks, facts and text are
// the op's; `own` adds facts, and says where Python finds the form. A flag that is marked kInPlace is no
// argument of a form that has one argument fewer.
#pragma once

#include <string>

#include "op/op.h"

namespace warptape {

// A name under which an op is known as a form of `of`, for forms that templates make.
WT_API const char* form_name(std::string name, const OpInfo& of);
// The same of one over lists, which does for each item what `of` does for one tensor; `of` is null where it
// is composed.
WT_API const char* list_form_name(std::string name, const OpInfo* of);
WT_API bool is_over_lists(const OpInfo& op);

// What holds of an op holds of its in-place form, but for its places and for where its result lies.
WT_API OpFacts facts_in_place(const OpFacts& of);

// What a form declares.
struct FormDeclaration {
  OpName name;
  OpFacts facts;
  std::vector<Arg> args;
  const char* doc;
};
// `args` are those of the op where none are given.
WT_API FormDeclaration declare_overload(const OpInfo& of, std::span<const ArgType> types, const OpFacts& own,
                                        const char* doc, std::source_location line,
                                        std::span<const Arg> args = {});
WT_API FormDeclaration declare_in_place(const OpInfo& of, std::span<const ArgType> types, const OpFacts& own,
                                        const char* doc, std::source_location line);
// The op that `op` is a form of, in_place() included; null if its declaration is written out.
WT_API const OpInfo* form_of(const OpInfo& op);

template <class... A>
inline constexpr std::array<ArgType, sizeof...(A)> kArgTypes{ArgTraits<Plain<A>>::kType...};

template <class R, class... A>
Op<R(A...)> declared(R (*fn)(A...), const FormDeclaration& d) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return Op<R(A...)>(d.name, fn, d.facts, {d.args.at(I)...}, d.doc);
  }(std::index_sequence_for<A...>{});
}

// Of the same name, for arguments of other types or in other places. What begins with a number is no method;
// a tensor has no number as its default.
template <class R, class... A>
Op<R(A...)> overload_of(const OpInfo& of, R (*fn)(A...), const OpFacts& own = {}, const char* doc = nullptr,
                        std::source_location line = std::source_location::current()) {
  return declared(fn, declare_overload(of, kArgTypes<A...>, own, doc, line));
}
// The same with arguments of its own.
template <class R, class... A>
Op<R(A...)> overload_with(const OpInfo& of, R (*fn)(A...), std::initializer_list<Arg> args,
                          const OpFacts& own = {}, const char* doc = nullptr,
                          std::source_location line = std::source_location::current()) {
  return declared(fn, declare_overload(of, kArgTypes<A...>, own, doc, line, args));
}
// Named with _ behind: writes the result into the first argument.
template <class R, class... A>
Op<R(A...)> in_place_of(const OpInfo& of, R (*fn)(A...), const OpFacts& own = kMethod,
                        const char* doc = nullptr,
                        std::source_location line = std::source_location::current()) {
  return declared(fn, declare_in_place(of, kArgTypes<A...>, own, doc, line));
}

}  // namespace warptape
