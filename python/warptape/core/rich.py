"""Tensors and modules in a notebook: a summary with a small picture of values, and a tree that folds.

Plain `repr` stays PyTorch's.
"""

from __future__ import annotations

import html
import math
from typing import Any

from .. import _C

_MOST = 1 << 22  # elements that statistics read
_ROWS, _COLUMNS = 24, 48  # of the picture
_CELL = 6  # pixels
# Blue, white and red by the place between -1 and 1, as in a map of temperatures.
_LOW, _HIGH = (33, 102, 172), (178, 24, 43)


def _color(value: float) -> str:
    """Of a number between -1 and 1; grey for NaN."""
    if math.isnan(value):
        return "#888"
    end, part = (_HIGH if value > 0 else _LOW), min(abs(value), 1.0)
    return "#" + "".join(f"{round(255 + (channel - 255) * part):02x}" for channel in end)


def picture(rows: list[list[float]]) -> str:
    """Numbers as an SVG of colored cells: white is 0, red and blue are the largest number by magnitude.

    Args:
        rows: of equal length.
    """
    finite = [abs(value) for row in rows for value in row if math.isfinite(value)]
    largest = max(finite, default=0.0) or 1.0
    cells = "".join(
        f'<rect x="{x * _CELL}" y="{y * _CELL}" width="{_CELL}" height="{_CELL}" '
        f'fill="{_color(value / largest)}"/>'
        for y, row in enumerate(rows)
        for x, value in enumerate(row)
    )
    width, height = _CELL * max(map(len, rows), default=0), _CELL * len(rows)
    return f'<svg width="{width}" height="{height}" style="border:1px solid #ccc">{cells}</svg>'


def _statistics(values: _C.TensorBase) -> str:
    """Mean and standard deviation of the finite values, and how many are NaN or infinite."""
    nan, infinite = int(values.isnan().sum()), int(values.isinf().sum())
    finite = values[values.isfinite()]
    parts = []
    if finite.numel():
        parts.append(f"mean {finite.mean().item():.4g}, std {finite.std(correction=0).item():.4g}")
        parts.append(f"min {finite.min().item():.4g}, max {finite.max().item():.4g}")
    parts.append(f"{nan} NaN, {infinite} inf")
    return ", ".join(parts)


def _corner(values: _C.TensorBase) -> Any:
    """The first rows and columns of the last two dims, as a matrix; of several matrices the first."""
    while values.dim() > 2:
        values = values[0]
    matrix = values.reshape(1, -1) if values.dim() < 2 else values
    return matrix[:_ROWS, :_COLUMNS]


def tensor_html(tensor: Any) -> str | None:
    """A summary, a picture and the printed values of a tensor; None where it has no numbers to read.

    Args:
        tensor: of any shape and dtype. Statistics are those of the first 4,194,304 elements.
    """
    if tensor.is_meta or str(tensor.layout) != "torch.strided" or not tensor.numel():
        return None
    flat = tensor.detach().reshape(-1)[:_MOST]
    values = (flat.abs() if tensor.is_complex() else flat).cpu().double()
    shown = _corner(tensor.detach())
    shown = (shown.abs() if tensor.is_complex() else shown).cpu().double()
    grad = ", requires grad" if tensor.requires_grad else ""
    head = f"<b>{type(tensor).__name__}</b> {list(tensor.shape)} {_dtype(tensor)} on {tensor.device}{grad}"
    part = f" (of the first {_MOST:,} elements)" if tensor.numel() > _MOST else ""
    cut = "" if shown.numel() == tensor.numel() else f"<br><small>picture: {list(shown.shape)} of it</small>"
    return (
        f"<div>{head}<br><small>{_statistics(values)}{part}</small><br>{picture(shown.tolist())}{cut}"
        f"<pre>{html.escape(repr(tensor))}</pre></div>"
    )


def _dtype(tensor: _C.TensorBase) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _counted(module: Any) -> str:
    count = sum(p.numel() for p in module.parameters())
    return f"{count:,} parameters" if count else "no parameters"


def module_html(module: Any, name: str = "", level: int = 0) -> str:
    """The tree of a module and those below it; the first two levels are open.

    Args:
        module: any.
        name: of it in its parent.
        level: how deep it lies.
    """
    own = [
        f"<li><code>{html.escape(key)}</code> {list(value.shape)} {_dtype(value)}</li>"
        for key, value in (*module._parameters.items(), *module._buffers.items())
        if value is not None
    ]
    below = [
        f"<li>{module_html(child, key, level + 1)}</li>"
        for key, child in module._modules.items()
        if child is not None
    ]
    said = module.extra_repr()
    title = f"{html.escape(name)}: " if name else ""
    head = f"{title}<b>{type(module).__name__}</b>({html.escape(said)}) <small>{_counted(module)}</small>"
    if not own and not below:
        return head
    inside = "".join([*own, *below])
    opened = " open" if level < 2 and below else ""
    return f'<details{opened}><summary>{head}</summary><ul style="margin:0">{inside}</ul></details>'
