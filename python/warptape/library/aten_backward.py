"""Ops of torch.ops.aten that PyTorch's backward passes call, and forms of layers that keep what these need.

Each is computed by the gradient of the op that it belongs to. Shapes are those of that op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import _C
from ..autograd import grad
from ..core import Tensor, enable_grad, no_grad

_REDUCTIONS = ("none", "mean", "sum")
_f, _nn = _C._functions, _C._nn


def _gradients(op: Callable[..., Tensor], inputs: Sequence[Any], gradient: Tensor) -> list[Any]:
    """Of the op's inputs that are tensors; None for others."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in inputs]
    with enable_grad():
        out = op(*leaves)
    grads = iter(grad(out, [t for t in leaves if t is not None], gradient))
    return [None if t is None else next(grads) for t in leaves]


def threshold_backward(grad_output: Tensor, self: Tensor, threshold: Any) -> Tensor:
    """The gradient where `self` is above `threshold`, zero elsewhere."""
    return _f.where(self > threshold, grad_output, _f.zeros((), dtype=grad_output.dtype, device=self.device))


def sigmoid_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    """The gradient of sigmoid, whose result was `output`."""
    return grad_output * (1 - output) * output


def tanh_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    """The gradient of tanh, whose result was `output`."""
    return grad_output * (1 - output * output)


def gelu_backward(grad_output: Tensor, self: Tensor, *, approximate: str = "none") -> Tensor:
    """The gradient of gelu at `self`."""
    return _gradients(lambda x: _nn.gelu(x, approximate=approximate), [self], grad_output)[0]


def silu_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    """The gradient of silu at `self`."""
    return _gradients(_nn.silu, [self], grad_output)[0]


def softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, input_dtype: Any) -> Tensor:
    """The gradient of softmax, whose result was `output`."""
    product = grad_output * output
    return (product - output * product.sum(dim, keepdim=True)).to(input_dtype)


def log_softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, input_dtype: Any) -> Tensor:
    """The gradient of log_softmax, whose result was `output`."""
    return (grad_output - output.exp() * grad_output.sum(dim, keepdim=True)).to(input_dtype)


def _nll(self: Tensor, target: Tensor, weight: Any, reduction: int, ignore_index: int) -> Tensor:
    return _nn.nll_loss(
        self, target, weight=weight, ignore_index=ignore_index, reduction=_REDUCTIONS[reduction]
    )


def nll_loss_forward(
    self: Tensor, target: Tensor, weight: Any, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The loss, and the sum of the weights of the targets that count."""
    there = target != ignore_index
    if weight is None:
        total = there.sum().to(self.dtype)
    else:
        total = (weight[target.clamp(min=0)] * there).sum()
    return _nll(self, target, weight, reduction, ignore_index), total


def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """The gradient of nll_loss at `self`."""
    return _gradients(lambda x: _nll(x, target, weight, reduction, ignore_index), [self], grad_output)[0]


def mse_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Tensor:
    """The gradient of mse_loss at `self`."""
    loss = _REDUCTIONS[reduction]
    return _gradients(lambda x: _nn.mse_loss(x, target, reduction=loss), [self], grad_output)[0]


def embedding_dense_backward(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """The gradient [num_weights, dim] of the table of embedding."""
    table = grad_output.new_zeros((num_weights, grad_output.shape[-1]))
    padding = None if padding_idx < 0 else padding_idx

    def look_up(weight: Tensor) -> Tensor:
        return _nn.embedding(indices, weight, padding_idx=padding, scale_grad_by_freq=scale_grad_by_freq)

    return _gradients(look_up, [table], grad_output)[0]


def native_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """layer_norm's result, the means, and one over the standard deviations."""
    dims = tuple(range(-len(normalized_shape), 0))
    with no_grad():
        wide = input.detach()
        wide = wide.float() if wide.dtype in (_C.bfloat16, _C.float16) else wide
        mean = wide.mean(dims, keepdim=True)
        rstd = ((wide - mean).square().mean(dims, keepdim=True) + eps).rsqrt()
    return _nn.layer_norm(input, tuple(normalized_shape), weight, bias, eps), mean, rstd


def native_layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Any,
    bias: Any,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """The gradients of layer_norm's input, weight and bias, those that the mask asks for."""
    dims = tuple(range(-len(normalized_shape), 0))
    x = (input - mean) * rstd
    scaled = grad_out if weight is None else grad_out * weight
    means = scaled.mean(dims, keepdim=True), (scaled * x).mean(dims, keepdim=True)
    outer = tuple(range(input.ndim - len(normalized_shape)))

    def over_rows(t: Tensor) -> Tensor:
        return t.sum(outer) if outer else t

    return (
        ((scaled - means[0] - x * means[1]) * rstd).to(input.dtype) if output_mask[0] else None,
        over_rows(grad_out * x).to(weight.dtype) if output_mask[1] and weight is not None else None,
        over_rows(grad_out).to(bias.dtype) if output_mask[2] and bias is not None else None,
    )


def slice_backward(
    grad_output: Tensor, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Tensor:
    """Zeros of the input's sizes with the gradient in the slice."""
    out = grad_output.new_zeros(tuple(input_sizes))
    out[(slice(None),) * (dim % len(input_sizes)) + (slice(start, end, step),)] = grad_output
    return out


def select_backward(grad_output: Tensor, input_sizes: Sequence[int], dim: int, index: int) -> Tensor:
    """Zeros of the input's sizes with the gradient at the index."""
    out = grad_output.new_zeros(tuple(input_sizes))
    out[(slice(None),) * (dim % len(input_sizes)) + (index,)] = grad_output
    return out


def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """The gradients of a convolution's input, weight and bias, those that the mask asks for."""
    dims = input.ndim - 2
    name = f"conv_transpose{dims}d" if transposed else f"conv{dims}d"
    step, edge, gap, more = (
        tuple(n) * (dims if len(n) == 1 else 1) for n in (stride, padding, dilation, output_padding)
    )

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        rest = (more, groups, gap) if transposed else (gap, groups)
        return getattr(_f, name)(x, w, None, step, edge, *rest)

    first, second = _gradients(convolve, [input, weight], grad_output)
    others = [d for d in range(grad_output.ndim) if d != 1]
    return (
        first if output_mask[0] else None,
        second if output_mask[1] else None,
        grad_output.sum(others) if output_mask[2] else None,
    )


OPS: dict[str, Callable[..., Any]] = {
    "_log_softmax_backward_data": log_softmax_backward_data,
    "_softmax_backward_data": softmax_backward_data,
} | {
    op.__name__: op
    for op in (
        convolution_backward,
        embedding_dense_backward,
        gelu_backward,
        mse_loss_backward,
        native_layer_norm,
        native_layer_norm_backward,
        nll_loss_backward,
        nll_loss_forward,
        select_backward,
        sigmoid_backward,
        silu_backward,
        slice_backward,
        tanh_backward,
        threshold_backward,
    )
}
