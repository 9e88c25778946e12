"""Pooling and interpolation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..table import E, Op, Rng, S, Sample
from .conv import several, windows

F = "nn.functional."
TOL = {"float16": (3e-3, 3e-3), "bfloat16": (2e-2, 2e-2)}


def out_size(length: int, size: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    span = length + 2 * pad - dilation * (size - 1) - 1
    count = (-(-span // stride) if ceil else span // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= length + pad else count


def pooled(
    x: np.ndarray, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, fill: float
) -> tuple[np.ndarray, int]:
    """Windows (N, C, out..., size...) of a padded x; enough padding on the right for ceil mode."""
    count = x.ndim - 2
    size, padding, dilation = several(size, count), several(padding, count), several(dilation, count)
    stride = several(stride, count) if stride not in (None, ()) else size
    lengths = [out_size(*one, ceil) for one in zip(x.shape[2:], size, stride, padding, dilation, strict=True)]
    right = [
        max(0, (o - 1) * s + (k - 1) * d + 1 - n - p)
        for o, s, k, d, n, p in zip(lengths, stride, size, dilation, x.shape[2:], padding, strict=True)
    ]
    x = np.pad(x, [(0, 0), (0, 0), *zip(padding, right, strict=True)], constant_values=fill)
    look = windows(x, size, stride, dilation)
    return look[(slice(None), slice(None), *[slice(0, o) for o in lengths])], count


def batched(function: Callable[..., Any], spatial: int) -> Callable[..., Any]:
    """Also without the batch dimension."""
    return lambda x, *args, **kw: (
        function(x, *args, **kw) if x.ndim == spatial + 2 else function(x[None], *args, **kw)[0]
    )


def max_pool(
    x: np.ndarray, size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> np.ndarray:
    look, count = pooled(x, size, stride, padding, dilation, ceil_mode, -np.inf)
    return look.max(tuple(range(-count, 0)))


def max_pool_indices(
    x: np.ndarray, size: Any, stride: Any = None, return_indices: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    where = np.broadcast_to(np.arange(float(np.prod(x.shape[2:]))).reshape(x.shape[2:]), x.shape)
    values, count = pooled(x, size, stride, 0, 1, False, -np.inf)
    places, _ = pooled(where, size, stride, 0, 1, False, -1)
    flat, at = values.reshape(*values.shape[:-count], -1), places.reshape(*values.shape[:-count], -1)
    best = flat.argmax(-1)[..., None]
    return np.take_along_axis(flat, best, -1)[..., 0], np.take_along_axis(at, best, -1)[..., 0]


def avg_pool(
    x: np.ndarray,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> np.ndarray:
    look, count = pooled(x, size, stride, padding, 1, ceil_mode, 0.0)
    axes = tuple(range(-count, 0))
    inside = np.ones_like(x)
    if count_include_pad:
        edge = several(padding, count)
        inside = np.pad(inside, [(0, 0), (0, 0), *[(p, p) for p in edge]], constant_values=1.0)
        cells, _ = pooled(inside, size, stride or size, 0, 1, ceil_mode, 0.0)
        cells = cells[tuple(slice(0, n) for n in look.shape)]
    else:
        cells, _ = pooled(inside, size, stride, padding, 1, ceil_mode, 0.0)
    return look.sum(axes) / (divisor_override or cells.sum(axes))


def adaptive(reduce: Callable[..., Any], spatial: int) -> Callable[..., Any]:
    def ref(x: np.ndarray, size: Any) -> np.ndarray:
        sizes = several(size, spatial)
        for offset, want in enumerate(sizes):
            axis = x.ndim - spatial + offset
            length = x.shape[axis]
            want = length if want is None else want
            spans = [(i * length // want, -(-(i + 1) * length // want)) for i in range(want)]
            x = np.stack([reduce(np.take(x, range(a, b), axis), axis=axis) for a, b in spans], axis)
        return x

    return ref


def samples_1d(r: Rng) -> list[Sample]:
    d = r.distinct
    return [S(d(2, 3, 8), 2), S(d(1, 2, 9), 3, 2, 1), S(d(2, 7), 3), S(d(1, 2, 8), 3, 2, 0, ceil_mode=True)]


def samples_2d(r: Rng) -> list[Sample]:
    d = r.distinct
    cases = [
        S(d(2, 2, 4, 4), 2),
        S(d(1, 2, 5, 5), 3, 2, 1),
        S(d(1, 1, 5, 4), (2, 3), (1, 2)),
        S(d(2, 4, 4), 2),
    ]
    return [*cases, S(d(1, 1, 5, 5), 2, 2, 0, ceil_mode=True), S(d(1, 1, 5, 5), 2, stride=1)]


def samples_3d(r: Rng) -> list[Sample]:
    d = r.distinct
    cases = [S(d(2, 2, 4, 4, 4), 2), S(d(1, 1, 5, 4, 5), 3, 2, 1), S(d(2, 4, 3, 5), (1, 3, 2), (2, 1, 2))]
    return [*cases, S(d(1, 1, 5, 3, 5), 2, 2, 0, ceil_mode=True)]


def max_unpool(x: np.ndarray, places: np.ndarray, size: Any, stride: Any = None, **kw: Any) -> np.ndarray:
    spatial = x.ndim - 2
    size, stride = several(size, spatial), several(stride or size, spatial)
    sizes = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], stride, size, strict=True)]
    out = np.zeros((*x.shape[:2], np.prod(kw.get("output_size", sizes))))
    np.put_along_axis(out, places.reshape(*x.shape[:2], -1), x.reshape(*x.shape[:2], -1), -1)
    return out.reshape(*x.shape[:2], *kw.get("output_size", sizes))


def unpool_samples(r: Rng, spatial: int) -> list[Sample]:
    cells = np.stack([r.np.permutation(4**spatial)[: 2**spatial] for _ in range(2)])
    places = cells.reshape(1, 2, *[2] * spatial)
    wider = S(r(*places.shape), places, 2, output_size=(5, *[4] * (spatial - 1)))
    return [S(r(*places.shape), places, 2), wider]


def fractional(x: np.ndarray, size: int, wanted: Any, **kw: Any) -> np.ndarray:
    """Window i of a dim starts at floor((i + u) a) - floor(u a), the last one at the end."""
    samples, spatial = kw["_random_samples"], x.ndim - 2
    out = np.empty((*x.shape[:2], *wanted))
    for n, c in np.ndindex(x.shape[:2]):
        numbers = samples[n, c][::-1] if spatial == 2 else samples[n, c]
        starts = []
        for length, count, u in zip(x.shape[2:], wanted, numbers, strict=True):
            step = (length - size) / (count - 1)
            starts.append([int((i + u) * step) - int(u * step) for i in range(count - 1)] + [length - size])
        for at in np.ndindex(tuple(wanted)):
            box = tuple(slice(s[i], s[i] + size) for s, i in zip(starts, at, strict=True))
            out[(n, c, *at)] = x[(n, c, *box)].max()
    return out


def fractional_samples(r: Rng, spatial: int) -> list[Sample]:
    x, numbers = r.distinct(2, 2, *(7, 6, 5)[:spatial]), r.np.choice([0.125, 0.375, 0.75], (2, 2, spatial))
    return [S(x, 2, (3, 4, 2)[:spatial], _random_samples=numbers)]


def interpolate(
    x: np.ndarray,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
) -> np.ndarray:
    count = x.ndim - 2
    scales = (
        several(scale_factor, count) if isinstance(scale_factor, (int, tuple)) else (scale_factor,) * count
    )
    sizes = (
        several(size, count)
        if size is not None
        else [int(n * s) for n, s in zip(x.shape[2:], scales, strict=True)]
    )
    for axis, want in enumerate(sizes, 2):
        length = x.shape[axis]
        ratio = length / want
        if mode == "nearest":
            x = np.take(x, [min(int(i * ratio), length - 1) for i in range(want)], axis)
            continue
        if align_corners:
            at = np.arange(want) * ((length - 1) / (want - 1))
        else:
            at = np.maximum((np.arange(want) + 0.5) * ratio - 0.5, 0)
        low = np.minimum(at.astype(int), length - 1)
        high = np.minimum(low + 1, length - 1)
        weight = (at - low).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        x = np.take(x, low, axis) * (1 - weight) + np.take(x, high, axis) * weight
    return x


def interpolate_samples(r: Rng) -> list[Sample]:
    cases = [
        S(r(1, 2, 3, 4), scale_factor=2),
        S(r(1, 2, 3, 4), size=(5, 3)),
        S(r(1, 2, 5), size=7),
        S(r(1, 1, 2, 2), 4),
        S(r(1, 5, 2, 6), size=(3, 2), mode="bilinear", align_corners=False),
    ]
    cases += [S(r(1, 2, 3, 4), size=(5, 6), mode="bilinear", align_corners=flag) for flag in (False, True)]
    return [*cases, S(r(1, 2, 5), size=8, mode="linear", align_corners=False)]


def pool_errors(spatial: int) -> tuple[Any, ...]:
    x = np.ones((1, 2, *[4] * spatial))
    return (
        E("RuntimeError", x, 5),
        E("RuntimeError", x, 0),
        E("RuntimeError", x, 2, 0),
        E("RuntimeError", x, 2, 1, 2),
        E("RuntimeError|IndexError", np.ones(4), 2),
    )


NOT_EXPANDED = ("transposed", "stepped", "offset")
ROWS = [
    Op(F + "max_pool1d", samples_1d, batched(max_pool, 1), layouts=NOT_EXPANDED, errors=pool_errors(1)),
    Op(
        F + "max_pool2d",
        lambda r: [*samples_2d(r), S(r.distinct(1, 1, 7, 7), 3, 1, 1, 2)],
        batched(max_pool, 2),
        layouts=NOT_EXPANDED,
        errors=pool_errors(2),
    ),
    Op(
        F + "max_pool2d",
        lambda r: [
            S(r.distinct(2, 2, 4, 4), 2, return_indices=True),
            S(r.distinct(1, 1, 5, 5), 3, 1, return_indices=True),
        ],
        max_pool_indices,
        label="max_pool2d, indices",
        result=("same", "int64"),
        layouts=NOT_EXPANDED,
    ),
    Op(
        F + "max_pool1d_with_indices",
        lambda r: [S(r.distinct(2, 3, 8), 2), S(r.distinct(1, 2, 9), 3, 2)],
        max_pool_indices,
        result=("same", "int64"),
        layouts=NOT_EXPANDED,
        errors=pool_errors(1),
    ),
    Op(
        F + "max_pool2d_with_indices",
        lambda r: [S(r.distinct(2, 2, 4, 4), 2), S(r.distinct(1, 1, 5, 5), 3, 1)],
        max_pool_indices,
        result=("same", "int64"),
        layouts=NOT_EXPANDED,
        errors=pool_errors(2),
    ),
    Op(F + "avg_pool1d", samples_1d, batched(avg_pool, 1), tol=TOL, errors=pool_errors(1)),
    Op(
        F + "avg_pool1d",
        lambda r: [S(r(2, 3, 8), 2), S(r(1, 2, 9), 3, 2)],
        lambda *args: np.trunc(batched(avg_pool, 1)(*args)),
        label="avg_pool1d, integers",
        dtypes=("int64",),
        grad=False,
    ),
    Op(
        F + "max_pool2d",
        lambda r: [S(r.distinct(1, 2, 6, 6), 2), S(r.distinct(1, 1, 7, 7), 3, 1)],
        lambda x, *args: batched(max_pool, 2)(x.astype(float), *args),
        label="max_pool2d, integers",
        dtypes=("int64", "int32", "uint8"),
        layouts=NOT_EXPANDED,
        grad=False,
    ),
    Op(
        F + "avg_pool2d",
        lambda r: [
            *samples_2d(r),
            S(r(1, 1, 4, 4), 3, 2, 1, count_include_pad=False),
            S(r(1, 1, 4, 4), 2, divisor_override=3),
        ],
        batched(avg_pool, 2),
        tol=TOL,
        errors=pool_errors(2),
    ),
    Op(
        F + "max_pool3d",
        lambda r: [*samples_3d(r), S(r.distinct(1, 1, 5, 6, 5), 2, 1, 1, 2)],
        batched(max_pool, 3),
        layouts=NOT_EXPANDED,
        errors=pool_errors(3),
    ),
    Op(
        F + "max_pool3d_with_indices",
        lambda r: [S(r.distinct(2, 2, 4, 4, 4), 2), S(r.distinct(1, 1, 5, 4, 5), 3, 1)],
        max_pool_indices,
        result=("same", "int64"),
        layouts=NOT_EXPANDED,
        errors=pool_errors(3),
    ),
    Op(
        F + "avg_pool3d",
        lambda r: [
            *samples_3d(r),
            S(r(1, 1, 4, 4, 3), 3, 2, 1, count_include_pad=False),
            S(r(1, 1, 4, 4, 2), 2, divisor_override=3),
        ],
        batched(avg_pool, 3),
        tol=TOL,
        errors=pool_errors(3),
    ),
    Op(
        F + "adaptive_avg_pool3d",
        lambda r: [S(r(2, 2, 5, 4, 3), (3, 2, 2)), S(r(1, 2, 4, 4, 3), 1), S(r(2, 3, 3, 4), (None, 1, 5))],
        adaptive(np.mean, 3),
        tol=TOL,
        errors=(E("RuntimeError", np.ones((1, 2, 4, 4, 4)), (-1, 2, 2)),),
    ),
    Op(
        F + "adaptive_max_pool3d",
        lambda r: [S(r.distinct(2, 2, 5, 4, 3), (3, 2, 2)), S(r.distinct(1, 2, 4, 4, 3), 1)],
        adaptive(np.max, 3),
        layouts=NOT_EXPANDED,
    ),
    *(
        Op(
            F + f"max_unpool{n}d",
            lambda r, n=n: unpool_samples(r, n),  # type: ignore[misc]
            max_unpool,
            exact=True,
            python=True,
            errors=(
                E("RuntimeError", np.ones((1, 1, *[2] * n)), np.ones((1, 1, *[3] * n), dtype=np.int64), 2),
                E(
                    "ValueError",
                    np.ones((1, 1, *[2] * n)),
                    np.ones((1, 1, *[2] * n), dtype=np.int64),
                    2,
                    output_size=[9] * n,
                ),
            ),
        )
        for n in (1, 2, 3)
    ),
    *(
        Op(
            F + f"fractional_max_pool{n}d",
            lambda r, n=n: fractional_samples(r, n),  # type: ignore[misc]
            fractional,
            layouts=NOT_EXPANDED,
            nograd=("_random_samples",),
            python=True,
            errors=(
                E("ValueError", np.ones((1, 1, *[4] * n)), 2),
                E("RuntimeError", np.ones((1, 1, *[4] * n)), 2, 4),
            ),
        )
        for n in (2, 3)
    ),
    Op(
        F + "adaptive_avg_pool1d",
        lambda r: [S(r(2, 3, 7), 3), S(r(3, 6), 2), S(r(1, 2, 3), 5)],
        adaptive(np.mean, 1),
        tol=TOL,
        errors=(E("RuntimeError", np.ones((1, 2, 4)), -1),),
    ),
    Op(
        F + "adaptive_avg_pool2d",
        lambda r: [
            S(r(2, 2, 5, 4), (3, 2)),
            S(r(1, 2, 4, 4), 1),
            S(r(1, 2, 4, 3), (None, 1)),
            S(r(2, 4, 5), 2),
        ],
        adaptive(np.mean, 2),
        tol=TOL,
        errors=(E("RuntimeError", np.ones((1, 2, 4, 4)), (-1, 2)),),
    ),
    Op(
        F + "adaptive_max_pool1d",
        lambda r: [S(r.distinct(2, 3, 7), 3)],
        adaptive(np.max, 1),
        layouts=NOT_EXPANDED,
    ),
    Op(
        F + "adaptive_max_pool2d",
        lambda r: [S(r.distinct(2, 2, 5, 4), (3, 2)), S(r.distinct(1, 2, 4, 4), 1)],
        adaptive(np.max, 2),
        layouts=NOT_EXPANDED,
    ),
    Op(
        F + "interpolate",
        interpolate_samples,
        interpolate,
        tol=TOL | {"float32": (1e-5, 1e-5), "bfloat16": (3e-2, 3e-2)},
        errors=(E("ValueError", np.ones((1, 1, 3, 3))), E("ValueError", np.ones((1, 1, 3, 3)), 2, 2.0)),
    ),
    Op(
        F + "pixel_shuffle",
        lambda r: [S(r(1, 8, 2, 3), 2)],
        lambda x, f: x.reshape(1, 2, 2, 2, 2, 3).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 4, 6),
        exact=True,
    ),
]
