"""Activations, elementwise unless they take `dim`.

Selections are written with `where` so that the gradient at a kink is the one PyTorch gives, and so that NaN
stays NaN.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import warptape
from warptape import _C, Tensor
from warptape.amp.autocast_mode import casts_inputs

__all__ = [
    "celu",
    "glu",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "logsigmoid",
    "mish",
    "prelu",
    "relu6",
    "rrelu",
    "selu",
    "sigmoid",
    "softmin",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
]

# Beyond this softplus(x) is x in float64, too: exp(-40) is below its rounding.
_EXACT_SOFTPLUS = 40.0


def _with_inplace(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Adds PyTorch's `inplace` argument, last: the result is written back over the input."""

    signature = inspect.signature(function)
    last = inspect.Parameter(
        "inplace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation="bool"
    )
    before = len(signature.parameters) - 1  # arguments between input and inplace

    @functools.wraps(function)
    def wrapped(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        inplace = args[before] if len(args) > before else kwargs.pop("inplace", False)
        if not inplace:
            return function(input, *args[:before], **kwargs)
        # The tape may keep the clone; the input changes.
        return input.copy_(function(input.clone(), *args[:before], **kwargs))

    wrapped.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), last]
    )
    return wrapped


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return input.sigmoid()


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return input.tanh()


@_with_inplace
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x, kept between `min_val` and `max_val`."""
    if min_val > max_val:
        raise ValueError(
            f"hardtanh: expected min_val <= max_val, got min_val={min_val} and max_val={max_val}"
        )
    return warptape.where(input <= min_val, min_val, warptape.where(input >= max_val, max_val, input))


@_with_inplace
def relu6(input: Tensor) -> Tensor:
    """x, kept between 0 and 6."""
    return hardtanh(input, 0.0, 6.0)


@_with_inplace
def hardsigmoid(input: Tensor) -> Tensor:
    """relu6(x + 3) / 6."""
    return hardtanh(input + 3, 0.0, 6.0) / 6


@_with_inplace
def hardswish(input: Tensor) -> Tensor:
    """x * relu6(x + 3) / 6."""
    return input * hardtanh(input + 3, 0.0, 6.0) / 6


@_with_inplace
def selu(input: Tensor) -> Tensor:
    """scale * elu(x, alpha) with the two constants of Klambauer et al. 2017."""
    return 1.0507009873554804934193349852946 * _C._nn.elu(input, 1.6732632423543772848170429916717)


@_with_inplace
def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """x above zero, alpha * (exp(x / alpha) - 1) below."""
    if alpha == 0:
        raise RuntimeError("celu: expected alpha other than 0, got 0; use relu for its limit")
    return alpha * _C._nn.elu(input / alpha)


@_with_inplace
def mish(input: Tensor) -> Tensor:
    """x * tanh(softplus(x))."""
    return input * warptape.tanh(_C._nn.softplus(input))


@_with_inplace
def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """x above `threshold`, `value` elsewhere."""
    return warptape.where(input <= threshold, value, input)


@_with_inplace
def rrelu(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    """x above zero; below, x times a slope drawn for each element in training, and times their mean
    otherwise."""
    if lower > upper:
        raise RuntimeError(f"rrelu: expected lower <= upper, got lower={lower} and upper={upper}")
    if not training:
        return _C._nn.leaky_relu(input, (lower + upper) / 2)
    slope = warptape.empty_like(input).uniform_(lower, upper)
    return warptape.where(input <= 0, input * slope, input)


@casts_inputs(None)
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """[N, C, *] and a weight of one element or C -> x above zero, weight * x below."""
    if weight.numel() != 1:
        channels = input.shape[1] if input.dim() > 1 else 1
        if weight.dim() != 1 or weight.numel() != channels:
            raise RuntimeError(
                f"prelu: expected weight of 1 or {channels} elements (the input's channels, dim 1), got "
                f"{tuple(weight.shape)}"
            )
        weight = weight.reshape([1, channels] + [1] * (input.dim() - 2))
    return warptape.where(input > 0, input, weight * input)


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x))."""
    return -_C._nn.softplus(-input, 1.0, _EXACT_SOFTPLUS)


def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return input / (input.abs() + 1)


def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    return input - input.tanh()


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards zero by `lambd`, zero where it would cross."""
    if lambd < 0:
        raise RuntimeError(f"softshrink: expected lambd of at least 0, got {lambd}")
    inside = warptape.where(input < -lambd, input + lambd, input * 0)
    return warptape.where(input > lambd, input - lambd, inside)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x, zero between -lambd and lambd."""
    return warptape.where((input >= -lambd) & (input <= lambd), 0.0, input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along `dim` times the sigmoid of the second."""
    if input.dim() == 0:
        raise RuntimeError("glu does not support 0-dimensional tensors")
    size = input.shape[dim]
    if size % 2:
        raise RuntimeError(f"glu: Halving dimension must be even, but dimension {dim} is size {size}")
    value, gate = input.chunk(2, dim)
    return value * gate.sigmoid()


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """softmax(-x) along `dim`."""
    return _C._nn.softmax(-input, dim, _stacklevel, dtype)


def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A sample of the categories along `dim`, relaxed to a softmax at temperature `tau` (Jang et al. 2017).

    With `hard` the value is one-hot and the gradient that of the relaxed sample. `eps` has no effect.
    """
    noise = -(-warptape.rand_like(logits).log()).log()
    soft = ((logits + noise) / tau).softmax(dim)
    if not hard:
        return soft
    one_hot = warptape.zeros_like(soft).scatter_(dim, soft.argmax(dim, keepdim=True), 1.0)
    return one_hot - soft.detach() + soft
