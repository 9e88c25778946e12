"""Calls of NumPy's linear algebra, which is LAPACK's, on tensors."""

from __future__ import annotations

import atexit
import threading
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import Future
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
    "on_finite",
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
    found = _called(function, [t.detach().cpu().numpy() for t in tensors])
    if isinstance(found, tuple):
        return tuple(_tensor(each, tensors[0]) for each in found)
    return _tensor(found, tensors[0])


def on_finite(op: str, function: Callable[..., Any], a: Any, *, infinite: bool = True) -> Any:
    """`function` of the arrays of matrices `a`, and NaN for a matrix that holds infinity: LAPACK's iterations
    need not end on it.

    Raises:
        LinAlgError: a matrix with NaN, or without `infinite` one with infinity.
    """
    import numpy as np

    bad = ~np.isfinite(np.abs(a).max((-2, -1), initial=0))
    if not bad.any():
        return function(a)
    refused = np.isnan(a).any((-2, -1)) if infinite else bad
    if refused.any():
        batch = f"(Batch element {refused.reshape(-1).argmax()}): " if a.ndim > 2 else ""
        raise LinAlgError(
            f"{op}: {batch}The algorithm failed to converge because the input matrix contained non-finite "
            "values."
        )
    found = function(np.where(bad[..., None, None], 0, a))
    for each in found if isinstance(found, tuple) else (found,):
        each[bad] = complex(np.nan, np.nan) if np.iscomplexobj(each) else np.nan
    return found


_LONG = 1 << 23  # elements times rows or columns of a call that may take longer than Ctrl-C may


def _called(function: Callable[..., Any], arrays: list[Any]) -> Any:
    """`function(*arrays)`. LAPACK does not look for signals: what may take long runs on copies in a thread of
    its own, and the main thread waits where Ctrl-C ends the wait."""
    import numpy as np

    def quietly() -> Any:
        with np.errstate(all="ignore"):
            return function(*arrays)

    size = arrays[0].size * max(arrays[0].shape[-2:], default=1)
    if size < _LONG or threading.current_thread() is not threading.main_thread():
        return quietly()
    arrays = [a.copy() for a in arrays]
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(quietly())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name="warptape.linalg", daemon=True)
    try:
        thread.start()
        return future.result()
    finally:
        if not future.done():
            _leave(thread)


def _leave(thread: threading.Thread) -> None:
    """Ends an interrupted call at its next step in Python."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
    )
    atexit.register(_outlive, thread)


def _outlive(thread: threading.Thread) -> None:
    """At exit OpenBLAS waits for its threads, for ever where a call still runs: the process then ends, with
    its status and its files flushed, before OpenBLAS is told."""
    import ctypes

    if thread.is_alive():
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)  # the last one registered is called first
        libc.on_exit(libc.fcloseall, None)


def _tensor(array: Any, like: Tensor) -> Tensor:
    import numpy as np

    return _C.from_numpy(np.asarray(array, order="C")).to(like.device)
