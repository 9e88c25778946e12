"""The config file of a model in a repository: Triton's key names, as JSON, checked key by key."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .frames import DTYPES
from .options import OPTIONS, resolved

CONFIG = "config.json"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
BACKENDS = ("llm", "program", "module")
MOST_BYTES = 1 << 20  # of a config file


class ConfigError(ValueError):
    """A config file that says what cannot be: the message names the file and the key."""


@dataclass(frozen=True)
class DynamicBatching:
    """How requests of a one-call model wait for each other.

    Attributes:
        preferred_batch_size: sizes that are sent as soon as they can be made.
        max_queue_delay_microseconds: the longest that a request waits for others while a worker is free.
        priority_levels: 1 is served first; 0 levels: all requests are alike.
        default_priority_level: of requests that name none.
        max_queue_size: requests that may wait; 0: any number.
        latency_target_ms: batches grow as far as the measured cost lets a request wait for the batch before
            its own and still be answered within this time.
    """

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    priority_levels: int = 0
    default_priority_level: int = 0
    max_queue_size: int = 0
    latency_target_ms: float | None = None


@dataclass(frozen=True)
class Rollout:
    """How a new version takes over.

    Attributes:
        steps: the shares of traffic in percent, one after another; the last is 100.
        hold_seconds: how long each share but the last is held.
        watch_seconds: how long after the last step errors still bring the old version back.
        error_rate: more failed requests than this part of a step's requests roll back.
        min_requests: of a step, before its error rate counts.
        tolerance: how far stored samples may be off, relative to the largest value of the tensor.
    """

    steps: tuple[int, ...] = (10, 50, 100)
    hold_seconds: float = 10.0
    watch_seconds: float = 30.0
    error_rate: float = 0.02
    min_requests: int = 20
    tolerance: float = 1e-3


@dataclass(frozen=True)
class TensorConfig:
    """A tensor by name, KServe datatype and dims; -1 varies. With a max_batch_size, dims are without it.

    Args:
        name, datatype: of the tensor.
        dims: sizes.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class ModelConfig:
    """What config.json says of a model; a model without one has the defaults.

    Args:
        name: of the model.
        backend: what runs it; found by its files if "".
        max_batch_size: 0 for no batches.
        instances: processes.
        parameters: of the backend.
        version_policy: which versions serve.
        input, output: of a program.
        rollout: how a new version takes over.
    """

    name: str
    backend: str = ""
    max_batch_size: int = 0
    dynamic_batching: DynamicBatching | None = None
    instances: int = 1
    parameters: dict[str, Any] = field(default_factory=dict)
    version_policy: dict[str, Any] = field(default_factory=lambda: {"latest": {"num_versions": 1}})
    input: tuple[TensorConfig, ...] = ()
    output: tuple[TensorConfig, ...] = ()
    rollout: Rollout = Rollout()

    def worker_options(self, kind: str, path: str = "") -> dict[str, Any]:
        """What a worker is told; paths are meant from the model's folder on.

        Args:
            kind: of the worker.
            path: of the version.
        """
        more: dict[str, Any] = {}
        for key in ("input", "output"):
            tensors = getattr(self, key)
            if tensors:
                more[key] = [[t.name, t.datatype, list(t.dims)] for t in tensors]
        if self.max_batch_size and kind != "llm":
            more["max_batch_size"] = self.max_batch_size
        parameters = self.parameters
        if kind == "llm":
            folder = path if os.path.isdir(path) else os.path.dirname(path)
            parameters = resolved(parameters, os.path.dirname(folder))
        return {**parameters, **more}

    def to_triton(self) -> dict[str, Any]:
        """The config by Triton's keys, for clients that ask for it."""
        batching = self.dynamic_batching

        def tensor(t: TensorConfig) -> dict[str, Any]:
            kind = "STRING" if t.datatype == "BYTES" else t.datatype
            return {"name": t.name, "data_type": f"TYPE_{kind}", "dims": list(t.dims)}

        more = {} if batching is None else {"dynamic_batching": _batching_as_triton(batching)}
        return {
            "name": self.name,
            "backend": self.backend,
            "max_batch_size": self.max_batch_size,
            "input": [tensor(t) for t in self.input],
            "output": [tensor(t) for t in self.output],
            "instance_group": [{"count": self.instances, "kind": "KIND_CPU"}],
            "version_policy": self.version_policy,
            "parameters": {k: {"string_value": _as_text(v)} for k, v in self.parameters.items()},
            **more,
        }


def _as_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _batching_as_triton(batching: DynamicBatching) -> dict[str, Any]:
    return {
        "preferred_batch_size": list(batching.preferred_batch_size),
        "max_queue_delay_microseconds": batching.max_queue_delay_microseconds,
        "priority_levels": batching.priority_levels,
        "default_priority_level": batching.default_priority_level,
        "default_queue_policy": {"max_queue_size": batching.max_queue_size},
    }


class _Reader:
    """Takes keys out of an object; what is left in the end is unknown."""

    def __init__(self, where: str, at: str, data: object) -> None:
        self.where, self.at = where, at
        if not isinstance(data, dict):
            raise self.error("", "an object", data)
        self.data = dict(data)

    def error(self, key: str, expected: str, got: object) -> ConfigError:
        path = ".".join(p for p in (self.at, key) if p) or "the file"
        return ConfigError(f"{self.where}: {path} must be {expected}, got {got!r:.100}")

    def take(self, key: str, default: object = None) -> Any:
        return self.data.pop(key, default)

    def whole(self, key: str, low: int, high: int, default: int) -> int:
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, f"an integer from {low} to {high}", value)
        return value

    def number(self, key: str, low: float, high: float, default: object) -> Any:
        value = self.take(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.error(key, f"a number from {low} to {high}", value)
        return float(value)

    def wholes(self, key: str, low: int, high: int, default: tuple[int, ...]) -> tuple[int, ...]:
        value = self.take(key, default)
        fits = isinstance(value, (list, tuple)) and all(
            isinstance(v, int) and not isinstance(v, bool) and low <= v <= high for v in value
        )
        if not fits:
            raise self.error(key, f"a list of integers from {low} to {high}", value)
        return tuple(value)

    def end(self, known: tuple[str, ...]) -> None:
        for key in self.data:
            path = ".".join(p for p in (self.at, str(key)) if p)
            raise ConfigError(f"{self.where}: {path:.100} is no key; known are {', '.join(known)}")


def _batching(where: str, data: object, most: int) -> DynamicBatching:
    r = _Reader(where, "dynamic_batching", data)
    preferred = r.wholes("preferred_batch_size", 1, most, ())
    levels = r.whole("priority_levels", 0, 100, 0)
    policy = _Reader(where, "dynamic_batching.default_queue_policy", r.take("default_queue_policy", {}))
    batching = DynamicBatching(
        preferred_batch_size=tuple(sorted(set(preferred))),
        max_queue_delay_microseconds=r.whole("max_queue_delay_microseconds", 0, 60_000_000, 0),
        priority_levels=levels,
        default_priority_level=r.whole("default_priority_level", 0, levels, (levels + 1) // 2),
        max_queue_size=policy.whole("max_queue_size", 0, 1 << 31, 0),
        latency_target_ms=r.number("latency_target_ms", 0.001, 1e7, None),
    )
    policy.end(("max_queue_size",))
    r.end(tuple(f.name for f in fields(DynamicBatching)))
    return batching


def _rollout(where: str, data: object) -> Rollout:
    r, d = _Reader(where, "rollout", data), Rollout()
    steps = r.wholes("steps", 1, 100, d.steps)
    if not steps or steps[-1] != 100 or list(steps) != sorted(set(steps)):
        raise r.error("steps", "growing percents that end with 100", list(steps))
    rollout = Rollout(
        steps=steps,
        hold_seconds=r.number("hold_seconds", 0, 1e7, d.hold_seconds),
        watch_seconds=r.number("watch_seconds", 0, 1e7, d.watch_seconds),
        error_rate=r.number("error_rate", 0, 1, d.error_rate),
        min_requests=r.whole("min_requests", 1, 1 << 31, d.min_requests),
        tolerance=r.number("tolerance", 0, 1e9, d.tolerance),
    )
    r.end(tuple(f.name for f in fields(Rollout)))
    return rollout


def _tensors(where: str, key: str, data: object) -> tuple[TensorConfig, ...]:
    if not isinstance(data, (list, tuple)):
        raise ConfigError(f"{where}: {key} must be a list of objects, got {data!r:.100}")
    tensors: list[TensorConfig] = []
    for i, each in enumerate(data):
        r = _Reader(where, f"{key}[{i}]", each)
        name, kind = r.take("name"), r.take("data_type", "")
        if not isinstance(name, str) or not name or any(t.name == name for t in tensors):
            raise r.error("name", "a name of its own", name)
        kind = kind.removeprefix("TYPE_") if isinstance(kind, str) else kind
        kind = "BYTES" if kind == "STRING" else kind
        if kind not in DTYPES:
            raise r.error("data_type", f"TYPE_ and one of {', '.join(DTYPES)}", kind)
        tensors.append(TensorConfig(name, kind, r.wholes("dims", -1, 1 << 31, ())))
        r.end(("name", "data_type", "dims"))
    return tuple(tensors)


def _instances(where: str, data: object) -> int:
    if not isinstance(data, list) or len(data) != 1:
        raise ConfigError(f"{where}: instance_group must be a list of one object, got {data!r:.100}")
    r = _Reader(where, "instance_group[0]", data[0])
    kind = r.take("kind", "KIND_CPU")
    if kind not in ("KIND_CPU", "KIND_AUTO"):
        raise r.error("kind", "KIND_CPU or KIND_AUTO", kind)
    count = r.whole("count", 1, 64, 1)
    r.end(("count", "kind"))
    return count


def _is_scalar(value: object) -> bool:
    return isinstance(value, (str, int, float, bool, type(None)))


def _parameters(where: str, data: object) -> dict[str, Any]:
    r = _Reader(where, "parameters", data)
    parameters = {}
    for key, value in r.data.items():
        if isinstance(value, dict) and set(value) == {"string_value"}:
            value = value["string_value"]
        option = OPTIONS.get(key)
        if option is None:
            expected = None if _is_scalar(value) else "a string, a number, true, false or null"
        else:
            expected = option.wrong(value)
        if expected is not None:
            raise r.error(key, expected, value)
        parameters[key] = value if option is None else option.value_of(value)
    return parameters


def _policy(where: str, data: object) -> dict[str, Any]:
    r = _Reader(where, "version_policy", data)
    if set(r.data) == {"latest"} and r.data["latest"] in ({}, {"num_versions": 1}):
        return {"latest": {"num_versions": 1}}
    if set(r.data) == {"specific"}:
        inner = _Reader(where, "version_policy.specific", r.data["specific"])
        versions = inner.wholes("versions", 1, 1 << 62, ())
        if len(versions) == 1:
            return {"specific": {"versions": list(versions)}}
    expected = '{"latest": {"num_versions": 1}} or {"specific": {"versions": [N]}}'
    raise r.error("", f"{expected}; one version and, while it is taken over, another one serve", data)


KEYS = (
    "name, backend, max_batch_size, dynamic_batching, instance_group, parameters, version_policy, input, "
    "output, rollout"
)


def config_of(data: object, where: str, name: str) -> ModelConfig:
    """The config of an object as config.json holds it.

    Args:
        where: the file, for messages.
        name: the model's folder, which `name` must be where it is given.

    Raises: ConfigError.
    """
    r = _Reader(where, "", data)
    declared = r.take("name", name)
    if declared != name:
        raise r.error("name", f"the folder's name, {name!r},", declared)
    backend = r.take("backend", "")
    if backend not in ("", *BACKENDS):
        raise r.error("backend", f"one of {', '.join(BACKENDS)}", backend)
    most = r.whole("max_batch_size", 0, 1 << 20, 0)
    batching = r.take("dynamic_batching")
    if batching is not None and most < 1:
        raise ConfigError(f"{where}: dynamic_batching needs a max_batch_size of at least 1, got {most}")
    config = ModelConfig(
        name=name,
        backend=backend,
        max_batch_size=most,
        dynamic_batching=None if batching is None else _batching(where, batching, most),
        instances=_instances(where, r.take("instance_group", [{}])),
        parameters=_parameters(where, r.take("parameters", {})),
        version_policy=_policy(where, r.take("version_policy", {"latest": {}})),
        input=_tensors(where, "input", r.take("input", ())),
        output=_tensors(where, "output", r.take("output", ())),
        rollout=_rollout(where, r.take("rollout", {})),
    )
    r.end((KEYS,))
    return config


def read_config(folder: Path, name: str | None = None) -> ModelConfig:
    """The config of a model's folder.

    Args:
        folder: with the file, or without one.
        name: of the model; None: the folder's.

    Raises: ConfigError, also for a file that is no JSON; OSError.
    """
    path, name = folder / CONFIG, name or folder.name
    if not path.exists():
        return ModelConfig(name)
    if path.stat().st_size > MOST_BYTES:
        raise ConfigError(f"{path}: more than {MOST_BYTES} bytes")
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no JSON: {error}") from None
    return config_of(data, str(path), name)
