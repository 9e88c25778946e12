"""Embeddings."""

from __future__ import annotations

from typing import Any

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


def bag(
    index: np.ndarray, weight: np.ndarray, offsets: Any = None, *, mode: str = "mean", **how: Any
) -> np.ndarray:
    """Each bag's rows, but those of padding_idx, together; zeros for no row."""
    if offsets is None:
        offsets = np.arange(0, index.size, index.shape[1])
    elif how.get("include_last_offset"):
        offsets = offsets[:-1]
    factors = how.get("per_sample_weights", np.ones(index.shape)).reshape(-1)
    out = []
    for place, one in zip(
        np.split(np.arange(index.size), offsets[1:]), np.split(index.reshape(-1), offsets[1:]), strict=True
    ):
        keep = one != how.get("padding_idx", -1)
        rows = weight[one[keep]] * factors[place[keep], None]
        out.append(getattr(rows, mode)(0) if len(rows) else np.zeros(weight.shape[1]))
    return np.stack(out)


def bags(r: Rng) -> list[Sample]:
    index, starts = np.array([1, 3, 0, 3, 4, 2, 2]), np.array([0, 3, 3, 5])
    cases = [S(index, r.distinct(5, 3), starts, mode=mode) for mode in ("sum", "mean", "max")]
    cases += [S(r.index(3, 4, high=5), r.distinct(5, 3), mode=mode) for mode in ("sum", "mean", "max")]
    weights = {"mode": "sum", "per_sample_weights": r(7)}
    cases += [
        S(index, r(5, 2), starts, **weights),
        S(r.index(2, 3, high=5), r(5, 2), mode="sum", per_sample_weights=r(2, 3)),
    ]
    return [*cases, S(index, r(5, 2), np.array([0, 2, 7]), mode="mean", include_last_offset=True)]


def padded_bags(r: Rng) -> list[Sample]:
    index, starts = np.array([1, 3, 0, 3, 3, 2, 2]), np.array([0, 3, 5])
    return [S(index, r(5, 2), starts, mode=mode, padding_idx=3) for mode in ("sum", "mean", "max")]


BAG = (np.array([0, 1]), TABLE, np.array([0]))
ROWS = [
    Op(
        F + "embedding_bag",
        bags,
        bag,
        tol={"float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2), "float32": (1e-5, 1e-5)},
        python=True,
        meta=None,
        errors=(
            E("ValueError", np.array([0, 1]), TABLE),
            E("ValueError", np.array([[0, 1]]), TABLE, np.array([0])),
            E("ValueError", np.array([0, 1]), np.ones(3), np.array([0])),
            E("RuntimeError", np.array([0, 1]), TABLE, np.array([1]), host=True),
            E("RuntimeError", np.array([0, 1]), TABLE, np.array([0, 3]), host=True),
            E("ValueError", *BAG, mode="median"),
            E("NotImplementedError", *BAG, per_sample_weights=np.ones(2)),
            E("ValueError", *BAG, mode="sum", per_sample_weights=np.ones(3)),
        ),
    ),
    Op(
        F + "embedding_bag",
        padded_bags,
        bag,
        label="embedding_bag, padding_idx",
        tol={"float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2), "float32": (1e-5, 1e-5)},
        python=True,
        meta=None,
        grad=False,
    ),
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
