"""Layers that normalise over dimensions of one sample. Legend: N batch, C channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor

from .. import functional as F
from .. import init
from ..parameter import Parameter
from ._sizes import each
from .module import Module

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = ["CrossMapLRN2d", "GroupNorm", "LayerNorm", "LocalResponseNorm", "RMSNorm"]


class AffineNorm(Module):
    """One with a weight and a bias, which start as ones and zeros; each may be None."""

    def _own(self, shape: Any, weight: bool, bias: bool, device: Device, dtype: wt.dtype | None) -> None:
        for name, wanted in (("weight", weight), ("bias", weight and bias)):
            empty = wt.empty(shape, device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, None if empty is None else Parameter(empty))

    def reset_parameters(self) -> None:
        """Sets weight to ones and bias to zeros.

        With these values the layer only normalises.
        """
        if self.weight is not None:
            init.ones_(self.weight)
        if getattr(self, "bias", None) is not None:
            init.zeros_(self.bias)


class _ShapeNorm(AffineNorm):
    """One that works over the last dimensions, `normalized_shape`; weight and bias have that shape."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        """Weights of 1, biases of 0.

        Args:
            normalized_shape: the sizes of the last dimensions, over which it works; one number for the last.
            eps: added before the root.
            elementwise_affine: whether a trained weight and bias follow.
            bias: whether the bias is there, if they do.

        Args:
            device, dtype: of weight and bias.
        """
        super().__init__()
        self.normalized_shape = each(normalized_shape, 1)
        self.eps: Any = eps  # None in RMSNorm alone
        self.elementwise_affine = elementwise_affine
        self._own(self.normalized_shape, elementwise_affine, bias, device, dtype)
        self.reset_parameters()


class LayerNorm(_ShapeNorm):
    """[*, *normalized_shape] -> the same: mean 0 and variance 1 over these, times weight plus bias.

    From Ba et al., "Layer Normalization" (2016).

    >>> nn.LayerNorm(2)(torch.tensor([[1.0, 3.0]])).detach()
    tensor([[-1.0000,  1.0000]])
    """

    def forward(self, input: Tensor) -> Tensor:
        own = self._parameters  # Note [own parameters] in module.py
        try:
            weight, bias = own["weight"], own["bias"]
        except KeyError:
            weight, bias = self.weight, self.bias
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)

    def extra_repr(self) -> str:
        text = f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return text + f", bias={self.bias is not None}"


class RMSNorm(_ShapeNorm):
    """[*, *normalized_shape] -> the same, divided by its root mean square over those dimensions, times
    weight.

    `eps` None stands for the machine epsilon of float32, of float64 for float64 (Zhang and Sennrich 2019).

    >>> nn.RMSNorm(2)(torch.tensor([[3.0, 3.0]])).detach()
    tensor([[1., 1.]])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, False, device, dtype)
        del self.bias

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(AffineNorm):
    """[N, C, *] -> the same: mean 0 and variance 1 over each of `num_groups` groups of channels of each
    sample.

    From Wu and He, "Group Normalization" (2018). The result does not depend on the batch's size, and is the
    same in training and eval mode.

    Args:
        num_groups: into so many groups the channels are divided.
        num_channels: C, a multiple of num_groups.
        eps: added to the variance before its root.
        affine: whether a trained weight and bias of each channel follow.
        device, dtype: of weight and bias.
        bias: whether the bias is there, if `affine`.

    Raises: ValueError for channels that the groups do not divide.

    >>> nn.GroupNorm(2, 4)(torch.ones(1, 4, 5)).shape
    torch.Size([1, 4, 5])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups != 0:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._own(num_channels, affine, bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """[N, C, *]: x / (k + alpha * mean of x^2 over `size` neighbouring channels)^beta.

    Strong responses damp the channels beside them (Krizhevsky et al., "ImageNet Classification", 2012,
    section 3.3).

    Args:
        size: how many neighbouring channels the mean covers.
        alpha, beta, k: the factor, the exponent and the constant of the formula.

    >>> nn.LocalResponseNorm(2, alpha=1.0)(torch.ones(1, 2, 1)).flatten()
    tensor([0.7378, 0.5946])
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(LocalResponseNorm):
    """[N, C, H, W]: LocalResponseNorm under the name it had for images.

    Args:
        size: how many neighbouring channels the mean covers.
        alpha, beta, k: the factor, the exponent and the constant of the formula.

    >>> nn.CrossMapLRN2d(2)(torch.ones(1, 2, 3, 3)).shape
    torch.Size([1, 2, 3, 3])
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__(size, alpha, beta, k)
