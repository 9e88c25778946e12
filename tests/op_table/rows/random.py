"""Random ops: what can be said of them without fixing values (tests/golden fixes those)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..table import FLOATS, INTS, NUMERIC, D, E, Op, Rng, S, Sample, Under

U = Under()
MAKE: dict[str, Any] = {"grad": False, "seeded": True, "layouts": ()}


def within(low: float, high: float, size: Callable[..., tuple[int, ...]]) -> Callable[..., None]:
    """Shape as asked, values inside [low, high], and not all equal."""

    def check(result: np.ndarray, *args: Any, **kwargs: Any) -> None:
        if result.shape != tuple(size(*args)):
            raise AssertionError(f"expected shape {tuple(size(*args))}, got {result.shape}")
        if result.size and not (result.min() >= low and result.max() <= high):
            raise AssertionError(f"values outside [{low}, {high}]: {result.min()}, {result.max()}")
        if result.size > 20 and result.min() == result.max():
            raise AssertionError("all values are equal")

    return check


def shape_of(*size: Any) -> tuple[int, ...]:
    return tuple(size[0]) if isinstance(size[0], (tuple, list)) else size


def like(x: np.ndarray, *args: Any) -> tuple[int, ...]:
    return x.shape


def sizes(*extra: Any) -> Callable[[Rng], list[Sample]]:
    return lambda r: [S(size, *extra, dtype=U) for size in ((3, 37), (0, 2), (), (5,))]


def likes(*extra: Any, **named: Any) -> Callable[[Rng], list[Sample]]:
    return lambda r: [S(r(3, 37), *extra, **named), S(r(2), *extra, **named), S(r(0, 2), *extra, **named)]


def permutation(result: np.ndarray, n: int, **kwargs: Any) -> None:
    if sorted(result.tolist()) != list(range(n)):
        raise AssertionError(f"not a permutation of {n}")


def dropped(result: np.ndarray, x: np.ndarray, p: float = 0.5, training: bool = True) -> None:
    """Zero, or the input divided by 1 - p; about a share p is zero."""
    kept = result != 0
    np.testing.assert_allclose(result[kept], (x / (1 - p))[kept], rtol=1e-2)
    share = 1 - kept.mean()
    if not abs(share - p) < 0.06:
        raise AssertionError(f"dropped a share of {share}, asked for {p}")


def drawn(result: np.ndarray, weights: np.ndarray, count: int, replacement: bool = False) -> None:
    rows = result.reshape(-1, count)
    table = weights.reshape(-1, weights.shape[-1])
    for row, weight in zip(rows, table, strict=True):
        if not (weight[row] > 0).all() or (not replacement and len(set(row.tolist())) != count):
            raise AssertionError(f"drew {row.tolist()} from {weight.tolist()}")


def weights(r: Rng) -> list[Sample]:
    one = np.array([0.1, 0.0, 0.4, 0.5, 1.0])
    return [S(one, 3), S(np.stack([one, one[::-1]]), 2), S(one, 40, replacement=True)]


def applied(name: str) -> Callable[..., Any]:
    return lambda rt, x, *args, **kwargs: getattr(x.clone(), name)(*args, **kwargs)


def binary(result: np.ndarray, p: np.ndarray, *args: Any) -> None:
    if not np.isin(result, (0, 1)).all() or (result[p <= 0] != 0).any() or (result[p >= 1] != 1).any():
        raise AssertionError("expected zeros and ones, certain where the probability is 0 or 1")


P = np.concatenate([np.zeros(5), np.ones(5), np.full(90, 0.5)])
FN = "nn.functional."
ROWS = [
    Op(
        "rand",
        sizes(),
        None,
        check=within(0, 1, shape_of),
        factory=True,
        errors=(E("RuntimeError", -1),),
        **MAKE,
    ),
    Op(
        "randn",
        sizes(),
        None,
        check=within(-6, 6, shape_of),
        factory=True,
        errors=(E("RuntimeError", -1),),
        **MAKE,
    ),
    Op(
        "randint",
        lambda r: [S(-2, 5, size, dtype=U) for size in ((3, 37), (0,), ())],
        None,
        check=within(-2, 4, lambda low, high, size: size),
        dtypes=(*FLOATS, *INTS[:-1]),
        factory=True,
        errors=(E("RuntimeError", 3, 3, (2,)), E("RuntimeError", 5, 2, (2,))),
        **MAKE,
    ),
    Op(
        "randint",
        lambda r: [S(9, (3, 37), dtype=U)],
        None,
        check=within(0, 8, lambda high, size: size),
        label="randint, high alone",
        dtypes=NUMERIC,
        factory=True,
        **MAKE,
    ),
    Op(
        "randperm",
        lambda r: [S(n) for n in (0, 1, 7, 100)],
        None,
        check=permutation,
        dtypes=("int64",),
        factory=True,
        errors=(E("RuntimeError", -1),),
        **MAKE,
    ),
    Op("rand_like", likes(), None, check=within(0, 1, like), **MAKE),
    Op("randn_like", likes(), None, check=within(-6, 6, like), **MAKE),
    Op("randint_like", likes(9), None, check=within(0, 8, like), dtypes=NUMERIC, **MAKE),
    Op(
        "normal",
        lambda r: [S(0.0, 1.0, (3, 37)), S(2.0, 0.5, (4,))],
        None,
        check=within(-6, 6, lambda m, s, size: size),
        dtypes=("float32",),
        factory=True,
        errors=(E("RuntimeError", 0.0, -1.0, (2,)),),
        **MAKE,
    ),
    Op(
        "bernoulli",
        lambda r: [S(P)],
        None,
        check=binary,
        method=True,
        errors=(E("RuntimeError", np.full(3, 1.5), host=True),),
        **MAKE,
    ),
    Op(
        "multinomial",
        weights,
        None,
        check=drawn,
        result="int64",
        method=True,
        errors=(
            E("RuntimeError", np.ones(3), 4),
            E("RuntimeError", np.ones(3), 0),
            E("RuntimeError", -np.ones(3), 1),
            E("RuntimeError", np.zeros(3), 1),
        ),
        **MAKE,
    ),
    Op(
        "Tensor.uniform_",
        likes(-1.0, 2.0),
        None,
        applied("uniform_"),
        check=within(-1, 2, like),
        errors=(E("RuntimeError", np.ones(3), 2.0, 1.0),),
        **MAKE,
    ),
    Op(
        "Tensor.normal_",
        likes(0.5, 0.5),
        None,
        applied("normal_"),
        check=within(-3, 4, like),
        errors=(E("RuntimeError", np.ones(3), 0.0, -1.0),),
        **MAKE,
    ),
    Op(
        "Tensor.random_",
        likes(3, 8),
        None,
        applied("random_"),
        check=within(3, 7, like),
        dtypes=NUMERIC,
        errors=(E("RuntimeError", np.ones(3), 3, 3),),
        **MAKE,
    ),
    Op(
        "Tensor.bernoulli_",
        likes(0.5),
        None,
        applied("bernoulli_"),
        check=within(0, 1, like),
        errors=(E("RuntimeError", np.ones(3), 1.5),),
        **MAKE,
    ),
    Op(
        "Tensor.exponential_",
        likes(1.0),
        None,
        applied("exponential_"),
        check=within(0, 60, like),
        errors=(E("RuntimeError", np.ones(3), -1.0),),
        **MAKE,
    ),
    Op(
        "dropout",
        lambda r: [S(r.positive(40, 50), 0.5, True), S(r.positive(40, 50), 0.2, True)],
        None,
        check=dropped,
        label="torch.dropout",
        aliases=("dropout_",),
        seeded=True,
        layouts=("transposed", "stepped", "offset"),
        second=False,
        errors=(E("RuntimeError|ValueError", np.ones(3), 1.5, True),),
        peer=("gradient_layout",),
    ),
    Op(
        "dropout",
        lambda r: [
            S(r(3, 4), 0.5, False),
            S(r(3, 4), 0.0, True),
            S(r(3, 4), 1.0, True),
            S(r(0, 2), 0.5, False),
        ],
        lambda x, p, train: x * (p < 1 or not train),
        label="torch.dropout, p 0 and 1",
    ),
    Op(
        FN + "dropout",
        lambda r: [S(r.positive(40, 50)), S(r.positive(40, 50), 0.2)],
        None,
        check=dropped,
        seeded=True,
        layouts=("transposed", "stepped", "offset"),
        second=False,
        peer=("gradient_layout",),
    ),
    Op(
        "rand",
        lambda r: [S(5, 2), S(3)],
        None,
        check=within(0, 1, shape_of),
        label="rand, default dtype",
        dtypes=("float32",),
        factory=True,
        **MAKE,
    ),
    Op(
        "rand",
        lambda r: [S((5, 2), dtype=D("float64"))],
        None,
        check=within(0, 1, shape_of),
        label="rand, float64",
        result="float64",
        dtypes=("float64",),
        factory=True,
        **MAKE,
    ),
]
