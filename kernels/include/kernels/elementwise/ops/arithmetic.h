// Arithmetic, order, tests, bits and rounding. A line is the kernel of an op on all devices; see formulas.h.

WT_OP(add, Add, Binary<kAny | kComplexLanes | kNarrow | kSimple>, WT_V2, return a + b;);
WT_OP(sub, Sub, Binary<kAny | kComplexLanes | kNarrow | kSimple>, WT_V2, return a - b;);
WT_OP(mul, Mul, Binary<kAny | kComplexLanes | kNarrow | kSimple>, WT_V2, return a * b;);
WT_OP(div, Div, Binary<kFloats | kComplex | kSimple>, WT_V2, return a / b;);
WT_OP(add_scaled, AddScaled, Ternary<kAny | kComplexLanes | kNarrow | kSimple>, (V a, V b, V alpha),
      return fma(alpha, b, a););
WT_OP(addcmul, Addcmul, Quaternary<kAny | kComplexLanes | kNarrow | kSimple>, (V a, V b, V c, V value),
      return a + value * b * c;);
WT_OP(addcdiv, Addcdiv, Quaternary<kFloats | kComplex | kSimple>, (V a, V b, V c, V value),
      return a + value * (b / c););
WT_OP(lerp, Lerp, Ternary<kFloats | kSimple>, (V a, V b, V w), {
  V d = b - a;
  // From the nearer end, so that weights 0 and 1 give a and b to the bit.
  return select(abs(w) < V(0.5), fma(w, d, a), b - d * (V(1) - w));
});
WT_OP(neg, Neg, Unary<kAny | kComplexLanes | kNarrow | kSimple>, WT_V1, return -x;);
WT_OP(abs, Abs, Unary<kAny | kNarrow | kSimple>, WT_V1, return abs(x););
WT_OP(sign, Sign, Unary<kAny | kNarrow | kSimple>, WT_V1,
      return select(x > V(0), V(1), select(x < V(0), V(-1), V(0))););
WT_OP(square, Square, Unary<kAny | kComplexLanes | kNarrow | kSimple>, WT_V1, return x * x;);
WT_OP(reciprocal, Reciprocal, Unary<kFloats | kComplex | kSimple>, WT_V1, return V(1) / x;);
WT_OP(sqrt, Sqrt, Unary<kFloats | kComplex | kSimple>, WT_V1, return sqrt(x););
WT_OP(rsqrt, Rsqrt, Unary<kFloats | kComplex | kSimple>, WT_V1, return V(1) / sqrt(x););

WT_OP(fmod, Fmod, IntegerDivision, WT_V2, return fmod(a, b););
WT_OP(remainder, Remainder, IntegerDivision, WT_V2, {
  if constexpr (kIsInteger<V>) {
    return remainder(a, b);
  } else {
    V r = fmod(a, b);
    return select((r != V(0)) & ((r < V(0)) ^ (b < V(0))), r + b, r);
  }
});
WT_OP(trunc_divide, TruncDivide, IntegerDivision, WT_V2, {
  if constexpr (kIsInteger<V>)
    return trunc_divide(a, b);
  else
    return trunc(a / b);
});
// Floats as Python divides: the quotient that belongs to the remainder, not floor of a rounded quotient.
WT_OP(floor_divide, FloorDivide, IntegerDivision, WT_V2, {
  if constexpr (kIsInteger<V>) {
    return floor_divide(a, b);
  } else {
    V r = fmod(a, b);
    V q = (a - r) / b;
    q = select((r != V(0)) & ((r < V(0)) ^ (b < V(0))), q - V(1), q);
    V f = floor(q);
    f = select(q - f > V(0.5), f + V(1), f);
    f = select(q == V(0), copysign(V(0), a / b), f);
    return select(b == V(0), a / b, f);
  }
});
WT_OP(copysign, Copysign, Binary<kFloats>, WT_V2, return copysign(a, b););
WT_OP(heaviside, Heaviside, Binary<kAny>, WT_V2, return select(a == V(0), b, select(a > V(0), V(1), V(0))););

// ---- order ----
WT_OP(maximum, Maximum, Binary<kAny | kNarrow | kSimple>, WT_V2, return maximum(a, b););
WT_OP(minimum, Minimum, Binary<kAny | kNarrow | kSimple>, WT_V2, return minimum(a, b););
WT_OP(fmax, Fmax, Binary<kAny | kNarrow>, WT_V2,
      return select(isnan(a), b, select(isnan(b), a, maximum(a, b))););
WT_OP(fmin, Fmin, Binary<kAny | kNarrow>, WT_V2,
      return select(isnan(a), b, select(isnan(b), a, minimum(a, b))););
WT_OP(clamp, Clamp, Ternary<kAny | kNarrow | kSimple>, (V x, V lo, V hi),
      return minimum(maximum(x, lo), hi););
WT_OP(clamp_min, Maximum);
WT_OP(clamp_max, Minimum);
WT_OP(eq, Eq, Binary<kAny | kComplex | kNarrow | kSimple>, WT_V2, return a == b;);
WT_OP(ne, Ne, Binary<kAny | kComplex | kNarrow | kSimple>, WT_V2, return a != b;);
WT_OP(lt, Lt, Binary<kAny | kNarrow | kSimple>, WT_V2, return a < b;);
WT_OP(le, Le, Binary<kAny | kNarrow | kSimple>, WT_V2, return a <= b;);
WT_OP(gt, Gt, Binary<kAny | kNarrow | kSimple>, WT_V2, return a > b;);
WT_OP(ge, Ge, Binary<kAny | kNarrow | kSimple>, WT_V2, return a >= b;);
WT_OP(logical_not, LogicalNot, Unary<kAny | kComplex | kNarrow>, WT_V1, return x == V(0););
WT_OP(logical_and, LogicalAnd, Binary<kAny | kComplex | kNarrow>, WT_V2, return (a != V(0)) & (b != V(0)););
WT_OP(logical_or, LogicalOr, Binary<kAny | kComplex | kNarrow>, WT_V2, return (a != V(0)) | (b != V(0)););
WT_OP(logical_xor, LogicalXor, Binary<kAny | kComplex | kNarrow>, WT_V2, return (a != V(0)) ^ (b != V(0)););
WT_OP(isnan, IsNan, Unary<kAny | kComplex | kNarrow>, WT_V1, return x != x;);
// Integers are finite.
#define WT_FLOAT_TEST(slot, Name, Types, of_integer, of_float) \
  WT_OP(slot, Name, Unary<Types>, WT_V1, {                     \
    if constexpr (kIsInteger<V>)                               \
      return of_integer;                                       \
    else                                                       \
      return of_float;                                         \
  })
WT_FLOAT_TEST(isinf, IsInf, kAny | kNarrow, x != x, isinf(x));
WT_FLOAT_TEST(isfinite, IsFinite, kAny | kNarrow, x == x, isfinite(x));
WT_FLOAT_TEST(isposinf, IsPosInf, kAny, x != x, isinf(x) & (x > V(0)));
WT_FLOAT_TEST(isneginf, IsNegInf, kAny, x != x, isinf(x) & (x < V(0)));
#undef WT_FLOAT_TEST
WT_OP(signbit, Signbit, Unary<kAny | kNarrow>, WT_V1, {
  if constexpr (kIsInteger<V>)
    return x < V(0);
  else
    return copysign(V(1), x) < V(0);
});
WT_OP(isclose, IsClose, Quaternary<kAny>, (V a, V b, V rtol, V atol),
      return (a == b) | ((abs(a - b) <= atol + abs(rtol * b)) & (b - b == V(0))););  // b is finite
WT_OP(where, Where);

// ---- bits ----
WT_OP(bitwise_and, BitwiseAnd, Binary<kIntegers | kNarrow>, WT_V2, return a & b;);
WT_OP(bitwise_or, BitwiseOr, Binary<kIntegers | kNarrow>, WT_V2, return a | b;);
WT_OP(bitwise_xor, BitwiseXor, Binary<kIntegers | kNarrow>, WT_V2, return a ^ b;);
WT_OP(bitwise_not, BitwiseNot, Unary<kIntegers | kNarrow>, WT_V1, return ~x;);
WT_OP(bitwise_left_shift, ShiftLeft, Binary<kIntegers | kNarrow>, WT_V2, return shift_left(a, b););
WT_OP(bitwise_right_shift, ShiftRight, Binary<kIntegers | kNarrow>, WT_V2, return shift_right(a, b););

// ---- rounding ----
#define WT_ROUNDING(slot, Name)                               \
  WT_OP(slot, Name, Unary<kAny | kNarrow | kSimple>, WT_V1, { \
    if constexpr (kIsInteger<V>)                              \
      return x;                                               \
    else                                                      \
      return slot(x);                                         \
  })
WT_ROUNDING(floor, Floor);
WT_ROUNDING(ceil, Ceil);
WT_ROUNDING(round, Round);
WT_ROUNDING(trunc, Trunc);
#undef WT_ROUNDING
WT_OP(frac, Frac, Unary<kFloats>, WT_V1, return x - trunc(x););
WT_OP(nan_to_num, NanToNum, Quaternary<kFloats>, (V x, V nan, V high, V low),
      return select(isnan(x), nan, select(isinf(x), select(x > V(0), high, low), x)););
WT_OP(clamp_backward, ClampBackward, Quaternary<kAny | kSimple>, (V g, V x, V lo, V hi),
      return select((x >= lo) & (x <= hi), g, V(0)););
WT_OP(sqrt_backward, SqrtBackward, Binary<kFloats | kSimple>, (V g, V y), return g / (y + y););
WT_OP(rsqrt_backward, RsqrtBackward, Binary<kFloats | kSimple>, (V g, V y),
      return V(-0.5) * g * (y * y * y););
WT_OP(reciprocal_backward, ReciprocalBackward, Binary<kFloats | kSimple>, (V g, V y), return -(g * (y * y)););
WT_OP(abs_backward, AbsBackward, Binary<kAny | kSimple>, WT_GX,
      return select(x > V(0), g, select(x < V(0), -g, V(0) * g)););
WT_OP(div_other_backward, DivOtherBackward, Ternary<kFloats | kSimple>, (V g, V a, V b),
      return -(g * (a / b) / b););
// Half of the gradient to each where they are equal.
WT_OP(maximum_backward, MaximumBackward, Ternary<kFloats | kSimple>, (V g, V a, V b),
      return select(a == b, g* V(0.5), select(a < b, V(0), g)););
WT_OP(minimum_backward, MinimumBackward, Ternary<kFloats | kSimple>, (V g, V a, V b),
      return select(a == b, g* V(0.5), select(a > b, V(0), g)););
