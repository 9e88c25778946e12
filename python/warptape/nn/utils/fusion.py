"""A batch norm in eval mode as part of the layer before it: y = (W x + b - mean) / std * w + c is linear."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor

from ..parameter import Parameter

if TYPE_CHECKING:
    from ..modules.module import Module

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]


def _fused(layer: Module, bn: Module, *more: Any) -> Any:
    if layer.training or bn.training:
        raise AssertionError("Fusion only for eval!")
    if bn.running_mean is None or bn.running_var is None:
        raise AssertionError("Fusion needs the running statistics of the batch norm")
    fused = copy.deepcopy(layer)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, *more
    )
    return fused


def fuse_conv_bn_eval(conv: Module, bn: Module, transpose: bool = False) -> Any:
    """A copy of the convolution (`transpose`: a transposed one) that does the batch norm's work as well.

    Both must be in eval mode: the running statistics become part of the weights.

    Args:
        conv: a convolution.
        bn: the batch norm of its outputs.
        transpose: whether `conv` is a transposed convolution.

    >>> conv, norm = nn.Conv2d(3, 4, 1).eval(), nn.BatchNorm2d(4).eval()
    >>> fused, x = nn.utils.fuse_conv_bn_eval(conv, norm), torch.ones(1, 3, 2, 2)
    >>> torch.allclose(fused(x), norm(conv(x)), atol=1e-6)
    True
    """
    return _fused(conv, bn, transpose)


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a convolution with the batch norm in it; channels out are dim 0 (1 if
    `transpose`)."""
    scale = (bn_rv + bn_eps).rsqrt() * (1 if bn_w is None else bn_w)
    shape = [1] * conv_w.dim()
    shape[1 if transpose else 0] = -1
    weight = (conv_w * scale.reshape(shape)).to(conv_w.dtype)
    bias = (wt.zeros_like(bn_rm) if conv_b is None else conv_b) - bn_rm
    bias = bias * scale + (0 if bn_b is None else bn_b)
    kept = conv_w.requires_grad, conv_w.requires_grad if conv_b is None else conv_b.requires_grad
    dtype = conv_w.dtype if conv_b is None else conv_b.dtype
    return Parameter(weight.detach(), kept[0]), Parameter(bias.detach().to(dtype), kept[1])


def fuse_linear_bn_eval(linear: Module, bn: Module) -> Any:
    """A copy of the linear layer that does the work of the batch norm of its outputs as well.

    Both must be in eval mode.

    Args:
        linear: a linear layer.
        bn: a batch norm of as many features as it has outputs, or of one.

    Raises: AssertionError for another number of features.
    """
    if linear.out_features != bn.num_features and bn.num_features != 1:
        raise AssertionError("To fuse, linear.out_features == bn.num_features or bn.num_features == 1")
    return _fused(linear, bn)


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor,
    bn_b: Tensor,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a linear layer with the batch norm in it.

    Args:
        linear_w, linear_b: weight [out, in] and bias [out] or None.
        bn_rm, bn_rv: running mean and variance [out].
        bn_eps: the norm's eps.
        bn_w, bn_b: weight and bias of the norm [out].
    """
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)
