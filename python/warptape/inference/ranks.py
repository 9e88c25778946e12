"""The ranks that serve one model together: rank 0 decides, the others do as it does.

The scheduler is a function of the requests, so ranks that make the same calls of an engine make the same
plans. What only one of them can know (when requests come, what steps take) rank 0 tells the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import warptape
import warptape.distributed as dist

from .outputs import RequestOutput
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from .engine import LLMEngine


class Ranks:
    """All ranks of the job. What is called here is called on each of them, from any of its threads."""

    def __init__(self) -> None:
        self._group = dist.get_default_group()
        self.number_here: int = self._group.rank()
        self.size: int = self._group.size()

    def number(self, value: int) -> int:
        """Rank 0's value."""
        held = warptape.tensor([value])
        dist.broadcast(held, group=self._group, group_src=0)
        return int(held.item())

    def tell(self, message: Any) -> None:
        """Rank 0 says what the others `hear`; it is pickled, for ranks of a job trust each other."""
        dist.broadcast_object_list([message], group=self._group, group_src=0, pickle=True)

    def hear(self) -> Any:
        """What rank 0 tells next."""
        held = [None]
        dist.broadcast_object_list(held, group=self._group, group_src=0, pickle=True)
        return held[0]

    def errors(self, error: Exception | None) -> list[str]:
        """What went wrong on which rank; nothing where it went well on all."""
        wrong = warptape.tensor([int(error is not None)])
        dist.all_reduce(wrong, group=self._group)
        if not wrong.item():
            return []
        every = [None] * self._group.size()
        dist.all_gather_object(every, None if error is None else repr(error), group=self._group)
        return [f"rank {rank}: {text}" for rank, text in enumerate(every) if text is not None]


class LeadingEngine:
    """Rank 0's engine, whose calls `follow` repeats on the other ranks.

    Calls raise what the engine's do, and DistBackendError where a rank is gone.
    """

    def __init__(self, engine: LLMEngine, ranks: Ranks) -> None:
        self._engine, self._ranks = engine, ranks

    def add_request(self, request_id: str, prompt: Any, params: SamplingParams, **more: Any) -> None:
        """LLMEngine.add_request on every rank, or on none: RuntimeError where another rank alone refuses."""
        text, tokens = self._engine.encode(prompt)
        if params.seed is None and more.get("generated") is None:
            params = replace(params, seed=self._engine.draw_seed(params))
        given = (request_id, {"prompt": text, "prompt_token_ids": tokens}, params)
        self._ranks.tell(("add", given, more))
        _add(self._engine, self._ranks, given, more)

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """LLMEngine.abort_request on every rank."""
        self._ranks.tell(("abort", request_id))
        return self._engine.abort_request(request_id)

    def step(self) -> list[RequestOutput]:
        """LLMEngine.step on every rank. Raises DistBackendError where it failed on some of them alone."""
        self._ranks.tell(("step",))
        return _step(self._engine, self._ranks)

    def wait(self) -> None:
        """Nothing: the others see that rank 0 is there, before they give it up."""
        self._ranks.tell(("wait",))

    def end(self) -> None:
        """Lets the others go."""
        self._ranks.tell(("end",))


def follow(engine: LLMEngine, ranks: Ranks) -> None:
    """Does what rank 0 does with its LeadingEngine, until it ends.

    Raises: DistBackendError where rank 0 is gone.
    """
    while True:
        what, *given = ranks.hear()
        if what == "end":
            return
        if what == "add":
            _add(engine, ranks, *given)
        elif what == "abort":
            engine.abort_request(*given)
        elif what == "step":
            _step(engine, ranks)


def _step(engine: LLMEngine, ranks: Ranks) -> list[RequestOutput]:
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


def _add(engine: LLMEngine, ranks: Ranks, given: tuple[Any, ...], more: dict[str, Any]) -> None:
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
