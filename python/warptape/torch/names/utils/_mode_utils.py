"""What torch.utils._mode_utils has for modes that see every op, of which there are none."""

from __future__ import annotations

import contextlib
from typing import Any


def no_dispatch() -> contextlib.AbstractContextManager[None]:
    """A context without such modes: nothing changes."""
    return contextlib.nullcontext()


def all_same_mode(modes: Any) -> bool:
    """Whether all are the first of them."""
    return all(mode is modes[0] for mode in modes)
