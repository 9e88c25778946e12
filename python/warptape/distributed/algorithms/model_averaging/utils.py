"""What averagers share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from warptape import core as wt

from ....core import Tensor
from ...collectives import ReduceOp, all_reduce_coalesced

if TYPE_CHECKING:
    from warptape.distributed.state import Group

__all__ = ["average_parameters", "average_parameters_or_parameter_groups", "get_params_to_average"]


def get_params_to_average(params: Iterable[Tensor] | Iterable[dict[str, Any]]) -> list[Tensor]:
    """Those that have a gradient, of parameters or of an optimizer's groups.

    Args:
        params: parameters, or an optimizer's param_groups.
    """
    parameters: list[Any] = list(params)
    listed = (
        [p for g in parameters for p in g["params"]]
        if parameters and isinstance(parameters[0], dict)
        else parameters
    )
    return [p for p in listed if p.grad is not None]


def average_parameters(params: Iterable[Tensor], process_group: Group = None) -> None:
    """Makes all parameters the average over the ranks, in place; one call for each dtype.

    Args:
        params: the same on all ranks, in the same order.
        process_group: the ranks that average; all if None.
    """
    kinds: dict[Any, list[Tensor]] = {}
    for p in params:
        kinds.setdefault((p.dtype, str(p.device)), []).append(p.detach())
    with wt.no_grad():
        for same in kinds.values():
            all_reduce_coalesced(same, ReduceOp.AVG, process_group)


def average_parameters_or_parameter_groups(
    params: Iterable[Tensor] | Iterable[dict[str, Any]], process_group: Group = None
) -> None:
    """average_parameters of those that have a gradient.

    Args:
        params: parameters, or an optimizer's param_groups.
        process_group: the ranks that average; all if None.
    """
    average_parameters(get_params_to_average(params), process_group)
