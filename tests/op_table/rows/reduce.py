"""Reductions and scans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from ..table import ALL, FLOATS, NUMERIC, D, E, Op, Rng, S, Sample

DIMS = (
    E("IndexError", np.ones((2, 3)), 2),
    E("IndexError", np.ones((2, 3)), -3),
    E("IndexError", np.ones(3), 1),
)
TWICE = E("RuntimeError", np.ones((2, 3)), (0, 0))
EMPTY = E("IndexError", np.ones((0, 3)), 0)
FLOAT_SUM = {"float16": (4e-3, 1e-2), "bfloat16": (3e-2, 6e-2)}


def forms(draw: str = "__call__", empty: bool = True, many: bool = True, keep: bool = True) -> Any:
    """A reduction's samples: all, one dim, several, keepdim, 0-dim, empty, a long row, a tall column."""

    def samples(r: Rng) -> list[Sample]:
        values: Callable[..., np.ndarray] = getattr(r, draw)
        cases: list[Sample] = [
            S(values(3, 4)),
            S(values(3, 4), 0),
            S(values(2, 3, 4), 1),
            S(values(3, 4), -1),
        ]
        cases += [S(values()), S(values(2, 40), 1), S(values(37, 2), 0), S(values(), 0)]
        if many:
            cases += [S(values(2, 3, 4), (0, 2)), S(values(2, 3, 4), (1, -1))]
        if keep:
            cases += [S(values(3, 4), 1, keepdim=True), S(values(2, 3, 2), dim=1, keepdim=True)]
        if many and keep:
            cases += [S(values(2, 3, 4), (0, 2), True)]
        if empty:
            cases += [S(values(0)), S(values(2, 0), 1), S(values(0, 3), 1)]
        return cases

    return samples


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy reduction under PyTorch's argument names."""

    def ref(x: np.ndarray, dim: Any = None, keepdim: bool = False) -> Any:
        axis = None if dim is None or x.ndim == 0 else tuple(dim) if isinstance(dim, Sequence) else dim
        return np.asarray(function(x, axis=axis, keepdims=keepdim))

    return ref


def variance(root: bool = False) -> Callable[..., Any]:
    def ref(
        x: np.ndarray, dim: Any = None, correction: float = 1, keepdim: bool = False, unbiased: bool = True
    ) -> Any:
        axis = None if dim is None else tuple(dim) if isinstance(dim, Sequence) else dim
        value = np.var(x, axis=axis, ddof=correction if unbiased else 0, keepdims=keepdim)
        return np.asarray(np.sqrt(value) if root else value)

    return ref


def variance_samples(r: Rng) -> list[Sample]:
    cases = [S(r(3, 4)), S(r(3, 4), 0), S(r(2, 3, 4), (0, 2)), S(r(3, 4), 1, keepdim=True), S(r(2, 40), 1)]
    return [
        *cases,
        S(r(3, 4), dim=1, correction=0),
        S(r(3, 4), dim=0, unbiased=False),
        S(r(5), unbiased=False),
    ]


def extreme(pick: Callable[..., Any], arg: Callable[..., Any]) -> Callable[..., Any]:
    def ref(x: np.ndarray, dim: int, keepdim: bool = False) -> tuple[np.ndarray, np.ndarray]:
        if x.ndim == 0:
            return x, np.asarray(0)
        return np.asarray(pick(x, axis=dim, keepdims=keepdim)), np.asarray(arg(x, axis=dim, keepdims=keepdim))

    return ref


def arg_reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def ref(x: np.ndarray, dim: int | None = None, keepdim: bool = False) -> np.ndarray:
        if x.ndim == 0:
            return np.asarray(0)
        return np.asarray(function(x, axis=dim, keepdims=keepdim and dim is not None))

    return ref


def norm(x: np.ndarray, p: Any = 2, dim: Any = None, keepdim: bool = False) -> np.ndarray:
    axis = None if dim is None else tuple(dim) if isinstance(dim, Sequence) else dim
    size = np.abs(x)
    if p in (np.inf, -np.inf):
        return np.asarray((np.max if p > 0 else np.min)(size, axis=axis, keepdims=keepdim))
    if p == 0:
        return np.asarray((size != 0).sum(axis=axis, keepdims=keepdim))
    p = 2 if p == "fro" else p
    return np.asarray((size**p).sum(axis=axis, keepdims=keepdim) ** (1 / p))


def norm_samples(r: Rng) -> list[Sample]:
    cases = [S(r(3, 4)), S(r(3, 4), 1), S(r(3, 4), 2, 0), S(r(2, 3, 4), 2, (0, 2)), S(r(3, 4), 2, 1, True)]
    cases += [S(r(2, 5), 3, 1), S(r(2, 5), float("inf"), 1), S(r(2, 5), 0, 1, grad=False), S(r(3, 4), "fro")]
    return [*cases, S(r(2, 40), 2, 1), S(r(3, 2), 0.5, 0), S(r(2, 5), -float("inf"), 1)]


def vector_norm(x: np.ndarray, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> np.ndarray:
    return norm(x, ord, dim, keepdim)


def logsumexp(x: np.ndarray, dim: Any, keepdim: bool = False) -> np.ndarray:
    return np.asarray(special.logsumexp(x, axis=dim if x.ndim else None, keepdims=keepdim))


def scan(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim: np.asarray(function(x, axis=dim) if x.ndim else x)


def cumulative_extreme(function: Any) -> Callable[..., Any]:
    def ref(x: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
        values = function.accumulate(x, axis=dim)
        place = np.where(
            x == values, np.expand_dims(np.arange(x.shape[dim]), tuple(range(1, x.ndim - dim))), 0
        )
        return values, np.maximum.accumulate(place, axis=dim)

    return ref


def logcumsumexp(x: np.ndarray, dim: int) -> np.ndarray:
    return np.logaddexp.accumulate(x, axis=dim)


def median(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sort(x.ravel())[(x.size - 1) // 2])


def median_dim(x: np.ndarray, dim: int, keepdim: bool = False) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(x, axis=dim)
    index = np.take(order, [(x.shape[dim] - 1) // 2], axis=dim)
    value = np.take_along_axis(x, index, dim)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


def nanmedian(x: np.ndarray) -> np.ndarray:
    return median(x[~np.isnan(x)])


def nanmedian_dim(x: np.ndarray, dim: int, keepdim: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rank = np.maximum(np.sum(~np.isnan(x), axis=dim, keepdims=True) - 1, 0) // 2
    index = np.take_along_axis(np.argsort(x, axis=dim), rank, dim)  # nan comes last
    value = np.take_along_axis(x, index, dim)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


def with_nan(x: np.ndarray, *places: tuple[int, ...]) -> np.ndarray:
    for place in places:
        x[place] = math.nan
    return x


def mean_of_numbers(x: np.ndarray, **along: Any) -> Any:
    """The mean of what is not NaN; NaN where nothing is left."""
    return np.nansum(x, **along) / np.sum(~np.isnan(x), **along)


def no_ties(*shapes: tuple[int, ...]) -> Callable[[Rng], list[Sample]]:
    return lambda r: [S(r.distinct(*shape)) for shape in shapes]


def with_dim(r: Rng) -> list[Sample]:
    cases = [S(r.distinct(3, 4), 0), S(r.distinct(3, 4), 1), S(r.distinct(2, 3, 4), 1), S(r.distinct(), 0)]
    return [*cases, S(r.distinct(3, 4), -1, keepdim=True), S(r.distinct(2, 23), 1), S(r.distinct(0, 3), 1)]


def scan_samples(r: Rng) -> list[Sample]:
    wide = [S(r(5, 3), 1), S(r(2, 3, 19), 1)]
    return [S(r(3, 4), 0), S(r(3, 4), 1), S(r(2, 3, 2), -2), S(r(2, 20), 1), S(r(), 0), S(r(0, 2), 1), *wide]


MAXIMA = {"dtypes": NUMERIC, "exact": True, "method": True, "layouts": ("transposed", "stepped", "offset")}
ARG = MAXIMA | {"result": "int64", "grad": False}
PAIR = MAXIMA | {"result": ("same", "int64")}
SUM = {"dtypes": ALL, "result": "sum", "method": True, "tol": FLOAT_SUM}

ROWS = [
    Op("sum", forms(), reduction(np.sum), errors=(*DIMS, TWICE), **SUM),
    Op(
        "sum",
        lambda r: [S(r(3, 4), dtype=D("float64")), S(r(3, 4), 1, dtype=D("float64"))],
        lambda x, dim=None, dtype=None: np.asarray(np.sum(x, axis=dim)),
        label="sum, dtype",
        dtypes=ALL,
        result="float64",
        method=True,
    ),
    Op(
        "nanmean",
        lambda r: [
            *forms(empty=False)(r),
            S(np.array([[1.5, np.nan, -2.0], [np.nan, np.nan, 0.25]]), 1, grad=False),
        ],
        reduction(mean_of_numbers),
        errors=DIMS,
        method=True,
        out=True,
        tol=FLOAT_SUM,
    ),
    Op(
        "nanmean",
        lambda r: [S(np.array([np.nan])), S(np.zeros((2, 0)), 1), S(np.zeros(0))],
        reduction(mean_of_numbers),
        label="nanmean of nothing",
        grad=False,
    ),
    Op("nansum", forms(), reduction(np.nansum), out=True, errors=DIMS, **SUM),
    Op(
        "mean",
        forms(empty=False),
        reduction(np.mean),
        method=True,
        tol=FLOAT_SUM,
        errors=(*DIMS, TWICE, E("DtypeError", np.ones(3, np.int64))),
    ),
    Op(
        "prod",
        forms("positive", many=False),
        reduction(np.prod),
        dtypes=ALL,
        result="sum",
        method=True,
        tol={"float16": (1e-2, 1e-2), "bfloat16": (6e-2, 6e-2), "float32": (2e-5, 2e-5)},
        errors=DIMS,
    ),
    Op(
        "prod",
        lambda r: [S(np.array([1.5, 0.0, 2.0])), S(np.array([[0.0, 3.0, 0.0], [2.0, 0.0, 1.5]]), 1)],
        reduction(np.prod),
        label="prod, zeros",
    ),
    Op("amax", forms("distinct", empty=False), reduction(np.max), out=True, errors=(*DIMS, EMPTY), **MAXIMA),
    Op("amin", forms("distinct", empty=False), reduction(np.min), out=True, errors=(*DIMS, EMPTY), **MAXIMA),
    Op(
        "max",
        no_ties((3, 4), (), (2, 37)),
        lambda x: np.asarray(x.max()),
        out=True,
        errors=(E("RuntimeError", np.ones(0)),),
        **MAXIMA,
    ),
    Op(
        "min",
        no_ties((3, 4), (), (2, 37)),
        lambda x: np.asarray(x.min()),
        out=True,
        errors=(E("RuntimeError", np.ones(0)),),
        **MAXIMA,
    ),
    Op("max", with_dim, extreme(np.max, np.argmax), label="max, dim", errors=(*DIMS, EMPTY), **PAIR),
    Op("min", with_dim, extreme(np.min, np.argmin), label="min, dim", errors=(*DIMS, EMPTY), **PAIR),
    Op(
        "max",
        lambda r: [S(r(3, 4), r(3, 4)), S(r(3, 1), r(4))],
        np.maximum,
        label="max, other",
        dtypes=NUMERIC,
        method=True,
    ),
    Op(
        "min",
        lambda r: [S(r(3, 4), r(3, 4)), S(r(3, 1), r(4))],
        np.minimum,
        label="min, other",
        dtypes=NUMERIC,
        method=True,
    ),
    Op(
        "argmax",
        forms("distinct", empty=False, many=False),
        arg_reduction(np.argmax),
        out=True,
        errors=(*DIMS, EMPTY),
        **ARG,
    ),
    Op(
        "argmin",
        forms("distinct", empty=False, many=False),
        arg_reduction(np.argmin),
        out=True,
        errors=(*DIMS, EMPTY),
        **ARG,
    ),
    Op(
        "aminmax",
        lambda r: [S(r.distinct(3, 4)), S(r.distinct(3, 4), dim=1), S(r.distinct(3, 4), dim=0, keepdim=True)],
        lambda x, dim=None, keepdim=False: (
            np.min(x, dim, keepdims=keepdim),
            np.max(x, dim, keepdims=keepdim),
        ),
        out=True,
        **MAXIMA,
    ),
    Op(
        "any",
        forms(),
        reduction(np.any),
        out=True,
        dtypes=ALL,
        result=lambda d: "uint8" if d == "uint8" else "bool",
        method=True,
        grad=False,
        errors=DIMS,
    ),
    Op(
        "all",
        forms(),
        reduction(np.all),
        out=True,
        dtypes=ALL,
        result=lambda d: "uint8" if d == "uint8" else "bool",
        method=True,
        grad=False,
        errors=DIMS,
    ),
    Op(
        "count_nonzero",
        forms(keep=False),
        reduction(np.count_nonzero),
        dtypes=ALL,
        result="int64",
        method=True,
        grad=False,
        errors=DIMS,
    ),
    Op(
        "var",
        variance_samples,
        variance(),
        method=True,
        tol=FLOAT_SUM,
        errors=(*DIMS, E("DtypeError", np.ones(3, np.int64))),
    ),
    Op(
        "std",
        variance_samples,
        variance(root=True),
        method=True,
        tol=FLOAT_SUM,
        errors=(*DIMS, E("DtypeError", np.ones(3, np.int64))),
    ),
    Op(
        "var_mean",
        variance_samples,
        lambda x, dim=None, **o: (
            variance()(x, dim, **o),
            reduction(np.mean)(x, dim, o.get("keepdim", False)),
        ),
        tol=FLOAT_SUM,
        errors=DIMS,
    ),
    Op(
        "std_mean",
        variance_samples,
        lambda x, dim=None, **o: (
            variance(True)(x, dim, **o),
            reduction(np.mean)(x, dim, o.get("keepdim", False)),
        ),
        tol=FLOAT_SUM,
        errors=DIMS,
    ),
    Op(
        "norm",
        norm_samples,
        norm,
        method=True,
        out=True,
        tol=FLOAT_SUM,
        errors=(E("IndexError", np.ones((2, 3)), 2, 2),),
    ),
    Op(
        "norm",
        lambda r: [S(r(3, 4), "nuc"), S(r(2, 3, 3), "nuc", (0, 2))],
        lambda x, p, dim=(-2, -1): np.linalg.norm(x, p, dim),
        label="norm, nuclear",
        dtypes=("float64", "float32"),
        second=False,
        method=True,
        tol={"float32": (2e-5, 2e-5), "float64": (1e-10, 1e-10)},
        errors=(E("RuntimeError", np.ones((2, 3)), "nuclear"),),
    ),
    Op(
        "linalg.vector_norm",
        lambda r: [s for s in norm_samples(r) if s.args[1:2] not in ((0,), ("fro",))],
        vector_norm,
        tol=FLOAT_SUM,
        errors=(E("IndexError", np.ones((2, 3)), 2, 2),),
    ),
    Op(
        "linalg.vector_norm",
        lambda r: [S(r(2, 5), 0, 1), S(np.array([0.0, 1.5, 0.0]), 0)],
        vector_norm,
        label="linalg.vector_norm, order 0",
        grad=False,
    ),
    Op("linalg.norm", lambda r: [S(r(3, 4)), S(r(5), 3), S(r(3, 4), 2, 1)], vector_norm, tol=FLOAT_SUM),
    Op(
        "linalg.norm",
        lambda r: [S(r(3, 4), ord) for ord in ("fro", 1, -1, np.inf, -np.inf)],
        np.linalg.norm,
        label="linalg.norm, matrix",
        tol=FLOAT_SUM,
        errors=(
            E("RuntimeError", np.ones((2, 2, 2)), 1),
            E("RuntimeError", np.ones(2), "fro"),
        ),
    ),
    Op(
        "linalg.matrix_norm",
        lambda r: [
            *[S(r(2, 3, 4), ord) for ord in ("fro", 1, -1, np.inf, -np.inf)],
            S(r(2, 3, 4), np.inf, (0, 1), True),
            S(r(2, 3, 4), 1, (-1, 0)),
        ],
        lambda x, ord, dim=(-2, -1), keepdim=False: np.linalg.norm(x, ord, dim, keepdim),
        tol=FLOAT_SUM,
        python=True,
        errors=(
            E("RuntimeError", np.ones((2, 2)), 3),
            E("RuntimeError", np.ones((2, 2)), 1, (0, 0)),
        ),
    ),
    Op(
        "logsumexp",
        lambda r: (
            [S(r(3, 4), 0), S(r(3, 4), 1, True), S(r(2, 3, 4), (0, 2)), S(r(2, 40), -1), S(r(), 0)]
            + [S(np.array([[1000.0, 1001.0], [-np.inf, 0.0], [-np.inf, -np.inf]]), 1, grad=False)]
        ),
        logsumexp,
        method=True,
        out=True,
        errors=DIMS,
    ),
    Op(
        "cumsum",
        scan_samples,
        scan(np.cumsum),
        out=True,
        out_casts=True,
        inplace="cumsum_",
        errors=DIMS,
        **SUM,
    ),
    Op(
        "cumprod",
        scan_samples,
        scan(np.cumprod),
        out=True,
        out_casts=True,
        inplace="cumprod_",
        errors=DIMS,
        **(SUM | {"tol": {"float16": (1e-2, 1e-2), "bfloat16": (8e-2, 8e-2), "float32": (2e-5, 2e-5)}}),
    ),
    Op(
        "cumprod",
        lambda r: [S(np.array([[1.5, 0.0, 2.0], [0.0, 3.0, 0.0]]), 1)],
        scan(np.cumprod),
        label="cumprod, zeros",
    ),
    Op("logcumsumexp", lambda r: [S(r(3, 4), 0), S(r(2, 20), 1)], logcumsumexp, method=True),
    Op(
        "cummax",
        lambda r: [S(r.distinct(3, 4), 0), S(r.distinct(2, 11), 1), S(r.distinct(2, 53), 1)],
        cumulative_extreme(np.maximum),
        out=True,
        **PAIR,
    ),
    Op(
        "cummin",
        lambda r: [S(r.distinct(3, 4), 0), S(r.distinct(2, 11), 1), S(r.distinct(2, 53), 1)],
        cumulative_extreme(np.minimum),
        out=True,
        **PAIR,
    ),
    Op("median", no_ties((5,), (3, 4), (2, 3)), median, **MAXIMA),
    Op(
        "median",
        lambda r: [S(r.distinct(3, 4), 0), S(r.distinct(2, 5), 1, keepdim=True)],
        median_dim,
        label="median, dim",
        **PAIR,
    ),
    Op(
        "nanmedian",
        lambda r: [
            *(S(r.distinct(*shape)) for shape in ((5,), (3, 4))),
            S(with_nan(r.distinct(3, 4), (0, 1), (2, 3)), grad=False, only=FLOATS),
        ],
        nanmedian,
        **MAXIMA,
    ),
    Op(
        "nanmedian",
        lambda r: [
            *(S(r.distinct(2, 5), dim, keepdim=keep) for dim in (0, 1) for keep in (False, True)),
            S(with_nan(r.distinct(3, 4), (0, 1), (2, 3), (2, 0)), 1, grad=False, only=FLOATS),
        ],
        nanmedian_dim,
        label="nanmedian, dim",
        **PAIR,
    ),
    Op(
        "quantile",
        lambda r: [S(r.distinct(7), 0.3), S(r.distinct(3, 5), 0.75, 1), S(r.distinct(3, 5), 0.5, 0, True)],
        lambda x, q, dim=None, keepdim=False: np.asarray(np.quantile(x, q, axis=dim, keepdims=keepdim)),
        dtypes=("float64", "float32"),
        method=True,
    ),
    Op(
        "diff",
        lambda r: [S(r(5)), S(r(3, 4)), S(r(3, 4), 1, 0), S(r(3, 5), 2)],
        lambda x, n=1, dim=-1: np.diff(x, n, dim),
        dtypes=NUMERIC,
        method=True,
    ),
    Op(
        "bincount",
        lambda r: [S(r.index(9, high=5)), S(r.index(4, high=3), minlength=6)],
        lambda x, minlength=0: np.bincount(x, minlength=minlength),
        dtypes=("int64",),
        result="int64",
        grad=False,
        method=True,
        meta=False,
    ),
    Op(
        "trace",
        lambda r: [S(r(3, 3)), S(r(2, 4))],
        lambda x: np.asarray(np.trace(x)),
        dtypes=NUMERIC,
        result="sum",
        method=True,
        errors=(E("RuntimeError", np.ones(3)),),
    ),
    Op(
        "Tensor.item",
        lambda r: [S(np.full((), 1.5)), S(np.full((1, 1), 2.25))],
        lambda x: float(x.reshape(())),
        grad=False,
        meta=False,
        errors=(E("RuntimeError", np.ones(2)),),
    ),
    Op(
        "Tensor.item",
        lambda r: [S(np.full((), 5)), S(np.full((1,), -7))],
        lambda x: int(x.reshape(())),
        label="item, integer",
        dtypes=("int64",),
        grad=False,
        meta=False,
    ),
    Op(
        "Tensor.tolist",
        lambda r: [S(np.array([[1.5, 2.0], [0.25, -1.0]])), S(np.full((), 0.5)), S(np.zeros((2, 0)))],
        lambda x: x.tolist(),
        grad=False,
        meta=False,
        layouts=("transposed", "stepped", "offset"),
    ),
]
