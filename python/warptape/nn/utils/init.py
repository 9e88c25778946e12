"""Modules whose tensors are not drawn."""

from __future__ import annotations

from typing import Any

from ..modules.module import Module

__all__ = ["skip_init"]


def skip_init(module_cls: type[Module], *args: Any, **kwargs: Any) -> Any:
    """A `module_cls(*args, **kwargs)` whose parameters and buffers have memory, but no values yet.

    It saves the time of drawing values that a state dict replaces at once.

    Args:
        module_cls: a Module whose constructor takes `device`.
        *args, **kwargs: what the constructor takes.

    Raises: RuntimeError for a class that is no Module, or takes no `device`.

    >>> nn.utils.skip_init(nn.Linear, 3, 4).weight.shape
    torch.Size([4, 3])
    """
    import inspect

    if not issubclass(module_cls, Module):
        raise RuntimeError(f"Expected a Module; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError("Module must support a 'device' arg to skip initialization")
    device = kwargs.pop("device", "cpu")
    return module_cls(*args, device="meta", **kwargs).to_empty(device=device)
