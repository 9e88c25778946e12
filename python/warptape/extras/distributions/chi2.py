"""The chi-squared distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import constraints
from .gamma import Gamma

if TYPE_CHECKING:
    from warptape.core import Tensor


class Chi2(Gamma):
    """Chi-squared with `df` degrees of freedom: Gamma(df / 2, 1 / 2).

    Args:
        df: positive.
        validate_args: whether parameters and values are checked.

    >>> torch.distributions.Chi2(torch.tensor(3.0)).mean
    tensor(3.)
    """

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Tensor | float, validate_args: bool | None = None) -> None:
        checks = self._validate_args if validate_args is None else validate_args
        super().__init__(0.5 * df, 0.5, validate_args=False)  # df is what is checked, by its own name
        self._validate_args = checks
        if checks:
            self._check_parameters()

    df = property(lambda self: self.concentration * 2, doc="Degrees of freedom.")
