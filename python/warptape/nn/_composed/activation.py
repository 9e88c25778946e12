"""Activations, elementwise unless they take `dim`.

Selections are written with `where` so that the gradient at a kink is the one PyTorch gives, and so that NaN
stays NaN.
"""

from __future__ import annotations

import warnings
from typing import Any

import warptape
from warptape import _C, Tensor
from warptape.amp.autocast_mode import casts_inputs

__all__ = [
    "glu",
    "gumbel_softmax",
    "hardshrink",
    "prelu",
    "rrelu",
    "rrelu_",
    "softmin",
    "softshrink",
    "tanhshrink",
]


def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """x above zero; below, x times a slope drawn for each element in training, and times their mean
    otherwise."""
    if lower > upper:
        raise RuntimeError(f"rrelu: expected lower <= upper, got lower={lower} and upper={upper}")
    if not training:
        return _C._nn.leaky_relu(input, (lower + upper) / 2, inplace)
    slope = warptape.empty_like(input).uniform_(lower, upper)
    slope = warptape.where(input <= 0, slope, 1.0)
    return input.mul_(slope) if inplace else input * slope


def rrelu_(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    """rrelu in place."""
    return rrelu(input, lower, upper, training, inplace=True)


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
    if dim is None:
        warnings.warn(
            "Implicit dimension choice for softmin has been deprecated. Change the call to include dim=X as "
            "an argument.",
            stacklevel=_stacklevel,
        )
        dim = 0 if input.ndim in (0, 1, 3) else 1
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
