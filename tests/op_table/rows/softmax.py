"""softmax and log_softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from ..table import D, E, Op, Rng, S, Sample

DIMS = (E("IndexError", np.ones((2, 3)), 2), E("IndexError", np.ones((2, 3)), -3))


def softmax(x: np.ndarray, dim: int, dtype: Any = None) -> np.ndarray:
    return special.softmax(x, dim) if x.ndim else np.ones(())


def log_softmax(x: np.ndarray, dim: int, dtype: Any = None) -> np.ndarray:
    return special.log_softmax(x, dim) if x.ndim else np.zeros(())


def samples(r: Rng) -> list[Sample]:
    cases = [
        S(r(3, 5), 1),
        S(r(3, 5), 0),
        S(r(2, 3, 4), 1),
        S(r(3, 40), dim=-1),
        S(r(), 0),
        S(r(2, 0), 0),
        S(r(0, 3), 1),
    ]
    large = np.array([[1000.0, 1001.0, 999.0], [-np.inf, 0.0, 1.0]])
    return [*cases, S(r(4), -1), S(r(2, 1), 1), S(large, 1, grad=False)]


def rows(name: str, ref: Callable[..., Any]) -> list[Op]:
    def widened(r: Rng) -> list[Sample]:
        return [S(r(3, 5), 1, dtype=D("float64")), S(r(2, 3, 4), 0, dtype=D("float64"))]

    wide = {"result": "float64", "tol": {"float64": (1e-12, 1e-12)}}
    return [
        Op(name, samples, ref, method=True, out=True, errors=DIMS),
        Op("nn.functional." + name, samples, ref, errors=DIMS),
        Op(name, widened, ref, label=f"{name}, dtype", method=True, out=True, **wide),
    ]


ROWS = [
    *rows("softmax", softmax),
    *rows("log_softmax", log_softmax),
    Op(
        "nn.functional.softmin",
        lambda r: samples(r)[:5],
        lambda x, dim: softmax(-x, dim),
        errors=(E("IndexError", np.ones((2, 3)), 2, match="softm"),),
    ),
]
