"""The rarer distributions against SciPy, their divergences against sums over a grid, and PyTorch's draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import warptape as wt
from scipy import stats
from warptape import distributions as D

F64 = wt.float64


def t(*values):
    return wt.tensor(values, dtype=F64)


A, B = t(0.7, 2.5, 5.0), t(1.3, 0.8, 4.0)
CASES = {
    "HalfCauchy": (D.HalfCauchy(A), lambda a, b: stats.halfcauchy(scale=a)),
    "InverseGamma": (D.InverseGamma(A, B), lambda a, b: stats.invgamma(a, scale=b)),
    "Pareto": (D.Pareto(A, B), lambda a, b: stats.pareto(b, scale=a)),
    "Weibull": (D.Weibull(A, B), lambda a, b: stats.weibull_min(b, scale=a)),
    "FisherSnedecor": (D.FisherSnedecor(A * 4, B * 9), lambda a, b: stats.f(a * 4, b * 9)),
    "GeneralizedPareto": (D.GeneralizedPareto(A, B, A / 20), lambda a, b: stats.genpareto(a / 20, a, b)),
    "VonMises": (D.VonMises(A / 5, B), lambda a, b: stats.vonmises(b, a / 5)),
    "NegativeBinomial": (
        D.NegativeBinomial(A * 3, probs=B / 5),
        lambda a, b: stats.nbinom(a * 3, 1 - b / 5),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_against_scipy(name):
    d, peer = CASES[name]
    wt.manual_seed(0)
    values = d.sample((2000,))
    again = d.expand((2, 3))
    assert again.sample().shape == again.mean.shape == (2, 3) and values.dtype == F64
    for i in range(3):
        p, column = peer(A[i].item(), B[i].item()), values[:, i].numpy()
        log_prob = p.logpmf(column) if name == "NegativeBinomial" else p.logpdf(column)
        np.testing.assert_allclose(d.log_prob(values)[:, i].numpy(), log_prob, rtol=1e-7, atol=1e-7)
        if name in ("HalfCauchy", "InverseGamma", "Pareto", "Weibull", "GeneralizedPareto"):
            np.testing.assert_allclose(d.cdf(values)[:, i].numpy(), p.cdf(column), rtol=1e-7)
        if name == "NegativeBinomial":
            found = np.array([(column <= k).mean() for k in range(60)])
            assert np.abs(found - p.cdf(np.arange(60))).max() < 0.05
        else:
            if name == "VonMises":  # SciPy's cdf begins half a turn before loc
                column = (column - d.loc[i].item() + math.pi) % (2 * math.pi) - math.pi + d.loc[i].item()
            assert stats.kstest(column, p.cdf).statistic < 0.05
        mean, variance = p.stats("mv")
        if name != "VonMises" and np.isfinite(mean):
            assert d.mean[i].item() == pytest.approx(float(mean), rel=1e-7)
        if name != "VonMises" and np.isfinite(variance):
            assert d.variance[i].item() == pytest.approx(float(variance), rel=1e-7)
        if name in ("InverseGamma", "Weibull", "Pareto", "GeneralizedPareto", "HalfCauchy"):
            assert d.entropy()[i].item() == pytest.approx(float(p.entropy()), rel=1e-5)


def test_kumaraswamy_and_continuous_bernoulli():
    x = wt.linspace(1e-5, 1 - 1e-5, 200001, dtype=F64)[:, None]
    for d in (D.Kumaraswamy(A + 1, B + 1), D.ContinuousBernoulli(t(0.2, 0.5, 0.9))):
        p = d.log_prob(x).exp()
        assert wt.trapezoid(p, x[:, 0], dim=0).sub(1).abs().max() < 1e-3
        mean = wt.trapezoid(p * x, x[:, 0], dim=0)
        variance = wt.trapezoid(p * (x - mean).square(), x[:, 0], dim=0)
        entropy = -wt.trapezoid(p * p.clamp(min=1e-300).log(), x[:, 0], dim=0)
        for found, wanted in ((d.mean, mean), (d.variance, variance), (d.entropy(), entropy)):
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-3)
        np.testing.assert_allclose(d.icdf(d.cdf(t(0.3, 0.5, 0.6))).numpy(), [0.3, 0.5, 0.6], rtol=1e-6)


def test_low_rank_normal():
    factor, diagonal = wt.randn(4, 2, dtype=F64), wt.rand(4, dtype=F64) + 0.5
    d = D.LowRankMultivariateNormal(wt.zeros(4, dtype=F64), factor, diagonal)
    full = D.MultivariateNormal(d.loc, d.covariance_matrix)
    x = d.sample((5,))
    np.testing.assert_allclose(d.log_prob(x).numpy(), full.log_prob(x).numpy())
    np.testing.assert_allclose(
        d.precision_matrix.numpy(), full.precision_matrix.numpy(), rtol=1e-6, atol=1e-9
    )
    assert d.entropy().item() == pytest.approx(full.entropy().item())
    for p, q in ((d, full), (full, d), (d, d)):
        assert D.kl_divergence(p, q).item() == pytest.approx(0, abs=1e-9)
    other = D.LowRankMultivariateNormal(d.loc + 1, factor * 2, diagonal)
    wanted = D.kl_divergence(full, D.MultivariateNormal(other.loc, other.covariance_matrix)).item()
    assert D.kl_divergence(d, other).item() == pytest.approx(wanted)


def test_correlations():
    wt.manual_seed(0)
    d = D.LKJCholesky(3, t(1.0))
    roots = d.sample((3000,))[..., 0, :, :]
    found = (roots @ roots.mT)[:, 1, 0]
    # uniform over correlation matrices of 3 rows: each correlation is 2 beta(1.5, 1.5) - 1
    assert stats.kstest((found.numpy() + 1) / 2, stats.beta(1.5, 1.5).cdf).statistic < 0.04
    assert D.constraints.corr_cholesky.check(roots).all()
    # The density over the two free dims of 2 rows: on [-1, 1] by the correlation itself.
    pair = D.LKJCholesky(2, t(2.0))
    r = wt.linspace(-0.9999, 0.9999, 20001, dtype=F64)
    zero = wt.zeros_like(r)
    matrices = wt.stack([wt.stack([zero + 1, zero], -1), wt.stack([r, (1 - r * r).sqrt()], -1)], -2)
    # log_prob is over L, whose last diagonal element moves with r by -r / sqrt(1 - r r)
    p = pair.log_prob(matrices[:, None])[:, 0].exp()
    assert wt.trapezoid(p, r).item() == pytest.approx(1, abs=1e-3)


FINITE = [
    (D.Beta(t(2.0), t(3.0)), [D.Beta(t(1.5), t(1.2)), D.Gamma(t(2.0), t(3.0)), D.Exponential(t(2.0))]),
    (D.Beta(t(2.0), t(3.0)), [D.Normal(t(0.2), t(2.0)), D.Uniform(t(-1.0), t(2.0))]),
    (D.Beta(t(2.0), t(3.0)), [D.ContinuousBernoulli(t(0.3))]),
    (
        D.ContinuousBernoulli(t(0.3)),
        [D.Normal(t(0.2), t(2.0)), D.Exponential(t(2.0)), D.Uniform(t(0.0), t(1.5))],
    ),
    (D.ContinuousBernoulli(t(0.3)), [D.ContinuousBernoulli(t(0.8))]),
    (D.Exponential(t(1.5)), [D.Gamma(t(2.0), t(3.0)), D.Gumbel(t(1.0), t(2.0)), D.Normal(t(0.2), t(2.0))]),
    (D.Gamma(t(2.0), t(3.0)), [D.Exponential(t(2.0)), D.Gumbel(t(1.0), t(2.0)), D.Normal(t(0.2), t(2.0))]),
    (D.Gumbel(t(0.5), t(0.7)), [D.Gumbel(t(1.0), t(2.0)), D.Normal(t(0.2), t(2.0))]),
    (D.Laplace(t(0.5), t(0.7)), [D.Normal(t(0.2), t(2.0))]),
    (D.Normal(t(0.5), t(0.7)), [D.Gumbel(t(1.0), t(2.0)), D.Laplace(t(0.1), t(2.0))]),
    (D.Pareto(t(1.0), t(6.0)), [D.Exponential(t(2.0)), D.Gamma(t(2.0), t(3.0)), D.Normal(t(0.2), t(2.0))]),
    (D.Pareto(t(1.0), t(6.0)), [D.Pareto(t(0.5), t(2.0))]),
    (D.Uniform(t(0.2), t(0.9)), [D.Beta(t(1.5), t(1.2)), D.Exponential(t(2.0)), D.Gamma(t(2.0), t(3.0))]),
    (
        D.Uniform(t(0.2), t(0.9)),
        [D.Gumbel(t(1.0), t(2.0)), D.Normal(t(0.2), t(2.0)), D.Pareto(t(0.1), t(2.0))],
    ),
    (D.Uniform(t(0.2), t(0.9)), [D.ContinuousBernoulli(t(0.3))]),
    (D.HalfNormal(t(1.5)), [D.HalfNormal(t(0.7))]),
]
PAIRS = [(p, q) for p, others in FINITE for q in others]


@pytest.mark.parametrize("p, q", PAIRS, ids=lambda d: type(d).__name__)
def test_divergences_are_the_integral(p, q):
    ranges = {D.Beta: (0, 1), D.ContinuousBernoulli: (0, 1), D.Uniform: (0.2, 0.9), D.Pareto: (1, 60)}
    low, high = ranges.get(
        type(p), (0, 25) if type(p) in (D.Exponential, D.Gamma, D.HalfNormal) else (-25, 25)
    )
    n = 400001
    x = low + (wt.arange(n, dtype=F64) + 0.5) * (high - low) / n
    log_p = p.log_prob(x)
    wanted = (log_p.exp() * (log_p - q.log_prob(x))).nan_to_num().sum() * (high - low) / n
    assert D.kl_divergence(p, q).item() == pytest.approx(wanted.item(), rel=2e-3, abs=1e-5)


def test_divergences_that_are_infinite_or_counted():
    for p, q in (
        (D.Normal(t(0.0), t(1.0)), D.Beta(t(1.0), t(1.0))),
        (D.Exponential(t(1.0)), D.Pareto(t(1.0), t(1.0))),
        (D.Uniform(t(-1.0), t(1.0)), D.Gamma(t(1.0), t(1.0))),
        (D.Pareto(t(1.0), t(1.5)), D.Normal(t(0.0), t(1.0))),
        (D.Poisson(t(1.0)), D.Binomial(3, t(0.5))),
    ):
        assert D.kl_divergence(p, q).tolist() == [math.inf]
    p, q = D.Bernoulli(t(0.3)), D.Poisson(t(2.0))
    wanted = sum(math.exp(p.log_prob(t(x))) * (p.log_prob(t(x)) - q.log_prob(t(x))) for x in (0.0, 1.0))
    assert D.kl_divergence(p, q).item() == pytest.approx(wanted.item())
    p, q = D.Cauchy(t(0.0), t(1.0)), D.Cauchy(t(0.0), t(1.0))
    assert D.kl_divergence(p, q).item() == pytest.approx(0)


@pytest.mark.parametrize(
    "transform, shape",
    [
        (D.CorrCholeskyTransform(), (3,)),
        (D.ReshapeTransform((2, 2), (4,)), (2, 2)),
        (D.CumulativeDistributionTransform(D.Normal(t(0.5), t(2.0))), (1,)),
        (D.CatTransform([D.ExpTransform(), D.TanhTransform()], -1, [2, 1]), (3,)),
        (D.StackTransform([D.ExpTransform(), D.TanhTransform()], 0), (2,)),
        (D.PositiveDefiniteTransform(), (2, 2)),
    ],
)
def test_transforms(transform, shape):
    wt.manual_seed(2)
    x = wt.randn(shape, dtype=F64)
    if isinstance(transform, D.PositiveDefiniteTransform):
        x = x.tril()
    y = transform(x)
    np.testing.assert_allclose(transform.inv(y).numpy(), x.numpy(), rtol=1e-7, atol=1e-9)
    assert transform.forward_shape(x.shape) == y.shape and transform.inverse_shape(y.shape) == x.shape
    if isinstance(transform, D.CorrCholeskyTransform):
        places = wt.tril_indices(3, 3, -1)

        def free(v):
            return transform(v)[places[0], places[1]]

    else:

        def free(v):
            return transform(v).flatten()

    if not isinstance(transform, D.PositiveDefiniteTransform):
        jacobian = wt.autograd.functional.jacobian(free, x).reshape(x.numel(), x.numel())
        found = transform.log_abs_det_jacobian(x, y).sum().item()
        assert found == pytest.approx(wt.linalg.det(jacobian).abs().log().item(), abs=1e-9)


def test_constraints_and_registries():
    c = D.constraints
    parts = c.cat([c.positive, c.unit_interval], -1, [1, 2])
    assert parts.check(t(2.0, 0.5, 3.0)).tolist() == [True, True, False]
    assert c.stack([c.positive, c.real], 0).check(t(-1.0, -1.0)).tolist() == [False, True]
    mapped = D.biject_to(parts)(t(-1.0, 0.0, 9.0))
    assert parts.check(mapped).all() and D.biject_to(c.corr_cholesky)(t(0.3)).shape == (2, 2)
    for name in ("lower_cholesky", "positive_definite", "positive_semidefinite"):
        made = D.transform_to(getattr(c, name))(wt.randn(3, 3, dtype=F64))
        assert getattr(c, name).check(made)
        with pytest.raises(NotImplementedError, match="Cannot transform"):
            D.biject_to(getattr(c, name))
    assert not c.positive_semidefinite.check(-wt.eye(2)) and not c.square.check(wt.ones(2, 3))

    class Even(c.Constraint):
        pass

    registry = D.constraint_registry.ConstraintRegistry()
    registry.register(Even, lambda constraint: D.ExpTransform())
    assert isinstance(registry(Even()), D.ExpTransform)
    with pytest.raises(TypeError, match="Constraint subclass"):
        registry.register(int, None)(lambda constraint: None)
    vec = wt.arange(6.0)
    assert D.utils.vec_to_tril_matrix(vec).tolist() == [[0, 0, 0], [1, 2, 0], [3, 4, 5]]
    assert D.utils.tril_matrix_to_vec(D.utils.vec_to_tril_matrix(vec, -1), -1).tolist() == vec.tolist()
    with pytest.raises(ValueError, match="triangle"):
        D.utils.vec_to_tril_matrix(wt.ones(4))


@pytest.mark.parity
@pytest.mark.parametrize(
    "make",
    [
        lambda D, t: D.Gamma(t([0.3, 1.0, 7.0]), t([1.0, 2.0, 3.0])),
        lambda D, t: D.Beta(t([0.3, 1.0, 7.0]), t([1.0, 2.0, 3.0])),
        lambda D, t: D.Dirichlet(t([0.3, 1.0, 7.0])),
        lambda D, t: D.StudentT(t([3.0, 5.0])),
        lambda D, t: D.Gumbel(t([3.0, 5.0]), t([1.0, 2.0])),
        lambda D, t: D.NegativeBinomial(t([3.0, 5.0]), t([0.3, 0.6])),
        lambda D, t: D.LKJCholesky(4, 1.5),
        lambda D, t: D.VonMises(t([3.0, 0.1]), t([0.5, 4.0])),
        lambda D, t: D.FisherSnedecor(t([3.0, 5.0]), t([3.0, 7.0])),
        lambda D, t: D.Kumaraswamy(t([3.0, 5.0]), t([3.0, 7.0])),
        lambda D, t: D.LowRankMultivariateNormal(t([0.0, 1.0]), t([[1.0], [2.0]]), t([1.0, 1.0])),
    ],
)
def test_draws_are_pytorchs(make):
    other = pytest.importorskip("torch")
    drawn = []
    for lib in (other, wt):
        lib.manual_seed(5)
        drawn.append(
            np.array(make(lib.distributions, lambda v, lib=lib: lib.tensor(v)).sample((20,)).tolist())
        )
    np.testing.assert_allclose(drawn[1], drawn[0], rtol=2e-4, atol=1e-5)
