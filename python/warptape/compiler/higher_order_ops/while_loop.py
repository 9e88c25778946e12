"""while_loop: a function of its own results, for as long as a predicate of them holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warptape import _C
from warptape import core as wt
from warptape.core import Tensor
from warptape.core.pytree import tree_flatten, tree_map_only, tree_unflatten

from . import traced
from .utils import Flat, Leaves, call, check_alike

if TYPE_CHECKING:
    from warptape.core.pytree import PyTree


def while_loop_op(
    cond_fn: Callable[..., tuple[Any]], body_fn: Callable[..., tuple[Any, ...]], carried: Leaves
) -> tuple[Any, ...]:
    """`while_loop` of flat values; cond_fn returns a predicate alone. On meta tensors the body runs once."""
    if _C._tracer() is not None:
        return traced.while_loop(cond_fn, body_fn, carried)
    values = start = tuple(carried)
    while True:
        (proceed,) = cond_fn(*values)
        tensor = isinstance(proceed, Tensor) and proceed.dim() == 0 and proceed.dtype == wt.bool
        if not tensor and not isinstance(proceed, bool):
            raise RuntimeError(
                f"while_loop: cond_fn must return a boolean scalar tensor or a boolean but got {proceed}"
            )
        unknown = tensor and proceed.is_meta
        if not unknown and not proceed:
            return values if values is not start else tuple(tree_map_only(Tensor, Tensor.clone, start))
        returned = call("while_loop", body_fn, values)
        check_alike("while_loop: the results of body_fn and the carried values", returned, values)
        values = returned
        if unknown:
            return values


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: PyTree) -> Any:
    """The values that body_fn(*values) returns again and again, from `carried_inputs` on, for as long as
    cond_fn(*values) is true.

    Args:
        cond_fn: returns a boolean tensor without dims, or a bool.
        body_fn: returns new values of the shapes, dtypes and devices of those it takes.
        carried_inputs: a tuple or list of trees of tensors and ints.

    Raises:
        RuntimeError: a result of cond_fn or body_fn that is none of these; a body_fn that writes to what it
            takes or returns it, or a view of it.
        AssertionError: a carried value that is neither tensor nor int.
    """
    if not callable(cond_fn) or not callable(body_fn):
        raise RuntimeError("while_loop: Expect cond_fn and body_fn to be callable.")
    if not isinstance(carried_inputs, (tuple, list)):
        raise RuntimeError(f"while_loop: carried_inputs must be a tuple or list, got {type(carried_inputs)}")
    leaves, spec = tree_flatten(carried_inputs)
    if not all(isinstance(x, (Tensor, int)) for x in leaves):
        kinds = ", ".join(type(x).__name__ for x in leaves)
        raise AssertionError(f"while_loop: carried_inputs can only be tensors and ints, but got {kinds}")
    body = Flat(body_fn, spec)
    results = while_loop_op(lambda *values: (cond_fn(*tree_unflatten(values, spec)),), body, leaves)
    return tree_unflatten(results, body.out_spec or spec)
