"""Inner names of torch.optim that optimizers of libraries use."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from warptape import core as wt
from warptape import nn

from ..core import Tensor
from ..optim import Optimizer
from .names.utils import _foreach_utils as foreach

StateDict = dict[str, Any]


def default_to_foreach(
    params: list[Tensor], differentiable: bool, use_fused: bool = False
) -> tuple[bool, bool]:
    """Whether an optimizer is (fused, by lists) where the program says neither: PyTorch's rule."""
    if differentiable:
        return False, False
    fused = use_fused and all(
        p is None
        or (
            type(p) in (Tensor, nn.Parameter)
            and p.device.type in foreach._get_fused_kernels_supported_devices()
            and p.is_floating_point()
        )
        for p in params
    )
    by_lists = not fused and all(
        p is None or p.device.type in foreach._get_foreach_kernels_supported_devices() for p in params
    )
    return fused, by_lists


def capturable_devices(supports_xla: bool = True) -> list[str]:
    """Kinds of devices whose optimizers can be captured in a graph."""
    return ["cuda", "xpu", "hpu", *(["xla"] if supports_xla else [])]


def use_grad(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates an optimizer's step: it is recorded where defaults["differentiable"] is set, else not."""

    @functools.wraps(func)
    def step(*args: Any, **kwargs: Any) -> Any:
        with wt.set_grad_enabled(args[0].defaults["differentiable"]):
            return func(*args, **kwargs)

    return step


@contextlib.contextmanager
def enable_get_lr(scheduler: Any) -> Iterator[Any]:
    """Within it get_lr() of a schedule may be called without a warning."""
    scheduler._get_lr_called_within_step = True
    try:
        yield scheduler
    finally:
        scheduler._get_lr_called_within_step = False


def warn_get_lr(lr_scheduler: Any) -> None:
    """Warns where get_lr() of a schedule is called outside of its step."""
    if not lr_scheduler._get_lr_called_within_step:
        warnings.warn(
            "To get the last learning rate computed by the scheduler, please use `get_last_lr()`.",
            UserWarning,
            stacklevel=2,
        )


@contextlib.contextmanager
def swapped_in(
    optimizer: Optimizer, swapin_parameters: dict[str, Tensor], swapin_optim_state: dict[str, Any]
) -> Iterator[None]:
    """Within it an optimizer has other parameters and another state; after it those from before.

    Args:
        swapin_parameters: in the order of the optimizer's parameters.
        swapin_optim_state: as state_dict() tells a state. Changes of its tensors in place stay.

    Raises:
        ValueError: another number of parameters or groups than the optimizer has.
    """
    groups, loaded = optimizer.param_groups, swapin_optim_state["param_groups"]
    count = sum(len(group["params"]) for group in groups)
    if len(loaded) != len(groups) or len(swapin_parameters) != count:
        raise ValueError(
            f"swap_in_optimizer_params_and_state: expected {len(groups)} groups with {count} parameters, got "
            f"{len(loaded)} with {len(swapin_parameters)}"
        )
    own_state, own_groups = optimizer.state, [dict(group) for group in groups]
    state: defaultdict[Any, Any] = defaultdict(dict)
    left = iter(swapin_parameters.values())
    try:
        for group, new in zip(groups, loaded, strict=True):
            group.update({key: value for key, value in new.items() if key != "params"})
            group["params"] = [next(left) for _ in group["params"]]
            for param, number in zip(group["params"], new["params"], strict=True):
                state[param] = dict(swapin_optim_state["state"].get(number, {}))
        optimizer.state = state
        yield
    finally:
        for group, before in zip(groups, own_groups, strict=True):
            group.clear()
            group.update(before)
        optimizer.state = own_state
