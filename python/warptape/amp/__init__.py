"""Mixed precision: ops that gain from it run in a narrow dtype, the others in float32."""

from __future__ import annotations

from typing import Any

from .. import _C
from ..autograd.grad_mode import _Mode

__all__ = ["autocast"]


class autocast(_Mode):  # noqa: N801
    """autocast(device_type, dtype=None, enabled=True): context and decorator.

    On the CPU the dtype is bfloat16 unless given (float16 is accepted).

    Raises:
        ValueError: a dtype that is not bfloat16 or float16.
    """

    def __init__(
        self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        self.device_type, self.enabled = device_type, bool(enabled)
        self.dtype = dtype or (_C.float16 if device_type == "cuda" else _C.bfloat16)
        if self.dtype not in (_C.bfloat16, _C.float16) and self.enabled:
            raise ValueError(f"autocast: expected bfloat16 or float16, got {self.dtype}")
        self._before: list[tuple[bool, Any]] = []

    def clone(self) -> autocast:
        """A fresh context with the same settings."""
        return type(self)(self.device_type, self.dtype, self.enabled)

    def __enter__(self) -> autocast:
        self._before.append(_C._set_autocast(self.enabled, self.dtype))
        return self

    def __exit__(self, *error: Any) -> None:
        _C._set_autocast(*self._before.pop())
