"""The front's side of worker processes: started, watched, started again, and what is asked of them kept.

A call outlives the process that answers it. The front knows what was asked and, of a stream, which
tokens came; a new process gets both. The noise of a draw depends on (seed, position, token) alone, so the
tokens that follow are those that the old process would have drawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .frames import Buffer, FrameError, encode_frame, read_frame, tensors_from_frame, tensors_to_frame

HEARTBEAT = 60.0  # seconds without a sign of life, after which a worker is killed
MOST_DEATHS = 5  # of processes in a row, without an answer between them: the call is taken for the cause
MOST_DELAY = 5.0  # seconds between two attempts to start
STEADY = 1.0  # seconds that a process without answers must have been ready, or it counts as one that fails


@dataclass
class WorkerSpec:
    """What a worker process runs.

    Args:
        kind: "llm" (a model folder or packed file, by the engine), "program" (an exported program) or
            "module" (a module of this process, see `Template`).
        path: of the version's folder.
        options: of the kind; "heartbeat_s" changes HEARTBEAT.
        weights: path, version and convert of those that took the place of the folder's while it served.
    """

    kind: str
    model: str
    version: int
    path: str
    options: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)


class WorkerError(RuntimeError):
    """A worker that cannot start, or cannot answer: the server's fault.

    Clients get status 500, and the worker is started again.
    """


class RequestError(ValueError):
    """What a worker refuses: the request's fault.

    Clients get status 400.
    """


class DeadlineError(TimeoutError):
    """No answer within the request's time.

    Clients get status 504.
    """


class _PendingCall:
    """Something asked, until it is answered."""

    def __init__(self, header: dict[str, Any], buffers: Iterable[Buffer] = ()) -> None:
        self.header, self.buffers, self.deaths = header, list(buffers), 0
        self.future: asyncio.Future[tuple[dict[str, Any], list[memoryview]]] = (
            asyncio.get_running_loop().create_future()
        )

    def frame(self) -> tuple[dict[str, Any], list[Buffer]]:
        """What a process is to be asked."""
        return self.header, self.buffers

    def take(self, header: dict[str, Any], buffers: list[memoryview]) -> bool:
        """An answer; returns whether it was the last.

        Args:
            header, buffers: of the frame.
        """
        if not self.future.done():
            self.future.set_result((header, buffers))
        return True

    def fail(self, error: Exception) -> None:
        """There will be no answer.

        Args:
            error: for who waits.
        """
        if not self.future.done():
            self.future.set_exception(error)


class _Stream(_PendingCall):
    """A request for tokens, with those that came so far."""

    def __init__(self, header: dict[str, Any], request: Mapping[str, Any]) -> None:
        super().__init__(header)
        self.request = dict(request)
        self.images: list[Buffer] = self.request.pop("images", [])
        n = self.request["params"].get("n", 1)
        self.tokens: list[list[int]] = [[] for _ in range(n)]
        self.left = set(range(n))
        self.described = self.again = 0  # tokens of the prompt whose log-probabilities came; came again
        self.events: asyncio.Queue[dict[str, Any] | Exception] = asyncio.Queue()

    def frame(self) -> tuple[dict[str, Any], list[Buffer]]:
        request = dict(self.request)
        if any(self.tokens):
            request["generated"] = self.tokens
            request["left"] = sorted(self.left)
        if self.described and (self.described >= len(request["prompt_token_ids"]) or any(self.tokens)):
            request["params"] = {**request["params"], "prompt_logprobs": None}
        self.again = 0
        return {**self.header, "request": request}, self.images

    def take(self, header: dict[str, Any], buffers: list[memoryview]) -> bool:
        self.deaths = 0
        for output in header["outputs"]:
            self.tokens[output["index"]] += output["tokens"]
            if output.get("finish_reason") is not None:
                self.left.discard(output["index"])
        part = header.get("prompt_logprobs")
        if part is not None:  # a process that was started again tells them from the beginning
            header["prompt_logprobs"] = part[max(self.described - self.again, 0) :]
            self.again += len(part)
            self.described = max(self.described, self.again)
        header["finished"] = not self.left
        self.events.put_nowait(header)
        return not self.left

    def fail(self, error: Exception) -> None:
        self.events.put_nowait(error)


class _Link:
    """One process and the socket to it."""

    def __init__(self, pid: int, process: subprocess.Popen[bytes] | None) -> None:
        self.pid, self.process = pid, process
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.heard = self.ready_at = time.monotonic()
        self.fault = ""  # why it was killed
        self.useful = False  # it answered something

    def send(self, header: Mapping[str, Any], buffers: Iterable[Buffer] = ()) -> None:
        self.writer.writelines(encode_frame(header, buffers))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.process is None or self.process.poll() is None:
                os.kill(self.pid, signal.SIGKILL)

    async def ended(self) -> str:
        """Takes the process's end, and says how it came."""
        self.writer.close()
        if self.process is None:
            return self.fault or "it ended"
        code = await asyncio.to_thread(self.process.wait)
        if self.fault:
            return self.fault
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


Spawn = Callable[[socket.socket], int]


def _spawn(connection: socket.socket) -> subprocess.Popen[bytes]:
    """A worker process of its own; what it is to run comes over the socket."""
    fd = connection.fileno()
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}  # the working folder is nobody's module path
    command = [sys.executable, "-m", "warptape.serve.worker", str(fd)]
    return subprocess.Popen(command, pass_fds=[fd], env=environment, stdin=subprocess.DEVNULL)


class Worker:
    """A worker process that is started again when it ends, with all that was asked of it.

    Use `await Worker.start(spec)`.

    Args:
        spawn: starts the process that gets the socket, and returns its pid; None: python -m
            warptape.serve.worker.
        on_death: called with the worker and why, each time that its process ends unasked.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        spawn: Spawn | None = None,
        on_death: Callable[[Worker, str], None] | None = None,
    ) -> None:
        self.spec, self.restarts = spec, 0
        self._spawn, self._on_death = spawn, on_death
        self._heartbeat = float(spec.options.get("heartbeat_s", HEARTBEAT))
        self._link: _Link | None = None
        self._ready = False
        self._calls: dict[int, _PendingCall] = {}
        self._numbers = itertools.count(1)
        self._metadata: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._failures = 0
        self._timeout = 0.0
        self._idle = asyncio.Event()
        self._last_fault = ""

    @classmethod
    async def start(
        cls,
        spec: WorkerSpec,
        ready_timeout: float = 120.0,
        *,
        spawn: Spawn | None = None,
        on_death: Callable[[Worker, str], None] | None = None,
    ) -> Worker:
        """A worker whose model is loaded.

        Raises: WorkerError with the process's own message where it cannot load, or takes too long.
        """
        worker = cls(spec, spawn, on_death)
        worker._timeout = ready_timeout
        await worker._launch()
        worker._task = asyncio.create_task(worker._supervise(), name=f"worker {spec.model}")
        return worker

    @property
    def pid(self) -> int:
        """Of its process now; 0 while there is none."""
        return self._link.pid if self._link is not None else 0

    @property
    def ready(self) -> bool:
        """Whether its process takes calls now."""
        return self._ready and not self._closing

    @property
    def pending(self) -> int:
        """Calls that wait for their (last) answer."""
        return len(self._calls)

    # ---- calls ----

    async def infer(
        self,
        inputs: Mapping[str, np.ndarray[Any, Any]],
        outputs: list[str] | None = None,
        deadline: float | None = None,
    ) -> dict[str, np.ndarray[Any, Any]]:
        """One call of the model.

        Args:
            outputs: the names that are wanted; None: all.
            deadline: a value of time.monotonic().

        Raises: RequestError for what the model refuses, DeadlineError, WorkerError.
        """
        described, buffers = tensors_to_frame(inputs)
        header = {"op": "infer", "tensors": described, "outputs": outputs}
        answer, arrays = await self._call(header, buffers, deadline)
        return tensors_from_frame(answer["tensors"], arrays)

    async def request(self, header: Mapping[str, Any], deadline: float | None = None) -> dict[str, Any]:
        """Another operation of the worker's kind, {"op": ..}; its answer. Raises: as `infer`.

        Args:
            header: with "op".
            deadline: of a clock that never goes back.
        """
        return (await self._call(dict(header), [], deadline))[0]

    async def read(
        self, op: str, tokens: list[int], types: list[int] | None = None, deadline: float | None = None
    ) -> np.ndarray[Any, Any]:
        """What a model that reads says of a text, float32. Raises: as `infer`.

        Args:
            op: "embed", a vector [C]; or "classify", logits [labels] of a text or [T, labels] of its tokens.
            tokens: of the text.
            types: of the tokens, for pairs of texts; None: all 0.
            deadline: of a clock that never goes back.
        """
        buffers = [np.asarray(each, "<i4").data for each in (tokens, types) if each is not None]
        answer, (values,) = await self._call({"op": op}, [*buffers], deadline)
        return np.frombuffer(values, "<f4").reshape(answer.get("shape", -1))

    async def stats(self) -> dict[str, Any]:
        """The counters of the process.

        Raises:
            WorkerError: the process ended.
            DeadlineError: it did not answer within the heartbeat.
        """
        return await self.request({"op": "stats"}, time.monotonic() + self._heartbeat)

    async def metadata(self) -> dict[str, Any]:
        """What the process said of its model when it was ready."""
        return self._metadata

    async def generate(self, request: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The answers to a prompt as they grow; leaving the loop ends the request.

        Args:
            request: {"prompt_token_ids": [..], "params": {fields of SamplingParams, with a seed}, and
                "priority", "cache_salt", "images" (bytes of pixels) where wanted}.

        Yields: {"outputs": [{"index", "tokens", "text", "logprobs", "finish_reason", "stop_reason"}], with
        what is new of each answer, "cached_tokens", "prompt_logprobs" (as far as they are new), "finished"}.

        Raises: RequestError for what the engine refuses; ValueError without a seed; WorkerError.
        """
        if request["params"].get("seed") is None:
            raise ValueError("generate: params need a seed, else a restart could draw other tokens")
        number = next(self._numbers)
        call = _Stream({"op": "generate", "id": number}, request)
        self._begin(number, call)
        try:
            while True:
                event = await call.events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if event["finished"]:
                    return
        finally:
            if self._forget(number):
                self._send({"op": "abort", "id": number})

    async def _call(
        self, header: dict[str, Any], buffers: list[Buffer], deadline: float | None
    ) -> tuple[dict[str, Any], list[memoryview]]:
        number = next(self._numbers)
        call = _PendingCall({**header, "id": number}, buffers)
        self._begin(number, call)
        try:
            if deadline is None:
                return await call.future
            return await asyncio.wait_for(call.future, max(deadline - time.monotonic(), 0))
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise DeadlineError(f"{self.spec.model}: no answer within the request's time") from error
        finally:
            if self._forget(number) and header["op"] in ("embed", "classify"):
                self._send({"op": "abort", "id": number})

    def _begin(self, number: int, call: _PendingCall) -> None:
        if self._closing:
            raise WorkerError(f"{self.spec.model}: its worker is closed")
        if self._failures >= MOST_DEATHS and not self._ready:
            raise WorkerError(f"{self.spec.model}: its worker cannot be started: {self._last_fault}")
        if self._ready and self._link is not None:
            self._link.send(*call.frame())  # a FrameError is the caller's
        self._calls[number] = call

    def _forget(self, number: int) -> bool:
        """Whether the call was still there."""
        there = self._calls.pop(number, None) is not None
        if not self._calls:
            self._idle.set()
        return there

    def _send(self, header: Mapping[str, Any]) -> None:
        if self._ready and self._link is not None:
            self._link.send(header)

    # ---- the process ----

    async def _launch(self) -> None:
        """Starts a process and waits until it is ready. WorkerError where it is not."""
        parent_end, child_end = socket.socketpair()
        try:
            if self._spawn is None:
                process = _spawn(child_end)
                link = _Link(process.pid, process)
            else:
                link = _Link(self._spawn(child_end), None)
        except BaseException:
            parent_end.close()
            raise
        finally:
            child_end.close()
        link.reader, link.writer = await asyncio.open_unix_connection(sock=parent_end)
        self._link = link
        try:
            link.send({"spec": asdict(self.spec)})
            header, _ = await asyncio.wait_for(read_frame(link.reader), self._timeout)
        except (asyncio.TimeoutError, TimeoutError):
            header = {"error": f"it was not ready within {self._timeout:g} s"}
        except (asyncio.IncompleteReadError, FrameError, OSError):
            header = {}
        except BaseException:
            link.kill()
            raise
        if "metadata" not in header:
            link.kill()
            how = await link.ended()
            self._link = None
            raise WorkerError(f"{self.spec.model} version {self.spec.version}: {header.get('error', how)}")
        self._metadata = header["metadata"]
        link.heard = link.ready_at = time.monotonic()
        self._ready = True
        for call in list(self._calls.values()):
            link.send(*call.frame())

    async def _supervise(self) -> None:
        """Takes answers; starts the process again, until the worker is closed."""
        while True:
            link = self._link
            if link is not None:
                beat = asyncio.create_task(self._beat(link))
                try:
                    await self._take_answers(link)
                finally:
                    beat.cancel()
                    self._ready = False
                    link.kill()
                how = await link.ended()
                if self._closing:
                    return
                self._died(link, how)
            if self._failures > 1:
                await asyncio.sleep(min(0.1 * 2 ** (self._failures - 2), MOST_DELAY))
            self.restarts += 1
            try:
                await self._launch()
            except (WorkerError, OSError) as error:
                self._link = None
                self._failures += 1
                self._last_fault = str(error)
                self._blame(str(error))

    def _died(self, link: _Link, how: str) -> None:
        steady = link.useful or time.monotonic() - link.ready_at >= STEADY
        self._failures = 1 if steady else self._failures + 1
        self._link, self._last_fault = None, how
        self._blame(f"its worker ended {MOST_DEATHS} times while it was computed ({how})")
        if self._on_death is not None:
            self._on_death(self, how)

    def _blame(self, how: str) -> None:
        """Gives up calls under which too many processes ended."""
        for number, call in list(self._calls.items()):
            call.deaths += 1
            if call.deaths >= MOST_DEATHS:
                self._forget(number)
                call.fail(WorkerError(f"{self.spec.model}: {how}"))

    async def _take_answers(self, link: _Link) -> None:
        try:
            while True:
                header, buffers = await read_frame(link.reader)
                link.heard = time.monotonic()
                link.useful = link.useful or "events" in header or "id" in header
                for event in header.get("events", ()):
                    self._answer(event, [])
                if "id" in header:
                    self._answer(header, buffers)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (FrameError, KeyError, TypeError, IndexError) as error:
            link.fault = f"it sent what is no answer: {error!r}"

    def _answer(self, header: dict[str, Any], buffers: list[memoryview]) -> None:
        number = header["id"]
        call = self._calls.get(number)
        if call is None:
            return
        error = header.get("error")
        if error is not None:
            self._forget(number)
            kind = RequestError if header.get("refused") else WorkerError
            call.fail(kind(str(error)))
        elif call.take(header, buffers):
            self._forget(number)

    async def _beat(self, link: _Link) -> None:
        """Kills a process that gives no sign of life."""
        while True:
            await asyncio.sleep(self._heartbeat / 4)
            if time.monotonic() - link.heard > self._heartbeat:
                link.fault = f"it gave no sign of life for {self._heartbeat:g} s"
                link.kill()
                return
            with contextlib.suppress(OSError):
                link.send({"op": "ping"})

    async def close(self, drain: float = 0.0) -> None:
        """Takes no more calls, lets those that run finish for `drain` seconds, and ends the process. Calls
        that are left get a WorkerError."""
        self._closing = True
        self._idle.clear()
        if self._calls and drain > 0:
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._idle.wait(), drain)
        for number, call in list(self._calls.items()):
            self._forget(number)
            call.fail(WorkerError(f"{self.spec.model}: its worker was closed"))
        task, link = self._task, self._link
        if link is None:  # between two processes
            if task is not None:
                task.cancel()
        else:
            with contextlib.suppress(OSError):
                link.send({"op": "exit"})
        if task is None:
            return
        with contextlib.suppress(asyncio.CancelledError, asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 5.0)
        if self._link is not None:
            self._link.kill()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
