"""A weight as length times direction ("Weight Normalization", section 2), computed before every forward."""

from __future__ import annotations

import warnings
from typing import Any

from warptape import core as wt

from ..modules.module import Module
from ..parameter import Parameter

__all__ = ["WeightNorm", "remove_weight_norm", "weight_norm"]


class WeightNorm:
    """The hook that computes a module's weight `name` from `name`_g and `name`_v.

    From Salimans and Kingma, "Weight Normalization" (2016): the weight is g * v / |v|.

    Args:
        name: of the parameter.
        dim: the dimension that has a g for each index; None for one g.
    """

    def __init__(self, name: str, dim: int | None) -> None:
        self.name, self.dim = name, -1 if dim is None else dim

    def compute_weight(self, module: Module) -> Any:
        """The weight.

        Args:
            module: the one that holds both tensors.
        """
        return wt._weight_norm(getattr(module, f"{self.name}_v"), getattr(module, f"{self.name}_g"), self.dim)

    @staticmethod
    def apply(module: Module, name: str, dim: int | None) -> WeightNorm:
        """Splits the weight and adds the hook.

        Args:
            module: changed in place.
            name: of the parameter.
            dim: the dimension that has a g for each index; None for one g.

        Raises: RuntimeError where the parameter has such a hook.
        """
        warnings.warn(
            "`torch.nn.utils.weight_norm` is deprecated in favor of "
            "`torch.nn.utils.parametrizations.weight_norm`.",
            FutureWarning,
            stacklevel=3,
        )
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm) and hook.name == name:
                raise RuntimeError(f"Cannot register two weight_norm hooks on the same parameter {name}")
        norm = WeightNorm(name, dim)
        weight = getattr(module, name)
        del module._parameters[name]
        norms = wt.norm_except_dim(weight.detach(), 2, norm.dim)
        module.register_parameter(f"{name}_g", Parameter(norms))
        module.register_parameter(f"{name}_v", Parameter(weight.detach()))
        setattr(module, name, norm.compute_weight(module))
        module.register_forward_pre_hook(norm)
        return norm

    def remove(self, module: Module) -> None:
        """Makes the weight a parameter again.

        Args:
            module: the one that was given to `apply`.
        """
        weight = self.compute_weight(module)
        for name in (self.name, f"{self.name}_g", f"{self.name}_v"):
            delattr(module, name)
        setattr(module, self.name, Parameter(weight.detach()))

    def __call__(self, module: Module, inputs: object) -> None:
        """Runs before each forward."""
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: Module, name: str = "weight", dim: int = 0) -> Any:
    """Makes the parameter `name` a length `name`_g along `dim`, None for one in all, times the direction of
    `name`_v. Deprecated: `parametrizations.weight_norm` does the same."""
    WeightNorm.apply(module, name, dim)
    return module


def remove_hook(module: Module, kind: type, name: str, missing: str) -> Any:
    """Takes the hook of a kind off the parameter `name`; ValueError where there is none.

    Args:
        module: changed in place and returned.
        kind: the hook's class.
        name: of the parameter.
        missing: what the error calls the hook.
    """
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, kind) and hook.name == name:  # type: ignore[attr-defined]
            hook.remove(module)  # type: ignore[attr-defined]
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"{missing} of '{name}' not found in {module}")


def remove_weight_norm(module: Module, name: str = "weight") -> Any:
    """Makes the parameter a plain one again, with its present value.

    Args:
        module: changed in place and returned.
        name: of the parameter.

    Raises: ValueError where it has no such hook.
    """
    return remove_hook(module, WeightNorm, name, "weight_norm")
