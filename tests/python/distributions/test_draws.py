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


def test_gamma_and_what_is_made_of_it_have_pytorchs_numbers() -> None:
    # Drawn by PyTorch 2.13 in this order from this seed.
    wt.manual_seed(0)
    d = wt.distributions
    shares = d.Dirichlet(wt.tensor([0.5, 2.0, 1.0])).sample().tolist()
    assert shares == pytest.approx([0.0005486574955284595, 0.43896353244781494, 0.5604878067970276], rel=1e-6)
    gammas = d.Gamma(wt.tensor([0.3, 4.0]), 2.0).sample().tolist()
    assert gammas == pytest.approx([0.013301153667271137, 1.3193734884262085], rel=1e-6)
    assert d.Beta(wt.tensor([1.5]), 0.7).sample().tolist() == pytest.approx([0.869446873664856], rel=1e-6)
    assert wt.rand(1).item() == pytest.approx(0.20812976360321045)  # as many numbers were drawn


def test_gamma_of_shapes_at_the_edge() -> None:
    sample = wt.distributions._gamma.standard_gamma(wt.tensor([0.0, float("nan"), 1e30, 1e-6]))
    assert sample[0] == wt.finfo(wt.float32).tiny and sample[1].isnan() and sample[2] > 9e29
    assert wt._C._private.standard_gamma(wt.zeros(3, device="meta")).shape == (3, 2)
    with pytest.raises(NotImplementedError, match="standard_gamma: not implemented for int64"):
        wt._C._private.standard_gamma(wt.ones(3, dtype=wt.int64))
