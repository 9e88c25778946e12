"""Layers of one bit, and of three values, trained through a straight-through estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warptape import core as wt

from .. import _C
from ..autograd import Function
from ..core import Tensor
from ..nn import Conv2d, Linear, Module
from ..nn import functional as F

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = [
    "BinaryConv2d",
    "BinaryLinear",
    "PackedBinaryConv2d",
    "PackedBinaryLinear",
    "TernaryLinear",
    "binarize",
    "pack_binary_",
    "ternarize",
]


class _Sign(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return wt.where(x < 0, -1.0, 1.0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1).to(grad.dtype)


class _Ternary(Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor, threshold: Tensor) -> Tensor:
        return wt.sign(w) * (w.abs() > threshold).to(w.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None


def binarize(x: Tensor) -> Tensor:
    """The sign of each element, 1 for 0. The gradient passes where |x| <= 1 and is 0 elsewhere.

    Courbariaux et al. 2016, "Binarized neural networks", equation 4; the straight-through estimator is of
    Bengio et al. 2013.
    """
    return _Sign.apply(x)


def ternarize(weight: Tensor) -> Tensor:
    """a t of each row of weight [out, ..]: t is the sign where |w| > d = 0.7 mean |w|, else 0; a is the mean
    of these |w|. The gradient of t passes.

    Li et al. 2016, "Ternary weight networks", equations 5 and 6, by rows.
    """
    rows = weight.detach().reshape(len(weight), -1)
    threshold = 0.7 * rows.abs().mean(1, keepdim=True)  # [out, 1]
    over = (rows.abs() > threshold).to(rows.dtype)
    scale = (rows.abs() * over).sum(1, keepdim=True) / over.sum(1, keepdim=True).clamp(min=1)
    shape = [len(weight)] + [1] * (weight.ndim - 1)
    return _Ternary.apply(weight, threshold.view(shape)) * scale.view(shape)


def _binary_weight(weight: Tensor) -> Tensor:
    """Signs times the mean of the absolute values of each output: XNOR-Net's W ~ a B, equation 6."""
    return binarize(weight) * weight.abs().mean(list(range(1, weight.ndim)), keepdim=True)


class BinaryLinear(Linear):
    """y = b(x) sign(x) (a sign(W))^T + bias: [.., in_features] -> [.., out_features].

    a is the mean |W| of each output, b(x) the mean |x| of each row unless `scale_input` is False (Rastegari
    et al. 2016, "XNOR-Net", section 3.2). W stays in float and gets gradients where |W| <= 1 (`binarize`);
    so does x: put a norm in front of the layer. `pack_binary_` makes the layer of one bit a weight.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        scale_input: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.scale_input = scale_input

    def forward(self, input: Tensor) -> Tensor:
        """[.., in_features] -> [.., out_features].

        Args:
            input: its signs are what counts.
        """
        y = F.linear(binarize(input), _binary_weight(self.weight))
        if self.scale_input:
            y = y * input.abs().mean(-1, keepdim=True)
        return y if self.bias is None else y + self.bias


class TernaryLinear(Linear):
    """y = x (a t(W))^T + bias with t in {-1, 0, 1} (`ternarize`): [.., in_features] -> [.., out_features].

    From Li and Liu, "Ternary Weight Networks" (2016).

    Args:
        in_features, out_features, bias, device, dtype: as of nn.Linear.

    >>> from warptape.ao import TernaryLinear
    >>> TernaryLinear(4, 2)(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    """

    def forward(self, input: Tensor) -> Tensor:
        """[.., in_features] -> [.., out_features].

        Args:
            input: any shape.
        """
        return F.linear(input, ternarize(self.weight), self.bias)


class BinaryConv2d(Conv2d):
    """BinaryLinear over the patches of an image: [B, C, H, W] -> [B, O, H', W'].

    Zeros of the padding have sign 1, and count in b(x), the mean |x| of a patch. Groups of one only.
    """

    def __init__(self, *args: Any, scale_input: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.groups != 1 or self.padding_mode != "zeros" or isinstance(self.padding, str):
            raise ValueError(
                "BinaryConv2d: expected groups=1, padding_mode='zeros' and padding in numbers, got "
                f"groups={self.groups}, padding_mode={self.padding_mode!r}, padding={self.padding!r}"
            )
        self.scale_input = scale_input

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, O, H', W'].

        Args:
            input: its signs are what counts.
        """
        down, right = (int(p) for p in self.padding)
        x = F.pad(input, (right, right, down, down))
        y = F.conv2d(binarize(x), _binary_weight(self.weight), None, self.stride, 0, self.dilation)
        if self.scale_input:
            ones = wt.full_like(self.weight[:1, :1], 1 / self.weight[0, 0].numel())
            mean = x.abs().mean(1, keepdim=True)
            y = y * F.conv2d(mean, ones, None, self.stride, 0, self.dilation)
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)


class PackedBinaryLinear(Module):
    """A BinaryLinear with a bit for each weight, for inference (`pack_binary_`).

    Buffers: words [ceil(out / 16), ceil(in / 32), 16] of int32, scale [out] of float32, bias.
    """

    words: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, layer: BinaryLinear | BinaryConv2d) -> None:
        super().__init__()
        self.scale_input = layer.scale_input
        self.inputs, self.outputs = layer.weight[0].numel(), len(layer.weight)
        with wt.no_grad():
            weight = layer.weight.detach().flatten(1)
            self.register_buffer("words", _C._private._pack_signs(weight))
            self.register_buffer("scale", weight.float().abs().mean(1))
            self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())

    def extra_repr(self) -> str:
        """The numbers of inputs and outputs."""
        return f"{self.inputs} bits -> {self.outputs}, scale_input={self.scale_input}"

    def forward(self, input: Tensor) -> Tensor:
        """[.., in_features] -> [.., out_features]. Under no_grad() only.

        Args:
            input: its signs are what counts.
        """
        if input.shape[-1] != self.inputs:
            raise _C.ShapeError(
                f"PackedBinaryLinear: expected {self.inputs} features in the last dim, got shape "
                f"{list(input.shape)}"
            )
        return _C._private._binary_linear(input, self.words, self.scale, self.bias, self.scale_input)


class PackedBinaryConv2d(PackedBinaryLinear):
    """A BinaryConv2d with a bit for each weight, for inference (`pack_binary_`).

    Args:
        layer: whose signs are packed.
    """

    def __init__(self, layer: BinaryConv2d) -> None:
        super().__init__(layer)
        self.kernel_size, self.stride, self.dilation = layer.kernel_size, layer.stride, layer.dilation
        self.padding: Any = layer.padding  # in numbers

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, O, H', W']. Under no_grad() only.

        Args:
            input: its signs are what counts.
        """
        sizes = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(
                input.shape[2:], self.padding, self.dilation, self.kernel_size, self.stride
            )
        ]
        patches = F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)  # [B, C K K, L]
        return super().forward(patches.transpose(1, 2)).transpose(1, 2).unflatten(2, sizes)


def pack_binary_(model: Module) -> Module:
    """Makes each BinaryLinear and BinaryConv2d of a model one of packed bits, in place; returns the model.

    Raises: ValueError for a model without one, TypeError for one that is such a layer itself.
    """
    if isinstance(model, (BinaryLinear, BinaryConv2d)):
        raise TypeError("pack_binary_: expected a model around the layer; use PackedBinaryLinear(layer)")
    packed: dict[int, Module] = {}
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()
        if isinstance(child, (BinaryLinear, BinaryConv2d))
    ]
    if not places:
        raise ValueError("pack_binary_: the model has no BinaryLinear and no BinaryConv2d")
    for parent, name, child in places:
        if id(child) not in packed:
            packed_layer = (
                PackedBinaryConv2d(child) if isinstance(child, BinaryConv2d) else PackedBinaryLinear(child)
            )
            packed[id(child)] = packed_layer
            packed[id(child)].training = child.training
        setattr(parent, name, packed[id(child)])
    return model
