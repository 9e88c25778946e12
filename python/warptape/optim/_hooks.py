"""Registration of optimizer hooks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ..utils.hooks import RemovableHandle

__all__ = ["add_hook"]


def add_hook(hooks: OrderedDict[int, Callable], hook: Callable, *, prepend: bool = False) -> RemovableHandle:
    """Puts ``hook`` into ``hooks`` under a fresh id and returns the handle that removes it.

    Args:
        prepend: run it before the hooks that are there already.

    Raises:
        TypeError: ``hook`` cannot be called.
    """
    if not callable(hook):
        raise TypeError(f"register hook: expected a callable, got {type(hook).__name__}")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle
