"""The module that torch.compile makes of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core import offered
from ..nn import Module


class OptimizedModule(Module):
    """A module whose calls are compiled. What it does not have itself it takes from `_orig_mod`.

    Its state_dict has the module's entries under names that begin with "_orig_mod.", as in PyTorch.
    """

    def __init__(self, module: Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self._orig_mod = module
        self.__dict__["forward"] = call
        self.__dict__["explain"] = call.explain  # type: ignore[attr-defined]
        self.__dict__["training"] = module.training

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_orig_mod":
            super().__setattr__(name, value)
        elif name == "training":
            self.__dict__["training"] = value
            if "_orig_mod" in self._modules:
                self._orig_mod.training = value
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __len__(self) -> int:
        if hasattr(self._orig_mod, "__len__"):
            return len(self._orig_mod)
        raise TypeError(f"{type(self._orig_mod).__name__} does not support len()")

    def __bool__(self) -> bool:
        return True

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    def __reduce__(self) -> Any:
        return offered("compile"), (self._orig_mod,)
