"""Linear layers for inference, whose weights are packed once in the order in which the kernels read them.

A row of the output depends on its own row of the input alone: it is the same to the bit for every number of
rows in a call, every split of rows into calls and every number of threads. Layers have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import warptape
from warptape import _C, Tensor, nn
from warptape.ao.quantization import Float8Tensor, QuantizedTensor
from warptape.models import Codes

_ops: Any = _C._private
_LARGEST_FLOAT8 = 448  # of float8_e4m3fn


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
    scales and minima (None where symmetric) are [ceil(out / 16), groups, 16]. order, int64 [in], says which
    input each column of the codes is for (GPTQ's desc_act: groups of inputs that are no neighbours); None:
    they are in order.
    """

    packed: Tensor
    scales: Tensor
    minima: Tensor | None
    bias: Tensor | None
    order: Tensor | None

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
        self._hold(QuantizedTensor.from_float(linear.weight, bits, group, symmetric), linear.bias)

    def _hold(self, weight: QuantizedTensor, bias: Tensor | None, order: Tensor | None = None) -> None:
        for name in ("packed", "scales", "minima"):
            self.register_buffer(name, getattr(weight, name))
        own = None if bias is None else bias.detach().to(self.dtype, copy=True)
        self.register_buffer("bias", own)
        self.register_buffer("order", order)

    @classmethod
    def from_tensor(
        cls, weight: QuantizedTensor, bias: Tensor | None, dtype: Any = None, order: Tensor | None = None
    ) -> QuantLinear:
        """The layer of a weight in few bits, whose memory it shares."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.out_features, layer.in_features = weight.shape
        layer.bits, layer.group, layer.dtype = weight.bits, weight.group, dtype or weight.dtype
        layer._hold(weight, bias, order)
        return layer

    @classmethod
    def from_codes(cls, matrix: Codes, bias: Tensor | None, dtype: Any) -> QuantLinear:
        """The layer of a matrix that is stored in 4 or 8 bits by groups of 32, 64 or 128, as a GGUF file or a
        GPTQ folder has it: the same codes; scales and minima are rounded to float16."""
        return cls.from_tensor(QuantizedTensor.from_codes(matrix, dtype), bias, order=matrix.order)

    def forward(self, input: Tensor) -> Tensor:
        """Input weight^T + bias, in the input's dtype."""
        _check_features(input, self.in_features)
        x = input if input.dtype == self.dtype else input.to(self.dtype)
        if self.order is not None:
            x = x.index_select(-1, self.order)
        out: Tensor = _ops._quant_linear(
            x, self.packed, self.scales, self.minima, self.out_features, self.bits, self.group, self.bias
        )
        return out if out.dtype == input.dtype else out.to(input.dtype)

    def dequantize(self) -> Tensor:
        """The weight that the codes stand for, [out_features, in_features] in float32."""
        held = {name: getattr(self, name) for name in ("packed", "scales", "minima", "bits", "group")}
        weight: QuantizedTensor = QuantizedTensor._of(
            (self.out_features, self.in_features), warptape.float32, **held
        )
        values = weight.dequantize()
        return values if self.order is None else values[:, self.order.argsort()].contiguous()

    def extra_repr(self) -> str:
        """What repr() shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, bits={self.bits}, group={self.group}, "
            f"symmetric={self.minima is None}, dtype={self.dtype}"
        )


class Float8Linear(nn.Module):
    """[*, in_features] -> [*, out_features], as the nn.Linear it is made from, its weight in float8_e4m3fn.

    Each output of the weight and each row of the input have a scale of float32, by which their largest value
    is 448; products of the codes are summed in float32. On CUDA both sizes must be multiples of 16; on the
    CPU the numbers are the same, but nothing is faster. codes [out, in], scales [out]; bias is [out] or None.

    Raises: ValueError for a weight with values that are not finite.
    """

    codes: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        if weight.is_meta:
            codes = warptape.empty(weight.shape, dtype=warptape.float8_e4m3fn, device="meta")
            scales = warptape.empty(weight.shape[0], device="meta")
        else:
            held = Float8Tensor.from_float(weight)
            codes, scales = held.codes, held.scale[:, 0]
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", _bias_of(linear, weight.dtype))

    def forward(self, input: Tensor) -> Tensor:
        """Input weight^T + bias, in the input's dtype."""
        _check_features(input, self.in_features)
        x = input.float()
        scale = (x.abs().amax(-1, keepdim=True) / _LARGEST_FLOAT8).clamp(min=1e-12)  # [*, 1]
        sums = _ops._float8_linear((x / scale).to(warptape.float8_e4m3fn), self.codes)
        out: Tensor = sums * scale * self.scales
        return (out if self.bias is None else out + self.bias).to(input.dtype)

    def extra_repr(self) -> str:
        """What repr() shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


def pack_(model: nn.Module, dtype: Any = None, skip: Iterable[str] = ()) -> nn.Module:
    """Replaces the nn.Linear modules in `model` by PackedLinear, one after the other, and returns the model.

    `skip` names modules that stay with all they hold, by their path ("layers.0.mlp") or a part of it
    ("lm_head"). Each original is dropped before the next is packed, so that no two copies of the model are in
    memory. A head that shares its weight with the embedding gets packed rows of its own: the embedding keeps
    the rows that it looks up. Modules of classes derived from nn.Linear stay, for their owner may read the
    weight itself.
    """
    return _replace_linears(model, lambda linear: _coded(linear) or PackedLinear(linear, dtype), skip)


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
    return _replace_linears(
        model, lambda linear: _coded(linear) or QuantLinear(linear, bits, group, symmetric, dtype), skip
    )


def float8_(model: nn.Module, skip: Iterable[str] = ("lm_head",)) -> nn.Module:
    """Replaces the nn.Linear modules in `model` by Float8Linear, as quantize_ does, and returns the model."""
    return _replace_linears(model, lambda linear: _coded(linear) or Float8Linear(linear), skip)


def _check_features(input: Tensor, in_features: int) -> None:
    """Paddings of the packed weight hide small differences from the ops."""
    if input.ndim == 0 or input.shape[-1] != in_features:
        raise warptape.ShapeError(
            f"input has shape {tuple(input.shape)}, layer expects {in_features} features in its last dim"
        )


def _coded(linear: nn.Linear) -> QuantLinear | None:
    """The layer of a weight that is in few bits already, else None."""
    weight: Any = linear.weight
    return QuantLinear.from_tensor(weight, linear.bias) if isinstance(weight, QuantizedTensor) else None


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
