"""Elementwise with two or three tensors: arithmetic, comparison, logic, bits, clamp, where, lerp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..table import ALL, FLOATS, INTEGRAL, INTS, NUMERIC, SIGNED, E, Op, Rng, S, Sample

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0])
OTHER = np.array([1.0, 2.0, np.inf, -np.inf, 3.0, np.nan, -0.0])
MISMATCH = (E("ShapeError", np.ones((2, 3)), np.ones((2, 4))), E("ShapeError", np.ones(3), np.ones((3, 2))))


def pairs(
    low: float, high: float, low2: float, high2: float, edges: bool
) -> Callable[[Rng], Sequence[Sample]]:
    """Two tensors of one shape (a vector's worth and a tail; small; 0-dim; empty), and the special values."""

    def samples(r: Rng) -> list[Sample]:
        shapes = ((3, 37), (2, 3), (), (0, 3))
        cases = [S(r(*one, low=low, high=high), r(*one, low=low2, high=high2)) for one in shapes]
        return [*cases, S(SPECIAL, OTHER, only=FLOATS, grad=False)] if edges else cases

    return samples


def binary(name: str, ref: Callable[..., Any], *span: float, **options: Any) -> Op:
    """A row for a function of two tensors that broadcast."""
    low, high, low2, high2 = span or (-2.0, 2.0, -2.0, 2.0)
    edges = options.pop("edges", True)
    options = {
        "dtypes": NUMERIC,
        "method": True,
        "inplace": name + "_",
        "out": True,
        "broadcast": 2,
        "errors": MISMATCH,
    } | options
    return Op(name, pairs(low, high, low2, high2, edges), ref, **options)


def quotients(r: Rng) -> list[Sample]:
    """(x, y) whose quotient stays clear of whole numbers, where a remainder jumps."""
    divisors = [r(*one, low=0.6, high=2) for one in ((3, 37), (2, 3), (), (0, 3))]
    return [S(np.asarray(r(*y.shape) * y), y) for y in divisors]


def scalars(name: str, ref: Callable[..., Any], *values: Any, label: str = "scalar", **options: Any) -> Op:
    """A row for a tensor with a Python number."""
    options = {"method": True, "inplace": name + "_"} | options

    def samples(r: Rng) -> list[Sample]:
        return [S(r.positive(3, 5), value) for value in values] + [S(r.positive(), values[0])]

    return Op(name, samples, ref, label=f"{name}, {label}", **options)


def predicate(name: str, ref: Callable[..., Any], **options: Any) -> Op:
    """A row for a comparison: equal values are among the samples."""

    def samples(r: Rng) -> list[Sample]:
        x, y = r(3, 37), r(3, 37)
        y[:, ::3] = x[:, ::3]
        return [S(x, y), S(r(), r()), S(r(0, 3), r(0, 3)), S(SPECIAL, OTHER, only=FLOATS)]

    options = {"dtypes": ALL, "result": "bool", "grad": False, "method": True, "out": True} | options
    return Op(name, samples, ref, broadcast=2, errors=MISMATCH, **options)


COMPARISONS = {
    "eq_": "equal",
    "ne_": "not_equal",
    "lt_": "less",
    "le_": "less_equal",
    "gt_": "greater",
    "ge_": "greater_equal",
}


def into(name: str, ref: Callable[..., Any]) -> Op:
    """A row for a comparison in place: zeros and ones in the dtype of the tensor that is written."""

    def call(rt: Any, x: Any, y: Any) -> Any:
        written = x.clone()
        result = getattr(written, name)(y)
        if result is not written:
            raise AssertionError(f"{name} did not return the tensor itself")
        return result

    def samples(r: Rng) -> list[Sample]:
        x, y = r(3, 37), r(3, 37)
        y[:, ::3] = x[:, ::3]
        return [S(x, y), S(r(2, 3), r(3)), S(r(4), 1), S(r(0, 3), r(0, 3)), S(SPECIAL, OTHER, only=FLOATS)]

    return Op(f"Tensor.{name}", samples, ref, call, dtypes=ALL, grad=False, exact=True, errors=MISMATCH)


def floor_divide(x: np.ndarray, y: Any) -> np.ndarray:
    return np.floor_divide(x, y)


def div(x: np.ndarray, y: Any, rounding_mode: str | None = None) -> np.ndarray:
    if rounding_mode == "floor":
        return np.floor_divide(x, y)
    exact = np.true_divide(x, y)
    return np.trunc(exact) if rounding_mode == "trunc" else exact


def clamp(x: np.ndarray, min: Any = None, max: Any = None) -> np.ndarray:
    x = x if min is None else np.maximum(x, min)
    return x if max is None else np.minimum(x, max)


def weighted(
    x: np.ndarray, y: np.ndarray, z: np.ndarray, value: float = 1, divide: bool = False
) -> np.ndarray:
    return x + value * y / z if divide else x + value * y * z


def ternary(name: str, ref: Callable[..., Any], **options: Any) -> Op:
    """A row for three tensors that broadcast, and a factor."""

    def samples(r: Rng) -> list[Sample]:
        shapes = ((3, 37), (2, 3), (), (0, 3))
        cases = [S(r(*one), r(*one), r.positive(*one)) for one in shapes]
        return [*cases, S(r(2, 3), r(2, 3), r.positive(2, 3), value=2)]

    errors = (E("ShapeError", np.ones(3), np.ones(2), np.ones(2)),)
    options = {"method": True, "inplace": name + "_", "out": True, "broadcast": 3, "errors": errors} | options
    return Op(name, samples, ref, **options)


def where_samples(r: Rng) -> list[Sample]:
    cases = [S(r.mask(*one), r(*one), r(*one)) for one in ((3, 37), (2, 3), (), (0, 3))]
    return [*cases, S(r.mask(2, 1), r(1, 3), r(2, 3)), S(r.mask(2, 3), r(2, 3), r())]


def lerp_samples(r: Rng) -> list[Sample]:
    cases = [S(r(*one), r(*one), 0.3) for one in ((3, 37), (), (0, 3))]
    return [
        *cases,
        S(r(2, 3), r(2, 3), 0.7),
        S(r(2, 3), r(2, 3), r.prob(2, 3)),
        S(r(2, 3), r(2, 3), r.prob(3)),
    ]


def clamp_samples(r: Rng) -> list[Sample]:
    numbers = [S(r(3, 37), 1, 2), S(r(3, 4), min=1), S(r(3, 4), max=1), S(r(), 0, 1), S(r(0, 2), 0, 1)]
    numbers.append(S(r(3, 5), -1, 1, only=SIGNED))
    return [*numbers, S(r(3, 4), -0.5, 1.5, only=FLOATS), S(SPECIAL, -1, 1, only=FLOATS, grad=False)]


def logaddexp2(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.logaddexp2(x, y)


ROWS = [
    binary("add", np.add, dtypes=NUMERIC),
    binary("sub", np.subtract),
    binary("subtract", np.subtract),
    binary("mul", np.multiply),
    binary("multiply", np.multiply),
    binary("div", np.true_divide, -2, 2, 0.5, 2, dtypes=ALL, result="float"),
    binary("divide", np.true_divide, -2, 2, 0.5, 2, dtypes=ALL, result="float"),
    binary("true_divide", np.true_divide, -2, 2, 0.5, 2, dtypes=ALL, result="float"),
    replace(binary("floor_divide", floor_divide, grad=False), samples=quotients),
    replace(binary("fmod", np.fmod), samples=quotients),
    replace(binary("remainder", np.mod), samples=quotients),
    binary("pow", np.power, 0.5, 2, 0.5, 2, edges=False, tol={"float16": (4e-3, 4e-3)}),
    binary("float_power", np.float_power, 0.5, 2, 0.5, 2, edges=False, dtypes=NUMERIC, result="float64"),
    binary("maximum", np.maximum, inplace=None),
    binary("minimum", np.minimum, inplace=None),
    binary("fmax", np.fmax, inplace=None),
    binary("fmin", np.fmin, inplace=None),
    binary("atan2", np.arctan2, dtypes=NUMERIC, result="float", edges=False),
    binary("hypot", np.hypot, dtypes=FLOATS),
    binary("logaddexp", np.logaddexp, dtypes=FLOATS, inplace=None, edges=False),
    binary("logaddexp2", logaddexp2, dtypes=FLOATS, inplace=None, edges=False),
    binary(
        "xlogy", lambda x, y: np.where(x == 0, 0, x * np.log(y)), -2, 2, 0.5, 2, dtypes=FLOATS, edges=False
    ),
    binary("copysign", np.copysign, dtypes=FLOATS, edges=False),
    binary("Tensor.__add__", np.add, method=False, inplace=None, out=False, errors=()),
    binary("Tensor.__radd__", lambda x, y: y + x, method=False, inplace=None, out=False, errors=()),
    binary("Tensor.__rsub__", lambda x, y: y - x, method=False, inplace=None, out=False, errors=()),
    binary(
        "Tensor.__rtruediv__",
        lambda x, y: y / x,
        0.5,
        2,
        -2,
        2,
        method=False,
        inplace=None,
        out=False,
        errors=(),
        result="float",
    ),
    scalars("add", np.add, 2, -3, dtypes=NUMERIC),
    scalars("add", np.add, 2.5, label="real scalar", dtypes=FLOATS),
    scalars("sub", np.subtract, 2, -3, dtypes=FLOATS),
    scalars("mul", np.multiply, 2, -3, dtypes=FLOATS),
    scalars("div", np.true_divide, 2, -3, dtypes=NUMERIC, result="float"),
    scalars("floor_divide", floor_divide, 2, -3, dtypes=FLOATS + INTS[:-1], grad=False),
    scalars("remainder", np.mod, 2, -3, dtypes=FLOATS + INTS[:-1]),
    scalars("fmod", np.fmod, 2, -3, dtypes=FLOATS + INTS[:-1]),
    scalars("pow", np.power, 2, 3, 0, 1, dtypes=NUMERIC),
    scalars("pow", np.power, 0.5, -1, -2, 2.5, -0.5, label="real exponent"),
    Op("rsub", lambda r: [S(r(3, 5), r(3, 5)), S(r(3), 2)], lambda x, y: y - x, dtypes=NUMERIC),
    Op(
        "pow",
        lambda r: [S(2, r(3, 5)), S(0.5, r(4)), S(1, r())],
        np.power,
        label="pow, scalar base",
    ),
    Op(
        "div",
        lambda r: (
            [S(r(3, 37), r.positive(3, 37), rounding_mode=m) for m in ("floor", "trunc")]
            + [S(r(4), 2, rounding_mode="floor"), S(r(4), 2, rounding_mode="trunc")]
        ),
        div,
        label="div, rounding_mode",
        dtypes=NUMERIC,
        method=True,
        inplace="div_",
        errors=(E("RuntimeError", np.ones(2), 2, rounding_mode="up"),),
    ),
    predicate("eq", np.equal, inplace=None),
    predicate("ne", np.not_equal),
    predicate("lt", np.less),
    predicate("le", np.less_equal),
    predicate("gt", np.greater),
    predicate("ge", np.greater_equal),
    predicate("greater", np.greater),
    predicate("greater_equal", np.greater_equal),
    predicate("less", np.less),
    predicate("less_equal", np.less_equal),
    predicate("not_equal", np.not_equal),
    predicate("logical_and", np.logical_and, inplace="logical_and_"),
    predicate("logical_or", np.logical_or, inplace="logical_or_"),
    predicate("logical_xor", np.logical_xor, inplace="logical_xor_"),
    predicate("isclose", lambda x, y: np.isclose(x, y, rtol=1e-5, atol=1e-8), out=False, dtypes=NUMERIC),
    binary("bitwise_and", np.bitwise_and, dtypes=INTEGRAL, grad=False, edges=False),
    binary("bitwise_or", np.bitwise_or, dtypes=INTEGRAL, grad=False, edges=False),
    binary("bitwise_xor", np.bitwise_xor, dtypes=INTEGRAL, grad=False, edges=False),
    binary("bitwise_left_shift", np.left_shift, 0.5, 2, 0.4, 1, dtypes=INTS, grad=False, edges=False),
    binary("bitwise_right_shift", np.right_shift, 0.5, 2, 0.4, 1, dtypes=INTS, grad=False, edges=False),
    *[into(name, getattr(np, full)) for name, full in COMPARISONS.items()],
    Op(
        "heaviside",
        lambda r: [
            S(np.array([-2.0, 0.0, 1.5, -0.0]), np.array([0.5, 0.25, 3.0, -1.0])),
            S(r(3, 37), r(3, 37)),
            S(np.zeros((2, 3)), r(3)),
            S(r(0, 3), r(0, 3)),
        ],
        np.heaviside,
        dtypes=NUMERIC,
        grad=False,
        method=True,
        inplace="heaviside_",
        broadcast=2,
        errors=MISMATCH,
    ),
    Op(
        "Tensor.where",
        lambda r: [
            S(r(3, 4), r.mask(3, 4), r(3, 4)),
            S(r(3, 1), r.mask(4), r()),
            S(r(3, 4), r.mask(3, 4), 0),
            S(r(0, 2), r.mask(2), r(0, 2)),
        ],
        lambda x, condition, other: np.where(condition, x, other),
        dtypes=NUMERIC,
        exact=True,
        errors=(E("ShapeError", np.ones(2), np.ones(3, bool), np.ones(2)),),
    ),
    Op(
        "clamp",
        clamp_samples,
        clamp,
        dtypes=NUMERIC,
        method=True,
        inplace="clamp_",
        aliases=("clamp_",),
        out=True,
        errors=(E("RuntimeError", np.ones(3)),),
    ),
    Op(
        "clamp",
        lambda r: [S(r(3, 5), r(3, 5), r(3, 5) + 2), S(r(3, 5), r(5)), S(r(2, 3), None, r(2, 1))],
        clamp,
        label="clamp, tensor bounds",
        dtypes=NUMERIC,
        method=True,
        inplace="clamp_",
        aliases=("clamp_",),
        errors=(E("ShapeError", np.ones((2, 3)), np.ones(4)),),
    ),
    Op(
        "clip",
        clamp_samples,
        clamp,
        dtypes=NUMERIC,
        method=True,
        inplace="clip_",
        aliases=("clip_",),
        out=True,
    ),
    Op(
        "clamp_min",
        lambda r: [S(r(3, 5), -1), S(r(), 1)],
        np.maximum,
        dtypes=FLOATS,
        method=True,
        inplace="clamp_min_",
        aliases=("clamp_min_",),
    ),
    Op(
        "clamp_max",
        lambda r: [S(r(3, 5), -1), S(r(), 1)],
        np.minimum,
        dtypes=FLOATS,
        method=True,
        inplace="clamp_max_",
        aliases=("clamp_max_",),
    ),
    Op(
        "where",
        where_samples,
        np.where,
        dtypes=ALL,
        broadcast=0,
        exact=True,
        out=True,
        errors=(
            E("ShapeError", np.ones(3, bool), np.ones(2), np.ones(2)),
            E("RuntimeError", np.ones(2), np.ones(2), np.ones(2)),
        ),
    ),
    Op(
        "where",
        lambda r: [
            S(r.mask(3, 4), r(3, 4), 0),
            S(r.mask(3, 4), 1, r(3, 4)),
            S(r.mask(4), r(3, 4), 0.5, only=FLOATS),
        ],
        np.where,
        label="where, scalar",
        dtypes=NUMERIC,
        exact=True,
    ),
    Op(
        "lerp",
        lerp_samples,
        lambda x, y, weight: x + weight * (y - x),
        method=True,
        inplace="lerp_",
        out=True,
        errors=(E("ShapeError", np.ones(3), np.ones(2), 0.5),),
    ),
    ternary("addcmul", weighted, dtypes=NUMERIC),
    ternary("addcdiv", lambda x, y, z, value=1: weighted(x, y, z, value, divide=True)),
    Op(
        "equal",
        lambda r: [S(np.ones((2, 3)), np.ones((2, 3))), S(r(3), r(3)), S(r(3), r(4)), S(r(0), r(0))],
        np.array_equal,
        dtypes=ALL,
        method=True,
        grad=False,
        meta=False,
        layouts=("transposed", "stepped", "offset"),
    ),
    Op(
        "allclose",
        lambda r: [
            S(np.ones(3), np.ones(3)),
            S(np.ones(3), np.ones(3) * 1.5),
            S(np.ones(3), np.ones(3) * 1.5, rtol=1.0),
        ],
        lambda x, y, rtol=1e-5, atol=1e-8: bool(np.allclose(x, y, rtol, atol)),
        method=True,
        grad=False,
        meta=False,
    ),
    Op(
        "isin",
        lambda r: [S(r.index(3, 4, high=6), np.array([1, 4])), S(r.index(5, high=6), np.array([], np.int64))],
        np.isin,
        dtypes=("float32",),
        result="bool",
        grad=False,
    ),
    Op(
        "add",
        lambda r: [S(r(3, 5), r(3, 5), alpha=2), S(r(2, 3), r(3), alpha=-1), S(r(2, 3), 4, alpha=3)],
        lambda x, y, alpha: x + alpha * y,
        label="add, alpha",
        dtypes=NUMERIC,
        method=True,
        inplace="add_",
        errors=(E("RuntimeError", np.ones(3, np.int64), np.ones(3, np.int64), alpha=0.5),),
    ),
    Op(
        "sub",
        lambda r: [S(r(3, 5), r(3, 5), alpha=2), S(r(2, 3), r(3), alpha=-1)],
        lambda x, y, alpha: x - alpha * y,
        label="sub, alpha",
        dtypes=NUMERIC,
        method=True,
        inplace="sub_",
        errors=(E("RuntimeError", np.ones(3, bool), np.ones(3, bool)),),
    ),
]
