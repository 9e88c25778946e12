"""Densities against SciPy's, moments of samples, gradients through samples, divergences, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import warptape as wt
from scipy import stats
from warptape import distributions as D
from warptape.autograd import gradcheck

F64 = wt.float64


def t(*values):
    return wt.tensor(values if len(values) > 1 else values[0], dtype=F64)


A, B = t(0.7, 2.5, 9.0), t(1.5, 0.4, 3.0)
P = t(0.2, 0.5, 0.9)
K = wt.tensor([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1]], dtype=F64)
COV = wt.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=F64)

# distribution, SciPy's for element i, values of shape (n, *batch, *event)
CASES = {
    "Normal": (D.Normal(A, B), lambda i: stats.norm(A[i].item(), B[i].item())),
    "LogNormal": (
        D.LogNormal(A / 9, B / 3),
        lambda i: stats.lognorm(B[i].item() / 3, scale=math.exp(A[i] / 9)),
    ),
    "HalfNormal": (D.HalfNormal(B), lambda i: stats.halfnorm(scale=B[i].item())),
    "Uniform": (D.Uniform(-A, B), lambda i: stats.uniform(-A[i].item(), (A + B)[i].item())),
    "Exponential": (D.Exponential(B), lambda i: stats.expon(scale=1 / B[i].item())),
    "Laplace": (D.Laplace(A, B), lambda i: stats.laplace(A[i].item(), B[i].item())),
    "Gumbel": (D.Gumbel(A, B), lambda i: stats.gumbel_r(A[i].item(), B[i].item())),
    "Gamma": (D.Gamma(A, B), lambda i: stats.gamma(A[i].item(), scale=1 / B[i].item())),
    "Chi2": (D.Chi2(A), lambda i: stats.chi2(A[i].item())),
    "Beta": (D.Beta(A, B), lambda i: stats.beta(A[i].item(), B[i].item())),
    "StudentT": (D.StudentT(A + 4, A, B), lambda i: stats.t(A[i].item() + 4, A[i].item(), B[i].item())),
    "Cauchy": (D.Cauchy(A, B), lambda i: stats.cauchy(A[i].item(), B[i].item())),
    "Bernoulli": (D.Bernoulli(P), lambda i: stats.bernoulli(P[i].item())),
    "Bernoulli by logits": (D.Bernoulli(logits=P.logit()), lambda i: stats.bernoulli(P[i].item())),
    "Geometric": (D.Geometric(P), lambda i: stats.geom(P[i].item(), loc=-1)),
    "Poisson": (D.Poisson(A * 5), lambda i: stats.poisson(A[i].item() * 5)),
    "Binomial": (D.Binomial(t(5.0, 1.0, 8.0), P), lambda i: stats.binom([5, 1, 8][i], P[i].item())),
}
DISCRETE = {"Bernoulli", "Bernoulli by logits", "Geometric", "Poisson", "Binomial"}


@pytest.mark.parametrize("name", CASES)
def test_densities(name):
    d, peer = CASES[name]
    wt.manual_seed(0)
    values = d.sample((20,))
    assert values.shape == (20, 3) and values.dtype == F64 and not values.requires_grad
    log_prob = d.log_prob(values)
    for i in range(3):
        p, column = peer(i), values[:, i].numpy()
        density = p.logpmf if name in DISCRETE else p.logpdf
        np.testing.assert_allclose(log_prob[:, i].numpy(), density(column), rtol=1e-9, atol=1e-9)
        if type(d).cdf is not D.Distribution.cdf:
            np.testing.assert_allclose(d.cdf(values)[:, i].numpy(), p.cdf(column), rtol=1e-9, atol=1e-9)
            if name not in ("Gamma", "Chi2"):
                np.testing.assert_allclose(d.icdf(d.cdf(values))[:, i].numpy(), column, rtol=1e-6)
        if name != "Cauchy":
            np.testing.assert_allclose([d.mean[i].item(), d.variance[i].item()], p.stats("mv"), rtol=1e-9)
        if type(d).entropy is not D.Distribution.entropy and name != "Binomial":
            assert d.entropy()[i].item() == pytest.approx(float(p.entropy()), rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_samples_follow_the_distribution(name):
    d, peer = CASES[name]
    wt.manual_seed(1)
    n = 4000
    samples = d.sample((n,)).numpy()
    for i in range(3):
        p = peer(i)
        if name in DISCRETE:  # by the cumulative share, which discreteness does not bias
            found = np.array([(samples[:, i] <= k).mean() for k in range(60)])
            distance = np.abs(found - p.cdf(np.arange(60))).max()
        else:
            distance = stats.kstest(samples[:, i], p.cdf).statistic
        assert distance < 2.1 / math.sqrt(n)  # exceeded once in 3,000


PATHWISE = {
    "Normal": lambda a, b: D.Normal(a, b),
    "LogNormal": lambda a, b: D.LogNormal(a, b),
    "Uniform": lambda a, b: D.Uniform(-a, b),
    "Exponential": lambda a, b: D.Exponential(a),
    "Laplace": lambda a, b: D.Laplace(a, b),
    "Gumbel": lambda a, b: D.Gumbel(a, b),
    "Cauchy": lambda a, b: D.Cauchy(a, b),
    "StudentT location": lambda a, b: D.StudentT(4.0, a, b),
}


@pytest.mark.parametrize("name", PATHWISE)
def test_gradients_through_samples(name):
    def sample(a, b):
        wt.manual_seed(3)
        return PATHWISE[name](a, b).rsample((4,))

    inputs = [x.clone().requires_grad_() for x in (A, B)]
    assert (
        gradcheck(sample, inputs[:1] if name == "Exponential" else inputs) if name != "Exponential" else True
    )
    if name == "Exponential":
        assert gradcheck(lambda a: sample(a, None), inputs[:1])


@pytest.mark.parametrize("shape", [0.1, 0.7, 2.5, 30.0, 400.0, 3000.0])
def test_gradient_of_gamma_samples(shape):
    """A sample moves with the shape as its quantile does."""
    wt.manual_seed(0)
    a = wt.full((200,), shape, dtype=F64, requires_grad=True)
    samples = D.Gamma(a, wt.ones(200, dtype=F64)).rsample()
    samples.sum().backward()
    quantile = stats.gamma(shape).cdf(samples.detach().numpy())
    inside = (quantile > 1e-3) & (quantile < 1 - 1e-3)
    h = shape * 1e-4
    slope = (stats.gamma(shape + h).ppf(quantile) - stats.gamma(shape - h).ppf(quantile)) / (2 * h)
    np.testing.assert_allclose(a.grad.numpy()[inside], slope[inside], rtol=2e-4 if shape > 1000 else 1e-5)


def test_gradients_reach_the_parameters_of_beta_and_dirichlet():
    """The derivative of a mean is the mean of the derivatives."""
    wt.manual_seed(0)
    a = wt.tensor([2.0, 3.0, 0.8], dtype=F64, requires_grad=True)
    D.Dirichlet(a).rsample((20000,)).mean(0)[0].backward()
    expected = wt.autograd.grad(D.Dirichlet(a).mean[0], a)[0]
    np.testing.assert_allclose(a.grad.numpy(), expected.numpy(), atol=5e-3)
    b = wt.tensor(1.5, dtype=F64, requires_grad=True)
    D.Beta(b, wt.tensor(2.0, dtype=F64)).rsample((20000,)).mean().backward()
    assert b.grad.item() == pytest.approx(2.0 / 3.5**2, abs=5e-3)


def test_beta_samples_stay_inside():
    """Also of shapes whose gamma samples underflow: all shares are then next to 0 or to 1."""
    wt.manual_seed(0)
    for dtype in (wt.float32, F64):
        for a, b in ((0.01, 0.01), (1e-5, 1e-5), (1.0, 0.01), (100.0, 0.01), (0.01, 100.0)):
            x = D.Beta(wt.tensor(a, dtype=dtype), wt.tensor(b, dtype=dtype)).sample((4000,))
            assert x.min() > 0 and x.max() < 1
            assert abs(x.mean().item() - a / (a + b)) < 0.03
        apart = D.Beta(*wt.full((2,), 1e-5, dtype=dtype)).sample((1000,))
        assert ((apart < 1e-3) | (apart > 0.999)).all()
        shares = D.Dirichlet(wt.full((3,), 0.01, dtype=dtype)).sample((1000,))
        assert shares.min() > 0 and shares.max() < 1 and (shares.sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize(
    "a, b, x, expected",
    [  # -dF/da / (density * (1 - x)) by mpmath with 40 digits
        (0.0064470366827164630, 0.24261137876840178, 8.0254733114069e-180, 5.179242029790582e-175),
        (0.77156411596421690, 0.21365427615254018, 0.5046392275753199, 1.3186842732312636),
        (8.9782263400254680, 6.1696065501655380, 0.2750635548918182, 0.045504736416210896),
        (0.28525827219657773, 7224.2795394037950, 0.0005233246092793, 0.0006236129731724888),
        (1.0451973855481530, 87625.890004142110, 3.29484428493762e-05, 2.123601026839163e-05),
        (9307.7674516404910, 0.82513083631777820, 0.9998731199979276, 0.00010743134217951618),
        (345.79282437398473, 1387.7339739254610, 0.18655169677798505, 0.0005581315692177632),
    ],
)
def test_gradient_of_shares(a, b, x, expected):
    from warptape.distributions._gamma import _share_slope

    assert _share_slope(t(a), t(b), t(x)).item() == pytest.approx(expected, rel=1e-8)


def test_gradients_of_extreme_samples():
    for a in (1e-3, 0.01, 1.0, 500.0):
        c = wt.tensor([a, 0.01, 2.0], requires_grad=True)
        D.Dirichlet(c).rsample((50,)).square().sum().backward()
        assert c.grad.isfinite().all() and c.grad.any()
        c = wt.tensor(a, requires_grad=True)
        samples = D.Gamma(c, 1e3).rsample((50,))
        samples.log().sum().backward()  # also where a sample is as small as it may be
        assert c.grad.isfinite() and c.grad > 0 and (samples > 0).all()


def test_gradients_at_the_edges():
    """As PyTorch's."""
    logits = t(0.0).requires_grad_()
    D.Binomial(1, logits=logits).log_prob(t(0.0)).backward()
    assert logits.grad.item() == -0.5
    probs = t(1.0).requires_grad_()
    D.Geometric(probs).log_prob(t(0.0)).backward()
    assert probs.grad.item() == 1.0


def test_categorical():
    d = D.Categorical(K * 3)
    wt.manual_seed(0)
    samples = d.sample((5000,))
    assert samples.shape == (5000, 2) and samples.dtype == wt.int64
    shares = np.stack([np.bincount(samples[:, i].numpy(), minlength=3) / 5000 for i in range(2)])
    np.testing.assert_allclose(shares, K.numpy(), atol=0.03)
    np.testing.assert_allclose(d.log_prob(wt.tensor([2, 0])).numpy(), np.log([0.5, 0.7]))
    np.testing.assert_allclose(d.entropy().numpy(), stats.entropy(K.numpy(), axis=1))
    by_logits = D.Categorical(logits=K.log() + 7)
    np.testing.assert_allclose(by_logits.probs.numpy(), K.numpy())
    assert d.mode.tolist() == [2, 0] and d.enumerate_support().shape == (3, 2)
    assert abs(D.Categorical(t(0.0, 1.0)).entropy().item()) < 1e-12
    one_hot = D.OneHotCategorical(K)
    drawn = one_hot.sample((7,))
    assert drawn.shape == (7, 2, 3) and bool((drawn.sum(-1) == 1).all())
    np.testing.assert_allclose(one_hot.log_prob(drawn).exp().numpy(), (drawn * K).sum(-1).numpy())
    logits = K.log().requires_grad_()
    through = D.OneHotCategoricalStraightThrough(logits=logits).rsample()
    (through * t(1.0, 2.0, 3.0)).sum().backward()
    assert logits.grad.abs().sum() > 0


def test_score_function_gradient():
    """E[f(x) d log p(x)] is the gradient of E[f(x)]: REINFORCE, by summing over the support."""
    logits = t(0.1, -0.4, 1.2).requires_grad_()
    d = D.Categorical(logits=logits)
    f = t(1.0, 5.0, -2.0)
    values = d.enumerate_support()
    (d.probs.detach() * f * d.log_prob(values)).sum().backward()
    expected = wt.autograd.grad((logits.softmax(0) * f).sum(), logits)[0]
    np.testing.assert_allclose(logits.grad.numpy(), expected.numpy())


def test_multinomial_and_dirichlet():
    counts = wt.tensor([[1.0, 2.0, 2.0], [5.0, 0.0, 0.0]], dtype=F64)
    d = D.Multinomial(5, K)
    expected = [stats.multinomial(5, k).logpmf(c) for k, c in zip(K.numpy(), counts.numpy())]
    np.testing.assert_allclose(d.log_prob(counts).numpy(), expected)
    np.testing.assert_allclose(d.entropy().numpy(), [stats.multinomial(5, k).entropy() for k in K.numpy()])
    wt.manual_seed(0)
    drawn = d.sample((2000,))
    assert drawn.shape == (2000, 2, 3) and bool((drawn.sum(-1) == 5).all())
    np.testing.assert_allclose(drawn.mean(0).numpy(), 5 * K.numpy(), atol=0.15)
    a = t(0.5, 2.0, 3.0)
    dirichlet = D.Dirichlet(a)
    np.testing.assert_allclose(
        dirichlet.log_prob(K).numpy(), [stats.dirichlet(a.numpy()).logpdf(k) for k in K.numpy()]
    )
    assert dirichlet.entropy().item() == pytest.approx(stats.dirichlet(a.numpy()).entropy())
    np.testing.assert_allclose(dirichlet.variance.numpy(), stats.dirichlet(a.numpy()).var())


@pytest.mark.parametrize("given", ["covariance_matrix", "precision_matrix", "scale_tril"])
def test_multivariate_normal(given):
    matrix = {
        "covariance_matrix": COV,
        "precision_matrix": wt.linalg.inv(COV),
        "scale_tril": wt.linalg.cholesky(COV),
    }[given]
    loc = t(1.0, -1.0)
    d = D.MultivariateNormal(loc, **{given: matrix})
    values = wt.tensor([[0.3, 0.2], [2.0, -4.0]], dtype=F64)
    peer = stats.multivariate_normal(loc.numpy(), COV.numpy())
    np.testing.assert_allclose(d.log_prob(values).numpy(), peer.logpdf(values.numpy()))
    assert d.entropy().item() == pytest.approx(peer.entropy())
    np.testing.assert_allclose(d.covariance_matrix.numpy(), COV.numpy())
    np.testing.assert_allclose(d.precision_matrix.numpy(), np.linalg.inv(COV.numpy()))
    np.testing.assert_allclose(d.variance.numpy(), [2.0, 1.0])
    wt.manual_seed(0)
    np.testing.assert_allclose(np.cov(d.sample((8000,)).numpy().T), COV.numpy(), atol=0.1)
    wide = d.expand((3, 4))
    assert wide.rsample((2,)).shape == (2, 3, 4, 2) and wide.log_prob(values[0]).shape == (3, 4)
    weights = matrix.clone().requires_grad_()
    with_gradient = D.MultivariateNormal(loc, **{given: weights})
    (with_gradient.log_prob(values).sum() + with_gradient.rsample((3,)).sum()).backward()
    assert weights.grad.isfinite().all() and weights.grad.abs().sum() > 0


KL_PAIRS = {
    "Normal": (D.Normal(A, B), D.Normal(B, A)),
    "Laplace": (D.Laplace(A, B), D.Laplace(B, A)),
    "Gamma": (D.Gamma(A, B), D.Gamma(B, A)),
    "Beta": (D.Beta(A + 1, B + 1), D.Beta(B + 1, A + 1)),
    "Exponential": (D.Exponential(A), D.Exponential(B)),
    "Uniform": (D.Uniform(A, A + B), D.Uniform(A - 1, A + B + 2)),
    "LogNormal": (D.LogNormal(A / 9, B), D.LogNormal(B, A)),
}


@pytest.mark.parametrize("name", KL_PAIRS)
def test_divergence_by_integration(name):
    from scipy.integrate import quad

    p, q = KL_PAIRS[name]
    low, high = (
        (1e-12, 1 - 1e-12)
        if name == "Beta"
        else (1e-12 if name in ("Gamma", "Exponential", "LogNormal") else -np.inf, np.inf)
    )
    for i in range(3):
        a, b = (float(A[i]), float((A + B)[i])) if name == "Uniform" else (low, high)
        one = [d.expand((3,)) for d in (p, q)]
        for d in one:
            d._validate_args = False  # the ends of one element's range lie outside of the others'

        def integrand(x, i=i, one=one):
            value = wt.full((3,), x, dtype=F64)
            lp, lq = (d.log_prob(value)[i].item() for d in one)
            return math.exp(lp) * (lp - lq)

        middle = float(p.mean[i])
        parts = [(a, middle), (middle, b)] if a < middle < b else [(a, b)]
        found = sum(quad(integrand, *part, limit=200)[0] for part in parts)
        assert D.kl_divergence(p, q)[i].item() == pytest.approx(found, rel=1e-4, abs=1e-6)


def test_divergence_of_discrete_ones():
    p, q = D.Categorical(K[0]), D.Categorical(K[1])
    expected = stats.entropy(K[0].numpy(), K[1].numpy())
    assert D.kl_divergence(p, q).item() == pytest.approx(expected)
    assert D.kl_divergence(D.OneHotCategorical(K[0]), D.OneHotCategorical(K[1])).item() == pytest.approx(
        expected
    )
    assert D.kl_divergence(D.Categorical(t(0.5, 0.5)), D.Categorical(t(1.0, 0.0))).item() == math.inf
    assert D.kl_divergence(D.Bernoulli(0.3), D.Bernoulli(0.6)).item() == pytest.approx(
        stats.entropy([0.3, 0.7], [0.6, 0.4]), rel=1e-6
    )
    for a, b, support in (
        (D.Poisson(t(2.0)), D.Poisson(t(3.5)), 80),
        (D.Geometric(t(0.3)), D.Geometric(t(0.6)), 400),
        (D.Binomial(6, t(0.3)), D.Binomial(6, t(0.6)), 7),
    ):
        lp, lq = (d.log_prob(wt.arange(support, dtype=F64)) for d in (a, b))
        assert D.kl_divergence(a, b).item() == pytest.approx((lp.exp() * (lp - lq)).sum().item(), rel=1e-6)
    mvn = [D.MultivariateNormal(t(0.0, 1.0), COV), D.MultivariateNormal(t(1.0, 1.0), COV * 2)]
    ratio, away = np.linalg.inv(2 * COV.numpy()) @ COV.numpy(), np.array([1.0, 0.0])
    expected = 0.5 * (np.trace(ratio) + away @ np.linalg.inv(2 * COV.numpy()) @ away - 2 + 2 * math.log(2))
    assert D.kl_divergence(*mvn).item() == pytest.approx(expected)
    wide = [D.Independent(D.Normal(A, B), 1), D.Independent(D.Normal(B, A), 1)]
    assert D.kl_divergence(*wide).item() == pytest.approx(D.kl_divergence(*KL_PAIRS["Normal"]).sum().item())
    with pytest.raises(NotImplementedError, match=r"No KL\(p \|\| q\) is implemented for p type Normal"):
        D.kl_divergence(D.Normal(0.0, 1.0), D.Bernoulli(0.5))


TRANSFORMS = {
    "exp": D.ExpTransform(),
    "sigmoid": D.SigmoidTransform(),
    "tanh": D.TanhTransform(),
    "softplus": D.SoftplusTransform(),
    "affine": D.AffineTransform(t(1.0, 2.0, 3.0), t(-2.0, 0.5, 1.0)),
    "composed": D.ComposeTransform([D.AffineTransform(1.0, 3.0), D.SigmoidTransform()]),
    "inverse": D.ExpTransform().inv.inv,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name):
    f = TRANSFORMS[name]
    x = t(-0.7, 0.2, 1.1).requires_grad_()
    y = f(x)
    np.testing.assert_allclose(f.inv(y).detach().numpy(), x.detach().numpy(), rtol=1e-9)
    (slope,) = wt.autograd.grad(y.sum(), x)
    np.testing.assert_allclose(
        f.log_abs_det_jacobian(x, y).detach().numpy(), slope.abs().log().numpy(), rtol=1e-9
    )
    assert f.codomain.check(y).all()


def test_transforms_of_vectors():
    stick = D.StickBreakingTransform()
    x = t(0.3, -1.0)
    y = stick(x)
    assert y.sum().item() == pytest.approx(1) and y.shape == (3,)
    np.testing.assert_allclose(stick.inv(y).numpy(), x.numpy())
    jacobian = np.array(
        [
            [(stick(x + 1e-6 * wt.eye(2, dtype=F64)[j]) - y)[i].item() / 1e-6 for j in range(2)]
            for i in range(2)
        ]
    )
    assert stick.log_abs_det_jacobian(x, y).item() == pytest.approx(
        math.log(abs(np.linalg.det(jacobian))), abs=1e-5
    )
    for constraint, value in (
        (D.constraints.positive, t(-3.0, 2.0)),
        (D.constraints.unit_interval, t(-3.0, 2.0)),
        (D.constraints.interval(-2.0, 5.0), t(-3.0, 2.0)),
        (D.constraints.greater_than(3.0), t(-3.0, 2.0)),
        (D.constraints.less_than(3.0), t(-3.0, 2.0)),
        (D.constraints.real, t(-3.0, 2.0)),
        (D.constraints.simplex, t(-3.0, 2.0)),
        (D.constraints.lower_cholesky, COV),
        (D.constraints.independent(D.constraints.positive, 1), t(-3.0, 2.0)),
    ):
        for find in (D.transform_to, D.biject_to):
            if find is D.biject_to and constraint is D.constraints.lower_cholesky:
                continue
            assert constraint.check(find(constraint)(value)).all()
    with pytest.raises(NotImplementedError, match="Cannot transform"):
        D.transform_to(D.constraints.boolean)


def test_tanh_normal_as_in_soft_actor_critic():
    base = D.Independent(D.Normal(A, B), 1)
    d = D.TransformedDistribution(base, [D.TanhTransform(cache_size=1)])
    assert d.event_shape == (3,) and d.batch_shape == ()
    wt.manual_seed(0)
    action = d.rsample()
    x = wt.atanh(action)
    expected = base.log_prob(x) - (1 - action.square()).log().sum()
    assert d.log_prob(action).item() == pytest.approx(expected.item(), rel=1e-6)
    assert d.expand((4,)).sample((2,)).shape == (2, 4, 3)
    assert D.TransformedDistribution(D.Normal(A, B), D.AffineTransform(0.0, -1.0)).cdf(
        t(0.0)
    ).numpy() == pytest.approx(stats.norm(-A.numpy(), B.numpy()).cdf(0.0))


def test_mixture():
    d = D.MixtureSameFamily(D.Categorical(t(0.3, 0.7)), D.Normal(t(-1.0, 2.0), t(0.5, 1.0)))
    x = wt.linspace(-3, 5, 7, dtype=F64)
    density = 0.3 * stats.norm(-1, 0.5).pdf(x.numpy()) + 0.7 * stats.norm(2, 1).pdf(x.numpy())
    np.testing.assert_allclose(d.log_prob(x).exp().numpy(), density)
    assert d.mean.item() == pytest.approx(1.1)
    wt.manual_seed(0)
    samples = d.sample((8000,))
    assert samples.mean().item() == pytest.approx(1.1, abs=0.06)
    assert samples.var().item() == pytest.approx(d.variance.item(), rel=0.05)
    vectors = D.MixtureSameFamily(D.Categorical(t(0.3, 0.7)), D.Independent(D.Normal(wt.zeros(2, 3), 1.0), 1))
    assert vectors.sample((5,)).shape == (5, 3) and vectors.log_prob(wt.zeros(5, 3)).shape == (5,)


def test_relaxed_distributions():
    wt.manual_seed(0)
    logits = P.logit().requires_grad_()
    relaxed = D.RelaxedBernoulli(t(0.3), logits=logits)
    samples = relaxed.rsample((4000,))
    np.testing.assert_allclose((samples > 0.5).double().mean(0).numpy(), P.numpy(), atol=0.03)
    samples.sum().backward()
    assert logits.grad.abs().sum() > 0
    grid = wt.linspace(1e-4, 1 - 1e-4, 20001, dtype=F64).unsqueeze(-1)
    area = D.RelaxedBernoulli(t(1.5), logits=P.logit()).log_prob(grid).exp().numpy()[1:].mean(0)
    np.testing.assert_allclose(area, 1, atol=1e-2)
    simplex = D.RelaxedOneHotCategorical(t(0.3), probs=K).rsample((4000,))
    assert D.constraints.simplex.check(simplex).all()
    np.testing.assert_allclose(
        (simplex == simplex.amax(-1, True)).double().mean(0).numpy(), K.numpy(), atol=0.03
    )


def test_shapes_and_expansion():
    d = D.Normal(wt.zeros(3, 1), wt.ones(4))
    assert d.batch_shape == (3, 4) and d.event_shape == () and d.sample((2,)).shape == (2, 3, 4)
    wide = D.Bernoulli(logits=wt.zeros(2)).expand((5, 2))
    assert wide.batch_shape == (5, 2) and wide.probs.shape == (5, 2) and wide.sample().shape == (5, 2)
    independent = D.Independent(d, 1)
    assert independent.batch_shape == (3,) and independent.event_shape == (4,)
    assert independent.log_prob(wt.zeros(3, 4)).shape == (3,)
    assert repr(D.Normal(0.0, 1.0)) == "Normal(loc: 0.0, scale: 1.0)"
    assert repr(d) == "Normal(loc: torch.Size([3, 4]), scale: torch.Size([3, 4]))"
    assert d.perplexity().shape == (3, 4)
    with pytest.warns(UserWarning, match="sample_n will be deprecated"):
        assert d.sample_n(2).shape == (2, 3, 4)


REFUSED = [
    (lambda: D.Normal(0.0, -1.0), r"Expected parameter scale .* to satisfy the constraint GreaterThan"),
    (lambda: D.Bernoulli(1.5), "Expected parameter probs"),
    (lambda: D.Bernoulli(), "Either `probs` or `logits` must be specified, but not both"),
    (
        lambda: D.Categorical(wt.ones(2), wt.ones(2)),
        "Either `probs` or `logits` must be specified, but not both",
    ),
    (lambda: D.Categorical(wt.tensor(1.0)), "must be at least one-dimensional"),
    (lambda: D.Categorical(wt.tensor([-1.0, 2.0])), "Expected parameter probs"),
    (lambda: D.Uniform(1.0, 0.0), "Uniform is not defined when low>= high"),
    (lambda: D.Normal("a", 1.0), "must all be instances of Number"),
    (lambda: D.Normal(0.0, 1.0).log_prob(0.0), "The value argument to log_prob must be a Tensor"),
    (lambda: D.Categorical(wt.ones(2)).log_prob(wt.tensor(5)), "to be within the support"),
    (lambda: D.Exponential(1.0).log_prob(wt.tensor(-1.0)), "to be within the support"),
    (lambda: D.Normal(wt.zeros(3), 1.0).log_prob(wt.zeros(2)), "Value is not broadcastable"),
    (lambda: D.Dirichlet(wt.ones(3)).log_prob(wt.ones(2)), "right-most size of value must match event_shape"),
    (lambda: D.MultivariateNormal(wt.zeros(2)), "Exactly one of covariance_matrix"),
    (lambda: D.MultivariateNormal(wt.zeros(2), -wt.eye(2)), "Expected parameter covariance_matrix"),
    (lambda: D.Independent(D.Normal(0.0, 1.0), 1), "Expected reinterpreted_batch_ndims"),
    (lambda: D.TransformedDistribution(D.Normal(0.0, 1.0), "x"), "transforms must be a Transform or list"),
    (lambda: D.ExpTransform(cache_size=2), "cache_size must be 0 or 1"),
]


@pytest.mark.parametrize("call, text", REFUSED, ids=[text[:40] for _, text in REFUSED])
def test_refusals(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_what_is_not_there_says_so():
    with pytest.raises(NotImplementedError, match="Bernoulli does not implement rsample"):
        D.Bernoulli(0.5).rsample()
    assert D.Normal(0.0, -1.0, validate_args=False).scale.item() == -1.0


def test_normal_and_poisson_functions():
    wt.manual_seed(0)
    mean, std = wt.tensor([1.0, 2.0]), wt.tensor([0.5, 3.0])
    drawn = wt.normal(mean, std)
    wt.manual_seed(0)
    assert drawn.tolist() == (mean + std * wt.randn(2)).tolist()
    wt.manual_seed(0)
    assert wt.normal(mean, 2.0).tolist() != wt.normal(mean, 2.0).tolist()
    assert wt.normal(0.0, wt.ones(3, 1)).shape == (3, 1) and wt.normal(0.0, 1.0, (2, 2)).shape == (2, 2)
    with pytest.raises(RuntimeError, match=r"normal expects all elements of std >= 0.0"):
        wt.normal(mean, -std)
    with pytest.raises(TypeError, match=r"missing required argument .size."):
        wt.normal(0.0, 1.0)
    with pytest.raises(RuntimeError, match="invalid Poisson rate"):
        wt.poisson(wt.tensor([-1.0]))
    for rate in (0.5, 9.9, 10.1, 300.0):
        counts = wt.poisson(wt.full((6000,), rate)).numpy()
        k = np.arange(500)
        found = np.array([(counts <= j).mean() for j in k])
        assert np.abs(found - stats.poisson(rate).cdf(k)).max() < 2.1 / math.sqrt(6000)


@pytest.mark.parametrize(
    ("n", "p"), [(7, 0.3), (30, 0.5), (40, 0.9), (400, 0.04), (1000, 0.02), (10**6, 0.25), (10**12, 3e-11)]
)
def test_binomial_is_distributed_as_it_should(n: int, p: float):
    wt.manual_seed(1)
    count = wt.full((6000,), float(n), dtype=wt.float64)
    drawn = wt.binomial(count, wt.tensor(p, dtype=wt.float64)).numpy()
    assert (drawn == np.floor(drawn)).all() and (drawn >= 0).all() and (drawn <= n).all()
    exact = stats.binom(n, p)
    k = np.unique(drawn)
    found = np.array([(drawn <= j).mean() for j in k])
    assert np.abs(found - exact.cdf(k)).max() < 2.1 / math.sqrt(6000)


def test_counts_of_strange_parameters_end():
    """nan and huge parameters once kept the loops of rejection alive for ever."""
    nan, inf = math.nan, math.inf
    with pytest.raises(RuntimeError, match="invalid Poisson rate"):
        wt.poisson(wt.tensor([1.0, nan]))
    assert wt.poisson(wt.tensor([inf, 0.0])).tolist() == [inf, 0]
    huge = wt.poisson(wt.tensor([1e30, 1e300], dtype=wt.float64)).tolist()
    np.testing.assert_allclose(huge, [1e30, 1e300], rtol=1e-6)
    count, prob = wt.tensor([nan, 5.0, inf, 5, 5, -5]), wt.tensor([0.5, nan, 0.5, 1.5, -1, 0.5])
    np.testing.assert_equal(wt.binomial(count, prob).tolist(), [nan, nan, nan, 5, 0, 0])
    many = wt.tensor([1e15, 1e30], dtype=wt.float64)
    drawn = wt.binomial(many, wt.tensor(0.3, dtype=wt.float64)).tolist()
    np.testing.assert_allclose(drawn, [3e14, 3e29], rtol=1e-6)
    with pytest.raises(ValueError, match="binomial only supports floating-point dtypes for count"):
        wt.binomial(wt.tensor([5]), wt.tensor([0.5]))
    with pytest.raises(RuntimeError, match=r"std >= 0\.0"):
        wt.normal(wt.zeros(2), wt.tensor([nan, 1.0]))
    assert math.isnan(D.Gamma(wt.tensor(nan), 1.0, validate_args=False).sample().item())
    assert wt.isnan(D.Dirichlet(wt.tensor([nan, 1.0]), validate_args=False).sample()).all()


@pytest.mark.parity
@pytest.mark.parametrize(
    "name", ["Normal", "Uniform", "Categorical", "Bernoulli logits", "Laplace", "Exponential"]
)
def test_same_log_probs_as_pytorch(name):
    torch = pytest.importorskip("torch")
    import torch.distributions as TD

    make = {
        "Normal": lambda m, d: d.Normal(m.tensor([0.1, 2.0]), m.tensor([0.5, 1.5])),
        "Uniform": lambda m, d: d.Uniform(m.tensor([0.1, -2.0]), m.tensor([0.5, 1.5])),
        "Categorical": lambda m, d: d.Categorical(logits=m.tensor([[0.1, -2.0], [0.5, 1.5]])),
        "Bernoulli logits": lambda m, d: d.Bernoulli(logits=m.tensor([0.1, -2.0])),
        "Laplace": lambda m, d: d.Laplace(m.tensor([0.1, 2.0]), m.tensor([0.5, 1.5])),
        "Exponential": lambda m, d: d.Exponential(m.tensor([0.1, 2.0])),
    }[name]
    ours, theirs = make(wt, D), make(torch, TD)
    torch.manual_seed(0)
    wt.manual_seed(0)
    expected, found = theirs.sample((6,)), ours.sample((6,))
    assert repr(ours) == repr(theirs)
    if name in ("Normal", "Uniform"):  # PyTorch's other samplers draw their numbers elsewhere
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)
    np.testing.assert_allclose(
        ours.log_prob(wt.tensor(expected.numpy())).numpy(), theirs.log_prob(expected).numpy(), rtol=2e-6
    )
    np.testing.assert_allclose(ours.entropy().numpy(), theirs.entropy().numpy(), rtol=2e-6)
