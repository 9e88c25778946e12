"""Tensors that hold a matrix in few bits: what a model's weights become, and its state_dict, files and moves
know.

O outputs, I inputs, G groups of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

from .. import _C
from .by_name import HandledTensor, Handlers, name_of
from .grad_mode import no_grad
from .protocols import Codes
from .registry import offered
from .tensor_class import Tensor

_ops: Any = _C._private
_PANEL = 16  # outputs that lie together in a packed weight
GROUPS = (0, 32, 64, 128)


HANDLERS = Handlers(again=True)


class CodedTensor(HandledTensor):
    """What tensors in few bits have: shape, dtype and device of the matrix that they stand for, and plain
    tensors, named in `_parts`, that hold it. `F.linear` reads these; any other function gets the matrix, as
    dequantize() gives it, and a plain tensor comes out. They have no gradient; that of a layer's input passes
    through the matrix. In-place functions but copy_ raise NotImplementedError."""

    handlers = HANDLERS
    _parts: tuple[str, ...] = ()
    _settings: tuple[str, ...] = ()

    @classmethod
    def _of(cls, shape: Sequence[int], dtype: Any, **held: Any) -> Any:
        """An object that holds the parts and settings; its device is the parts'."""
        like = _C._functions.empty(0, dtype=dtype, device=held[cls._parts[0]].device)
        with _C.DisableTorchFunctionSubclass():
            tensor = Tensor._make_subclass(cls, _C._private._stand_in(like, tuple(shape)))
        tensor.__dict__.update(held)
        return tensor

    def _like(self, dtype: Any = None, change: Callable[..., Any] | None = None) -> Any:
        """The same, with each part changed by a function, and another dtype of the matrix."""
        held = {name: self.__dict__[name] for name in self._settings}
        for name in self._parts:
            part = self.__dict__[name]
            held[name] = part if part is None or change is None else change(part)
        return self._of(self.shape, dtype or self.dtype, **held)

    def dequantize(self) -> Tensor:  # type: ignore[override]
        """The matrix [O, I] that the codes stand for, in this tensor's dtype.

        Raises:
            NotImplementedError: a subclass does not say how.
        """
        raise NotImplementedError

    def _linear(self, input: Tensor, bias: Tensor | None) -> Tensor:
        """Input times the matrix, without gradient."""
        return _C._nn.linear(input, self.dequantize().to(input.dtype), bias)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """Bytes of all parts."""
        parts = (self.__dict__[name] for name in self._parts)
        return sum(part.nbytes for part in parts if part is not None)

    # ---- Tensor's own that read memory ----

    @property
    def data(self) -> Any:  # type: ignore[override]
        """The same codes without mark or history.

        An assignment takes over the codes of another tensor of this kind.
        """
        return self._like()

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, type(self)) or value.shape != self.shape:
            raise TypeError(
                f"data: expected a {type(self).__name__} of shape {tuple(self.shape)}, got "
                f"{type(value).__name__} of shape {tuple(value.shape)}"
            )
        with _C.DisableTorchFunctionSubclass():
            bare = _C._private._stand_in(
                _C._functions.empty(0, dtype=value.dtype, device=value.device), tuple(value.shape)
            )
            _C.TensorBase.data.__set__(self, bare)  # type: ignore[attr-defined]
        self.__dict__.update({name: value.__dict__[name] for name in (*self._parts, *self._settings)})
        _C._module_changed()  # it may be a module's

    def numpy(self, *, force: bool = False) -> Any:
        """The matrix as an array.

        Args:
            force: whether a tensor with history is taken.
        """
        return self.dequantize().numpy(force=force)

    def tolist(self) -> Any:
        """The matrix as lists."""
        return self.dequantize().tolist()

    def is_contiguous(self, memory_format: _C.memory_format | None = None) -> bool:  # type: ignore[override]
        """True: the parts are.

        Args:
            memory_format: not looked at.
        """
        return True

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        settings = ", ".join(f"{name}={self.__dict__[name]}" for name in self._settings)
        text = f"shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device}, {settings}"
        return f"{type(self).__name__}({text})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self._marked(self._like(change=lambda part: part.clone()))
        return memo[id(self)]

    def __copy__(self) -> Any:
        return self._marked(self._like())

    def _marked(self, made: Any) -> Any:
        if self.__dict__.get("_is_param"):
            made._is_param = True
        return made

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        held = tuple((name, self.__dict__[name]) for name in (*self._parts, *self._settings))
        marked = bool(self.__dict__.get("_is_param"))
        return offered("rebuild_coded"), (type(self).__name__, tuple(self.shape), self.dtype, held, marked)

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        """The names of the parts that are there, and what else makes the tensor, as json has it."""
        there = [name for name in self._parts if self.__dict__[name] is not None]
        settings = {name: self.__dict__[name] for name in self._settings}
        dtype = str(self.dtype).rpartition(".")[2]
        return there, {"class": type(self).__name__, "shape": list(self.shape), "dtype": dtype, **settings}


class QuantizedTensor(CodedTensor):
    """A matrix [O, I] in 8 or 4 bits, as the inference engine's kernels read it.

    `group` inputs (32, 64 or 128) share a scale of float16; 0 is one scale of float32 an output. The matrix
    is scale * code + minimum, or scale * (code - 2 ** (bits - 1)) where there are no minima. packed [ceil(O /
    16), I * bits / 32, 16, 4] holds the codes, with I rounded up to whole groups; scales and minima are
    [ceil(O / 16), G, 16]. `F.linear` without gradients rounds its input to 8 bits by row and group, by 128
    inputs where group is 0, and sums exactly within a group, as llama.cpp does.
    """

    packed: Tensor
    scales: Tensor
    minima: Tensor | None
    bits: int
    group: int
    _parts = ("packed", "scales", "minima")
    _settings = ("bits", "group")

    @classmethod
    def from_float(
        cls, weight: Tensor, bits: int = 8, group: int = 0, symmetric: bool | None = None
    ) -> QuantizedTensor:
        """The nearest codes; symmetric about zero by default in 8 bits alone.

        Raises: ShapeError unless the weight is a matrix, ValueError for other bits and groups and for values
        that are not finite.
        """
        symmetric = bits == 8 if symmetric is None else symmetric
        with no_grad():
            packed, scales, *minima = _ops._quantize_linear_weight(weight.detach(), bits, group, symmetric)
        minimum = minima[0] if minima else None
        return cls._made(weight.shape, weight.dtype, packed, scales, minimum, bits, group)

    @classmethod
    def _made(
        cls,
        shape: Sequence[int],
        dtype: _C.dtype,
        packed: Tensor,
        scales: Tensor,
        minima: Tensor | None,
        bits: int,
        group: int,
    ) -> QuantizedTensor:
        tensor: QuantizedTensor = cls._of(
            shape, dtype, packed=packed, scales=scales, minima=minima, bits=bits, group=group
        )
        return tensor

    @classmethod
    def from_codes(cls, matrix: Codes, dtype: _C.dtype) -> QuantizedTensor:
        """The same codes as a matrix in 4 or 8 bits by groups of 32, 64 or 128 inputs; scales and minima are
        rounded to float16."""
        (outputs, groups), width = matrix.scales.shape, matrix.codes.shape[1]
        inputs = width * 2 if matrix.half else width
        rows = -outputs % _PANEL  # to whole panels

        def of_groups(x: Tensor | None) -> Tensor | None:
            if x is None:
                return None
            panels = _C._nn.pad(x, (0, 0, 0, rows)).reshape(-1, _PANEL, groups)
            return panels.transpose(1, 2).to(_C.float16).contiguous()

        scales, minima = of_groups(matrix.scales), of_groups(matrix.minima)
        assert scales is not None
        packed = _ops._pack_linear_codes(matrix.codes, matrix.bits, matrix.half)
        return cls._made((outputs, inputs), dtype, packed, scales, minima, matrix.bits, inputs // groups)

    def codes(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The codes with their scales and minima.

        Returns:
            uint8 [O, I], float32 [O, G] and float32 [O, G]; None for minima where the codes are symmetric.
        """
        outputs, inputs = self.shape
        codes = self.packed.permute(0, 2, 1, 3)  # [panels, 16, steps, 4]
        if self.bits == 4:
            codes = _C._functions.stack([codes & 15, codes >> 4], dim=3)
        codes = codes.reshape(self.packed.shape[0] * _PANEL, -1)[:outputs, :inputs]

        def of_groups(x: Tensor) -> Tensor:
            return x.float().permute(0, 2, 1).reshape(-1, x.shape[1])[:outputs].contiguous()

        minima = None if self.minima is None else of_groups(self.minima)
        return codes.contiguous(), of_groups(self.scales), minima

    def dequantize(self) -> Tensor:  # type: ignore[override]
        """The matrix [O, I] that the codes stand for, in this tensor's dtype.

        A value is scale * code + minimum, or scale * (code - 2 ** (bits - 1)) where the codes are symmetric.
        """
        codes, scales, minima = self.codes()
        inputs = codes.shape[1]
        size = self.group or max(inputs, 1)

        def spread(x: Tensor) -> Tensor:  # [O, G] -> [O, I]
            return x.repeat_interleave(size, dim=1)[:, :inputs]

        if minima is None:
            weight = spread(scales) * (codes.float() - 2 ** (self.bits - 1))
        else:
            weight = spread(scales) * codes.float() + spread(minima)
        return weight.to(self.dtype).contiguous()

    def _linear(self, input: Tensor, bias: Tensor | None) -> Tensor:
        x = input if input.dtype in (_C.float32, _C.bfloat16) else input.float()
        if input.ndim == 0 or input.shape[-1] != self.shape[1]:  # whole groups hide small differences
            raise _C.ShapeError(
                f"linear: input has shape {tuple(input.shape)}, a weight of shape {tuple(self.shape)} "
                f"expects {self.shape[1]} features in its last dim"
            )
        bias = None if bias is None else bias.detach().to(x.dtype)
        out: Tensor = _ops._quant_linear(
            x, self.packed, self.scales, self.minima, self.shape[0], self.bits, self.group, bias
        )
        return out if x is input else out.to(input.dtype)


class Float8Tensor(CodedTensor):
    """A matrix [O, I] as float8_e4m3fn `codes` with a float32 scale [O, 1] an output: stored so, and
    multiplied with as the dtype of the input."""

    codes: Tensor
    scale: Tensor
    _parts = ("codes", "scale")

    @classmethod
    def from_float(cls, weight: Tensor) -> Float8Tensor:
        """The nearest codes. Raises: ValueError for values that are not finite.

        Each output has a scale of its own, by its largest value.

        Args:
            weight: [O, I].
        """
        with no_grad():
            values = weight.detach().float()
            if not bool(_C._functions.isfinite(values).all()):
                raise ValueError("Float8Tensor: weight has values that are not finite")
            most = values.abs().amax(dim=1, keepdim=True) if values.numel() else values[:, :1].abs()
            scale = (most / 448).clamp(min=1e-12)  # 448: the greatest float8_e4m3fn
            tensor: Float8Tensor = cls._of(
                weight.shape, weight.dtype, codes=(values / scale).to(_C.float8_e4m3fn), scale=scale
            )
        return tensor

    def dequantize(self) -> Tensor:  # type: ignore[override]
        """The matrix [O, I] that the codes stand for, in this tensor's dtype.

        A value is code * scale.
        """
        return (self.codes.float() * self.scale).to(self.dtype)


KINDS: dict[str, type[CodedTensor]] = {kind.__name__: kind for kind in (QuantizedTensor, Float8Tensor)}


def rebuild(kind: str, shape: Sequence[int], dtype: _C.dtype, held: dict[str, Any]) -> CodedTensor:
    """A tensor of its parts, as a file has them. Raises: ValueError where they do not fit together.

    Args:
        kind: name of the class.
        shape: O and I.
        dtype: of what is computed.
        held: parts and settings by name.
    """
    cls = KINDS.get(kind)
    if cls is None or not isinstance(dtype, _C.dtype) or len(shape) != 2:
        raise ValueError(f"a tensor in few bits cannot be made of {kind!r:.40}, {dtype!r:.40}, {shape!r:.40}")
    held = {name: held.get(name) for name in (*cls._parts, *cls._settings)}
    outputs, inputs = (int(size) for size in shape)
    if cls is QuantizedTensor:
        bits, group = held["bits"], held["group"]
        if bits not in (4, 8) or group not in GROUPS:
            raise ValueError(
                f"QuantizedTensor: expected 4 or 8 bits and groups of {GROUPS}, got {bits}, {group}"
            )
        panels, size = math.ceil(outputs / _PANEL), group or 128
        steps, groups = (
            math.ceil(inputs / size) * size * bits // 32,
            math.ceil(inputs / group) if group else 1,
        )
        kind_of_scale = _C.float16 if group else _C.float32
        expected = {
            "packed": ((panels, steps, _PANEL, 4), _C.uint8),
            "scales": ((panels, groups, _PANEL), kind_of_scale),
            "minima": ((panels, groups, _PANEL), kind_of_scale),
        }
    else:
        expected = {
            "codes": ((outputs, inputs), _C.float8_e4m3fn),
            "scale": ((outputs, 1), _C.float32),
        }
    for name, (sizes, kind_of) in expected.items():
        part = held[name]
        if part is None and name == "minima":
            continue
        if not isinstance(part, Tensor) or tuple(part.shape) != sizes or part.dtype != kind_of:
            got = f"{part.dtype} {list(part.shape)}" if isinstance(part, Tensor) else repr(part)
            raise ValueError(f"{kind}: expected {name} of {kind_of} {list(sizes)}, got {got:.80}")
    tensor: CodedTensor = cls._of((outputs, inputs), dtype, **held)
    return tensor


# ---- what functions do ----

# What the object itself knows, beside its attributes and `is_` functions.
_OWN = frozenset(("size", "dim", "numel", "nelement", "__len__"))


@HANDLERS.replaces("linear")
def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if isinstance(input, CodedTensor) or not isinstance(weight, CodedTensor):
        return _C._nn.linear(*(_plain((input, weight, bias))))
    grad = input.requires_grad or (bias is not None and bias.requires_grad)
    if _C.is_grad_enabled() and grad:
        return _C._nn.linear(input, weight.dequantize().to(input.dtype), bias)
    return weight._linear(input, bias)


def _other(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that keeps no codes: of the matrix."""
    name = name_of(func)
    if name in _OWN or name.startswith(("get ", "is_")):
        with _C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    if args and isinstance(args[0], CodedTensor) and name.endswith("_") and not name.endswith("__"):
        raise NotImplementedError(
            f"{name}: {type(args[0]).__name__} holds codes and is not changed in place; dequantize() gives a "
            "tensor"
        )
    return func(*_plain(args), **_plain(kwargs))


HANDLERS.other = _other


def _keeps_codes(*names: str) -> Callable[[Any], Any]:
    """A decorator of what functions do whose first argument is a CodedTensor."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @HANDLERS.handles(*names)
        def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args and isinstance(args[0], CodedTensor):
                return function(*args, **kwargs)
            return _other(func, args, kwargs)

        return function

    return register


@_keeps_codes("to")
def _to(t: CodedTensor, *args: Any, **kwargs: Any) -> Any:
    device, dtype, _, _ = _C._nn._parse_to(*args, **{k: v for k, v in kwargs.items() if k != "copy"})  # type: ignore[attr-defined]
    if dtype is not None and not dtype.is_floating_point:
        return t.dequantize().to(*args, **kwargs)
    if device is None and dtype in (None, t.dtype) and not kwargs.get("copy"):
        return t
    return t._like(dtype, None if device is None else lambda part: part.to(device=device))


_keeps_codes("dequantize")(lambda t: t.dequantize())
_keeps_codes("detach alias")(lambda t: t._like())
_keeps_codes("clone")(lambda t, **_: t._like(change=lambda part: part.clone()))
_keeps_codes("contiguous")(lambda t, **_: t)
_keeps_codes("is_pinned")(lambda t, *_: False)
_keeps_codes("cpu")(lambda t: _to(t, "cpu"))
_keeps_codes("cuda")(lambda t, device="cuda", **_: _to(t, device if device is not None else "cuda"))
_keeps_codes("float")(lambda t: _to(t, _C.float32))
_keeps_codes("bfloat16")(lambda t: _to(t, _C.bfloat16))
_keeps_codes("half")(lambda t: _to(t, _C.float16))
_keeps_codes("double")(lambda t: _to(t, _C.float64))


@_keeps_codes("copy_")
def _copy_(t: CodedTensor, other: Tensor, non_blocking: bool = False) -> Any:
    same = type(other) is type(t) and all(getattr(t, n) == getattr(other, n) for n in t._settings)
    parts = [(getattr(t, n), getattr(other, n)) for n in t._parts] if same else []
    if not same or any(
        (a is None) != (b is None) or (a is not None and a.shape != b.shape) for a, b in parts
    ):
        raise TypeError(
            f"copy_: {t!r} takes the codes of a tensor of the same kind alone, got {other!r:.80}; "
            "load_state_dict(.., assign=True) puts another tensor in its place"
        )
    for mine, source in parts:
        if mine is not None:
            mine.copy_(source)
    return t


@_keeps_codes("requires_grad_")
def _requires_grad(t: CodedTensor, requires_grad: bool = True) -> Any:
    if requires_grad:
        raise NotImplementedError(
            "requires_grad_: codes have no gradient; dequantize() gives a tensor that can"
        )
    return t


def _plain(value: Any) -> Any:
    """What functions get in place of codes."""
    if isinstance(value, CodedTensor):
        return value.dequantize()
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    return {name: _plain(each) for name, each in value.items()} if type(value) is dict else value
