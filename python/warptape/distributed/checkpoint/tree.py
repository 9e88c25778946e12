"""Nested dicts, lists and tuples by dotted names, and back.

Note: a value's name in a checkpoint is its keys joined by dots. The names of containers are kept beside, with
their kind, so that the keys can be told apart again, which may have dots themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...core import Tensor

KINDS = ("dict", "int dict", "list", "tuple")


def holds_tensors(value: object) -> bool:
    """Whether a value is a tensor, or a container with one somewhere in it.

    Args:
        value: of any kind.
    """
    if isinstance(value, dict):
        return any(map(holds_tensors, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_tensors, value))
    return isinstance(value, Tensor)


def kind_of(value: object) -> str | None:
    """The kind of a container whose elements have names of their own; None for what is kept as it is.

    Args:
        value: of any kind.

    Returns: "dict", "int dict", or another name that `assembled` takes.
    """
    if isinstance(value, dict) and value:
        if all(isinstance(key, str) for key in value):
            return "dict"
        if all(type(key) is int for key in value) and holds_tensors(value):
            return "int dict"
    elif isinstance(value, list | tuple) and holds_tensors(value):
        return "list" if isinstance(value, list) else "tuple"
    return None


def items_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """The elements of a container by key.

    Args:
        value: a dict, a list or a tuple.
    """
    return value.items() if isinstance(value, dict) else enumerate(value)


def flatten(value: object, path: str, containers: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """(name, value) of all that is in a value and is no container; enters the containers.

    Args:
        value: of any kind.
        path: its name; names of elements begin with it and a dot.
        containers: gets the kind of each by path.
    """
    kind = kind_of(value)
    if kind is None:
        yield path, value
        return
    containers[path] = kind
    for key, each in items_of(value):
        yield from flatten(each, f"{path}.{key}", containers)


def assembled(kind: str, items: Mapping[str, Any]) -> Any:
    """The container of elements by the keys in their names. Raises ValueError for keys that do not fit.

    Args:
        kind: as `kind_of` gave it.
        items: elements by key, as text.
    """
    if kind == "dict":
        return dict(items)
    numbered = {int(key): value for key, value in items.items()}
    if kind == "int dict":
        return numbered
    if sorted(numbered) != list(range(len(items))):
        raise ValueError(f"a {kind} of {len(items)} elements lacks some of them")
    return (list if kind == "list" else tuple)(numbered[i] for i in range(len(items)))


def children(containers: Mapping[str, str], names: Iterable[str]) -> dict[str, list[str]]:
    """The keys in each container, of things with these names and of containers; "" stands for the root.

    Args:
        containers: kinds by path.
        names: of all values.
    """
    out: dict[str, list[str]] = {"": [], **{path: [] for path in containers}}
    for name in (*names, *containers):
        at = name.rfind(".")
        while at >= 0 and name[:at] not in containers:
            at = name.rfind(".", 0, at)
        out[name[: max(at, 0)]].append(name[at + 1 :])
    return out


def nested(containers: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dict of values by name.

    Args:
        containers: kinds by path.
        values: by name.
    """
    inside = children(containers, values)

    def build(path: str) -> Any:
        if path in values:
            return values[path]
        kind, prefix = ("dict", "") if not path else (containers[path], f"{path}.")
        return assembled(kind, {key: build(prefix + key) for key in inside[path]})

    return build("")
