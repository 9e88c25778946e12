"""grid_sample and affine_grid, read point by point."""

from __future__ import annotations

from itertools import product

import numpy as np

from ..table import E, Op, Rng, S, Sample

F = "nn.functional."


def folded(x: float, low: float, high: float) -> float:
    """x mirrored at low and high until it is between them."""
    while high > low and not low <= x <= high:
        x = 2 * low - x if x < low else 2 * high - x
    return x if high > low else 0.0


def placed(x: float, size: int, padding: str, align: bool) -> float:
    if padding == "reflection":
        x = folded(x, 0, size - 1) if align else folded(x, -0.5, size - 0.5)
    return x if padding == "zeros" else min(max(x, 0), size - 1)


def cubic(d: float, a: float = -0.75) -> float:
    d = abs(d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def taps(x: float, size: int, mode: str, padding: str, align: bool) -> list[tuple[float, float]]:
    """(pixel, weight) along one dim."""
    x = (x + 1) / 2 * (size - 1) if align else ((x + 1) * size - 1) / 2
    if mode == "bicubic":
        low = np.floor(x)
        return [(placed(low + i, size, padding, align), cubic(x - low - i)) for i in (-1, 0, 1, 2)]
    x = placed(x, size, padding, align)
    if mode == "nearest":
        return [(np.rint(x), 1.0)]
    low = np.floor(x)
    return [(low, low + 1 - x), (low + 1, x - low)]


def grid_sample(
    image: np.ndarray,
    grid: np.ndarray,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> np.ndarray:
    out = np.zeros((*image.shape[:2], *grid.shape[1:-1]))
    sizes = image.shape[2:]
    for at in np.ndindex(grid.shape[:-1]):
        each = [
            taps(x, n, mode, padding_mode, align_corners) for x, n in zip(grid[at][::-1], sizes, strict=True)
        ]
        for corner in product(*each):
            pixel = tuple(int(p) for p, _ in corner)
            if all(0 <= p < n for p, n in zip(pixel, sizes, strict=True)):
                weight = np.prod([w for _, w in corner])
                out[(at[0], slice(None), *at[1:])] += image[(at[0], slice(None), *pixel)] * weight
    return out


def images(r: Rng, mode: str) -> list[Sample]:
    cases = []
    for padding, align in product(("zeros", "border", "reflection"), (False, True)):
        how = {"mode": mode, "padding_mode": padding, "align_corners": align}
        cases.append(S(r(1, 2, 3, 4), r(1, 2, 3, 2, low=-1.7, high=1.7), **how))
    if mode != "bicubic":
        cases.append(
            S(r(2, 1, 2, 3, 2), r(2, 1, 2, 2, 3, low=-1.3, high=1.3), mode=mode, align_corners=False)
        )
    return cases


MODES, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def by_number(image: np.ndarray, grid: np.ndarray, mode: int, padding: int, align: bool) -> np.ndarray:
    return grid_sample(image, grid, MODES[mode], PADDINGS[padding], align)


def numbered(r: Rng, n: int) -> list[Sample]:
    image, grid = r(1, 2, *(3, 4, 2)[:n]), r(1, *(3, 2, 2)[:n], n, low=-1.7, high=1.7)
    return [S(image, grid, mode, padding, padding == 1) for mode in (0, 1) for padding in (0, 1, 2)]


def affine_grid(theta: np.ndarray, size: tuple[int, ...], align_corners: bool = False) -> np.ndarray:
    n = len(size) - 2
    out = np.zeros((size[0], *size[2:], n))
    for at in np.ndindex(*size[2:]):
        place = [
            0.0
            if length == 1
            else (2 * i + 1) / length - 1
            if not align_corners
            else 2 * i / (length - 1) - 1
            for i, length in zip(at[::-1], size[:1:-1], strict=True)
        ]
        out[(slice(None), *at)] = theta @ np.array([*place, 1.0])
    return out


WIDE = ("float64", "float32")  # positions in half precision fall on other pixels
X, G = np.ones((1, 1, 3, 3)), np.ones((1, 2, 2, 2))
ROWS = [
    *(
        Op(
            F + "grid_sample",
            lambda r, mode=mode: images(r, mode),  # type: ignore[misc]
            grid_sample,
            label=f"grid_sample, {mode}",
            dtypes=WIDE,
            tol={"float32": (2e-5, 2e-5), "float64": (1e-11, 1e-11)},
            python=True,
            errors=(
                E("ValueError", X, G, mode="linear", align_corners=False),
                E("ValueError", X, G, padding_mode="zero", align_corners=False),
                E("RuntimeError", X, np.ones((1, 2, 2, 3)), align_corners=False, match="last dimension"),
                E("RuntimeError", X, np.ones((2, 2, 2, 2)), align_corners=False, match="same batch size"),
                E("RuntimeError", X[0], G, align_corners=False, match="4D or 5D"),
                E("RuntimeError", X[:, :, :0], G, align_corners=False, match="non-empty"),
            ),
            peer=("second_gradient",),
        )
        for mode in ("bilinear", "nearest", "bicubic")
    ),
    *(
        Op(
            f"grid_sampler_{n}d",
            lambda r, n=n: numbered(r, n),  # type: ignore[misc]
            by_number,
            dtypes=WIDE,
            tol={"float32": (2e-5, 2e-5), "float64": (1e-11, 1e-11)},
            errors=(
                E("RuntimeError", X[0], G, 0, 0, False),
                E("ValueError", (X, X[None])[n - 2], G, 3, 0, False, stricter=True),
            ),
            peer=("second_gradient",),
        )
        for n in (2, 3)
    ),
    Op(
        F + "affine_grid",
        lambda r: [
            S(r(2, 2, 3), (2, 3, 4, 5), align_corners=False),
            S(r(2, 2, 3), (2, 3, 1, 5), align_corners=True),
            S(r(1, 3, 4), (1, 1, 2, 3, 2), align_corners=False),
        ],
        affine_grid,
        dtypes=WIDE,
        tol={"float32": (1e-5, 1e-5)},
        python=True,
        errors=(
            E("ValueError", np.ones((1, 2, 2)), (1, 1, 2, 2), align_corners=False, match="affine matrices"),
            E("NotImplementedError", np.ones((1, 2, 3)), (1, 2, 2), align_corners=False),
            E(
                "ValueError",
                np.ones((1, 2, 3)),
                (1, 1, 0, 2),
                align_corners=False,
                match="positive output size",
            ),
        ),
    ),
]
