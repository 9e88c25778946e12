"""Hooks that are told of what collectives gave."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from ..core import Tensor
from ..core.hooks import RemovableHandle, add_hook

collective_hooks: OrderedDict[int, Callable[[str, Sequence[Tensor]], None]] = OrderedDict()


def register_collective_hook(hook: Callable[[str, Sequence[Tensor]], None]) -> RemovableHandle:
    """Registers `hook(name, outputs)` to run when a call's results are there: at its end, or of one with
    `async_op` when it is first waited for.

    Args:
        hook: gets the call's name, such as "all_reduce", and the tensors that it has written.

    Returns:
        A handle whose `remove()` takes the hook away. Calls that a wrapper such as DistributedDataParallel
        makes within C++ are not seen.
    """
    return add_hook(collective_hooks, hook)


class Observed:
    """A Work that tells the hooks once it has been waited for."""

    def __init__(self, work: Any, op: Any, outputs: Sequence[Tensor]) -> None:
        self._work, self._op, self._outputs = work, op, outputs
        self._told = False

    def tell(self) -> None:
        """Calls the hooks unless they were."""
        if not self._told:
            self._told = True
            for hook in tuple(collective_hooks.values()):
                hook(str(self._op).rpartition(".")[2], self._outputs)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As of the Work."""
        done = self._work.wait(*args, **kwargs)
        self.tell()
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
