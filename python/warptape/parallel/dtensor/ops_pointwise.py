"""Rules of pointwise ops and of products."""

from __future__ import annotations

from typing import Any

from warptape import core as wt

from .rules import Call, Labels, Rule, rule


def aligned(shape: tuple[int, ...], out: tuple[int, ...]) -> Labels:
    """Labels of a tensor that is broadcast to `out`; a dim that is stretched has none.

    Args:
        shape: of the tensor.
        out: what it is broadcast to.

    >>> from warptape.parallel.dtensor.ops_pointwise import aligned
    >>> aligned((1, 4), (2, 3, 4))
    (None, 2)
    """
    ahead = len(out) - len(shape)
    return tuple(None if n == 1 and out[ahead + i] != 1 else ahead + i for i, n in enumerate(shape))


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that they are broadcast to.

    Args:
        shapes: of all tensors.
    """
    ndim = max((len(s) for s in shapes), default=0)
    out = [1] * ndim
    for shape in shapes:
        for i, n in enumerate(shape):
            at = ndim - len(shape) + i
            out[at] = n if out[at] == 1 else out[at]
    return tuple(out)


@rule("role=pointwise")
def pointwise(call: Call) -> Rule:
    """Dims of one place, counted from the last, belong together."""
    out = call.shapes[0] if call.inplace else broadcast(call.shapes)
    tensors = set(range(len(call.shapes)))
    linear: list[set[int]] = []
    if call.linear and _stays_floating(call):
        linear = [tensors]
    elif call.name in ("add", "sub", "subtract", "lerp"):
        # A number is not to be added to each summand; of lerp's three the weight is a factor.
        terms = [call.tensor(0, "input"), call.tensor(1, "end" if call.name == "lerp" else "other")]
        linear = [] if None in terms else [{t for t in terms if t is not None}]
    elif call.name in ("mul", "multiply"):
        linear = [{i} for i in tensors]
    elif call.name in ("div", "divide", "true_divide") and not call.kwargs.get("rounding_mode"):
        numerator = call.tensor(0, "input")  # None for a number, as in 1 / x
        linear = [] if numerator is None else [{numerator}]
    labels = tuple(range(len(out)))
    moves = bool(linear) and call.linear and not call.name.startswith("neg")
    return Rule([aligned(s, out) for s in call.shapes], [labels], linear=linear, moves=moves)


def _stays_floating(call: Call) -> bool:
    """Whether an op that may convert makes no integers, of which a sum would be another."""
    dtype = next((x.dtype for x in call.layouts if x is not None), None)
    if dtype is None or not dtype.is_floating_point or len(call.shapes) > 1:
        return dtype is not None
    out: Any = call.func(wt.empty(1, dtype=dtype), *call.args[1:], **call.kwargs)
    return bool(out.dtype.is_floating_point)


def _product(call: Call, inputs: list[Labels], out: Labels, **more: Any) -> Rule:
    """Sums over the labels that the output lacks; linear in each of the first two."""
    seen = {x for labels in inputs for x in labels if x is not None}
    return Rule(inputs, [out], sums=dict.fromkeys(seen - set(out), "sum"), linear=[{0}, {1}], **more)


def _matmul_labels(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[Labels, Labels, Labels]:
    """Labels of two factors and of their matmul, batch dims broadcast."""
    batch = broadcast([a[:-2], b[:-2]])
    first = (*aligned(a[:-2], batch), *("ij" if len(a) > 1 else "j"))
    second = (*aligned(b[:-2], batch), *("jk" if len(b) > 1 else "j"))
    out = (*range(len(batch)), *("i" if len(a) > 1 else ""), *("k" if len(b) > 1 else ""))
    return first, second, out


@rule("role=product inner vdot")
def matmul(call: Call) -> Rule | None:
    """[.., i, j] [.., j, k]"""
    a, b = call.shapes[:2]
    if call.name == "inner" and (len(a) > 1 or len(b) > 1):
        return None
    first, second, out = _matmul_labels(a, b)
    return _product(call, [first, second], out)


@rule("role=add_product")
def addmm(call: Call) -> Rule:
    """beta * input + alpha * a @ b"""
    first, second, out = _matmul_labels(call.shapes[1], call.shapes[2])
    lengths = dict(zip((*first, *second), (*call.shapes[1], *call.shapes[2]), strict=True))
    shape = tuple(lengths[x] for x in out)
    added = tuple(None if at is None else out[int(str(at))] for at in aligned(call.shapes[0], shape))
    product = _product(call, [added, first, second], out, addends=frozenset({0}))
    product.linear = []
    return product


@rule("linear")
def linear(call: Call) -> Rule:
    """[.., i], [o, i] and [o]"""
    lead = tuple(range(len(call.shapes[0]) - 1))
    inputs: list[Labels] = [(*lead, "i"), ("o", "i")]
    bias = call.tensor(2, "bias")
    if bias is None:
        return _product(call, inputs, (*lead, "o"))
    product = _product(call, [*inputs, ("o",)], (*lead, "o"), addends=frozenset({2}))
    product.linear = []
    return product


@rule("outer ger")
def outer(call: Call) -> Rule:
    """[i] [j]"""
    return _product(call, [("i",), ("j",)], ("i", "j"))


@rule("einsum")
def einsum(call: Call) -> Rule | None:
    """By its letters; None for an ellipsis and for a letter twice in one operand."""
    text = call.args[0]
    if not isinstance(text, str) or "." in text:
        return None
    operands, arrow, result = text.replace(" ", "").partition("->")
    inputs = operands.split(",")
    if not arrow:
        letters = operands.replace(",", "")
        result = "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    if any(len(set(x)) != len(x) for x in inputs) or len(inputs) != len(call.shapes):
        return None
    product = _product(call, [tuple(x) for x in inputs], tuple(result))
    product.linear = [{i} for i in range(len(inputs))]
    return product
