"""A weight divided by its largest singular value ("Spectral Normalization for Generative Adversarial
Networks", section 2.1 and algorithm 1), computed before every forward."""

from __future__ import annotations

from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from .. import functional as F
from ..modules.conv import _ConvTransposeNd
from ..modules.module import Module
from ..parameter import Parameter
from .weight_norm import remove_hook

__all__ = ["SpectralNorm", "remove_spectral_norm", "spectral_norm"]


def default_dim(module: Module) -> int:
    """The dim of a layer's weight that counts its outputs.

    It is 1 for transposed convolutions, whose weights have inputs first, and 0 for all others.
    """
    return 1 if isinstance(module, _ConvTransposeNd) else 0


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """The weight with `dim` first and all others as one.

    Args:
        weight: a parameter [*].
        dim: counts the matrix's rows.
    """
    if dim != 0:
        weight = weight.permute(dim, *[d for d in range(weight.dim()) if d != dim])
    return weight.flatten(1)


class SpectralNorm:
    """The hook that computes a module's weight `name` from `name`_orig. Estimates of the first singular
    vectors, `name`_u and `name`_v, are made better by each forward in training."""

    _version = 1

    def __init__(
        self, name: str = "weight", n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.name, self.dim, self.n_power_iterations, self.eps = name, dim, n_power_iterations, eps

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        """The weight; in place on the two vectors if `do_power_iteration`.

        Args:
            module: the one that holds the tensors.
            do_power_iteration: whether the estimates of the singular vectors are refined first.
        """
        weight, u, v = (getattr(module, self.name + end) for end in ("_orig", "_u", "_v"))
        matrix = as_matrix(weight, self.dim)
        if do_power_iteration:
            with wt.no_grad():
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(wt.mv(matrix.t(), u), dim=0, eps=self.eps))
                    u.copy_(F.normalize(wt.mv(matrix, v), dim=0, eps=self.eps))
            u, v = u.clone(), v.clone()  # the next forward writes to the buffers
        return weight / wt.dot(u, wt.mv(matrix, v))

    @staticmethod
    def apply(module: Module, name: str, n_power_iterations: int, dim: int, eps: float) -> SpectralNorm:
        """Draws the vectors and adds the hook.

        Args:
            module: changed in place.
            name: of the parameter.
            n_power_iterations: refinements in each forward.
            dim: counts the matrix's rows.
            eps: the least norm that is divided by.

        Raises: RuntimeError where the parameter has such a hook.
        """
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm) and hook.name == name:
                raise RuntimeError(f"Cannot register two spectral_norm hooks on the same parameter {name}")
        norm = SpectralNorm(name, n_power_iterations, dim, eps)
        weight = module._parameters[name]
        if weight is None:
            raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{name}` is None")
        matrix = as_matrix(weight.detach(), dim)
        u, v = (F.normalize(matrix.new_empty(n).normal_(0, 1), dim=0, eps=eps) for n in matrix.shape)
        delattr(module, name)
        module.register_parameter(f"{name}_orig", weight)
        # A plain attribute: what computes it, not a parameter, is what is trained and saved.
        setattr(module, name, weight.data)
        module.register_buffer(f"{name}_u", u)
        module.register_buffer(f"{name}_v", v)
        module.register_forward_pre_hook(norm)
        module._register_state_dict_hook(_SaveVersion(name))
        return norm

    def remove(self, module: Module) -> None:
        """Makes the weight a parameter again.

        Args:
            module: the one that was given to `apply`.
        """
        with wt.no_grad():
            weight = self.compute_weight(module, do_power_iteration=False)
        for end in ("", "_u", "_v", "_orig"):
            delattr(module, self.name + end)
        module.register_parameter(self.name, Parameter(weight.detach()))
        for key, hook in module._state_dict_hooks.items():
            if isinstance(hook, _SaveVersion) and hook.name == self.name:
                del module._state_dict_hooks[key]
                break

    def __call__(self, module: Module, inputs: object) -> None:
        """Runs before each forward."""
        setattr(module, self.name, self.compute_weight(module, do_power_iteration=module.training))


class _SaveVersion:
    """Writes the hook's version into the metadata of a state_dict, as PyTorch reads it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self, module: Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any]
    ) -> None:
        versions = local_metadata.setdefault("spectral_norm", {})
        if f"{self.name}.version" in versions:
            raise RuntimeError(f"Unexpected key in metadata['spectral_norm']: {self.name}.version")
        versions[f"{self.name}.version"] = SpectralNorm._version


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Any:
    """Divides the parameter `name`, as a matrix with `dim` first, by its largest singular value, estimated
    by `n_power_iterations` steps at each forward. `parametrizations.spectral_norm` starts better."""
    SpectralNorm.apply(module, name, n_power_iterations, default_dim(module) if dim is None else dim, eps)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Any:
    """Makes the parameter a plain one again, with its present value.

    Args:
        module: changed in place and returned.
        name: of the parameter.

    Raises: ValueError where it has no such hook.
    """
    return remove_hook(module, SpectralNorm, name, "spectral_norm")
