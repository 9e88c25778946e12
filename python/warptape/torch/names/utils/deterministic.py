"""torch.utils.deterministic: what `empty` and the like hold while deterministic algorithms are asked for.

`fill_uninitialized_memory`, True by default: NaN, the largest integer, or True, where
`torch.use_deterministic_algorithms(True)` was called; else whatever the memory holds.
"""

from __future__ import annotations

import sys
from types import ModuleType

from warptape import _C


class _Deterministic(ModuleType):
    @property
    def fill_uninitialized_memory(self) -> bool:
        """Whether `empty` and the like are filled."""
        return _C._get_deterministic_fill_uninitialized_memory()

    @fill_uninitialized_memory.setter
    def fill_uninitialized_memory(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise RuntimeError(f"fill_uninitialized_memory: expected a bool, but got {type(mode).__name__}")
        _C._set_deterministic_fill_uninitialized_memory(mode)


sys.modules[__name__].__class__ = _Deterministic
