"""What the code of a graph with nested arguments calls to take them apart."""

from __future__ import annotations

from typing import Any

from ..utils._pytree import TreeSpec, _leaves_like

__all__ = ["tree_flatten_spec"]


def tree_flatten_spec(pytree: Any, spec: TreeSpec) -> list[Any]:
    """The leaves of a tree that is built as `spec` says. ValueError where it is not."""
    return _leaves_like(spec, pytree)
