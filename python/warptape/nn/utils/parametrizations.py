"""Parametrizations of weights: by length and direction, and by the largest singular value."""

from __future__ import annotations

from typing import Any

import warptape
from warptape import Tensor

from ..._missing import lookup as _lookup
from .. import functional as F
from ..modules.module import Module
from . import parametrize
from .spectral_norm import as_matrix, default_dim
from .weight_norm import norm_except_dim, scaled

__all__ = ["spectral_norm", "weight_norm"]

__getattr__ = _lookup(__name__)


def _weight_of(module: Module, name: str) -> Tensor:
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    return weight


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return scaled(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except_dim(weight, 2, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int = 0) -> Module:
    """Makes the tensor `name` a length along `dim`, None for one in all, times a direction ("Weight
    Normalization", section 2): parametrizations.`name`.original0 and .original1.

    Files with the names that `nn.utils.weight_norm` uses, `name`_g and `name`_v, can be loaded.
    """
    parametrize.register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def rename(state_dict: Any, prefix: str, *rest: Any) -> None:
        for i, end in enumerate("gv"):
            value = state_dict.pop(f"{prefix}{name}_{end}", None)
            if value is not None:
                state_dict[f"{prefix}parametrizations.{name}.original{i}"] = value

    module._register_load_state_dict_pre_hook(rename)
    return module


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        if not -weight.dim() <= dim < weight.dim():
            raise IndexError(
                f"Dimension out of range (expected to be in range of [-{weight.dim()}, {weight.dim() - 1}] "
                f"but got {dim})"
            )
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}"
            )
        self.dim, self.eps = dim % weight.dim(), eps
        if weight.dim() > 1:
            self.n_power_iterations = n_power_iterations
            matrix = as_matrix(weight.detach(), self.dim)
            for name, length in zip(("_u", "_v"), matrix.shape, strict=True):
                start = matrix.new_empty(length).normal_(0, 1)
                self.register_buffer(name, F.normalize(start, dim=0, eps=eps))
            self._power_method(matrix, 15)

    def _power_method(self, matrix: Tensor, steps: int) -> None:
        with warptape.no_grad():
            for _ in range(steps):
                self._u.copy_(F.normalize(warptape.mv(matrix, self._v), dim=0, eps=self.eps))
                self._v.copy_(F.normalize(warptape.mv(matrix.t(), self._u), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.dim() == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            self._power_method(matrix.detach(), self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()  # the next forward writes to the buffers
        return weight / warptape.dot(u, warptape.mv(matrix, v))

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Divides the tensor `name`, as a matrix with `dim` first, by its largest singular value ("Spectral
    Normalization for Generative Adversarial Networks", algorithm 1).

    The first singular vectors are buffers of the parametrization, estimated by 15 steps of power iteration
    and `n_power_iterations` more each time the tensor is read in training. A vector is divided by its norm.
    """
    weight = _weight_of(module, name)
    made = _SpectralNorm(weight, n_power_iterations, default_dim(module) if dim is None else dim, eps)
    parametrize.register_parametrization(module, name, made)
    return module
