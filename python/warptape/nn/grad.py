"""Gradients of convolutions by name: torch.nn.grad."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warptape import autograd
from warptape import core as wt

from ..core import Tensor
from . import functional as F

__all__ = [
    "conv1d_input",
    "conv1d_weight",
    "conv2d_input",
    "conv2d_weight",
    "conv3d_input",
    "conv3d_weight",
]

_convolutions: dict[int, Callable[..., Any]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _gradient(
    dims: int, wanted: int, given: list[Tensor], grad_output: Tensor, options: tuple[Any, ...]
) -> Tensor:
    """Of the convolution with respect to one of (input, weight); it has gradients itself."""
    further = wt.is_grad_enabled() and any(t.requires_grad for t in (*given, grad_output))
    with wt.enable_grad():
        given[wanted] = given[wanted].detach().requires_grad_()
        stride, padding, dilation, groups = options
        out = _convolutions[dims](given[0], given[1], None, stride, padding, dilation, groups)
        (gradient,) = autograd.grad(out, given[wanted], grad_output, create_graph=further)
    return gradient


def _make(dims: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def input(
        input_size: Sequence[int],
        weight: Tensor,
        grad_output: Tensor,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor:
        if input_size is None:
            raise ValueError(f"grad.conv{dims}d_input requires specifying an input_size")
        x = wt.zeros(tuple(input_size), dtype=grad_output.dtype, device=grad_output.device)
        return _gradient(dims, 0, [x, weight], grad_output, (stride, padding, dilation, groups))

    def weight(
        input: Tensor,
        weight_size: Sequence[int],
        grad_output: Tensor,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> Tensor:
        w = wt.zeros(tuple(weight_size), dtype=grad_output.dtype, device=grad_output.device)
        return _gradient(dims, 1, [input, w], grad_output, (stride, padding, dilation, groups))

    for f, of in ((input, "input"), (weight, "weight")):
        f.__name__ = f.__qualname__ = f"conv{dims}d_{of}"
        f.__doc__ = (
            f"The gradient of conv{dims}d with respect to its {of}, which has the shape `{of}_size`, for the "
            "gradient of its output."
        )
    return input, weight


conv1d_input, conv1d_weight = _make(1)
conv2d_input, conv2d_weight = _make(2)
conv3d_input, conv3d_weight = _make(3)
