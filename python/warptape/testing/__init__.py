"""Comparisons for tests, under torch.testing's names."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = ["assert_allclose", "assert_close", "make_tensor"]

# (rtol, atol) by dtype; exact for all others.
_TOLERANCES = {
    "torch.float16": (1e-3, 1e-5),
    "torch.bfloat16": (1.6e-2, 1e-5),
    "torch.float32": (1.3e-6, 1e-5),
    "torch.float64": (1e-7, 1e-7),
    "torch.complex64": (1.3e-6, 1e-5),
    "torch.complex128": (1e-7, 1e-7),
}


def _default(*dtypes: Any) -> tuple[float, float]:
    tolerances = [_TOLERANCES.get(str(d), (0.0, 0.0)) for d in dtypes]
    return max(r for r, _ in tolerances), max(a for _, a in tolerances)


def assert_allclose(
    actual: object,
    expected: object,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """Deprecated: assert_close without regard to dtypes, NaN equal to NaN.

    Args:
        actual, expected: tensors, or what tensors are made of.
        rtol, atol: both or none; the dtype's defaults if None.
        equal_nan: whether NaN is equal to NaN.
        msg: in place of the error's text.

    Raises: AssertionError where they differ by more than atol + rtol * |expected|.
    """
    warnings.warn(
        "assert_allclose is deprecated; use torch.testing.assert_close", FutureWarning, stacklevel=2
    )
    actual, expected = (t if isinstance(t, wt.Tensor) else wt.tensor(t) for t in (actual, expected))
    options: dict[str, Any] = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan, "check_dtype": False}
    assert_close(actual, expected, msg=msg or None, **options)


def assert_close(
    actual: object,
    expected: object,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """Asserts |actual - expected| <= atol + rtol |expected|, element by element.

    Args:
        actual, expected: tensors, arrays, numbers, or sequences and mappings of them.
        allow_subclasses: whether the types may differ, if related.
        rtol, atol: both or neither; by default as the dtype allows, and 0 for integers and bools.
        equal_nan: whether nan equals nan.
        check_device, check_dtype, check_stride: whether those must agree; else they are brought together.
        check_layout: accepted.
        msg: in place of the message, or a function of it.

    Raises:
        AssertionError: they differ; the message counts and shows the largest differences.
        ValueError: only one of rtol and atol.
        TypeError: things that cannot be compared.
    """
    if (rtol is None) != (atol is None):
        missing, present = ("rtol", "atol") if rtol is None else ("atol", "rtol")
        raise ValueError(
            f"Tolerances must be both specified or both left out: got {present} without {missing}"
        )
    options = (rtol, atol, equal_nan, check_device, check_dtype, check_stride)
    problem = _difference(actual, expected, allow_subclasses, options, "")
    if problem:
        raise AssertionError(problem if msg is None else msg(problem) if callable(msg) else msg)


def _difference(a: Any, b: Any, subclasses: bool, options: tuple[Any, ...], where: str) -> str:
    """What differs first, or nothing."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return f"The keys of the mappings do not match:\nactual {sorted(a)}\nexpected {sorted(b)}{where}"
        pairs = [(a[k], b[k], k) for k in a]
    elif _is_list(a) and _is_list(b):
        if len(a) != len(b):
            return f"The length of the sequences mismatch: {len(a)} != {len(b)}{where}"
        pairs = [(x, y, i) for i, (x, y) in enumerate(zip(a, b))]
    else:
        return _difference_of_tensors(a, b, subclasses, options, where)
    for x, y, key in pairs:
        inner = f"{where}[{key!r}]" if where else f"\n\nThe failure occurred for item [{key!r}]"
        difference = _difference(x, y, subclasses, options, inner)
        if difference:
            return difference
    return ""


def _is_list(x: object) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, str)


def _difference_of_tensors(a: Any, b: Any, subclasses: bool, options: tuple[Any, ...], where: str) -> str:
    if not subclasses and type(a) is not type(b):
        raise TypeError(f"assert_close: expected equal types, got {type(a)} and {type(b)}")
    numbers = not hasattr(a, "shape") and not hasattr(b, "shape")
    if numbers and (a is None or b is None or isinstance(a, str) or isinstance(b, str)):
        return "" if a == b else f"{a!r} != {b!r}{where}"
    try:
        actual, expected = (x if isinstance(x, wt.Tensor) else wt.tensor(x) for x in (a, b))
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"No comparison pair was able to handle inputs of type {type(a)} and {type(b)}."
        ) from None
    difference = _compare(actual.detach(), expected.detach(), options, numbers)
    return difference and difference + where


def _compare(a: Any, b: Any, options: tuple[Any, ...], numbers: bool) -> str:
    rtol, atol, equal_nan, check_device, check_dtype, check_stride = options
    if a.shape != b.shape:
        return f"The values for attribute 'shape' do not match: {a.shape} != {b.shape}."
    if check_device and a.device != b.device:
        return f"The values for attribute 'device' do not match: {a.device} != {b.device}."
    if check_dtype and not numbers and a.dtype != b.dtype:
        return f"The values for attribute 'dtype' do not match: {a.dtype} != {b.dtype}."
    if check_stride and a.stride() != b.stride():
        return f"The values for attribute 'stride()' do not match: {a.stride()} != {b.stride()}."
    if rtol is None:
        rtol, atol = (1e-7, 1e-7) if numbers and a.is_floating_point() else _default(a.dtype, b.dtype)
    dtype = wt.promote_types(a.dtype, b.dtype)
    wide = wt.float64 if not dtype.is_complex else dtype
    exact = not dtype.is_floating_point and not dtype.is_complex and (rtol, atol) == (0, 0)
    x, y = ((t.to("cpu", dtype) if exact else t.to("cpu", wide)) for t in (a, b))
    close = (x == y) if exact else wt.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)
    if bool(close.all()):
        return ""
    bad = int((~close).sum())
    kind = "Scalars" if numbers else "Tensor-likes"
    manner = "equal" if (rtol, atol) == (0, 0) else "close"
    gap = (x.to(wide) - y.to(wide)).abs().masked_fill(close, 0)
    ratio = (gap / y.to(wide).abs()).masked_fill(close, 0)
    if numbers or a.ndim == 0:
        expected = f"Expected {b.item()} but got {a.item()}.\n"
        return (
            f"{kind} are not {manner}!\n\n{expected}Absolute difference: {gap.item()} (up to {atol} "
            f"allowed)\nRelative difference: {ratio.item()} (up to {rtol} allowed)"
        )
    lines = [
        f"{kind} are not {manner}!\n",
        f"Mismatched elements: {bad} / {x.numel()} ({bad / x.numel():.1%})",
    ]
    for name, values, allowed in (("absolute", gap, atol), ("relative", ratio, rtol)):
        flat = values.reshape(-1)
        at = int(flat.nan_to_num(math.inf).argmax())
        index = tuple(int(i) for i in wt.unravel_index(wt.tensor(at), x.shape))
        bound = f" (up to {allowed} allowed)" if manner == "close" else ""
        lines.append(f"Greatest {name} difference: {flat[at].item()} at index {index}{bound}")
    return "\n".join(lines)


def make_tensor(
    *shape: Any,
    dtype: wt.dtype,
    device: Device = "cpu",
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: wt.memory_format | None = None,
) -> Any:
    """Random numbers of a dtype in [low, high): by default [-9, 9), [0, 10) for uint8, 0 and 1 for bool.

    Raises:
        ValueError: low that is not below high.
    """
    size = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if noncontiguous:
        size = (*size[:-1], size[-1] * 2) if size else size
    start, end = (0, 2) if dtype == wt.bool else (0, 10) if dtype == wt.uint8 else (-9, 9)
    low, high = start if low is None else low, end if high is None else high
    if not low < high:
        raise ValueError(f"make_tensor: expected low < high, got {low} and {high}")
    if dtype.is_floating_point:
        result = (wt.rand(size, dtype=wt.float64) * (high - low) + low).to(device, dtype)
    else:
        result = wt.randint(int(low), int(high), size).to(device, dtype)
    if exclude_zero:
        result = result.masked_fill(result == 0, 1)
    if noncontiguous and size:
        result = result[..., ::2]
    return result.requires_grad_(requires_grad) if requires_grad else result
