"""nn.DataParallel, for programs that wrap their model in it: one device computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import _C
from ..._missing import say_once
from .module import Module

__all__ = ["DataParallel", "data_parallel"]


class DataParallel(Module):
    """Calls `module`, on the first of `device_ids`; without a GPU, where it is.

    Shape: as `module`'s. Several processes, one per device, are what splits a batch here: see
    DistributedDataParallel.

    Args:
        module: moves to the first device.
        device_ids: of these the first is used; all there are if None.
        output_device, dim: accepted, without effect.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[int | Any] | None = None,
        output_device: int | Any | None = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        from ... import cuda

        self.module, self.dim = module, dim
        devices = range(cuda.device_count()) if device_ids is None else device_ids
        self.device_ids = [d if isinstance(d, int) else _C.device(d).index or 0 for d in devices]
        if not cuda.is_available():
            self.device_ids = []
        if len(self.device_ids) > 1:
            say_once(
                "DataParallel: uses the first device only; start one process per device with warptape-run"
            )
        if self.device_ids:
            self.output_device = self.device_ids[0] if output_device is None else output_device
            module.to(_C.device("cuda", self.device_ids[0]))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.device_ids:
            place = _C.device("cuda", self.device_ids[0])
            from ...core.pytree import tree_map_only

            inputs, kwargs = tree_map_only(_C.TensorBase, lambda t: t.to(place), (inputs, kwargs))
        return self.module(*inputs, **kwargs)


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[int | Any] | None = None,
    output_device: int | Any | None = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """DataParallel's forward, of a module that is not wrapped; `inputs` is a tensor or a tuple.

    Args:
        module: moves to the first of the devices.
        inputs: a tensor, or a tuple of positional arguments, which move to that device.
        device_ids: of these the first is used; all there are if None.
        output_device, dim: accepted, without effect.
        module_kwargs: arguments by name.
    """
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    return DataParallel(module, device_ids, output_device, dim)(*inputs, **module_kwargs or {})
