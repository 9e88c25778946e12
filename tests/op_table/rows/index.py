"""Indexing: get, set, gather, scatter, masks, and the ops that exist in place only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..table import ALL, FLOATS, NUMERIC, E, Op, Rng, S, Sample

MOVE: dict[str, Any] = {"dtypes": ALL, "exact": True, "method": True}
ONES = np.ones((2, 3))
INDEX = np.array([[0, 1, 2], [0, 1, 2]])
FLOAT_INDEX = np.ones((2, 3), np.float32)  # kept as float32: an index of the wrong kind


def getitem(rt: Any, x: Any, *key: Any) -> Any:
    return x[key[0] if len(key) == 1 else tuple(key)]


def get_samples(r: Rng) -> list[Sample]:
    """One key a sample; several are a tuple."""
    i = r.index
    cases = [
        S(r(4, 5), 1),
        S(r(4, 5), -1),
        S(r(4, 5), 1, 2),
        S(r(4, 5), slice(1, 3)),
        S(r(4, 5), slice(None, None, 2)),
    ]
    cases += [
        S(r(4, 5), None),
        S(r(4, 5), Ellipsis, 0),
        S(r(4, 5), slice(None), slice(-3, None)),
        S(r(), Ellipsis),
    ]
    cases += [
        S(r(2, 3, 4), 0, Ellipsis, 1),
        S(r(4), slice(3, 1)),
        S(r(2, 3), 1, None, slice(0, 2)),
        S(r(), None),
    ]
    cases += [S(r(4, 5), i(3, high=4)), S(r(4, 5), i(2, 2, high=4)), S(r(4, 5), i(3, high=4), i(3, high=5))]
    cases += [
        S(r(4, 5), i(3, 1, high=4), i(2, high=5)),
        S(r(4, 5), slice(None), i(3, high=5)),
        S(r(4, 5), -1 - i(2, high=4)),
    ]
    cases += [S(r(2, 3, 4), i(2, high=2), slice(None), i(2, high=4)), S(r(2, 3, 4), Ellipsis, i(2, high=4))]
    cases += [
        S(r(2, 3, 4), slice(None), i(2, high=3), i(2, high=4)),
        S(r(2, 3, 4), 1, i(2, high=3)),
        S(r(4, 5), i(0, high=1)),
    ]
    cases += [S(r(4, 5), [0, 2]), S(r(4, 5), [0, 2], [1, 3]), S(r(2, 3, 4), 0, slice(None), i(2, high=4))]
    return [*cases, S(r(3, 4), True), S(r(3, 4), False), S(r(4, 5), slice(None), 1, None)]


def mask_samples(r: Rng) -> list[Sample]:
    """Keys whose result's shape depends on data."""
    mask = r.mask
    cases = [
        S(r(4, 5), mask(4, 5)),
        S(r(4, 5), mask(4)),
        S(r(4, 5), slice(None), mask(5)),
        S(r(2, 3), np.zeros((2, 3), bool)),
    ]
    return [*cases, S(r(2, 3, 4), mask(2, 3)), S(r(3, 4), mask(3), 1), S(r(2, 3, 4), mask(2), slice(None), 1)]


def get(x: np.ndarray, *key: Any) -> np.ndarray:
    """NumPy's indexing, but an integer beside index arrays is a plain select, as in PyTorch."""
    used = sum(consumed(one) for one in key)
    full: list[Any] = []
    for one in key:
        full += [slice(None)] * (x.ndim - used) if one is Ellipsis else [one]
    rest: list[Any] = []
    axis = 0
    for one in full:
        if isinstance(one, int) and not isinstance(one, bool):
            x = np.take(x, one, axis)
        else:
            rest.append(one)
            axis += consumed(one)
    return np.asarray(x[tuple(rest)])


def consumed(one: Any) -> int:
    """How many dimensions one part of a key uses up."""
    if isinstance(one, np.ndarray) and one.dtype == bool:
        return one.ndim
    return 0 if one is None or one is Ellipsis or isinstance(one, bool) else 1


def setitem(rt: Any, x: Any, value: Any, *key: Any) -> Any:
    y = x.clone()
    y[key[0] if len(key) == 1 else tuple(key)] = value
    return y


def set_ref(x: np.ndarray, value: Any, *key: Any) -> np.ndarray:
    y = x.copy()
    y[key[0] if len(key) == 1 else tuple(key)] = value
    return y


def set_samples(r: Rng) -> list[Sample]:
    i = r.index
    cases = [
        S(r(4, 5), 2, 1),
        S(r(4, 5), r(5), 1),
        S(r(4, 5), r(2, 5), slice(0, 4, 2)),
        S(r(4, 5), r(1, 5), slice(1, 3)),
    ]
    cases += [
        S(r(4, 5), r(), Ellipsis),
        S(r(4, 5), 1, 2, -1),
        S(r(4, 5), r(3, 5), np.array([2, 0, 3])),
        S(r(), 3, Ellipsis),
    ]
    cases += [
        S(r(4, 5), r(3), np.array([2, 0, 3]), np.array([1, 0, 4])),
        S(r(4, 5), r(4, 2), slice(None), np.array([0, 3])),
    ]
    cases += [
        S(r(4, 5), 1, i(4, high=4)),
        S(r(4, 5), 1, r.mask(4, 5)),
        S(r(4, 5), 1, r.mask(4)),
        S(r(4, 5), r(5), r.mask(4)),
    ]
    mask = np.array([[True, False, True], [False, True, False]])
    return [*cases, S(r(2, 3), r(3), mask), S(r(2, 3), r(1, 2, 3), None, slice(None)), S(r(4), r(), 2)]


def gather(x: np.ndarray, dim: int, index: np.ndarray) -> np.ndarray:
    if x.ndim == 0:
        return np.asarray(x)
    place = list(np.indices(index.shape))
    place[dim] = index
    return x[tuple(place)] if index.size else np.zeros(index.shape, x.dtype)


def gather_samples(r: Rng) -> list[Sample]:
    cases = [
        S(r(3, 4), 0, r.index(2, 4, high=3)),
        S(r(3, 4), 1, r.index(3, 6, high=4)),
        S(r(3, 4), -1, r.index(2, 2, high=4)),
    ]
    return [
        *cases,
        S(r(2, 3, 4), 1, r.index(2, 5, 3, high=3)),
        S(r(), 0, r.index(high=1)),
        S(r(3, 4), 0, r.index(0, 4, high=1)),
    ]


def scatter(x: np.ndarray, dim: int, index: np.ndarray, src: Any, add: bool = False) -> np.ndarray:
    y = x.copy()
    for place in np.ndindex(index.shape):
        to = list(place)
        to[dim] = index[place]
        value = src[place] if isinstance(src, np.ndarray) else src
        y[tuple(to)] = y[tuple(to)] + value if add else value
    return y


def unique_index(r: Rng, shape: tuple[int, int], high: int) -> np.ndarray:
    """Along dim 1 without repeats, so that the result does not depend on the order of writes."""
    return np.stack([r.np.permutation(high)[: shape[1]] for _ in range(shape[0])])


def scatter_samples(r: Rng) -> list[Sample]:
    cases = [
        S(r(3, 6), 1, unique_index(r, (3, 4), 6), r(3, 4)),
        S(r(3, 6), 1, unique_index(r, (2, 3), 6), r(3, 5), grad=False),
    ]
    return [
        *cases,
        S(r(6, 3), 0, unique_index(r, (3, 4), 6).T.copy(), r(4, 3)),
        S(r(3, 6), 1, unique_index(r, (3, 2), 6), 2),
    ]


def scatter_add_samples(r: Rng) -> list[Sample]:
    cases = [S(r(3, 4), 1, r.index(3, 6, high=4), r(3, 6)), S(r(3, 4), 0, r.index(5, 4, high=3), r(5, 4))]
    return [
        *cases,
        S(r(3, 4), -1, r.index(2, 3, high=4), r(3, 4), grad=False),
        S(r(5), 0, r.index(9, high=5), r(9)),
    ]


def index_add(x: np.ndarray, dim: int, index: np.ndarray, source: np.ndarray, alpha: float = 1) -> np.ndarray:
    y = np.moveaxis(x.astype(np.int64) if x.dtype == bool else x.copy(), dim, 0)
    np.add.at(y, index, alpha * np.moveaxis(source, dim, 0))
    return np.moveaxis(y, 0, dim)


def index_write(x: np.ndarray, dim: int, index: np.ndarray, source: Any) -> np.ndarray:
    if not x.ndim:
        return np.full_like(x, source)
    y = np.moveaxis(x.copy(), dim, 0)
    y[index] = np.moveaxis(source, dim, 0) if isinstance(source, np.ndarray) and source.ndim else source
    return np.moveaxis(y, 0, dim)


def masked_fill(x: np.ndarray, mask: np.ndarray, value: Any) -> np.ndarray:
    return np.where(mask, value, x)


def masked_scatter(x: np.ndarray, mask: np.ndarray, source: np.ndarray) -> np.ndarray:
    y, mask = x.copy(), np.broadcast_to(mask, x.shape)
    y[mask] = source.ravel()[: mask.sum()]
    return y


def nonzero_static(x: np.ndarray, *, size: int, fill_value: int = -1) -> np.ndarray:
    out = np.full((size, x.ndim), fill_value)
    found = np.stack(np.nonzero(x), -1) if x.ndim else np.zeros((int(x != 0), 0))
    out[: len(found)] = found[:size]
    return out


def nonzero_samples(r: Rng) -> list[Sample]:
    x = r(3, 4)
    x[r.mask(3, 4)] = 0
    return [S(x), S(r()), S(np.zeros((2, 2))), S(np.zeros((0, 3))), S(np.array([0.0, 1.0, 2.0]))]


def applied(name: str) -> Callable[..., Any]:
    """An op that exists in place only, on a copy."""
    return lambda rt, x, *args, **kwargs: getattr(x.clone(), name)(*args, **kwargs)


def only_inplace(
    name: str, samples: Callable[[Rng], list[Sample]], ref: Callable[..., Any], *errors: Any, **more: Any
) -> Op:
    """A row for Tensor.name, which has no twin out of place."""
    return Op(
        "Tensor." + name,
        samples,
        ref,
        applied(name),
        errors=errors,
        **({"dtypes": ALL, "exact": True, "inplace": name} | more),
    )


def fill_diagonal(x: np.ndarray, value: float) -> np.ndarray:
    y = x.copy()
    np.fill_diagonal(y, value)
    return y


BAD_GATHER = (
    E("IndexError", ONES, 2, INDEX),
    E("RuntimeError", ONES, 1, INDEX + 1),
    E("RuntimeError", ONES, 1, -1 - INDEX),
    E("RuntimeError", ONES, 1, INDEX[0]),
    E("RuntimeError", ONES, 1, FLOAT_INDEX),
)
INDEXING = r"index|getitem|select|slice"

ROWS = [
    Op(
        "Tensor.__getitem__",
        get_samples,
        get,
        getitem,
        dtypes=ALL,
        exact=True,
        meta=True,
        errors=(
            E("IndexError", ONES, 2, match=INDEXING),
            E("IndexError", ONES, -3, match=INDEXING),
            E("IndexError", ONES, 0, 0, 0, match=INDEXING),
            E("IndexError", ONES, np.array([0, 2]), match=INDEXING),
            E("IndexError", ONES, np.array([-3]), match=INDEXING),
            E("IndexError", ONES, np.ones((3, 3), bool), match=INDEXING),
            E("IndexError", ONES, np.array([0, 1]), np.array([0, 1, 2]), match=INDEXING),
            E("IndexError", ONES, 1.5, match=INDEXING),
            E("IndexError", ONES, FLOAT_INDEX, match=INDEXING),
            E("ValueError", ONES, slice(None, None, -1), match="step"),
        ),
    ),
    Op(
        "Tensor.__getitem__",
        lambda r: [S(r(3, 2), np.array(1)), S(r(3), np.array(-1))],
        get,
        getitem,
        label="Tensor.__getitem__, 0-dim index",
        dtypes=ALL,
        exact=True,
        meta=None,
    ),
    Op(
        "Tensor.__getitem__",
        mask_samples,
        get,
        getitem,
        label="Tensor.__getitem__, masks",
        dtypes=ALL,
        exact=True,
        meta=False,
    ),
    Op(
        "Tensor.__setitem__",
        set_samples,
        set_ref,
        setitem,
        dtypes=ALL,
        exact=True,
        layouts=("transposed", "stepped", "offset"),
        errors=(
            E("IndexError", ONES, 1.0, 2, match=INDEXING + "|setitem"),
            E("ShapeError", ONES, np.ones(4), 0, match=INDEXING + "|setitem|copy_|expand"),
            E("IndexError", ONES, 1.0, np.array([5]), match=INDEXING + "|setitem"),
            E(
                "ShapeError",
                ONES,
                np.ones(3),
                np.array([0, 1]),
                slice(0, 2),
                match=INDEXING + "|setitem|copy_|expand",
            ),
        ),
    ),
    Op("gather", gather_samples, gather, out=True, errors=BAD_GATHER, **MOVE),
    Op(
        "scatter",
        scatter_samples,
        scatter,
        inplace="scatter_",
        out=True,
        layouts=("transposed", "stepped", "offset"),
        errors=(
            E("IndexError", ONES, 2, INDEX, ONES),
            E("RuntimeError", ONES, 1, INDEX + 1, ONES),
            E("RuntimeError", ONES, 1, INDEX, np.ones((2, 2))),
        ),
        **MOVE,
    ),
    Op(
        "scatter_add",
        scatter_add_samples,
        lambda x, d, i, s: scatter(x, d, i, s, add=True),
        dtypes=NUMERIC,
        method=True,
        inplace="scatter_add_",
        out=True,
        errors=(E("RuntimeError", ONES, 1, INDEX + 1, ONES), E("IndexError", ONES, 2, INDEX, ONES)),
        tol={"bfloat16": (4e-2, 4e-2), "float16": (5e-3, 5e-3)},
    ),
    Op(
        "index_select",
        lambda r: [
            S(r(3, 4), 0, r.index(5, high=3)),
            S(r(3, 4), 1, r.index(2, high=4)),
            S(r(2, 3, 4), -2, r.index(4, high=3)),
            S(r(3), 0, r.index(0, high=1)),
        ],
        lambda x, d, i: np.take(x, i, d),
        out=True,
        errors=(
            E("IndexError", ONES, 0, np.array([2])),
            E("IndexError", ONES, 0, np.array([-1])),
            E("IndexError", ONES, 2, np.array([0])),
            E("IndexError", ONES, 0, np.array([[0]])),
            E("RuntimeError", ONES, 0, FLOAT_INDEX[0]),
        ),
        **MOVE,
    ),
    Op(
        "index_add",
        lambda r: [
            S(r(3, 4), 0, r.index(5, high=3), r(5, 4)),
            S(r(3, 4), 1, r.index(2, high=4), r(3, 2)),
            S(r(3, 4), 0, r.index(2, high=3), r(2, 4), alpha=2),
        ],
        index_add,
        dtypes=NUMERIC,
        method=True,
        inplace="index_add_",
        out=True,
        errors=(
            E("RuntimeError", ONES, 0, np.array([2]), np.ones((1, 3))),
            E("IndexError", np.ones(2), 0, np.array([2]), np.ones(1)),
            E("RuntimeError", ONES, 0, np.array([-1]), np.ones((1, 3))),
            E("RuntimeError", ONES, 0, np.array([0]), np.ones((2, 3))),
        ),
        tol={"bfloat16": (4e-2, 4e-2), "float16": (5e-3, 5e-3)},
    ),
    Op(
        "index_copy",
        lambda r: [
            S(r(3, 4), 0, np.array([2, 0]), r(2, 4)),
            S(r(3, 4), 1, np.array([1]), r(3, 1)),
            S(r(), 0, np.array([0]), r()),
        ],
        index_write,
        inplace="index_copy_",
        out=True,
        errors=(E("IndexError", ONES, 0, np.array([2]), np.ones((1, 3))),),
        **MOVE,
    ),
    Op(
        "index_fill",
        lambda r: [
            S(r(3, 4), 0, np.array([2, 0]), 3),
            S(r(3, 4), 1, np.array([1, 3]), 0),
            S(r(), 0, np.array([0]), 3),
        ],
        index_write,
        inplace="index_fill_",
        errors=(E("IndexError", ONES, 0, np.array([2]), 1.0),),
        **MOVE,
    ),
    Op(
        "index_put",
        lambda r: [
            S(r(3, 4), (np.array([2, 0]),), r(2, 4)),
            S(r(3, 4), (np.array([2, 0]), np.array([1, 3])), r(2)),
        ],
        lambda x, i, v: set_ref(x, v, *i),
        inplace="index_put_",
        layouts=("transposed", "stepped", "offset"),
        **MOVE,
    ),
    Op(
        "index_put",
        lambda r: [S(r(3, 4), (r.index(6, high=3),), r(6, 4), accumulate=True)],
        lambda x, i, v, accumulate: index_add(x, 0, i[0], v),
        label="index_put, accumulate",
        method=True,
        inplace="index_put_",
        dtypes=("float64", "float32", "int64"),
    ),
    Op(
        "masked_fill",
        lambda r: [
            S(r(3, 4), r.mask(3, 4), 2),
            S(r(3, 4), r.mask(4), 0),
            S(r(2, 3, 4), r.mask(3, 1), 1),
            S(r(), r.mask(), 1),
            S(r(3, 4), r.mask(3, 4), r()),
        ],
        masked_fill,
        inplace="masked_fill_",
        errors=(
            E("ShapeError", ONES, np.ones(2, bool), 0.0),
            E("RuntimeError", ONES, np.ones((2, 3), np.int64), 0.0),
        ),
        **MOVE,
    ),
    Op(
        "masked_fill",
        lambda r: [S(r(3, 4), r.mask(3, 4), float("-inf"), grad=False)],
        masked_fill,
        label="masked_fill, -inf",
        dtypes=FLOATS,
        method=True,
        grad=False,
    ),
    Op(
        "masked_select",
        lambda r: [
            S(r(3, 4), r.mask(3, 4)),
            S(r(3, 4), r.mask(4)),
            S(r(3), r.mask(2, 3)),
            S(r(2), np.zeros(2, bool)),
        ],
        lambda x, m: np.broadcast_arrays(x, m)[0][np.broadcast_arrays(x, m)[1]],
        errors=(E("ShapeError", ONES, np.ones(2, bool)), E("RuntimeError", ONES, np.ones((2, 3), np.int64))),
        **(MOVE | {"meta": False}),
    ),
    Op(
        "masked_scatter",
        lambda r: [S(r(3, 4), r.mask(3, 4), r(12))],
        masked_scatter,
        inplace="masked_scatter_",
        layouts=("transposed", "stepped", "offset"),
        **MOVE,
    ),
    Op(
        "take",
        lambda r: [S(r(3, 4), r.index(2, 3, high=12)), S(r(3, 4), np.array([-1]))],
        lambda x, i: x.ravel()[i],
        errors=(E("IndexError", ONES, np.array([6])),),
        **MOVE,
    ),
    Op(
        "take_along_dim",
        lambda r: [
            S(r(3, 4), r.index(3, 2, high=4), 1),
            S(r(3, 4), r.index(1, 4, high=3), 0),
            S(r(3, 4), r.index(5, high=12)),
            S(r(3, 4), r.index(3, 2, low=-4, high=4), 1),
        ],
        lambda x, i, d=None: np.take_along_axis(x, i, d),
        errors=(E("RuntimeError", ONES, FLOAT_INDEX, 1),),
        peer=("layouts", "gradient_layout"),
        **MOVE,
    ),
    Op(
        "nonzero",
        nonzero_samples,
        lambda x: np.stack(np.nonzero(x), -1) if x.ndim else np.zeros((int(x != 0), 0)),
        dtypes=ALL,
        result="int64",
        grad=False,
        method=True,
        meta=False,
    ),
    Op(
        "nonzero_static",
        lambda r: [S(one.args[0], size=size) for one in nonzero_samples(r) for size in (0, 2, 40)],
        nonzero_static,
        dtypes=ALL,
        result="int64",
        grad=False,
        method=True,
        out=True,
        errors=(E("RuntimeError", ONES, size=-1),),
    ),
    Op(
        "nonzero",
        lambda r: [
            s for s in (S(one.args[0], as_tuple=True) for one in nonzero_samples(r)) if s.args[0].ndim
        ],
        lambda x, as_tuple: tuple(np.nonzero(x)),
        label="nonzero, as_tuple",
        dtypes=ALL,
        result="int64",
        grad=False,
        method=True,
        meta=False,
    ),
    Op(
        "argwhere",
        nonzero_samples,
        lambda x: np.stack(np.nonzero(x), -1) if x.ndim else np.zeros((int(x != 0), 0)),
        result="int64",
        grad=False,
        method=True,
        meta=False,
    ),
    Op(
        "where",
        lambda r: [S(r.mask(3, 4)), S(r.mask(5))],
        lambda c: tuple(np.nonzero(c)),
        label="where, condition alone",
        dtypes=("bool",),
        result="int64",
        grad=False,
        meta=False,
    ),
    only_inplace(
        "copy_",
        lambda r: [S(r(3, 4), r(3, 4)), S(r(3, 4), r(4)), S(r(2, 2), r()), S(r(0, 2), r(2))],
        lambda x, y: np.broadcast_to(y, x.shape),
        E("ShapeError", ONES, np.ones(4)),
        layouts=("transposed", "stepped", "offset"),
    ),
    only_inplace(
        "fill_",
        lambda r: [S(r(3, 37), 2), S(r(), 0), S(r(0, 2), 1), S(r(2, 3), r())],
        lambda x, v: np.full_like(x, v),
        E("RuntimeError", ONES, np.ones(2)),
    ),
    only_inplace("zero_", lambda r: [S(r(3, 37)), S(r()), S(r(0, 2))], np.zeros_like),
    only_inplace(
        "fill_diagonal_",
        lambda r: [S(r(3, 4), 2), S(r(3, 3), 0)],
        fill_diagonal,
        E("RuntimeError", np.ones(3), 1),
    ),
    only_inplace(
        "resize_",
        lambda r: [S(r(3, 4), (2, 3)), S(r(6), (2, 3))],
        lambda x, size: np.resize(x, size),
        grad=False,
        inplace=None,
        layouts=(),
    ),
]
