"""Layers that multiply by a matrix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor

from .. import functional as F
from .. import init
from ..parameter import Parameter
from .module import Module

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = ["Bilinear", "Identity", "Linear"]


class Identity(Module):
    """Returns its input; any arguments are accepted and ignored.

    >>> nn.Identity()(torch.tensor([1, 2]))
    tensor([1, 2])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Any:
        return input


class Linear(Module):
    """[*, in_features] -> [*, out_features], x weight^T + bias.

    weight is [out_features, in_features], bias [out_features]; both start uniform within 1 /
    sqrt(in_features).

    Args:
        in_features, out_features: sizes of the last dimension of the input and of the output.
        bias: whether the bias is there.
        device, dtype: of the parameters.

    >>> nn.Linear(2, 3)(torch.ones(4, 2)).shape
    torch.Size([4, 3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(wt.empty((out_features, in_features), device=device, dtype=dtype))
        own = Parameter(wt.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", own)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new values for weight, then bias.

        Both are uniform within 1 / sqrt(in_features).
        """
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = self.in_features
            bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        own = self._parameters  # Note [own parameters] in module.py
        try:
            weight, bias = own["weight"], own["bias"]
        except KeyError:
            weight, bias = self.weight, self.bias
        return F.linear(input, weight, bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear under the name that PyTorch gives to that of an attention's output.

    It behaves as Linear; quantizers that choose layers by type leave it out.

    Args:
        in_features, out_features: sizes of the last dimension of the input and of the output.
        bias: whether the bias is there.
        device, dtype: of the parameters.
    """


class Bilinear(Module):
    """[*, in1_features] and [*, in2_features] -> [*, out_features], x1 weight[o] x2 + bias[o].

    The output o is the sum over i and j of x1[i] weight[o, i, j] x2[j]. Parameters start uniform within 1 /
    sqrt(in1_features).

    Args:
        in1_features, in2_features: sizes of the last dimensions of the two inputs.
        out_features: size of the last dimension of the output.
        bias: whether a trained number is added to each output.
        device, dtype: of the parameters.

    Raises: ValueError unless in1_features is positive.

    >>> nn.Bilinear(2, 3, 4)(torch.ones(5, 2), torch.ones(5, 3)).shape
    torch.Size([5, 4])
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(
            wt.empty((out_features, in1_features, in2_features), device=device, dtype=dtype)
        )
        own = Parameter(wt.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", own)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new values for weight, then bias.

        Both are uniform within 1 / sqrt(in1_features).
        """
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
