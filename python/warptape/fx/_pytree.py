"""What the code of a graph with nested arguments calls to take them apart."""

from __future__ import annotations

from typing import Any

from ..utils._pytree import TreeSpec, _leaves_like

__all__ = ["tree_flatten_spec"]


def tree_flatten_spec(pytree: Any, spec: TreeSpec) -> list[Any]:
    """The leaves of arguments that are nested as `spec` says. They are indexed, which can be traced again."""
    if issubclass(spec.type or type(None), dict):
        parts = [pytree[key] for key in spec.context[1]]
    elif issubclass(spec.type or type(None), list | tuple):
        parts = [pytree[i] for i in range(spec.num_children)]
    else:
        return _leaves_like(spec, pytree)
    return [
        leaf for part, child in zip(parts, spec.children_specs) for leaf in tree_flatten_spec(part, child)
    ]
