"""A worker process: `python -m warptape.serve.worker FD`, started by the front, which it answers over FD.

The first frame says what to run; the answer is {"metadata": ..} or {"error": text}. After it one frame is an
operation {"op", "id", ..}, answered by one frame with the same id, or by frames of events:

    infer      tensors, outputs     -> tensors
    generate   request              -> {"events": [{"id", "outputs", ..}, ..]} after each step   (kind "llm")
    abort                           -> nothing                                                    (kind "llm")
    embed      tokens               -> a vector                                                   (kind "llm")
    classify   tokens, their types  -> logits                                                     (kind "llm")
    read_weights                    -> nothing but that they can be put in                        (kind "llm")
    put_weights, drop_weights       -> nothing but that it is done                                (kind "llm")
    stats                           -> the process's counts
    ping                            -> a sign of life
    exit                            -> the process ends

One thread does all, so nothing is locked; between two steps it looks for frames.
"""

from __future__ import annotations

import importlib
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from typing import Any

from .frames import FrameError, FrameSocket, tensors_from_frame, tensors_to_frame
from .workers import HEARTBEAT, WorkerSpec

LEAST_USED = 0.01  # of a heartbeat, in seconds of the processor in a quarter of it: less is no computing
MOST_STEP = 10  # heartbeats that a step may take
MOST_READING = 0.02  # seconds between two steps, however many requests come
# The module of this package, and its class; each loads what the others do not need.
KINDS = {
    "llm": ("engine_worker", "EngineWorker"),
    "program": ("program_worker", "ProgramWorker"),
    "module": ("program_worker", "ProgramWorker"),
}
# What wrong requests raise; all else is the server's fault.
REFUSED = (ValueError, TypeError, IndexError, KeyError, NotImplementedError, ImportError, FileNotFoundError)


def make(spec: WorkerSpec, module: Any = None) -> Any:
    """What answers: an object with metadata() and, by kind, infer(inputs, outputs) or the engine's
    operations (`handle`, `busy`, `step`).

    Args:
        module: of kind "module", handed to ProgramWorker as its second argument.

    Raises: ValueError for another kind; what loading raises.
    """
    if spec.kind not in KINDS:
        raise ValueError(f"a worker's kind must be one of {', '.join(KINDS)}, got {spec.kind!r}")
    file, name = KINDS[spec.kind]
    worker = getattr(importlib.import_module(f".{file}", __package__), name)
    return worker(spec, module) if spec.kind == "module" else worker(spec)


def memory() -> dict[str, int]:
    """The process's memory in bytes, now and at most."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"pid": os.getpid(), "rss": pages * os.sysconf("SC_PAGE_SIZE"), "peak_rss": most}


def _answer(frames: FrameSocket, model: Any, header: dict[str, Any], buffers: list[memoryview]) -> bool:
    """Does one operation; returns whether the process goes on. An OSError is the front's end; one of the
    operation is its failure."""
    op, number = header.get("op"), header.get("id")
    if op == "exit":
        return False
    out: Any = []
    try:
        if op == "ping":
            answer: dict[str, Any] | None = {"pong": True}
        elif op == "infer" and hasattr(model, "infer"):
            arrays = model.infer(tensors_from_frame(header["tensors"], buffers), header.get("outputs"))
            described, out = tensors_to_frame(arrays)
            answer = {"id": number, "tensors": described}
        elif op == "stats":
            own = model.stats() if hasattr(model, "stats") else {}
            answer = {"id": number, **memory(), **own}
        elif not hasattr(model, "handle"):
            raise ValueError(f"this model has no operation {op!r}")
        else:
            answer = model.handle(header, buffers)
            answer = None if answer is None else {"id": number, **answer}
    except Exception as error:
        answer = failure(number, error)
    if answer is not None:
        try:
            frames.send(answer, out)
        except FrameError as error:  # the answer is too large: it was not sent
            frames.send({"id": number, "error": str(error), "refused": True})
    return True


def failure(number: Any, error: BaseException) -> dict[str, Any]:
    """What the front is told of a request that raised.

    Args:
        number: of the request.
        error: of any class.
    """
    of_a_path = isinstance(error, OSError) and error.filename is not None  # too long, no folder, not ours
    if not isinstance(error, REFUSED) and not of_a_path:
        return {"id": number, "error": f"{type(error).__name__}: {error}"}
    text = str(error) if not isinstance(error, KeyError) else f"{error.args[0]} is missing"
    return {"id": number, "error": text or repr(error), "refused": True}


class _Life:
    """Signs of life while a step takes long, from a thread: while the process computes, and within limits.

    Args:
        heartbeat: seconds after which the front would end the process.

    Attributes:
        began: when the step did (time.monotonic()); 0: none is under way.
    """

    def __init__(self, frames: FrameSocket, heartbeat: float) -> None:
        self._frames, self._heartbeat, self.began = frames, heartbeat, 0.0
        threading.Thread(target=self._beat, name="warptape-life", daemon=True).start()

    def _beat(self) -> None:
        used = time.process_time()
        while True:
            time.sleep(self._heartbeat / 4)
            before, used = used, time.process_time()
            long = self.began and time.monotonic() - self.began > self._heartbeat / 4
            if long and used - before > LEAST_USED * self._heartbeat and not self._hangs():
                try:
                    self._frames.send({"pong": True})
                except (OSError, FrameError):
                    return

    def _hangs(self) -> bool:
        return time.monotonic() - self.began > MOST_STEP * self._heartbeat


def serve(connection: socket.socket, module: Any = None) -> None:
    """Answers until the front leaves or says so.

    Args:
        connection: to the front.
        module: what runs; found by the spec if None.
    """
    frames = FrameSocket(connection)
    header, _ = frames.receive()
    spec = WorkerSpec(**header["spec"])
    try:
        model = make(spec, module[spec.model] if module is not None else None)
        metadata = model.metadata()
    except Exception as error:
        frames.send({"error": f"{type(error).__name__}: {error}"})
        return
    frames.send({"metadata": metadata})
    life = _Life(frames, float(spec.options.get("heartbeat_s", HEARTBEAT)))
    busy = getattr(model, "busy", lambda: False)
    while True:
        life.began = 0.0
        until = time.monotonic() + MOST_READING
        while not busy() or (time.monotonic() < until and select.select([frames], [], [], 0)[0]):
            header, buffers = frames.receive()
            life.began = time.monotonic()
            if not _answer(frames, model, header, buffers):
                return
        life.began = time.monotonic()
        events, answers = model.step()
        for answer, parts in answers:
            frames.send(answer, parts)
        if events:
            frames.send({"events": events})


def run(connection: socket.socket, module: Any = None) -> None:
    """The whole life of a worker process: the front's signals are not its own.

    Args:
        connection: to the front.
        module: what runs; found by the spec if None.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the front drains
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        serve(connection, module)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the front is gone
    except FrameError as error:
        print(f"warptape.serve.worker: {error}", file=sys.stderr)


if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[1])))
