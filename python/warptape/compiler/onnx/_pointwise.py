"""Elementwise ops, comparisons and activations."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from warptape import core as wt

from ._builder import Builder, common_dtype, maps
from ._errors import UnsupportedOperatorError

Args = SimpleNamespace


def _as_result(b: Builder, x: Any, out: int) -> str:
    return b.operand(x, b.dtype(out))


def _unary(name: str, kind: str) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> str:
        return b.node(kind, _as_result(b, a.input, out))


for _name, _kind in {
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "sqrt": "Sqrt",
    "exp": "Exp",
    "log": "Log",
    "abs": "Abs",
    "neg": "Neg",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "erf": "Erf",
    "reciprocal": "Reciprocal",
    "softsign": "Softsign",
    "hardswish": "HardSwish",
    "mish": "Mish",
}.items():
    _unary(_name, _kind)


def _rounding(name: str, kind: str) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> str:
        return b.node(kind if b.dtype(out).is_floating_point else "Identity", b(a.input))


_rounding("floor", "Floor")
_rounding("ceil", "Ceil")


@maps("sign")
def _sign(b: Builder, a: Args, out: int) -> str:
    x, dtype = b(a.input), b.dtype(out)
    if not dtype.is_floating_point:
        return b.node("Sign", x)
    zero = b.constant(0.0, dtype)  # Sign has NaN for NaN, sign 0
    above, below = (b.cast(b.node(k, x, zero), wt.bool, dtype) for k in ("Greater", "Less"))
    return b.node("Sub", above, below)


def _binary(name: str, kind: str) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> str:
        return b.node(kind, _as_result(b, a.input, out), _as_result(b, a.other, out))


for _name, _kind in {"mul": "Mul", "maximum": "Max", "minimum": "Min"}.items():
    _binary(_name, _kind)


def _scaled(b: Builder, x: str, alpha: Any, dtype: wt.dtype) -> str:
    return x if alpha == 1 else b.node("Mul", x, b.constant(alpha, dtype))


@maps("add")
def _add(b: Builder, a: Args, out: int) -> str:
    other = _scaled(b, _as_result(b, a.other, out), a.alpha, b.dtype(out))
    kind = "Or" if b.dtype(out) == wt.bool else "Add"
    return b.node(kind, _as_result(b, a.input, out), other)


@maps("sub")
def _sub(b: Builder, a: Args, out: int) -> str:
    other = _scaled(b, _as_result(b, a.other, out), a.alpha, b.dtype(out))
    return b.node("Sub", _as_result(b, a.input, out), other)


@maps("rsub")
def _rsub(b: Builder, a: Args, out: int) -> str:
    other = _scaled(b, _as_result(b, a.input, out), a.alpha, b.dtype(out))
    return b.node("Sub", _as_result(b, a.other, out), other)


@maps("div", "true_divide")
def _div(b: Builder, a: Args, out: int) -> str:
    mode = getattr(a, "rounding_mode", None)
    dtype = b.dtype(out)
    if mode is not None and not dtype.is_floating_point:
        raise UnsupportedOperatorError(f"div of integers with rounding_mode={mode!r}")
    quotient = b.node("Div", _as_result(b, a.input, out), _as_result(b, a.other, out))
    if mode == "floor":
        return b.node("Floor", quotient)
    if mode == "trunc":
        return b.node("Mul", b.node("Sign", quotient), b.node("Floor", b.node("Abs", quotient)))
    return quotient


@maps("pow")
def _pow(b: Builder, a: Args, out: int) -> str:
    base = getattr(a, "input", None)
    base = a.self if base is None else base
    if a.exponent == 2:
        x = _as_result(b, base, out)
        return b.node("Mul", x, x)
    return b.node("Pow", _as_result(b, base, out), _as_result(b, a.exponent, out))


@maps("square")
def _square(b: Builder, a: Args, out: int) -> str:
    x = _as_result(b, a.input, out)
    return b.node("Mul", x, x)


@maps("rsqrt")
def _rsqrt(b: Builder, a: Args, out: int) -> str:
    return b.node("Reciprocal", b.node("Sqrt", _as_result(b, a.input, out)))


def _log(name: str, base: float) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> str:
        return b.node(
            "Mul", b.node("Log", _as_result(b, a.input, out)), b.constant(1 / math.log(base), b.dtype(out))
        )


_log("log2", 2)
_log("log10", 10)


@maps("round")
def _round(b: Builder, a: Args, out: int) -> str:
    if not b.dtype(out).is_floating_point:
        return b.node("Identity", b(a.input))
    if not a.decimals:
        return b.node("Round", b(a.input))
    scale = b.constant(10.0**a.decimals, b.dtype(out))
    return b.node("Div", b.node("Round", b.node("Mul", b(a.input), scale)), scale)


@maps("clamp", "hardtanh", "clamp_min", "clamp_max", "relu6")
def _clamp(b: Builder, a: Args, out: int) -> str:
    low = getattr(a, "min", getattr(a, "min_val", None))
    high = getattr(a, "max", getattr(a, "max_val", None))
    if not hasattr(a, "min") and not hasattr(a, "max") and not hasattr(a, "min_val"):
        low, high = 0.0, 6.0  # relu6
    x, dtype = _as_result(b, a.input, out), b.dtype(out)
    x = x if low is None else b.node("Max", x, b.operand(low, dtype))
    return x if high is None else b.node("Min", x, b.operand(high, dtype))


def _compare(name: str, kind: str, negated: bool = False) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> str:
        dtype = common_dtype(b, a.input, a.other)
        if dtype == wt.bool and kind != "Equal":
            dtype = wt.int32
        result = b.node(kind, b.operand(a.input, dtype), b.operand(a.other, dtype))
        result = b.node("Not", result) if negated else result
        return b.cast(result, wt.bool, b.dtype(out))


for _name, _kind in {
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}.items():
    _compare(_name, _kind)
_compare("ne", "Equal", negated=True)


def _logical(name: str, kind: str) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> str:
        if name.startswith("bitwise") and b.dtype(out) != wt.bool:
            return b.node(f"Bitwise{kind}", _as_result(b, a.input, out), _as_result(b, a.other, out))
        result = b.node(kind, b.operand(a.input, wt.bool), b.operand(a.other, wt.bool))
        return b.cast(result, wt.bool, b.dtype(out))


for _name in ("logical", "bitwise"):
    for _kind in ("And", "Or", "Xor"):
        _logical(f"{_name}_{_kind.lower()}", _kind)


@maps("bitwise_not")
def _bitwise_not(b: Builder, a: Args, out: int) -> str:
    return b.node("Not" if b.dtype(out) == wt.bool else "BitwiseNot", b(a.input))


@maps("logical_not")
def _not(b: Builder, a: Args, out: int) -> str:
    return b.cast(b.node("Not", b.operand(a.input, wt.bool)), wt.bool, b.dtype(out))


@maps("isnan")
def _isnan(b: Builder, a: Args, out: int) -> str:
    return b.node("Not", b.node("Equal", b(a.input), b(a.input)))


@maps("where")
def _where(b: Builder, a: Args, out: int) -> str:
    if "other" not in vars(a):
        raise UnsupportedOperatorError("where of a condition alone")
    return b.node("Where", b(a.condition), _as_result(b, a.input, out), _as_result(b, a.other, out))


@maps("masked_fill")
def _masked_fill(b: Builder, a: Args, out: int) -> str:
    return b.node("Where", b(a.mask), _as_result(b, a.value, out), _as_result(b, a.input, out))


@maps("aliasing=conversion")
def _to(b: Builder, a: Args, out: int) -> str:
    return _as_result(b, a.input, out)


@maps("aliasing=layout", "aliasing=dropout", "copies", "detach", "alias")
def _same(b: Builder, a: Args, out: int) -> str:
    if getattr(a, "training", getattr(a, "train", False)) and a.p:
        raise UnsupportedOperatorError("dropout in training mode; call eval() first")
    return b.node("Identity", b(a.input))


@maps("silu")
def _silu(b: Builder, a: Args, out: int) -> str:
    return b.node("Mul", b(a.input), b.node("Sigmoid", b(a.input)))


@maps("gelu")
def _gelu(b: Builder, a: Args, out: int) -> str:
    x, dtype = b(a.input), b.dtype(out)
    one, half = b.constant(1.0, dtype), b.constant(0.5, dtype)
    if a.approximate == "none":
        inner = b.node("Erf", b.node("Mul", x, b.constant(math.sqrt(0.5), dtype)))
    else:
        cube = b.node("Mul", b.node("Mul", b.node("Mul", x, x), x), b.constant(0.044715, dtype))
        inner = b.node(
            "Tanh", b.node("Mul", b.node("Add", x, cube), b.constant(math.sqrt(2 / math.pi), dtype))
        )
    return b.node("Mul", b.node("Mul", x, half), b.node("Add", inner, one))


@maps("softplus")
def _softplus(b: Builder, a: Args, out: int) -> str:
    dtype = b.dtype(out)
    scaled = b.node("Mul", b(a.input), b.constant(a.beta, dtype))
    curved = b.node("Div", b.node("Softplus", scaled), b.constant(a.beta, dtype))
    return b.node("Where", b.node("Greater", scaled, b.constant(a.threshold, dtype)), b(a.input), curved)


@maps("leaky_relu")
def _leaky_relu(b: Builder, a: Args, out: int) -> str:
    return b.node("LeakyRelu", b(a.input), alpha=a.negative_slope)


@maps("elu")
def _elu(b: Builder, a: Args, out: int) -> str:
    if getattr(a, "scale", 1) != 1 or getattr(a, "input_scale", 1) != 1:
        raise UnsupportedOperatorError("elu with scales")
    return b.node("Elu", b(a.input), alpha=a.alpha)


@maps("celu")
def _celu(b: Builder, a: Args, out: int) -> str:
    alpha = b.constant(a.alpha, b.dtype(out))
    return b.node("Mul", alpha, b.node("Elu", b.node("Div", b(a.input), alpha)))


@maps("selu")
def _selu(b: Builder, a: Args, out: int) -> str:
    return b.node("Selu", b(a.input))


@maps("hardsigmoid")
def _hardsigmoid(b: Builder, a: Args, out: int) -> str:
    return b.node("HardSigmoid", b(a.input), alpha=1 / 6, beta=0.5)


@maps("prelu")
def _prelu(b: Builder, a: Args, out: int) -> str:
    slope, dims = b(a.weight), len(b.sizes(a.input))
    if dims > 2 and b.sizes(a.weight) != [1]:
        slope = b.node("Reshape", slope, b.constant([-1, *[1] * (dims - 2)], wt.int64))
    return b.node("PRelu", b(a.input), slope)


@maps("glu")
def _glu(b: Builder, a: Args, out: int) -> str:
    left, right = b.node("Split", b(a.input), outputs=2, axis=a.dim, num_outputs=2)
    return b.node("Mul", left, b.node("Sigmoid", right))


def _softmaxes(name: str, kind: str) -> None:
    @maps(name)
    def _(b: Builder, a: Args, out: int) -> str:
        if a.dim is None:
            raise UnsupportedOperatorError(f"{name} without a dim")
        x = _as_result(b, a.input, out)
        if b.sizes(a.input):
            return b.node(kind, x, axis=a.dim)
        result = b.node(kind, b.node("Reshape", x, b.ints([1])), axis=0)
        return b.node("Reshape", result, b.ints([]))


_softmaxes("softmax", "Softmax")
_softmaxes("log_softmax", "LogSoftmax")
