"""Activations as layers: each applies the function of its name; unless said otherwise, shapes stay."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor

from .. import functional as F
from ..parameter import Parameter
from .module import Module, Plain
from .multihead import MultiheadAttention

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "MultiheadAttention",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]


class _InplaceActivation(Plain):
    """One that may write its result over its input."""

    inplace: bool

    def __init__(self, inplace: bool = False) -> None:
        """An elementwise layer; the output has the input's shape.

        Args:
            inplace: whether the result is written over the input, which saves its memory.
        """
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return self._function(input, *[getattr(self, name) for name in self._shown], inplace=self.inplace)

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        return ", ".join([*([shown] if shown else []), *(["inplace=True"] if self.inplace else [])])


class ReLU(_InplaceActivation):
    """max(0, x).

    Args:
        inplace: whether the result is written over the input.

    >>> nn.ReLU()(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    _function = F.relu


class SiLU(_InplaceActivation):
    """x * sigmoid(x).

    Also called swish (Elfwing et al., "Sigmoid-Weighted Linear Units", 2017).

    Args:
        inplace: whether the result is written over the input.

    >>> nn.SiLU()(torch.tensor([-1.0, 2.0]))
    tensor([-0.2689,  1.7616])
    """

    _function = F.silu


class Mish(_InplaceActivation):
    """x * tanh(softplus(x)).

    A smooth gate that lets small negative values through (Misra, "Mish: A Self Regularized Non-Monotonic
    Activation Function", 2019).

    Args:
        inplace: whether the result is written over the input.

    >>> nn.Mish()(torch.tensor([-1.0, 2.0]))
    tensor([-0.3034,  1.9440])
    """

    _function = F.mish


class SELU(_InplaceActivation):
    """scale * elu(x, alpha) with the constants of Klambauer et al. 2017.

    alpha is 1.6733 and scale 1.0507: a deep stack of these and of LeCun-normal weights keeps mean 0 and
    variance 1 ("Self-Normalizing Neural Networks").

    Args:
        inplace: whether the result is written over the input.

    >>> nn.SELU()(torch.tensor([-1.0, 2.0]))
    tensor([-1.1113,  2.1014])
    """

    _function = F.selu


class Hardsigmoid(_InplaceActivation):
    """relu6(x + 3) / 6.

    A sigmoid of three straight pieces: 0 up to -3, 1 from 3 on.

    Args:
        inplace: whether the result is written over the input.

    >>> nn.Hardsigmoid()(torch.tensor([-4.0, 0.0, 1.5]))
    tensor([0.0000, 0.5000, 0.7500])
    """

    _function, extra_repr = F.hardsigmoid, Module.extra_repr


class Hardswish(_InplaceActivation):
    """x * relu6(x + 3) / 6.

    SiLU with the piecewise sigmoid (Howard et al., "Searching for MobileNetV3", section 5.2).

    Args:
        inplace: whether the result is written over the input.

    >>> nn.Hardswish()(torch.tensor([-4.0, 1.0, 4.0]))
    tensor([-0.0000, 0.6667, 4.0000])
    """

    _function, extra_repr = F.hardswish, Module.extra_repr


class Hardtanh(_InplaceActivation):
    """x, kept between `min_val` and `max_val`.

    Args:
        min_val, max_val: the two limits.
        inplace: whether the result is written over the input.
        min_value, max_value: deprecated names of the limits; they warn.

    Raises: AssertionError unless min_val is less than max_val.

    >>> nn.Hardtanh()(torch.tensor([-2.0, 0.5]))
    tensor([-1.0000,  0.5000])
    """

    _function: Any = F.hardtanh
    _shown: tuple[str, ...] = ("min_val", "max_val")

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(inplace)
        for old, new, value in (("min_value", "min_val", min_value), ("max_value", "max_val", max_value)):
            if value is not None:
                warnings.warn(
                    f"keyword argument `{old}` is deprecated and rename to `{new}`",
                    FutureWarning,
                    stacklevel=2,
                )
        min_val = min_val if min_value is None else min_value
        max_val = max_val if max_value is None else max_value
        if min_val >= max_val:
            raise AssertionError(
                f"max_val must be larger than min_val, got max_val={max_val}, min_val={min_val}"
            )
        self.min_val, self.max_val = min_val, max_val


class ReLU6(Hardtanh):
    """x, kept between 0 and 6.

    The limit keeps activations in a range that few bits represent well.

    Args:
        inplace: whether the result is written over the input.

    >>> nn.ReLU6()(torch.tensor([-1.0, 2.0, 9.0]))
    tensor([0., 2., 6.])
    """

    _function, _shown = F.relu6, ()

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)


class ELU(_InplaceActivation):
    """x above zero, alpha * (exp(x) - 1) below.

    From Clevert et al., "Fast and Accurate Deep Network Learning by Exponential Linear Units" (2015).

    Args:
        alpha: minus the value that large negative inputs approach.
        inplace: whether the result is written over the input.

    >>> nn.ELU()(torch.tensor([-1.0, 2.0]))
    tensor([-0.6321,  2.0000])
    """

    _function, _shown = F.elu, ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = alpha


class CELU(ELU):
    """x above zero, alpha * (exp(x / alpha) - 1) below.

    Unlike ELU its slope is continuous at zero for every alpha (Barron, "Continuously Differentiable
    Exponential Linear Units", 2017).

    Args:
        alpha: minus the value that large negative inputs approach.
        inplace: whether the result is written over the input.

    >>> nn.CELU(2.0)(torch.tensor([-1.0, 2.0]))
    tensor([-0.7869,  2.0000])
    """

    _function = F.celu


class LeakyReLU(_InplaceActivation):
    """x above zero, negative_slope * x below.

    Args:
        negative_slope: the factor of negative inputs.
        inplace: whether the result is written over the input.

    >>> nn.LeakyReLU(0.1)(torch.tensor([-1.0, 2.0]))
    tensor([-0.1000,  2.0000])
    """

    _function, _shown = F.leaky_relu, ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negative_slope = negative_slope


class RReLU(_InplaceActivation):
    """x above zero; below, x times a slope: drawn from [lower, upper] in training, else their mean.

    From Xu et al., "Empirical Evaluation of Rectified Activations in Convolutional Network" (2015).

    Args:
        lower, upper: the limits of the slope's uniform distribution.
        inplace: whether the result is written over the input.

    >>> nn.RReLU(0.1, 0.3).eval()(torch.tensor([-1.0, 2.0]))
    tensor([-0.2000,  2.0000])
    """

    _shown = ("lower", "upper")

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.lower, self.upper = lower, upper

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, inplace=self.inplace)


class Threshold(_InplaceActivation):
    """x above `threshold`, `value` elsewhere.

    Args:
        threshold: inputs must be greater than it to pass.
        value: what replaces the others.
        inplace: whether the result is written over the input.

    >>> nn.Threshold(0.5, -1.0)(torch.tensor([0.2, 0.5, 0.8]))
    tensor([-1.0000, -1.0000,  0.8000])
    """

    _function, _shown = F.threshold, ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.threshold, self.value = threshold, value


class Sigmoid(Module):
    """1 / (1 + exp(-x)).

    >>> nn.Sigmoid()(torch.tensor([0.0, 2.0]))
    tensor([0.5000, 0.8808])
    """

    def forward(self, input: Tensor) -> Tensor:
        return input.sigmoid()


class Tanh(Module):
    """The hyperbolic tangent.

    >>> nn.Tanh()(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 0.7616])
    """

    def forward(self, input: Tensor) -> Tensor:
        return input.tanh()


class LogSigmoid(Plain):
    """log(sigmoid(x)).

    Computed without overflow: for large negative x it is x.

    >>> nn.LogSigmoid()(torch.tensor([-100.0, 0.0]))
    tensor([-100.0000,   -0.6931])
    """

    _function = F.logsigmoid


class Softsign(Plain):
    """x / (1 + |x|).

    Like tanh it lies between -1 and 1, but it approaches them slowly.

    >>> nn.Softsign()(torch.tensor([-1.0, 3.0]))
    tensor([-0.5000,  0.7500])
    """

    _function = F.softsign


class Tanhshrink(Plain):
    """x - tanh(x).

    Near zero it is x^3 / 3: small values vanish.

    >>> nn.Tanhshrink()(torch.tensor([-1.0, 2.0]))
    tensor([-0.2384,  1.0360])
    """

    _function = F.tanhshrink


class GELU(Module):
    """x times the normal distribution function of x, or with approximate='tanh' the formula of that name.

    From Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).

    Args:
        approximate: 'none' for the error function, 'tanh' for x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715
            x^3))).

    >>> nn.GELU()(torch.tensor([-1.0, 2.0]))
    tensor([-0.1587,  1.9545])
    """

    _shown = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input, approximate=self.approximate)


class Softplus(Plain):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above `threshold`.

    Args:
        beta: how sharp the bend at zero is.
        threshold: the value of beta * x from which the function is taken as x, so that exp does not overflow.

    >>> nn.Softplus()(torch.tensor([-1.0, 2.0]))
    tensor([0.3133, 2.1269])
    """

    _function, _shown = F.softplus, ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold


class Hardshrink(Module):
    """x, zero between -lambd and lambd.

    Args:
        lambd: values up to this distance from zero become zero.

    >>> nn.Hardshrink()(torch.tensor([-1.0, 0.2]))
    tensor([-1.,  0.])
    """

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Softshrink(Hardshrink):
    """x moved towards zero by `lambd`, zero where it would cross.

    It is the proximal operator of lambd * |x|, as in iterations for sparse codes.

    Args:
        lambd: the distance, at least 0.

    >>> nn.Softshrink()(torch.tensor([-1.0, 0.2]))
    tensor([-0.5000,  0.0000])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.softshrink(input, self.lambd)


class PReLU(Module):
    """[N, C, *]: x above zero, weight * x below; weight has one element or one for each of C channels.

    From He et al., "Delving Deep into Rectifiers" (2015), section 2.1.

    Args:
        num_parameters: 1, or C for a slope of each channel (dimension 1 of the input).
        init: the first value of each slope.
        device, dtype: of the slopes.

    >>> nn.PReLU()(torch.tensor([-1.0, 2.0])).detach()
    tensor([-0.2500,  2.0000])
    """

    _shown = ("num_parameters",)

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(wt.empty(num_parameters, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets every slope to `init`.

        Slopes that were trained are lost.
        """
        with wt.no_grad():
            self.weight.fill_(self.init)

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)


class GLU(Plain):
    """[*, 2 n, *] -> [*, n, *]: the first half along `dim` times the sigmoid of the second.

    From Dauphin et al., "Language Modeling with Gated Convolutional Networks" (2016), section 2.

    Args:
        dim: the dimension that is halved; its size must be even.

    >>> nn.GLU()(torch.tensor([[1.0, 2.0, 0.0, 0.0]]))
    tensor([[0.5000, 1.0000]])
    """

    _function, _shown = F.glu, ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim


class _AlongDim(Module):
    """One that works along a dimension; None chooses it by the input's rank and warns."""

    _shown = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim


class Softmax(_AlongDim):
    """exp(x) / sum(exp(x)) along `dim`.

    Args:
        dim: the dimension whose values sum to 1 in the output. Without it one is chosen by rank, with a
            warning.

    >>> nn.Softmax(dim=-1)(torch.tensor([1.0, 1.0]))
    tensor([0.5000, 0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(input, self.dim, _stacklevel=5)


class LogSoftmax(_AlongDim):
    """log(softmax(x)) along `dim`.

    It is computed from differences to the largest value, so that it is finite for large inputs.

    Args:
        dim: the dimension over which the probabilities sum to 1.

    >>> nn.LogSoftmax(dim=0)(torch.tensor([0.0, 0.0]))
    tensor([-0.6931, -0.6931])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.log_softmax(input, self.dim, _stacklevel=5)


class Softmin(_AlongDim):
    """softmax(-x) along `dim`.

    The smallest value gets the largest share.

    Args:
        dim: the dimension whose values sum to 1 in the output.

    >>> nn.Softmin(dim=0)(torch.tensor([0.0, 1.0]))
    tensor([0.7311, 0.2689])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.softmin(input, self.dim, _stacklevel=5)


class Softmax2d(Module):
    """[N, C, H, W] or [C, H, W]: softmax over the channels at each place.

    Raises: ValueError for an input of other than 3 or 4 dimensions.

    >>> nn.Softmax2d()(torch.zeros(1, 4, 2, 2))[0, :, 0, 0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.dim()}D instead")
        return F.softmax(input, -3, _stacklevel=5)
