"""vmap: one call of a function for all elements of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from warptape import _C
from warptape import core as wt
from warptape.autograd import function_transforms  # noqa: F401, Functions within transforms
from warptape.core import Tensor
from warptape.core.pytree import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from warptape.core.pytree import PyTree


def vmap(
    func: Callable[..., Any],
    in_dims: PyTree = 0,
    out_dims: PyTree = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function that maps `func` over a dim of its arguments and stacks the results.

    `func` is called once, on tensors that stand for all elements; each op runs once for all by its batching
    rule. An op without one is called for each element, with a warning.

    Args:
        func: takes and returns tensors, or trees of them.
        in_dims: the mapped dim of each argument, or of all; None for arguments that are the same for all. May
            be a tree like the arguments.
        out_dims: where the new dim goes, for each output, or for all; None for outputs that are not mapped.
        randomness: of random ops: "error" refuses them, "different" draws anew for each element, "same" once.
        chunk_size: elements to map at a time; None: all.

    Raises:
        ValueError: sizes that differ, no mapped argument, an in_dims or out_dims that does not fit, a
            chunk_size below 1.
        RuntimeError: from func, a random op under "error", control flow on the data of a mapped tensor.

    >>> torch.func.vmap(torch.dot)(torch.ones(3, 2), torch.ones(3, 2))
    tensor([2., 2., 2.])
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}"
        )
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten(list(args))
        dims = _spread(in_dims, args, func)
        size = _batch_size(leaves, dims, in_dims, func)
        if chunk_size is None or chunk_size >= size:
            return _mapped(func, leaves, dims, spec, size, out_dims, randomness, kwargs)
        parts = []
        for start in range(0, size, chunk_size):
            length = min(chunk_size, size - start)
            part = [x if d is None else x.narrow(d, start, length) for x, d in zip(leaves, dims)]
            parts.append(_mapped(func, part, dims, spec, length, out_dims, randomness, kwargs))
        return _joined(parts, out_dims, func)

    return wrapper


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", repr(func))


def _batch_size(
    leaves: Sequence[Any], dims: Sequence[int | None], in_dims: PyTree, func: Callable[..., Any]
) -> int:
    what = f"vmap({_name(func)}, in_dims={in_dims}, ...)(<inputs>)"
    sizes = []
    for x, d in zip(leaves, dims):
        if d is None:
            continue
        if not isinstance(x, Tensor):
            raise ValueError(
                f"{what}: Got in_dim={d} for an input but the input is of type {type(x)}. We cannot vmap "
                "over non-Tensor arguments, please use None as the respective in_dim"
            )
        if x.is_nested:
            raise NotImplementedError(f"{what}: nested tensors are not mapped; use unbind() and a loop")
        if not -x.dim() <= d < x.dim():
            raise ValueError(
                f"{what}: Got in_dim={d} for some input, but that input is a Tensor of dimensionality "
                f"{x.dim()} so expected in_dim to satisfy -{x.dim()} <= in_dim < {x.dim()}."
            )
        sizes.append(x.shape[d])
    if not sizes:
        raise ValueError(
            f"vmap({_name(func)}): expected at least one Tensor to vmap over; in_dims is None for all, or "
            "there are no tensors among the inputs"
        )
    if len(set(sizes)) > 1:
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{sizes} for the mapped dimension"
        )
    return sizes[0]


def _mapped(
    func: Callable[..., Any],
    leaves: Sequence[Any],
    dims: Sequence[int | None],
    spec: PyTree,
    size: int,
    out_dims: PyTree,
    randomness: str,
    kwargs: dict[str, Any],
) -> Any:
    level = _C._push_vmap(size, randomness)
    try:
        inside = [x if d is None else _C._add_batch_dim(x, d, level) for x, d in zip(leaves, dims)]
        outputs = func(*tree_unflatten(inside, spec), **kwargs)
        out_leaves, out_spec = tree_flatten(outputs)
        placed = []
        for x, d in zip(out_leaves, _places(out_dims, outputs, func)):
            if not isinstance(x, Tensor):
                raise ValueError(
                    f"vmap({_name(func)}, ...): `{_name(func)}` must only return Tensors, got type {type(x)}"
                )
            placed.append(_taken(x, d, level, func))
        return tree_unflatten(placed, out_spec)
    finally:
        _C._pop_transform(level)


def _taken(x: Tensor, dim: int | None, level: int, func: Callable[..., Any]) -> Tensor:
    if dim is not None:
        if not -x.dim() - 1 <= dim <= x.dim():
            raise IndexError(
                f"vmap({_name(func)}): out_dims {dim} is out of range for an output of {x.dim()} dims"
            )
        return _C._remove_batch_dim(x, level, dim)
    wrapper = _C._wrapper(x)
    if wrapper is not None and wrapper[1] == level:
        raise ValueError(
            f"vmap({_name(func)}, ...): `{_name(func)}` can not return a BatchedTensor when out_dim is None"
        )
    return x


def _below(dims: PyTree, tree: PyTree, refuse: Callable[[], Exception]) -> list[int | None]:
    """One dim for each leaf of the tree, of which dims is a prefix."""
    leaves = tree_flatten(tree)[0]
    if dims is None or (isinstance(dims, int) and not isinstance(dims, bool)):
        return [dims] * len(leaves)
    if isinstance(dims, dict) and isinstance(tree, dict) and dims.keys() == tree.keys():
        return [d for key in tree for d in _below(dims[key], tree[key], refuse)]
    if isinstance(dims, (list, tuple)) and isinstance(tree, (list, tuple)) and len(dims) == len(tree):
        return [d for part, sub in zip(dims, tree) for d in _below(part, sub, refuse)]
    raise refuse()


def _spread(in_dims: PyTree, args: tuple[Any, ...], func: Callable[..., Any]) -> list[int | None]:
    """One dim for each leaf of the arguments."""

    def refuse() -> Exception:
        return ValueError(
            f"vmap({_name(func)}, in_dims={in_dims}, ...)(<inputs>): in_dims is not compatible with the "
            "structure of inputs"
        )

    if not isinstance(in_dims, (int, list, tuple, dict)) and in_dims is not None:
        raise ValueError(
            f"vmap({_name(func)}, in_dims={in_dims}, ...)(<inputs>): expected `in_dims` to be int or a "
            f"(potentially nested) tuple matching the structure of inputs, got: {type(in_dims)}."
        )
    if not args:
        raise ValueError(
            f"vmap({_name(func)})(<inputs>): got no inputs. Maybe you forgot to add inputs, or you are "
            "trying to vmap over a function with no inputs. The latter is unsupported."
        )
    return _below(in_dims if in_dims is None or isinstance(in_dims, int) else tuple(in_dims), args, refuse)


def _places(out_dims: PyTree, outputs: PyTree, func: Callable[..., Any]) -> list[int | None]:
    def refuse() -> Exception:
        return ValueError(
            f"vmap({_name(func)}, ..., out_dims={out_dims}): out_dims is not compatible with the structure "
            "of outputs"
        )

    if isinstance(outputs, Tensor) and isinstance(out_dims, (list, tuple)) and len(out_dims) == 1:
        return [out_dims[0]]
    return _below(out_dims, outputs, refuse)


def _joined(parts: Sequence[Any], out_dims: PyTree, func: Callable[..., Any]) -> Any:
    flat = [tree_flatten(p) for p in parts]
    joined = [
        pieces[0] if d is None else wt.cat(pieces, d)
        for pieces, d in zip(zip(*(leaves for leaves, _ in flat)), _places(out_dims, parts[0], func))
    ]
    return tree_unflatten(joined, flat[0][1])


def debug_unwrap(tensor: Tensor, *, recurse: bool = True) -> Tensor:
    """What a tensor inside of vmap or jvp stands for: with `recurse` outside of all of them, else of the
    innermost. For debugging alone: what is done with it escapes the transforms."""
    wrapper = _C._wrapper(tensor)
    if wrapper is None:
        return tensor
    return debug_unwrap(wrapper[2]) if recurse else wrapper[2]
