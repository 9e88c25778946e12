"""Handles that take a registered hook out again."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

__all__ = ["RemovableHandle", "add_hook"]


class RemovableHandle:
    """Returned by every ``register_*_hook``; ``remove()`` takes the hook out, also at the end of a ``with``.

    Args:
        hooks_dict: the dictionary that holds the hook. Held weakly: a handle does not keep a module alive.
        extra_dict: one dictionary, or a list of them, that keep side information under the same id.
    """

    _ids = itertools.count()
    __slots__ = ("id", "_dicts", "__weakref__")

    def __init__(self, hooks_dict: OrderedDict[int, Any], *, extra_dict: Any = None) -> None:
        extras = extra_dict if isinstance(extra_dict, list) else [] if extra_dict is None else [extra_dict]
        self.id = next(RemovableHandle._ids)
        self._dicts = [weakref.ref(d) for d in (hooks_dict, *extras)]

    def remove(self) -> None:
        """Takes the hook out. Calling it again does nothing."""
        for ref in self._dicts:
            hooks = ref()
            if hooks is not None:
                hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


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
