"""Ops that put tensors into others, combine them, or count in them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from ..table import INTS, NUMERIC, E, Op, Rng, S, Sample

WIDE = ("float64", "float32")
REDUCTIONS: dict[str, Any] = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "mean": np.mean,
    "amax": np.max,
    "amin": np.min,
}


def scatter_reduce(x, dim, index, src, reduce, include_self=True):
    """By its definition: one place after the other."""
    out = x.copy()
    for place in np.ndindex(*x.shape):
        found = [x[place]] if include_self else []
        for at in np.ndindex(*index.shape):
            to = list(at)
            to[dim] = index[at]
            if tuple(to) == place:
                found.append(src[at])
        if len(found) > int(include_self):
            value = REDUCTIONS[reduce](np.array(found))
            out[place] = np.floor(value) if out.dtype.kind in "iu" and reduce == "mean" else value
    return out


def scattered(r: Rng) -> list[Sample]:
    index = r.index(4, 3, high=5)
    return [
        S(
            r.distinct(5, 4),
            dim,
            index if dim == 0 else r.index(4, 3, high=4),
            r.distinct(4, 3) + 0.013,  # no ties, where there is no derivative
            how,
            include_self=own,
        )
        for dim in (0, 1)
        for how in REDUCTIONS
        for own in (True, False)
    ]


def index_reduce(x, dim, index, source, reduce, include_self=True):
    shape = [-1 if i == dim else 1 for i in range(source.ndim)]
    return scatter_reduce(
        x, dim, np.broadcast_to(index.reshape(shape), source.shape), source, reduce, include_self
    )


def placed(part: Any) -> Any:
    def ref(x, src, *args, **kwargs):
        out = x.copy()
        out[part(*args, **kwargs)] = src
        return out

    return ref


def diagonal_scatter(x, src, offset=0):
    out = x.copy()
    rows = np.arange(len(src))
    out[rows, rows + offset] = src
    return out


RUNS = {
    "sum": (np.sum, 0.0),
    "prod": (np.prod, 1.0),
    "max": (np.max, -np.inf),
    "min": (np.min, np.inf),
    "mean": (np.sum, 0.0),
}


def segment_reduce(x, reduce, lengths=None, offsets=None, axis=0, initial=None):
    """By its definition: one run after the other."""
    lengths = np.diff(offsets) if lengths is None else lengths
    combine, start = RUNS[reduce]
    start = np.nan if reduce == "mean" and initial is None else initial if initial is not None else start
    out = np.empty((*x.shape[:axis], lengths.shape[-1], *x.shape[axis + 1 :]), x.dtype)
    for row in np.ndindex(*x.shape[:axis]):
        at = 0
        for i, n in enumerate(lengths[row]):
            run = x[row][at : at + n]
            own = [] if initial is None else [np.full(x.shape[axis + 1 :], initial, x.dtype)]
            out[(*row, i)] = combine([*run, *own], axis=0) / (n if reduce == "mean" else 1) if n else start
            at += n
    return out


def segments(r: Rng) -> list[Sample]:
    one, rows = np.array([2, 0, 4]), np.array([[1, 2, 0], [0, 0, 3]])
    made = [S(r.distinct(6, 2), how, lengths=one, initial=0.55) for how in RUNS]
    # An empty run may be infinite or nan, of which there are no finite differences.
    made += [S(r.distinct(6, 2), how, lengths=one, grad=how in ("sum", "prod")) for how in RUNS]
    made += [S(r.distinct(6, 2), how, lengths=np.array([2, 4])) for how in RUNS]
    made += [S(r.distinct(2, 3, 2), how, lengths=rows, axis=1) for how in ("sum", "prod")]
    return [
        *made,
        S(r.distinct(6), "sum", offsets=np.array([0, 5, 6])),
        S(r.distinct(6), "mean", lengths=one[::2]),
    ]


def renorm(x, p, dim, maxnorm):
    others = tuple(i for i in range(x.ndim) if i != dim)
    norms = (np.abs(x) ** p).sum(others, keepdims=True) ** (1 / p)
    return np.where(norms > maxnorm, x * maxnorm / norms, x)


INF = float("inf")
ROWS = [
    Op(
        "segment_reduce",
        segments,
        segment_reduce,
        dtypes=WIDE,
        tol={"float32": (1e-5, 1e-5)},
        errors=(
            E("RuntimeError", np.ones(6), "sum", lengths=np.array([2, 2]), match="to sum to 6"),
            E("RuntimeError", np.ones(6), "sum", lengths=np.array([7, -1]), match="negative"),
            E("RuntimeError", np.ones(6), "sum", match="Either lengths or offsets"),
            E("RuntimeError", np.ones(6), "x", lengths=np.array([6]), match="Unsupported reduction"),
        ),
    ),
    Op(
        "scatter_reduce",
        scattered,
        scatter_reduce,
        dtypes=(*WIDE, "int64"),
        method=True,
        tol={"float32": (1e-5, 1e-5)},
        errors=(
            E(
                "RuntimeError",
                np.ones((2, 2)),
                0,
                np.zeros((2, 2), int),
                np.ones((2, 2)),
                "x",
                match="reduce",
            ),
        ),
        out=True,
        inplace="scatter_reduce_",
    ),
    Op(
        "index_reduce",
        lambda r: [
            S(r.distinct(4, 3), 0, r.index(5, high=4), r.distinct(5, 3) + 0.013, how)
            for how in ("prod", "mean", "amax", "amin")
        ],
        index_reduce,
        dtypes=WIDE,
        method=True,
        tol={"float32": (1e-5, 1e-5)},
        errors=(
            E("RuntimeError", np.ones((2, 2)), 0, np.zeros(2, int), np.ones((2, 2)), "sum", match="reduce"),
        ),
        out=True,
        inplace="index_reduce_",
    ),
    Op(
        "slice_scatter",
        lambda r: [S(r(5, 3), r(2, 3), 0, 1, 5, 2), S(r(3, 5), r(3, 2), 1, 1, 3), S(r(4), r(4))],
        placed(lambda dim=0, start=None, end=None, step=1: (slice(None),) * dim + (slice(start, end, step),)),
        dtypes=NUMERIC,
        method=True,
        exact=True,
        errors=(E("RuntimeError", np.ones(4), np.ones(3), match="expected src to have a size"),),
        out=True,
    ),
    Op(
        "select_scatter",
        lambda r: [S(r(5, 3), r(3), 0, 2), S(r(3, 5), r(3), 1, -1)],
        placed(lambda dim, index: (slice(None),) * dim + (index,)),
        dtypes=NUMERIC,
        method=True,
        exact=True,
        errors=(E("RuntimeError", np.ones((2, 2)), np.ones(3), 0, 0, match="expected src to have a size"),),
        out=True,
    ),
    Op(
        "diagonal_scatter",
        lambda r: [S(r(3, 3), r(3)), S(r(3, 5), r(3), 1)],
        diagonal_scatter,
        dtypes=NUMERIC,
        method=True,
        exact=True,
        errors=(E("RuntimeError", np.ones((2, 2)), np.ones(3), match="expected src to have a size"),),
        out=True,
    ),
    Op(
        "kron",
        lambda r: [S(r(2, 3), r(3, 2)), S(r(3), r(2, 2)), S(r(2, 1, 2), r(2))],
        np.kron,
        dtypes=NUMERIC,
        method=True,
        out=True,
    ),
    Op(
        "addr",
        lambda r: [S(r(3, 2), r(3), r(2)), S(r(2), r(3), r(2), beta=2, alpha=3)],
        lambda x, a, b, beta=1, alpha=1: beta * x + alpha * np.outer(a, b),
        dtypes=WIDE,
        method=True,
        out=True,
    ),
    Op(
        "renorm",
        lambda r: [S(r(4, 3), 2.0, 0, 1.0), S(r(2, 3, 2), 1.0, 1, 0.5)],
        renorm,
        dtypes=WIDE,
        method=True,
        tol={"float64": (1e-6, 1e-6), "float32": (1e-5, 1e-5)},
        errors=(E("RuntimeError", np.ones((2, 2)), 2.0, 0, -1.0),),
        out=True,
    ),
    Op(
        "cov",
        lambda r: [S(r(3, 6)), S(r(5)), S(r(2, 4), correction=0)],
        lambda x, correction=1: np.asarray(np.cov(x, ddof=correction)),
        dtypes=WIDE,
        method=True,
        errors=(E("RuntimeError", np.ones((2, 2, 2))),),
    ),
    Op(
        "corrcoef",
        lambda r: [S(r(3, 6))],
        np.corrcoef,
        dtypes=WIDE,
        method=True,
        layouts=("transposed", "stepped", "offset"),  # equal rows have no correlation
        grad=False,  # clamped at the ends, where the diagonal lies
    ),
    Op(
        "cumulative_trapezoid",
        lambda r: [S(r(3, 5)), S(r(3, 5), dx=0.5, dim=0)],
        lambda y, dx=1, dim=-1: np.cumsum((np.delete(y, 0, dim) + np.delete(y, -1, dim)) / 2 * dx, axis=dim),
        dtypes=WIDE,
    ),
    Op(
        "nanquantile",
        lambda r: [S(r.distinct(7), 0.3), S(r.distinct(3, 5), 0.75, 1)],
        lambda x, q, dim=None: np.asarray(np.nanquantile(x, q, axis=dim)),
        dtypes=WIDE,
        method=True,
        out=True,
    ),
    Op(
        "msort",
        lambda r: [S(r.distinct(5, 2)), S(r.distinct(6))],
        lambda x: np.sort(x, 0),
        dtypes=NUMERIC,
        method=True,
        exact=True,
        out=True,
    ),
    *(
        Op(
            name,
            lambda r: [
                S(r.index(3, 4, high=30), r.index(4, high=30)),
                S(r.index(5, high=9), r.index(5, high=9)),
            ],
            ref,
            dtypes=INTS,
            result="int64",
            grad=False,
            method=True,
            out=True,
            inplace=name + "_",
        )
        for name, ref in (("gcd", np.gcd), ("lcm", np.lcm))
    ),
    *(
        Op(
            f"special.{name}",
            lambda r: [S(r.positive(3, 4)), S(r.positive(5))],
            ref,
            dtypes=WIDE,
            python=True,
            tol={"float64": (1e-10, 1e-12), "float32": (1e-5, 1e-5)},
            errors=(),
        )
        for name, ref in (
            ("entr", special.entr),
            ("ndtr", special.ndtr),
        )
    ),
    *(
        Op(
            f"special.{name}",
            lambda r: [S(r(3, 4, low=-9, high=9)), S(r(5)), S(np.array([19.9, -20.1, 25.0]), only=WIDE)],
            ref,
            result="float",
            out=True,
            python=True,
            tol={"float64": (1e-12, 1e-14), "float32": (4e-6, 1e-6)},
        )
        for name, ref in (("i0", special.i0), ("i0e", special.i0e), ("i1", special.i1), ("i1e", special.i1e))
    ),
    Op(
        "special.ndtri",
        lambda r: [
            S(r.prob(3, 4)),
            S(np.array([0.0, 1e-30, 0.019, 0.021, 0.99, 1.0]), only=WIDE, grad=False),
        ],
        special.ndtri,
        result="float",
        out=True,
        python=True,
        tol={"float64": (1e-12, 1e-14), "float32": (4e-6, 1e-6)},
    ),
    *(
        Op(
            name,
            lambda r: [
                S(r.positive(3, 4, high=20), r.positive(3, 4, high=20)),
                S(r.positive(3, 1), r.positive(4)),
                S(
                    np.array([0.0, 2.0, 0.0, 3.0, 100.0, 200.0]),
                    np.array([2.0, 0.0, 1.0, INF, 90.0, 210.0]),
                    grad=False,
                ),
                S(np.array([1e-3, 0.2, 0.9, -1.0]), np.array([0.5, 1e-3, 1.0, 1.0]), grad=False),
            ],
            ref,
            aliases=(alias, f"Tensor.{name}_"),
            method=True,
            out=True,
            nograd=(0,),
            tol={"float64": (2e-12, 1e-15), "float32": (1e-5, 1e-6)},
            # PyTorch's are of less precision in float64 and round in between in half precision.
            peer=("values", "layouts"),
        )
        for name, ref, alias in (
            ("igamma", special.gammainc, "special.gammainc"),
            ("igammac", special.gammaincc, "special.gammaincc"),
        )
    ),
    Op(
        "i0",
        lambda r: [S(r(3, 4)), S(r(5, low=-30.0, high=30.0), grad=False), S(r())],
        special.i0,
        result="float",
        aliases=("special.i0",),
        method=True,
        inplace="i0_",
        out=True,
        tol={"float32": (1e-5, 1e-5)},
    ),
    Op(
        "special.xlog1py",
        lambda r: [S(r(3, 4), r.positive(4)), S(r(5), 0.75), S(1.5, r.positive(5))],
        special.xlog1py,
        result="float",
        out=True,
        python=True,
    ),
]
