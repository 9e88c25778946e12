"""Divergences between distributions of different families, and of the rarer ones.

KL(p || q) = -entropy(p) - E_p[log q], with the expectations in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from warptape import core as wt

from .bernoulli import Bernoulli
from .beta import Beta
from .binomial import Binomial
from .cauchy import Cauchy
from .continuous_bernoulli import ContinuousBernoulli
from .exponential import Exponential
from .gamma import Gamma
from .gumbel import Gumbel
from .half_normal import HalfNormal
from .kl import kl_divergence, register_kl
from .laplace import Laplace
from .lowrank_multivariate_normal import LowRankMultivariateNormal
from .multivariate_normal import MultivariateNormal
from .normal import Normal
from .pareto import Pareto
from .poisson import Poisson
from .uniform import Uniform

_EULER = 0.57721566490153286060
_UNIT = (Beta, ContinuousBernoulli)  # on [0, 1]
_REAL = (Gumbel, Laplace, Normal)  # on all numbers


def _rules(pairs: Iterable[tuple[type, type]]) -> Callable[[Any], Any]:
    def register(rule: Callable[..., Any]) -> Any:
        for p, q in pairs:
            register_kl(p, q)(rule)
        return rule

    return register


@_rules(
    [(p, q) for p in (Exponential, Gamma) for q in (*_UNIT, Pareto, Uniform)]
    + [(p, q) for p in _REAL for q in (*_UNIT, Exponential, Gamma, Pareto, Uniform)]
    + [(p, Pareto) for p in _UNIT]
    + [(Pareto, q) for q in (*_UNIT, Uniform)]
    + [(Poisson, q) for q in (Bernoulli, Binomial)]
)
def _infinite(p: Any, q: Any) -> Any:
    """q is 0 where p is not."""
    shape = wt.broadcast_shapes(p.batch_shape, q.batch_shape)
    return wt.full(shape, math.inf)


def _mean_log(p: Any) -> Any:
    """E_p[log x]."""
    if isinstance(p, Beta):
        total = p.concentration1 + p.concentration0
        return wt.digamma(p.concentration1) - wt.digamma(total)
    if isinstance(p, Exponential):
        return -p.rate.log() - _EULER
    if isinstance(p, Pareto):
        return p.scale.log() + p.alpha.reciprocal()
    return (wt.xlogy(p.high, p.high) - wt.xlogy(p.low, p.low)) / (p.high - p.low) - 1


def _above(p: Any, bound: wt.Tensor | float, found: wt.Tensor) -> Any:
    """Infinite for a uniform p that begins below the bound."""
    return found.masked_fill(p.low < bound, math.inf) if isinstance(p, Uniform) else found


@_rules([(p, Normal) for p in (*_UNIT, Exponential, Gamma, Gumbel, Laplace, Pareto, Uniform)])
def _normal(p: Any, q: Any) -> Any:
    spread = (p.variance + (p.mean - q.loc).square()) / q.scale.square()
    return 0.5 * (math.log(2 * math.pi) + spread) + q.scale.log() - p.entropy()


@_rules([(p, Exponential) for p in (*_UNIT, Gamma, Pareto, Uniform)])
def _exponential(p: Any, q: Any) -> Any:
    return _above(p, 0, q.rate * p.mean - q.rate.log() - p.entropy())


@_rules([(p, Gamma) for p in (Beta, Exponential, Pareto, Uniform)])
def _gamma(p: Any, q: Any) -> Any:
    a, b = q.concentration, q.rate
    divergence = wt.lgamma(a) - a * b.log() - (a - 1) * _mean_log(p) + b * p.mean - p.entropy()
    return _above(p, 0, divergence)


@_rules([(p, Gumbel) for p in (Exponential, Gamma, Gumbel, Normal, Uniform)])
def _gumbel(p: Any, q: Any) -> Any:
    s = q.scale
    if isinstance(p, Gumbel):
        power = ((q.loc - p.loc) / s + wt.lgamma(1 + p.scale / s)).exp()
    elif isinstance(p, Normal):
        power = ((q.loc - p.loc) / s + 0.5 * (p.scale / s).square()).exp()
    elif isinstance(p, Uniform):
        power = s * (((q.loc - p.low) / s).exp() - ((q.loc - p.high) / s).exp()) / (p.high - p.low)
    else:
        count = p.concentration if isinstance(p, Gamma) else 1.0
        power = (q.loc / s).exp() * (1 + (p.rate * s).reciprocal()).pow(-count)
    return s.log() + (p.mean - q.loc) / s + power - p.entropy()


@_rules([(p, ContinuousBernoulli) for p in (*_UNIT, Uniform)])
def _continuous_bernoulli(p: Any, q: Any) -> Any:
    constant = q._log_constant() + (-q.probs).log1p()
    divergence = -p.entropy() - p.mean * q.logits - constant
    return (
        divergence.masked_fill(p.high > 1, math.inf).masked_fill(p.low < 0, math.inf)
        if isinstance(p, Uniform)
        else divergence
    )


@_rules([(p, Uniform) for p in _UNIT])
def _unit_uniform(p: Any, q: Any) -> Any:
    divergence = (q.high - q.low).log() - p.entropy()
    return divergence.masked_fill((q.low > 0) | (q.high < 1), math.inf)


@register_kl(Uniform, Beta)
def _uniform_beta(p: Uniform, q: Beta) -> Any:
    a, b = q.concentration1, q.concentration0
    width = p.high - p.low
    left = 1 - p.high, 1 - p.low
    mean_rest = (wt.xlogy(left[1], left[1]) - wt.xlogy(left[0], left[0])) / width - 1
    beta = wt.lgamma(a) + wt.lgamma(b) - wt.lgamma(a + b)
    divergence = beta - (a - 1) * _mean_log(p) - (b - 1) * mean_rest - width.log()
    return divergence.masked_fill((p.high > 1) | (p.low < 0), math.inf)


@register_kl(Uniform, Pareto)
def _uniform_pareto(p: Uniform, q: Pareto) -> Any:
    divergence = (q.alpha + 1) * _mean_log(p) - q.alpha.log() - q.alpha * q.scale.log() - p.entropy()
    return _above(p, q.scale, divergence)


@register_kl(Pareto, Pareto)
def _pareto(p: Pareto, q: Pareto) -> Any:
    ratio = q.alpha / p.alpha
    divergence = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return divergence.masked_fill(p.scale < q.scale, math.inf)


@register_kl(Normal, Laplace)
def _normal_laplace(p: Normal, q: Laplace) -> Any:
    away = p.loc - q.loc
    ratio = away / p.scale
    near = math.sqrt(2 / math.pi) * p.scale * (-0.5 * ratio.square()).exp()
    distance = near + away * (math.sqrt(0.5) * ratio).erf()
    return (2 * q.scale).log() + distance / q.scale - p.entropy()


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Any:
    squares = (p.scale + q.scale).square() + (p.loc - q.loc).square()
    return squares.log() - (4 * p.scale * q.scale).log()


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Any:
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(Bernoulli, Poisson)
def _bernoulli_poisson(p: Bernoulli, q: Poisson) -> Any:
    return q.rate - p.probs * q.rate.log() - p.entropy()


@_rules(
    [
        (LowRankMultivariateNormal, LowRankMultivariateNormal),
        (LowRankMultivariateNormal, MultivariateNormal),
        (MultivariateNormal, LowRankMultivariateNormal),
    ]
)
def _low_rank(p: Any, q: Any) -> Any:
    if p.event_shape != q.event_shape:
        raise ValueError("KL-divergence between two Multivariate Normals with different event shapes")
    away = (q.loc - p.loc).unsqueeze(-1)
    precision = q.precision_matrix
    spread = (precision * p.covariance_matrix).sum((-2, -1)) + (away.mT @ precision @ away)[..., 0, 0]
    size = p.event_shape[0]
    return 0.5 * (spread - size) + q.entropy() - p.entropy()
