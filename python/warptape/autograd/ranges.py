"""Ranges that programs mark, and whether anyone records them: all that a program without a profiler needs."""

from __future__ import annotations

import contextlib
from typing import Any

from .. import _C

running: Any = None  # the profile or emit_nvtx that records


def is_recording() -> bool:
    """Whether events are recorded now."""
    return running is not None


class record_function(contextlib.ContextDecorator):
    """A range by name, as a context or as a decorator; it costs next to nothing while nobody records.

    Args:
        name: what the event is called.
        args: text about this use of the range. As in PyTorch, events are summed up by the name alone, and no
            trace has it.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args
        self._event = 0

    def _recreate_cm(self) -> record_function:
        return record_function(self.name, self.args)

    def __enter__(self) -> record_function:
        if running is not None:
            for value, name in ((self.name, "name"), (self.args, "args")):
                if not isinstance(value, str) and (name == "name" or value is not None):
                    raise RuntimeError(
                        f"record_function: expected {name} of type str, got {type(value).__name__}"
                    )
            self._event = _C._profiler_begin(self.name)
        return self

    def __exit__(self, *error: object) -> None:
        event, self._event = self._event, 0
        if event:
            _C._profiler_end(event)
