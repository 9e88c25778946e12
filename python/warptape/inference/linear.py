"""Linear layers for inference, whose weights are packed once in the order in which the kernels read them.

A row of the output depends on its own row of the input alone: it is the same to the bit for every number of
rows in a call, every split of rows into calls and every number of threads. Layers have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import warptape
from warptape import _C, Tensor, nn
from warptape.models import Codes

_ops: Any = _C._private
_PANEL = 16  # outputs that lie together in a packed weight


class PackedLinear(nn.Module):
    """[*, in_features] -> [*, out_features], as the nn.Linear it is made from, with the weight packed.

    packed is [ceil(out / 16), in, 16] in float32 and [ceil(out / 16), ceil(in / 2), 16, 2] in bfloat16; bias
    is [out_features] or None. With `dtype` the weight is converted first; an input of another dtype is
    converted to the weight's and the result back. An argument that requires a gradient is a
    NotImplementedError, unless no gradient is recorded.
    """

    packed: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        with warptape.no_grad():
            weight = linear.weight.detach().to(dtype or linear.weight.dtype)
            self.register_buffer("packed", _ops._pack_linear_weight(weight))
            self.register_buffer("bias", _bias_of(linear, weight.dtype))

    def forward(self, input: Tensor) -> Tensor:
        """Input weight^T + bias, in the input's dtype."""
        _check_features(input, self.in_features)
        x = input if input.dtype == self.packed.dtype else input.to(self.packed.dtype)
        out: Tensor = _ops._packed_linear(x, self.packed, self.out_features, self.bias)
        return out if x is input else out.to(input.dtype)

    def extra_repr(self) -> str:
        """What repr() shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, dtype={self.packed.dtype}"
        )


class QuantLinear(nn.Module):
    """[*, in_features] -> [*, out_features], as the nn.Linear it is made from, its weight in 8 or 4 bits.

    `group` inputs (32, 64 or 128) share a scale of float16; 0 is one scale of float32 an output. A weight is
    scale * code + minimum or, where symmetric (by default in 8 bits), scale * (code - 2 ** (bits - 1)). The
    input, of float32 or bfloat16, is rounded to 8 bits by row and group, by 128 inputs where group is 0; sums
    over a group are exact, and added in the order of the groups. bias is in `dtype`, the weight's by default;
    an input of another dtype is converted to it and the result back.

    packed [ceil(out / 16), in * bits / 32, 16, 4] holds the codes, with `in` rounded up to whole groups;
    scales and minima (None where symmetric) are [ceil(out / 16), groups, 16].
    """

    packed: Tensor
    scales: Tensor
    minima: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        linear: nn.Linear,
        bits: int = 8,
        group: int = 0,
        symmetric: bool | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bits, self.group = bits, group
        self.dtype = dtype or linear.weight.dtype
        symmetric = bits == 8 if symmetric is None else symmetric
        with warptape.no_grad():
            packed, scales, *minima = _ops._quantize_linear_weight(
                linear.weight.detach(), bits, group, symmetric
            )
            self.register_buffer("packed", packed)
            self.register_buffer("scales", scales)
            self.register_buffer("minima", minima[0] if minima else None)
            self.register_buffer("bias", _bias_of(linear, self.dtype))

    @classmethod
    def from_codes(cls, matrix: Codes, bias: Tensor | None, dtype: Any) -> QuantLinear:
        """The layer of a matrix that is stored in 4 or 8 bits by groups of 32, 64 or 128, as a GGUF file or a
        GPTQ folder has it: the same codes; scales and minima are rounded to float16."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        (layer.out_features, groups), width = matrix.scales.shape, matrix.codes.shape[1]
        layer.in_features = width * 2 if matrix.half else width
        layer.bits, layer.group, layer.dtype = matrix.bits, layer.in_features // groups, dtype
        rows = -layer.out_features % _PANEL  # to whole panels

        def of_groups(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            panels = nn.functional.pad(x, (0, 0, 0, rows)).reshape(-1, _PANEL, groups)
            return panels.transpose(1, 2).to(warptape.float16).contiguous()

        layer.register_buffer("packed", _ops._pack_linear_codes(matrix.codes, matrix.bits, matrix.half))
        layer.register_buffer("scales", of_groups(matrix.scales))
        layer.register_buffer("minima", of_groups(matrix.minima))
        layer.register_buffer("bias", None if bias is None else bias.to(dtype, copy=True))
        return layer

    def forward(self, input: Tensor) -> Tensor:
        """Input weight^T + bias, in the input's dtype."""
        _check_features(input, self.in_features)
        x = input if input.dtype == self.dtype else input.to(self.dtype)
        out: Tensor = _ops._quant_linear(
            x, self.packed, self.scales, self.minima, self.out_features, self.bits, self.group, self.bias
        )
        return out if x is input else out.to(input.dtype)

    def dequantize(self) -> Tensor:
        """The weight that the codes stand for, [out_features, in_features] in float32."""
        codes = self.packed.permute(0, 2, 1, 3)  # [panels, 16, steps, 4]
        if self.bits == 4:
            codes = warptape.stack([codes & 15, codes >> 4], dim=3)
        codes = codes.reshape(self.packed.shape[0] * 16, -1).float()

        def spread(x: Tensor) -> Tensor:  # [panels, groups, 16] -> [outputs, inputs]
            rows = x.float().permute(0, 2, 1).reshape(codes.shape[0], -1)
            return rows.repeat_interleave(codes.shape[1] // max(rows.shape[1], 1), dim=1)

        if self.minima is None:
            weight = spread(self.scales) * (codes - 2 ** (self.bits - 1))
        else:
            weight = spread(self.scales) * codes + spread(self.minima)
        return weight[: self.out_features, : self.in_features].contiguous()

    def extra_repr(self) -> str:
        """What repr() shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, bits={self.bits}, group={self.group}, "
            f"symmetric={self.minima is None}, dtype={self.dtype}"
        )


def pack_(model: nn.Module, dtype: Any = None, skip: Iterable[str] = ()) -> nn.Module:
    """Replaces the nn.Linear modules in `model` by PackedLinear, one after the other, and returns the model.

    `skip` names modules that stay with all they hold, by their path ("layers.0.mlp") or a part of it
    ("lm_head"). Each original is dropped before the next is packed, so that no two copies of the model are in
    memory. A head that shares its weight with the embedding gets packed rows of its own: the embedding keeps
    the rows that it looks up. Modules of classes derived from nn.Linear stay, for their owner may read the
    weight itself.
    """
    return _replace_linears(model, lambda linear: PackedLinear(linear, dtype), skip)


def quantize_(
    model: nn.Module,
    bits: int = 8,
    group: int = 0,
    skip: Iterable[str] = ("lm_head",),
    *,
    symmetric: bool | None = None,
    dtype: Any = None,
) -> nn.Module:
    """Replaces the nn.Linear modules in `model` by QuantLinear, as pack_ does, and returns the model.

    `skip` is as in pack_. The last layer of a language model is left out by default: its errors are those of
    the result. ValueError for other bits and groups than QuantLinear's, before anything is replaced.
    """
    if bits not in (4, 8) or group not in (0, 32, 64, 128):
        raise ValueError(
            f"expected 4 or 8 bits and groups of 32, 64 or 128, or 0, got bits={bits}, group={group}"
        )
    return _replace_linears(model, lambda linear: QuantLinear(linear, bits, group, symmetric, dtype), skip)


def _check_features(input: Tensor, in_features: int) -> None:
    """Paddings of the packed weight hide small differences from the ops."""
    if input.ndim == 0 or input.shape[-1] != in_features:
        raise warptape.ShapeError(
            f"input has shape {tuple(input.shape)}, layer expects {in_features} features in its last dim"
        )


def _bias_of(linear: nn.Linear, dtype: Any) -> Tensor | None:
    """The bias in `dtype`, in memory of its own."""
    return None if linear.bias is None else linear.bias.detach().to(dtype, copy=True)


def _skipped(path: str, skip: frozenset[str]) -> bool:
    parts = path.split(".")
    return not skip.isdisjoint(parts) or any(".".join(parts[:n]) in skip for n in range(1, len(parts) + 1))


def _replace_linears(
    model: nn.Module, make: Callable[[nn.Linear], nn.Module], skip: Iterable[str]
) -> nn.Module:
    if type(model) is nn.Linear:
        raise ValueError(
            "the model is itself an nn.Linear, which has no parent to be replaced in; convert it alone"
        )
    stay = frozenset(skip)
    places: dict[int, list[tuple[nn.Module, str]]] = {}  # a layer that is used in two places stays one
    for path, parent in model.named_modules():
        for name, child in parent._modules.items():
            full = f"{path}.{name}" if path else name
            if type(child) is nn.Linear and not _skipped(full, stay):
                places.setdefault(id(child), []).append((parent, name))
    for same in places.values():
        made = make(getattr(*same[0]))  # nothing else may hold the original: it is dropped here
        for parent, name in same:
            setattr(parent, name, made)
    return model
