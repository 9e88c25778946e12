"""associative_scan: the results of an associative function over all prefixes, in log2(n) steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor
from warptape.core.pytree import tree_flatten, tree_unflatten
from warptape.func import vmap

from .scan import slices_first
from .utils import Flat, Leaves

if TYPE_CHECKING:
    from warptape.core.pytree import PyTree


def associative_scan_op(combine_fn: Callable[..., tuple[Any, ...]], xs: Leaves) -> list[Tensor]:
    """`associative_scan` of flat values along dim 0; combine_fn takes the leaves of two slices."""
    mapped = vmap(combine_fn)

    def combined(left: Leaves, right: Leaves) -> tuple[Any, ...]:
        results = mapped(*left, *right)
        if len(results) != len(xs):
            raise AssertionError(
                f"associative_scan: combine_fn must return {len(xs)} tensors, as xs has, got {len(results)}"
            )
        return results

    def prefixes(of: Leaves) -> list[Tensor]:
        half, odd_length = divmod(of[0].shape[0], 2)
        if half == 0:
            return list(of)
        # Pairs of neighbours give every second prefix; one step more gives those between.
        odd = prefixes(combined([x[: 2 * half : 2] for x in of], [x[1::2] for x in of]))
        between = combined([x[: half - 1 + odd_length] for x in odd], [x[2::2] for x in of])
        even = [wt.cat([x[:1], rest]) for x, rest in zip(of, between)]
        pairs = [wt.stack([e[:half], o], 1).flatten(0, 1) for e, o in zip(even, odd)]
        return [wt.cat([p, e[half:]]) for p, e in zip(pairs, even)] if odd_length else pairs

    return prefixes(xs)


def associative_scan(
    combine_fn: Callable[[Any, Any], Any],
    xs: PyTree,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """x0, combine_fn(x0, x1), combine_fn(combine_fn(x0, x1), x2) .. for the slices x of `xs`.

    Args:
        combine_fn: takes two slices and returns what is like them; must be associative and is mapped by vmap.
        xs: a tree of tensors of one size along `dim`.
        dim: the dim to slice.
        reverse: from the last slice on.
        combine_mode: "pointwise" is for CUDA tensors alone, as in PyTorch, "generic" for all; both compute
            the same.

    Raises:
        ValueError: wrong arguments.
        IndexError: `dim` out of range.
        RuntimeError: a `reverse` that is no bool.
        AssertionError: a combine_fn that returns more or fewer tensors than there are in `xs`.
    """
    leaves, spec = tree_flatten(xs)
    if not callable(combine_fn):
        raise ValueError(f"associative_scan: Combine_fn must be a callable, but got {combine_fn}")
    if combine_mode not in ("pointwise", "generic"):
        raise ValueError(
            f"associative_scan: Combine_mode must either 'pointwise' or 'generic', but got {combine_mode}"
        )
    if not leaves or not all(isinstance(x, Tensor) for x in leaves):
        raise ValueError("associative_scan: Expected at least 1 xs leaf, and xs leaves must be a Tensor")
    if combine_mode == "pointwise" and not all(x.is_cuda for x in leaves):
        raise ValueError(
            "associative_scan: For combine_mode='pointwise', all input tensors need to be on CUDA"
        )
    slices, back = slices_first("associative_scan", leaves, dim, reverse, ValueError)
    results = associative_scan_op(Flat(combine_fn, tree_flatten((xs, xs))[1]), slices)
    return tree_unflatten(map(back, results), spec)
