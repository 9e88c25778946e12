"""Between NumPy and the runtime under test: rounding to a dtype, layouts, tensors in and arrays out.

`rt` is the runtime: warptape, or torch when the table itself is proven against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .table import FLOATS, D, Op, Sample, Under, tree_map

device = "cpu"  # the device under test: set once, when the session starts
INT_SCALE = 3  # float samples lie within a few units; integers need more than a handful of values


def round_bfloat16(values: np.ndarray) -> np.ndarray:
    """Nearest bfloat16 (ties to even), as float32."""
    single = np.asarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(single), rounded, single).astype(np.float32).reshape(single.shape)


def narrow(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` in the NumPy dtype that carries `dtype` (bfloat16 travels as float32); integers wrap as in
    C."""
    if dtype == "bfloat16":
        return round_bfloat16(values)
    if dtype == "bool":
        return np.asarray(values).astype(np.bool_)
    if dtype in FLOATS:
        return np.asarray(values).astype(dtype)
    return np.asarray(values).astype(np.int64).astype(dtype)


def widen(values: np.ndarray) -> np.ndarray:
    """float64, int64 or bool: what references compute in."""
    kind = values.dtype.kind
    return values.astype({"f": np.float64, "i": np.int64, "u": np.int64, "b": np.bool_}[kind])


def under_test(values: np.ndarray, dtype: str) -> np.ndarray:
    """A float64 sample as values of the dtype under test (in the carrier of `narrow`)."""
    if dtype == "bool":
        return np.asarray(values > 0)
    if dtype in FLOATS:
        return narrow(values, dtype)
    scaled = np.rint(values * INT_SCALE)
    return narrow(np.abs(scaled) if dtype == "uint8" else scaled, dtype)


def is_under_test(value: Any) -> bool:
    """True for the float64 arrays of a sample, which are cast to the tested dtype."""
    return isinstance(value, np.ndarray) and value.dtype == np.float64


def expand_values(values: np.ndarray) -> np.ndarray:
    """The values of an expanded tensor: the last dimension repeats its first entry."""
    if values.ndim == 0 or values.shape[-1] < 2:
        return values
    return np.ascontiguousarray(np.broadcast_to(values[..., :1], values.shape))


def concrete(sample: Sample, dtype: str, layout: str = "contiguous") -> Sample:
    """`sample` with its arrays in carriers of the tested dtype: what tensors are made of."""

    def leaf(value: Any) -> Any:
        if is_under_test(value):
            value = under_test(value, dtype)
            return expand_values(value) if layout == "expanded" else value
        return value

    return Sample(
        tree_map(leaf, sample.args), tree_map(leaf, dict(sample.kwargs)), sample.dtypes, sample.grad
    )


def reference(op: Op, sample: Sample, dtype: str) -> Any:
    """What the row's reference gives for a concrete sample."""

    def leaf(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            wide = widen(value)  # NumPy computes functions of booleans in half precision
            return wide.astype(np.float64) if op.result == "float" and wide.dtype == bool else wide
        if isinstance(value, Under):
            return dtype
        return value.name if isinstance(value, D) else value

    with np.errstate(all="ignore"):
        return op.ref(*tree_map(leaf, sample.args), **tree_map(leaf, dict(sample.kwargs)))


def from_array(rt: Any, array: np.ndarray) -> Any:
    """A tensor of the array's values on the device under test."""
    return rt.from_numpy(array).to(device)


def lay_out(rt: Any, values: np.ndarray, dtype: str, layout: str) -> Any:
    """A tensor of `values` whose memory is contiguous, transposed, stepped, offset or expanded."""

    def plain(array: np.ndarray) -> Any:
        tensor = from_array(rt, np.array(array, order="C"))
        return tensor.to(rt.bfloat16) if dtype == "bfloat16" and array.dtype == np.float32 else tensor

    if layout == "transposed" and values.ndim >= 2:
        return plain(np.swapaxes(values, 0, -1)).transpose(0, -1)
    if layout == "stepped" and values.ndim >= 1:
        wide = np.ones((*values.shape[:-1], values.shape[-1] * 2), values.dtype)
        wide[..., ::2] = values
        return plain(wide)[..., ::2]
    if layout == "offset" and values.ndim >= 1:
        return plain(np.concatenate([np.ones_like(values[:1]), values]))[1:] if len(values) else plain(values)
    if layout == "expanded" and values.ndim >= 1 and values.shape[-1] >= 2:
        return plain(values[..., :1]).expand(values.shape)
    return plain(values)


def arguments(
    rt: Any,
    sample: Sample,
    original: Sample,
    dtype: str,
    layout: str = "contiguous",
    place: Callable[[Any, Any], Any] | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """Runtime arguments of a concrete sample. `original` tells tensors under test from indices;
    `place(tensor, under_test)` may replace each tensor (another device, requires_grad)."""

    def leaf(pair: Any) -> Any:
        value, first = pair
        if isinstance(value, Under):
            return getattr(rt, dtype)
        if isinstance(value, D):
            return getattr(rt, value.name)
        if not isinstance(value, np.ndarray):
            return value
        tested = is_under_test(first)
        tensor = lay_out(rt, value, dtype if tested else "", layout if tested or layout != "expanded" else "")
        return place(tensor, tested) if place else tensor

    args = zip_map(leaf, list(sample.args), list(original.args))
    kwargs = {key: zip_map(leaf, value, original.kwargs[key]) for key, value in sample.kwargs.items()}
    return args, kwargs


def zip_map(function: Callable[[Any], Any], value: Any, other: Any) -> Any:
    """`tree_map` over two trees of the same form; the function gets pairs."""
    if isinstance(value, (list, tuple)):
        return type(value)(zip_map(function, a, b) for a, b in zip(value, other, strict=True))
    return function((value, other))


def to_numpy(rt: Any, tensor: Any) -> np.ndarray:
    """The values of a tensor; bfloat16 as float32."""
    tensor = tensor.detach().resolve_neg()
    if hasattr(tensor, "_is_zerotensor") and tensor._is_zerotensor():
        tensor = tensor.clone()  # PyTorch's symbolic zeros have no memory to show
    return (tensor.to(rt.float32) if tensor.dtype == rt.bfloat16 else tensor).cpu().numpy()


def dtype_name(rt: Any, tensor: Any) -> str:
    """'float32' for a tensor of `rt.float32`."""
    return str(tensor.dtype).rpartition(".")[2]
