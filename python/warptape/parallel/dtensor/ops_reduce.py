"""Rules of reductions and of what works along a dim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warptape import core as wt

from ...core import Tensor
from .calls import to_full_tensor
from .ops_pointwise import pointwise
from .rules import Call, Labels, Rule, rule


def _reduced(call: Call, dims: list[int], keepdim: bool) -> tuple[Labels, Labels]:
    n = len(call.shapes[0])
    out: list[Any] = []
    for i in range(n):
        if i not in dims:
            out.append(i)
        elif keepdim:
            out.append(None)
    return tuple(range(n)), tuple(out)


def _flags(call: Call) -> tuple[list[int], bool]:
    """(dims, keepdim) of a reduction."""
    return call.dims(1, "dim", call.kwargs.get("axis")), bool(call.arg(2, "keepdim", False))


def reduction(kind: str) -> Callable[[Call], Rule]:
    """A rule for reductions over dims, whose split leaves a result that is still to be reduced as `kind`
    says.

    Largest, smallest and product have no gradient that way: they are taken of full dims where one is wanted,
    and so are averages of shards that are not equal.
    """

    def made(call: Call) -> Rule:
        dims, keepdim = _flags(call)
        names, out = _reduced(call, dims, keepdim)
        tensor: Any = call.args[0] if call.args else call.kwargs["input"]
        free = kind in ("sum", "avg") or not (wt.is_grad_enabled() and tensor.requires_grad)
        over = [d for d in dims if free and (kind == "sum" or call.divides(d))]
        names = tuple(i if i not in dims or i in over else None for i in names)
        return Rule([names], [out], sums=dict.fromkeys(over, kind), linear=[{0}] if call.linear else [])

    return made


rule("sum", "nansum")(reduction("sum"))
rule("mean")(reduction("avg"))
rule("amax")(reduction("max"))
rule("amin")(reduction("min"))
rule("prod")(reduction("product"))


@rule("max min")
def extreme(call: Call) -> Rule | None:
    """Of all elements, along a dim with indices, or of two tensors."""
    if len(call.shapes) == 2:
        return pointwise(call)
    if call.arg(1, "dim") is None:
        free = not (wt.is_grad_enabled() and call.args[0].requires_grad)
        every = range(len(call.shapes[0]))
        over = [d for d in every if free and call.divides(d)]
        names = tuple(d if d in over else None for d in every)
        return Rule([names], [()], sums=dict.fromkeys(over, call.name))
    return along()(call)


def along(position: int = 1, default: Any = None, keeps: bool = False) -> Callable[[Call], Rule]:
    """A rule for ops along dims that must not be split.

    Args:
        position: where the argument `dim` stands.
        default: what it is when it is left out; None for all dims.
        keeps: the result has these dims, too.
    """

    def made(call: Call) -> Rule:
        n = len(call.shapes[0])
        if n == 0:
            return Rule([()] * len(call.shapes), [()])
        dims = call.dims(position, "dim", default)
        if isinstance(call.arg(1, "dim"), bool):  # var(unbiased)
            dims = list(range(n))
        keepdim = call.kwargs.get("keepdim", any(a is True for a in call.args[position + 1 :]))
        names: Labels = tuple(None if i in dims else i for i in range(n))
        out = names if keeps else tuple(x for i, x in enumerate(names) if i not in dims or keepdim)
        return Rule([names] + [(None,) * len(s) for s in call.shapes[1:]], [out])

    return made


rule("all", "any", "var", "std", "count_nonzero")(along())
rule("argmax", "argmin", "median", "nanmedian", "logsumexp")(along())
rule("var_mean", "std_mean")(along())
rule("mode")(along(default=-1))
rule("norm", "vector_norm", "quantile")(along(position=2))
rule("matrix_norm")(along(position=2, default=(-2, -1)))
rule("kthvalue")(along(position=2, default=-1))
rule("topk")(along(position=2, default=-1, keeps=True))
rule("normalize")(along(position=2, default=1, keeps=True))
rule("softmax", "log_softmax", "softmin")(along(default=-1, keeps=True))
rule("sort", "argsort", "glu")(along(default=-1, keeps=True))
rule("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")(along(keeps=True))


def _largest(call: Call) -> int:
    """The largest element of a full tensor of integers; -1 of none."""
    values = to_full_tensor(next(a for a in (*call.args, *call.kwargs.values()) if isinstance(a, Tensor)))
    return int(values.max()) if values.numel() else -1


@rule("bincount")
def bincount(call: Call) -> Rule:
    """[N] and weights [N], counted up to the largest of all ranks."""
    named = dict(zip(("weights", "minlength"), call.args[1:], strict=False)) | call.kwargs
    length = max(_largest(call) + 1, named.get("minlength", 0))
    weighted = named.get("weights") is not None

    def run(input: Tensor, *given: Any, **more: Any) -> Any:
        weights = more.get("weights", given[0] if given else None)
        return call.func(input, weights=weights, minlength=length)

    return Rule([("i",)] * (1 + weighted), [(None,)], sums={"i": "sum"}, run=run, shapes=[(length,)])


@rule("one_hot")
def one_hot(call: Call) -> Rule:
    """[*] to [*, classes], as many as there are in all ranks' parts."""
    classes = call.arg(1, "num_classes", -1)
    if classes == -1:
        classes = _largest(call) + 1
    labels = tuple(range(len(call.shapes[0])))
    return Rule([labels], [(*labels, None)], run=lambda input, *_, **__: call.func(input, classes))
