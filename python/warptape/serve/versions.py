"""A version of a model that is loaded: its workers, its tensors, who uses it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .batching import AsyncBatcher, Batcher
from .config import DynamicBatching, ModelConfig
from .frames import dtype_name
from .kserve_codec import Arrays, InferRequest, array_of_list, check_datatype, check_shape, parse_infer
from .repository import MOST_SAMPLES, SAMPLES, RepositoryError, difference, read_tensor_samples
from .workers import RequestError, Worker, WorkerError, WorkerSpec

# How a model's request is computed where it is no single call of the worker: by the version and the request.
Infer = Callable[["Version", InferRequest, float | None], Awaitable[Arrays]]


class Version:
    """A version that is loaded.

    Args:
        workers: as many as the config's instances.
        infer: computes a request of a model that is not called by tensors (kind "llm").
        observe: is told of each batch: rows, seconds of waiting of each request, seconds of computing.

    Attributes:
        users: requests that are on their way; it is closed when there are none.
    """

    def __init__(
        self,
        config: ModelConfig,
        spec: WorkerSpec,
        workers: Sequence[Worker],
        metadata: dict[str, Any],
        infer: Infer | None = None,
        observe: Callable[[int, list[float], float], None] | None = None,
    ) -> None:
        self.config, self.spec, self.workers = config, spec, list(workers)
        self.name, self.number = spec.model, spec.version
        self.metadata, self._infer = metadata, infer
        self.users = self.weights_version = 0
        self._updating = asyncio.Lock()
        self._free = asyncio.Event()
        self._turn = itertools.cycle(range(len(self.workers)))
        self.inputs = {t["name"]: t for t in metadata.get("inputs", ())}
        self.outputs = {t["name"]: t for t in metadata.get("outputs", ())}
        self.batcher: AsyncBatcher | None = None
        if config.max_batch_size and spec.kind != "llm":
            settings = config.dynamic_batching or DynamicBatching()
            core = Batcher(config.max_batch_size, settings, config.instances)
            self.batcher = AsyncBatcher(core, self._call, observe)

    @property
    def worker(self) -> Worker:
        """The worker for the next call: the one with the fewest pending."""
        if len(self.workers) == 1:
            return self.workers[0]
        start = next(self._turn)
        order = self.workers[start:] + self.workers[:start]
        return min(order, key=lambda w: (not w.ready, w.pending))

    @property
    def ready(self) -> bool:
        """Whether a worker takes calls now."""
        return any(w.ready for w in self.workers)

    @property
    def restarts(self) -> int:
        """Of its workers, since they were started."""
        return sum(w.restarts for w in self.workers)

    def use(self) -> None:
        """One more user."""
        self.users += 1

    def leave(self) -> None:
        """One user less."""
        self.users -= 1
        if not self.users:
            self._free.set()

    async def close(self, drain: float) -> None:
        """Waits for the users, at most `drain` seconds, and ends the workers.

        Args:
            drain: seconds.
        """
        if self.users:
            self._free.clear()
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._free.wait(), drain)
        await asyncio.gather(*(w.close(drain=min(drain, 5.0)) for w in self.workers))

    @property
    def adapters(self) -> dict[str, str]:
        """Folders of its adapters, by name."""
        return self.spec.options.get("adapters") or {} if self.spec.kind == "llm" else {}

    async def load_adapter(self, name: str, path: str) -> None:
        """Loads an adapter beside those that are there; a worker that is started again has it, too.

        Args:
            name: that requests name it by.
            path: of a PEFT folder, from the working folder of the server on.

        Raises: RequestError for what is no adapter of this model.
        """
        if self.metadata.get("kind") != "llm":
            raise RequestError(f"{self.name} takes no adapters")
        path = os.path.abspath(path)
        # Said first, so that a worker that ends meanwhile is started with it.
        self._set_adapters({**self.adapters, name: path})
        try:
            for worker in self.workers:
                await worker.request({"op": "load_adapter", "name": name, "path": path})
        except BaseException:
            self._set_adapters({each: path for each, path in self.adapters.items() if each != name})
            raise

    async def unload_adapter(self, name: str) -> None:
        """Takes one away; requests that run with it are answered.

        Args:
            name: of it.
        """
        self._set_adapters({each: path for each, path in self.adapters.items() if each != name})
        for worker in self.workers:
            await worker.request({"op": "unload_adapter", "name": name})

    async def update_weights(self, path: str, version: int | None = None, **how: Any) -> int:
        """Gives its workers other weights, all of them or none; a worker that is started again has them, too.

        Args:
            path: of a model's folder or a safetensors file, which must stay there until the next update.
            version: above the last one; the next one if None.
            how: in_flight, keep_prefix_cache and convert of LLMEngine.update_weights.

        Raises: RequestError for what does not fit, and the model is as it was.
        """
        if self.metadata.get("kind") != "llm":
            raise RequestError(f"{self.name} takes no weights")
        async with self._updating:
            new = self.weights_version + 1 if version is None else version
            if new <= self.weights_version:
                raise RequestError(f"version must be a number above {self.weights_version}, got {new}")
            order = {**how, "path": os.path.abspath(path), "version": new}
            try:
                await self._of_all({"op": "read_weights", **order})
            except BaseException:
                await asyncio.shield(self._of_all({"op": "drop_weights", **order}))
                raise
            await asyncio.shield(asyncio.ensure_future(self._put_weights(order)))
        return new

    async def _put_weights(self, order: dict[str, Any]) -> None:
        kept = {name: order[name] for name in ("path", "version", "convert")}
        for spec in (self.spec, *(worker.spec for worker in self.workers)):
            spec.weights = kept
        self.weights_version = order["version"]
        await self._of_all({"op": "put_weights", **order})

    async def _of_all(self, order: dict[str, Any]) -> None:
        """An order to each of the workers; the first failure is raised when all have answered."""
        done = await asyncio.gather(*(w.request(order) for w in self.workers), return_exceptions=True)
        for failed in done:
            if isinstance(failed, BaseException):
                raise failed

    def _set_adapters(self, adapters: dict[str, str]) -> None:
        self.spec.options["adapters"] = adapters
        for worker in self.workers:
            worker.spec.options["adapters"] = adapters

    # ---- requests ----

    def check(self, request: InferRequest) -> int:
        """The rows of a request; 0 where the model has no batches. Raises: RequestError.

        Args:
            request: of a client.
        """
        if self.inputs:
            self._check_tensors(request.inputs)
        for name in request.outputs or ():
            if self.outputs and name not in self.outputs:
                raise RequestError(f"{self.name} has no output {name!r:.100}; it has {list(self.outputs)}")
        most = self.config.max_batch_size
        if not most:
            return 0
        rows = {a.shape[0] if a.ndim else -1 for a in request.inputs.values()}
        if len(rows) != 1 or not 1 <= (count := rows.pop()) <= most:
            shapes = {n: list(a.shape) for n, a in request.inputs.items()}
            raise RequestError(
                f"{self.name}: the first dim of all inputs must be one batch size from 1 to {most}, "
                f"got {shapes}"
            )
        return count

    def _check_tensors(self, inputs: Arrays) -> None:
        if inputs.keys() != self.inputs.keys():
            raise RequestError(f"{self.name}: expected inputs {list(self.inputs)}, got {list(inputs)!r:.300}")
        for name, array in inputs.items():
            t = self.inputs[name]
            if dtype_name(array) != t["datatype"]:
                raise RequestError(f"input {name} must be {t['datatype']}, got {dtype_name(array)}")
            shape = t["shape"]
            if len(shape) != array.ndim or any(e not in (-1, g) for e, g in zip(shape, array.shape)):
                raise RequestError(f"input {name} must have shape {shape}, got {list(array.shape)}")

    async def infer(self, request: InferRequest, deadline: float | None = None) -> Arrays:
        """The outputs of a request.

        Args:
            deadline: a value of time.monotonic().

        Raises: RequestError, DeadlineError, QueueFullError, BatchError, WorkerError.
        """
        if self._infer is not None:
            return await self._infer(self, request, deadline)
        rows = self.check(request)
        if self.batcher is None:
            names = None if request.outputs is None else list(request.outputs)
            return await self.worker.infer(request.inputs, names, deadline)
        return await self.batcher.infer(
            request.inputs, request.outputs, rows=rows, priority=request.priority, deadline=deadline
        )

    async def _call(self, inputs: Arrays, outputs: tuple[str, ...] | None) -> Arrays:
        return await self.worker.infer(inputs, None if outputs is None else list(outputs))

    # ---- before it serves ----

    async def verify(self, folder: Path) -> int:
        """Answers the stored samples of a version's folder, and says how many there were.

        Raises: RepositoryError that names the file and the output, WorkerError, RequestError.
        """
        count = 0
        for file in SAMPLES:
            path = folder / file
            if not path.is_file() or (file == SAMPLES[1] and self.spec.kind == "llm"):
                continue
            if path.stat().st_size > MOST_SAMPLES:
                raise RepositoryError(f"{path}: more than {MOST_SAMPLES} bytes")
            read = read_samples if file == SAMPLES[0] else _of_tensors
            for i, (request, expected) in enumerate(read(path)):
                try:
                    got = await self.infer(request)
                except (RequestError, WorkerError) as error:
                    raise RepositoryError(f"{path}: sample {i} failed: {error}") from error
                for name, array in expected.items():
                    if name not in got:
                        raise RepositoryError(f"{path}: sample {i} has an output {name!r}, the model has not")
                    wrong = difference(array, got[name], self.config.rollout.tolerance)
                    if wrong:
                        raise RepositoryError(f"{path}: sample {i}, output {name}: {wrong}")
                count += 1
        return count


Sample = tuple[InferRequest, Arrays]


def _of_tensors(path: Path) -> list[Sample]:
    return [(InferRequest(inputs), outputs) for inputs, outputs in read_tensor_samples(path)]


def read_samples(path: Path) -> list[Sample]:
    """Requests and the outputs expected of them in a JSON file {"samples": [{KServe's inputs, parameters
    and outputs with data}, ..]}. Raises: RepositoryError."""
    samples = []
    try:
        for each in json.loads(path.read_bytes())["samples"]:
            outputs = {}
            for o in each["outputs"]:
                where = str(o["name"])
                datatype, shape = check_datatype(o["datatype"], where), check_shape(o["shape"], where)
                outputs[where] = array_of_list(datatype, shape, o["data"], where)
            body = {k: v for k, v in each.items() if k != "outputs"}
            samples.append((parse_infer(json.dumps(body).encode(), None), outputs))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RepositoryError(
            f"{os.fspath(path)}: expected samples with KServe's inputs and outputs: {error!r}"
        ) from error
    return samples


def save_samples(path: str | os.PathLike[str], samples: Sequence[tuple[Arrays, Arrays]]) -> None:
    """Writes inputs and the outputs expected of them as the samples.safetensors of a version's folder.

    Args:
        path: of the version's folder.
        samples: (inputs, outputs) pairs, arrays by name.
    """
    from safetensors.numpy import save_file

    tensors: dict[str, np.ndarray] = {}
    for i, (inputs, outputs) in enumerate(samples):
        tensors |= {f"{i}/inputs/{n}": np.ascontiguousarray(a) for n, a in inputs.items()}
        tensors |= {f"{i}/outputs/{n}": np.ascontiguousarray(a) for n, a in outputs.items()}
    save_file(tensors, os.fspath(path))
