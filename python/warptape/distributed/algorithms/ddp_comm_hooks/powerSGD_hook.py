"""Gradients sent as products of two thin matrices: "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", algorithms 1 and 2.

Shapes: a gradient is taken as a matrix [n, m], n its first dim; P [n, r], Q [m, r], r the rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warptape import core as wt

from ....core import Tensor
from ....core.futures import Future
from ...collectives import ReduceOp, all_reduce
from ...state import resolve
from .default_hooks import _average

if TYPE_CHECKING:
    from warptape.distributed.state import Group

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]


class PowerSGDState:
    """What powerSGD_hook needs, and what it keeps: the errors that were not sent, and the last Q.

    Args:
        process_group: None for all ranks.
        matrix_approximation_rank: r.
        start_powerSGD_iter: how many steps are averaged as they are, first; at least 2 where anything is
            kept. min_compression_rate: a matrix is compressed if (n + m) * r * rate < n * m.
            use_error_feedback: what a step loses is added to the next one's gradients. warm_start: Q begins
            as that of the step before. orthogonalization_epsilon: added to lengths of columns that are
            divided by. random_seed: of the first Q. compression_stats_logging_frequency,
            batch_tensors_with_same_shape: make no difference.
    """

    def __init__(
        self,
        process_group: Group,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10_000,
        batch_tensors_with_same_shape: bool = False,
    ) -> None:
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError(
                "Expect `start_powerSGD_iter` > 1 if `use_error_feedback` or `warm_start` is enabled, "
                "because PowerSGD can only be applied after the first two iterations in DDP."
            )
        self.process_group, self.matrix_approximation_rank = process_group, matrix_approximation_rank
        self.start_powerSGD_iter, self.min_compression_rate = start_powerSGD_iter, min_compression_rate
        self.use_error_feedback, self.warm_start = use_error_feedback, warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.generator = wt.Generator().manual_seed(random_seed)
        self.error_dict: dict[int, Tensor] = {}
        self.q_memory_dict: dict[tuple[int, int], Tensor] = {}
        self.iter = 0

    def compresses(self, t: Tensor) -> bool:
        """Whether a gradient is sent as two thin matrices.

        It is if both matrices together are `min_compression_rate` times smaller.

        Args:
            t: a gradient.
        """
        if t.ndim < 2:
            return False
        n, m, r = t.shape[0], t.numel() // t.shape[0], self.matrix_approximation_rank
        return min(n, m) > r and (n + m) * r * self.min_compression_rate < n * m


def _orthogonal(p: Tensor, epsilon: float) -> Tensor:
    """The columns of p, made orthonormal by Gram and Schmidt's method."""
    columns: list[Tensor] = []
    for column in p.unbind(1):
        for other in columns:
            column = column - (column @ other) * other
        columns.append(column / (column.norm() + epsilon))
    return wt.stack(columns, 1)


def _average_now(t: Tensor, group: Group) -> Tensor:
    all_reduce(t, ReduceOp.AVG, group)
    return t


def powerSGD_hook(state: PowerSGDState, bucket: Any) -> Future[Tensor]:
    """The average of compressed gradients, from step `start_powerSGD_iter` on.

    From Vogels et al., "PowerSGD" (2019), algorithm 1.

    Args:
        state: the rank of the matrices, and the errors that later steps make good.
        bucket: DDP's, of several gradients in one buffer.
    """
    group, buffer = resolve(state.process_group), bucket.buffer()
    compressing = state.iter >= state.start_powerSGD_iter
    state.iter += bool(bucket.is_last())
    if not compressing:
        return _average(buffer, group)
    at = bucket.index()
    if state.use_error_feedback:
        if at in state.error_dict and state.error_dict[at].numel() == buffer.numel():
            buffer.add_(state.error_dict[at])
        state.error_dict[at] = buffer.clone()
    for i, gradient in enumerate(bucket.gradients()):
        if not state.compresses(gradient):
            _average_now(gradient, group)
            continue
        matrix = gradient.reshape(gradient.shape[0], -1)
        q = state.q_memory_dict.get((at, i)) if state.warm_start else None
        if q is None or q.shape[0] != matrix.shape[1]:
            shape = matrix.shape[1], state.matrix_approximation_rank
            q = wt.randn(shape, generator=state.generator, dtype=matrix.dtype)
            q = _orthogonal(q.to(matrix.device), state.orthogonalization_epsilon)
        p = _orthogonal(_average_now(matrix @ q, group), state.orthogonalization_epsilon)
        q = _average_now(matrix.t() @ p, group)
        state.q_memory_dict[at, i] = q
        gradient.copy_((p @ q.t()).reshape(gradient.shape))
    if state.use_error_feedback:
        # Of what was not compressed, and so was averaged, there is no error.
        errors, start = state.error_dict[at], 0
        for gradient in bucket.gradients():
            own = errors[start : start + gradient.numel()]
            start += gradient.numel()
            own.copy_(own - gradient.reshape(-1)) if state.compresses(gradient) else own.zero_()
    done: Future[Tensor] = Future()
    done.set_result(buffer)
    return done


def batched_powerSGD_hook(state: PowerSGDState, bucket: Any) -> Future[Tensor]:
    """Not supported: it takes a bucket as one square matrix, which loses more; see powerSGD_hook.

    Args:
        state, bucket: as of powerSGD_hook.

    Raises: NotImplementedError always.
    """
    raise NotImplementedError("batched_powerSGD_hook is not supported; use powerSGD_hook")
