"""cond: one of two functions, by a predicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warptape import _C
from warptape.core import Tensor, is_grad_enabled
from warptape.core.pytree import tree_flatten, tree_unflatten

from . import traced
from .utils import Flat, Leaves, call, check_alike, on_meta


def cond_op(
    pred: Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Leaves
) -> tuple[Any, ...]:
    """`cond` of flat operands, which both functions take; they return tuples of leaves. The one that is not
    taken runs on the meta device, since its results must be like those of the other."""

    if _C._tracer() is not None:
        return traced.cond(pred, true_fn, false_fn, operands)

    def run(function: Callable[..., Any], *leaves: Any) -> tuple[Any, ...]:
        # Without gradients PyTorch lets branches write and return views.
        return call("cond", function, leaves) if is_grad_enabled() else function(*leaves)

    taken, other = (true_fn, false_fn) if pred.is_meta or pred else (false_fn, true_fn)
    expected = on_meta(lambda *leaves: run(other, *leaves), operands)
    outputs = run(taken, *operands)
    if expected is not None:
        check_alike("cond: the results of the branches", outputs, expected, sizes=False)
    for x in outputs:
        if not isinstance(x, Tensor) and type(x) is not int:
            raise RuntimeError(f"cond: a branch must return tensors or ints, got {type(x).__name__}")
    return outputs


def cond(
    pred: bool | int | float | Tensor,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: tuple | list = (),
) -> Any:
    """true_fn(*operands) where `pred` is true, else false_fn(*operands).

    Args:
        pred: a tensor of one element. By a Python number one of the functions is called, and nothing checked.
        true_fn: takes the operands and returns a tree of tensors and ints.
        false_fn: the same; its results must have the structure, dtypes and numbers of dims of true_fn's.
        operands: trees of tensors.

    Raises:
        RuntimeError: a pred of several elements, operands other than tensors, results that differ; where
            gradients are on, a function that writes to an operand or returns one, or a view of one.
    """
    if isinstance(pred, (bool, int, float)):
        return true_fn(*operands) if pred else false_fn(*operands)
    if not isinstance(pred, Tensor):
        raise RuntimeError(f"cond: Expected pred to be bool or tensor, but got {pred}.")
    if pred.numel() != 1:
        raise RuntimeError(f"cond: Expected pred to be bool or single-element tensor, but got {pred}.")
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("cond: Expect both branches to be callable.")
    leaves, spec = tree_flatten(operands)
    if not isinstance(operands, (tuple, list)) or not all(isinstance(x, Tensor) for x in leaves):
        raise RuntimeError(
            "cond: Expect operands to be a tuple of possibly nested dict/list/tuple that only consists of "
            f"tensor leaves, but got {operands}."
        )
    branches = Flat(true_fn, spec), Flat(false_fn, spec)
    outputs = cond_op(pred, *branches, leaves)
    specs = [branch.out_spec for branch in branches if branch.out_spec is not None]
    if specs[0] != specs[-1]:
        raise RuntimeError(f"cond: the branches return {specs[0]} and {specs[-1]}, which differ in structure")
    return tree_unflatten(outputs, specs[0])
