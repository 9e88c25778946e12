"""What goes between stages: messages that are started early, and waited for where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warptape import core as wt

from ...core import Tensor
from ...distributed import irecv, isend, recv_object_list, send_object_list
from .stage import Meta, PipelineStage, meta_of


class Transport:
    """Sends and receives of one rank's stages.

    Shapes and dtypes go ahead of the first forward message of each stage, once for training and once for
    evaluation, until forget(); gradients have their tensors' shapes. Messages of a pair of ranks keep the
    order in which both start them (Note [One order of transfers]), so they need no tags.
    """

    def __init__(self, stages: dict[int, PipelineStage], where: Sequence[int]) -> None:
        self.stages, self.where = stages, where  # of all stages, the ranks
        self.metas: dict[tuple[str, int, bool], Meta] = {}  # ("in" or "out", stage, training)
        self.calls_before: dict[int, int] = {}  # dropout calls of the stages before
        self.sending: list[tuple[Any, Tensor]] = []
        self.forward: dict[tuple[int, int], tuple[list[Any], list[Tensor]]] = {}
        self.gradient: dict[tuple[int, int], tuple[list[Any], list[Tensor]]] = {}

    def _peer(self, stage: PipelineStage, step: int) -> int:
        return self.where[stage.stage_index + step]

    def _start(self, stage: PipelineStage, tensors: list[Tensor], to: int) -> None:
        self.sending += [
            (isend(t, group=stage.group, group_dst=self._peer(stage, to)), t) for t in tensors if t.numel()
        ]

    def _expect(self, stage: PipelineStage, meta: Meta, source: int) -> tuple[list[Any], list[Tensor]]:
        buffers = [wt.empty(s, dtype=getattr(wt, d), device=stage.device) for s, d, _ in meta]
        works = [
            irecv(b, group=stage.group, group_src=self._peer(stage, source)) for b in buffers if b.numel()
        ]
        return works, buffers

    def send_forward(self, stage: PipelineStage, j: int, calls: int) -> None:
        """Starts to send the output of micro-batch j; `calls` dropout calls were numbered up to it.

        Args:
            stage: of this rank.
            j: the micro-batch's number.
            calls: so that dropout draws as in one process.
        """
        outputs = stage.outputs[j]
        training = wt.is_grad_enabled()
        key, meta = ("out", stage.stage_index, training), meta_of(outputs)
        if key not in self.metas:
            self.metas[key] = meta
            header = [[*m] for m in meta]
            send_object_list([calls, header], group=stage.group, group_dst=self._peer(stage, 1))
        elif self.metas[key] != meta:
            raise RuntimeError(
                f"pipeline stage {stage.stage_index}: its output was {self.metas[key]} and is {meta} now; "
                "micro-batches of one shape must have outputs of one shape"
            )
        self._start(stage, [o.detach().contiguous() for o in outputs], 1)

    def receive_forward(self, stage: PipelineStage, j: int) -> None:
        """Starts to receive the input of micro-batch j.

        Args:
            stage: of this rank.
            j: the micro-batch's number.
        """
        training = wt.is_grad_enabled()
        key = ("in", stage.stage_index, training)
        if key not in self.metas:
            header: list[Any] = [None, None]
            recv_object_list(header, group=stage.group, group_src=self._peer(stage, -1))
            calls, meta = header
            if training:
                self.calls_before[stage.stage_index] = calls
            self.metas[key] = [(list(s), d, bool(g)) for s, d, g in meta]
        self.forward[stage.stage_index, j] = self._expect(stage, self.metas[key], -1)

    def take_inputs(self, stage: PipelineStage, j: int) -> tuple[Tensor, ...]:
        """The input of micro-batch j, once it has arrived: leaves, as the tape ends here.

        Args:
            stage: of this rank.
            j: the micro-batch's number.
        """
        training = wt.is_grad_enabled()
        if (stage.stage_index, j) in self.forward:
            works, buffers = self.forward.pop((stage.stage_index, j))
            for work in works:
                work.wait()
            wants = [g for _, _, g in self.metas["in", stage.stage_index, training]]
        else:  # the stage before is on this rank
            outputs = self.stages[stage.stage_index - 1].outputs[j]
            buffers, wants = [o.detach() for o in outputs], [bool(o.requires_grad) for o in outputs]
        return tuple(b.requires_grad_() if g else b for b, g in zip(buffers, wants, strict=True))

    def send_backward(self, stage: PipelineStage, j: int) -> None:
        """Starts to send the gradients of micro-batch j's inputs.

        Args:
            stage: of this rank.
            j: the micro-batch's number.
        """
        self._start(stage, stage.input_gradients.pop(j), -1)

    def receive_backward(self, stage: PipelineStage, j: int) -> None:
        """Starts to receive the gradients of micro-batch j's outputs.

        Args:
            stage: of this rank.
            j: the micro-batch's number.
        """
        meta = [m for m in self.metas["out", stage.stage_index, True] if m[2]]
        self.gradient[stage.stage_index, j] = self._expect(stage, meta, 1)

    def take_gradients(self, stage: PipelineStage, j: int) -> list[Tensor]:
        """The gradients of micro-batch j's outputs, once they have arrived.

        Args:
            stage: of this rank.
            j: the micro-batch's number.
        """
        if (stage.stage_index, j) not in self.gradient:  # the next stage is on this rank
            return self.stages[stage.stage_index + 1].input_gradients.pop(j)
        works, buffers = self.gradient.pop((stage.stage_index, j))
        for work in works:
            work.wait()
        return buffers

    def reap(self) -> None:
        """Lets go of what has been sent."""
        self.sending = [each for each in self.sending if not each[0].is_completed()]

    def finish(self) -> None:
        """Waits for what is being sent."""
        for work, _ in self.sending:
            work.wait()
        self.sending = []

    def forget(self, training: bool) -> None:
        """Lets shapes, dtypes and, in training, numbers of dropout calls be sent again.

        Args:
            training: of which mode.
        """
        self.metas = {key: meta for key, meta in self.metas.items() if key[2] != training}
        if training:
            self.calls_before = {}

    def clear(self) -> None:
        """Forgets what is under way, after an error."""
        self.sending, self.forward, self.gradient = [], {}, {}
