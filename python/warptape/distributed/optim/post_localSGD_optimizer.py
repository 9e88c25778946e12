"""PostLocalSGDOptimizer: an optimizer whose steps an averager follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...optim.optimizer import Optimizer

__all__ = ["PostLocalSGDOptimizer"]


class PostLocalSGDOptimizer(Optimizer):
    """Steps of `optim`, after each of which `averager` averages the parameters if it is time.

    Args:
        optim: any optimizer.
        averager: as PeriodicModelAverager.
    """

    def __init__(self, optim: Optimizer, averager: Any) -> None:
        self.optim, self.averager = optim, averager
        self.param_groups, self.state, self.defaults = optim.param_groups, optim.state, optim.defaults

    def step(self, closure: Callable[..., Any] | None = None) -> Any:
        """A step of the optimizer, then the averager's turn.

        Args:
            closure: what the optimizer takes.
        """
        loss = self.optim.step() if closure is None else self.optim.step(closure)
        self.averager.average_parameters(self.param_groups)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's.

        Args:
            set_to_none: whether gradients go away.
        """
        self.optim.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's.

        Args:
            param_group: a dict with "params".
        """
        self.optim.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's, with the averager's step."""
        return {**self.optim.state_dict(), "step": self.averager.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What state_dict() gave; without a step the averager begins anew.

        Args:
            state_dict: of this class, or of the optimizer's.
        """
        state = dict(state_dict)
        self.averager.step = state.pop("step", 0)
        self.optim.load_state_dict(state)
        self.param_groups, self.state = self.optim.param_groups, self.optim.state

    def __repr__(self) -> str:
        return repr(self.optim)
