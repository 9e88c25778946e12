# /// script
# dependencies = ["gpytorch==1.15.2", "botorch==0.18.1", "pyro-ppl==1.9.2", "numpy", "scipy"]
# ///
"""gpytorch, botorch, pyro: Gaussian processes, Bayesian optimization, variational inference, sampling."""

import warnings

import torch
from _cases import case, main

warnings.filterwarnings("ignore")


def wave(n=20):
    x = torch.linspace(0, 1, n)
    return x, torch.sin(6 * x) + 0.1 * torch.randn(n)


@case(tolerance=1e-3)
def gpytorch_exact_regression():
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x, y = wave()
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_prior=gpytorch.priors.GammaPrior(2.0, 3.0))
    model = Model(x, y, likelihood)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval(), likelihood.eval()
    with torch.no_grad(), gpytorch.settings.fast_pred_var():
        found = likelihood(model(torch.linspace(-0.2, 1.2, 7)))
        low, high = found.confidence_region()
    return losses, found.mean, found.variance, low, high


@case(tolerance=1e-3)
def gpytorch_variational_classification():
    import gpytorch

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self, points):
            spread = gpytorch.variational.CholeskyVariationalDistribution(points.size(0))
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, spread))
            self.mean = gpytorch.means.LinearMean(1)
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x, y = wave()
    x, labels = x[:, None], (y > 0).float()
    model, likelihood = Model(x[::4].clone()), gpytorch.likelihoods.BernoulliLikelihood()
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.1)
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, labels.numel())
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = -objective(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        return losses, likelihood(model(x)).probs


@case(tolerance=1e-3)
def gpytorch_kernels():
    import gpytorch.kernels as k

    x, y = torch.randn(6, 3), torch.randn(4, 3)
    kinds = (
        k.RBFKernel(ard_num_dims=3), k.MaternKernel(nu=0.5), k.MaternKernel(nu=1.5), k.PeriodicKernel(),
        k.LinearKernel(), k.PolynomialKernel(2), k.RQKernel(), k.CosineKernel(),
        k.ScaleKernel(k.RBFKernel()),
        k.RBFKernel() + k.LinearKernel(), k.RBFKernel() * k.PeriodicKernel(),
        k.PiecewisePolynomialKernel(q=2),
    )  # fmt: skip
    return [(kind(x, y).to_dense(), kind(x).diagonal(dim1=-1, dim2=-2)) for kind in kinds]


@case(tolerance=1e-3)
def botorch_fit_and_acquire():
    from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound, qExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Normalize, Standardize
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler
    from gpytorch.mlls import ExactMarginalLogLikelihood

    x = torch.rand(12, 2, dtype=torch.float64)
    y = -((x - 0.4) ** 2).sum(-1, keepdim=True)
    model = SingleTaskGP(x, y, input_transform=Normalize(2), outcome_transform=Standardize(1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    points = torch.tensor([[[0.3, 0.3]], [[0.9, 0.1]]], dtype=torch.float64)
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=0)
    acquired = [
        LogExpectedImprovement(model, y.max())(points),
        UpperConfidenceBound(model, 0.2)(points),
        qExpectedImprovement(model, y.max(), sampler)(points),
    ]
    best, value = optimize_acqf(UpperConfidenceBound(model, 0.2), bounds, 1, num_restarts=2, raw_samples=8)
    posterior = model.posterior(points[:, 0])
    return [a.detach() for a in acquired], best, value, posterior.mean, posterior.variance


@case(tolerance=1e-3)
def pyro_svi():
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVI, Predictive, Trace_ELBO
    from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

    x, y = wave()

    def model(x, y=None):
        slope = pyro.sample("slope", dist.Normal(0.0, 2.0))
        bias = pyro.sample("bias", dist.StudentT(5.0, 0.0, 2.0))
        noise = pyro.sample("noise", dist.HalfCauchy(1.0))
        with pyro.plate("data", x.size(0)):
            return pyro.sample("y", dist.Normal(slope * x + bias, noise), obs=y)

    found = []
    for kind in (AutoNormal, AutoMultivariateNormal):
        pyro.clear_param_store()
        pyro.set_rng_seed(1)
        guide = kind(model)
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO(num_particles=2))
        losses = [svi.step(x, y) for _ in range(15)]
        drawn = Predictive(model, guide=guide, num_samples=3)(x)
        found.append((losses, dict(sorted(guide.median().items())), drawn["y"].mean(0)))
    return found


@case(tolerance=1e-3)
def pyro_enumeration_and_importance():
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Importance, TraceEnum_ELBO, config_enumerate
    from pyro.infer.autoguide import AutoDelta

    data = torch.tensor([0.0, 1.0, 10.0, 11.0, 12.0])

    @config_enumerate
    def mixture(data):
        weights = pyro.sample("weights", dist.Dirichlet(0.5 * torch.ones(2)))
        with pyro.plate("parts", 2):
            means = pyro.sample("means", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(data)):
            which = pyro.sample("which", dist.Categorical(weights))
            pyro.sample("obs", dist.Normal(means[which], 1.0), obs=data)

    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = AutoDelta(pyro.poutine.block(mixture, expose=["weights", "means"]))
    svi = pyro.infer.SVI(mixture, guide, pyro.optim.Adam({"lr": 0.1}), TraceEnum_ELBO(max_plate_nesting=1))
    losses = [svi.step(data) for _ in range(10)]

    def coin():
        p = pyro.sample("p", dist.Beta(2.0, 3.0))
        pyro.sample("x", dist.Binomial(10, p), obs=torch.tensor(7.0))
        return p

    posterior = Importance(coin, num_samples=20).run()
    return losses, posterior.get_log_normalizer(), posterior.get_ESS()


@case(tolerance=1e-3)
def pyro_hamiltonian_monte_carlo():
    import pyro
    import pyro.distributions as dist
    from pyro.infer import HMC, MCMC, NUTS

    data = torch.tensor([1.0, 1.2, 0.8, 1.1])

    def model():
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        pyro.sample("obs", dist.Normal(mean, 0.5).expand([4]).to_event(1), obs=data)

    found = []
    for kernel in (HMC(model, step_size=0.1, num_steps=3, adapt_step_size=False), NUTS(model, step_size=0.2)):
        pyro.set_rng_seed(0)
        chain = MCMC(kernel, num_samples=5, warmup_steps=2, disable_progbar=True)
        chain.run()
        found.append(chain.get_samples()["mean"])
    return found


@case(tolerance=1e-3)
def pyro_distributions():
    import pyro.distributions as dist

    kinds = (
        dist.LKJCholesky(3, 1.5), dist.NegativeBinomial(5.0, 0.3), dist.VonMises(0.3, 2.0),
        dist.InverseGamma(2.0, 3.0), dist.Pareto(1.0, 3.0), dist.Weibull(1.0, 2.0),
        dist.Kumaraswamy(2.0, 3.0),
        dist.LowRankMultivariateNormal(torch.zeros(3), torch.ones(3, 1), torch.ones(3)),
        dist.ZeroInflatedPoisson(2.0, gate=torch.tensor(0.3)), dist.BetaBinomial(2.0, 3.0, 10),
        dist.MaskedMixture(torch.tensor(True), dist.Normal(0.0, 1.0), dist.Normal(5.0, 1.0)),
        dist.Delta(torch.tensor(1.0)), dist.OrderedLogistic(torch.tensor(0.2), torch.tensor([-1.0, 1.0])),
        dist.SineBivariateVonMises(0.0, 0.1, 2.0, 2.0, 0.5),
        dist.TransformedDistribution(dist.Normal(torch.zeros(2), 1.0), [dist.transforms.planar(2)]),
    )  # fmt: skip
    found = {}
    for kind in kinds:
        torch.manual_seed(0)
        draws = kind.sample((3,))
        found[type(kind).__name__] = draws, kind.log_prob(draws).detach()
    return found


if __name__ == "__main__":
    main()
