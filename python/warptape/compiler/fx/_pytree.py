"""What the code of a graph with nested arguments calls to take them apart."""

from __future__ import annotations

from collections import defaultdict, namedtuple
from typing import Any

from ...core.pytree import STANDARD_DICT_TYPES, TreeSpec, _leaves_like
from .immutable_collections import immutable_dict

__all__ = ["tree_flatten_spec"]


def tree_flatten_spec(pytree: Any, spec: TreeSpec) -> list[Any]:
    """The leaves of arguments that are nested as `spec` says. They are indexed, which can be traced again."""
    if spec.type in STANDARD_DICT_TYPES or spec.type is immutable_dict:
        keys = spec.context[1] if spec.type is defaultdict else spec.context
        parts = [pytree[key] for key in keys]
    elif spec.type is namedtuple or (isinstance(spec.type, type) and issubclass(spec.type, list | tuple)):
        parts = [pytree[i] for i in range(spec.num_children)]
    else:
        return _leaves_like(spec, pytree)
    return [
        leaf for part, child in zip(parts, spec.children_specs) for leaf in tree_flatten_spec(part, child)
    ]
