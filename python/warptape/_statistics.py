"""Counts, quantiles, covariances and integrals of samples: functions and Tensor methods."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

from . import _C
from ._arguments import checked
from ._tensor import Tensor

_ops = _C._functions
diff = _ops.diff

__all__ = [
    "bincount",
    "corrcoef",
    "cov",
    "cumulative_trapezoid",
    "gradient",
    "histc",
    "histogram",
    "mode",
    "nanquantile",
    "quantile",
    "trapezoid",
    "trapz",
]

_Histogram = namedtuple("histogram", ["hist", "bin_edges"])
_Mode = namedtuple("mode", ["values", "indices"])


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each of 0 … max(input) occurs in the integers (n,), or the sums of their `weights` (n,).

    Raises:
        RuntimeError: negative or other numbers than integers, more than one dim, weights of another size, or
        a
            negative `minlength`.
    """
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if input.ndim != 1 or input.is_floating_point() or (input.numel() and bool((input < 0).any())):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != input.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    n = max(minlength, int(input.max()) + 1 if input.numel() else 0)
    if weights is None:
        weights = _ops.ones(input.shape, dtype=_C.int64, device=input.device)
    elif weights.dtype != _C.float32:
        weights = weights.double()
    return weights.detach().new_zeros(n).index_add_(0, input.long(), weights.detach())


def _edges(input: Tensor, low: float, high: float) -> tuple[float, float]:
    if low == high and input.numel():
        low, high = float(input.min()), float(input.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RuntimeError(f"histogram: range of [{low}, {high}] is not finite")
    if low > high:
        raise RuntimeError("max must be larger than min")
    return (low - 1, high + 1) if low == high else (low, high)


def histc(
    input: Tensor, bins: int = 100, min: float = 0, max: float = 0, *, out: Tensor | None = None
) -> Tensor:
    """How many elements lie in each of `bins` parts of equal width of [min, max]; others are left out.

    With min == max the range is that of the elements. The counts are in the input's dtype.
    """
    if bins <= 0:
        raise RuntimeError("bins must be > 0")
    low, high = _edges(input, min, max)
    x = input.detach().reshape(-1).double()
    x = x[(x >= low) & (x <= high)]
    place = ((x - low) * (bins / (high - low))).long().clamp(max=bins - 1)
    found = bincount(place, minlength=bins).to(input.dtype)
    return found if out is None else _C._write_out("histc", out, found)


def histogram(
    input: Tensor,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Any:
    """(hist, bin_edges): `bins` parts of equal width of `range`, or the parts between the edges `bins`."""
    if isinstance(bins, Tensor):
        edges = bins
    else:
        low, high = _edges(input, *(range or (0, 0)))
        edges = _ops.linspace(low, high, bins + 1, dtype=input.dtype, device=input.device)
    x = input.detach().reshape(-1).contiguous()
    w = _ops.ones_like(x) if weight is None else weight.reshape(-1)
    inside = (x >= edges[0]) & (x <= edges[-1])
    place = _ops.searchsorted(edges, x[inside], right=True).clamp(max=edges.numel() - 1) - 1
    found = bincount(place, w[inside].double(), edges.numel() - 1).to(input.dtype)
    return _Histogram(found / (found.sum() * diff(edges)) if density else found, edges)


def _quantile(
    input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, skips: bool
) -> Tensor:
    op = "nanquantile" if skips else "quantile"
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise RuntimeError(
            f"{op}() interpolation must be one of linear, lower, higher, midpoint or nearest, but got "
            f"{interpolation}"
        )
    if input.dtype not in (_C.float32, _C.float64):
        raise RuntimeError(f"{op}() input tensor must be either float or double dtype")
    scalar = not isinstance(q, Tensor) or q.ndim == 0
    q = q if isinstance(q, Tensor) else _ops.full((), q, dtype=input.dtype, device=input.device)
    if q.dtype != input.dtype:
        raise RuntimeError(f"{op}() q tensor must be same dtype as the input tensor")
    if q.ndim > 1 or (not q.is_meta and q.numel() and not bool(((q >= 0) & (q <= 1)).all())):
        raise RuntimeError(f"{op}() q values must be in the range [0, 1], in a scalar or 1D tensor")
    if input.numel() == 0:
        raise RuntimeError(f"{op}() input tensor must be non-empty")
    x = (input.reshape(-1) if dim is None else input.movedim(dim, -1)).sort(-1)[0]  # nan comes last
    missing = x.isnan().sum(-1, keepdim=True)
    count = x.shape[-1] - missing if skips else _ops.full_like(missing, x.shape[-1])
    rank = q.reshape(-1) * (count - 1).clamp(min=0)
    below = rank.floor()
    if interpolation == "nearest":
        below = rank.round()
    lower = x.gather(-1, (rank.ceil() if interpolation == "higher" else below).long())
    if interpolation in ("linear", "midpoint"):
        upper = x.gather(-1, rank.ceil().long())
        lower = lower.lerp(
            upper, 0.5 * (rank != below).to(x.dtype) if interpolation == "midpoint" else rank - below
        )
    if not skips:
        lower = _ops.where(missing > 0, math.nan, lower)
    found = lower.movedim(-1, 0)
    if keepdim:
        found = (
            found.unsqueeze(1 + dim % input.ndim)
            if dim is not None
            else found.reshape([-1] + [1] * input.ndim)
        )
    return found[0] if scalar else found


def quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: Tensor | None = None,
) -> Tensor:
    """The q-quantiles along `dim`, or of all elements; nan where one is among them.

    Args:
        input: float32 or float64.
        q: a number in [0, 1], or several (n,), which become the result's first dim.
        dim: the dim; None takes all elements.
        keepdim: whether the dim stays, with size 1.
        interpolation: "linear", "lower", "higher", "midpoint" or "nearest", for ranks between two elements.
        out: where the result goes.

    Raises:
        RuntimeError: another dtype, q outside of [0, 1], no elements, or another interpolation.
    """
    found = _quantile(input, q, dim, keepdim, interpolation, False)
    return found if out is None else _C._write_out("quantile", out, found)


def nanquantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: Tensor | None = None,
) -> Tensor:
    """`quantile` of the elements that are not nan."""
    found = _quantile(input, q, dim, keepdim, interpolation, True)
    return found if out is None else _C._write_out("nanquantile", out, found)


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """(values, indices): along `dim` the most frequent value, the smallest of several, and where it last
    occurs."""
    x = input.movedim(dim, -1) if input.ndim else input.reshape(1)
    values, order = x.sort(-1, stable=True)
    first = _ops.searchsorted(values.contiguous(), values.contiguous())
    runs = _ops.arange(x.shape[-1], device=x.device) - first
    at = runs.argmax(-1, keepdim=True)
    value, index = values.gather(-1, at), order.gather(-1, at)
    if not input.ndim:
        return _Mode(value.reshape(()), index.reshape(()))
    if keepdim:
        return _Mode(value.movedim(-1, dim), index.movedim(-1, dim))
    return _Mode(value.squeeze(-1), index.squeeze(-1))


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """The covariances (v, v) of variables in the rows of (v, n).

    Args:
        input: at most two dims.
        correction: subtracted from the number of samples in the divisor.
        fweights: how often each sample counts, integers (n,).
        aweights: the importance of each sample (n,).

    Raises:
        RuntimeError: more dims, or weights below 0 or nan.
    """
    if input.ndim > 2:
        raise RuntimeError(
            f"cov(): expected input to have two or fewer dimensions but got an input with {input.ndim}"
        )
    x = input.reshape(1, -1) if input.ndim < 2 else input
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is not None and not bool((given >= 0).all()):
            raise RuntimeError(f"cov(): {name} cannot be negative")
    weights: Tensor | None = fweights
    if aweights is not None:
        weights = aweights if weights is None else weights * aweights
    if weights is None:
        total: Any = x.shape[1]
        mean = x.mean(1, keepdim=True)
        scaled = x - mean
    else:
        total = weights.sum()
        mean = (x * weights).sum(1, keepdim=True) / total
        scaled = (x - mean) * weights
    if aweights is None:
        divisor = total - correction
    else:
        divisor = total - correction * (weights * aweights).sum() / total  # type: ignore[operator]
    found = (
        (x - mean) @ scaled.mH / (divisor.clamp(min=0) if isinstance(divisor, Tensor) else max(divisor, 0))
    )
    return found.squeeze()


def corrcoef(input: Tensor) -> Tensor:
    """The correlations (v, v) of variables in the rows of (v, n), in [-1, 1]."""
    c = cov(input)
    if c.ndim == 0:
        return c / c
    root = c.diagonal().sqrt()
    return (c / root.unsqueeze(0) / root.unsqueeze(1)).clamp(-1, 1)


def _widths(y: Tensor, x: Any, dx: Any, dim: int) -> Any:
    if x is None:
        return dx if dx is not None else 1
    if x.ndim == 1:
        return diff(x).reshape([-1 if i == dim % y.ndim else 1 for i in range(y.ndim)])
    return diff(x, dim=dim)


def _trapezoids(y: Tensor, x: Any, dx: Any, dim: int) -> Tensor:
    """Twice their areas, in the dtype of y and x."""
    n = y.shape[dim]
    if n == 0:
        return y * _widths(y, x, dx, dim) if x is None else y
    return (y.narrow(dim, 1, n - 1) + y.narrow(dim, 0, n - 1)) * _widths(y, x, dx, dim)


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The integral of `y` along `dim` by the trapezoidal rule, over the places `x` or with steps of `dx`
    (1)."""
    if y.shape[dim] == 0:
        return y.new_zeros(y.sum(dim).shape)
    return _trapezoids(y, x, dx, dim).sum(dim) / 2


def trapz(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """`trapezoid` under its other name."""
    return trapezoid(y, x, dx=dx, dim=dim)


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The integrals of `trapezoid` up to each place after the first."""
    return _trapezoids(y, x, dx, dim).cumsum(dim) / 2


def gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """The derivative of samples along each dim, of second order inside and of `edge_order` (1 or 2) at the
    ends.

    `spacing` is a number, one for each dim, or tensors of coordinates.
    """
    dims = range(input.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    each = spacing if isinstance(spacing, Sequence) else [spacing] * len(dims)
    return tuple(_slope(input, d, s, edge_order) for d, s in zip(dims, each))


def _slope(y: Tensor, dim: int, spacing: Any, edge_order: int) -> Tensor:
    n = y.shape[dim]
    if n < edge_order + 1:
        raise RuntimeError(
            f"torch.gradient expected each dimension size to be at least edge_order+1, got {n}"
        )
    y = y.movedim(dim, -1)
    x = (
        spacing
        if isinstance(spacing, Tensor) and spacing.ndim
        else _ops.arange(n, device=y.device).to(y.dtype) * spacing
    )
    h = diff(x)
    steps = diff(y) / h
    a, b = h[:-1], h[1:]
    if x is spacing:
        below, at, above = -b / (a * (a + b)), (b - a) / (a * b), a / (b * (a + b))
        inner = below * y[..., :-2] + at * y[..., 1:-1] + above * y[..., 2:]
    else:  # the element itself has no part in it
        inner = (y[..., 2:] - y[..., :-2]) / (2 * spacing)
    first, last = steps[..., :1], steps[..., -1:]
    if edge_order == 2:
        first = first + (first - steps[..., 1:2]) * h[0] / (h[0] + h[1])
        last = last + (last - steps[..., -2:-1]) * h[-1] / (h[-1] + h[-2])
    return _ops.cat([first, inner, last], -1).movedim(-1, dim)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
    if _name not in ("cumulative_trapezoid", "gradient", "trapezoid", "trapz"):
        setattr(Tensor, _name, globals()[_name])
