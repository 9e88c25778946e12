"""Draws from one seed are PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as wt


@pytest.mark.parity
@pytest.mark.parametrize("n", [2, 65, 1000, 50257])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_multinomial(dtype: str, n: int) -> None:
    other = pytest.importorskip("torch")
    for seed in range(20):
        weights = np.random.default_rng(seed).random((3, n)).astype(dtype)
        for count, replacement in ((1, False), (1, True), (2, False), (30, True)):
            drawn = []
            for lib in (other, wt):
                lib.manual_seed(seed)
                drawn.append(lib.multinomial(lib.from_numpy(weights), count, replacement).tolist())
            assert drawn[0] == drawn[1], (seed, count, replacement)


@pytest.mark.parity
def test_categorical() -> None:
    other = pytest.importorskip("torch")
    drawn = []
    for lib in (other, wt):
        lib.manual_seed(543)
        d = lib.distributions.Categorical(lib.tensor([[0.3, 0.7], [0.9, 0.1]]))
        drawn.append([d.sample().tolist() for _ in range(20)] + d.sample((20,)).tolist())
    assert drawn[0] == drawn[1]
