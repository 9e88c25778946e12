"""Convolutions. Legend: N batch, C channels, L length, H height, W width; *out is as the kernel leaves it."""

from __future__ import annotations

import math
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

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """What the convolutions share: [C_out, C_in / groups, *kernel] weights, their start and the padding.

    `padding` is a size, one for each dimension, 'valid' (none) or 'same' (out as in; stride 1 only).
    """

    _n: int  # dimensions of space
    _convolve: Any  # the function
    _transposed = False  # [C_in, C_out / groups, *kernel] weights then

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        """A layer of random weights [out_channels, in_channels / groups, *kernel_size].

        The output's size in a dimension of size s is (s + 2 padding - dilation (kernel_size - 1) - 1) //
        stride + 1.

        Args:
            in_channels, out_channels: numbers of channels of the input and of the output.
            kernel_size: a size for all dimensions of space, or one for each.
            stride: how far the kernel moves from one output to the next, in elements; one number or one for
                each dimension.
            padding: elements added on both sides of each dimension; or 'valid' (none) or 'same' (out as in;
                stride 1 only).
            dilation: the distance of neighbouring elements of the kernel in the input.
            groups: into so many the channels are divided; a group's outputs see its inputs alone. With
                in_channels groups each channel has kernels of its own (a depthwise convolution).
            bias: whether a trained number is added to each output channel.
            padding_mode: what is added: 'zeros', 'reflect' (mirrored, without the edge), 'replicate' (the
                edge) or 'circular' (the other side).
            device: where the parameters lie; the default device if None.
            dtype: their type; the default dtype if None.

        Raises: ValueError for channels that `groups` does not divide, for unknown modes, and for 'same' with
        a stride.
        """
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups != 0:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups != 0:
            raise ValueError("out_channels must be divisible by groups")
        if padding_mode not in _PADDING_MODES:
            raise ValueError(
                f"padding_mode must be one of {set(_PADDING_MODES)}, but got padding_mode='{padding_mode}'"
            )
        n = self._n
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = each(kernel_size, n), each(stride, n)
        self.dilation, self.output_padding = each(dilation, n), (0,) * n
        self.padding = padding if isinstance(padding, str) else each(padding, n)
        self.padding_mode = padding_mode
        self._reversed_padding_repeated_twice = self._pad_sizes()
        outer, inner = (in_channels, out_channels) if self._transposed else (out_channels, in_channels)
        shape = (outer, inner // groups, *self.kernel_size)
        self.weight = Parameter(wt.empty(shape, device=device, dtype=dtype))
        own = Parameter(wt.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", own)
        self.reset_parameters()

    def _pad_sizes(self) -> list[int]:
        """What F.pad takes: (before, after) of each dimension, the last one first."""
        if not isinstance(self.padding, str):
            return [p for p in reversed(self.padding) for _ in range(2)]
        if self.padding not in ("same", "valid"):
            raise ValueError(f"Invalid padding string {self.padding!r}, should be one of {{'valid', 'same'}}")
        if self.padding == "valid":
            return [0, 0] * self._n
        if any(s != 1 for s in self.stride):
            raise ValueError("padding='same' is not supported for strided convolutions")
        totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return [half for total in reversed(totals) for half in (total // 2, total - total // 2)]

    def reset_parameters(self) -> None:
        """Draws new values for weight, then bias: uniform within 1 / sqrt(fan_in).

        fan_in is in_channels / groups times the elements of a kernel.
        """
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            if fan_in != 0:
                bound = 1 / math.sqrt(fan_in)
                init.uniform_(self.bias, -bound, bound)

    def _padded(self, input: Tensor) -> tuple[Tensor, Any]:
        """The input and what padding is left for the convolution, which itself pads with zeros."""
        if self.padding_mode == "zeros":
            return input, self.padding
        return F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode), 0

    def forward(self, input: Tensor) -> Tensor:
        input, padding = self._padded(input)
        return self._convolve(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        zeros, ones = (0,) * self._n, (1,) * self._n
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        usual = {"padding": zeros, "dilation": ones, "output_padding": zeros, "groups": 1}
        text += "".join(f", {k}={getattr(self, k)}" for k, v in usual.items() if getattr(self, k) != v)
        text += "" if self.bias is not None else ", bias=False"
        return text + (f", padding_mode={self.padding_mode}" if self.padding_mode != "zeros" else "")


class Conv1d(_ConvNd):
    """[N, C_in, L] or [C_in, L] -> [N, C_out, Lout] or [C_out, Lout].

    The kernel moves over one dimension, as time in audio or places in a text.

    >>> nn.Conv1d(3, 6, 5)(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 6, 4])
    """

    _n, _convolve = 1, F.conv1d


class Conv2d(_ConvNd):
    """[N, C_in, H, W] or [C_in, H, W] -> [N, C_out, Hout, Wout] or [C_out, Hout, Wout].

    The kernel moves over the image; each output is the sum of kernel times window, plus bias. The arguments
    are explained at `__init__`.

    >>> nn.Conv2d(3, 6, 3, padding=1, stride=2)(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 6, 4, 4])
    """

    _n, _convolve = 2, F.conv2d


class Conv3d(_ConvNd):
    """[N, C_in, D, H, W] or [C_in, D, H, W] -> [N, C_out, *out] or [C_out, *out].

    The kernel moves over three dimensions, as frames, rows and columns of a video.

    >>> nn.Conv3d(3, 6, 3)(torch.zeros(1, 3, 4, 4, 4)).shape
    torch.Size([1, 6, 2, 2, 2])
    """

    _n, _convolve = 3, F.conv3d


class _ConvTransposeNd(_ConvNd):
    """The gradient of a convolution as a layer: a size s becomes
    (s - 1) stride - 2 padding + dilation (kernel - 1) + 1 + output_padding.

    A strided convolution maps several sizes to s; `output_padding` says which of them is meant.
    """

    _transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Sequence[int] = 1,
        padding_mode: str = "zeros",
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        """As of Conv2d: in_channels, out_channels, kernel_size, stride, padding, groups, bias, dilation.

        Args:
            output_padding: elements added to the output on one side; less than stride or dilation.
            padding_mode: 'zeros' alone.

        Args:
            in_channels, out_channels: numbers of channels of the input and of the output.
            kernel_size: a size for all dimensions of space, or one for each.
            stride: the distance in the output of what neighbouring inputs write.
            padding: elements cut off both sides of the output.
            groups: into so many the channels are divided; a group's outputs see its inputs alone.
            bias: whether a trained number is added to each output channel.
            dilation: the distance in the output of neighbouring elements of the kernel.
            device, dtype: of the parameters.

        Raises: ValueError for another padding_mode, and in forward for an `output_size` that no
        output_padding reaches.
        """
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        sizes = (in_channels, out_channels, kernel_size, stride, padding, dilation)
        super().__init__(*sizes, groups, bias, padding_mode, device, dtype)
        self.output_padding = each(output_padding, self._n)

    def _output_padding(self, input: Tensor, output_size: Sequence[int] | None) -> Any:
        """What must be added to reach `output_size`, given for the dimensions of space or for all."""
        if output_size is None:
            return self.output_padding
        wanted, sizes = list(output_size)[-self._n :], input.shape[-self._n :]
        lowest = [
            (size - 1) * s - 2 * p + d * (k - 1) + 1
            for size, s, p, d, k in zip(sizes, self.stride, self.padding, self.dilation, self.kernel_size)
        ]
        highest = [low + s - 1 for low, s in zip(lowest, self.stride)]
        if not all(low <= size <= high for low, size, high in zip(lowest, wanted, highest)):
            raise ValueError(
                f"requested an output size of {wanted}, but valid sizes range from {lowest} to {highest} "
                f"(for an input of {tuple(sizes)})"
            )
        return [size - low for size, low in zip(wanted, lowest)]

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        more = self._output_padding(input, output_size)
        return self._convolve(
            input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation
        )


class ConvTranspose1d(_ConvTransposeNd):
    """[N, C_in, L] or [C_in, L] -> [N, C_out, Lout] or [C_out, Lout].

    Used to enlarge sequences. `forward` takes `output_size` to choose among the lengths that a stride leaves
    open.

    >>> nn.ConvTranspose1d(6, 3, 2, stride=2)(torch.zeros(1, 6, 4)).shape
    torch.Size([1, 3, 8])
    """

    _n, _convolve = 1, F.conv_transpose1d


class ConvTranspose2d(_ConvTransposeNd):
    """[N, C_in, H, W] or [C_in, H, W] -> [N, C_out, Hout, Wout] or [C_out, Hout, Wout].

    Used to enlarge images, as in decoders of segmentation. `forward` takes `output_size` to choose among the
    sizes that a stride leaves open.

    >>> nn.ConvTranspose2d(6, 3, 2, stride=2)(torch.zeros(1, 6, 4, 4)).shape
    torch.Size([1, 3, 8, 8])
    """

    _n, _convolve = 2, F.conv_transpose2d


class ConvTranspose3d(_ConvTransposeNd):
    """[N, C_in, D, H, W] or [C_in, D, H, W] -> [N, C_out, *out] or [C_out, *out].

    Used to enlarge volumes. `forward` takes `output_size` to choose among the sizes that a stride leaves
    open.

    >>> nn.ConvTranspose3d(6, 3, 2, stride=2)(torch.zeros(1, 6, 4, 4, 4)).shape
    torch.Size([1, 3, 8, 8, 8])
    """

    _n, _convolve = 3, F.conv_transpose3d
