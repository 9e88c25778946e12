// Comparisons, logic and bits. No gradient flows through them.
#include <cstring>

#include "ops/elementwise/binary.h"

namespace warptape::ops {
namespace {

void check_bits(const char* op, DType promoted) {
  WT_CHECK(!is_floating(promoted), DtypeError, op, ": expected integer or bool tensors, got ", promoted,
           "; convert to an integer dtype");
}
void check_shift(const char* op, DType promoted) {
  WT_CHECK(is_integral(promoted), DtypeError, op, ": expected integer tensors, got ", promoted,
           "; convert to an integer dtype");
}

}  // namespace

#define WT_COMPARE(NAME, RULE, FACTS, NODE, DOC)                                           \
  WT_BINARY_PLAIN(NAME, NODE, RULE, false, nullptr)                                        \
  WT_BINARY_TT(NAME, FACTS, DOC);                                                          \
  WT_BINARY_TS(NAME);                                                                      \
  namespace {                                                                              \
  const BinaryOp NAME##_into = in_place_of(NAME, binary_inplace<NAME##_def, Tensor>);      \
  const BinaryTsOp NAME##_into_ts = in_place_of(NAME, binary_inplace<NAME##_def, Scalar>); \
  }
WT_COMPARE(eq, Equal, kComplex, "EqBackward0", "input == other.")
WT_COMPARE(ne, Equal, kComplex, "NeBackward0", "input != other.")
WT_COMPARE(lt, Bool, kNoFacts, "LtBackward0", "input < other.")
WT_COMPARE(le, Bool, kNoFacts, "LeBackward0", "input <= other.")
WT_COMPARE(gt, Bool, kNoFacts, "GtBackward0", "input > other.")
WT_COMPARE(ge, Bool, kNoFacts, "GeBackward0", "input >= other.")
namespace {
const Alias not_equal{"not_equal", "ne"}, less{"less", "lt"}, less_equal{"less_equal", "le"},
    greater{"greater", "gt"}, greater_equal{"greater_equal", "ge"};
}  // namespace

#define WT_LOGIC(NAME, NODE, DOC)                                                     \
  WT_BINARY_PLAIN(NAME, NODE, Bool, false, nullptr)                                   \
  WT_BINARY_TT(NAME, kComplex, DOC);                                                  \
  namespace {                                                                         \
  const BinaryOp NAME##_into = in_place_of(NAME, binary_inplace<NAME##_def, Tensor>); \
  }
WT_LOGIC(logical_and, "LogicalAndBackward0", "Where both are non-zero.")
WT_LOGIC(logical_or, "LogicalOrBackward0", "Where one is non-zero.")
WT_LOGIC(logical_xor, "LogicalXorBackward0", "Where exactly one is non-zero.")

#define WT_BITS(NAME, RULE, CHECK, DOC)                                                                      \
  WT_BINARY_PLAIN(NAME, #NAME, RULE, false, CHECK)                                                           \
  WT_BINARY_TT(NAME, kNoFacts, DOC);                                                                         \
  namespace {                                                                                                \
  const BinaryTsOp NAME##_number = overload_of(NAME, binary_impl<NAME##_def, Tensor, Scalar>);               \
  const BinaryStOp NAME##_of_number = overload_of(NAME, binary_impl<NAME##_def, Scalar, Tensor>, kFunction); \
  const BinaryOp NAME##_into = in_place_of(NAME, binary_inplace<NAME##_def, Tensor>);                        \
  const BinaryTsOp NAME##_into_ts = in_place_of(NAME, binary_inplace<NAME##_def, Scalar>);                   \
  }
WT_BITS(bitwise_and, Bits, check_bits, "Bits that both have.")
WT_BITS(bitwise_or, Bits, check_bits, "Bits that one has.")
WT_BITS(bitwise_xor, Bits, check_bits, "Bits that exactly one has.")
WT_BITS(bitwise_left_shift, Same, check_shift, "input << other.")
WT_BITS(bitwise_right_shift, Same, check_shift, "input >> other, sign kept.")

// ---- closeness and equality ----
namespace {
ElementwiseSlot isclose_slot{"isclose"};

Tensor isclose_impl(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  WT_CHECK(a.dtype() == b.dtype(), DtypeError, "isclose: expected tensors of one dtype, got ", a.dtype(),
           " and ", b.dtype(), "; convert one with .to()");
  WT_CHECK(rtol >= 0 && atol >= 0, Error, "isclose: expected rtol and atol of at least 0, got ", rtol,
           " and ", atol);
  if (is_complex(a.dtype())) {
    Tensor gap = complex_abs(a - b), near = logical_and(le(gap, complex_abs(b) * rtol + atol), isfinite(gap));
    Tensor close = logical_or(eq(a, b), near);
    return equal_nan ? logical_or(close, logical_and(isnan(a), isnan(b))) : close;
  }
  const bool floats = is_floating(a.dtype());
  if (rtol == 0 && atol == 0) {  // which dtypes for storage have, too
    const Tensor same = eq(a, b);
    return equal_nan && floats ? logical_or(same, logical_and(ne(a, a), ne(b, b))) : same;
  }
  // Integers are compared as double, for the bounds are fractions.
  Tensor x = floats ? a : raw_cast(a, DType::Float64), y = floats ? b : raw_cast(b, DType::Float64);
  Tensor close = pointwise("isclose", isclose_slot, ResultRule::Bool, {x, y, Scalar(rtol), Scalar(atol)});
  return equal_nan && floats ? logical_or(close, logical_and(isnan(a), isnan(b))) : close;
}

// Nothing but ones; an empty tensor counts as such.
bool all_true(const Tensor& mask) {
  if (mask.numel() == 0) return true;
  if (mask.device().is_host() && mask.is_contiguous())
    return std::memchr(mask.data(), 0, static_cast<size_t>(mask.numel())) == nullptr;
  return item(raw_reduce_to(raw_cast(logical_not(mask), DType::Int64), Shape{})).to_int() == 0;
}

bool allclose_impl(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  return all_true(isclose_impl(a, b, rtol, atol, equal_nan));
}
bool equal_impl(const Tensor& a, const Tensor& b) {
  WT_CHECK(a.device() == b.device(), DeviceError, "equal: expected tensors on one device, got ", a.device(),
           " and ", b.device(), "; move one with .to(device)");
  WT_CHECK(!a.device().is_meta(), DeviceError, "equal: a meta tensor has no data");
  return a.sizes() == b.sizes() && all_true(eq(a, b));
}

const Arg kRtol{"rtol", 1e-5}, kAtol{"atol", 1e-8}, kEqualNan{"equal_nan", false};
const Op<Tensor(const Tensor&, const Tensor&, double, double, bool)> isclose{
    "isclose",
    isclose_impl,
    kFunction | kMethod | kComplex | kPointwise,
    {"input", "other", kRtol, kAtol, kEqualNan},
    "Where |input - other| <= atol + rtol * |other|."};
const Op<bool(const Tensor&, const Tensor&, double, double, bool)> allclose{
    "allclose",
    allclose_impl,
    kFunction | kMethod | kComplex,
    {"input", "other", kRtol, kAtol, kEqualNan},
    "Whether isclose holds everywhere."};
const Op<bool(const Tensor&, const Tensor&)> equal{"equal",
                                                   equal_impl,
                                                   kFunction | kMethod | kComplex,
                                                   {"input", "other"},
                                                   "Whether both have the same sizes and values."};
}  // namespace

}  // namespace warptape::ops
