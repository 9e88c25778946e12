"""Factors and triangular systems in NumPy, step by step as in LAPACK: what NumPy has none of, and what its
LAPACK treats otherwise where numbers are not finite. All take arrays of matrices (*, m, n)."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["cholesky_factor", "factors", "log_determinant", "row_order", "solution", "triangular_solution"]

_WIDTH = 32  # columns of a panel: wide enough for the products, narrow enough for the steps in Python


def factors(a: Any) -> tuple[Any, Any, Any]:
    """Packed factors, pivots counted from 1, and the place of the first zero on U's diagonal or 0.

    Golub and Van Loan, "Matrix Computations", section 3.4, by blocks as in section 3.2: panels by columns,
    what is right of them by products. Of complex numbers the pivot is that of the largest sum of the parts'
    absolute values, and NaN is one only where it comes first, as in LAPACK.
    """
    import numpy as np

    batch, (m, n) = a.shape[:-2], a.shape[-2:]
    k, a = min(m, n), a.reshape(math.prod(batch), m, n).copy()
    which, pivots = np.arange(len(a)), np.empty((len(a), k), np.int32)
    for first in range(0, k, _WIDTH):
        last = min(first + _WIDTH, k)
        for j in range(first, last):
            column = a[:, j:, j]
            size = np.abs(column.real) + np.abs(column.imag) if np.iscomplexobj(a) else np.abs(column)
            nan = np.isnan(size)
            size[nan] = -1
            size[nan[:, 0], 0] = np.inf
            at = size.argmax(-1) + j
            pivots[:, j] = at + 1
            a[which, j], a[which, at] = a[which, at], a[which, j]
            pivot = a[:, j, j, None]
            a[:, j + 1 :, j] /= np.where(pivot == 0, 1, pivot)
            a[:, j + 1 :, j + 1 : last] -= a[:, j + 1 :, j, None] * a[:, j, None, j + 1 : last]
        if last < n:
            square, right = a[:, first:last, first:last], a[:, first:last, last:]
            right[...] = triangular_solution(square, right, lower=True, unit=True)
            a[:, last:, last:] -= a[:, last:, first:last] @ right
    zero = np.diagonal(a, axis1=-2, axis2=-1) == 0
    info = np.where(zero.any(-1), zero.argmax(-1) + 1, 0) if k else np.zeros(len(a))
    return a.reshape(*batch, m, n), pivots.reshape(*batch, k), info.astype(np.int32).reshape(batch)


def row_order(pivots: Any, rows: int) -> Any:
    """The row of A that each row of L U is, as int64 (*, rows): pivots are exchanges, one after another."""
    import numpy as np

    count = math.prod(pivots.shape[:-1])
    steps = pivots.reshape(count, pivots.shape[-1]) - 1
    order, which = np.tile(np.arange(rows), (count, 1)), np.arange(count)
    for j, at in enumerate(steps.T):
        order[which, j], order[which, at] = order[which, at], order[which, j]
    return order.reshape(*pivots.shape[:-1], rows)


def triangular_solution(a: Any, b: Any, lower: bool, unit: bool = False) -> Any:
    """X with A X = B for triangular A, by substitution; the other triangle, and with `unit` the diagonal, are
    not read, and a zero on it divides."""
    import numpy as np

    n = a.shape[-1]
    x = np.broadcast_to(b, (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])).copy()
    panels = [(first, min(first + _WIDTH, n)) for first in range(0, n, _WIDTH)]
    for first, last in panels if lower else panels[::-1]:
        for i in range(first, last) if lower else range(last - 1, first - 1, -1):
            if not unit:
                x[..., i, :] /= a[..., i, i, None]
            rest = slice(i + 1, last) if lower else slice(first, i)
            x[..., rest, :] -= a[..., rest, i, None] * x[..., None, i, :]
        rest = slice(last, n) if lower else slice(0, first)
        x[..., rest, :] -= a[..., rest, first:last] @ x[..., first:last, :]
    return x


def solution(a: Any, b: Any) -> Any:
    """X with A X = B by the factors of A, also where a zero or no finite number is on U's diagonal."""
    import numpy as np

    found, pivots, _ = factors(a)
    order = row_order(pivots, a.shape[-1])[..., None]
    shape = np.broadcast_shapes(order.shape[:-2], b.shape[:-2])
    b, order = (np.broadcast_to(each, (*shape, *each.shape[-2:])) for each in (b, order))
    half = triangular_solution(found, np.take_along_axis(b, order, -2), lower=True, unit=True)
    return triangular_solution(found, half, lower=False)


def log_determinant(a: Any) -> tuple[Any, Any]:
    """Sign and logarithm of the absolute value of the determinants; NaN has sign 0 unless it is complex."""
    import numpy as np

    found, pivots, _ = factors(a if np.iscomplexobj(a) else a.swapaxes(-2, -1))  # as PyTorch
    diagonal = np.diagonal(found, axis1=-2, axis2=-1)
    size = np.abs(diagonal)
    signs = np.where(np.isfinite(size) & (size > 0), diagonal / size, np.sign(diagonal))
    if not np.iscomplexobj(a):
        signs[np.isnan(signs)] = 0
    exchanges = (pivots != np.arange(1, a.shape[-1] + 1)).sum(-1)
    sign = signs.prod(-1) * (1 - 2 * (exchanges % 2))
    return (sign + 0).astype(a.dtype), np.log(size).sum(-1)


def cholesky_factor(a: Any) -> tuple[Any, int]:
    """L of one matrix and 0; or the order of the first leading minor that is not positive, with what is
    factored until there and the rest of the lower triangle as it was."""
    import numpy as np

    L = np.tril(a)
    for j in range(len(L)):
        row = L[j, :j]
        pivot = (L[j, j] - row @ row.conj()).real
        L[j, j] = pivot
        if not pivot > 0:
            return L, j + 1
        L[j, j] = np.sqrt(pivot)
        L[j + 1 :, j] = (L[j + 1 :, j] - L[j + 1 :, :j] @ row.conj()) / L[j, j]
    return L, 0
