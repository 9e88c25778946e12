"""Calls of NumPy's linear algebra, which is LAPACK's, on tensors."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from .. import _C
from .._tensor import Tensor

__all__ = [
    "LinAlgError",
    "check_equations",
    "check_matrices",
    "check_square",
    "identity",
    "named",
    "on_arrays",
]


_DTYPES = (_C.float32, _C.float64, _C.complex64, _C.complex128)


class LinAlgError(RuntimeError):
    """A matrix for which there is no answer: singular, or not positive definite."""


def check_matrices(op: str, *tensors: Tensor) -> None:
    """Refuses what LAPACK cannot take.

    Raises:
        TypeError: something that is no tensor.
        ShapeError: fewer than two dims.
        DtypeError: another dtype than float32, float64, complex64 and complex128.
    """
    for t in tensors:
        if not isinstance(t, Tensor):
            raise TypeError(f"{op}: expected a Tensor, got {type(t).__name__}")
        if t.ndim < 2:
            raise _C.ShapeError(
                f"{op}: The input tensor A must have at least 2 dimensions, got shape {tuple(t.shape)}"
            )
        if t.dtype not in _DTYPES:
            kind = (
                "Low precision dtypes not supported"
                if t.is_floating_point()
                else "Expected a floating point or complex tensor"
            )
            raise _C.DtypeError(f"{op}: {kind}. Got {t.dtype}; convert it with .float() or .double()")


def check_square(op: str, *tensors: Tensor) -> None:
    """As `check_matrices`, and ShapeError for matrices that are not square."""
    check_matrices(op, *tensors)
    for t in tensors:
        if t.shape[-1] != t.shape[-2]:
            raise _C.ShapeError(
                f"{op}: A must be batches of square matrices, "
                f"but they are {t.shape[-2]} by {t.shape[-1]} matrices"
            )


def check_equations(op: str, A: Tensor, B: Tensor) -> None:
    """As `check_matrices` of both sides of A X = B, and that they fit each other.

    Raises:
        DtypeError: two dtypes.
        ShapeError: other numbers of rows.
    """
    check_matrices(op, A, B)
    if A.dtype != B.dtype:
        raise _C.DtypeError(f"{op}: Expected A and B to have the same dtype, got {A.dtype} and {B.dtype}")
    if A.shape[-2] != B.shape[-2]:
        raise _C.ShapeError(
            f"{op}: Incompatible shapes of A and B for the equation AX = B "
            f"({A.shape[-2]}x{A.shape[-1]} and {B.shape[-2]}x{B.shape[-1]})"
        )


def named(name: str, *fields: str) -> Any:
    """The type of a named tuple that an op returns."""
    return namedtuple(name, fields)  # type: ignore[misc]


def identity(like: Tensor) -> Tensor:
    """The identity matrix of the size, dtype and device of `like`'s last dim."""
    return _C._functions.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def on_arrays(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """`function` of the tensors as arrays, with the arrays it returns as tensors on the first one's
    device."""
    arrays = [t.detach().cpu().numpy() for t in tensors]
    found = function(*arrays)
    if isinstance(found, tuple):
        return tuple(_tensor(each, tensors[0]) for each in found)
    return _tensor(found, tensors[0])


def _tensor(array: Any, like: Tensor) -> Tensor:
    import numpy as np

    return _C.from_numpy(np.asarray(array, order="C")).to(like.device)
