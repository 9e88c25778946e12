"""What averagers share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import warptape

from ...._tensor import Tensor
from ...collectives import ReduceOp, all_reduce_coalesced

__all__ = ["average_parameters", "average_parameters_or_parameter_groups", "get_params_to_average"]


def get_params_to_average(params: Any) -> list[Tensor]:
    """Those that have a gradient, of parameters or of an optimizer's groups."""
    given = list(params)
    listed = [p for g in given for p in g["params"]] if given and isinstance(given[0], dict) else given
    return [p for p in listed if p.grad is not None]


def average_parameters(params: Iterable[Tensor], process_group: Any = None) -> None:
    """Makes all parameters the average over the ranks, in place; one call for each dtype."""
    kinds: dict[Any, list[Tensor]] = {}
    for p in params:
        kinds.setdefault((p.dtype, str(p.device)), []).append(p.detach())
    with warptape.no_grad():
        for same in kinds.values():
            all_reduce_coalesced(same, ReduceOp.AVG, process_group)


def average_parameters_or_parameter_groups(params: Any, process_group: Any = None) -> None:
    """average_parameters of those that have a gradient."""
    average_parameters(get_params_to_average(params), process_group)
