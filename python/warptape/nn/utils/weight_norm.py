"""A weight as length times direction ("Weight Normalization", section 2), computed before every forward."""

from __future__ import annotations

import warnings
from typing import Any

import warptape

from ..modules.module import Module
from ..parameter import Parameter

__all__ = ["WeightNorm", "remove_weight_norm", "weight_norm"]


class WeightNorm:
    """The hook that computes a module's weight `name` from `name`_g and `name`_v."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, -1 if dim is None else dim

    def compute_weight(self, module: Module) -> Any:
        """The weight."""
        return warptape._weight_norm(
            getattr(module, f"{self.name}_v"), getattr(module, f"{self.name}_g"), self.dim
        )

    @staticmethod
    def apply(module: Module, name: str, dim: int | None) -> WeightNorm:
        """Splits the weight and adds the hook."""
        warnings.warn(
            "`torch.nn.utils.weight_norm` is deprecated in favor of "
            "`torch.nn.utils.parametrizations.weight_norm`.",
            FutureWarning,
            stacklevel=3,
        )
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm) and hook.name == name:
                raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
        made = WeightNorm(name, dim)
        weight = getattr(module, name)
        del module._parameters[name]
        norms = warptape.norm_except_dim(weight.detach(), 2, made.dim)
        module.register_parameter(f"{name}_g", Parameter(norms))
        module.register_parameter(f"{name}_v", Parameter(weight.detach()))
        setattr(module, name, made.compute_weight(module))
        module.register_forward_pre_hook(made)
        return made

    def remove(self, module: Module) -> None:
        """Makes the weight a parameter again."""
        weight = self.compute_weight(module)
        for name in (self.name, f"{self.name}_g", f"{self.name}_v"):
            delattr(module, name)
        setattr(module, self.name, Parameter(weight.detach()))

    def __call__(self, module: Module, inputs: Any) -> None:
        """Runs before each forward."""
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: Any, name: str = "weight", dim: int = 0) -> Any:
    """Makes the parameter `name` a length `name`_g along `dim`, None for one in all, times the direction of
    `name`_v. Deprecated: `parametrizations.weight_norm` does the same."""
    WeightNorm.apply(module, name, dim)
    return module


def remove_hook(module: Any, kind: type, name: str, missing: str) -> Any:
    """Takes the hook of a kind off the parameter `name`; ValueError where there is none."""
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, kind) and hook.name == name:  # type: ignore[attr-defined]
            hook.remove(module)  # type: ignore[attr-defined]
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"{missing} of '{name}' not found in {module}")


def remove_weight_norm(module: Any, name: str = "weight") -> Any:
    """Makes the parameter a plain one again, with its present value."""
    return remove_hook(module, WeightNorm, name, "weight_norm")
