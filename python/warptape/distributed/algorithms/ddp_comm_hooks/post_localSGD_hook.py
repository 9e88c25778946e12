"""Gradients averaged over all ranks at first, then within subgroups ("Don't Use Large Mini-Batches, Use Local
SGD"); model_averaging's averagers then average the parameters over all ranks every so often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....core import Tensor
from ....core.futures import Future
from ...groups import new_subgroups
from .default_hooks import _average

if TYPE_CHECKING:
    from warptape.distributed.state import Group

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]


class PostLocalSGDState:
    """What post_localSGD_hook needs.

    Args:
        process_group: in which gradients are averaged at first; None for all ranks.
        subgroup: in which they are after that; by default the ranks of this host.
        start_localSGD_iter: how many steps come first.
        post_local_gradient_allreduce: False leaves gradients, after that, as each rank has them.
    """

    def __init__(
        self,
        process_group: Group,
        subgroup: Group,
        start_localSGD_iter: int,
        post_local_gradient_allreduce: bool = True,
    ) -> None:
        self.process_group, self.subgroup = process_group, subgroup
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0

    def maybe_increase_iter(self, bucket: Any) -> None:
        """Counts steps, by their last bucket.

        Args:
            bucket: one of the step's.
        """
        self.iter += bool(bucket.is_last())


def post_localSGD_hook(state: PostLocalSGDState, bucket: Any) -> Future[Tensor]:
    """The average over all ranks for the first steps, then over the subgroup, or this rank's gradients.

    From Lin et al., "Don't Use Large Mini-Batches, Use Local SGD" (2018).

    Args:
        state: the groups, and the step from which averages are local.
        bucket: DDP's, of several gradients in one buffer.
    """
    local = state.iter >= state.start_localSGD_iter
    state.maybe_increase_iter(bucket)
    if not local:
        return _average(bucket.buffer(), state.process_group)
    if not state.post_local_gradient_allreduce:
        done: Future[Tensor] = Future()
        done.set_result(bucket.buffer())
        return done
    if state.subgroup is None:
        state.subgroup = new_subgroups()[0]
    return _average(bucket.buffer(), state.subgroup)
