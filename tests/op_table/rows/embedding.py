"""Embeddings."""

from __future__ import annotations

import numpy as np

from ..table import E, Op, Rng, S, Sample

F = "nn.functional."
TABLE = np.ones((4, 2))


def samples(r: Rng) -> list[Sample]:
    cases = [
        S(r.index(5, high=4), r(4, 3)),
        S(r.index(2, 3, high=4), r(4, 3)),
        S(r.index(high=4), r(4, 3)),
        S(r.index(0, high=1), r(4, 3), grad=False),
    ]
    return [*cases, S(np.array([1, 1, 1, 0]), r(4, 17))]


def padded(r: Rng) -> list[Sample]:
    """With padding_idx the row takes no gradient: finite differences do not apply, so tests/ has its own
    test."""
    return [S(np.array([0, 2, 1]), r(4, 3), padding_idx=2)]


ROWS = [
    Op(
        F + "embedding",
        samples,
        lambda index, weight: weight[index],
        exact=True,
        errors=(
            E("IndexError", np.array([4]), TABLE),
            E("IndexError", np.array([-1]), TABLE),
            E("RuntimeError", np.array([0]), np.ones(3)),
            E("RuntimeError", np.array([0.5], np.float32), TABLE),
        ),
    ),
    Op(
        F + "embedding",
        padded,
        lambda index, weight, padding_idx: weight[index],
        label="embedding, padding_idx",
        exact=True,
        grad=False,
    ),
]
