"""Convolutions: references slide a window and contract it with einsum."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..table import E, Op, Rng, S, Sample

F = "nn.functional."
TOL = {"float32": (2e-5, 2e-5), "float16": (5e-3, 2e-2), "bfloat16": (3e-2, 1.5e-1)}


def several(value: Any, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


def windows(
    x: np.ndarray, size: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> np.ndarray:
    """(N, C, out..., size...) views of x (N, C, in...)."""
    axes = tuple(range(2, x.ndim))
    reach = tuple((s - 1) * d + 1 for s, d in zip(size, dilation, strict=True))
    found = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
    steps = tuple(slice(None, None, s) for s in stride) + tuple(slice(None, None, d) for d in dilation)
    return found[(slice(None), slice(None), *steps)]


def padding_of(padding: Any, size: tuple[int, ...], dilation: tuple[int, ...]) -> list[tuple[int, int]]:
    if padding == "valid":
        return [(0, 0)] * len(size)
    if padding == "same":
        total = [(s - 1) * d for s, d in zip(size, dilation, strict=True)]
        return [(t // 2, t - t // 2) for t in total]
    return [(p, p) for p in several(padding, len(size))]


def conv(
    x: np.ndarray,
    weight: np.ndarray,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> np.ndarray:
    count = weight.ndim - 2
    if x.ndim == count + 1:
        return conv(x[None], weight, bias, stride, padding, dilation, groups)[0]
    stride, dilation, size = several(stride, count), several(dilation, count), weight.shape[2:]
    x = np.pad(x, [(0, 0), (0, 0), *padding_of(padding, size, dilation)])
    look = windows(x, size, stride, dilation)
    axes = "xyz"[:count]
    kernel = "uvw"[:count]
    pieces = zip(np.split(look, groups, 1), np.split(weight, groups, 0), strict=True)
    y = np.concatenate([np.einsum(f"nc{axes}{kernel},oc{kernel}->no{axes}", a, w) for a, w in pieces], 1)
    return y if bias is None else y + bias.reshape(1, -1, *[1] * count)


def conv_add_relu(
    x: np.ndarray,
    weight: np.ndarray,
    bias: Any = None,
    residual: Any = None,
    *settings: Any,
    relu: bool = False,
    inplace: bool = False,
    **more: Any,
) -> np.ndarray:
    y = conv(x, weight, bias, *settings, **more)
    y = y if residual is None else y + residual
    return np.maximum(y, 0) if relu else y


def conv_transpose(
    x: np.ndarray,
    weight: np.ndarray,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
) -> np.ndarray:
    count = weight.ndim - 2
    stride, padding, extra = several(stride, count), several(padding, count), several(output_padding, count)
    size = weight.shape[2:]
    full = [(n - 1) * s + k + e for n, s, k, e in zip(x.shape[2:], stride, size, extra, strict=True)]
    y = np.zeros((x.shape[0], weight.shape[1] * groups, *full))
    split = zip(np.split(x, groups, 1), np.split(weight, groups, 0), np.split(y, groups, 1), strict=True)
    for part, kernel, out in split:
        for place in np.ndindex(*x.shape[2:]):
            at = tuple(slice(p * s, p * s + k) for p, s, k in zip(place, stride, size, strict=True))
            out[(slice(None), slice(None), *at)] += np.tensordot(
                part[(slice(None), slice(None), *place)], kernel, 1
            )
    crop = tuple(slice(p, f - p) for p, f in zip(padding, full, strict=True))
    y = y[(slice(None), slice(None), *crop)]
    return y if bias is None else y + bias.reshape(1, -1, *[1] * count)


def samples_1d(r: Rng) -> list[Sample]:
    cases = [
        S(r(2, 3, 7), r(4, 3, 3)),
        S(r(2, 3, 7), r(4, 3, 3), r(4), 2, 1),
        S(r(1, 4, 8), r(4, 2, 3), r(4), groups=2),
    ]
    cases += [
        S(r(1, 2, 9), r(3, 2, 3), None, 1, 2, 2),
        S(r(1, 2, 6), r(3, 2, 3), r(3), padding="same"),
        S(r(2, 3, 5), r(2, 3, 1)),
    ]
    return [
        *cases,
        S(r(2, 6), r(3, 2, 3), r(3)),
        S(r(1, 4, 6), r(4, 1, 3), r(4), groups=4),
        S(r(1, 2, 6), r(1, 2, 2), padding="valid"),
    ]


def samples_2d(r: Rng) -> list[Sample]:
    cases = [
        S(r(2, 2, 5, 4), r(3, 2, 3, 3)),
        S(r(1, 2, 5, 5), r(3, 2, 3, 3), r(3), 2, 1),
        S(r(1, 4, 4, 4), r(4, 2, 3, 3), r(4), 1, 1, 1, 2),
    ]
    cases += [
        S(r(1, 2, 6, 5), r(2, 2, 2, 3), r(2), (2, 1), (1, 0), (2, 1)),
        S(r(1, 2, 4, 4), r(2, 2, 3, 3), padding="same"),
    ]
    cases += [
        S(r(2, 3, 3, 3), r(4, 3, 1, 1), r(4)),
        S(r(1, 3, 4, 4), r(3, 1, 3, 3), groups=3),
        S(r(2, 2, 5, 6), r(2, 1, 3, 2), r(2), (2, 3), (1, 2), (1, 2), 2),
        S(r(2, 4, 4), r(3, 2, 2, 2), r(3)),
    ]
    return [
        *cases,
        S(r(1, 1, 4, 4), r(2, 1, 4, 4), stride=(4, 4)),
        S(r(0, 2, 4, 4), r(3, 2, 3, 3), r(3), grad=False),
    ]


def samples_3d(r: Rng) -> list[Sample]:
    return [S(r(1, 2, 3, 4, 3), r(2, 2, 2, 2, 2), r(2)), S(r(1, 2, 3, 3, 4), r(2, 2, 3, 1, 2), None, 1, 1)]


def transposed_1d(r: Rng) -> list[Sample]:
    return [
        S(r(2, 3, 4), r(3, 2, 3)),
        S(r(1, 3, 4), r(3, 2, 3), r(2), 2, 1, 1),
        S(r(1, 4, 3), r(4, 2, 2), r(4), 1, 0, 0, 2),
    ]


def transposed_2d(r: Rng) -> list[Sample]:
    return [
        S(r(1, 2, 3, 3), r(2, 3, 2, 2)),
        S(r(1, 2, 2, 3), r(2, 2, 3, 3), r(2), 2, 1, 1),
        S(r(1, 2, 3, 2), r(2, 1, 2, 2), r(2), (2, 1), (0, 1), 0, 2),
    ]


def unfold(
    x: np.ndarray, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> np.ndarray:
    size = several(kernel_size, 2)
    x = np.pad(x, [(0, 0), (0, 0), *[(p, p) for p in several(padding, 2)]])
    found = windows(x, size, several(stride, 2), several(dilation, 2))
    return np.moveaxis(found, (4, 5), (2, 3)).reshape(x.shape[0], x.shape[1] * size[0] * size[1], -1)


def fold(
    x: np.ndarray, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> np.ndarray:
    """Each column of x goes to its window of an image (N, C, H, W), where windows are added up."""
    pad, size, sizes = several(padding, 2), several(kernel_size, 2), several(output_size, 2)
    step, spread = several(stride, 2), several(dilation, 2)
    image = np.zeros((x.shape[0], x.shape[1] // np.prod(size), *(n + 2 * p for n, p in zip(sizes, pad))))
    look = [len(range(0, n - d * (k - 1), s)) for n, k, s, d in zip(image.shape[2:], size, step, spread)]
    parts = x.reshape(*image.shape[:2], *size, *look)
    for place in np.ndindex(*size, *look):
        at = tuple(i * d + j * s for i, j, d, s in zip(place[:2], place[2:], spread, step, strict=True))
        image[(..., *at)] += parts[(..., *place)]
    return image[:, :, pad[0] : pad[0] + sizes[0], pad[1] : pad[1] + sizes[1]]


def transposed_3d(r: Rng) -> list[Sample]:
    return [
        S(r(1, 2, 2, 3, 2), r(2, 3, 2, 1, 2)),
        S(r(1, 2, 2, 2, 3), r(2, 2, 3, 3, 2), r(2), 2, 1, 1),
        S(r(1, 4, 2, 3, 2), r(4, 1, 2, 2, 2), r(2), (3, 1, 1), (0, 1, 0), (1, 0, 0), 2),
    ]


def errors(spatial: int, channels: int = 3) -> tuple[Any, ...]:
    x, w = np.ones((1, channels, *[5] * spatial)), np.ones((2, channels, *[3] * spatial))
    return (
        E("RuntimeError", x, np.ones((2, channels + 1, *[3] * spatial))),
        E("RuntimeError", x, np.ones((2, channels, *[6] * spatial))),
        E("RuntimeError", x, w, np.ones(3)),
        E("RuntimeError", np.asarray(x[0, 0, 0]), w),
        E("RuntimeError", x, w, stride=0),
        E("RuntimeError", x, w, padding=-1),
        E("RuntimeError", x, w, dilation=0),
        E("RuntimeError", x, w, groups=2),
        E("RuntimeError", x, np.ones((0, channels, *[3] * spatial))),
    )


ROWS = [
    Op(F + "conv1d", samples_1d, conv, aliases=("conv1d",), tol=TOL, errors=errors(1)),
    Op(
        F + "conv2d",
        samples_2d,
        conv,
        tol=TOL,
        errors=(
            *errors(2),
            E("RuntimeError", np.ones((1, 2, 4, 4)), np.ones((2, 2, 3, 3)), stride=2, padding="same"),
        ),
    ),
    Op("conv2d", lambda r: samples_2d(r)[:2], conv, label="torch.conv2d", tol=TOL),
    Op(
        "_C._private._conv2d_add_relu",
        lambda r: [
            S(r(2, 2, 5, 4), r(3, 2, 3, 3), r(3), r(2, 3, 3, 2)),
            S(r(1, 4, 4, 4), r(4, 2, 3, 3), None, None, 1, 1, 1, 2, relu=True),
            S(r(1, 2, 5, 5), r(3, 2, 3, 3), r(3), r(1, 3, 3, 3), 2, 1, relu=True),
            S(r(1, 3, 4, 4), r(3, 1, 3, 3), groups=3, relu=True),
            S(r(1, 2, 4, 4), r(3, 2, 3, 3), None, r(2, 1, 2, 1), relu=True),
            S(r(2, 2, 4, 4), r(3, 2, 3, 3), None, r(1, 3, 1, 2), inplace=True),
        ],
        conv_add_relu,
        tol=TOL,
        errors=(
            E("RuntimeError", np.ones((1, 2, 4, 4)), np.ones((3, 2, 3, 3)), None, np.ones((1, 3, 3, 3))),
            E(
                "RuntimeError",
                np.ones((1, 2, 4, 4)),
                np.ones((3, 2, 3, 3)),
                None,
                np.ones((2, 3, 2, 2)),
                inplace=True,
            ),
            E(
                "RuntimeError",
                np.ones((1, 2, 4, 4)),
                np.ones((3, 2, 3, 3)),
                packed=np.ones(7, np.uint8),
            ),
        ),
    ),
    Op(F + "conv3d", samples_3d, conv, aliases=("conv3d",), tol=TOL, errors=errors(3)),
    Op(
        F + "conv_transpose1d",
        transposed_1d,
        conv_transpose,
        aliases=("conv_transpose1d",),
        tol=TOL,
        errors=(E("RuntimeError", np.ones((1, 3, 4)), np.ones((2, 3, 3))),),
    ),
    Op(
        F + "conv_transpose2d",
        transposed_2d,
        conv_transpose,
        aliases=("conv_transpose2d",),
        tol=TOL,
        errors=(E("RuntimeError", np.ones((1, 3, 4, 4)), np.ones((2, 3, 3, 3))),),
    ),
    Op(
        F + "conv_transpose3d",
        transposed_3d,
        conv_transpose,
        aliases=("conv_transpose3d",),
        tol=TOL,
        errors=(
            E("RuntimeError", np.ones((1, 3, 4, 4, 4)), np.ones((2, 3, 3, 3, 3))),
            E("RuntimeError", np.ones((1, 2, 4, 4, 4)), np.ones((2, 3, 3, 3, 3)), output_padding=1),
            E("RuntimeError", np.ones((1, 2, 1, 4, 4)), np.ones((2, 3, 1, 3, 3)), padding=1),
        ),
    ),
    Op(
        F + "unfold",
        lambda r: [
            S(r(1, 2, 4, 4), 2),
            S(r(1, 2, 4, 5), (2, 3), 1, 1, 2),
            S(r(2, 1, 5, 6), 2, (2, 1), (0, 1), (1, 3)),
            S(r(1, 3, 2, 2), 1),
        ],
        unfold,
        exact=True,
        errors=(
            E("IndexError", np.ones((4, 4)), 2),
            E("RuntimeError", np.ones((1, 2, 4, 4)), 5),
            E("RuntimeError", np.ones((1, 2, 4, 4)), 2, stride=0),
            E("RuntimeError", np.ones((1, 0, 4, 4)), 2),
        ),
    ),
    Op(
        F + "fold",
        lambda r: [
            S(r(1, 8, 9), 4, 2),
            S(r(1, 12, 9), (4, 5), (2, 3), 1, 1, 2),
            S(r(2, 4, 8), (5, 6), 2, (2, 1), (0, 1), (2, 2)),
        ],
        fold,
        tol=TOL,
        errors=(
            E("RuntimeError", np.ones((1, 2, 3, 4)), 4, 2),
            E("RuntimeError", np.ones((1, 7, 9)), 4, 2),
            E("RuntimeError", np.ones((1, 8, 8)), 4, 2),
            E("RuntimeError", np.ones((1, 8, 9)), 1, 2),
        ),
    ),
]
