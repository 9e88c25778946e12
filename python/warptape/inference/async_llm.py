"""Generation for asyncio: vLLM's AsyncLLM."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import warptape.distributed as dist

from .._C import _distributed as _C
from .engine import LLMEngine, Prompt
from .outputs import RequestOutput
from .ranks import LeadingEngine, follow
from .sampling_params import SamplingParams

Answer = RequestOutput | BaseException
SIGN_OF_LIFE = (
    10.0  # seconds after which the other ranks hear of rank 0, if nothing else; timeouts are longer
)


class AsyncLLM:
    """An engine in a thread of its own, for any number of tasks of one event loop.

    On several ranks each makes one. Requests go to rank 0's, and the other ranks compute with it until it is
    shut down: their shutdown() waits for that.

    Args:
        engine: used by nothing else from now on; `LLM(...).llm_engine` is one.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        ranks = engine.ranks
        self._follows = ranks is not None and ranks.number_here > 0
        self._leading = None if ranks is None else LeadingEngine(engine, ranks)
        self._all: LLMEngine | LeadingEngine = self._leading or engine  # those of all ranks
        self._context = _C._Rank.here()  # a rank that is a thread has another one work for it
        self._failure: BaseException | None = None  # what ended the thread
        self._ended = False
        self._calls: list[Callable[[], None]] = []  # to be made by the thread between two steps
        self._wake = threading.Condition()
        self._closed = False
        self._answers: dict[str, Callable[[Answer], None]] = {}  # of the thread alone
        self._thread = threading.Thread(target=self._run, name="warptape-engine", daemon=True)
        self._thread.start()

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str = "", **more: Any
    ) -> AsyncIterator[RequestOutput]:
        """The answer as it grows, as its output_kind says. Leaving the loop, or cancelling the task, ends the
        request.

        Args:
            sampling_params: None: the engine's defaults, see LLM's generation_config.
            request_id: of its own among those that run.
            more: LLMEngine.add_request's.

        Raises: what LLMEngine.add_request raises; what the model raised, in all requests that run then;
        RuntimeError on another rank than 0, and after shutdown() or the loss of a rank.
        """
        if self._follows:
            raise RuntimeError("AsyncLLM: requests go to rank 0; this rank computes with it")
        if self._closed or self._ended:
            raise self._over()
        loop, answers = asyncio.get_running_loop(), asyncio.Queue[Answer]()

        def hand_over(answer: Answer) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(answers.put_nowait, answer)

        name = request_id or f"async-{id(answers)}"
        params = sampling_params or self.engine.default_sampling_params()
        # Other requests' steps do not wait for a long text or a large grammar.
        if params.structured_outputs is not None and self._leading is None:
            more["grammar"] = await asyncio.to_thread(self.engine.grammar, params)
        if isinstance(prompt, (str, Mapping)):
            text, tokens = await asyncio.to_thread(self.engine.encode, prompt)
            prompt = {"prompt": text, "prompt_token_ids": tokens}
        self._call(lambda: self._add(name, hand_over, prompt, params, more))
        try:
            while True:
                answer = await answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
                if answer.finished:
                    return
        finally:
            self._call(lambda: self._end(name, hand_over))

    async def abort(self, request_id: str) -> None:
        """Ends a request: its generate() ends with the finish_reason "abort".

        Args:
            request_id: one that has ended does no harm.
        """
        self._call(lambda: self._abort(request_id))

    async def update_weights(self, weights: Mapping[str, Any], *, convert: bool = False, **how: Any) -> int:
        """LLMEngine.update_weights between two steps; weights are checked and packed beside them.

        Args:
            weights, convert, how: as there.

        On several ranks rank 0 gives them: plain tensors, which the others get from it.

        Raises: what LLMEngine.update_weights raises, and RuntimeError after shutdown() and on other ranks.
        """
        if self._follows:
            raise RuntimeError("AsyncLLM: weights go to rank 0; this rank computes with it")
        new: Any = weights
        if self._leading is None:
            new = await asyncio.to_thread(self.engine.prepare_weights, weights, convert=convert)
        else:
            how["convert"] = convert
        loop, done = asyncio.get_running_loop(), asyncio.Queue[int | BaseException]()

        def tell(answer: int | BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.put_nowait, answer)

        def update() -> None:
            try:
                if self._ended:
                    raise self._over()
                tell(self._all.update_weights(new, **how))
            except dist.DistBackendError as error:
                tell(error)
                raise
            except Exception as error:  # it is the caller's
                tell(error)

        self._call(update)
        answer = await done.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def shutdown(self) -> None:
        """Ends the thread after the current step; requests that run get a RuntimeError. On another rank than
        0 it waits until rank 0 does so.

        Raises: DistBackendError where another rank is gone.
        """
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    # ---- of the thread ----

    def _call(self, function: Callable[[], None]) -> None:
        with self._wake:
            self._calls.append(function)
            self._wake.notify()
            if self._ended:
                self._refuse()

    def _over(self) -> RuntimeError:
        reason = "it was shut down" if self._failure is None else f"it ended: {self._failure!r}"
        return RuntimeError(f"AsyncLLM: {reason}")

    def _add(
        self,
        name: str,
        hand_over: Callable[[Answer], None],
        prompt: Prompt,
        params: SamplingParams,
        more: Any,
    ) -> None:
        if self._ended:
            hand_over(self._over())
            return
        try:
            self._all.add_request(name, prompt, params, **more)
        except dist.DistBackendError as error:
            hand_over(error)
            raise
        except Exception as error:  # it is the caller's
            hand_over(error)
        else:
            self._answers[name] = hand_over

    def _end(self, name: str, hand_over: Callable[[Answer], None]) -> None:
        if self._answers.get(name) is hand_over:
            del self._answers[name]
            self._all.abort_request(name)

    def _abort(self, name: str) -> None:
        hand_over = self._answers.pop(name, None)
        if hand_over is not None:
            output = self._all.abort_request(name)
            if output is not None:
                hand_over(output)

    def _step(self) -> None:
        try:
            outputs = self._all.step()
        except dist.DistBackendError:
            raise
        except Exception as error:  # of the model: nobody's request can go on
            while self._answers:
                name, hand_over = self._answers.popitem()
                hand_over(error)
                self._all.abort_request(name)
            return
        for output in outputs:
            if output.request_id in self._answers:
                self._answers[output.request_id](output)
                if output.finished:
                    del self._answers[output.request_id]

    def _wait(self) -> bool:
        """Until there is something to do; whether that is to end."""
        limit = None if self._leading is None else SIGN_OF_LIFE
        while True:
            with self._wake:
                if self._wake.wait_for(lambda: self._calls or self._closed or self._answers, limit):
                    return self._closed
            if self._leading is not None:
                self._leading.wait()

    def _serve(self) -> None:
        closed = False
        while not closed:
            closed = self._wait()
            with self._wake:
                calls, self._calls = self._calls, []
            for call in calls:
                call()
            if self._answers and not closed:
                self._step()
        for name in self._answers:
            self._all.abort_request(name)
        if self._leading is not None:
            self._leading.end()

    def _run(self) -> None:
        if self._context is not None:
            self._context.enter()
        try:
            if self._follows and self.engine.ranks is not None:
                follow(self.engine, self.engine.ranks)
            else:
                self._serve()
        except BaseException as error:
            self._failure = error
        with self._wake:
            self._ended = True
            for hand_over in self._answers.values():
                hand_over(self._over())
            self._answers.clear()
            self._refuse()
        if self._context is not None:
            self._context.leave()

    def _refuse(self) -> None:
        """Makes the calls that are left, now that nothing runs."""
        calls, self._calls = self._calls, []
        for call in calls:
            call()
