"""Shapes and views, and ops that only move values: cat, stack, repeat, roll, flip, tril, diag, pad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..table import ALL, E, Op, Rng, S, Sample

MOVE: dict[str, Any] = {"dtypes": ALL, "exact": True}
VIEW: dict[str, Any] = MOVE | {"view": True}
RAGGED = ("offset", "stepped")  # layouts whose dimensions can still be merged or are of one piece
ONES = np.ones((2, 3))
ONE = np.ones(())


def view_op(
    name: str, samples: Callable[[Rng], list[Sample]], ref: Callable[..., Any], *errors: Any, **more: Any
) -> Op:
    """A row whose result aliases its argument."""
    return Op(name, samples, ref, errors=errors, **(VIEW | more))


def method_row(
    name: str, samples: Callable[[Rng], list[Sample]], ref: Callable[..., Any], *errors: Any, **more: Any
) -> Op:
    """A view that exists as a method only."""
    return view_op("Tensor." + name, samples, ref, *errors, **more)


def attribute(name: str, samples: Callable[[Rng], list[Sample]], ref: Callable[..., Any], **more: Any) -> Op:
    """A view that is a property."""
    return view_op("Tensor." + name, samples, ref, call=lambda rt, x: getattr(x, name), python=True, **more)


def squeeze(x: np.ndarray, dim: Any = None) -> np.ndarray:
    if dim is None:
        return x.squeeze()
    dims = (dim,) if isinstance(dim, int) else dim
    return x.squeeze(tuple(d for d in dims if x.ndim and x.shape[d] == 1))


def flatten(x: np.ndarray, start_dim: int = 0, end_dim: int = -1) -> np.ndarray:
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :])


def unflatten(x: np.ndarray, dim: int, sizes: tuple[int, ...]) -> np.ndarray:
    dim %= x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def narrow(x: np.ndarray, dim: int, start: int, length: int) -> np.ndarray:
    start += x.shape[dim] if start < 0 else 0
    return np.take(x, range(start, start + length), axis=dim)


def split(x: np.ndarray, size: Any, dim: int = 0) -> tuple[np.ndarray, ...]:
    length = x.shape[dim]
    edges = range(size, length, size) if isinstance(size, int) else np.cumsum(size)[:-1]
    return tuple(np.split(x, list(edges), dim))


def chunk(x: np.ndarray, chunks: int, dim: int = 0) -> tuple[np.ndarray, ...]:
    return split(x, max(1, -(-x.shape[dim] // chunks)), dim)


def unbind(x: np.ndarray, dim: int = 0) -> tuple[np.ndarray, ...]:
    return tuple(np.moveaxis(x, dim, 0))


def diagonal(x: np.ndarray, offset: int = 0, dim1: int = 0, dim2: int = 1) -> np.ndarray:
    return np.diagonal(x, offset, dim1, dim2)


def unfold(x: np.ndarray, dimension: int, size: int, step: int) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis=dimension)
    return np.moveaxis(np.moveaxis(windows, dimension, 0)[::step], 0, dimension)


def as_strided(x: np.ndarray, size: Any, stride: Any, storage_offset: int = 0) -> np.ndarray:
    flat = np.ascontiguousarray(x).ravel()
    places = storage_offset + sum(np.indices(size)[i] * s for i, s in enumerate(stride))
    return flat[places]


def expand(x: np.ndarray, *sizes: Any) -> np.ndarray:
    sizes = sizes[0] if sizes and isinstance(sizes[0], (tuple, list)) else sizes
    lead = len(sizes) - x.ndim
    return np.broadcast_to(x, [x.shape[i - lead] if s == -1 else s for i, s in enumerate(sizes)])


def varargs(function: Callable[..., Any]) -> Callable[..., Any]:
    """f(x, 2, 3) as f(x, (2, 3))."""
    return lambda x, *sizes: function(x, sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes)


def roll(x: np.ndarray, shifts: Any, dims: Any = None) -> np.ndarray:
    return np.roll(x, shifts, dims)


def tile(x: np.ndarray, *dims: Any) -> np.ndarray:
    return np.tile(x, dims[0] if isinstance(dims[0], (tuple, list)) else dims)


def repeat(x: np.ndarray, *sizes: Any) -> np.ndarray:
    sizes = sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes
    return np.tile(x.reshape((1,) * (len(sizes) - x.ndim) + x.shape), sizes)


def repeat_interleave(
    x: np.ndarray, repeats: Any, dim: int | None = None, output_size: Any = None
) -> np.ndarray:
    return np.repeat(x, repeats, axis=dim)


def diag_embed(x: np.ndarray, offset: int = 0) -> np.ndarray:
    size = x.shape[-1] + abs(offset)
    result = np.zeros((*x.shape[:-1], size, size), x.dtype)
    place = np.arange(x.shape[-1])
    result[..., place + max(0, -offset), place + max(0, offset)] = x
    return result


def pad(x: np.ndarray, pad: Any, mode: str = "constant", value: Any = None) -> np.ndarray:
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    keep = tuple(slice(max(0, -a), x.shape[i] - max(0, -b)) for i, (a, b) in enumerate(widths))
    widths = [(max(0, a), max(0, b)) for a, b in widths]
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    options = {"constant_values": value or 0} if mode == "constant" else {}
    return np.pad(x[keep], widths, names[mode], **options)


def two(r: Rng) -> list[Sample]:
    return [S(r(3, 4)), S(r(1, 5)), S(r(0, 2))]


def dims_of(
    name: str, *good: tuple[Any, ...], shape: tuple[int, ...] = (2, 3, 4)
) -> Callable[[Rng], list[Sample]]:
    return lambda r: [S(r(*shape), *args) for args in good]


def triangle(r: Rng) -> list[Sample]:
    cases = [S(r(3, 4), diagonal=k) for k in (-2, 0, 1, 5)]
    return [S(r(3, 3)), *cases, S(r(2, 3, 3), -1), S(r(0, 3))]


def joined(r: Rng) -> list[Sample]:
    cases = [
        S([r(2, 3), r(1, 3)]),
        S([r(2, 3), r(2, 1), r(2, 0)], 1),
        S((r(2, 3), r(2, 3)), dim=-1),
        S([r(4)]),
    ]
    return [*cases, S([r(0), r(2, 3)]), S([r(2, 17), r(2, 20)], 1)]


def stacked(r: Rng) -> list[Sample]:
    return [S([r(2, 3), r(2, 3)]), S([r(2, 3), r(2, 3), r(2, 3)], 1), S([r(2), r(2)], dim=-1), S([r(), r()])]


def row_stack(r: Rng) -> list[Sample]:
    return [S([r(2, 3), r(1, 3)]), S([r(3), r(3)])]


BAD_DIM = E("IndexError", ONES, 2)
SIZES = [((6,),), ((3, 2),), ((-1, 2),), ((1, 2, 3),), ((2, -1, 1),)]
JOIN_ERRORS = (
    E("RuntimeError", [np.ones((2, 3)), np.ones((3, 4))]),
    E("IndexError", [np.ones((2, 3)), np.ones((2, 3))], 2),
    E("RuntimeError|ValueError", [], match="cat|stack|concat"),
)

ROWS = [
    method_row(
        "view",
        lambda r: [S(r(2, 3), *args) for args in SIZES] + [S(r(2, 3), 3, 2), S(r(), 1), S(r(0, 3), 3, 0)],
        varargs(np.reshape),
        E("ShapeError", ONES, 5),
        E("ShapeError", ONES, -1, 4),
        E("RuntimeError", ONES, -1, -1),
        layouts=("offset",),
    ),
    view_op(
        "reshape",
        lambda r: [S(r(2, 3), *args) for args in SIZES] + [S(r(), (1,)), S(r(0, 3), (3, 0)), S(r(1), ())],
        varargs(np.reshape),
        E("ShapeError", ONES, (5,)),
        E("ShapeError", ONES, (-1, 4)),
        method=True,
    ),
    view_op(
        "transpose",
        dims_of("transpose", (0, 1), (1, 2), (-1, 0), (1, 1)),
        np.swapaxes,
        E("IndexError", ONES, 0, 2),
        method=True,
    ),
    view_op(
        "swapaxes",
        dims_of("swapaxes", (0, 1), (-1, 0)),
        np.swapaxes,
        E("IndexError", ONES, 0, 2, match="swapaxes|transpose"),
        method=True,
    ),
    view_op("swapdims", dims_of("swapdims", (0, 1), (-1, 0)), np.swapaxes, method=True),
    view_op(
        "permute",
        dims_of("permute", ((0, 2, 1),), ((2, 0, 1),), ((-1, 0, 1),)),
        np.transpose,
        E("RuntimeError", ONES, (0,)),
        E("RuntimeError", ONES, (0, 0)),
        E("IndexError", ONES, (0, 2)),
        method=True,
    ),
    view_op(
        "t",
        lambda r: [S(r(2, 3)), S(r(4)), S(r())],
        np.transpose,
        E("RuntimeError", np.ones((2, 2, 2))),
        method=True,
    ),
    attribute("T", lambda r: [S(r(2, 3)), S(r(1, 4))], np.transpose),
    attribute("mT", lambda r: [S(r(2, 3)), S(r(2, 3, 4))], lambda x: np.swapaxes(x, -1, -2)),
    view_op(
        "squeeze",
        lambda r: [S(r(1, 3, 1)), S(r(1, 3), 0), S(r(1, 3), 1), S(r(1, 3, 1), (0, 2)), S(r()), S(r(1), ())],
        squeeze,
        BAD_DIM,
        method=True,
        inplace="squeeze_",
    ),
    view_op(
        "unsqueeze",
        lambda r: [S(r(2, 3), 0), S(r(2, 3), -1), S(r(2, 3), 1), S(r(), 0)],
        np.expand_dims,
        E("IndexError", ONES, 3),
        method=True,
        inplace="unsqueeze_",
    ),
    view_op(
        "flatten",
        lambda r: [S(r(2, 3, 2)), S(r(2, 3, 2), 1), S(r(2, 3, 2), 0, 1), S(r()), S(r(4))],
        flatten,
        E("IndexError", ONES, 2),
        E("RuntimeError", ONES, 1, 0),
        method=True,
        layouts=("offset",),
    ),
    view_op("ravel", lambda r: [S(r(2, 3)), S(r())], np.ravel, method=True, layouts=("offset",)),
    view_op(
        "unflatten",
        lambda r: [S(r(6), 0, (2, 3)), S(r(2, 6), 1, (3, -1)), S(r(4, 2), -2, (2, 2))],
        unflatten,
        E("RuntimeError", ONES, 1, (2, 2)),
        E("IndexError", ONES, 2, (3,)),
        method=True,
    ),
    method_row(
        "expand",
        lambda r: [S(r(1, 3), 2, 3), S(r(2, 1), (2, 4)), S(r(3), 2, -1), S(r(), 2, 2), S(r(1), 0)],
        expand,
        E("ShapeError", ONES, 2, 4),
        E("ShapeError", ONES, 3),
        E("RuntimeError", ONES, -1, 2, 3),
    ),
    method_row(
        "expand_as",
        lambda r: [S(r(1, 3), r(2, 3)), S(r(), r(2, 2))],
        lambda x, y: np.broadcast_to(x, y.shape),
        E("ShapeError", ONES, np.ones((2, 4)), match="expand"),
        nograd=(1,),
    ),
    method_row(
        "view_as",
        lambda r: [S(r(2, 3), r(3, 2))],
        lambda x, y: x.reshape(y.shape),
        layouts=("offset",),
        nograd=(1,),
    ),
    method_row("reshape_as", lambda r: [S(r(2, 3), r(3, 2))], lambda x, y: x.reshape(y.shape), nograd=(1,)),
    view_op(
        "broadcast_to",
        lambda r: [S(r(1, 3), (2, 3)), S(r(3), (2, 3)), S(r(), (2,))],
        np.broadcast_to,
        E("ShapeError", ONES, (2, 4), match="broadcast_to|expand"),
        method=True,
    ),
    view_op(
        "narrow",
        lambda r: [S(r(4, 3), 0, 1, 2), S(r(2, 5), 1, 0, 5), S(r(2, 5), -1, 2, 0), S(r(4), 0, -3, 2)],
        narrow,
        E("IndexError", ONES, 2, 0, 1),
        E("RuntimeError", ONES, 0, 1, 2),
        E("RuntimeError", ONES, 0, 0, -1),
        E("RuntimeError", ONES, 0, np.array([1, 0]), 1),
        E("RuntimeError", ONES, 0, np.array(True), 1),
        method=True,
    ),
    view_op(
        "select",
        lambda r: [S(r(3, 4), 0, 1), S(r(3, 4), 1, -1), S(r(2, 3, 4), -2, 2)],
        lambda x, dim, index: np.take(x, index, dim),
        E("IndexError", ONES, 0, 2),
        E("IndexError", ONES, 2, 0),
        method=True,
    ),
    view_op(
        "split",
        lambda r: [S(r(5, 2), 2), S(r(2, 6), 3, 1), S(r(2, 6), [1, 2, 3], 1), S(r(4), 7)],
        split,
        E("RuntimeError", ONES, [1, 1], 1),
        E("RuntimeError", ONES, -1),
        E("IndexError", ONES, 1, 2),
        method=True,
    ),
    view_op(
        "chunk",
        lambda r: [S(r(5, 2), 2), S(r(2, 6), 4, 1), S(r(4), 7)],
        chunk,
        E("RuntimeError", ONES, 0),
        E("IndexError", ONES, 1, 2),
        method=True,
    ),
    view_op(
        "tensor_split",
        lambda r: [S(r(7), 3), S(r(2, 5), (1, 3), 1)],
        lambda x, n, dim=0: tuple(np.array_split(x, n, dim)),
        method=True,
    ),
    view_op("unbind", lambda r: [S(r(3, 2)), S(r(2, 3), 1), S(r(2, 2, 2), -1)], unbind, BAD_DIM, method=True),
    view_op(
        "movedim",
        lambda r: [S(r(2, 3, 4), 0, 2), S(r(2, 3, 4), (0, 1), (1, 2)), S(r(2, 3), -1, 0), S(r(2), (), ())],
        np.moveaxis,
        E("IndexError", ONES, 0, 2),
        method=True,
    ),
    view_op("moveaxis", lambda r: [S(r(2, 3, 4), 0, 2)], np.moveaxis, method=True),
    view_op(
        "diagonal",
        lambda r: [S(r(3, 4)), S(r(3, 4), 1), S(r(3, 4), -1), S(r(2, 3, 3), 0, 1, 2), S(r(3, 4), 9)],
        diagonal,
        E("IndexError", ONES, 0, 0, 2),
        E("RuntimeError", ONES, 0, 1, 1),
        method=True,
    ),
    method_row(
        "unfold",
        lambda r: [S(r(7), 0, 3, 2), S(r(2, 5), 1, 2, 1), S(r(6, 2), 0, 2, 2), S(r(2, 5), -1, 5, 1)],
        unfold,
        E("RuntimeError", ONES, 1, 4, 1),
        E("IndexError", ONES, 2, 1, 1),
        E("RuntimeError", ONES, 1, 2, 0),
    ),
    view_op(
        "as_strided",
        lambda r: [S(r(3, 4), (2, 2), (4, 1)), S(r(12), (3, 2), (1, 2), 1), S(r(4), (3, 2), (1, 1))],
        as_strided,
        E("RuntimeError", ONES, (3, 3), (3, 1)),
        E("RuntimeError", ONES, (2, 2), (1,)),
        method=True,
        inplace="as_strided_",
        layouts=(),
    ),
    Op(
        "cat",
        joined,
        lambda xs, dim=0: np.concatenate([x for x in xs if x.shape != (0,) or len(xs) == 1], dim),
        out=True,
        errors=JOIN_ERRORS,
        aliases=("concatenate",),
        **MOVE,
    ),
    Op(
        "concat",
        joined,
        lambda xs, dim=0: np.concatenate([x for x in xs if x.shape != (0,) or len(xs) == 1], dim),
        **MOVE,
    ),
    Op(
        "stack",
        stacked,
        lambda xs, dim=0: np.stack(xs, dim),
        out=True,
        errors=(
            E("RuntimeError", [ONES, np.ones((2, 4))]),
            E("RuntimeError", []),
            E("IndexError", [ONES, ONES], 3),
        ),
        **MOVE,
    ),
    Op(
        "hstack",
        lambda r: [S([r(2, 3), r(2, 1)]), S([r(3), r(2)]), S([r(), r()])],
        lambda xs: np.hstack([np.atleast_1d(x) for x in xs]),
        errors=(E("RuntimeError", [ONES, np.ones((3, 2))], match="hstack|cat"),),
        **MOVE,
    ),
    Op(
        "vstack",
        row_stack,
        lambda xs: np.vstack(xs),
        errors=(E("RuntimeError", [ONES, np.ones((2, 2))], match="vstack|cat"),),
        **MOVE,
    ),
    Op(
        "column_stack",
        lambda r: [S([r(3), r(3)]), S([r(2, 3), r(2)])],
        lambda xs: np.column_stack(xs),
        **MOVE,
    ),
    Op(
        "block_diag",
        lambda r: [S(r(2, 3), r(1, 2))],
        lambda a, b: np.block([[a, np.zeros((2, 2))], [np.zeros((1, 3)), b]]),
        python=True,
        **(MOVE | {"dtypes": ("float64", "float32", "int64")}),
    ),
    Op(
        "Tensor.repeat",
        lambda r: [S(r(2, 3), 2, 1), S(r(3), 2, 2), S(r(2, 3), (1, 2)), S(r(), 3), S(r(2), 0)],
        repeat,
        errors=(E("RuntimeError", ONES, 2), E("RuntimeError", ONES, 2, -1)),
        **MOVE,
    ),
    Op("tile", lambda r: [S(r(2, 3), (2, 1)), S(r(2, 3), (2,)), S(r(3), (2, 2))], tile, method=True, **MOVE),
    Op(
        "repeat_interleave",
        lambda r: [S(r(3, 2), 2), S(r(3, 2), 2, 0), S(r(2, 3), 3, dim=1)],
        repeat_interleave,
        method=True,
        errors=(E("RuntimeError", ONES, -1), E("IndexError", ONES, 2, 2)),
        **MOVE,
    ),
    Op(
        "repeat_interleave",
        lambda r: [
            S(r(3, 2), np.array([1, 0, 2]), 0),
            S(r(3), np.array([2, 0, 1])),
            S(r(3, 2), np.array([1, 0, 2]), 0, output_size=3),
        ],
        repeat_interleave,
        errors=(E("RuntimeError", ONES, np.array([1, 2]), 0, output_size=4),),
        label="repeat_interleave, tensor",
        method=True,
        meta=False,
        **MOVE,
    ),
    Op(
        "roll",
        lambda r: [
            S(r(5), 2),
            S(r(3, 4), 1),
            S(r(3, 4), -1, 1),
            S(r(3, 4), (1, 2), (0, 1)),
            S(r(3, 4), 9, 0),
            S(r(0), 1),
        ],
        roll,
        method=True,
        errors=(E("IndexError", ONES, 1, 2), E("RuntimeError", ONES, (1, 2), 0), E("IndexError", ONE, 1, 0)),
        **MOVE,
    ),
    Op(
        "flip",
        lambda r: [S(r(3, 4), (0,)), S(r(3, 4), (0, 1)), S(r(3, 4), (-1,)), S(r(2, 23), (1,)), S(r(2), ())],
        np.flip,
        method=True,
        errors=(E("IndexError", ONES, (2,)), E("RuntimeError", ONES, (0, 0))),
        **MOVE,
    ),
    Op("fliplr", lambda r: [S(r(3, 4))], np.fliplr, method=True, **MOVE),
    Op("flipud", lambda r: [S(r(3, 4))], np.flipud, method=True, **MOVE),
    Op(
        "rot90",
        lambda r: [S(r(3, 4)), S(r(3, 4), 2), S(r(3, 4), -1, (0, 1))],
        lambda x, k=1, dims=(0, 1): np.rot90(x, k, dims),
        method=True,
        **MOVE,
    ),
    Op(
        "tril",
        triangle,
        lambda x, diagonal=0: np.tril(x, diagonal),
        method=True,
        inplace="tril_",
        out=True,
        errors=(E("RuntimeError", np.ones(3)),),
        **MOVE,
    ),
    Op(
        "triu",
        triangle,
        lambda x, diagonal=0: np.triu(x, diagonal),
        method=True,
        inplace="triu_",
        out=True,
        errors=(E("RuntimeError", np.ones(3)),),
        **MOVE,
    ),
    Op(
        "diag",
        lambda r: [S(r(3)), S(r(3), 1), S(r(2), -2), S(r(3, 4)), S(r(3, 4), -1)],
        np.diag,
        method=True,
        errors=(E("RuntimeError", np.ones((2, 2, 2))),),
        **MOVE,
    ),
    Op(
        "diag_embed",
        lambda r: [S(r(3)), S(r(2, 3)), S(r(3), 1), S(r(2), -1)],
        diag_embed,
        method=True,
        **MOVE,
    ),
    Op("diagflat", lambda r: [S(r(2, 2)), S(r(3), 1)], np.diagflat, method=True, **MOVE),
    Op(
        "meshgrid",
        lambda r: [S(r(3), r(2), indexing="ij"), S(r(3), r(2), indexing="xy")],
        lambda *xs, indexing: tuple(np.meshgrid(*xs, indexing=indexing)),
        **MOVE,
    ),
    Op(
        "cartesian_prod",
        lambda r: [S(r(3), r(2)), S(r(3))],
        lambda *xs: (
            np.stack([g.ravel() for g in np.meshgrid(*xs, indexing="ij")], -1) if len(xs) > 1 else xs[0]
        ),
        **MOVE,
    ),
    Op(
        "nn.functional.pad",
        lambda r: [
            S(r(2, 3), (1, 2)),
            S(r(2, 3), (1, 0, 0, 2)),
            S(r(2, 3), (1, 1), "constant", 7),
            S(r(2, 4), (-1, 1)),
            S(r(2, 3), (0, 0)),
            S(r(2, 5), (-2, -1)),
            S(r(2, 3, 4), (0, 2, -1, 3, 1, 0), value=1.5),
            S(r(2, 40), (3, 30)),
            S(r(0, 3), (1, 1, 2, 0), value=2),
            S(r(1, 2, 1, 2, 1), (1, 2, 3, 4, 5, 6), value=7),
        ],
        pad,
        errors=(
            E("RuntimeError", ONES, (1,)),
            E("RuntimeError", np.ones((2, 3)), (-4, 5)),
            E("RuntimeError", ONES, (1, 1, 1, 1, 1, 1)),
            E("RuntimeError", ONES, (-2, -2)),
        ),
        **MOVE,
    ),
    Op(
        "nn.functional.pad",
        lambda r: (
            [S(r(2, 3, 4), p, m) for m in ("reflect", "replicate", "circular") for p in ((1, 2), (2, 0))]
            + [S(r(1, 2, 3, 4), (1, 1, 2, 1), m) for m in ("reflect", "replicate", "circular")]
            + [S(r(2, 3, 4, 3), (1, 2, -1, 1, 2, 1), m) for m in ("reflect", "replicate", "circular")]
            + [S(r(2, 40), p, m) for m in ("reflect", "replicate", "circular") for p in ((20, 39), (-3, 5))]
            + [S(r(2, 3), (3, 4), "replicate"), S(r(2, 3), (3, 3), "circular")]
        ),
        pad,
        label="pad, modes",
        exact=True,
        errors=(
            E("RuntimeError", np.ones((1, 2, 3)), (3, 0), "reflect"),
            E("RuntimeError", np.ones((1, 2, 3)), (4, 0), "circular"),
            E("RuntimeError", np.ones((1, 2, 3)), (-3, 0), "replicate"),
            E("RuntimeError", np.ones((1, 2, 3)), (-4, 0), "circular"),
            E("RuntimeError", np.ones((1, 2, 3)), (1, 1), "reflect", 1.0),
            E("RuntimeError", np.ones((1, 0, 3)), (1, 1), "reflect"),
            E("NotImplementedError", np.ones((1, 2, 2, 3)), (1, 1), "reflect"),
            E("NotImplementedError", np.ones(3), (1, 1), "circular"),
            E("NotImplementedError", np.ones((1, 2, 3)), (1, 1), "mirror"),
        ),
    ),
    Op(
        "nn.functional.one_hot",
        lambda r: [S(r.index(4, high=3), 3), S(r.index(2, 3, high=4), 6)],
        lambda x, num_classes=-1: np.eye(num_classes, dtype=np.int64)[x],
        dtypes=("int64",),
        result="int64",
        grad=False,
        errors=(E("RuntimeError", np.array([3]), 2), E("RuntimeError", np.array([-1]), 2)),
    ),
]
