"""Generation for asyncio: vLLM's AsyncLLM."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from .engine import LLMEngine, Prompt
from .outputs import RequestOutput
from .sampling_params import SamplingParams

Answer = RequestOutput | BaseException


class AsyncLLM:
    """An engine in a thread of its own, for any number of tasks of one event loop.

    Args:
        engine: used by nothing else from now on; `LLM(...).llm_engine` is one.

    Raises: NotImplementedError for an engine on several ranks, where requests must come in the same steps.
    """

    def __init__(self, engine: LLMEngine) -> None:
        if engine.args.ranks > 1:
            raise NotImplementedError("AsyncLLM with several ranks; use LLM on every rank")
        self.engine = engine
        self._calls: list[Callable[[], None]] = []  # to be made by the thread between two steps
        self._wake = threading.Condition()
        self._closed = False
        self._answers: dict[str, Callable[[Answer], None]] = {}  # of the thread alone
        self._thread = threading.Thread(target=self._run, name="warptape-engine", daemon=True)
        self._thread.start()

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str = "", **more: Any
    ) -> AsyncIterator[RequestOutput]:
        """The answer as it grows. Leaving the loop, or cancelling the task, ends the request.

        Args:
            request_id: of its own among those that run.
            more: LLMEngine.add_request's.

        Raises: what LLMEngine.add_request raises; what the model raised, in all requests that run then.
        """
        if self._closed:
            raise RuntimeError("AsyncLLM: it was shut down")
        loop, answers = asyncio.get_running_loop(), asyncio.Queue[Answer]()

        def hand_over(answer: Answer) -> None:
            loop.call_soon_threadsafe(answers.put_nowait, answer)

        name = request_id or f"async-{id(answers)}"
        self._call(lambda: self._add(name, hand_over, prompt, sampling_params or SamplingParams(), more))
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
        """Ends a request: its generate() ends with the finish_reason "abort"."""
        self._call(lambda: self._abort(request_id))

    def shutdown(self) -> None:
        """Ends the thread after the current step; requests that run get a RuntimeError."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    # ---- of the thread ----

    def _call(self, function: Callable[[], None]) -> None:
        with self._wake:
            self._calls.append(function)
            self._wake.notify()

    def _add(
        self,
        name: str,
        hand_over: Callable[[Answer], None],
        prompt: Prompt,
        params: SamplingParams,
        more: Any,
    ) -> None:
        try:
            self.engine.add_request(name, prompt, params, **more)
        except Exception as error:  # it is the caller's
            hand_over(error)
        else:
            self._answers[name] = hand_over

    def _end(self, name: str, hand_over: Callable[[Answer], None]) -> None:
        if self._answers.get(name) is hand_over:
            del self._answers[name]
            self.engine.abort_request(name)

    def _abort(self, name: str) -> None:
        hand_over = self._answers.pop(name, None)
        if hand_over is not None:
            output = self.engine.abort_request(name)
            if output is not None:
                hand_over(output)

    def _step(self) -> None:
        try:
            outputs = self.engine.step()
        except Exception as error:  # of the model: nobody's request can go on
            for name, hand_over in self._answers.items():
                self.engine.abort_request(name)
                hand_over(error)
            self._answers.clear()
            return
        for output in outputs:
            if output.request_id in self._answers:
                self._answers[output.request_id](output)
                if output.finished:
                    del self._answers[output.request_id]

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._calls or self._closed or self._answers):
                    self._wake.wait()
                calls, self._calls = self._calls, []
                closed = self._closed
            for call in calls:
                call()
            if closed:
                break
            if self._answers:
                self._step()
        for name, hand_over in self._answers.items():
            self.engine.abort_request(name)
            hand_over(RuntimeError("AsyncLLM: it was shut down"))
