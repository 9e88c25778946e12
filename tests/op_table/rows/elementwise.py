"""Elementwise arithmetic: one tensor in, one out of the same shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from ..table import ALL, FLOATS, INTEGRAL, NUMERIC, E, Op, Rng, S, Sample, twins

# In place, these are methods alone; the others are functions of the package too.
METHOD_ONLY = ("neg", "negative", "logit", "sgn", "logical_not", "bitwise_not")
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0])


def points(low: float, high: float, edges: bool = True) -> Callable[[Rng], Sequence[Sample]]:
    """A vector's worth and a tail, a small matrix, 0-dim, empty, and the special values."""

    def samples(r: Rng) -> list[Sample]:
        cases = [S(r(*shape, low=low, high=high)) for shape in ((3, 37), (2, 3), (), (0, 3))]
        return [*cases, S(SPECIAL, only=FLOATS, grad=False)] if edges else cases

    return samples


def unary(name: str, ref: Callable[..., Any], low: float = -2.0, high: float = 2.0, **options: Any) -> Op:
    """A row for a function of one tensor; integers become float32 unless `result` says otherwise."""
    edges = options.pop("edges", True)
    aliases = options.pop("aliases", ())
    if options.get("inplace", "_") and name not in METHOD_ONLY:
        aliases += (f"{name}_",)
    options = {
        "aliases": aliases,
        "dtypes": ALL,
        "result": "float",
        "method": True,
        "inplace": name + "_",
        "out": True,
        "broadcast": 1,
        "errors": (E("TypeError", [1.0]),),
    } | options
    return Op(name, points(low, high, edges), ref, **options)


def round_half_even(x: np.ndarray, decimals: int = 0) -> np.ndarray:
    return np.round(x, decimals) if decimals else np.rint(x)


def rsqrt(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


def sign(x: np.ndarray) -> np.ndarray:
    return (
        np.where(np.isnan(x), 0.0, np.sign(x))
        if x.dtype.kind == "f"
        else x
        if x.dtype == bool
        else np.sign(x)
    )


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Rounding leaves integers alone."""
    return lambda x: function(x) if x.dtype.kind == "f" else x


def nan_to_num(
    x: np.ndarray, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> np.ndarray:
    return np.where(np.isnan(x), nan, np.where(x == np.inf, posinf, np.where(x == -np.inf, neginf, x)))


SAME = {"result": "same", "dtypes": NUMERIC}
LOOSE_HALF = {"float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}

ROWS = [
    unary("exp", np.exp),
    unary("exp2", np.exp2),
    unary("expm1", np.expm1),
    unary("log", np.log, 0.5, 3),
    unary("log2", np.log2, 0.5, 3),
    unary("log10", np.log10, 0.5, 3),
    unary("log1p", np.log1p, -0.9, 3),
    unary("sqrt", np.sqrt, 0.5, 3),
    unary("rsqrt", rsqrt, 0.5, 3),
    unary("reciprocal", lambda x: 1 / x, 0.5, 3),
    unary("sin", np.sin),
    unary("cos", np.cos),
    unary("tan", np.tan, -1.4, 1.4),
    unary("asin", np.arcsin, -0.9, 0.9),
    unary("acos", np.arccos, -0.9, 0.9),
    unary("atan", np.arctan),
    unary("arcsin", np.arcsin, -0.9, 0.9),
    unary("arccos", np.arccos, -0.9, 0.9),
    unary("arctan", np.arctan),
    unary("sinh", np.sinh),
    unary("cosh", np.cosh),
    unary("tanh", np.tanh),
    unary("asinh", np.arcsinh, aliases=twins("arcsinh"), peer=("inplace_autograd", "spelling_gradient")),
    unary(
        "acosh", np.arccosh, 1.1, 3, aliases=twins("arccosh"), peer=("inplace_autograd", "spelling_gradient")
    ),
    unary(
        "atanh",
        np.arctanh,
        -0.9,
        0.9,
        aliases=twins("arctanh"),
        peer=("inplace_autograd", "spelling_gradient"),
    ),
    unary("sigmoid", special.expit),
    unary("deg2rad", np.deg2rad),
    unary("rad2deg", np.rad2deg),
    unary("sinc", np.sinc),
    Op(
        "polygamma",
        lambda r: (
            [S(n, r.positive(3, 5)) for n in range(4)]
            + [S(1, r.positive()), S(2, r.positive(0, 2)), S(9, r.positive(3, 5))]
        ),
        lambda n, x: np.asarray(special.polygamma(n, x)),
        tol={"float64": (1e-11, 1e-11), "float32": (2e-5, 2e-5)},
        peer=("values", "layouts"),
        errors=(E("RuntimeError", -1, np.ones(2)),),
    ),
    Op(
        "Tensor.polygamma",
        lambda r: [S(r.positive(3, 5), 1), S(r.positive(), 2)],
        lambda x, n: np.asarray(special.polygamma(n, x)),
        inplace="polygamma_",
        tol={"float64": (1e-11, 1e-11), "float32": (2e-5, 2e-5)},
        peer=("values", "layouts"),
        errors=(E("RuntimeError", np.ones(2), -1),),
    ),
    unary("logit", special.logit, 0.1, 0.9, dtypes=FLOATS),
    unary("erf", special.erf),
    unary("erfc", special.erfc),
    unary("erfinv", special.erfinv, -0.9, 0.9),
    unary("lgamma", special.gammaln, 0.5, 3, edges=False),
    unary("digamma", special.digamma, 0.5, 3, edges=False, second=False),
    unary("special.expm1", np.expm1, method=False, inplace=None),
    unary("abs", np.abs, aliases=twins("absolute"), **SAME),
    unary("neg", np.negative, **SAME),
    unary("negative", np.negative, **SAME),
    unary("positive", np.positive, inplace=None, out=False, **SAME),
    unary("square", np.square, **SAME),
    unary("sign", sign, result="same", grad=True),
    unary("sgn", sign, result="same"),
    unary("floor", whole(np.floor), **SAME),
    unary("ceil", whole(np.ceil), **SAME),
    unary("trunc", whole(np.trunc), aliases=twins("fix"), **SAME),
    unary("frac", lambda x: x - np.trunc(x), dtypes=FLOATS, edges=False, result="same"),
    unary("round", whole(np.rint), **SAME),
    Op(
        "round",
        lambda r: [S(r.prob(3, 5), decimals=1), S(r(4), decimals=-1)],
        round_half_even,
        label="round, decimals",
        dtypes=("float64", "float32"),
        method=True,
        grad=False,
    ),
    unary("isnan", np.isnan, result="bool", grad=False, inplace=None, out=False),
    unary("isinf", np.isinf, result="bool", grad=False, inplace=None, out=False),
    unary("isfinite", np.isfinite, result="bool", grad=False, inplace=None, out=False),
    unary("isposinf", lambda x: x == np.inf, result="bool", grad=False, inplace=None),
    unary("isneginf", lambda x: x == -np.inf, result="bool", grad=False, inplace=None),
    unary("signbit", np.signbit, result="bool", grad=False, inplace=None, dtypes=FLOATS, edges=False),
    unary("logical_not", np.logical_not, result="bool", grad=False),
    unary("bitwise_not", np.invert, result="same", dtypes=INTEGRAL, grad=False, edges=False),
    Op(
        "nan_to_num",
        lambda r: [S(SPECIAL, 0.5, 7.0, -7.0, grad=False), S(r(2, 3), 1.0, 2.0, 3.0)],
        nan_to_num,
        method=True,
        inplace="nan_to_num_",
        aliases=("nan_to_num_",),
        out=True,
    ),
    Op("clone", lambda r: [S(r(3, 5)), S(r()), S(r(0, 2))], lambda x: x, dtypes=ALL, method=True, exact=True),
    Op("Tensor.contiguous", lambda r: [S(r(3, 5)), S(r()), S(r(0, 2))], lambda x: x, dtypes=ALL, exact=True),
    Op(
        "Tensor.detach",
        lambda r: [S(r(3, 5)), S(r())],
        lambda x: x,
        dtypes=ALL,
        exact=True,
        grad=False,
        aliases=("detach",),
    ),
]

CASTS = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "bfloat16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "bool": "bool",
}


def cast_samples(r: Rng) -> list[Sample]:
    """Positive values, for a negative float to uint8 is undefined in C."""
    return [S(r.positive(3, 37)), S(r.positive(2, 2)), S(r.positive()), S(r.positive(0, 3))]


ROWS += [
    Op(
        f"Tensor.{name}",
        cast_samples,
        lambda x: x,
        dtypes=ALL,
        result=target,
        grad=target == "float64",
        exact=True,
    )
    for name, target in CASTS.items()
]
ROWS += [
    unary("nn.functional.sigmoid", special.expit, method=False, inplace=None, out=False, python=True),
    unary("nn.functional.tanh", np.tanh, method=False, inplace=None, out=False, python=True),
]
