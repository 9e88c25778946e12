"""The Wishart distribution against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as wt
from scipy import stats
from warptape import distributions as D

F64 = wt.float64
COV = wt.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=F64)


@pytest.mark.parametrize("given", ["covariance_matrix", "precision_matrix", "scale_tril"])
def test_wishart(given):
    matrix = {
        "covariance_matrix": COV,
        "precision_matrix": wt.linalg.inv(COV),
        "scale_tril": wt.linalg.cholesky(COV),
    }[given]
    d = D.Wishart(wt.tensor(4.5, dtype=F64), **{given: matrix})
    peer = stats.wishart(4.5, COV.numpy())
    value = COV * 3 + wt.eye(2, dtype=F64)
    assert d.log_prob(value).item() == pytest.approx(peer.logpdf(value.numpy()))
    assert d.entropy().item() == pytest.approx(peer.entropy())
    np.testing.assert_allclose(d.mean.numpy(), peer.mean())
    np.testing.assert_allclose(d.variance.numpy(), peer.var())
    np.testing.assert_allclose(d.mode.numpy(), peer.mode())
    np.testing.assert_allclose(d.precision_matrix.numpy(), np.linalg.inv(COV.numpy()))
    wt.manual_seed(0)
    drawn = d.sample((20000,))
    np.testing.assert_allclose(drawn.mean(0).numpy(), peer.mean(), atol=0.15)
    np.testing.assert_allclose(drawn.var(0).numpy(), peer.var(), rtol=0.1)
    wide = d.expand((3, 1))
    assert wide.rsample((2,)).shape == (2, 3, 1, 2, 2) and wide.log_prob(value).shape == (3, 1)
    weights = matrix.clone().requires_grad_()
    with_gradient = D.Wishart(wt.tensor(4.5, dtype=F64), **{given: weights})
    (with_gradient.log_prob(value).sum() + with_gradient.rsample((3,)).sum()).backward()
    assert weights.grad.isfinite().all() and weights.grad.abs().sum() > 0


def test_wishart_without_a_mode_or_freedom():
    assert D.Wishart(wt.tensor(2.5, dtype=F64), COV).mode.isnan().all()
    with pytest.raises(ValueError, match="greater than ndim - 1 = 1"):
        D.Wishart(wt.tensor(1.0, dtype=F64), COV)
