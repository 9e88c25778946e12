"""torchvision's compiled ops: boxes that suppress each other, pooled regions, displaced convolution."""

from __future__ import annotations

from itertools import product

import numpy as np

from ..table import E, Op, Rng, S, Sample

OPS = "ops.torchvision."
WIDE = ("float64", "float32")  # positions in half precision fall on other pixels
TOL = {"float32": (2e-5, 2e-5), "float64": (1e-11, 1e-11)}


def nms(boxes: np.ndarray, scores: np.ndarray, threshold: float) -> np.ndarray:
    kept: list[int] = []
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for i in np.argsort(-scores, kind="stable"):
        for k in kept:
            low, high = np.maximum(boxes[i, :2], boxes[k, :2]), np.minimum(boxes[i, 2:], boxes[k, 2:])
            shared = np.prod(np.maximum(high - low, 0))
            if shared / (area[i] + area[k] - shared) > threshold:
                break
        else:
            kept.append(int(i))
    return np.array(kept, np.int64)


def pixel(image: np.ndarray, y: float, x: float) -> np.ndarray:
    """image [C, H, W] between pixels, those outside counting 0."""
    total = np.zeros(len(image))
    for i, j in product((0, 1), (0, 1)):
        at = int(np.floor(y)) + i, int(np.floor(x)) + j
        if 0 <= at[0] < image.shape[1] and 0 <= at[1] < image.shape[2]:
            total += image[:, at[0], at[1]] * (1 - abs(y - at[0])) * (1 - abs(x - at[1]))
    return total


def mean_of_bin(image: np.ndarray, low: np.ndarray, size: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The mean of grid[0] * grid[1] places of a bin, each clamped into the image unless a pixel outside."""
    total = np.zeros(len(image))
    last = np.array(image.shape[1:]) - 1
    for i in np.ndindex(*grid):
        at = low + (np.array(i) + 0.5) * size / grid
        if (at >= -1).all() and (at <= last + 1).all():
            total += pixel(image, *np.clip(at, 0, last))
    return total / max(np.prod(grid), 1)


def align(
    maps: np.ndarray,
    rois: np.ndarray,
    scale: float,
    rows: int,
    columns: int,
    sampling: int,
    aligned: bool,
    by_position: bool = False,
) -> np.ndarray:
    bins = np.array([rows, columns])
    channels = maps.shape[1] // (rows * columns if by_position else 1)
    out = np.zeros((len(rois), channels, rows, columns))
    for k, roi in enumerate(rois):
        low, high = roi[[2, 1]] * scale - aligned / 2, roi[[4, 3]] * scale - aligned / 2
        length = high - low if aligned else np.maximum(high - low, 1)
        grid = np.full(2, sampling) if sampling > 0 else np.ceil(length / bins).astype(int)
        for i in np.ndindex(rows, columns):
            image = maps[int(roi[0])]
            if by_position:
                image = image.reshape(channels, rows, columns, *maps.shape[2:])[:, i[0], i[1]]
            out[(k, slice(None), *i)] = mean_of_bin(
                image, low + np.array(i) * length / bins, length / bins, grid
            )
    return out


def whole(
    roi: np.ndarray, scale: float, bins: np.ndarray, i: tuple[int, ...], extra: int, most: np.ndarray
) -> tuple:
    """Slices of a bin of whole pixels."""
    low, high = (np.floor(np.abs(at) * scale + 0.5) * np.sign(at) for at in (roi[[2, 1]], roi[[4, 3]]))
    size = np.maximum(high - low + extra, 1) / bins
    begin = np.clip(low + np.floor(np.array(i) * size), 0, most).astype(int)
    end = np.clip(low + np.ceil((np.array(i) + 1) * size), 0, most).astype(int)
    return slice(begin[0], end[0]), slice(begin[1], end[1])


def roi_pool(maps: np.ndarray, rois: np.ndarray, scale: float, rows: int, columns: int) -> tuple:
    out = np.zeros((len(rois), maps.shape[1], rows, columns))
    place = np.full(out.shape, -1, np.int32)
    numbers = np.arange(maps.shape[2] * maps.shape[3]).reshape(maps.shape[2:])
    for k, c, i, j in np.ndindex(*out.shape):
        part = whole(rois[k], scale, np.array([rows, columns]), (i, j), 1, np.array(maps.shape[2:]))
        found = maps[int(rois[k, 0]), c][part]
        if found.size:
            out[k, c, i, j] = found.max()
            place[k, c, i, j] = numbers[part].flat[found.argmax()]
    return out, place


def channels(out: np.ndarray) -> tuple:
    return out, np.broadcast_to(
        np.arange(np.prod(out.shape[1:]), dtype=np.int32).reshape(out.shape[1:]), out.shape
    )


def ps_roi_pool(maps: np.ndarray, rois: np.ndarray, scale: float, rows: int, columns: int) -> tuple:
    out = np.zeros((len(rois), maps.shape[1] // (rows * columns), rows, columns))
    for k, c, i, j in np.ndindex(*out.shape):
        part = whole(rois[k], scale, np.array([rows, columns]), (i, j), 0, np.array(maps.shape[2:]) - 1)
        found = maps[int(rois[k, 0]), (c * rows + i) * columns + j][part]
        out[k, c, i, j] = found.mean() if found.size else 0
    return channels(out)


def ps_roi_align(
    maps: np.ndarray, rois: np.ndarray, scale: float, rows: int, columns: int, sampling: int
) -> tuple:
    return channels(align(maps, rois, scale, rows, columns, sampling, True, True))


def deform(
    x: np.ndarray, weight: np.ndarray, offset: np.ndarray, mask: np.ndarray, bias: np.ndarray, *numbers: int
) -> np.ndarray:
    *numbers, groups, shared, use_mask = numbers
    stride, padding, dilation = np.array(numbers).reshape(3, 2)
    (n, _, height, width), (kh, kw) = offset.shape, weight.shape[2:]
    out = np.zeros((n, len(weight), height, width))
    places = offset.reshape(n, shared, kh, kw, 2, height, width)
    factors = (
        mask.reshape(n, shared, kh, kw, height, width) if use_mask else np.ones(places[:, :, :, :, 0].shape)
    )
    for b, s, i, j, p, q in np.ndindex(*factors.shape):
        at = np.array([p, q]) * stride - padding + np.array([i, j]) * dilation + places[b, s, i, j, :, p, q]
        own = slice(s * x.shape[1] // shared, (s + 1) * x.shape[1] // shared)
        read = np.zeros(x.shape[1])
        if (at > -1).all() and (at < x.shape[2:]).all():
            read[own] = pixel(x[b, own], *at) * factors[b, s, i, j, p, q]
        for g in range(groups):
            rows = slice(g * len(weight) // groups, (g + 1) * len(weight) // groups)
            cut = slice(g * x.shape[1] // groups, (g + 1) * x.shape[1] // groups)
            out[b, rows, p, q] += weight[rows, :, i, j] @ read[cut]
    return out + bias[:, None, None]


# Images 1, 0 and 1: inside, across an edge, and far outside.
ROIS = np.array(
    [[1, 0.7, 1.3, 4.1, 3.8], [0, -2.2, -1.7, 3.3, 2.6], [1, 30.2, 20.1, 40.3, 29.7], [0, 2.2, 1.1, 2.4, 1.2]]
)


def boxes(r: Rng, count: int) -> np.ndarray:
    low = r(count, 2)
    return np.concatenate([low, low + r.positive(count, 2)], 1)


def displaced(r: Rng) -> list[Sample]:
    found = []
    for stride, padding, dilation, groups, shared, use_mask in (
        ((1, 1), (1, 0), (1, 1), 1, 1, True),
        ((2, 1), (2, 1), (1, 2), 2, 1, False),
        ((1, 2), (1, 1), (2, 1), 1, 2, True),
    ):
        size = [
            (s + 2 * p - d * (k - 1) - 1) // t + 1
            for s, p, d, k, t in zip((4, 5), padding, dilation, (2, 3), stride, strict=True)
        ]
        numbers = (*stride, *padding, *dilation, groups, shared, use_mask)
        mask = r(2, shared * 6, *size)
        arrays = (r(2, 4, 4, 5), r(6, 4 // groups, 2, 3), r(2, shared * 12, *size), mask, r(6))
        found.append(S(*arrays, *numbers))
    return found


X, R, B = np.ones((2, 4, 5, 6)), ROIS, np.ones((2, 4))
SHAPES = "rois must have shape"
ROWS = [
    Op(
        OPS + "nms",
        lambda r: (
            [S(boxes(r, n), r.positive(n), t) for n in (1, 7, 150) for t in (0.0, 0.2, 0.6)]
            + [S(boxes(r, 9), np.ones(9), 0.3), S(np.zeros((0, 4)), np.zeros(0), 0.5)]
        ),
        nms,
        dtypes=WIDE,
        result="int64",
        grad=False,
        meta=False,
        python=True,
        errors=(
            E("RuntimeError", B[0], B[0], 0.5, match="2d tensor"),
            E("RuntimeError", B[:, :3], B[:, 0], 0.5, match="4 elements"),
            E("RuntimeError", B, B, 0.5, match="1d tensor"),
            E("RuntimeError", B, np.ones(3), 0.5, match="same number of elements"),
            E("RuntimeError|TypeError", B, B[:, 0], 0.5, dtype="float16", match="float32 or float64"),
        ),
    ),
    Op(
        OPS + "roi_align",
        lambda r: [
            S(r(2, 2, 5, 6), ROIS, scale, 2, 3, sampling, aligned)
            for scale in (1.0, 0.5)
            for sampling in (0, 2)
            for aligned in (False, True)
        ],
        align,
        dtypes=WIDE,
        tol=TOL,
        nograd=(1,),
        python=True,
        errors=(
            E("RuntimeError", X, R[:, :4], 1.0, 2, 2, 1, False, match=SHAPES),
            E("RuntimeError", X[0], R, 1.0, 2, 2, 1, False, match=r"\[N, C, H, W\]"),
            E(
                "IndexError",
                X[:1],
                R,
                1.0,
                2,
                2,
                1,
                False,
                match="region of image 1",
                stricter=True,
                host=True,
            ),
            E("ValueError", X, R, 1.0, 0, 2, 1, False, match="expected bins", stricter=True),
        ),
    ),
    Op(
        OPS + "roi_pool",
        lambda r: [S(r(2, 2, 5, 6), ROIS, scale, 2, 3) for scale in (1.0, 0.5)],
        roi_pool,
        dtypes=WIDE,
        result=("same", "int32"),
        nograd=(1,),
        python=True,
        errors=(E("RuntimeError", X, R[:, :4], 1.0, 2, 2, match=SHAPES),),
    ),
    Op(
        OPS + "ps_roi_align",
        lambda r: [S(r(2, 8, 5, 6), ROIS, scale, 2, 2, 2) for scale in (1.0, 0.5)],
        ps_roi_align,
        dtypes=WIDE,
        tol=TOL,
        result=("same", "int32"),
        nograd=(1,),
        python=True,
        errors=(E("RuntimeError", X, R, 1.0, 3, 2, 1, match="multiple of pooling height"),),
    ),
    Op(
        OPS + "ps_roi_pool",
        lambda r: [S(r(2, 8, 5, 6), ROIS, scale, 2, 2) for scale in (1.0, 0.5)],
        ps_roi_pool,
        dtypes=WIDE,
        tol=TOL,
        result=("same", "int32"),
        nograd=(1,),
        python=True,
        errors=(E("RuntimeError", X, R, 1.0, 3, 2, match="multiple of pooling height"),),
    ),
    Op(
        OPS + "deform_conv2d",
        displaced,
        deform,
        dtypes=WIDE,
        tol=TOL,
        python=True,
        errors=(
            E(
                "RuntimeError",
                X,
                np.ones((2, 4, 1, 1)),
                np.ones((2, 2, 5, 6)),
                X,
                np.ones(3),
                1,
                1,
                0,
                0,
                1,
                1,
                1,
                1,
                False,
                match="expected bias of 2",
            ),
            E(
                "RuntimeError",
                X,
                np.ones((2, 4, 1, 1)),
                np.ones((2, 2, 5, 5)),
                X,
                np.ones(2),
                1,
                1,
                0,
                0,
                1,
                1,
                1,
                1,
                False,
                match="expected offset",
            ),
            E(
                "RuntimeError",
                X,
                np.ones((2, 3, 1, 1)),
                np.ones((2, 2, 5, 6)),
                X,
                np.ones(2),
                1,
                1,
                0,
                0,
                1,
                1,
                1,
                1,
                False,
                match="does not fit input",
            ),
            E(
                "ValueError",
                X,
                np.ones((2, 4, 1, 1)),
                np.ones((2, 2, 5, 6)),
                X,
                np.ones(2),
                0,
                1,
                0,
                0,
                1,
                1,
                1,
                1,
                False,
                match="positive strides",
            ),
        ),
    ),
]
