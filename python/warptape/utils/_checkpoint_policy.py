"""What a selective checkpoint, its policy and a region share."""

from __future__ import annotations

import enum
import threading
from typing import Any


class CheckpointPolicy(enum.Enum):
    """What a policy of `create_selective_checkpoint_contexts` answers for an op."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_CPU_OFFLOAD = 4  # is kept, where it is


class SelectiveCheckpointContext:
    """The first argument of a policy: `is_recompute` says which of the two runs asks."""

    def __init__(self, *, is_recompute: bool) -> None:
        self.is_recompute = is_recompute


class _Entered(threading.local):
    """The selective checkpoint of this thread that was entered last, for the region that it is for."""

    first_run: Any = None


entered = _Entered()
