"""Structures of trees as JSON, in the form of PyTorch's torch.utils._pytree.treespec_dumps, protocol 1."""

from __future__ import annotations

import importlib
import json
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

from .pytree import (
    SERIALIZED_TYPE_TO_PYTHON_TYPE,
    SUPPORTED_SERIALIZED_TYPES,
    LeafSpec,
    TreeSpec,
    _name_in_files,
)

_PROTOCOL = 1


def _dump_defaultdict(context: Any) -> Any:
    factory, keys = context
    return {
        "default_factory_module": factory.__module__,
        "default_factory_name": factory.__qualname__,
        "dict_context": keys,
    }


def _load_defaultdict(dumped: Any) -> Any:
    module = importlib.import_module(dumped["default_factory_module"])
    return [getattr(module, dumped["default_factory_name"]), dumped["dict_context"]]


def _dump_namedtuple(cls: type) -> str:
    if cls not in SUPPORTED_SERIALIZED_TYPES:
        raise NotImplementedError(
            f"Can't serialize TreeSpec of namedtuple class {cls} because we didn't register a "
            "serializated_type_name. Please register using `_register_namedtuple`."
        )
    return SUPPORTED_SERIALIZED_TYPES[cls].serialized_type_name


for _kind in (tuple, list, dict, OrderedDict, deque):
    _name_in_files(_kind, f"{_kind.__module__}.{_kind.__name__}", None, None)
_name_in_files(defaultdict, "collections.defaultdict", _dump_defaultdict, _load_defaultdict)
_name_in_files(
    namedtuple, "collections.namedtuple", _dump_namedtuple, SERIALIZED_TYPE_TO_PYTHON_TYPE.__getitem__
)


def _encode(spec: TreeSpec) -> dict[str, Any]:
    if spec.is_leaf():
        return {"type": None, "context": None, "children_spec": []}
    dumped = SUPPORTED_SERIALIZED_TYPES.get(spec.type)
    if dumped is None:
        raise NotImplementedError(
            f"No registered serialization name for {spec.type} found. Please update your "
            "_register_pytree_node call with a `serialized_type_name` kwarg."
        )
    if dumped.to_dumpable_context is not None:
        context = dumped.to_dumpable_context(spec.context)
    else:
        try:
            context = json.dumps(spec.context)
        except TypeError as error:
            raise TypeError(
                "Unable to serialize context. Please make the context json dump-able, or register a custom "
                "serializer using _register_pytree_node."
            ) from error
    children = [_encode(child) for child in spec.children_specs]
    return {"type": dumped.serialized_type_name, "context": context, "children_spec": children}


def _decode(found: dict[str, Any]) -> TreeSpec:
    if found["type"] is None and found["context"] is None and not found["children_spec"]:
        return LeafSpec()
    if found["type"] not in SERIALIZED_TYPE_TO_PYTHON_TYPE:
        raise NotImplementedError(
            f"Can't deserialize TreeSpec because {found['type']} is not registered; give "
            "register_pytree_node a serialized_type_name"
        )
    kind = SERIALIZED_TYPE_TO_PYTHON_TYPE[found["type"]]
    load = SUPPORTED_SERIALIZED_TYPES[kind].from_dumpable_context or json.loads
    return TreeSpec(kind, load(found["context"]), [_decode(child) for child in found["children_spec"]])


def treespec_dumps(treespec: TreeSpec, protocol: int | None = None) -> str:
    """The structure as JSON.

    Raises:
        TypeError: no TreeSpec, or a context that JSON cannot hold.
        ValueError: a protocol that there is not.
        NotImplementedError: a container that has no name in files.
    """
    if not isinstance(treespec, TreeSpec):
        raise TypeError(
            "treespec_dumps(treespec, protocol): Expected `treespec` to be instance of TreeSpec but got item "
            f"of type {type(treespec)}."
        )
    if protocol not in (None, _PROTOCOL):
        raise ValueError(f"Unknown protocol {protocol}. Available protocols: [{_PROTOCOL}]")
    return json.dumps((_PROTOCOL, _encode(treespec)))


def treespec_loads(serialized: str) -> TreeSpec:
    """The structure that treespec_dumps wrote.

    Raises:
        ValueError: another protocol.
        NotImplementedError: a container that is not registered here.
    """
    protocol, schema = json.loads(serialized)
    if protocol != _PROTOCOL:
        raise ValueError(f"Unknown protocol {protocol}. Available protocols: [{_PROTOCOL}]")
    return _decode(schema)
