"""The `*_copy` forms of views, from the views' own rows; and what else makes a tensor of another's values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..table import FLOATS, E, Op, S
from . import shape

ONES = np.ones((2, 3))
COPIED = ("permute", "transpose", "t", "squeeze", "unsqueeze", "select", "unbind", "diagonal", "as_strided")
MANY = ("unbind",)  # out= takes one tensor


def copy_row(row: Op, **changes: Any) -> Op:
    """The row of a view as that of its copy."""
    name = f"{row.short}_copy"
    plain: dict[str, Any] = {"view": False, "method": False, "inplace": None, "aliases": (), "label": name}
    return dataclasses.replace(row, name=name, out=row.short not in MANY, **(plain | changes))


def normed(x: np.ndarray, axes: tuple[int, ...], eps: float, keep: bool) -> tuple[np.ndarray, ...]:
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    rstd = 1 / np.sqrt(var + eps)
    statistics = (mean, rstd) if keep else (mean.squeeze(axes), rstd.squeeze(axes))
    return ((x - mean) * rstd, *statistics)


def native_layer_norm(
    x: np.ndarray, shape: Any, weight: Any, bias: Any, eps: float
) -> tuple[np.ndarray, ...]:
    out, mean, rstd = normed(x, tuple(range(-len(shape), 0)), eps, True)
    return out * (1 if weight is None else weight) + (0 if bias is None else bias), mean, rstd


def native_group_norm(
    x: np.ndarray, weight: Any, bias: Any, n: int, c: int, inner: int, group: int, eps: float
) -> tuple[np.ndarray, ...]:
    out, mean, rstd = normed(x.reshape(n, group, -1), (2,), eps, False)
    return out.reshape(x.shape), mean, rstd


def native_batch_norm(
    x: np.ndarray, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[np.ndarray, ...]:
    return normed(x, (0, 2), eps, False)


NORM: dict[str, Any] = {"grad": False, "dtypes": ("float32", "float64"), "layouts": ("offset",)}

ROWS = [
    Op(
        "constant_pad_nd",
        lambda r: [
            S(r(2, 3), (1, 2)),
            S(r(2, 4), (-1, 1), 7),
            S(r(2, 3, 4), (0, 2, -1, 3), 1.5, only=FLOATS),
        ],
        lambda x, width, value=0: shape.pad(x, width, "constant", value),
        errors=(E("RuntimeError", ONES, (1,)),),
    ),
    *(copy_row(row) for row in shape.ROWS if row.id in COPIED),
    Op(
        "split_with_sizes",
        lambda r: [S(r(5, 2), [2, 3]), S(r(2, 6), (1, 2, 3), 1), S(r(2, 6), [0, 6], -1)],
        shape.split,
        method=True,
        errors=(E("RuntimeError", ONES, [1, 1], 1), E("IndexError", ONES, [2], 2)),
        **shape.VIEW,
    ),
    Op(
        "split_with_sizes_copy",
        lambda r: [S(r(5, 2), [2, 3]), S(r(2, 6), (1, 2, 3), 1)],
        shape.split,
        out=True,
        errors=(E("RuntimeError", ONES, [1, 1], 1),),
        **shape.MOVE,
    ),
    Op("view_copy", lambda r: [S(r(2, 3), (3, 2))], np.reshape, out=True, layouts=("offset",), **shape.MOVE),
    Op("expand_copy", lambda r: [S(r(1, 3), (2, 3)), S(r(), (2,))], shape.expand, out=True, **shape.MOVE),
    Op("unfold_copy", lambda r: [S(r(7), 0, 3, 2)], shape.unfold, out=True, **shape.MOVE),
    Op("alias_copy", lambda r: [S(r(2, 3)), S(r())], np.copy, out=True, **shape.MOVE),
    Op("detach_copy", lambda r: [S(r(2, 3)), S(r())], np.copy, grad=False, out=True, **shape.MOVE),
    Op(
        "fill",
        lambda r: [S(r(2, 3), 2), S(r(), 0)],
        np.full_like,
        errors=(E("RuntimeError", ONES, np.ones(2), match="fill"),),
        **shape.MOVE,
    ),
    Op(
        "scalar_tensor",
        lambda r: [S(2), S(2.5), S(True)],
        lambda value: np.float32(value),
        grad=False,
        result="float32",
        dtypes=("float32",),
        factory=True,
    ),
    Op(
        "empty_permuted",
        lambda r: [S((2, 3, 4), (0, 2, 1)), S((), ()), S((2, 3), (1, 0))],
        None,
        check=lambda result, size, layout: np.testing.assert_equal(result.shape, size),
        grad=False,
        result="float32",
        dtypes=("float32",),
        factory=True,
        errors=(E("RuntimeError", (2, 3), (0,)), E("RuntimeError", (2, 3), (0, 0))),
    ),
    Op(
        "native_layer_norm",
        lambda r: [S(r(4, 3), (3,), None, None, 1e-5), S(r(2, 4, 3), (4, 3), r(4, 3), r(4, 3), 1e-3)],
        native_layer_norm,
        errors=(E("RuntimeError", ONES, (2,), None, None, 1e-5, match="layer_norm"),),
        **NORM,
    ),
    Op(
        "native_group_norm",
        lambda r: [S(r(2, 4, 3), None, None, 2, 4, 3, 2, 1e-5)],
        native_group_norm,
        **NORM,
    ),
    Op(
        "native_batch_norm",
        lambda r: [S(r(4, 2, 3), None, None, None, None, True, 0.1, 1e-5)],
        native_batch_norm,
        **NORM,
    ),
]
