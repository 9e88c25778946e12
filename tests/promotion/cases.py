"""Every pair of operand kinds and dtypes, as the promotion table counts them; used by the test and by
`record.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

DTYPES = (
    *("complex128", "complex64", "float64", "float32", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
SCALARS = {"bool": True, "int": 2, "float": 1.5, "complex": 1.5j}
KINDS = ("dim", "zero")  # a tensor with dimensions, a tensor without
OPS = ("add", "true_divide", "floor_divide", "pow", "eq", "where", "maximum", "bitwise_and", "iadd")


def operand(rt: Any, kind: str, dtype: str) -> Any:
    """A tensor of ones with or without dimensions, or a Python number."""
    if kind == "scalar":
        return SCALARS[dtype]
    return rt.ones((2,) if kind == "dim" else (), dtype=getattr(rt, dtype))


def apply(rt: Any, op: str, a: Any, b: Any) -> Any:
    """One op; operators, so that Python numbers may stand on either side."""
    operators = {
        "add": lambda: a + b,
        "true_divide": lambda: a / b,
        "floor_divide": lambda: a // b,
        "pow": lambda: a**b,
        "eq": lambda: a == b,
        "bitwise_and": lambda: a & b,
        "where": lambda: rt.where(rt.ones((2,), dtype=rt.bool), a, b),
        "maximum": lambda: rt.maximum(a, b),
        "iadd": lambda: a.__iadd__(b),
    }
    return operators[op]()


def operands() -> Iterator[tuple[str, str, str, str]]:
    """(kind, dtype, kind, dtype), at least one of them a tensor. Not float16 with complex numbers, for whose
    parts of float16 PyTorch has few kernels."""
    sides = [(kind, dtype) for kind in KINDS for dtype in DTYPES] + [("scalar", name) for name in SCALARS]
    for kind_a, dtype_a in sides:
        for kind_b, dtype_b in sides:
            half = "float16" in (dtype_a, dtype_b) and "complex" in dtype_a + dtype_b
            if (kind_a != "scalar" or kind_b != "scalar") and not half:
                yield kind_a, dtype_a, kind_b, dtype_b


def outcome(rt: Any, op: str, case: tuple[str, str, str, str]) -> str:
    """The result's dtype, or "error"."""
    kind_a, dtype_a, kind_b, dtype_b = case
    a, b = operand(rt, kind_a, dtype_a), operand(rt, kind_b, dtype_b)
    try:
        result = apply(rt, op, a, b)
    except (RuntimeError, TypeError, NotImplementedError, AttributeError):
        return "error"
    if not isinstance(result, rt.Tensor):
        return type(result).__name__
    return str(result.dtype).rpartition(".")[2]
