"""Ops that are a few other ops: written in Python, as functions and, where PyTorch has them, as Tensor
methods."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from typing import Any

from . import _C
from ._arguments import checked, same_device
from ._tensor import Tensor

_ops = _C._functions
_nonzero = _C._private._nonzero

__all__ = [
    "allclose",
    "argwhere",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_shapes",
    "broadcast_tensors",
    "can_cast",
    "column_stack",
    "diag",
    "diagflat",
    "dsplit",
    "dstack",
    "equal",
    "fliplr",
    "flipud",
    "hsplit",
    "hstack",
    "isclose",
    "logspace",
    "meshgrid",
    "multinomial",
    "nonzero",
    "promote_types",
    "result_type",
    "rot90",
    "row_stack",
    "tensor_split",
    "trace",
    "tril_indices",
    "triu_indices",
    "unique",
    "vander",
    "vsplit",
    "vstack",
    "where",
]


# ---- joining and splitting
# ----------------------------------------------------------------------------------------------


def _each(tensors: tuple[Any, ...]) -> Sequence[Tensor]:
    return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors


def _mapped(f: Any, tensors: tuple[Any, ...]) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], _C.TensorBase):
        return f(tensors[0])
    return tuple(f(t) for t in _each(tensors))


def atleast_1d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """Each tensor with at least one dim."""
    return _mapped(lambda t: t.reshape(1) if t.ndim == 0 else t, tensors)


def atleast_2d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """Each tensor with at least two dims; new ones come first."""
    return _mapped(lambda t: t.reshape(1, -1) if t.ndim < 2 else t, tensors)


def atleast_3d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """Each tensor with at least three dims: [n] becomes [1, n, 1], [m, n] becomes [m, n, 1]."""

    def widen(t: Tensor) -> Tensor:
        return t.reshape(1, -1, 1) if t.ndim < 2 else t.unsqueeze(-1) if t.ndim == 2 else t

    return _mapped(widen, tensors)


def hstack(tensors: Sequence[Tensor], *, out: Any = None) -> Tensor:
    """Joins along dim 1 (dim 0 of one-dimensional tensors)."""
    parts = atleast_1d(list(tensors))
    return _ops.cat(parts, 0 if parts[0].ndim == 1 else 1, out=out)


def vstack(tensors: Sequence[Tensor], *, out: Any = None) -> Tensor:
    """Joins rows."""
    return _ops.cat(atleast_2d(list(tensors)), 0, out=out)


row_stack = vstack


def dstack(tensors: Sequence[Tensor], *, out: Any = None) -> Tensor:
    """Joins along dim 2."""
    return _ops.cat(atleast_3d(list(tensors)), 2, out=out)


def column_stack(tensors: Sequence[Tensor], *, out: Any = None) -> Tensor:
    """Joins columns; one-dimensional tensors are columns."""
    return hstack([t.reshape(-1, 1) if t.ndim < 2 else t for t in tensors], out=out)


def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of nearly equal length, or cut at the given indices."""
    n = input.shape[dim]
    if isinstance(indices_or_sections, _C.TensorBase):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        if indices_or_sections <= 0:
            raise ValueError(
                f"tensor_split: number of sections must be larger than 0, got {indices_or_sections}"
            )
        size, more = divmod(n, indices_or_sections)
        lengths = [size + 1] * more + [size] * (indices_or_sections - more)
        return _ops.split(input, lengths, dim)
    cuts = [0, *(_clip(i, n) for i in indices_or_sections), n]
    pairs = itertools.pairwise(cuts)
    return tuple(_ops.narrow(input, dim, a, builtins.max(b - a, 0)) for a, b in pairs)


def _clip(i: int, n: int) -> int:
    return builtins.min(builtins.max(i + n if i < 0 else i, 0), n)


def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """tensor_split along dim 1 (dim 0 of a one-dimensional tensor)."""
    return tensor_split(input, indices_or_sections, 0 if input.ndim == 1 else 1)


def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """tensor_split along dim 0."""
    return tensor_split(input, indices_or_sections, 0)


def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """tensor_split along dim 2."""
    return tensor_split(input, indices_or_sections, 2)


# ---- shapes and dtypes
# -----------------------------------------------------------------------------------------------------


def broadcast_shapes(*shapes: Any) -> _C.Size:
    """The shape that tensors of these shapes broadcast to. ShapeError when they do not."""
    sizes = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    return (
        broadcast_tensors(*(_ops.empty(s, device="meta") for s in sizes))[0].shape if sizes else _C.Size(())
    )


def broadcast_tensors(*tensors: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Each tensor expanded to the common shape."""
    each = _each(tensors)
    total = _ops.empty((), device="meta")
    for t in each:
        total = total + _ops.empty(t.shape, device="meta")
    return tuple(t.expand(total.shape) for t in each)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinate grids of one-dimensional tensors; `indexing` is "ij" or "xy"."""
    if not tensors:
        raise TypeError("meshgrid() expects at least one tensor")
    given = _each(tensors)
    if not given:
        raise RuntimeError("meshgrid: expected a list of at least one tensor, got an empty one")
    for t in given:
        if not isinstance(t, _C.TensorBase):
            raise TypeError(f"meshgrid: expected tensors, got {type(t).__name__}")
        if t.ndim > 1:
            raise _C.ShapeError(f"meshgrid: expected 0D or 1D tensors, got shape {tuple(t.shape)}")
    same_device("meshgrid", *given)
    each = [t.reshape(-1) for t in given]
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    swap = indexing == "xy" and len(each) >= 2
    if swap:
        each[0], each[1] = each[1], each[0]
    shape = tuple(t.numel() for t in each)
    grids = [
        t.reshape((1,) * i + (-1,) + (1,) * (len(each) - i - 1)).expand(shape) for i, t in enumerate(each)
    ]
    if swap:
        # The grids of (y, x, ...), in the order (x, y, ...).
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


def promote_types(type1: Any, type2: Any) -> Any:
    """The smallest dtype that both convert to."""
    return (_ops.empty(1, dtype=type1, device="meta") + _ops.empty(1, dtype=type2, device="meta")).dtype


def result_type(tensor1: Any, tensor2: Any) -> Any:
    """The dtype of an arithmetic op on two tensors or numbers."""
    operands = [_meta(t) if isinstance(t, _C.TensorBase) else t for t in (tensor1, tensor2)]
    if not any(isinstance(t, _C.TensorBase) for t in operands):
        operands = [_C._tensor(t, None, None, False, True) for t in operands]
    if all(isinstance(t, _C.TensorBase) and t.dtype is _C.bool for t in operands):
        return _C.bool
    return (operands[0] * operands[1]).dtype


def _meta(t: Tensor) -> Tensor:
    return _ops.empty(t.shape, dtype=t.dtype, device="meta")


def can_cast(from_: _C.dtype, to: _C.dtype) -> bool:
    """Whether a result of one dtype may be stored in another."""

    def category(t: Any) -> int:
        return 3 if t.is_complex else 2 if t.is_floating_point else 0 if t is _C.bool else 1

    return category(from_) <= category(to)


# ---- comparison ------------------------------------------------------------------------------------------
# --------------------


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether both have the same shape and elements."""
    same_device("equal", input, other)
    if input.is_meta:
        raise _C.DeviceError("equal: a meta tensor has no data")
    return input.shape == other.shape and bool(_ops.eq(input, other).all())


def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Where |input - other| <= atol + rtol |other|."""
    if input.dtype is not other.dtype:
        raise _C.DtypeError(f"isclose: expected both of one dtype, got {input.dtype} and {other.dtype}")
    close = input == other
    if input.is_floating_point() or input.is_complex():
        near = (input - other).abs() <= atol + (rtol * other).abs()
        close = close | (near & _ops.isfinite(input) & _ops.isfinite(other))
        if equal_nan:
            close = close | (_ops.isnan(input) & _ops.isnan(other))
        return close
    a, b = input.double(), other.double()
    return close | ((a - b).abs() <= atol + (rtol * b).abs())


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether isclose holds everywhere."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


# ---- positions -------------------------------------------------------------------------------------------
# -----------------------


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Positions of the non-zero elements: int64 [count, ndim], or one vector per dim."""
    found = _nonzero(input if input.ndim or not as_tuple else input.reshape(1))
    return found.unbind(1) if as_tuple else found


def argwhere(input: Tensor) -> Tensor:
    """Positions of the non-zero elements, int64 [count, ndim]."""
    return _nonzero(input)


def where(condition: Tensor, *choices: Any, input: Any = None, other: Any = None, out: Any = None) -> Any:
    """input where condition is set, else other; positions of the set elements without them."""
    if not choices and input is None and other is None:
        return nonzero(condition, as_tuple=True)
    a, b = (*choices, *(c for c in (input, other) if c is not None))
    return _ops.where(condition, a, b) if out is None else _ops.where(condition, a, b, out=out)


def _triangle_indices(row: int, col: int, offset: int, lower: bool, dtype: Any, device: Any) -> Tensor:
    rows, cols = _ops.arange(row).reshape(-1, 1), _ops.arange(col).reshape(1, -1)
    inside = cols - rows <= offset if lower else cols - rows >= offset
    return _nonzero(inside).t().contiguous().to(device=device, dtype=dtype or _C.int64)


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Positions of the lower triangle, [2, count]."""
    return _triangle_indices(row, col, offset, True, dtype, device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Positions of the upper triangle, [2, count]."""
    return _triangle_indices(row, col, offset, False, dtype, device)


# ---- matrices --------------------------------------------------------------------------------------------
# ---------------------


def diag(input: Tensor, diagonal: int = 0, *, out: Any = None) -> Tensor:
    """The diagonal of a matrix, or the matrix with a vector as its diagonal."""
    if input.ndim not in (1, 2):
        raise _C.ShapeError(f"diag: Supports 1D or 2D tensors. Got {input.ndim}D")
    found = _ops.diag_embed(input, diagonal) if input.ndim == 1 else _ops.diagonal(input, diagonal).clone()
    return found if out is None else _C._write_out("diag", out, found)


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The matrix with the flattened input as its diagonal."""
    return _ops.diag_embed(input.reshape(-1), offset)


def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    if input.ndim != 2:
        raise _C.ShapeError(f"trace: expected a matrix, but got tensor with dim {input.ndim}")
    if _C._get_autocast(input.is_cuda)[0] and input.dtype in (_C.bfloat16, _C.float16):
        input = input.float()
    return _ops.diagonal(input).sum()


def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """The plane of two dims turned by 90 degrees k times, from the first towards the second."""
    a, b = dims
    k %= 4
    if k == 0:
        return input.clone()
    if k == 2:
        return _ops.flip(input, (a, b))
    turned = _ops.transpose(input, a, b)
    return _ops.flip(turned, (a,)) if k == 1 else _ops.flip(turned, (b,))


def fliplr(input: Tensor) -> Tensor:
    """Columns in reverse order."""
    return _ops.flip(input, (1,))


def flipud(input: Tensor) -> Tensor:
    """Rows in reverse order."""
    return _ops.flip(input, (0,))


def vander(x: Tensor, N: int | None = None, *, increasing: bool = False) -> Tensor:
    """The matrix of powers of x."""
    n = x.numel() if N is None else N
    powers = _ops.arange(n) if increasing else _ops.arange(n - 1, -1, -1)
    return x.unsqueeze(-1) ** powers


def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """base ** linspace(start, end, steps). The bounds of integers lose their fractions."""
    dtype = _ops.empty(0, dtype=dtype).dtype if out is None else out.dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        start, end = int(start), int(end)
    exponents = _ops.linspace(start, end, steps, dtype=_C.float64, device=device)
    found = _ops.pow(float(base), exponents).to(dtype)
    return found if out is None else _C._write_out("logspace", out, found)


# ---- sets ------------------------------------------------------------------------------------------------
# ------------------------


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements in order; on request where each element went, and how often each occurs."""
    if dim is not None:
        raise NotImplementedError("unique: dim is not supported yet")
    flat = input.detach().reshape(-1)
    values, order = _ops.sort(flat, stable=True)
    fresh = _ops.ones(flat.numel(), dtype=_C.bool)
    if flat.numel() > 1:
        fresh[1:] = values[1:] != values[:-1]
    out: list[Tensor] = [values[fresh]]
    if return_inverse:
        inverse = _ops.empty(flat.numel(), dtype=_C.int64)
        inverse[order] = fresh.long().cumsum(0) - 1
        out.append(inverse.reshape(input.shape))
    if return_counts:
        starts = _nonzero(fresh).reshape(-1)
        ends = _ops.cat([starts[1:], _ops.full((1,), flat.numel(), dtype=_C.int64)])
        out.append((ends - starts) if flat.numel() else starts)
    return out[0] if len(out) == 1 else tuple(out)


# ---- draws -----------------------------------------------------------------------------------------------
# -----------------------


def _running_sum(x: Tensor) -> Tensor:
    """Rounded at each step, as PyTorch's multinomial adds; cumsum is more exact."""
    x = x if x.dtype in (_C.float32, _C.float64) else x.float()
    if x.device.type != "cpu":
        return x.cumsum(-1)
    import numpy as np

    return _C.from_numpy(np.cumsum(x.numpy(), -1, dtype=x.numpy().dtype))


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None, out: Any = None
) -> Tensor:
    """int64 [*, num_samples]: indices drawn with the probabilities (up to a factor) of input's last dim.

    Raises:
        RuntimeError: negative, infinite or NaN weights, rows that sum to 0, more samples than
        weights that are not 0.
    """
    if input.ndim not in (1, 2) or not input.is_floating_point():
        raise RuntimeError(
            f"multinomial: expected one or two dims of a floating dtype, got {input.shape} {input.dtype}"
        )
    if num_samples <= 0:
        raise RuntimeError(f"multinomial: cannot sample n_sample <= 0 samples, got {num_samples}")
    weights = input.detach().double()
    if not replacement and num_samples > input.shape[-1]:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if input.is_meta:
        return _ops.empty((*input.shape[:-1], num_samples), dtype=_C.int64, device="meta")
    if bool(((weights < 0) | ~_ops.isfinite(weights)).any()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if bool((weights.sum(-1) <= 0).any()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if not replacement and num_samples > int((weights > 0).sum(-1).min()):
        raise RuntimeError(
            "invalid multinomial distribution (with replacement=False, not enough non-negative "
            "category to sample)"
        )
    if replacement and num_samples > 1:
        edges = _running_sum(input.detach())
        shape = (*input.shape[:-1], num_samples)
        draws = _ops.rand(shape, generator=generator, dtype=_C.float64, device=input.device)
        found = _ops.searchsorted((edges / edges[..., -1:]).double(), draws).clamp(max=input.shape[-1] - 1)
    else:
        # The largest of weight / Exp(1) are a draw without replacement (Efraimidis and Spirakis, 2006); in
        # the weights' own dtype, so that one seed gives PyTorch's draws.
        races = input.detach() / _ops.empty_like(input).exponential_(generator=generator)
        found = races.argmax(-1, True) if num_samples == 1 else _ops.topk(races, num_samples, -1)[1]
    return found if out is None else _C._write_out("multinomial", out, found)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])

for _name in [
    "allclose",
    "argwhere",
    "diag",
    "diagflat",
    "equal",
    "fliplr",
    "flipud",
    "isclose",
    "nonzero",
    "rot90",
    "tensor_split",
    "trace",
    "unique",
    "hsplit",
    "vsplit",
    "dsplit",
    "multinomial",
]:
    setattr(Tensor, _name, globals()[_name])


def _where_method(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    return _ops.where(condition, self, other)


setattr(Tensor, "where", _where_method)  # noqa: B010
