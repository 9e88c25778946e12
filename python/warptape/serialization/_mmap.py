"""How load(mmap=True) maps files: with writes that stay in memory, or that reach the file."""

from __future__ import annotations

import mmap
from typing import Any

_flags = mmap.MAP_PRIVATE


def get_default_mmap_options() -> int:
    """mmap.MAP_PRIVATE, or mmap.MAP_SHARED: what load(mmap=True) maps files with."""
    return _flags


class set_default_mmap_options:
    """Sets what load(mmap=True) maps files with; as a context manager, within its block.

    Args:
        flags: mmap.MAP_PRIVATE, the default: what is written to a tensor stays in memory. mmap.MAP_SHARED: it
            reaches the file, which must be writable; checksums of tensors are not looked at then.

    Raises:
        ValueError: other flags.

    >>> import mmap
    >>> with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
    ...     torch.serialization.get_default_mmap_options() == mmap.MAP_SHARED
    True
    """

    def __init__(self, flags: int) -> None:
        global _flags
        if flags not in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
            raise ValueError(
                "Invalid argument in function set_default_mmap_options, expected mmap.MAP_PRIVATE or "
                f"mmap.MAP_SHARED, but got {flags}"
            )
        self.prev = _flags
        _flags = flags

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: Any) -> None:
        global _flags
        _flags = self.prev
