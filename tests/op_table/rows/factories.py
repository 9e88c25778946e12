"""Factories: tensors of nothing, or like another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..table import ALL, FLOATS, INTS, NUMERIC, D, E, Op, Rng, S, Sample, Under

U = Under()
MAKE: dict[str, Any] = {"dtypes": ALL, "grad": False, "exact": True, "factory": True, "layouts": ()}
LIKE: dict[str, Any] = {"dtypes": ALL, "grad": False, "exact": True}
NEGATIVE = (E("RuntimeError", -1), E("RuntimeError", (2, -3)), E("TypeError", "x"), E("TypeError", 1.5))


def sized(*value: Any) -> Callable[[Rng], list[Sample]]:
    def samples(r: Rng) -> list[Sample]:
        cases = [S(size, *value, dtype=U) for size in ((2, 3), (0, 2), (), (37,))]
        return cases if value else [*cases, S(2, 3, dtype=U), S([2, 1], dtype=U)]

    return samples


def shape_of(*size: Any) -> tuple[int, ...]:
    return tuple(size[0]) if isinstance(size[0], (tuple, list)) else size


def filled(value: float) -> Callable[..., np.ndarray]:
    return lambda *size, dtype=None: np.full(shape_of(*size), value)


def arange_samples(r: Rng) -> list[Sample]:
    cases = [S(5, dtype=U), S(2, 9, dtype=U), S(1, 20, 3, dtype=U), S(0, dtype=U), S(37, dtype=U)]
    return [
        *cases,
        S(9, 2, -2, dtype=U, only=NUMERIC),
        S(0, 2, 0.25, dtype=U, only=FLOATS),
        S(start=1, end=4, dtype=U),
    ]


def linspace_samples(r: Rng) -> list[Sample]:
    return [
        S(0, 1, 5, dtype=U),
        S(-2, 2, 37, dtype=U),
        S(3, -1, 4, dtype=U),
        S(2, 5, 1, dtype=U),
        S(0, 1, 0, dtype=U),
    ]


def only_shape(result: np.ndarray, *args: Any, **kwargs: Any) -> None:
    """For uninitialised memory."""
    size = (
        args[0].shape
        if isinstance(args[0], np.ndarray) and not args[1:]
        else shape_of(*(args[1:] if isinstance(args[0], np.ndarray) else args))
    )
    if result.shape != tuple(size):
        raise AssertionError(f"expected shape {tuple(size)}, got {result.shape}")


def like_samples(*value: Any) -> Callable[[Rng], list[Sample]]:
    return lambda r: [S(r(2, 3), *value), S(r(), *value), S(r(0, 2), *value)]


def new_samples(*value: Any) -> Callable[[Rng], list[Sample]]:
    return lambda r: [S(r(2), (3, 2), *value), S(r(), (), *value), S(r(1), (0, 4), *value)]


def described(x: Any) -> tuple[Any, ...]:
    """Size and strides of uninitialised memory, which then is written through them."""
    return tuple(x.shape), tuple(x.stride()), x.zero_()


ROWS = [
    Op("zeros", sized(), filled(0), errors=NEGATIVE, **MAKE),
    Op("ones", sized(), filled(1), errors=NEGATIVE, **MAKE),
    Op("empty", sized(), None, check=only_shape, errors=NEGATIVE, **MAKE),
    Op(
        "full",
        sized(3),
        lambda size, value, dtype=None: np.full(size, value),
        errors=(E("RuntimeError", (-1,), 2), E("TypeError", (2,))),
        **MAKE,
    ),
    Op(
        "full",
        lambda r: [S((2, 3), 1.5), S((), 0.25)],
        np.full,
        label="full, float",
        dtypes=("float32",),
        grad=False,
        factory=True,
        layouts=(),
    ),
    Op(
        "full",
        lambda r: [S((2, 3), 4), S((1,), -7)],
        np.full,
        label="full, integer",
        dtypes=("int64",),
        grad=False,
        factory=True,
        layouts=(),
    ),
    Op(
        "full",
        lambda r: [S((2, 3), True)],
        np.full,
        label="full, bool",
        dtypes=("bool",),
        grad=False,
        factory=True,
        layouts=(),
    ),
    Op(
        "zeros",
        lambda r: [S(2, 3), S((4,))],
        lambda *size: np.zeros(shape_of(*size)),
        label="zeros, default dtype",
        dtypes=("float32",),
        grad=False,
        factory=True,
        layouts=(),
    ),
    Op(
        "arange",
        arange_samples,
        lambda *a, dtype=None, start=None, end=None: np.arange(*a) if a else np.arange(start, end),
        errors=(E("RuntimeError", 0, 5, 0), E("RuntimeError", 0, 5, -1), E("RuntimeError", 0, float("inf"))),
        **(MAKE | {"dtypes": NUMERIC}),
    ),
    Op(
        "arange",
        lambda r: [S(5), S(1, 4)],
        np.arange,
        label="arange, integers",
        dtypes=("int64",),
        grad=False,
        factory=True,
        layouts=(),
    ),
    Op(
        "arange",
        lambda r: [S(2.5), S(0, 1, 0.125)],
        np.arange,
        label="arange, floats",
        dtypes=("float32",),
        grad=False,
        factory=True,
        layouts=(),
    ),
    Op(
        "linspace",
        linspace_samples,
        lambda a, b, n, dtype=None: np.linspace(a, b, n),
        dtypes=FLOATS,
        grad=False,
        factory=True,
        layouts=(),
        errors=(
            E("RuntimeError", 0, 1, -1),
            E("RuntimeError", np.ones(2), np.ones(2), 3),
            E("RuntimeError", 0, np.ones(1), 3),
        ),
    ),
    Op(
        "logspace",
        lambda r: [S(0, 2, 5, dtype=U), S(0, 3, 4, base=2.0, dtype=U)],
        lambda a, b, n, base=10.0, dtype=None: np.logspace(a, b, n, base=base),
        dtypes=("float64", "float32"),
        grad=False,
        factory=True,
        layouts=(),
        tol={"float32": (1e-5, 1e-5)},
    ),
    Op(
        "eye",
        lambda r: [S(3, dtype=U), S(2, 4, dtype=U), S(0, dtype=U), S(3, 1, dtype=U)],
        lambda n, m=None, dtype=None: np.eye(n, m),
        errors=(E("RuntimeError", -1),),
        **MAKE,
    ),
    Op(
        "tril_indices",
        lambda r: [S(3, 3), S(3, 4, 1), S(4, 2, -1)],
        lambda n, m, offset=0: np.stack(np.tril_indices(n, offset, m)),
        result="int64",
        **(MAKE | {"dtypes": ("int64",)}),
    ),
    Op(
        "triu_indices",
        lambda r: [S(3, 3), S(3, 4, 1), S(4, 2, -1)],
        lambda n, m, offset=0: np.stack(np.triu_indices(n, offset, m)),
        result="int64",
        **(MAKE | {"dtypes": ("int64",)}),
    ),
    Op("zeros_like", like_samples(), np.zeros_like, **LIKE),
    Op("ones_like", like_samples(), np.ones_like, **LIKE),
    Op("full_like", like_samples(2), np.full_like, errors=(E("TypeError", np.ones(2)),), **LIKE),
    Op("empty_like", like_samples(), None, check=only_shape, **LIKE),
    Op(
        "zeros_like",
        lambda r: [S(r(2, 3), dtype=D("int32"))],
        lambda x, dtype: np.zeros(x.shape),
        label="zeros_like, dtype",
        result="int32",
        **LIKE,
    ),
    Op("Tensor.new_zeros", new_samples(), lambda x, size: np.zeros(size), **LIKE),
    Op("Tensor.new_ones", new_samples(), lambda x, size: np.ones(size), **LIKE),
    Op("Tensor.new_full", new_samples(3), lambda x, size, value: np.full(size, value), **LIKE),
    Op("Tensor.new_empty", new_samples(), None, check=only_shape, **LIKE),
    Op(
        "Tensor.new_tensor",
        lambda r: [S(r(2), [1, 0]), S(r(2), 1)],
        lambda x, data: np.asarray(data),
        **(LIKE | {"meta": True}),
    ),
    Op(
        "tensor",
        lambda r: [S([[1, 0], [0, 1]], dtype=U), S(1, dtype=U), S([], dtype=U), S([[], []], dtype=U)],
        lambda data, dtype: np.asarray(data),
        errors=(E("ValueError", [[1, 2], [3]]), E("ValueError|TypeError", [[1.0], 2.0])),
        **MAKE,
    ),
    Op(
        "tensor",
        lambda r: [S([1.5, -2.0]), S(0.5), S([1, 2.5])],
        np.asarray,
        label="tensor, floats",
        dtypes=("float32",),
        grad=False,
        factory=True,
        layouts=(),
    ),
    Op(
        "tensor",
        lambda r: [S([1, -2]), S(7), S([True, 3])],
        np.asarray,
        label="tensor, integers",
        dtypes=("int64",),
        grad=False,
        factory=True,
        layouts=(),
    ),
    Op(
        "tensor",
        lambda r: [S([True, False]), S(True)],
        np.asarray,
        label="tensor, bools",
        dtypes=("bool",),
        grad=False,
        factory=True,
        layouts=(),
    ),
    Op(
        "empty_strided",
        lambda r: [
            S((2, 3), (3, 1), dtype=U),
            S((2, 3), (1, 4), dtype=U),
            S((), (), dtype=U),
            S((0, 2), (2, 1), dtype=U),
        ],
        lambda size, stride, dtype: (size, stride, np.zeros(size)),
        lambda rt, *args, **kwargs: described(rt.empty_strided(*args, **kwargs)),
        **MAKE,
    ),
    Op(
        "as_tensor",
        lambda r: [S([1, 0], dtype=U), S(r(2, 3), dtype=U)],
        lambda data, dtype: np.asarray(data),
        meta=None,
        **LIKE,
    ),
    Op(
        "Tensor.type_as",
        lambda r: [S(r(2, 3), r.index(2, high=3))],
        lambda x, y: np.trunc(x),
        dtypes=INTS,
        result="int64",
        grad=False,
        exact=True,
    ),
    Op(
        "trapezoid",
        lambda r: [S(r(5)), S(r(3, 4), dim=0), S(r(4), dx=0.5)],
        lambda y, dx=1.0, dim=-1: np.asarray(np.trapezoid(y, dx=dx, axis=dim)),
        tol={"bfloat16": (3e-2, 3e-2)},
    ),
]
