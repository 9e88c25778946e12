"""The gradients of ops of torch.ops.aten by ops of torch.ops.aten, for classes that implement
`__torch_dispatch__`: such a class is asked for these in a backward pass, as PyTorch asks it.

A formula takes `need`, whether each tensor among the arguments requires a gradient, what the op gave, and its
arguments. It returns the tensors that are to be saved and a function of the gradient and these, which gives
the gradient of each tensor; False where none is needed. Gradients that broadcast are summed by the tape.
The derivatives are the usual ones; where the order of a product matters for how its result lies in memory,
it is PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import _C
from ..core import Tensor, offered

aten = offered("ops").aten
Formula = Callable[..., tuple[tuple[Any, ...], Callable[..., Any]]]
FORMULAS: dict[str, Formula] = {}
FORGETFUL: set[str] = (
    set()
)  # whose gradients do not need the first tensor as it was before, if it was changed


def formula(*names: str, forgetful: bool = False) -> Callable[[Formula], Formula]:
    """Makes a function the formula of ops.

    Args:
        *names: of ops.
        forgetful: it does not need the first tensor as it was before an in-place op changed it.
    """

    def register(rule: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(names, rule))
        FORGETFUL.update(names if forgetful else ())
        return rule

    return register


def _times(g: Tensor, factor: Any) -> Tensor:
    return g if isinstance(factor, (int, float)) and factor == 1 else aten.mul.Scalar(g, factor)


# ---- arithmetic -----------------------------------------------------------------------------------------


@formula("add", forgetful=True)
def _add(need: Any, out: Any, self: Any, other: Any, *, alpha: Any = 1) -> Any:
    factors = [f for f, t in ((1, self), (alpha, other)) if isinstance(t, Tensor)]
    return (), lambda g: [want and _times(g, f) for want, f in zip(need, factors)]


@formula("sub", forgetful=True)
def _sub(need: Any, out: Any, self: Any, other: Any, *, alpha: Any = 1) -> Any:
    signs = [f for f, t in ((1, self), (-1, other)) if isinstance(t, Tensor)]

    def back(g: Tensor) -> Any:
        return [want and (g if f == 1 else _times(g.neg(), alpha)) for want, f in zip(need, signs)]

    return (), back


@formula("rsub")
def _rsub(need: Any, out: Any, self: Tensor, other: Any, alpha: Any = 1) -> Any:
    if isinstance(other, Tensor):
        return (), lambda g: (need[0] and _times(g.neg(), alpha), need[1] and g)
    return (), lambda g: _times(g.neg(), alpha)


@formula("mul")
def _mul(need: Any, out: Any, self: Any, other: Any) -> Any:
    if not isinstance(other, Tensor):
        return (), lambda g: g * other
    saved = (other if need[0] else None, self if need[1] else None)
    return saved, lambda g, other, self: (need[0] and g * other, need[1] and g * self)


@formula("div")
def _div(need: Any, out: Any, self: Any, other: Any, *, rounding_mode: Any = None) -> Any:
    if rounding_mode is not None:
        return (), lambda g: [g * 0 for _ in need]
    if not isinstance(other, Tensor):
        return (), lambda g: g / other
    saved = (other, self if need[1] else None)
    return saved, lambda g, other, self: (
        need[0] and g / other,
        need[1] and g.neg() * ((self / other) / other),
    )


@formula("neg", forgetful=True)
def _neg(need: Any, out: Any, self: Tensor) -> Any:
    return (), lambda g: g.neg()


@formula("pow")
def _pow(need: Any, out: Any, self: Any, exponent: Any) -> Any:
    if not isinstance(exponent, Tensor):
        if exponent == 0:
            return (), lambda g: aten.zeros_like.default(g)
        return (self,), lambda g, self: g * aten.mul.Scalar(self.pow(exponent - 1), exponent)
    if not isinstance(self, Tensor):
        return (out,), lambda g, out: g * (out * math.log(self))
    return (self, exponent, out), lambda g, self, exponent, out: (
        need[0] and g * (exponent * self.pow(exponent - 1)),
        need[1] and g * (out * self.log()),
    )


def _of_output(name: str, slope: Callable[[Tensor, Tensor], Tensor]) -> None:
    formula(name, forgetful=True)(lambda need, out, self: ((out,), slope))


def _of_input(name: str, slope: Callable[[Tensor, Tensor], Tensor]) -> None:
    FORMULAS[name] = lambda need, out, self: ((self,), slope)


_of_output("exp", lambda g, out: g * out)
_of_output("sqrt", lambda g, out: g / (2 * out))
_of_output("rsqrt", lambda g, out: -0.5 * g * out.pow(3))
_of_output("sigmoid", lambda g, out: aten.sigmoid_backward.default(g, out))
_of_output("tanh", lambda g, out: aten.tanh_backward.default(g, out))
_of_output("relu", lambda g, out: aten.threshold_backward.default(g, out, 0))
_of_output("reciprocal", lambda g, out: -g * (out * out))
_of_input("log", lambda g, x: g.div(x))
_of_input("abs", lambda g, x: g * x.sgn())
_of_input("sin", lambda g, x: g * x.cos())
_of_input("cos", lambda g, x: g * -x.sin())
_of_input("erf", lambda g, x: 2 / math.sqrt(math.pi) * (-(x.pow(2))).exp() * g)
_of_input("silu", lambda g, x: aten.silu_backward.default(g, x))


@formula("floor", "ceil", "round", "trunc", "sign", "sgn", forgetful=True)
@formula("bernoulli", "cauchy", "exponential", "geometric", "log_normal", forgetful=True)
@formula("normal", "random", "uniform", forgetful=True)
def _flat(need: Any, out: Any, *args: Any, **more: Any) -> Any:
    return (), lambda g: [want and aten.zeros_like.default(g) for want in need]


@formula("eq", "ne", "lt", "le", "gt", "ge", forgetful=True)
def _compared(need: Any, out: Any, *args: Any) -> Any:
    """In place; else the result has no gradient. PyTorch's zeros are of no class."""
    facts = [(list(t.shape), t.dtype, t.device) for t in args if isinstance(t, Tensor)]
    return (), lambda g: [
        want and _C._functions.zeros(sizes, dtype=dtype, device=device)
        for want, (sizes, dtype, device) in zip(need, facts, strict=True)
    ]


@formula("gelu")
def _gelu(need: Any, out: Any, self: Tensor, *, approximate: str = "none") -> Any:
    more = {} if approximate == "none" else {"approximate": approximate}
    return (self,), lambda g, self: aten.gelu_backward.default(g, self, **more)


@formula("clamp", "clamp_min", "clamp_max")
def _clamp(need: Any, out: Any, self: Tensor, *bounds: Any, **named: Any) -> Any:
    return (self, out), lambda g, self, out: [
        aten.where.self(self == out, g, aten.zeros_like.default(g)),
        *([False] * (len(need) - 1)),
    ]


@formula("where")
def _where(need: Any, out: Any, condition: Tensor, self: Any, other: Any) -> Any:
    places = [place for place, t in enumerate((self, other)) if isinstance(t, Tensor)]

    def back(g: Tensor, condition: Tensor) -> Any:
        zero = aten.zeros_like.default(g)
        pairs = (g, zero), (zero, g)
        parts = [want and aten.where.self(condition, *pairs[i]) for want, i in zip(need[1:], places)]
        return [False, *parts]

    return (condition,), back


@formula("masked_fill")
def _masked_fill(need: Any, out: Any, self: Tensor, mask: Tensor, value: Any) -> Any:
    rest = [False] * (len(need) - 1)
    return (mask,), lambda g, mask: [need[0] and g.masked_fill(mask, 0), *rest]


@formula("maximum", "minimum")
def _extreme(need: Any, out: Any, self: Tensor, other: Tensor) -> Any:
    def back(g: Tensor, self: Tensor, other: Tensor, out: Tensor) -> Any:
        def part(mine: Tensor, its: Tensor) -> Tensor:
            return aten.where.self(mine == its, g / 2, g).masked_fill(mine != out, 0)

        return need[0] and part(self, other), need[1] and part(other, self)

    return (self, other, out), back


# ---- products -------------------------------------------------------------------------------------------


def _by_columns(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    return strides[0] == 1 and strides[1] == sizes[0]


def _product_gradients(
    need: Any, left: Tensor, right: Tensor, alpha: Any = 1, last_first: bool = False
) -> Callable[..., Any]:
    """Of left @ right, each as it lies in memory."""
    columns = [_by_columns(t.shape, t.stride()) for t in (left, right)]

    def back(g: Tensor, left: Tensor, right: Tensor) -> Any:
        mask: list[Any] = [False, False]
        for side in (1, 0) if last_first else (0, 1):
            if need[side] and side == 0:
                mask[0] = _times(right.mm(g.t()).t() if columns[0] else g.mm(right.t()), alpha)
            elif need[side]:
                mask[1] = _times(g.t().mm(left).t() if columns[1] else left.t().mm(g), alpha)
        return mask

    return back


@formula("mm")
def _mm(need: Any, out: Any, self: Tensor, mat2: Tensor) -> Any:
    saved = (self if need[1] else None, mat2 if need[0] else None)
    return saved, _product_gradients(need, self, mat2, last_first=True)


@formula("addmm")
def _addmm(
    need: Any, out: Any, self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    product = _product_gradients(need[1:], mat1, mat2, alpha)
    saved = (mat1 if need[2] else None, mat2 if need[1] else None)
    return saved, lambda g, left, right: (need[0] and _times(g, beta), *product(g, left, right))


@formula("bmm")
def _bmm(need: Any, out: Any, self: Tensor, mat2: Tensor) -> Any:
    saved = (self if need[1] else None, mat2 if need[0] else None)
    return saved, lambda g, self, mat2: (
        need[0] and g.bmm(mat2.transpose(1, 2)),
        need[1] and self.transpose(1, 2).bmm(g),
    )


@formula("mv")
def _mv(need: Any, out: Any, self: Tensor, vec: Tensor) -> Any:
    saved = (self if need[1] else None, vec if need[0] else None)
    return saved, lambda g, self, vec: (need[0] and g.ger(vec), need[1] and self.t().mv(g))


@formula("dot")
def _dot(need: Any, out: Any, self: Tensor, tensor: Tensor) -> Any:
    saved = (self if need[1] else None, tensor if need[0] else None)
    return saved, lambda g, self, tensor: (need[0] and g * tensor, need[1] and g * self)


@formula("convolution")
def _convolution(need: Any, out: Any, input: Tensor, weight: Tensor, bias: Any, *geometry: Any) -> Any:
    mask = [need[0], need[1], bias is not None and need[2]]
    sizes = None if bias is None else list(bias.shape)

    def back(g: Tensor, input: Tensor, weight: Tensor) -> Any:
        grads = aten.convolution_backward.default(g, input, weight, sizes, *geometry, mask)
        return [g if want else False for g, want in zip(grads, need)]

    return (input, weight), back


# ---- shapes ---------------------------------------------------------------------------------------------


def _shaped(*names: str) -> Callable[[Callable[..., Callable[[Tensor], Tensor]]], None]:
    """Of an op whose gradient follows from the shape of its first tensor."""

    def register(rule: Callable[..., Callable[[Tensor], Tensor]]) -> None:
        FORMULAS.update(dict.fromkeys(names, lambda need, out, *a, **k: ((), rule(*a, **k))))

    return register


@_shaped("t")
def _t(self: Tensor) -> Any:
    return lambda g: g.t()


@_shaped("transpose")
def _transpose(self: Tensor, dim0: int, dim1: int) -> Any:
    return lambda g: g.transpose(dim0, dim1)


@_shaped("permute")
def _permute(self: Tensor, dims: Sequence[int]) -> Any:
    back = [0] * len(dims)
    for place, dim in enumerate(dims):
        back[dim % len(dims)] = place
    return lambda g: g.permute(back)


@_shaped("view", "_unsafe_view")
def _view(self: Tensor, size: Any) -> Any:
    shape = list(self.shape)
    return lambda g: g.reshape(shape)


@_shaped("expand")
def _expand(self: Tensor, size: Any, *, implicit: bool = False) -> Any:
    shape = self.shape
    return lambda g: _sum_to(g, shape)


def _sum_to(g: Tensor, shape: Sequence[int]) -> Tensor:
    lead = g.ndim - len(shape)
    dims = [*range(lead), *(i + lead for i, n in enumerate(shape) if n == 1 and g.shape[i + lead] != 1)]
    if dims:
        g = g.sum(dims, True)
    return g.view(list(shape)) if lead else g


@_shaped("unsqueeze")
def _unsqueeze(self: Tensor, dim: int) -> Any:
    return lambda g: g.squeeze(dim)


@_shaped("squeeze")
def _squeeze(self: Tensor, dim: Any = None) -> Any:
    shape = self.shape
    if isinstance(dim, int) and shape and shape[dim] != 1:
        return lambda g: g
    if isinstance(dim, int):
        return lambda g: g.unsqueeze(dim)
    return lambda g: g.reshape(list(shape))


@_shaped("slice")
def _slice(self: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    shape = list(self.shape)
    first, last, _ = slice(start, end).indices(shape[dim])
    return lambda g: aten.slice_backward.default(g, shape, dim, first, last, step)


@_shaped("select")
def _select(self: Tensor, dim: int, index: int) -> Any:
    shape = list(self.shape)
    return lambda g: aten.select_backward.default(g, shape, dim, index)


@_shaped("clone", "alias")
def _clone(self: Tensor, *, memory_format: Any = None) -> Any:
    return lambda g: g


@_shaped("_to_copy")
def _to_copy(self: Tensor, **options: Any) -> Any:
    device, dtype = self.device, self.dtype
    return lambda g: g.to(device=device, dtype=dtype)


@formula("copy", forgetful=True)
def _copy(need: Any, out: Any, self: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    return (), lambda g: (need[0] and aten.zeros_like.default(g), need[1] and g)


@formula("zero", "fill", forgetful=True)
def _constant(need: Any, out: Any, self: Tensor, value: Any = 0) -> Any:
    more = [lambda g: g.sum()] if isinstance(value, Tensor) else []
    return (), lambda g: [aten.zeros_like.default(g), *(f(g) for f in more)]


@formula("cat")
def _cat(need: Any, out: Any, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    sizes = [t.shape[dim] for t in tensors]

    def back(g: Tensor) -> Any:
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [want and g.narrow(dim, at, n) for want, at, n in zip(need, starts, sizes)]

    return (), back


@formula("stack")
def _stack(need: Any, out: Any, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    return (), lambda g: list(g.unbind(dim))


def _zeros(g: Sequence[Any], like: Sequence[tuple[Any, ...]]) -> list[Tensor]:
    present = next(x for x in g if x is not None)
    return [present.new_zeros(shape) if x is None else x for x, (shape,) in zip(g, like)]


@formula("split", "split_with_sizes")
def _split(need: Any, out: Any, self: Tensor, size: Any, dim: int = 0) -> Any:
    shapes = [(list(t.shape),) for t in out]
    return (), lambda g: aten.cat.default(_zeros(g, shapes), dim)


@formula("unbind")
def _unbind(need: Any, out: Any, self: Tensor, dim: int = 0) -> Any:
    shapes = [(list(t.shape),) for t in out]
    return (), lambda g: aten.stack.default(_zeros(g, shapes), dim)


@formula("index")
def _index(need: Any, out: Any, self: Tensor, indices: Any) -> Any:
    shape = list(self.shape)
    there = [i is not None for i in indices]

    def back(g: Tensor, *saved: Tensor) -> Any:
        left = iter(saved)
        at = [next(left) if is_there else None for is_there in there]
        zeros = g.new_zeros(shape)
        return [aten.index_put.default(zeros, at, g, True), *([False] * len(saved))]

    return tuple(i for i in indices if i is not None), back


# ---- sums -----------------------------------------------------------------------------------------------


def _with_dims(g: Tensor, shape: Sequence[int], dim: Any, keepdim: bool) -> Tensor:
    """g, of a sum over dims, with these dims of size 1 again."""
    if keepdim or not shape:
        return g
    dims = sorted(d % len(shape) for d in ([dim] if isinstance(dim, int) else dim))
    for d in dims:
        g = g.unsqueeze(d)
    return g


@_shaped("sum")
def _sum(self: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    shape = list(self.shape)
    if dim is None or dim == []:
        return lambda g: g.expand(shape)
    return lambda g: _with_dims(g, shape, dim, keepdim).expand(shape)


@_shaped("mean")
def _mean(self: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    shape = list(self.shape)
    if dim is None or dim == []:
        return lambda g: aten.div.Scalar(g.expand(shape), math.prod(shape))
    count = math.prod(shape[d] for d in ([dim] if isinstance(dim, int) else dim))
    return lambda g: aten.div.Scalar(_with_dims(g, shape, dim, keepdim).expand(shape), count)


@formula("amax", "amin")
def _amax(need: Any, out: Any, self: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    shape = list(self.shape)
    dims = list(range(len(shape))) if dim in ((), []) else dim

    def back(g: Tensor, self: Tensor, out: Tensor) -> Any:
        g, out = (_with_dims(t, shape, dims, keepdim) for t in (g, out))
        mask = out == self
        return (g / mask.sum(dims, True)) * mask

    return (self, out), back


# ---- layers ---------------------------------------------------------------------------------------------


@formula("_softmax")
def _softmax(need: Any, out: Any, self: Tensor, dim: int, half_to_float: bool) -> Any:
    dtype = self.dtype
    return (out,), lambda g, out: aten._softmax_backward_data.default(g, out, dim, dtype)


@formula("_log_softmax")
def _log_softmax(need: Any, out: Any, self: Tensor, dim: int, half_to_float: bool) -> Any:
    dtype = self.dtype
    return (out,), lambda g, out: aten._log_softmax_backward_data.default(g, out, dim, dtype)


@formula("nll_loss_forward")
def _nll_loss(
    need: Any, out: Any, self: Tensor, target: Tensor, weight: Any, reduction: int, ignore_index: int
) -> Any:
    def back(g: Any, self: Tensor, target: Tensor, weight: Any, total: Tensor) -> Any:
        grad = aten.nll_loss_backward.default(g, self, target, weight, reduction, ignore_index, total)
        return [grad, *([False] * (len(need) - 1))]

    return (self, target, weight, out[1]), back


@formula("mse_loss")
def _mse_loss(need: Any, out: Any, self: Tensor, target: Tensor, reduction: int = 1) -> Any:
    def back(g: Tensor, self: Tensor, target: Tensor) -> Any:
        return (
            need[0] and aten.mse_loss_backward.default(g, self, target, reduction),
            need[1] and aten.mse_loss_backward.default(g, target, self, reduction),
        )

    return (self, target), back


@formula("embedding")
def _embedding(
    need: Any,
    out: Any,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    rows = weight.shape[0]
    return (indices,), lambda g, indices: (
        aten.embedding_dense_backward.default(g, indices, rows, padding_idx, scale_grad_by_freq),
        False,
    )


@formula("native_layer_norm")
def _native_layer_norm(
    need: Any, out: Any, input: Tensor, shape: Any, weight: Any, bias: Any, eps: float
) -> Any:
    there = iter(need)
    mask = [t is not None and next(there) for t in (input, weight, bias)]

    def back(g: Any, input: Tensor, weight: Any, bias: Any, mean: Tensor, rstd: Tensor) -> Any:
        grads = aten.native_layer_norm_backward.default(g, input, shape, mean, rstd, weight, bias, mask)
        return [f for f, t in zip(grads, (input, weight, bias)) if t is not None]

    return (input, weight, bias, out[1], out[2]), back
