"""Looking into the graph: nodes, saved-tensor hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _C
from ..utils.hooks import RemovableHandle

__all__ = ["Node", "save_on_cpu", "saved_tensors_hooks"]

Node = _C.Node


def _register(hooks: dict[int, Any], hook: Callable[..., Any]) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


class saved_tensors_hooks:  # noqa: N801
    """Inside, tensors saved for backward are kept as pack_hook(tensor) and come back by unpack_hook(packed)."""

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    def __enter__(self) -> None:
        _C._push_saved_tensor_hooks(self.pack_hook, self.unpack_hook)

    def __exit__(self, *error: Any) -> None:
        _C._pop_saved_tensor_hooks()


class save_on_cpu(saved_tensors_hooks):  # noqa: N801
    """Keeps saved tensors in host memory."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(lambda t: (t.device, t.cpu()), lambda packed: packed[1].to(packed[0]))
