"""Images read at any places: grid_sample and the grids of affine maps.

Legend: N batch, C channels, D depth, H height, W width (out: of the result).
"""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import warptape
from warptape import _C, Tensor

__all__ = ["affine_grid", "grid_sample"]

_MODES, _PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """x mirrored at both ends of [low, high] until it lies inside."""
    span = high - low
    if span <= 0:
        return warptape.zeros_like(x)
    away = (x - low).abs()
    turns = (away / span).floor()
    rest = away - turns * span
    return warptape.where(turns % 2 == 0, rest + low, high - rest)


def _inside(x: Tensor, size: int, padding: str, align: bool) -> Tensor:
    """Positions in pixels as the padding mode maps them into the image, NaN to 0; unchanged for zeros."""
    if padding == "zeros":
        return x
    if padding == "reflection":
        x = _reflected(x, 0.0, size - 1.0) if align else _reflected(x, -0.5, size - 0.5)
    return warptape.where(x.isnan(), 0.0, x).clamp(0, size - 1)


def _pixels(grid: Tensor, size: int, align: bool) -> Tensor:
    """Positions in [-1, 1] -> in pixels: -1 and 1 are the centres of the outer pixels if `align`, else
    their outer edges."""
    return (grid + 1) * ((size - 1) / 2) if align else ((grid + 1) * size - 1) / 2


def _gathered(flat: Tensor, places: list[Tensor], sizes: list[int]) -> Tensor:
    """flat [N, C, D * H * W] at whole positions [N, *out] per dim; zeros for those outside."""
    index, valid = 0, None
    for at, size in zip(places, sizes, strict=True):
        ok = (at >= 0) & (at < size)
        valid = ok if valid is None else valid & ok
        index = index * size + warptape.where(ok, at, 0.0).long()
    where = index.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1)  # type: ignore[attr-defined]
    found = flat.gather(2, where).reshape(*flat.shape[:2], *places[0].shape[1:])
    return warptape.where(valid.unsqueeze(1), found, 0.0)  # type: ignore[union-attr]


def _cubic(t: Tensor) -> list[Tensor]:
    """Weights of the four pixels around a position, t past the second ("Cubic Convolution Interpolation for
    Digital Image Processing", equation 15, a = -0.75)."""
    a = -0.75

    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taps(x: Tensor, size: int, mode: str, padding: str, align: bool) -> list[tuple[Tensor, Tensor | None]]:
    """(whole position, weight) of what counts along one dim; no weight is 1."""
    if mode == "bicubic":  # positions stay as they are, each of the four pixels is put inside
        low = x.floor()
        around = [_inside(low + i, size, padding, align) for i in (-1, 0, 1, 2)]
        return list(zip(around, _cubic(x - low), strict=True))
    x = _inside(x, size, padding, align)
    if mode == "nearest":
        return [(x.detach().round(), None)]
    low = x.detach().floor()
    return [(low, low + 1 - x), (low + 1, x - low)]


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """[N, C, H, W] read at grid [N, Hout, Wout, 2], (x, y) in [-1, 1] -> [N, C, Hout, Wout]; or
    [N, C, D, H, W] at [N, Dout, Hout, Wout, 3], (x, y, z).

    `mode` is bilinear, nearest or bicubic (images only). What lies outside is zeros, the nearest edge
    (border) or a mirror image (reflection). -1 and 1 are the centres of the outer pixels if `align_corners`,
    else their outer edges.
    """
    if mode not in _MODES:
        raise ValueError(
            "nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: "
            f"'{mode}'"
        )
    if padding_mode not in _PADDINGS:
        raise ValueError(
            "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', "
            f"but got: '{padding_mode}'"
        )
    _check_grid(input, grid, mode)
    align_corners = _aligned("grid_sample", align_corners)
    sizes = list(input.shape[2:])
    flat = input.flatten(2)
    each = [
        _taps(
            _pixels(grid[..., len(sizes) - 1 - d], size, align_corners),
            size,
            mode,
            padding_mode,
            align_corners,
        )
        for d, size in enumerate(sizes)
    ]
    total: Any = None
    for corner in itertools.product(*each):
        part = _gathered(flat, [at for at, _ in corner], sizes)
        weights = [w for _, w in corner if w is not None]
        if weights:
            part = part * math.prod(weights[1:], start=weights[0]).unsqueeze(1)
        total = part if total is None else total + part
    if mode == "nearest" and grid.requires_grad:  # whose gradient is 0
        never = warptape.zeros((), dtype=_C.bool, device=grid.device)
        total = total + warptape.where(never, grid[..., 0], 0.0).unsqueeze(1)
    return total


def _aligned(name: str, align_corners: bool | None) -> bool:
    if align_corners is None:
        warnings.warn(
            f"Default {name} and affine_grid behavior has changed to align_corners=False since 1.3.0. Please "
            f"specify align_corners=True if the old behavior is desired. See the documentation of {name} for "
            "details.",
            stacklevel=3,
        )
    return bool(align_corners)


def _check_grid(input: Tensor, grid: Tensor, mode: str) -> None:
    name, dims = "grid_sampler(): expected", input.dim()
    sizes = f"but got input with sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
    if input.device != grid.device:
        raise _C.DeviceError(
            f"{name} input and grid to be on same device, got {input.device} and {grid.device}"
        )
    if input.dtype != grid.dtype:
        raise _C.DtypeError(
            f"{name} input and grid to have same dtype, but input has {input.dtype} and grid has {grid.dtype}"
        )
    if dims not in (4, 5) or grid.dim() != dims:
        raise _C.ShapeError(f"{name} 4D or 5D input and grid with same number of dimensions, {sizes}")
    if input.shape[0] != grid.shape[0]:
        raise _C.ShapeError(f"{name} grid and input to have same batch size, {sizes}")
    if grid.shape[-1] != dims - 2:
        raise _C.ShapeError(f"{name} grid to have size {dims - 2} in last dimension, {sizes}")
    if 0 in input.shape[2:]:
        raise _C.ShapeError(f"{name} input to have non-empty spatial dimensions, {sizes}")
    if mode == "bicubic" and dims == 5:
        raise _C.ShapeError("grid_sampler(): bicubic interpolation only supports 4D input")


def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Tensor:
    """theta [N, 2, 3] and size (N, C, H, W) -> grid [N, H, W, 2] for `grid_sample`: where the affine map
    theta takes each position; or [N, 3, 4] and (N, C, D, H, W) -> [N, D, H, W, 3]."""
    if not theta.is_floating_point():
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    n = len(size) - 2
    if n not in (2, 3):
        raise NotImplementedError(
            "affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. Got "
            f"size {size}."
        )
    if theta.dim() != 3 or tuple(theta.shape[1:]) != (n, n + 1):
        raise ValueError(
            f"Expected a batch of {n}D affine matrices of shape Nx{n}x{n + 1} for size {size}. Got "
            f"{tuple(theta.shape)}."
        )
    if min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {size}")
    align_corners = _aligned("grid_sample", align_corners)
    made = {"dtype": theta.dtype, "device": theta.device}
    axes = []
    for d, length in enumerate(reversed(size[2:])):
        steps = warptape.linspace(-1, 1, length, **made) if length > 1 else warptape.zeros(1, **made)
        axis = steps if align_corners else steps * ((length - 1) / length)
        axes.append(axis.reshape([-1 if i == n - 1 - d else 1 for i in range(n)]).expand(*size[2:]))
    base = warptape.stack([*axes, warptape.ones(tuple(size[2:]), **made)], -1).reshape(1, -1, n + 1)
    grid = base.expand(theta.shape[0], -1, -1) @ theta.transpose(1, 2)
    return grid.reshape(size[0], *size[2:], n)
