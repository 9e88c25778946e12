"""map: a function of each slice of tensors, its results stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warptape.core import Tensor
from warptape.core.pytree import tree_flatten, tree_unflatten

from .utils import Flat, Leaves, call, stacked

if TYPE_CHECKING:
    from warptape.core.pytree import PyTree


def map_impl(f: Callable[..., tuple[Any, ...]], xs: Leaves, pos_args: Leaves) -> list[Any]:
    """`map` of flat values."""
    slices = zip(*[x.unbind(0) for x in xs], strict=True)
    return stacked("map", [call("map", f, (*each, *pos_args)) for each in slices], (Tensor, type(None)))


def map(f: Callable[..., Any], xs: PyTree, *args: Any) -> Any:
    """f(slice, *args) for each slice of `xs` along dim 0, stacked.

    Args:
        f: returns a tree of tensors; None stays None.
        xs: a tree of tensors of one size along dim 0.
        args: what each call takes besides.

    Raises:
        RuntimeError: wrong arguments or results; an f that writes to what it takes or returns it, or a view
            of it.
        IndexError: no tensor in `xs`, or one without dims.
    """
    leaves, extra = tree_flatten(xs)[0], tree_flatten(args)[0]
    if not callable(f):
        raise RuntimeError(f"map: f must be callable, but got {f}")
    if not all(isinstance(x, Tensor) for x in leaves):
        raise RuntimeError(f"map: Mapped xs can only consist of tensors. Got xs {leaves}.")
    if not leaves or any(x.dim() == 0 for x in leaves):
        raise IndexError("map: expected tensors with a leading dim in xs")
    if leaves[0].shape[0] == 0:
        raise RuntimeError("map: Leading dimensions of mapped xs cannot be 0.")
    if any(x.shape[0] != leaves[0].shape[0] for x in leaves):
        shapes = [tuple(x.shape) for x in leaves]
        raise RuntimeError(f"map: Leading dimensions of mapped xs must be consistent. Got shapes {shapes}.")
    flat = Flat(f, tree_flatten((xs, *args))[1])
    results = map_impl(flat, leaves, extra)
    return tree_unflatten(results, flat.out_spec)
