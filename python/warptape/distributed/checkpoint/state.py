"""From models, optimizers, schedulers and generators to named tensors and objects, and back."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ... import _C
from ... import core as wt
from ...core import Tensor, offered
from ...core.interchange import raw_bytes
from ...core.placed import Placed
from ...core.protocols import Stage
from ...utils.safetensors import KIND_OF, KINDS
from ..objects import _decode, _encode
from . import tree
from .layout import CheckpointException, crc32c
from .slices import Held, held
from .stateful import Stateful


class PerRank:
    """A value that each rank has of its own; it loads on as many ranks as it was saved from.

    Args:
        value: plain data and tensors.
    """

    def __init__(self, value: object) -> None:
        self.value = value


@dataclass
class Collected:
    """What a state holds on this rank, by name; `aliases` are further names of shared parameters.

    Args:
        tensors: how this rank holds each.
        objects: plain data.
        aliases: further names by name.
        containers: kinds of containers by path.
    """

    tensors: dict[str, Held] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    containers: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: object) -> None:
        """Enters a tensor or an object. Raises ValueError for a name that is there.

        Args:
            name: in the checkpoint.
            value: a tensor as `held` describes it, or plain data.
        """
        if name in self.tensors or name in self.objects:
            raise ValueError(f"checkpoint: two things of the state are called {name!r}; rename one")
        if isinstance(value, Held):
            self.tensors[name] = value
        else:
            self.objects[name] = value

    def add_all(self, path: str, value: object, own: bool) -> None:
        """Enters what is in a value. `own`: no other rank has it, or all are known to have it alike.

        Args:
            path: the value's name.
            value: a tensor, plain data, or containers of them.
            own: whether each tensor is written by this rank.
        """
        for name, leaf in tree.flatten(value, path, self.containers):
            if not isinstance(leaf, Tensor) or (leaf.dtype not in KIND_OF and _is_whole(leaf)):
                self.add(name, leaf)
            elif own or not _is_whole(leaf):
                self.add(name, held(leaf, any_holder=True))
            else:  # of buffers, which copies may have different, the first rank's are saved
                self.add(name, held(leaf) if getattr(leaf, "_is_buffer", False) else _compared(leaf))


def mark_buffer(value: Tensor) -> None:
    """Marks a tensor as a buffer's, of which the copies of a model may have different values."""
    value._is_buffer = True  # type: ignore[attr-defined]


class Model(NamedTuple):
    """The tensors of modules by name, other things that they save, and further names of shared tensors.

    Args:
        tensors: by name.
        extras: of modules that save more than tensors.
        aliases: further names by name.
        modules: the modules themselves.
    """

    tensors: dict[str, Tensor]
    extras: dict[str, Any]
    aliases: dict[str, str]
    modules: list[Any]


def _is_whole(tensor: Tensor) -> bool:
    return not isinstance(tensor, Placed)


def encode_object(value: object) -> dict[str, Any]:
    """A value as JSON, with the bytes of the tensors in it. Raises TypeError for what is no plain data.

    Args:
        value: numbers, strings, lists, dicts, tensors and the like.
    """
    tensors: list[Tensor] = []
    tree = _encode(value, tensors, flatten=True)
    data = b"".join(_C._tensor_bytes(t) for t in tensors)
    return {"value": tree, "data": base64.b64encode(data).decode()} if data else {"value": tree}


def decode_object(entry: dict[str, Any]) -> Any:
    """What encode_object was given. Raises CheckpointException for what it did not make.

    Args:
        entry: of the manifest.
    """
    try:
        return _decode(entry["value"], memoryview(base64.b64decode(entry.get("data", ""))), [0])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointException(f"an object of the manifest is none that a save writes: {error}") from error


def modules_of(value: object) -> list[tuple[Any, dict[str, Any]]]:
    """The modules that a value of a state stands for, each with parameters that other stages share.

    Args:
        value: a module, a wrapper of one, or a stage of a pipeline.

    Returns: an empty list for anything else.
    """
    if isinstance(value, offered("Module")):
        wrapped = isinstance(value, offered("DistributedDataParallel"))
        return [(value.module if wrapped else value, {})]
    if isinstance(value, Stage):
        return [(value.submod, value.shared)]
    if isinstance(value, list | tuple) and value:
        out = [modules_of(each) for each in value]
        return [pair for each in out for pair in each] if all(out) else []
    return []


def model_of(path: str, modules: list[tuple[Any, dict[str, Any]]]) -> Model:
    """The tensors of modules by name, each once: a shared one under the name that comes first.

    Args:
        path: of the model in the state.
        modules: with the parameters that other stages share.
    """
    model, first = Model({}, {}, {}, [m for m, _ in modules]), dict[int, str]()
    for _, shared in modules:
        first.update((id(p), name) for name, p in shared.items())
    for module, _ in modules:
        for each in module.modules():
            if "_sharding" in each.__dict__:
                each.__dict__["_sharding"].group.reshard()  # of fully_shard: may be whole for the moment
        for name, value in module.state_dict(keep_vars=True).items():
            key = f"{path}.{name}"
            if not isinstance(value, Tensor):
                model.extras[key] = value
                continue
            known = f"{path}.{first.setdefault(id(value), name)}"
            if known != key:
                model.aliases[key] = known
            if model.tensors.setdefault(known, value) is not value:
                raise ValueError(f"checkpoint: two modules of {path!r} have a tensor named {name}")
    return model


def _kind(value: object) -> str:
    if isinstance(value, PerRank):
        return "rank"
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, wt.Generator):
        return "generator"
    if Stateful in type(value).__mro__:  # by its own word, whatever else it is
        return "stateful"
    if hasattr(value, "param_groups") and hasattr(value, "state"):
        return "optimizer"
    if modules_of(value):
        return "model"
    return "stateful" if hasattr(value, "state_dict") and hasattr(value, "load_state_dict") else "object"


def _leaves(
    state: Any, containers: dict[str, str], path: str = ""
) -> Iterator[tuple[str, Any, MutableMapping[str, Any], str]]:
    """(path, value, dict that has it, its key in there) of what nested dicts hold; models come first, for
    optimizers are saved by their parameters' names. Enters the dicts below the first."""
    if not isinstance(state, MutableMapping) or not all(isinstance(key, str) for key in state):
        raise TypeError(f"checkpoint: expected a dict with names as keys, got {type(state).__name__}")
    leaves: list[tuple[str, Any, MutableMapping[str, Any], str]] = []
    for key, value in state.items():
        if type(value) in (dict, OrderedDict) and value and all(isinstance(inner, str) for inner in value):
            containers[path + key] = "dict"
            leaves += _leaves(value, containers, f"{path}{key}.")
        else:
            leaves.append((path + key, value, state, key))
    yield from sorted(leaves, key=lambda leaf: _kind(leaf[1]) != "model")


def _names_of(tensors: dict[str, Tensor], names: dict[int, str]) -> None:
    names.update((id(tensor), name) for name, tensor in tensors.items())


def _named(optimizer: Any, names: dict[int, str], path: str) -> Iterator[tuple[int, str, Any]]:
    """(group, name, parameter) of an optimizer's parameters."""
    for i, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if id(p) not in names:
                raise ValueError(
                    f"checkpoint: {path} has a parameter of shape {list(p.shape)} that no model of the state "
                    "has; put the optimizer's model beside it"
                )
            yield i, names[id(p)], p


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _compared(tensor: Tensor) -> Held:
    """A tensor that all ranks should have alike, with what tells whether they do."""
    out = held(tensor, any_holder=True)
    value = tensor.detach().cpu().contiguous()  # kept as long as its bytes are used
    out.checksum = crc32c(raw_bytes(value))
    return out


def _plain(value: Any) -> Any:
    """What is kept of a leaf that is no model, optimizer or tensor."""
    kind = _kind(value)
    if kind == "generator":  # the default one is each rank's own, also where ranks are threads
        return wt.get_rng_state() if value is wt.default_generator else value.get_state()
    return value.state_dict() if kind == "stateful" else value


def collect(state: Any, rank: int, world: int) -> Collected:
    """Everything in a state, by name. Raises TypeError and ValueError for what cannot be saved.

    Args:
        state: what `save` was given.
        rank, world: this rank and the number of ranks.
    """
    out, names = Collected(), dict[int, str]()
    for path, value, _, _ in _leaves(state, out.containers):
        kind = _kind(value)
        if kind == "model":
            model = model_of(path, modules_of(value))
            out.containers[path] = "dict"
            out.aliases |= model.aliases
            for key, extra in model.extras.items():
                out.add_all(key, extra, own=world == 1)
            _names_of(model.tensors, names)
            for name, tensor in model.tensors.items():
                out.add(name, held(tensor, any_holder=isinstance(tensor, offered("Parameter"))))
        elif kind == "optimizer":
            _collect_optimizer(out, path, value, names)
        elif kind == "rank":
            out.add_all(f"{path}@{rank}/{world}", _plain(value.value), own=True)
        else:
            out.add_all(path, _plain(value), own=world == 1)
    for name, entry in out.tensors.items():
        if entry.tensor.dtype not in KIND_OF:
            raise TypeError(f"checkpoint: tensor {name} is {entry.tensor.dtype}, which cannot be saved")
    return out


def _collect_optimizer(out: Collected, path: str, optimizer: Any, names: dict[int, str]) -> None:
    out.containers |= {path: "dict", f"{path}.group": "dict", f"{path}.state": "dict"}
    out.add(f"{path}.groups", [_options(group) for group in optimizer.param_groups])
    for i, name, p in _named(optimizer, names, path):
        out.add(f"{path}.group.{name}", i)
        state = optimizer.state.get(p, {})
        if state:
            out.containers[f"{path}.state.{name}"] = "dict"
        for key, value in state.items():
            at = f"{path}.state.{name}.{key}"
            if not isinstance(value, Tensor):
                out.add(at, value)
            elif value.shape == p.shape:
                out.add(at, held(value, p, any_holder=True))
            else:  # a count, or something of which nobody knows how it is split
                out.add(at, _compared(value) if isinstance(p, Placed) else held(value))


class Wanted:
    """What a state takes from a checkpoint on this rank.

    tensors: (name there, where to); known: all names it knows of; prefixes: under which it must know all;
    finish: what hands over the rest once the tensors are there.
    Raises: CheckpointException that lists what is missing, or has another shape or dtype.
    """

    def __init__(
        self, state: Any, manifest: dict[str, Any], rank: int, world: int, partial: bool = False
    ) -> None:
        self.manifest, self.rank, self.world, self.partial = manifest, rank, world, partial
        self.inside = tree.children(
            manifest["containers"], (*manifest["tensors"], *manifest["aliases"], *manifest["objects"])
        )
        self.tensors: list[tuple[str, Held]] = []
        self.known: set[str] = set()
        self.prefixes: list[str] = []
        self.finish: list[Callable[[], None]] = []
        self.faults: list[str] = []
        self.names: dict[int, str] = {}
        for path, value, owner, key in _leaves(state, {}):
            kind = _kind(value)
            if kind == "model":
                self._want_model(path, model_of(path, modules_of(value)))
            elif kind == "optimizer":
                self._want_optimizer(path, value)
            elif kind == "tensor" and path not in manifest["objects"]:
                self._want_tensor(path, held(value))
            else:
                self._want_object(path, value, owner, key)
        if self.faults:
            more = f"; and {len(self.faults) - 8} more" if len(self.faults) > 8 else ""
            raise CheckpointException("; ".join(self.faults[:8]) + more)

    def _want_tensor(self, name: str, into: Held) -> None:
        self.known.add(name)
        source = self.manifest["aliases"].get(name, name)
        entry = self.manifest["tensors"].get(source)
        if entry is None:
            if not self.partial:
                self.faults.append(f"tensor {name} is missing there")
            return
        dtype = KINDS[entry["dtype"]][0]
        if entry["shape"] != into.shape:
            self.faults.append(f"tensor {name} is {list(entry['shape'])} there and {list(into.shape)} here")
        elif dtype != into.tensor.dtype and not (
            dtype.is_floating_point and into.tensor.dtype.is_floating_point
        ):
            self.faults.append(f"tensor {name} is {dtype} there and {into.tensor.dtype} here")
        else:
            self.tensors.append((source, into))

    def _want_model(self, path: str, model: Model) -> None:
        _names_of(model.tensors, self.names)
        self.prefixes.append(f"{path}.")
        self.known |= model.aliases.keys() | model.extras.keys()
        for name, tensor in model.tensors.items():
            self._want_tensor(name, held(tensor))
        there = self.manifest["tensors"]
        for alias, name in model.aliases.items():
            if alias in there and name in there and there[alias]["pieces"] != there[name]["pieces"]:
                sums = [[p["checksums"] for p in there[each]["pieces"]] for each in (alias, name)]
                if sums[0] != sums[1]:
                    self.faults.append(f"{alias} and {name} are one parameter here and two there")
        for key in model.extras:
            self._extra(path, key, model)

    def _extra(self, path: str, key: str, model: Model) -> None:
        value = self._value(key, None)
        inside = key[len(path) + 1 :].rpartition(".")[0]

        def give() -> None:
            for module in model.modules:
                if inside in dict(module.named_modules()):
                    module.get_submodule(inside).set_extra_state(value())

        self.finish.append(give)

    def _want_optimizer(self, path: str, optimizer: Any) -> None:
        objects, tensors = self.manifest["objects"], self.manifest["tensors"]
        named = list(_named(optimizer, self.names, path))
        groups = decode_object(objects[f"{path}.groups"]) if f"{path}.groups" in objects else None
        if groups is None or len(groups) != len(optimizer.param_groups):
            count = "no" if groups is None else len(groups)
            self.faults.append(f"{path} has {count} groups there, {len(optimizer.param_groups)} here")
            return
        self.prefixes.append(f"{path}.group.")
        keys: dict[str, list[str]] = {}  # of each parameter's state
        for at in (*tensors, *objects):
            if at.startswith(f"{path}.state."):
                name, _, key = at[len(path) + 7 :].rpartition(".")
                keys.setdefault(name, []).append(key)
        packed: dict[str, Any] = {"state": {}, "param_groups": [{**group, "params": []} for group in groups]}
        owns = getattr(optimizer, "_holds_state_of", lambda p: True)
        for index, (i, name, p) in enumerate(named):
            packed["param_groups"][i]["params"].append(index)
            member = f"{path}.group.{name}"
            self.known.add(member)
            if member not in objects or decode_object(objects[member]) != i:
                self.faults.append(f"{name} is not in group {i} of {path} there")
            elif name in keys and owns(p):
                state = {key: self._state_of(f"{path}.state.{name}.{key}", p) for key in sorted(keys[name])}
                packed["state"][index] = state
        self.finish.append(lambda: optimizer.load_state_dict(packed))

    def _state_of(self, at: str, p: Any) -> Any:
        entry = self.manifest["tensors"].get(at)
        if entry is None:
            return decode_object(self.manifest["objects"][at])
        dtype = KINDS[entry["dtype"]][0]
        if tuple(entry["shape"]) == tuple(p.shape):
            value = wt.empty_like(p.detach(), dtype=dtype)
        else:
            value = wt.empty(entry["shape"], dtype=dtype, device=p.device)
        self._want_tensor(at, held(value))
        return value

    def _is_there(self, name: str) -> bool:
        return any(name in self.manifest[part] for part in ("tensors", "aliases", "objects", "containers"))

    def _value(self, path: str, current: Any) -> Callable[[], Any]:
        """What gives the value of that name once the tensors are there. Tensors of `current` at the same
        names and of the same shapes are read in place, and a container that has tensors says what is read."""
        if path in self.manifest["objects"]:
            self.known.add(path)
            loaded = decode_object(self.manifest["objects"][path])
            return lambda: loaded
        source = self.manifest["aliases"].get(path, path)
        if source in self.manifest["tensors"]:
            entry = self.manifest["tensors"][source]
            into = held(current) if isinstance(current, Tensor) else None
            if into is None or (into.shape != entry["shape"] and _is_whole(current)):
                current = wt.empty(entry["shape"], dtype=KINDS[entry["dtype"]][0])
                into = held(current)
            self._want_tensor(path, into)
            return lambda: current
        kind = tree.kind_of(current) if tree.holds_tensors(current) else None
        if kind is not None:
            items = [(str(key), each) for key, each in tree.items_of(current)]
        elif path in self.inside:
            kind, items = self.manifest["containers"][path], [(key, None) for key in self.inside[path]]
        else:
            if not self.partial:
                self.faults.append(f"{path} is missing there")
            return lambda: current
        values = {key: self._value(f"{path}.{key}", each) for key, each in items}
        return lambda: tree.assembled(kind, {key: value() for key, value in values.items()})

    def _want_object(self, path: str, value: Any, owner: MutableMapping[str, Any], key: str) -> None:
        name, own = path, value
        if isinstance(value, PerRank):
            name, own = f"{path}@{self.rank}/{self.world}", value.value
            names = (*self.manifest["tensors"], *self.manifest["objects"], *self.manifest["containers"])
            ranks = {at[len(path) :].partition(".")[0] for at in names if at.startswith(f"{path}@")}
            if not self._is_there(name) and ranks:
                self.faults.append(
                    f"{path} is missing for {self.world} ranks; it was saved from {len(ranks)}"
                )
                return
        kind = _kind(own)
        current = own.state_dict() if kind == "stateful" else None if kind == "generator" else own
        loaded = self._value(name, current)

        def give() -> None:
            if kind == "generator" and own is wt.default_generator:
                wt.set_rng_state(loaded())
            elif kind == "generator":
                own.set_state(loaded())
            elif kind == "stateful":
                own.load_state_dict(loaded())
            elif kind == "tensor":
                own.copy_(loaded())
            elif isinstance(value, PerRank):
                value.value = loaded()
            else:
                owner[key] = loaded()

        if self._is_there(name) or tree.holds_tensors(current):
            self.finish.append(give)
