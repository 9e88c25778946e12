"""Runs a schedule: the classes of torch.distributed.pipelining."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from warptape import core as wt
from warptape import cuda

from ...core import Tensor
from ...distributed import all_gather_object, all_reduce
from . import rng
from .actions import COMPUTE, Action, B, F, Kind, Schedule, W, ranks_of_stages
from .checks import plan
from .partition import Batch, describe
from .schedules import (
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    looped_bfs,
    one_f_one_b,
    zb_h1,
    zb_v,
)
from .shared import SharedParameters
from .simulator import Span, Timeline
from .stage import PipelineStage
from .transport import Transport


class PipelineSchedule:
    """Trains a pipeline's stages by a schedule of their micro-batches.

    Args:
        stages: this rank's, in order.
        n_microbatches: into how many parts dim 0 of step()'s arguments is cut.
        loss_fn: loss_fn(output, target) of one micro-batch, a scalar; only the last stage's rank calls it.
        scale_grads: gradients are of the mean of the micro-batches' losses, as of a batch whose loss is a
            mean. False for their sum, as of losses that are sums.
        schedule: what each rank does, as the functions of this package make it.

    A mean over a number of things that differs between micro-batches (tokens that are not padding) is not the
    mean of means: take the sum, divide it by the whole batch's number, and give scale_grads=False.

    Raises: ValueError for stages that are not this rank's part of the schedule.
    """

    placement = "loop"  # of stages on ranks, for split_into_stages

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        *,
        scale_grads: bool = True,
        schedule: Schedule,
    ) -> None:
        if not stages:
            raise ValueError(f"{type(self).__name__}: expected at least one stage")
        first = stages[0]
        self.stages = {s.stage_index: s for s in stages}
        self.n_microbatches, self.loss_fn, self.scale_grads = n_microbatches, loss_fn, scale_grads
        self.group, self.num_stages = first.group, first.num_stages
        self.trace: list[Span] | None = None  # set to [] to have computations timed
        self._signatures: dict[bool, Any] = {}  # of the batch before, for training and for evaluation
        self._shared: SharedParameters | None = None
        self._calls_in_stage: dict[int, int] = {}
        self._all_calls: int | None = None  # of dropout, of one micro-batch through all stages
        self._follow(schedule)

    def _follow(self, schedule: Schedule) -> None:
        """Checks what the ranks do, and puts the transfers in."""
        stages = list(self.stages.values())
        first = stages[0]
        total, ranks = first.num_stages, first.group_size
        if len(schedule) != ranks:
            raise ValueError(
                f"{type(self).__name__}: a schedule of {len(schedule)} ranks in a group of {ranks}"
            )
        where = ranks_of_stages(schedule, total)
        indices = [s.stage_index for s in stages]
        expected = [s for s in range(total) if where[s] == first.group_rank]
        if indices != expected or any(s.num_stages != total for s in stages):
            raise ValueError(
                f"{type(self).__name__}: of {total} stages over {ranks} ranks, rank {first.group_rank} has "
                f"{expected}; got {indices}"
            )
        self._full, self.ideal = plan(schedule, total, self.n_microbatches)
        self.actions = self._full[first.group_rank]
        self._forwards = [a for a in self.actions if a.kind in (F, Kind.SEND_F, Kind.RECV_F)]
        # After which a stage's gradients are complete.
        self._last = {a.stage: a for a in self.actions if a.kind in (B, W)}
        self._transport = Transport(self.stages, where)

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        loss_kwargs: dict[str, Any] | None = None,
        return_outputs: bool = True,
        arg_mbs: Sequence[tuple[Any, ...]] | None = None,
        kwarg_mbs: Sequence[dict[str, Any]] | None = None,
        target_mbs: Sequence[Any] | None = None,
        when_complete: Callable[[list[Any]], None] | None = None,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, ...] | None:
        """Forward and backward of one batch; adds to the parameters' .grad.

        Args:
            args: the model's inputs; only the first stage's rank looks at them.
            target: for loss_fn; only the last stage's rank looks at it.
            losses: is filled with the micro-batches' losses (not scaled) on the last stage's rank.
            loss_kwargs: go to loss_fn, with each micro-batch.
            return_outputs: False to let the outputs go.
            arg_mbs, kwarg_mbs, target_mbs: in place of args, kwargs and target, a batch that is cut already:
                what each micro-batch has of them.
            when_complete: is called with the parameters of a stage as soon as their gradients are complete,
                while other stages still compute; without those that stages share.
            kwargs: go to every stage that this rank has, cut into micro-batches likewise.

        Returns: the outputs of the whole batch on the last stage's rank, else None. No history.
        Raises: ValueError on every rank, before any micro-batch is sent, if any rank has a reason;
        RuntimeError under no_grad.
        """
        if not wt.is_grad_enabled():
            raise RuntimeError("pipeline: step() needs gradients; call eval() under no_grad")
        batch = Batch(args, kwargs, target, loss_kwargs or {}, arg_mbs, kwarg_mbs, target_mbs)
        return self._run(batch, losses, return_outputs, True, when_complete)

    def eval(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        loss_kwargs: dict[str, Any] | None = None,
        arg_mbs: Sequence[tuple[Any, ...]] | None = None,
        kwarg_mbs: Sequence[dict[str, Any]] | None = None,
        target_mbs: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, ...] | None:
        """As step, forward only. The modules' training mode is theirs to set.

        Args:
            *args, **kwargs: on the first rank, what the first stage takes, for the whole batch.
            target: on the last rank, for the loss.
            losses: gets each micro-batch's.
            loss_kwargs, arg_mbs, kwarg_mbs, target_mbs: as step's.
        """
        batch = Batch(args, kwargs, target, loss_kwargs or {}, arg_mbs, kwarg_mbs, target_mbs)
        with wt.no_grad():
            return self._run(batch, losses, True, False)

    def timeline(self) -> Timeline:
        """What `trace` has of all ranks, in seconds since the first computation; every rank must call this.
        Comparable between ranks of one host, whose clock is one."""
        first = next(iter(self.stages.values()))
        mine = [(a.kind.value, a.stage, a.micro_batch, begin, end) for a, begin, end in self.trace or []]
        all_: list[Any] = [None] * first.group_size
        all_gather_object(all_, mine, group=self.group)
        start = min((begin for spans in all_ for *_, begin, _ in spans), default=0.0)
        return Timeline(
            [[(Action(Kind(k), s, j), b - start, e - start) for k, s, j, b, e in spans] for spans in all_]
        )

    def _run(
        self,
        batch: Batch,
        losses: list[Tensor] | None,
        return_outputs: bool,
        training: bool,
        when_complete: Callable[[list[Any]], None] | None = None,
    ) -> Any:
        shared = self._prepare(batch, training)
        self._losses: list[Tensor] = []
        self._results: dict[int, Any] | None = {} if return_outputs else None
        self._base = {s: rng.get_calls(rng.generator_of(x.device)) for s, x in self.stages.items()}
        if training:
            shared.begin()
        try:
            for action in self.actions if training else self._forwards:
                self._do(action, training)
                self._transport.reap()
                if training and self._last.get(action.stage) == action:
                    self.stages[action.stage].reduce()
                    if when_complete is not None:
                        when_complete(self.stages[action.stage].own_parameters())
            self._transport.finish()
        except BaseException:
            self._transport.clear()
            raise
        finally:
            for stage in self.stages.values():
                stage.clear()
        if training:
            shared.finish()
            self._count_calls()
        if losses is not None:
            losses[:] = self._losses
        return self._merged()

    def _prepare(self, batch: Batch, training: bool) -> SharedParameters:
        """Cuts the batch. All ranks hear whether one of them has a problem, or a batch of other shapes, or
        other parameters to train."""
        problem: str | None = None
        try:
            self._cut(batch, training)
        except ValueError as error:
            problem = str(error)
        parts = [self._args[0], self._targets[0], *self._kwargs[0].values()] if problem is None else problem
        signature = [describe(parts)]
        for stage in self.stages.values():
            signature.append([m.training for m in stage.submod.modules()])
            signature.append([p.requires_grad for p in stage.submod.parameters()])
        first = next(iter(self.stages.values()))
        news = wt.tensor(
            [int(signature != self._signatures.get(training))], dtype=wt.int32, device=first.device
        )
        all_reduce(news, group=self.group)
        if self._shared is None or news.item():
            self._signatures.pop(training, None)
            self._shared = self._agree(problem, training)
            self._signatures[training] = signature
        return self._shared

    def _cut(self, batch: Batch, training: bool) -> None:
        """Cuts what this rank needs of the batch. Raises ValueError."""
        n = self.n_microbatches
        batch.check(n)
        self._loss_kwargs, self._kwargs = batch.loss_kwargs, batch.cut_kwargs(n)
        self._args: list[Any] = batch.cut_args(n) if 0 in self.stages else [()] * n
        self._targets: list[Any] = [None] * n
        if self.num_stages - 1 in self.stages and (batch.has_target or training):
            if self.loss_fn is None and training:
                raise ValueError("pipeline: the last stage's rank needs loss_fn")
            self._targets = batch.cut_target(n)

    def _agree(self, problem: str | None, training: bool) -> SharedParameters:
        """All ranks hear of any rank's problem, and who shares which parameters; what was known of shapes and
        dropout is found anew."""
        first = next(iter(self.stages.values()))
        mine: dict[str, Any] = {
            "problem": problem,
            "plan": f"{type(self).__name__} of {self.num_stages} stages, {self.n_microbatches} micro-batches",
            "shared": {
                name: f"{tuple(p.shape)} {p.dtype}{'' if p.requires_grad else ' frozen'}"
                for s in self.stages.values()
                for name, p in s.shared.items()
            },
        }
        all_: list[Any] = [None] * first.group_size
        all_gather_object(all_, mine, group=self.group)
        problems = [f"rank {r}: {x['problem']}" for r, x in enumerate(all_) if x["problem"]]
        if len({x["plan"] for x in all_}) > 1:
            plans = "; ".join(f"rank {r}: {x['plan']}" for r, x in enumerate(all_))
            problems.append(f"ranks have different schedules: {plans}")
        owners: dict[str, list[int]] = {}
        for r, x in enumerate(all_):
            for name, described in x["shared"].items():
                owners.setdefault(name, []).append(r)
                other = all_[owners[name][0]]["shared"][name]
                if other != described:
                    problems.append(
                        f"shared parameter {name!r} is {other} on rank {owners[name][0]} and {described} on "
                        f"rank {r}"
                    )
        if problems:
            raise ValueError("; ".join(problems))
        self._transport.forget(training)
        if training:
            self._calls_in_stage, self._all_calls = {}, None
        if self._shared is not None:
            return self._shared
        shared = SharedParameters(list(self.stages.values()), owners)
        shared.equalize()
        return shared

    def _do(self, action: Action, training: bool) -> None:
        stage, j = self.stages[action.stage], action.micro_batch
        start, done = time.perf_counter(), action  # what was done, for the trace
        if action.kind is F:
            self._forward(stage, j, training)
        elif action.kind is Kind.SEND_F:
            calls = self._transport.calls_before.get(stage.stage_index, 0)
            self._transport.send_forward(stage, j, calls + self._calls_in_stage.get(stage.stage_index, 0))
            if not training:
                del stage.inputs[j], stage.outputs[j]
        elif action.kind is Kind.RECV_F:
            self._transport.receive_forward(stage, j)
        elif action.kind is Kind.SEND_B:
            self._transport.send_backward(stage, j)
        elif action.kind is Kind.RECV_B:
            self._transport.receive_backward(stage, j)
        elif action.kind is W:
            if stage.backward_weight(j):
                done = replace(action, kind=B)
        else:
            self._backward(stage, j, action.kind)
        if self.trace is not None and action.kind in COMPUTE:
            if stage.device.type == "cuda":
                cuda.synchronize(stage.device)
            begin = start if action.kind is W else self._arrived
            self.trace.append((done, begin, time.perf_counter()))

    def _forward(self, stage: PipelineStage, j: int, training: bool) -> None:
        args = tuple(self._args[j]) if stage.is_first else self._transport.take_inputs(stage, j)
        self._arrived = time.perf_counter()
        out = self._drawn(stage, j, args) if training else stage.forward(j, args, self._kwargs[j])
        if not stage.is_last:
            return
        if self._results is not None:
            self._results[j] = [o.detach() for o in stage.outputs[j]]
        if self._targets[j] is None:
            return
        assert self.loss_fn is not None
        loss = self.loss_fn(out, self._targets[j], **self._loss_kwargs)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError("pipeline: expected loss_fn to return a tensor of one element; reduce it")
        stage.outputs[j] = [loss]
        self._losses.append(loss.detach())

    def _drawn(self, stage: PipelineStage, j: int, args: tuple[Any, ...]) -> Any:
        """Forward with the numbers that one process would draw for this part of the batch."""
        s, before = stage.stage_index, self._transport.calls_before
        if s not in before:  # or the stage before, on another rank, has said it
            before[s] = before[s - 1] + self._calls_in_stage[s - 1] if s else 0
        generator, start = rng.generator_of(stage.device), self._base[s] + before[s]
        rng.set_calls(generator, start)
        with rng.slice_of_batch(j, self.n_microbatches):
            out = stage.forward(j, args, self._kwargs[j])
        self._calls_in_stage[s] = rng.get_calls(generator) - start
        return out

    def _count_calls(self) -> None:
        """Moves the generators past the step's calls of all stages, as one process's would be."""
        first = next(iter(self.stages.values()))
        if self._all_calls is None:
            all_: list[Any] = [None] * first.group_size
            all_gather_object(all_, list(self._calls_in_stage.values()), group=self.group)
            self._all_calls = sum(sum(calls) for calls in all_)
        if self._all_calls:
            for s, stage in self.stages.items():
                rng.set_calls(rng.generator_of(stage.device), self._base[s] + self._all_calls)

    def _backward(self, stage: PipelineStage, j: int, kind: Kind) -> None:
        if stage.is_last:
            (loss,) = stage.outputs[j]
            scale = 1 / self.n_microbatches if self.scale_grads else 1.0
            stage.output_gradients[j] = [wt.full_like(loss, scale)]
        else:
            stage.output_gradients[j] = self._transport.take_gradients(stage, j)
        self._arrived = time.perf_counter()
        (stage.backward if kind is B else stage.backward_input)(j)

    def _merged(self) -> Any:
        if not self._results:
            return None  # another rank has the last stage, or nobody asked
        parts = [self._results[j] for j in range(self.n_microbatches)]
        merged = tuple(wt.cat(part) for part in zip(*parts, strict=True))
        return merged[0] if len(merged) == 1 else merged


class PipelineScheduleSingle(PipelineSchedule):
    """A schedule with one stage on each rank.

    Args:
        stage: this rank's.
        n_microbatches: into so many a batch is cut.
        loss_fn: of (output, target); None to return outputs.
        scale_grads: whether gradients are divided by n_microbatches.

    Raises: ValueError unless there are as many ranks as stages.
    """

    _make: Callable[[int, int], Schedule]

    def __init__(
        self,
        stage: PipelineStage,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        *,
        scale_grads: bool = True,
    ) -> None:
        actions = type(self)._make(stage.num_stages, n_microbatches)
        if stage.num_stages != stage.group_size:
            raise ValueError(
                f"{type(self).__name__}: {stage.num_stages} stages on {stage.group_size} ranks; use as many "
                "ranks as stages, or a schedule of several stages on a rank"
            )
        super().__init__([stage], n_microbatches, loss_fn, scale_grads=scale_grads, schedule=actions)


class ScheduleGPipe(PipelineScheduleSingle):
    """Fill-drain: all forwards, then all backwards.

    From Huang et al., "GPipe" (2018). All activations of a batch are kept at once.
    """

    _make = staticmethod(gpipe)


class Schedule1F1B(PipelineScheduleSingle):
    """One forward, one backward: GPipe's time in less memory.

    From Narayanan et al., "PipeDream" (2019), with a flush after each batch.
    """

    _make = staticmethod(one_f_one_b)


class ScheduleZBH1(PipelineScheduleSingle):
    """1F1B with weight gradients in the gaps: a third of its bubble.

    From Qi et al., "Zero Bubble Pipeline Parallelism" (2023), section 2.1.
    """

    _make = staticmethod(zb_h1)


class PipelineScheduleMulti(PipelineSchedule):
    """A schedule with several stages on each rank.

    Args:
        stages: this rank's, in order.
        n_microbatches: into so many a batch is cut.
        loss_fn: of (output, target); None to return outputs.
        scale_grads: whether gradients are divided by n_microbatches.
        backward_requires_autograd: True; backward is always the tape's.

    Raises: ValueError without stages, NotImplementedError for another way to run backward.
    """

    _make: Callable[[int, int, int], Schedule]

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        *,
        scale_grads: bool = True,
        backward_requires_autograd: bool = True,
    ) -> None:
        if not stages:
            raise ValueError(f"{type(self).__name__}: expected at least one stage")
        if not backward_requires_autograd:
            raise NotImplementedError(f"{type(self).__name__}: backward is the tape's; expected True")
        actions = type(self)._make(stages[0].num_stages, n_microbatches, len(stages))
        super().__init__(stages, n_microbatches, loss_fn, scale_grads=scale_grads, schedule=actions)


class ScheduleInterleaved1F1B(PipelineScheduleMulti):
    """1F1B with several stages on each rank: a smaller bubble for more messages.

    From Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters" (2021), section
    2.2.
    """

    _make = staticmethod(interleaved_1f1b)


class ScheduleLoopedBFS(PipelineScheduleMulti):
    """GPipe with several stages on each rank, which does all micro-batches of one before the next.

    From Lamy-Poirier, "Breadth-First Pipeline Parallelism" (2022).
    """

    _make = staticmethod(looped_bfs)


class ScheduleInterleavedZeroBubble(PipelineScheduleMulti):
    """Interleaved 1F1B with weight gradients in the gaps: a third of its bubble.

    From Qi et al., "Zero Bubble Pipeline Parallelism" (2023).
    """

    _make = staticmethod(interleaved_zero_bubble)


class ScheduleZBVZeroBubble(PipelineScheduleMulti):
    """Two stages on each rank, the last stage on the first rank: half of ZBH1's bubble in 1F1B's memory.

    Rank r has stages r and 2 * ranks - 1 - r: split_into_stages(layers, 2, placement="v").
    """

    placement = "v"
    _pattern = staticmethod(zb_v)

    @classmethod
    def _make(cls, stages: int, micro_batches: int, chunks: int) -> Schedule:
        if chunks != 2:
            raise ValueError(f"{cls.__name__}: expected two stages on each rank, got {chunks}")
        return cls._pattern(stages, micro_batches)


class ScheduleDualPipeV(ScheduleZBVZeroBubble):
    """The V's bubble with whole backwards between its ends, for one part of a rank's activations more.

    Stages lie as in ScheduleZBVZeroBubble. For fewer than 2 * ranks micro-batches the bubble is larger.
    """

    _pattern = staticmethod(dualpipe_v)


class _PipelineScheduleRuntime(PipelineScheduleMulti):
    """A schedule of several stages on each rank that the caller writes, or reads from a file.

    It does what interleaved 1F1B does until `_prepare_schedule_with_comms` or `_load_csv` gives it another.
    """

    _make = staticmethod(interleaved_1f1b)

    def _prepare_schedule_with_comms(
        self, actions: dict[int, Sequence[Action | str | None]], format: str = "compute_only"
    ) -> None:
        """Takes what each rank does. Transfers are put in anew, and entries that only transfer are left out.

        Args:
            actions: for each rank its computations, in order; None where it waits.
            format: "compute_only" or "compute_comms".

        Raises: ValueError for another format and for what is no action; ScheduleError.
        """
        if format not in ("compute_only", "compute_comms"):
            raise ValueError(f"pipeline: expected format 'compute_only' or 'compute_comms', got {format!r}")
        read = [
            [Action.parse(a) if isinstance(a, str) else a for a in actions[rank] if a and not _moves_only(a)]
            for rank in sorted(actions)
        ]
        self._follow([[a for a in rank if a is not None and a.kind in COMPUTE] for rank in read])

    def _load_csv(self, filename: str, format: str = "compute_only") -> None:
        """Takes what each rank does from a file with a line for each rank.

        Args:
            filename: of comma-separated actions, such as "0F0,0F1,,0B0".
            format: "compute_only" or "compute_comms".
        """
        with open(filename, newline="") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
        self._prepare_schedule_with_comms(dict(enumerate(rows)), format)

    def _dump_csv(self, filename: str) -> None:
        """Writes what all ranks do, with transfers, as `_load_csv` reads it.

        Args:
            filename: which is made anew.
        """
        with open(filename, "w", newline="") as file:
            csv.writer(file).writerows(self._full)


def _moves_only(action: Action | str) -> bool:
    """Whether an entry is one of sharded parameters, which stages move by themselves."""
    return isinstance(action, str) and action.lstrip("0123456789") in ("UNSHARD", "RESHARD", "REDUCE_GRAD")


_CLASSES: dict[str, type[PipelineSchedule]] = {
    "GPipe": ScheduleGPipe,
    "1F1B": Schedule1F1B,
    "Interleaved1F1B": ScheduleInterleaved1F1B,
    "LoopedBFS": ScheduleLoopedBFS,
    "ZBH1": ScheduleZBH1,
    "InterleavedZeroBubble": ScheduleInterleavedZeroBubble,
    "ZBVZeroBubble": ScheduleZBVZeroBubble,
    "DualPipeV": ScheduleDualPipeV,
    "PipelineScheduleSingle": PipelineScheduleSingle,
    "PipelineScheduleMulti": PipelineScheduleMulti,
    "_PipelineScheduleRuntime": _PipelineScheduleRuntime,
}


def get_schedule_class(schedule_name: str) -> type[PipelineSchedule]:
    """The class of a schedule by name, whatever its case. Raises ValueError for one that is not there.

    Args:
        schedule_name: as "1F1B" or "Interleaved1F1B".

    >>> from warptape.distributed.pipelining.schedules import get_schedule_class
    >>> get_schedule_class("gpipe").__name__
    'ScheduleGPipe'
    """
    for name, out in _CLASSES.items():
        if name.lower() == schedule_name.lower():
            return out
    raise ValueError(f"pipeline: unknown schedule {schedule_name!r}; there are {', '.join(_CLASSES)}")
