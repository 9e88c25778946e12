"""scan: a function of a carry and the slices of tensors, one after the other."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warptape import _C
from warptape.core import Tensor
from warptape.core.pytree import tree_flatten, tree_unflatten

from . import traced
from .utils import Flat, Leaves, call, check_alike, stacked

if TYPE_CHECKING:
    from warptape.core.pytree import PyTree


def scan_op(
    combine_fn: Callable[..., tuple[Any, ...]], init: Leaves, xs: Leaves
) -> tuple[tuple[Any, ...], list[Any]]:
    """`scan` of flat values along dim 0: the last carry, and the stacked results."""
    if _C._tracer() is not None:
        return traced.scan(combine_fn, init, xs)
    carry, rows = tuple(init), []
    slices = [x.unbind(0) for x in xs]
    for i in range(len(slices[0])):
        returned = call("scan", combine_fn, (*carry, *[of[i] for of in slices]))
        check_alike("scan: the carry that combine_fn returns and init", returned[: len(init)], carry)
        carry = returned[: len(init)]
        rows.append(returned[len(init) :])
    return carry, stacked("scan", rows)


def slices_first(
    name: str, xs: Leaves, dim: int, reverse: bool, error: type[Exception]
) -> tuple[list[Tensor], Callable[[Tensor], Tensor]]:
    """Tensors with `dim` in front, in the scan's order, and what puts a result back in place."""
    last = max(xs[0].dim(), 1) - 1
    if not isinstance(reverse, bool):
        raise RuntimeError(f"{name}: Reverse must be a bool, but got {type(reverse)}")
    if not -last - 1 <= operator.index(dim) <= last:
        raise IndexError(f"{name}: Dimension out of range [{-last - 1}, {last}], got {dim}")
    dim %= last + 1
    if any(x.dim() <= dim or x.shape[dim] == 0 for x in xs):
        raise error(
            f"{name}: All xs leaves must at least have 'dim' number of dimensions and scan dimension > 0"
        )

    def back(x: Tensor) -> Tensor:
        x = x.flip(0) if reverse else x
        return x.movedim(0, dim) if dim < x.dim() else x

    return [x.movedim(dim, 0).flip([0] if reverse else []) for x in xs], back


def scan(
    combine_fn: Callable[[Any, Any], tuple[Any, Any]],
    init: PyTree,
    xs: PyTree,
    *,
    dim: int = 0,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """The last carry of carry, y = combine_fn(carry, slice) over the slices of `xs`, and all y stacked.

    Args:
        combine_fn: returns the next carry, like `init` in number, shapes, dtypes and devices, and a tree of
            tensors.
        init: the first carry, a tree of tensors.
        xs: a tree of tensors, sliced together.
        dim: the dim to slice, and the one along which the results are stacked.
        reverse: from the last slice to the first; results lie where their slices do.

    Raises:
        RuntimeError: wrong arguments or results; a combine_fn that writes to what it takes or returns it, or
            a view of it.
        IndexError: `dim` out of range.
    """
    carries, leaves = tree_flatten(init)[0], tree_flatten(xs)[0]
    if not leaves:
        return init, []
    if not callable(combine_fn):
        raise RuntimeError(f"scan: Combine_fn must be a callable, but got {combine_fn}")
    if not carries:
        raise RuntimeError("scan: operator requires init leaves.")
    for name, tensors in (("init", carries), ("xs", leaves)):
        for x in tensors:
            if not isinstance(x, Tensor):
                raise RuntimeError(f"scan: All {name} leaves must be a Tensor but got {x}")
    slices, back = slices_first("scan", leaves, dim, reverse, RuntimeError)

    def step(carry: PyTree, x: object) -> tuple[Any, Any]:
        returned = combine_fn(carry, x)
        if not isinstance(returned, (tuple, list)) or len(returned) != 2:
            raise RuntimeError("scan: combine_fn must return a pair, the next carry and a result")
        count = len(tree_flatten(returned[0])[0])
        if count != len(carries):
            raise RuntimeError(f"scan: init has {len(carries)} leaves, the carry of combine_fn {count}")
        return returned[0], returned[1]

    flat = Flat(step, tree_flatten((init, xs))[1])
    last, results = scan_op(flat, carries, slices)
    carry, out = tree_unflatten((*last, *map(back, results)), flat.out_spec)
    return carry, out
