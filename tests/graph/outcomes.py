"""What a call did, in a form that two runs of it can be compared by: values to the bit, layouts, versions,
the place on the tape, random state, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from op_table import convert

Facts = dict[str, Any]


def bits(rt: Any, t: Any) -> bytes:
    """The elements of a tensor in order; every NaN is the same."""
    if t.is_meta:
        return b""
    t = t.detach()
    if t.dtype == rt.bfloat16:
        t = t.to(rt.float32)  # exact
    a = np.ascontiguousarray(convert.to_numpy(rt, t.resolve_conj()))
    if a.dtype.kind == "c":
        a = a.view(a.real.dtype)
    if a.dtype.kind == "f":
        a = np.where(np.isnan(a), a.dtype.type(np.nan), a)
    return a.tobytes()


def facts_of(rt: Any, t: Any, values: bool = True) -> Facts:
    """What a tensor is."""
    facts: Facts = {
        "dtype": str(t.dtype),
        "shape": tuple(t.shape),
        "stride": tuple(t.stride()),
        "offset": t.storage_offset(),
        "requires_grad": t.requires_grad,
        "grad_fn": type(t.grad_fn).__name__,
        "is_view": t._is_view(),
        "is_leaf": t.is_leaf,
        "version": t._version,
    }
    if values:
        facts["bits"] = bits(rt, t)
    if t.is_leaf and t.requires_grad and t.grad is not None:
        facts |= {f"grad {name}": fact for name, fact in facts_of(rt, t.grad, values).items()}
    return facts


def summary(rt: Any, value: Any, values: bool = True) -> Any:
    """Tensors of a nested value as facts, everything else as its text."""
    if isinstance(value, rt.Tensor):
        return facts_of(rt, value, values)
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(summary(rt, v, values) for v in value)]
    if isinstance(value, dict):
        return {key: summary(rt, v, values) for key, v in value.items()}
    return f"{type(value).__name__} {value!r}"


def outcome(rt: Any, function: Callable[[], Any], watched: Any, values: bool = True) -> Facts:
    """Calls the function: its result or error, what became of the `watched` tensors, and of the generator."""
    try:
        result = function()
        found: Facts = {"result": summary(rt, result, values)}
    except Exception as error:
        found = {"error": (type(error).__name__, str(error))}
    found["watched"] = summary(rt, watched, values)
    found["generator"] = bits(rt, rt.get_rng_state())
    return found


def differences(got: Any, want: Any, where: str = "") -> Iterable[str]:
    """Lines that say where two outcomes differ."""
    if isinstance(got, dict) and isinstance(want, dict):
        for key in [*want, *(k for k in got if k not in want)]:
            if key not in got or key not in want:
                yield f"{where}.{key}: compiled {got.get(key)!r:.300}, eager {want.get(key)!r:.300}"
            else:
                yield from differences(got[key], want[key], f"{where}.{key}")
    elif isinstance(got, list) and isinstance(want, list) and len(got) == len(want):
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            yield from differences(a, b, f"{where}[{i}]")
    elif got != want:
        yield f"{where}: compiled {got!r:.300}, eager {want!r:.300}"
