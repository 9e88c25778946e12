// Arithmetic, comparison, selection, bits and rounding.

#include "kernels/cpu/elementwise.h"

namespace warptape::kernels::WARPTAPE_ISA {
namespace {

WT_ELEMENTWISE(add, Add);
WT_ELEMENTWISE(sub, Sub);
WT_ELEMENTWISE(mul, Mul);
WT_ELEMENTWISE(div, Div);
WT_ELEMENTWISE(add_scaled, AddScaled);
WT_ELEMENTWISE(addcmul, Addcmul);
WT_ELEMENTWISE(addcdiv, Addcdiv);
WT_ELEMENTWISE(lerp, Lerp);
WT_ELEMENTWISE(neg, Neg);
WT_ELEMENTWISE(abs, Abs);
WT_ELEMENTWISE(sign, Sign);
WT_ELEMENTWISE(square, Square);
WT_ELEMENTWISE(reciprocal, Reciprocal);
WT_ELEMENTWISE(sqrt, Sqrt);
WT_ELEMENTWISE(rsqrt, Rsqrt);
WT_ELEMENTWISE(fmod, Fmod);
WT_ELEMENTWISE(remainder, Remainder);
WT_ELEMENTWISE(trunc_divide, TruncDivide);
WT_ELEMENTWISE(floor_divide, FloorDivide);
WT_ELEMENTWISE(copysign, Copysign);
WT_ELEMENTWISE(heaviside, Heaviside);

WT_ELEMENTWISE(maximum, Maximum);
WT_ELEMENTWISE(minimum, Minimum);
WT_ELEMENTWISE(fmax, Fmax);
WT_ELEMENTWISE(fmin, Fmin);
WT_ELEMENTWISE(clamp, Clamp);
WT_ELEMENTWISE(clamp_min, Maximum);
WT_ELEMENTWISE(clamp_max, Minimum);
WT_ELEMENTWISE(eq, Eq);
WT_ELEMENTWISE(ne, Ne);
WT_ELEMENTWISE(lt, Lt);
WT_ELEMENTWISE(le, Le);
WT_ELEMENTWISE(gt, Gt);
WT_ELEMENTWISE(ge, Ge);
WT_ELEMENTWISE(isclose, IsClose);
WT_ELEMENTWISE(logical_not, LogicalNot);
WT_ELEMENTWISE(logical_and, LogicalAnd);
WT_ELEMENTWISE(logical_or, LogicalOr);
WT_ELEMENTWISE(logical_xor, LogicalXor);
WT_ELEMENTWISE(isnan, IsNan);
WT_ELEMENTWISE(isinf, IsInf);
WT_ELEMENTWISE(isfinite, IsFinite);
WT_ELEMENTWISE(isposinf, IsPosInf);
WT_ELEMENTWISE(isneginf, IsNegInf);
WT_ELEMENTWISE(signbit, Signbit);
WT_ELEMENTWISE(where, Where);

WT_ELEMENTWISE(bitwise_and, BitwiseAnd);
WT_ELEMENTWISE(bitwise_or, BitwiseOr);
WT_ELEMENTWISE(bitwise_xor, BitwiseXor);
WT_ELEMENTWISE(bitwise_not, BitwiseNot);
WT_ELEMENTWISE(bitwise_left_shift, ShiftLeft);
WT_ELEMENTWISE(bitwise_right_shift, ShiftRight);

WT_ELEMENTWISE(floor, Floor);
WT_ELEMENTWISE(ceil, Ceil);
WT_ELEMENTWISE(round, Round);
WT_ELEMENTWISE(trunc, Trunc);
WT_ELEMENTWISE(frac, Frac);
WT_ELEMENTWISE(nan_to_num, NanToNum);

// Gradients of the above.
WT_ELEMENTWISE(abs_backward, AbsBackward);
WT_ELEMENTWISE(sqrt_backward, SqrtBackward);
WT_ELEMENTWISE(rsqrt_backward, RsqrtBackward);
WT_ELEMENTWISE(reciprocal_backward, ReciprocalBackward);
WT_ELEMENTWISE(div_other_backward, DivOtherBackward);
WT_ELEMENTWISE(maximum_backward, MaximumBackward);
WT_ELEMENTWISE(minimum_backward, MinimumBackward);
WT_ELEMENTWISE(clamp_backward, ClampBackward);

}  // namespace
}  // namespace warptape::kernels::WARPTAPE_ISA
