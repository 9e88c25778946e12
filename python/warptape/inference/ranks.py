"""The ranks that serve one model together: rank 0 decides, the others do as it does.

The scheduler is a function of the requests, so ranks that make the same calls of an engine make the same
plans. What only one of them can know (when requests come, what steps take) rank 0 tells the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import warptape.distributed as dist
from warptape import core as wt

from ..core import Tensor
from ..core.protocols import Engine
from .outputs import RequestOutput
from .sampling_params import SamplingParams

Made = TypeVar("Made")


class Ranks:
    """All ranks of the job. What is called here is called on each of them, from any of its threads.

    It needs a process group.
    """

    def __init__(self) -> None:
        self._group = dist.get_default_group()
        self.number_here: int = self._group.rank()
        self.size: int = self._group.size()

    def number(self, value: int) -> int:
        """Rank 0's value.

        Args:
            value: of this rank.
        """
        held = wt.tensor([value])
        dist.broadcast(held, group=self._group, group_src=0)
        return int(held.item())

    def broadcast(self, message: Any) -> None:
        """Rank 0 says what the others `hear`; it is pickled, for ranks of a job trust each other.

        Args:
            message: anything that can be pickled.
        """
        dist.broadcast_object_list([message], group=self._group, group_src=0, pickle=True)

    def receive(self) -> Any:
        """What rank 0 tells next."""
        held = [None]
        dist.broadcast_object_list(held, group=self._group, group_src=0, pickle=True)
        return held[0]

    def errors(self, error: Exception | None) -> list[str]:
        """What went wrong on which rank; nothing where it went well on all.

        Args:
            error: of this rank.
        """
        wrong = wt.tensor([int(error is not None)])
        dist.all_reduce(wrong, group=self._group)
        if not wrong.item():
            return []
        every = [None] * self._group.size()
        dist.all_gather_object(every, None if error is None else repr(error), group=self._group)
        return [f"rank {rank}: {text}" for rank, text in enumerate(every) if text is not None]

    def agreed(self, work: Callable[[], Made]) -> Made:
        """What `work` gives here, if nothing is raised on any rank; else all ranks raise.

        Args:
            work: makes the same collective calls on every rank, or raises before the first.

        Raises: what it raises; RuntimeError where it failed on other ranks alone.
        """
        error: Exception | None = None
        try:
            result = work()
        except dist.DistBackendError:
            raise
        except Exception as raised:
            error = raised
        wrong = self.errors(error)
        if error is not None:
            raise error
        if wrong:
            raise RuntimeError(f"refused on another rank: {'; '.join(wrong)}")
        return result

    def whole_of_rank_0(self, t: Tensor | None, shape: Sequence[int], dtype: wt.dtype) -> Tensor:
        """Rank 0's tensor on all ranks.

        Args:
            t: on rank 0.
            shape, dtype: of it.
        """
        held = wt.empty(*shape, dtype=dtype) if t is None else t.detach().contiguous()
        dist.broadcast(held, group=self._group, group_src=0)
        return held


class _Told:
    """A weight of rank 0, which the others get when they ask for it, all of them in one order.

    Args:
        held: on rank 0.
        shape, dtype: of it.
    """

    def __init__(self, ranks: Ranks, held: Tensor | None, shape: tuple[int, ...], dtype: wt.dtype) -> None:
        self._ranks, self._held, self.shape, self.dtype = ranks, held, shape, dtype

    def full_tensor(self) -> Tensor:
        """It, on every rank."""
        return self._ranks.whole_of_rank_0(self._held, self.shape, self.dtype)


class LeadingEngine:
    """Rank 0's engine, whose calls `follow` repeats on the other ranks.

    Calls raise what the engine's do, and DistBackendError where a rank is gone.
    """

    def __init__(self, engine: Any, ranks: Ranks) -> None:  # an Engine that takes weights, too
        self._engine, self._ranks = engine, ranks

    def add_request(self, request_id: str, prompt: Any, params: SamplingParams, **more: Any) -> None:
        """LLMEngine.add_request on every rank, or on none: RuntimeError where another rank alone refuses.

        Args:
            request_id: its name.
            prompt: text or tokens.
            params: how tokens are drawn.
            **more: as of LLMEngine.add_request.
        """
        text, tokens = self._engine.encode(prompt)
        if params.seed is None and more.get("generated") is None:
            params = replace(params, seed=self._engine.draw_seed(params))
        given = (request_id, {"prompt": text, "prompt_token_ids": tokens}, params)
        self._ranks.broadcast(("add", given, more))
        _add(self._engine, self._ranks, given, more)

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """LLMEngine.abort_request on every rank.

        Args:
            request_id: its name.
        """
        self._ranks.broadcast(("abort", request_id))
        return self._engine.abort_request(request_id)

    def step(self) -> list[RequestOutput]:
        """LLMEngine.step on every rank. Raises DistBackendError where it failed on some of them alone."""
        self._ranks.broadcast(("step",))
        return _step(self._engine, self._ranks)

    def update_weights(self, weights: Mapping[str, Tensor], **how: Any) -> int:
        """LLMEngine.update_weights with rank 0's weights, on every rank or on none.

        Args:
            weights: tensors; DTensors are refused, for they need their ranks' calls.
            **how: as there.
        """
        for name, t in weights.items():
            if not isinstance(t, Tensor) or hasattr(t, "full_tensor"):
                raise TypeError(f"update_weights: {name} must be a plain tensor, got {type(t).__name__}")
        self._ranks.broadcast(("weights", {n: (tuple(t.shape), t.dtype) for n, t in weights.items()}, how))
        told = {name: _Told(self._ranks, t, tuple(t.shape), t.dtype) for name, t in weights.items()}
        return self._engine.update_weights(told, **how)

    def wait(self) -> None:
        """Nothing: the others see that rank 0 is there, before they give it up."""
        self._ranks.broadcast(("wait",))

    def end(self) -> None:
        """Lets the others go."""
        self._ranks.broadcast(("end",))


def follow(engine: Engine, ranks: Ranks) -> None:
    """Does what rank 0 does with its LeadingEngine, until it ends.

    Raises: DistBackendError where rank 0 is gone.
    """
    while True:
        what, *values = ranks.receive()
        if what == "end":
            return
        if what == "add":
            _add(engine, ranks, *values)
        elif what == "abort":
            engine.abort_request(*values)
        elif what == "step":
            _step(engine, ranks)
        elif what == "weights":
            _follow_weights(engine, ranks, *values)


def _follow_weights(engine: Any, ranks: Ranks, described: dict[str, Any], how: dict[str, Any]) -> None:
    """Takes rank 0's weights; what is wrong with them rank 0 raises, too."""
    told = {name: _Told(ranks, None, shape, dtype) for name, (shape, dtype) in described.items()}
    try:
        engine.update_weights(told, **how)
    except dist.DistBackendError:
        raise
    except Exception:
        pass  # the engine is as it was, on every rank


def _step(engine: Engine, ranks: Ranks) -> list[RequestOutput]:
    """A step of this rank. What fails on all ranks, as an error of the model, leaves them alike: rank 0
    raises it, and ends the requests. After one that failed on some alone they would answer differently."""
    error: Exception | None = None
    outputs: list[RequestOutput] = []
    try:
        outputs = engine.step()
    except dist.DistBackendError:
        raise
    except Exception as raised:
        error = raised
    wrong = ranks.errors(error)
    if wrong and len(wrong) < ranks.size:
        raise dist.DistBackendError(
            f"a step failed on {'; '.join(wrong)}, and not on the other ranks"
        ) from error
    if error is not None and ranks.number_here == 0:
        raise error
    return outputs


def _add(engine: Engine, ranks: Ranks, given: tuple[Any, ...], more: dict[str, Any]) -> None:
    """Queues a request if all ranks can. Raises on rank 0 alone."""
    error: Exception | None = None
    try:
        engine.add_request(*given, **more)
    except Exception as raised:  # it is the caller's, who is on rank 0
        error = raised
    wrong = ranks.errors(error)
    if wrong and error is None:
        engine.abort_request(given[0])
    if wrong and ranks.number_here == 0:
        raise error or RuntimeError(f"the request was refused on another rank: {'; '.join(wrong)}")
