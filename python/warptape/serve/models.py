"""Which models and versions serve: loads, switches and unloads them, and lends them to requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import ConfigError, ModelConfig, config_of
from .model_rows import described, index_rows
from .repository import Repository, RepositoryError
from .rollout import Controller, RolloutError, RolloutState, offered, refused, rolled_back
from .versions import Infer, Version
from .workers import DeadlineError, RequestError, Worker, WorkerError, WorkerSpec

if TYPE_CHECKING:
    from .metrics import Metrics

log = logging.getLogger("warptape.serve")
TICK = 0.1  # seconds between two looks at the rollouts
DRAIN = 60.0  # seconds that the requests of a version that goes may take


class ModelNotFoundError(LookupError):
    """No such model or version serves.

    Clients get status 404.
    """


class ModelUnavailableError(RuntimeError):
    """The model is there, and cannot answer now.

    Clients get status 503.
    """


# What loading raises where the version is to blame.
LOAD_ERRORS = (RepositoryError, ConfigError, WorkerError, RequestError, DeadlineError, OSError)
# What says nothing of the version's health when a request ends with it.
NEUTRAL: tuple[type[BaseException], ...] = (
    RequestError,
    DeadlineError,
    asyncio.CancelledError,
    GeneratorExit,
)

Start = Callable[[WorkerSpec, float], Awaitable[Worker]]


class _Model:
    """A model with its loaded versions."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.controller = Controller(config.rollout, RolloutState(), time.monotonic())
        self.versions: dict[int, Version] = {}
        self.lock = asyncio.Lock()  # one load, switch or unload at a time
        self.error = ""  # why the last of these failed
        self.config_error = ""  # what is wrong with the config
        self.loading: int | None = None
        self.refused_files: dict[int, Any] = {}  # of versions that were rolled back
        self.seen: tuple[int, Any] | None = None  # a version that appeared, and its files then
        self.retry_at = 0.0

    @property
    def switch(self) -> RolloutState:
        return self.controller.switch


class _Lease:
    """A version while a request uses it; tells the controller how the request ended."""

    __slots__ = ("_model", "_models", "_version", "version")

    def __init__(self, models: Models, model: _Model, version: Version) -> None:
        self._models, self._model, self._version = models, model, version

    async def __aenter__(self) -> Version:
        self._version.use()
        return self._version

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._version.leave()
        if kind is None:
            self._model.controller.record(self._version.number, True)
        elif not issubclass(kind, self._models.neutral):
            self._model.controller.record(self._version.number, False)


class Models:
    """All models of a server.

    Args:
        repository: it, or its folder, or None.
        modules: by name, models that are modules of this process; each has the version 1.
        control: "poll" looks for new models and versions, "explicit" loads what the state file and `load`
            name, and what is asked for.
        load: names to be loaded first under "explicit"; "*" is all.
        start: starts a worker, `Worker.start` by default.
        infer: computes requests of models of kind "llm".
        metrics: is told of batches (see Metrics.batch).
        configs: by name, what config.json would say of `modules`.
    """

    def __init__(
        self,
        repository: str | os.PathLike[str] | Repository | None = None,
        *,
        modules: Iterable[str] = (),
        control: str = "poll",
        poll_seconds: float = 2.0,
        load: Iterable[str] = (),
        start: Start | None = None,
        infer: Infer | None = None,
        metrics: Metrics | None = None,
        configs: Mapping[str, Any] | None = None,
        ready_timeout: float = 300.0,
        neutral: tuple[type[BaseException], ...] = (),
    ) -> None:
        if control not in ("poll", "explicit"):
            raise ValueError(f"control must be poll or explicit, got {control!r}")
        if repository is not None and not isinstance(repository, Repository):
            repository = Repository(repository)
        self.repository = repository
        self.control, self.poll_seconds = control, poll_seconds
        self.neutral: tuple[type[BaseException], ...] = (*NEUTRAL, *neutral)
        self._first, self._ready_timeout = tuple(load), ready_timeout
        self._start_worker: Start = start or (lambda spec, timeout: Worker.start(spec, timeout))
        self._infer, self._metrics = infer, metrics
        self._models: dict[str, _Model] = {}
        self._modules = {
            name: config_of((configs or {}).get(name, {}), f"the config of module {name}", name)
            for name in modules
        }
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._state_lock = asyncio.Lock()
        self._started = False
        self._unwritten = False  # a switch that could not wait for the disk
        self._history: dict[str, RolloutState] = {}  # of models that are not loaded

    # ---- what serves ----

    def names(self) -> list[str]:
        """Models that have a version which serves."""
        return sorted(n for n, m in self._models.items() if m.switch.current is not None)

    def adapters(self) -> dict[str, str]:
        """The adapters of the versions that serve, and the model of each."""
        out: dict[str, str] = {}
        for name, model in self._models.items():
            version = model.versions.get(model.switch.current or 0)
            out |= dict.fromkeys(version.adapters if version else (), name)
        return out

    def lease(self, name: str, version: int | str | None = None) -> _Lease:
        """`async with models.lease(name) as v:`, the version that the request is to be answered by.

        Args:
            version: a number; None or "": by the shares of traffic.

        Raises: ModelNotFoundError.
        """
        model = self._models.get(name)
        if model is None or model.switch.current is None:
            if model is not None and model.error:
                raise ModelUnavailableError(f"model {name!r:.130} is not loaded: {model.error}")
            raise ModelNotFoundError(f"model {name!r:.130} is not there; there are {self.names()}")
        number = model.controller.pick() if version in (None, "") else self._number(name, version)
        chosen = model.versions.get(number) if number is not None else None
        if chosen is None:
            raise ModelNotFoundError(
                f"model {name!r} has no version {version!r:.40}; loaded are {sorted(model.versions)}"
            )
        return _Lease(self, model, chosen)

    @staticmethod
    def _number(name: str, version: int | str | None) -> int:
        text = str(version)
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise ModelNotFoundError(f"model {name!r} has no version {text!r:.40}: it must be a number")
        return int(text)

    def peek(self, name: str, version: int | str | None = None) -> Version:
        """A version without using it, for questions about it; the current one by default.

        Raises: ModelNotFoundError.
        """
        model = self._models.get(name)
        number = model.switch.current if model and version in (None, "") else None
        if model is not None and number is None and version not in (None, ""):
            number = self._number(name, version)
        if model is None or number not in model.versions:
            raise ModelNotFoundError(
                f"model {name!r:.130} is not there"
                + (f" as version {version!r:.40}" if version not in (None, "") else "")
                + f"; there are {self.names()}"
            )
        return model.versions[number]

    def ready(self, name: str | None = None, version: int | str | None = None) -> bool:
        """Whether a model can answer now; without a name, whether the server and all of its models can. Those
        that could not be loaded do not count beside others that serve."""
        if name is None:
            names = self.names() or [n for n, model in self._models.items() if model.error]
            return self._started and all(self.ready(n) for n in names)
        try:
            return self.peek(name, version).ready
        except ModelNotFoundError:
            return False

    def loaded(self) -> list[Version]:
        """All versions whose workers run."""
        return [v for m in self._models.values() for v in m.versions.values()]

    def index(self) -> list[dict[str, Any]]:
        """What is in the repository: name, version, state and reason, as KServe's index has them."""
        names = set(self._models) | set(self.repository.names() if self.repository else ())
        rows: list[dict[str, Any]] = []
        for name in sorted(names):
            rows += self._index_of(name)
        return rows

    def _index_of(self, name: str) -> list[dict[str, Any]]:
        model = self._models.get(name)
        switch = model.switch if model else self._history.get(name, RolloutState())
        numbers = set(switch.loaded)
        if self.repository is not None and name not in self._modules:
            with contextlib.suppress(RepositoryError, OSError):
                numbers |= set(self.repository.versions(name))
        return index_rows(name, model, switch, numbers)

    def describe(self) -> list[dict[str, Any]]:
        """Models with their versions and shares, for the status page."""
        return [described(name, model) for name, model in sorted(self._models.items())]

    # ---- life ----

    async def start(self) -> None:
        """Loads what the state file says, else the newest versions; models that cannot be loaded are named
        in the log and the index.

        Raises: RepositoryError where the state file cannot be read.
        """
        names: list[str] = []
        if self.repository is not None:
            self._history = self.repository.read_state()
            there = self.repository.names()
            if self.control == "poll" or "*" in self._first:
                names = there
            else:
                names = [*self._first, *(n for n, s in self._history.items() if s.loaded and n in there)]
        await asyncio.gather(
            *(self._restore(n) for n in dict.fromkeys(names)), *map(self._add, self._modules)
        )
        if self.repository is not None and self.repository.only and names and not self.names():
            (reason,) = [model.error for model in self._models.values()] or ["it has no version"]
            raise RepositoryError(self.repository.said(reason))
        self._started = True
        self._task = asyncio.create_task(self._watch(), name="warptape.serve models")

    async def _add(self, name: str) -> None:
        """Loads a module of this process."""
        model = self._models[name] = _Model(self._modules[name])
        version = await self._open(
            model.config, WorkerSpec("module", name, 1, "", model.config.worker_options("module"))
        )
        model.versions[1] = version
        model.controller.adopt(RolloutState(current=1), time.monotonic())

    async def _restore(self, name: str) -> None:
        switch = self._history.get(name, RolloutState())
        if name in self._history and not switch.loaded and not switch.refused:
            return  # it was unloaded by request
        assert self.repository is not None
        model = await self._model(name)
        if model is None:
            return
        candidates = [switch.current, switch.previous]
        if switch.current is None:
            candidates = list(reversed(self.repository.versions(name)))
            if "specific" in model.config.version_policy:
                candidates = [self.repository.wanted(model.config)]
        # What could not be loaded is tried again where its files or the config have changed since.
        again = [
            n
            for n in switch.files
            if n in switch.refused and switch.files[n] != self.repository.digest(name, n)
        ]
        restored = switch.without(again)
        for number in [n for n in candidates if n is not None and n not in restored.refused]:
            try:
                model.versions[number] = await self._load_version(model, number)
            except LOAD_ERRORS as error:
                restored = self._refuse(model, restored, number, error)
                continue
            if restored.current is None:
                restored = replace(restored, current=number)
                if switch.previous is None or number == switch.previous:
                    break
            else:
                restored = replace(restored, previous=number)
        if switch.candidate is not None and restored.current is not None:
            number = switch.candidate
            try:
                model.versions[number] = await self._load_version(model, number)
                restored = replace(restored, candidate=number, step=switch.step)
            except LOAD_ERRORS as error:
                restored = self._refuse(model, restored, number, error)
        with contextlib.suppress(RepositoryError):
            await self._commit(model, restored, force=True)

    async def close(self, drain: float = DRAIN) -> None:
        """Lets requests finish for `drain` seconds and ends all workers.

        Args:
            drain: seconds.
        """
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.gather(*(v.close(drain) for v in self.loaded()), *self._closing)

    async def _watch(self) -> None:
        """Moves rollouts on, looks for new versions, writes the state that could not be written."""
        polled = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            try:
                for model in list(self._models.values()):
                    if not model.lock.locked():
                        await self._advance(model, now)
                if self._unwritten:
                    with contextlib.suppress(RepositoryError):
                        await self._write()
                if self.control == "poll" and self.repository and now - polled >= self.poll_seconds:
                    await self._poll()
                    polled = time.monotonic()
            except Exception:  # a fault of this loop must not end rollouts for good
                log.exception("the loop that watches models failed, and goes on")

    async def _advance(self, model: _Model, now: float) -> None:
        switch = model.controller.decide(now)
        if switch is None or now < model.retry_at:
            return
        back = len(switch.refused) > len(model.switch.refused)
        async with model.lock:
            try:
                await self._commit(model, switch, force=back)
            except RepositoryError as error:
                model.error, model.retry_at = str(error), now + 1.0
                log.error("%s", error)
        if back:
            bad = set(switch.refused) - set(model.switch.refused) or set(switch.refused)
            model.error = "; ".join(f"version {v} was rolled back: {switch.refused[v]}" for v in sorted(bad))
            log.error("%s: %s", model.config.name, model.error)

    async def _poll(self) -> None:
        assert self.repository is not None
        for name in self.repository.names():
            model = self._models.get(name)
            switch = model.switch if model else self._history.get(name, RolloutState())
            if (
                name in self._history
                and name not in self._models
                and not switch.loaded
                and not switch.refused
            ):
                continue  # unloaded by request
            try:
                await self._poll_model(name)
            except LOAD_ERRORS as error:
                if name in self._models and self._models[name].error != str(error):
                    self._models[name].error = str(error)
                    log.error("%s: %s", name, error)

    async def _poll_model(self, name: str) -> None:
        assert self.repository is not None
        model = await self._model(name)
        if model is None or model.lock.locked() or model.switch.candidate is not None:
            return
        version = self.repository.wanted(model.config)
        s = model.switch
        if version is None or version == s.current:
            return
        if s.current is not None and version < s.current and "latest" in model.config.version_policy:
            return
        files = await asyncio.to_thread(self.repository.fingerprint, name, version)
        if version in s.files:  # it could not be loaded
            if s.files[version] == await asyncio.to_thread(self.repository.digest, name, version):
                return
        elif version in s.refused and model.refused_files.setdefault(version, files) == files:
            return
        if model.seen != (version, files):  # perhaps it is still being copied: one look more
            model.seen = (version, files)
            return
        await self.load(name, version)

    # ---- orders ----

    async def _model(self, name: str) -> _Model | None:
        """The entry of a model, its config read again; None with a log line where that cannot be."""
        assert self.repository is not None
        try:
            config = await asyncio.to_thread(self.repository.config, name)
        except (ConfigError, RepositoryError) as error:
            model = self._models.get(name)
            if model is None:
                model = self._models[name] = _Model(ModelConfig(name))
            if model.error != str(error):
                model.error = model.config_error = str(error)
                log.error("%s", error)
            return None
        model = self._models.setdefault(name, _Model(config))
        if model.error == model.config_error:
            model.error = ""
        model.config, model.config_error = config, ""
        model.controller.rollout = config.rollout
        return model

    async def load(self, name: str, version: int | None = None) -> int:
        """Loads a version beside the one that serves, and begins its rollout; returns its number.

        Args:
            version: None: the one that the model's policy wants, by default the newest.

        Raises: RepositoryError, ConfigError, WorkerError with what is wrong with it, while the old version
            goes on serving; RolloutError while another version is taking over; ModelNotFoundError.
        """
        if name in self._modules:
            raise RolloutError(f"{name} is a module of this process: it is loaded with the server")
        if self.repository is None or name not in self.repository.names():
            raise ModelNotFoundError(f"model {name!r:.130} is not in the repository")
        model = await self._model(name)
        if model is None:
            raise RepositoryError(self._models[name].error)
        async with model.lock:
            number = self.repository.wanted(model.config) if version is None else version
            if number is None:
                model.error = f"{self.repository.root / name}: no folder of a version in it"
                raise RepositoryError(model.error)
            if number == model.switch.current:
                return number
            offered(model.switch, number)  # raises before anything is started
            fresh = number not in model.versions
            try:
                if fresh:
                    model.versions[number] = await self._load_version(model, number)
                await self._commit(model, offered(model.switch, number))
            except LOAD_ERRORS as error:
                if fresh:
                    self._let_go(model, number)
                if isinstance(error, RepositoryError) and str(error).startswith(str(self._state_path())):
                    model.error = str(error)
                    raise
                with contextlib.suppress(RepositoryError):
                    await self._commit(model, self._refuse(model, model.switch, number, error), force=True)
                raise
            model.error = ""
            return number

    async def unload(self, name: str) -> None:
        """Takes a model away; requests that it answers finish.

        Raises: ModelNotFoundError, RepositoryError.
        """
        model = self._models.get(name)
        if model is None or not model.versions:
            raise ModelNotFoundError(f"model {name!r:.130} is not loaded; there are {self.names()}")
        async with model.lock:
            await self._commit(model, RolloutState())
            model.error = ""
            self._history[name] = RolloutState()
            if self._models.get(name) is model:
                del self._models[name]

    async def rollback(self, name: str, reason: str = "rolled back by request") -> int:
        """Gives up the candidate, or the current version for the one before; returns the version that
        serves. At once: both are loaded.

        Raises: ModelNotFoundError; RolloutError where there is nothing to go back to.
        """
        model = self._models.get(name)
        if model is None:
            raise ModelNotFoundError(f"model {name!r:.130} is not loaded; there are {self.names()}")
        async with model.lock:
            switch = rolled_back(model.switch, reason)
            await self._commit(model, switch, force=True)
        assert switch.current is not None
        return switch.current

    # ---- parts of these ----

    def _state_path(self) -> Path:
        assert self.repository is not None
        return self.repository.root / "state.json"

    def _refuse(self, model: _Model, switch: RolloutState, number: int, error: Exception) -> RolloutState:
        said = str(error) if self.repository is None else self.repository.said(str(error))
        model.error = f"version {number} was refused: {said}"
        log.error("%s: %s", model.config.name, model.error)
        if isinstance(error, OSError):  # of this machine now, not of the version
            model.error = f"version {number} could not be loaded: {error}"
            return switch
        files = "" if self.repository is None else self.repository.digest(model.config.name, number)
        return refused(switch, number, str(error)[:1000], files)

    async def _load_version(self, model: _Model, number: int) -> Version:
        """A version whose workers run and which answered its samples. Raises: LOAD_ERRORS."""
        assert self.repository is not None
        config = model.config
        model.loading = number
        try:
            kind, path = await asyncio.to_thread(self.repository.find, config, number)
            options = await asyncio.to_thread(config.worker_options, kind, str(path))
            version = await self._open(config, WorkerSpec(kind, config.name, number, str(path), options))
            try:
                folder = self.repository.root / config.name / str(number)
                count = await version.verify(folder)
            except BaseException:
                await version.close(0.0)
                raise
        finally:
            model.loading = None
        log.info("%s: version %d is loaded and answered %d samples", config.name, number, count)
        return version

    async def _open(self, config: ModelConfig, spec: WorkerSpec) -> Version:
        workers: list[Worker] = []
        try:
            for _ in range(config.instances):
                workers.append(await self._start_worker(spec, self._ready_timeout))
            metadata = await workers[0].metadata()
        except BaseException:
            await asyncio.gather(*(w.close() for w in workers))
            raise
        observe = None
        if self._metrics is not None:
            observe = self._metrics.batch_observer(spec.model, spec.version)
        return Version(config, spec, workers, metadata, self._infer if spec.kind == "llm" else None, observe)

    async def _commit(self, model: _Model, switch: RolloutState, force: bool = False) -> None:
        """Makes a switch: first in the state file, then here. With `force` it does not wait for the disk.

        Raises: RepositoryError, with nothing changed; never with `force`.
        """
        try:
            await self._write({model.config.name: switch})
        except RepositoryError as error:
            if not force:
                raise
            self._unwritten = True
            model.error = str(error)
            log.error("%s", error)
        model.controller.adopt(switch, time.monotonic())
        for number in [n for n in model.versions if n not in switch.loaded]:
            self._let_go(model, number)

    async def _write(self, changed: Mapping[str, RolloutState] | None = None) -> None:
        if self.repository is None:
            return
        async with self._state_lock:
            # A model without any version was unloaded by request, or its config is wrong: of the latter the
            # file says what it said before.
            now = {
                n: m.switch
                for n, m in self._models.items()
                if n not in self._modules and (m.switch.loaded or m.switch.refused)
            }
            known = {
                **self._history,
                **now,
                **{n: s for n, s in (changed or {}).items() if n not in self._modules},
            }
            await asyncio.to_thread(self.repository.write_state, known)
            self._unwritten = False

    def _let_go(self, model: _Model, number: int) -> None:
        """Ends a version's workers once nobody uses it."""
        version = model.versions.pop(number, None)
        if version is None:
            return
        task = asyncio.get_running_loop().create_task(self._end(model, version))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _end(self, model: _Model, version: Version) -> None:
        await version.close(DRAIN)
        if self._metrics is not None and version.number not in model.versions:
            self._metrics.forget(version.name, version.number)
