"""Ops that PyTorch composes of others, taken apart as PyTorch takes them apart: what a class that implements
`__torch_dispatch__` is asked for in their place.

A rule takes the arguments of the op's declaration in C++. Ops composed here of the ops of which PyTorch
composes them need no rule: their own code runs, and what it calls is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import _C
from ..core import Tensor, contiguous_format, offered

aten = offered("ops").aten


def _run(func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


# ---- conversions ----------------------------------------------------------------------------------------


def _to(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    kwargs = dict(kwargs)
    flags = []
    for value in (*args, kwargs.pop("other", None)):
        if isinstance(value, Tensor):
            kwargs.update(dtype=value.dtype, device=value.device)
        elif isinstance(value, _C.dtype):
            kwargs["dtype"] = value
        elif isinstance(value, bool):
            flags.append(value)
        elif value is not None:
            kwargs["device"] = value
    kwargs.update(zip(("non_blocking", "copy"), flags))
    copy = kwargs.pop("copy", False)
    device = kwargs.get("device")
    if device is not None:
        kwargs["device"] = (
            _C._functions.empty(0, device=device).device if device != self.device else self.device
        )
    options = {k: v for k, v in kwargs.items() if v is not None and v is not False}
    same = (
        options.get("dtype", self.dtype) == self.dtype and options.get("device", self.device) == self.device
    )
    if same and not copy and "memory_format" not in options:
        return self
    return _run(aten._to_copy.default, self, **options)


def _as_dtype(dtype: Any) -> Callable[..., Any]:
    return lambda self, memory_format=None: _to(self, dtype=dtype, memory_format=memory_format)


def _contiguous(self: Tensor, memory_format: Any = None) -> Any:
    if self.is_contiguous(memory_format=memory_format) if memory_format is not None else self.is_contiguous():
        return self
    return _run(aten.clone.default, self, memory_format=memory_format or contiguous_format)


# ---- shapes ---------------------------------------------------------------------------------------------


def _inferred(numel: int, shape: Sequence[int]) -> list[int]:
    known = math.prod(n for n in shape if n != -1)
    return [numel // max(known, 1) if n == -1 else n for n in shape]


def _reshape(self: Tensor, shape: Sequence[int]) -> Any:
    shape = _inferred(self.numel(), shape)
    if math.prod(shape) != self.numel():
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {self.numel()}")
    try:
        _C._functions.empty_strided(tuple(self.shape), self.stride(), device="meta").view(shape)
    except RuntimeError:
        copy = _run(aten.clone.default, self, memory_format=contiguous_format)
        return _run(aten._unsafe_view.default, copy, shape)
    return _run(aten.view.default, self, shape)


def _flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    if self.ndim == 0:
        return _reshape(self, [1])
    first, last = start_dim % self.ndim, end_dim % self.ndim
    if first == last:
        return self
    sizes = list(self.shape)
    return _reshape(self, [*sizes[:first], math.prod(sizes[first : last + 1]), *sizes[last + 1 :]])


def _unflatten(self: Tensor, dim: int, sizes: Sequence[int]) -> Any:
    dim %= self.ndim
    sizes = _inferred(self.shape[dim], sizes)
    return _run(aten.view.default, self, [*self.shape[:dim], *sizes, *self.shape[dim + 1 :]])


def _narrow(self: Tensor, dim: int, start: Any, length: int) -> Any:
    start = int(start)
    start += self.shape[dim] if start < 0 else 0
    return _run(aten.slice.Tensor, self, dim, start, start + length)


def _slice(self: Tensor, dim: int, start: int, length: int, step: int) -> Any:
    return _run(aten.slice.Tensor, self, dim, start, start + length * step, *([step] if step != 1 else []))


def _slice_range(self: Tensor, dim: int, start: int, end: int, step: int = 1) -> Any:
    return _run(aten.slice.Tensor, self, dim, start, end, *([step] if step != 1 else []))


def _split(self: Tensor, size: Any, dim: int = 0) -> Any:
    if isinstance(size, int):
        return tuple(_run(aten.split.Tensor, self, size, *([dim] if dim else [])))
    return tuple(_run(aten.split_with_sizes.default, self, list(size), *([dim] if dim else [])))


def _chunk(self: Tensor, chunks: int, dim: int = 0) -> Any:
    return _split(self, -(-self.shape[dim] // chunks), dim)


def _permuted(self: Tensor) -> Any:
    return _run(aten.permute.default, self, list(range(self.ndim))[::-1])


# ---- products -------------------------------------------------------------------------------------------


def _linear(input: Tensor, weight: Tensor, bias: Any = None) -> Any:
    if bias is not None and input.ndim == 2:
        return bias.addmm(input, weight.t())
    if bias is not None and input.ndim == 3 and input.is_contiguous():
        out = bias.addmm(input.view([-1, input.shape[-1]]), weight.t())
        return out.view([*input.shape[:-1], out.shape[-1]])
    out = _matmul(input, weight.t())
    return out if bias is None else out + bias


def _matmul(a: Tensor, b: Tensor) -> Any:
    if a.ndim == 1 and b.ndim == 1:
        return a.dot(b)
    if a.ndim == 2 and b.ndim == 1:
        return a.mv(b)
    if a.ndim == 1 and b.ndim == 2:
        return a.unsqueeze(0).mm(b).squeeze(0)
    if a.ndim == 2 and b.ndim == 2:
        return a.mm(b)
    if a.ndim >= 3 and b.ndim <= 2:
        out = a.view([-1, a.shape[-1]]) if a.is_contiguous() else a.reshape([-1, a.shape[-1]])
        out = out.mv(b) if b.ndim == 1 else out.mm(b)
        return _run(aten._unsafe_view.default, out, [*a.shape[:-1], *b.shape[1:]])
    if a.ndim == 1:
        return _matmul(a.unsqueeze(0), b).squeeze(-2)
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    flat = []
    for t in (a, b):
        expanded = [*batch, *t.shape[-2:]]
        flat.append(t.expand(expanded).reshape([math.prod(batch), *t.shape[-2:]]))
    out = flat[0].bmm(flat[1])
    return _run(aten._unsafe_view.default, out, [*batch, a.shape[-2], b.shape[-1]])


def _broadcast(a: Sequence[int], b: Sequence[int]) -> list[int]:
    n = max(len(a), len(b))
    full = [[1] * (n - len(s)) + list(s) for s in (a, b)]
    return [y if x == 1 else x for x, y in zip(*full)]


def _padded(input: Tensor, weight: Tensor, padding: str, dilation: Any) -> tuple[Tensor, list[int]]:
    """The input and the padding of each dim that "same" or "valid" means; what is odd is added to the end."""
    sizes = weight.shape[2:]
    if padding == "valid":
        return input, [0] * len(sizes)
    gaps = [dilation] * len(sizes) if isinstance(dilation, int) else [*dilation] * len(sizes)
    total = [gap * (n - 1) for gap, n in zip(gaps, sizes)]
    if any(n % 2 for n in total):
        input = _C._nn.pad(input, [k for n in reversed(total) for k in (0, n % 2)])
    return input, [n // 2 for n in total]


def _convolution(dims: int, transposed: bool) -> Callable[..., Any]:
    def rule(
        input: Tensor,
        weight: Tensor,
        bias: Any = None,
        stride: Any = (1,),
        padding: Any = (0,),
        *more: Any,
        **named: Any,
    ) -> Any:
        names = ("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")
        rest = {"output_padding": (0,), "groups": 1, "dilation": (1,)} | dict(zip(names, more)) | named
        if isinstance(padding, str):
            input, padding = _padded(input, weight, padding, rest["dilation"])

        def each(n: Any) -> list[int]:
            n = [n] if isinstance(n, int) else list(n)
            return n * dims if len(n) == 1 else n

        return _run(
            aten.convolution.default,
            input,
            weight,
            bias,
            each(stride),
            each(padding),
            each(rest["dilation"]),
            transposed,
            each(rest["output_padding"]),
            rest["groups"],
        )

    return rule


# ---- layers ---------------------------------------------------------------------------------------------


def _softmax(func: Any) -> Callable[..., Any]:
    def rule(input: Tensor, dim: Any = None, *more: Any, **named: Any) -> Any:
        if dim is None:
            return NotImplemented
        dtypes = [v for v in (*more, *named.values()) if isinstance(v, _C.dtype)]
        return _run(func(), _to(input, *dtypes), dim, False)

    return rule


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0 or input.numel() == 0:
        return input
    noise = _run(aten.empty_like.default, input)
    noise = noise.bernoulli_(1 - p).div_(1 - p)
    return input.mul_(noise) if inplace else input * noise


def _layer_norm(
    input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    return _run(aten.native_layer_norm.default, input, shape, weight, bias, eps)[0]


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None:
        return NotImplemented
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    more = [padding, scale_grad_by_freq, sparse]
    while more and more[-1] in (-1, False):
        more.pop()
    return _run(aten.embedding.default, weight, input, *more)


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if target.dtype.is_floating_point or label_smoothing or size_average is not None or reduce is not None:
        return NotImplemented
    logs = input.log_softmax(1 if input.ndim > 1 else 0)
    return _nll_loss(logs, target, weight, None, ignore_index, None, reduction)


def _nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    if input.ndim > 2:
        return NotImplemented
    kind = ("none", "mean", "sum").index(reduction)
    return _run(aten.nll_loss_forward.default, input, target, weight, kind, ignore_index)[0]


def _spread(name: str) -> Callable[..., Any]:
    """var and std."""

    def rule(input: Tensor, *args: Any, **named: Any) -> Any:
        bound = dict(zip(("dim", "unbiased", "keepdim"), args)) | named
        if isinstance(bound.get("dim"), bool):
            bound["unbiased"] = bound.pop("dim")
        correction = bound.get("correction", int(bound.get("unbiased", True)))
        more = {"keepdim": True} if bound.get("keepdim") else {}
        dim = bound.get("dim")
        dims = [dim] if isinstance(dim, int) else dim and list(dim)
        return _run(getattr(aten, name).correction, input, dims or None, correction=correction, **more)

    return rule


def _norm(input: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if isinstance(p, str):
        return NotImplemented
    dims = [dim] if isinstance(dim, int) else dim and list(dim)
    more = {} if dtype is None else {"dtype": dtype}
    return _run(aten.linalg_vector_norm.default, input, 2 if p is None else p, dims or None, keepdim, **more)


# ---- what a tensor says of itself -----------------------------------------------------------------------


def _requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    _C.TensorBase.requires_grad.__set__(self, requires_grad)  # type: ignore[attr-defined]
    return self


def _item(self: Tensor) -> Any:
    return _run(aten._local_scalar_dense.default, self)


def _sub(self: Any, other: Any, **named: Any) -> Any:
    if not isinstance(self, Tensor):
        return _run(aten.rsub.Scalar, other, self, **named)
    return _run(aten.sub.Tensor, self, other, **named)


RULES: dict[str, Any] = {
    "_index": lambda input, indices: _run(aten.index.Tensor, input, list(indices)),
    "T": _permuted,
    "_slice": _slice,
    "bfloat16": _as_dtype(_C.bfloat16),
    "cast": lambda self, dtype: _to(self, dtype),
    "chunk": _chunk,
    "contiguous": _contiguous,
    "cross_entropy": _cross_entropy,
    "data_ptr": lambda self: 0,
    "double": _as_dtype(_C.float64),
    "dropout": _dropout,
    "embedding": _embedding,
    "expand_as": lambda self, other: self.expand(other.shape),
    "flatten": _flatten,
    "float": _as_dtype(_C.float32),
    "half": _as_dtype(_C.float16),
    "int": _as_dtype(_C.int32),
    "item": _item,
    "layer_norm": _layer_norm,
    "linalg_matmul": _matmul,
    "linear": _linear,
    "log_softmax": _softmax(lambda: aten._log_softmax.default),
    "long": _as_dtype(_C.int64),
    "mT": lambda self: self.transpose(-2, -1),
    "matmul": _matmul,
    "narrow": _narrow,
    "nll_loss": _nll_loss,
    "norm": _norm,
    "requires_grad_": _requires_grad_,
    "reshape": _reshape,
    "reshape_as": lambda self, other: _reshape(self, other.shape),
    "slice": _slice_range,
    "softmax": _softmax(lambda: aten._softmax.default),
    "split": _split,
    "std": _spread("std"),
    "square": lambda self: _run(aten.pow.Tensor_Scalar, self, 2),
    "sub": _sub,
    "to": _to,
    "type_as": lambda self, other: _to(self, other),
    "unflatten": _unflatten,
    "var": _spread("var"),
    "view_as": lambda self, other: _run(aten.view.default, self, list(other.shape)),
} | {
    f"conv{'_transpose' if transposed else ''}{dims}d": _convolution(dims, transposed)
    for dims in (1, 2, 3)
    for transposed in (False, True)
}
# Overloads of torch.ops.aten that the rules take apart.
COMPOSED = frozenset(RULES) - {"_slice", "embedding", "slice", "split", "std", "sub", "var"} | {
    "cross_entropy_loss",
    "nll_loss_nd",
    "tensordot",
}
