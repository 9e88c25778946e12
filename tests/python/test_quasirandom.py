"""Sobol sequences, against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as wt
from scipy.stats import qmc
from warptape.quasirandom import SobolEngine


@pytest.mark.parametrize("dimension", [1, 3, 50])
def test_points(dimension):
    engine = SobolEngine(dimension)
    wanted = qmc.Sobol(dimension, scramble=False).random(64)
    found = [engine.draw(n, dtype=wt.float64) for n in (1, 6, 0, 9, 48)]
    np.testing.assert_array_equal(wt.cat(found).numpy(), wanted)
    np.testing.assert_array_equal(
        engine.reset().fast_forward(10).draw(3, dtype=wt.float64).numpy(), wanted[10:13]
    )
    assert engine.reset().draw_base2(4).dtype == wt.float32
    with pytest.raises(ValueError, match="power of 2"):
        engine.draw_base2(3)


def test_scrambling():
    one, two = (SobolEngine(4, scramble=True, seed=3) for _ in range(2))
    points = one.draw(256)
    assert wt.equal(points, two.draw(256)) and not wt.equal(points, SobolEngine(4).draw(256))
    # a scrambled net keeps its balance: each interval of length 1 / 256 has one point, in each dim
    assert ((points * 256).long().sort(0).values == wt.arange(256)[:, None]).all()
    assert (one.reset().draw(8) == points[:8]).all()
    assert repr(one) == "SobolEngine(dimension=4, scramble=True, seed=3)"


def test_errors():
    with pytest.raises(ValueError, match="Supported range"):
        SobolEngine(0)


@pytest.mark.parity
def test_points_are_pytorchs():
    other = pytest.importorskip("torch")
    for dimension, seed in ((3, 5), (40, 7)):
        engines = [lib.quasirandom.SobolEngine(dimension, scramble=True, seed=seed) for lib in (other, wt)]
        for n in (1, 5, 20):
            assert engines[0].draw(n).tolist() == engines[1].draw(n).tolist()
