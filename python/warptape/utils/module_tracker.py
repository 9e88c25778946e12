"""Which modules are running now, forward or backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .. import _C
from ..autograd.graph import register_multi_grad_hook
from ..core import Tensor
from ..core.pytree import tree_leaves
from ..nn.modules.module import Module, register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["ModuleTracker"]


def _in_backward(at_end: Callable[[], None]) -> bool:
    """Whether a backward pass is running, which then calls `at_end` when it is over."""
    try:
        _C._queue_callback(at_end)
    except RuntimeError:
        return False
    return True


class ModuleTracker:
    """Inside `with`, `parents` has the names of the modules whose forward or backward is running.

    A module that is called within no other is named by its class, and those in it by their paths: "Net",
    "Net.0.weight_norm". "Global" is always there. In backward a module is entered with the gradient of its
    outputs and left with that of its inputs: one whose inputs need no gradient stays until the pass is over.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> with torch.utils.module_tracker.ModuleTracker() as tracker:
    ...     handle = net[0].register_forward_pre_hook(lambda *_: print(sorted(tracker.parents)))
    ...     _ = net(torch.ones(1, 2))
    ['Global', 'Sequential', 'Sequential.0']
    """

    parents: set[str]

    def __init__(self) -> None:
        self.parents = {"Global"}
        self._names: weakref.WeakKeyDictionary[Module, str] = weakref.WeakKeyDictionary()
        self._handles: list[Any] = []
        self._waits_for_end = False

    @property
    def is_bw(self) -> bool:
        """Whether a backward pass is running."""
        return _in_backward(lambda: None)

    def _name(self, module: Module) -> str:
        if module not in self._names:
            self._names[module] = type(module).__name__
            for path, inner in module.named_modules():
                if path:
                    self._names[inner] = f"{self._names[module]}.{path}"
        return self._names[module]

    def _hook(self, tensors: object, change: Callable[[str], None], name: str) -> None:
        """Has `parents` changed when the gradients of those of the tensors that have one are there."""
        wanted = [t for t in tree_leaves(tensors) if isinstance(t, Tensor) and t.requires_grad]
        if wanted:
            self._handles.append(register_multi_grad_hook(wanted, lambda gradients: change(name)))

    def _enter_backward(self, name: str) -> None:
        if not self._waits_for_end:
            self._waits_for_end = _in_backward(self._end)
        self.parents.add(name)

    def _end(self) -> None:
        self.parents, self._waits_for_end = {"Global"}, False

    def _before_forward(self, module: Module, args: object) -> None:
        name = self._name(module)
        self.parents.add(name)
        self._hook(args, self._leave, name)

    def _leave(self, name: str) -> None:
        self.parents.discard(name)

    def _after_forward(self, module: Module, args: object, output: object) -> None:
        name = self._name(module)
        self.parents.discard(name)
        self._hook(output, self._enter_backward, name)

    def __enter__(self) -> ModuleTracker:
        self._handles += [
            register_module_forward_pre_hook(self._before_forward),
            register_module_forward_hook(self._after_forward),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
