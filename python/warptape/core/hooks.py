"""What a hook's registration returns."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import Any

from .. import _C

__all__ = ["RemovableHandle", "add_hook"]


class RemovableHandle:
    """Removes a hook from the dictionaries it was put in; also a context manager that does so on exit.

    The dictionaries are held weakly, so a handle keeps no module alive.

    Args:
        hooks_dict: where the hook itself lives, under this handle's `id`.
        extra_dict: one dictionary, or a list of them, that marks the hook under the same `id`.
    """

    _ids = itertools.count()

    def __init__(self, hooks_dict: MutableMapping[int, Any], *, extra_dict: Any = None) -> None:
        extras = list(extra_dict) if isinstance(extra_dict, (list, tuple)) else [extra_dict]
        self.id = next(self._ids)
        self._refer(hooks_dict, *extras)

    def _refer(self, hooks_dict: MutableMapping[int, Any], *extras: Any) -> None:
        self.hooks_dict_ref = weakref.ref(hooks_dict)
        self.extra_dict_ref = tuple(weakref.ref(each) for each in extras if each is not None)

    def remove(self) -> None:
        """Removes the hook; a second call does nothing."""
        for ref in (self.hooks_dict_ref, *self.extra_dict_ref):
            hooks = ref()
            if hooks is not None:
                _C._module_changed()
                hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __getstate__(self) -> tuple[int, list[Any]]:
        return self.id, [ref() for ref in (self.hooks_dict_ref, *self.extra_dict_ref)]

    def __setstate__(self, state: tuple[int, list[Any]]) -> None:
        # Ids of this process go on above those that were loaded, or two hooks could share one.
        self.id, dicts = state
        RemovableHandle._ids = itertools.count(max(self.id + 1, next(RemovableHandle._ids)))
        self._refer(*(OrderedDict() if each is None else each for each in dicts))


def add_hook(
    hooks: MutableMapping[int, Any],
    hook: Callable,
    prepend: bool = False,
    marks: tuple[tuple[Any, bool], ...] = (),
) -> RemovableHandle:
    """Puts `hook` into `hooks` under a fresh id and returns the handle that removes it.

    Args:
        prepend: run it before the hooks that are there already; `hooks` is an OrderedDict then.
        marks: dictionaries that have the id, too, where their flag is set.

    Raises:
        TypeError: `hook` cannot be called.
    """
    if not callable(hook):
        raise TypeError(f"register hook: expected a callable, got {type(hook).__name__}")
    _C._module_changed()  # for calls that are replayed
    handle = RemovableHandle(hooks, extra_dict=[mark for mark, _ in marks])
    hooks[handle.id] = hook
    for mark, wanted in marks:
        if wanted:
            mark[handle.id] = True
    if prepend:
        hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
    return handle
