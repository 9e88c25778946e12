"""What the classes themselves say of the values of their distributions."""

from __future__ import annotations

import warnings

import pytest
import warptape as wt
from warptape import distributions as D

ONES = wt.ones(3)
EXAMPLES = [
    (D.Binomial(4, ONES / 2), True, 0),
    (D.Categorical(ONES), True, 0),
    (D.Multinomial(4, ONES), True, 1),
    (D.Pareto(ONES, ONES), False, 0),
    (D.Uniform(-ONES, ONES), False, 0),
    (D.Normal(ONES, ONES), False, 0),
    (D.Independent(D.Normal(ONES, ONES), 1), None, 1),
    (D.TransformedDistribution(D.Normal(ONES, ONES), [D.ExpTransform()]), None, 0),
    (D.MixtureSameFamily(D.Categorical(ONES), D.Normal(ONES, ONES)), None, 0),
]


@pytest.mark.parametrize("example, discrete, event_dim", EXAMPLES, ids=lambda x: type(x).__name__)
def test_supports(example: D.Distribution, discrete: bool | None, event_dim: int) -> None:
    of_class = type(example).support
    assert isinstance(of_class, D.constraints.Constraint)
    assert example.support.event_dim == event_dim
    assert example.support.check(example.sample()).all()
    if discrete is None:
        for name in ("event_dim", "is_discrete"):
            with pytest.raises(NotImplementedError, match="cannot be determined statically"):
                getattr(of_class, name)
    else:
        assert (of_class.is_discrete, of_class.event_dim) == (discrete, event_dim)
        assert example.support.is_discrete is discrete


def test_chi2_checks_samples_and_df() -> None:
    with pytest.raises(ValueError, match="within the support"):
        D.Chi2(ONES).log_prob(-ONES)
    assert D.Chi2(ONES, validate_args=False).log_prob(-ONES).isnan().all()
    with pytest.raises(ValueError, match="parameter df"):
        D.Chi2(-ONES)


def test_classes_that_do_not_say_what_they_take() -> None:
    class Still(D.Distribution):
        def log_prob(self, value: wt.Tensor) -> wt.Tensor:
            self._validate_sample(value)
            return value

    with pytest.warns(UserWarning, match="Still'> does not define `arg_constraints`"):
        still = Still(validate_args=True)
    with pytest.warns(UserWarning, match="does not define `support`"):
        still.log_prob(ONES[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Still(validate_args=False).log_prob(ONES[0])
