"""What a hook's registration returns."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

__all__ = ["RemovableHandle"]


class RemovableHandle:
    """Removes a hook from the dictionaries it was put in; also a context manager that does so on exit.

    The dictionaries are held weakly, so a handle keeps no module alive.

    Args:
        hooks_dict: where the hook itself lives, under this handle's `id`.
        extra_dict: one dictionary, or a list of them, that marks the hook under the same `id`.
    """

    _ids = itertools.count()

    def __init__(self, hooks_dict: Any, *, extra_dict: Any = None) -> None:
        extras = (
            extra_dict
            if isinstance(extra_dict, (list, tuple))
            else []
            if extra_dict is None
            else [extra_dict]
        )
        self.id = next(self._ids)
        self._dicts = [weakref.ref(each) for each in (hooks_dict, *extras)]

    def remove(self) -> None:
        """Removes the hook; a second call does nothing."""
        for ref in self._dicts:
            hooks = ref()
            if hooks is not None:
                hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __getstate__(self) -> tuple[int, list[Any]]:
        return self.id, [ref() for ref in self._dicts]

    def __setstate__(self, state: tuple[int, list[Any]]) -> None:
        # Ids of this process go on above those that were loaded, or two hooks could share one.
        self.id, dicts = state
        RemovableHandle._ids = itertools.count(max(self.id + 1, next(RemovableHandle._ids)))
        self._dicts = [weakref.ref(each) for each in dicts if each is not None]
