"""What the classes themselves say of the values of their distributions."""

from __future__ import annotations

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
