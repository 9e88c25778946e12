"""Sorting and searching."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..table import NUMERIC, E, Op, Rng, S, Sample

# Values differ in every dtype, so that the order of equal values is not asked about here.
COMMON: dict[str, Any] = {"dtypes": NUMERIC, "exact": True, "layouts": ("transposed", "stepped", "offset")}
ONES = np.ones((2, 3))


def order(x: np.ndarray, dim: int = -1, descending: bool = False, stable: bool = False) -> np.ndarray:
    if x.ndim == 0:
        return np.zeros((), np.int64)
    return np.argsort(-x if descending else x, axis=dim, kind="stable")


def sort(
    x: np.ndarray, dim: int = -1, descending: bool = False, stable: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    index = order(x, dim, descending)
    return (np.take_along_axis(x, index, dim) if x.ndim else x), index


def topk(
    x: np.ndarray, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    index = np.take(order(x, dim, largest), range(k), axis=dim)
    return np.take_along_axis(x, index, dim), index


def kthvalue(x: np.ndarray, k: int, dim: int = -1, keepdim: bool = False) -> tuple[np.ndarray, np.ndarray]:
    index = np.take(order(x, dim), [k - 1], axis=dim)
    value = np.take_along_axis(x, index, dim)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


def sort_samples(r: Rng) -> list[Sample]:
    d = r.distinct
    cases = [
        S(d(9)),
        S(d(3, 5)),
        S(d(3, 5), 0),
        S(d(3, 5), 1, True),
        S(d(3, 5), dim=0, descending=True),
        S(d(2, 41)),
    ]
    return [*cases, S(d()), S(d(0, 3)), S(d(2, 3, 4), 1)]


def ties(r: Rng) -> list[Sample]:
    values = r.index(3, 20, high=4).astype(np.float64)
    return [S(values, stable=True), S(values, stable=True, dim=0), S(values, stable=True, descending=True)]


def unique(
    x: np.ndarray,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    values, inverse, counts = np.unique(x, return_inverse=True, return_counts=True, axis=dim)
    inverse = inverse.reshape(x.shape if dim is None else -1)
    found = [values] + [inverse] * return_inverse + [counts] * return_counts
    return tuple(found) if len(found) > 1 else values


def unique_samples(r: Rng) -> list[Sample]:
    values = r.index(3, 5, high=4).astype(np.float64)
    twins = r.index(3, 6, 2, high=2).astype(np.float64)
    return [
        S(values),
        S(twins, dim=1),
        S(values, return_inverse=True),
        S(values, return_counts=True),
        S(twins, return_inverse=True, dim=-1),
        S(values, True, True, True),
        S(twins, True, True, True, dim=0),
    ]


def sorted_values(r: Rng, *shape: int) -> np.ndarray:
    return np.sort(r.distinct(*shape), -1)


def searchsorted(
    a: np.ndarray, v: np.ndarray, right: bool = False, side: str = "left", sorter: Any = None
) -> np.ndarray:
    side = "right" if right else side
    if a.ndim == 1:
        return np.searchsorted(a, v, side, sorter)
    return np.stack([np.searchsorted(x, y, side) for x, y in zip(a, v, strict=True)])


ROWS = [
    Op(
        "sort",
        sort_samples,
        sort,
        result=("same", "int64"),
        method=True,
        errors=(E("IndexError", ONES, 2), E("IndexError", ONES, -3)),
        **COMMON,
    ),
    Op(
        "sort",
        ties,
        sort,
        label="sort, stable with ties",
        result=("same", "int64"),
        method=True,
        grad=False,
        **COMMON,
    ),
    Op(
        "sort",
        lambda r: [S(np.array([2.0, np.nan, -1.0, np.inf, np.nan, -np.inf]))],
        lambda x: sort(x)[0],
        label="sort, nan",
        call=lambda rt, x: rt.sort(x)[0],
        grad=False,
        exact=True,
        layouts=(),
    ),
    Op(
        "argsort",
        sort_samples,
        order,
        result="int64",
        grad=False,
        method=True,
        errors=(E("IndexError", ONES, 2),),
        **COMMON,
    ),
    Op(
        "topk",
        lambda r: [
            S(r.distinct(9), 3),
            S(r.distinct(3, 5), 2),
            S(r.distinct(3, 5), 2, 0),
            S(r.distinct(3, 5), 3, largest=False),
            S(r.distinct(2, 43), 7),
            S(r.distinct(3, 4), 4),
            S(r.distinct(3, 4), 0),
            S(r.distinct(), 1),
        ],
        topk,
        result=("same", "int64"),
        method=True,
        errors=(E("RuntimeError", ONES, 4), E("RuntimeError", ONES, -1), E("IndexError", ONES, 1, 2)),
        **COMMON,
    ),
    Op(
        "kthvalue",
        lambda r: (
            [S(r.distinct(9), 3), S(r.distinct(3, 5), 2, 0), S(r.distinct(3, 5), 5, 1, True)]
            + [S(r.distinct(2, 41), 39, 1)]
        ),
        kthvalue,
        result=("same", "int64"),
        method=True,
        errors=(E("RuntimeError", ONES, 4),),
        **COMMON,
    ),
    Op(
        "unique",
        lambda r: unique_samples(r)[:2],
        unique,
        dtypes=NUMERIC,
        exact=True,
        grad=False,
        method=True,
        meta=False,
    ),
    Op(
        "unique",
        lambda r: unique_samples(r)[2:5],
        unique,
        label="unique, two results",
        dtypes=NUMERIC,
        result=("same", "int64"),
        exact=True,
        grad=False,
        method=True,
        meta=False,
    ),
    Op(
        "unique",
        lambda r: unique_samples(r)[5:],
        unique,
        label="unique, three results",
        dtypes=NUMERIC,
        result=("same", "int64", "int64"),
        exact=True,
        grad=False,
        method=True,
        meta=False,
    ),
    Op(
        "searchsorted",
        lambda r: [
            S(sorted_values(r, 7), r(2, 3)),
            S(sorted_values(r, 2, 5), r(2, 3)),
            S(sorted_values(r, 2, 5), r(2, 9)),
            S(sorted_values(r, 5), sorted_values(r, 5), right=True),
            S(sorted_values(r, 5), sorted_values(r, 5), side="right"),
            S(np.array([3.0, 1.0, 2.0]), r(4), sorter=np.array([1, 2, 0])),
        ],
        searchsorted,
        errors=(
            E("RuntimeError", np.ones(3), np.ones(2), side="middle"),
            E("RuntimeError", np.ones(3), np.ones(2), right=True, side="left"),
            E("RuntimeError", np.ones(3), np.ones(2), sorter=np.array([0, 1])),
        ),
        result="int64",
        grad=False,
        layouts=("offset",),
    ),
    Op(
        "bucketize",
        lambda r: [S(r(3, 4), sorted_values(r, 5)), S(r(5), sorted_values(r, 5), right=True)],
        lambda v, edges, right=False: np.searchsorted(edges, v, "right" if right else "left"),
        result="int64",
        grad=False,
        layouts=("offset",),
    ),
]
