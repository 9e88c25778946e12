"""Counts, combinations, integrals, and the parts of numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from scipy import special

from ..table import NUMERIC, E, Op, S

WIDE = ("float64", "float32")
COUNTED: dict[str, Any] = {"dtypes": WIDE, "grad": False, "layouts": ("transposed", "stepped", "offset")}


def histc(x, bins=100, min=0, max=0):
    ends = (min, max) if min != max else (x.min(), x.max())
    return np.histogram(x, bins, ends)[0].astype(x.dtype)


def histogram(x, bins, range=None, weight=None, density=False):
    weights = None if weight is None else weight.reshape(-1)
    counts, edges = np.histogram(x.reshape(-1), bins, range, density, weights)
    return counts.astype(x.dtype), edges.astype(x.dtype)


def unique_consecutive(x, return_inverse, return_counts):
    starts = np.flatnonzero(np.r_[True, x[1:] != x[:-1]])
    inverse = np.cumsum(np.r_[True, x[1:] != x[:-1]]) - 1
    return x[starts], inverse, np.bincount(inverse)


def nextafter(x, other):
    return np.nextafter(x, other)


def put(x, index, source, accumulate=False):
    out = x.copy().reshape(-1)
    if accumulate:
        np.add.at(out, index.reshape(-1), source.reshape(-1))
    else:
        out[index.reshape(-1)] = source.reshape(-1)
    return out.reshape(x.shape)


def as_strided_scatter(x, src, size, stride, offset=0):
    out = x.copy()
    np.lib.stride_tricks.as_strided(out.reshape(-1)[offset:], size, [s * out.itemsize for s in stride])[
        ...
    ] = src
    return out


def summed(x, *size):
    for d, n in enumerate(size):
        x = x.sum(d, keepdims=True) if n == 1 else x
    return x


ROWS = [
    Op(
        "histc",
        lambda r: [S(r(3, 40), 6), S(r(30), 5, -1.0, 0.7), S(r(4), 3, 0.0, 0.0)],
        histc,
        method=True,
        out=True,
        errors=(
            E("RuntimeError", np.ones(3), 0),
            E("RuntimeError", np.ones(3), 4, 2.0, 1.0, match="max must be larger"),
            E("RuntimeError", np.array([1.0, np.inf]), 4, match="finite"),
            E("NotImplementedError", np.array([1, 2])),
        ),
        **COUNTED,
    ),
    Op(
        "histogram",
        lambda r: [
            S(r(3, 20), 5),
            S(r(40), 7, range=(-1.5, 0.9)),
            S(r(3, 5), 4, weight=r(3, 5)),
            S(r(30), 6, density=True),
            S(r(30), np.array([-1.8, -0.7, 0.31, 1.9])),
        ],
        histogram,
        method=True,
        meta=False,
        errors=(
            E("RuntimeError", np.ones(3), 0),
            E("RuntimeError", np.ones(3), 2, weight=np.ones(2), match="weight"),
            E("RuntimeError", np.ones(3), np.ones((2, 2)), match="one dimension"),
        ),
        **COUNTED,
    ),
    Op(
        "histogramdd",
        lambda r: [
            S(r(30, 2), (3, 4)),
            S(r(5, 6, 2), (2, 3), (-1.0, 1.5, -1.2, 1.1)),
            S(r(20, 2), (2, 2), None, r(20)),
        ],
        lambda x, bins, range=None, weight=None: np.histogramdd(
            x.reshape(-1, 2),
            bins,
            None if range is None else np.reshape(range, (2, 2)),
            weights=None if weight is None else weight.reshape(-1),
        )[0].astype(x.dtype),
        call=lambda rt, *args: rt.histogramdd(*args)[0],
        meta=False,
        errors=(E("RuntimeError", np.ones((4, 2)), (2, 2, 2)), E("RuntimeError", np.ones(4), (2,))),
        **COUNTED,
    ),
    Op(
        "unique_consecutive",
        lambda r: [S(np.sort(r.index(9, high=4)), True, True), S(r.index(12, high=2), True, True)],
        unique_consecutive,
        dtypes=("int64",),
        grad=False,
        method=True,
        meta=False,
        layouts=("stepped", "offset"),
    ),
    Op(
        "combinations",
        lambda r: [S(r(5)), S(r(4), 3), S(r(3), 2, True), S(r(4), 1), S(r(2), 3)],
        lambda x, k=2, again=False: np.array(
            list((itertools.combinations_with_replacement if again else itertools.combinations)(x, k)),
            dtype=x.dtype,
        ).reshape(-1, k),
        dtypes=NUMERIC,
        exact=True,
        errors=(E("RuntimeError", np.ones((2, 2))), E("RuntimeError", np.ones(2), -1)),
    ),
    Op(
        "unravel_index",
        lambda r: [S(r.index(3, 4, high=24), (2, 3, 4)), S(r.index(5, high=6), (6,))],
        lambda x, shape: np.unravel_index(x, shape),
        dtypes=("int64",),
        result=lambda dtype: "int64",
        grad=False,
        errors=(
            E("TypeError", np.ones(2), (2, 3), match="integer dtype"),
            E("ValueError", np.ones(2, int), (2, -3), match="negative"),
        ),
    ),
    Op(
        "put",
        lambda r: [
            S(r(3, 4), np.array([0, 5, -1]), r(3)),
            S(r(3, 4), np.array([[2, 2], [7, 2]]), r(2, 2), True),
        ],
        put,
        dtypes=NUMERIC,
        method=True,
        out=True,
        inplace="put_",
        errors=(
            E("IndexError", np.ones(3), np.array([0, 1]), np.ones(3), match="same number of elements"),
            E("IndexError", np.ones(3), np.array([3]), np.ones(1), match="out of bounds", host=True),
        ),
    ),
    Op(
        "as_strided_scatter",
        lambda r: [S(r(3, 4), r(2, 2), (2, 2), (4, 1)), S(r(6), r(3), (3,), (2,), 1)],
        as_strided_scatter,
        dtypes=NUMERIC,
        method=True,
        out=True,
        exact=True,
        layouts=(),
        errors=(E("RuntimeError", np.ones(4), np.ones(3), (2,), (1,), match="expected src to have a size"),),
        peer=("gradient", "out"),
        peer_reason="lets the gradient of the input pass where it was overwritten; takes no out=",
    ),
    Op(
        "narrow_copy",
        lambda r: [S(r(4, 3), 0, 1, 2), S(r(2, 5), -1, 2, 3)],
        lambda x, dim, start, length: np.take(x, range(start, start + length), dim),
        dtypes=NUMERIC,
        method=True,
        out=True,
        exact=True,
    ),
    Op(
        "Tensor.sum_to_size",
        lambda r: [S(r(3, 4), 1, 4), S(r(2, 3), 1, 1), S(r(2, 2), 2, 2)],
        summed,
        dtypes=WIDE,
        errors=(E("RuntimeError", np.ones((2, 3)), 2, 2, match="expandable"),),
    ),
    Op(
        "gradient",
        lambda r: [
            S(r(6)),
            S(r(4, 5), spacing=0.5),
            S(r(4, 5), spacing=[0.5, 2.0], edge_order=2),
            S(r(3, 5), spacing=2.0, dim=1),
        ],
        lambda y, spacing=1.0, dim=None, edge_order=1: (
            lambda found: found if isinstance(found, (list, tuple)) else (found,)
        )(
            np.gradient(
                y, *(spacing if isinstance(spacing, list) else [spacing]), axis=dim, edge_order=edge_order
            )
        ),
        dtypes=WIDE,
        errors=(
            E("RuntimeError", np.ones(1), match="at least edge_order"),
            E("RuntimeError", np.ones(4), edge_order=3, match="edge_order"),
            E("RuntimeError", np.ones((4, 4)), spacing=[1.0, 1.0, 1.0], match="spacing"),
        ),
    ),
    Op(
        "frexp",
        lambda r: [S(r(3, 4)), S(np.array([0.0, 1e-40, -8.0, np.inf]), grad=False, only=WIDE)],
        lambda x: tuple(np.frexp(x)),
        result=("same", "int32"),
        dtypes=WIDE,
        method=True,
        exact=True,
    ),
    Op(
        "ldexp",
        lambda r: [
            S(r(3, 4), r.index(4, low=-3, high=4)),
            S(r(5), r.index(5, high=8)),
            S(np.array([1.5, -1.0, np.inf, 0.0]), np.array([-148, 127, -9000, 9000]), grad=False),
        ],
        np.ldexp,
        dtypes=WIDE,
        method=True,
        out=True,
        inplace="ldexp_",
        peer=("gradient", "jvp"),
        peer_reason="raises the integer 2 to negative powers in the backward: the gradient is 0",
    ),
    Op(
        "nextafter",
        lambda r: [
            S(r(3, 4), r(4)),
            S(
                np.array([0.0, -0.0, 1.0, np.inf, np.nan, 1.0, 0.0]),
                np.array([1.0, -1.0, 1.0, 0.0, 1.0, np.nan, -0.0]),
            ),
        ],
        nextafter,
        dtypes=("float64",),
        grad=False,  # 0, whatever the difference of neighbours
        method=True,
        out=True,
        inplace="nextafter_",
        exact=True,
        errors=(E("NotImplementedError", np.array([1]), np.array([2])),),
    ),
    Op(
        "mvlgamma",
        lambda r: [S(r.positive(3, 4, low=1.6, high=4.0), 3), S(r.positive(5), 1)],
        lambda x, p: np.vectorize(lambda v: special.multigammaln(v, p))(x),
        dtypes=WIDE,
        method=True,
        out=True,
        inplace="mvlgamma_",
        aliases=("special.multigammaln",),
        tol={"float64": (1e-10, 1e-11), "float32": (1e-5, 1e-5)},
        errors=(E("RuntimeError", np.ones(2), 0, match="greater than or equal to 1"),),
    ),
    *(
        Op(
            name,
            lambda r: [S(r.index(3, 4, low=-9, high=9), r.index(4, low=-9, high=9))],
            ref,
            label=f"{name}, signs",
            dtypes=("int64",),
            grad=False,
        )
        for name, ref in (("gcd", np.gcd), ("lcm", np.lcm))
    ),
]
