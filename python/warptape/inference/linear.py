"""Linear layers for inference, whose weights are packed once in the order in which the kernels read them.

A row of the output depends on its own row of the input alone: it is the same to the bit for every number of
rows in a call, every split of rows into calls and every number of threads. Packed layers have no gradient;
those in few bits have their input's, so that adapters beside them learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from warptape import _C, nn
from warptape import core as wt
from warptape.autograd import Function
from warptape.core import Tensor
from warptape.core.coded import Float8Tensor, QuantizedTensor
from warptape.models import Codes

_ops: Any = _C._private
_LARGEST_FLOAT8 = 448  # of float8_e4m3fn
_ROWS = 4096  # outputs whose weights are dequantised at a time


class _StraightThrough(Function):
    """A layer in few bits: its own forward, to the bit, and the gradient of the product with the weight that
    its codes stand for. The rounding of the input is passed through, as if it were none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantLinear | Float8Linear) -> Tensor:
        ctx.layer = layer
        return layer.product(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        layer, out = ctx.layer, wt.zeros(())
        for first in range(0, layer.out_features, _ROWS):  # a part of the weight is whole at a time
            count = min(_ROWS, layer.out_features - first)
            weight = layer.dequantize(first, count).to(gradient.dtype)
            part = gradient[..., first : first + count] @ weight
            out = out + part if first else part
        return out, None


class PackedLinear(nn.Module):
    """[*, in_features] -> [*, out_features], as the nn.Linear it is made from, with the weight packed.

    packed is [ceil(out / 16), in, 16] in float32 and [ceil(out / 16), ceil(in / 2), 16, 2] in bfloat16; bias
    is [out_features] or None. With `dtype` the weight is converted first; an input of another dtype is
    converted to the weight's and the result back. An argument that requires a gradient is a
    NotImplementedError, unless no gradient is recorded.
    """

    packed: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, dtype: wt.dtype | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        with wt.no_grad():
            weight = linear.weight.detach().to(dtype or linear.weight.dtype)
            self.register_buffer("packed", _ops._pack_linear_weight(weight))
            self.register_buffer("bias", _bias_of(linear, weight.dtype))

    def forward(self, input: Tensor) -> Tensor:
        """Input weight^T + bias, in the input's dtype.

        Args:
            input: [*, in_features].
        """
        _check_features(input, self.in_features)
        x = input if input.dtype == self.packed.dtype else input.to(self.packed.dtype)
        out: Tensor = _ops._packed_linear(x, self.packed, self.out_features, self.bias)
        return out if x is input else out.to(input.dtype)

    def outputs(self, input: Tensor, first: int, count: int) -> Tensor:
        """Some of forward()'s outputs, with the same bits: [*, count].

        Args:
            input: [*, in_features].
            first, count: which.
        """
        _check_features(input, self.in_features)
        x = input if input.dtype == self.packed.dtype else input.to(self.packed.dtype)
        panels, begin, end = _panels(first, count)
        bias = None if self.bias is None else self.bias[begin:end]
        out: Tensor = _ops._packed_linear(x, self.packed[panels], end - begin, bias)
        out = out[..., first - begin :]
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
    over a group are exact, and added in the order of the groups. The input has a gradient, by the weight that
    the codes stand for, as if it were not rounded; the weight has none. bias is in `dtype`, the weight's by
    default; an input of another dtype is converted to it and the result back.

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
        dtype: wt.dtype | None = None,
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
        cls,
        weight: QuantizedTensor,
        bias: Tensor | None,
        dtype: wt.dtype | None = None,
        order: Tensor | None = None,
    ) -> QuantLinear:
        """The layer of a weight in few bits, whose memory it shares.

        Args:
            weight: [out, in], coded.
            bias: [out], or None.
            dtype: of products; the weight's if None.
            order: in which inputs are taken.
        """
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.out_features, layer.in_features = weight.shape
        layer.bits, layer.group, layer.dtype = weight.bits, weight.group, dtype or weight.dtype
        layer._hold(weight, bias, order)
        return layer

    @classmethod
    def from_codes(cls, matrix: Codes, bias: Tensor | None, dtype: wt.dtype) -> QuantLinear:
        """The layer of a matrix that is stored in 4 or 8 bits by groups of 32, 64 or 128, as a GGUF file or a
        GPTQ folder has it: the same codes; scales and minima are rounded to float16."""
        return cls.from_tensor(QuantizedTensor.from_codes(matrix, dtype), bias, order=matrix.order)

    def forward(self, input: Tensor) -> Tensor:
        """Input weight^T + bias, in the input's dtype.

        Args:
            input: [*, in_features].
        """
        _check_features(input, self.in_features)
        if input.requires_grad and wt.is_grad_enabled():
            out: Tensor = _StraightThrough.apply(input, self)
            return out
        return self.product(input)

    def product(self, input: Tensor) -> Tensor:
        """What forward() gives, without a gradient.

        Args:
            input: [*, in_features].
        """
        x = input if input.dtype == self.dtype else input.to(self.dtype)
        if self.order is not None:
            x = x.index_select(-1, self.order)
        out: Tensor = _ops._quant_linear(
            x, self.packed, self.scales, self.minima, self.out_features, self.bits, self.group, self.bias
        )
        return out if out.dtype == input.dtype else out.to(input.dtype)

    def outputs(self, input: Tensor, first: int, count: int) -> Tensor:
        """Some of forward()'s outputs, with the same bits: [*, count].

        Args:
            input: [*, in_features].
            first, count: which.
        """
        _check_features(input, self.in_features)
        x = input if input.dtype == self.dtype else input.to(self.dtype)
        if self.order is not None:
            x = x.index_select(-1, self.order)
        panels, begin, end = _panels(first, count)
        packed, scales = self.packed[panels], self.scales[panels]
        minima = None if self.minima is None else self.minima[panels]
        bias = None if self.bias is None else self.bias[begin:end]
        out: Tensor = _ops._quant_linear(x, packed, scales, minima, end - begin, self.bits, self.group, bias)
        return out[..., first - begin :].to(input.dtype)

    def dequantize(self, first: int = 0, count: int | None = None) -> Tensor:
        """The weight that the codes stand for, [out_features, in_features] in float32, or some of its rows.

        Args:
            first, count: which; all from the first on if None.
        """
        panels, begin, end = _panels(first, self.out_features - first if count is None else count)
        buffers = {name: getattr(self, name) for name in ("packed", "scales", "minima")}
        held = {name: None if t is None else t[panels] for name, t in buffers.items()}
        weight: QuantizedTensor = QuantizedTensor._of(
            (end - begin, self.in_features), wt.float32, **held, bits=self.bits, group=self.group
        )
        values = weight.dequantize()[first - begin :]
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
            codes = wt.empty(weight.shape, dtype=wt.float8_e4m3fn, device="meta")
            scales = wt.empty(weight.shape[0], device="meta")
        else:
            held = Float8Tensor.from_float(weight)
            codes, scales = held.codes, held.scale[:, 0]
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", _bias_of(linear, weight.dtype))

    def forward(self, input: Tensor) -> Tensor:
        """Input weight^T + bias, in the input's dtype.

        Args:
            input: [*, in_features].
        """
        if input.requires_grad and wt.is_grad_enabled():
            _check_features(input, self.in_features)
            out: Tensor = _StraightThrough.apply(input, self)
            return out
        return self.product(input)

    def product(self, input: Tensor) -> Tensor:
        """What forward() gives, without a gradient.

        Args:
            input: [*, in_features].
        """
        return self.outputs(input, 0, self.out_features)

    def dequantize(self, first: int = 0, count: int | None = None) -> Tensor:
        """The weight that the codes stand for, [out_features, in_features] in float32, or some of its rows.

        Args:
            first, count: which; all from the first on if None.
        """
        rows = slice(first, None if count is None else first + count)
        return self.codes[rows].float() * self.scales[rows, None]

    def outputs(self, input: Tensor, first: int, count: int) -> Tensor:
        """Some of forward()'s outputs, with the same bits: [*, count].

        Args:
            input: [*, in_features].
            first, count: which.
        """
        _check_features(input, self.in_features)
        x, rows = input.float(), slice(first, first + count)
        scale = (x.abs().amax(-1, keepdim=True) / _LARGEST_FLOAT8).clamp(min=1e-12)  # [*, 1]
        sums = _ops._float8_linear((x / scale).to(wt.float8_e4m3fn), self.codes[rows])
        out: Tensor = sums * scale * self.scales[rows]
        return (out if self.bias is None else out + self.bias[rows]).to(input.dtype)

    def extra_repr(self) -> str:
        """What repr() shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


def pack_(model: nn.Module, dtype: wt.dtype | None = None, skip: Iterable[str] = ()) -> nn.Module:
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
    dtype: wt.dtype | None = None,
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
    """Replaces the nn.Linear modules in `model` by Float8Linear, as quantize_ does, and returns the model.

    Args:
        model: changed.
        skip: names of modules left as they are.

    >>> from warptape.inference.linear import float8_
    >>> type(float8_(nn.Sequential(nn.Linear(16, 16)))[0]).__name__
    'Float8Linear'
    """
    return _replace_linears(model, lambda linear: _coded(linear) or Float8Linear(linear), skip)


def _panels(first: int, count: int) -> tuple[slice, int, int]:
    """Of which panels of 16 some outputs are, and which outputs lie in these, until the last asked for."""
    begin, end = first // 16, -(-(first + count) // 16)
    return slice(begin, end), 16 * begin, first + count


def _check_features(input: Tensor, in_features: int) -> None:
    """Paddings of the packed weight hide small differences from the ops."""
    if input.ndim == 0 or input.shape[-1] != in_features:
        raise wt.ShapeError(
            f"input has shape {tuple(input.shape)}, layer expects {in_features} features in its last dim"
        )


def _coded(linear: nn.Linear) -> QuantLinear | None:
    """The layer of a weight that is in few bits already, else None."""
    weight: Any = linear.weight
    return QuantLinear.from_tensor(weight, linear.bias) if isinstance(weight, QuantizedTensor) else None


def _bias_of(linear: nn.Linear, dtype: wt.dtype) -> Tensor | None:
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
        replacement = make(getattr(*same[0]))  # nothing else may hold the original: it is dropped here
        for parent, name in same:
            setattr(parent, name, replacement)
    return model
