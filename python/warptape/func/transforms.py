"""Functions that return functions: gradients, products with Jacobians, Jacobians, and maps over a batch.

Each works on nested lists, tuples and dicts of tensors. Transforms of transforms are higher derivatives.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import warptape
from warptape import Tensor, autograd
from warptape.utils._pytree import tree_flatten, tree_map, tree_unflatten

__all__ = [
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "stack_module_state",
    "vjp",
    "vmap",
]

_nesting = threading.local()


@contextmanager
def _level(inputs: Any) -> Iterator[bool]:
    """Records inside; yields whether what is computed must stay differentiable outside. There no_grad holds,
    also between transforms, while inside it does not."""
    depth = getattr(_nesting, "depth", 0)
    _nesting.depth = depth + 1
    leaves = [x for x in tree_flatten(inputs)[0] if isinstance(x, Tensor)]
    outer = warptape.is_grad_enabled() and (depth > 0 or any(x.requires_grad for x in leaves))
    try:
        with warptape.enable_grad():
            yield outer
    finally:
        _nesting.depth = depth


def _fresh(tree: Any) -> Any:
    """The tensors of a tree as variables of their own, still part of what recorded them."""

    def one(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()

    return tree_map(one, tree)


def _cut(tree: Any, outer: bool) -> Any:
    """A result as plain numbers, unless an outer transform goes on with it."""
    return tree if outer else tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, tree)


def _pull(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Any, outer: bool, keep: bool = False
) -> list[Tensor]:
    """autograd.grad with zeros for what does not matter."""
    recorded = [(o, v) for o, v in zip(outputs, vectors) if o.requires_grad]
    if not recorded:
        return [warptape.zeros_like(x) for x in inputs]
    found = autograd.grad(
        [o for o, _ in recorded],
        inputs,
        [v for _, v in recorded],
        create_graph=outer,
        retain_graph=outer or keep,
        allow_unused=True,
    )
    return [warptape.zeros_like(x) if g is None else g for g, x in zip(found, inputs)]


def _chosen(args: tuple[Any, ...], argnums: int | tuple[int, ...]) -> tuple[list[Any], list[int]]:
    picks = [argnums] if isinstance(argnums, int) else list(argnums)
    for i in picks:
        if not -len(args) <= i < len(args):
            raise RuntimeError(f"Got argnum={i}, but only {len(args)} positional inputs")
    return [args[i] for i in picks], [i % len(args) for i in picks]


def _with(args: tuple[Any, ...], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    changed = list(args)
    for i, value in zip(places, values):
        changed[i] = value
    return changed


def _split(output: Any, has_aux: bool, what: str) -> tuple[Any, Any]:
    if not has_aux:
        return output, None
    if not isinstance(output, tuple) or len(output) != 2:
        raise RuntimeError(
            f"{what}: output of function f should be a tuple: (output, aux) if has_aux is True"
        )
    return output


def grad_and_value(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the gradient of `func`'s scalar by arguments `argnums`, and the scalar.

    With `has_aux` func returns (scalar, aux), and the function (gradient, (scalar, aux)).

    Raises:
        RuntimeError: from the function, where func's result is no scalar tensor.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _level((args, kwargs)) as outer:
            chosen, places = _chosen(args, argnums)
            chosen = _fresh(chosen)
            value, aux = _split(
                func(*_with(args, places, chosen), **kwargs), has_aux, "grad_and_value(f)(*args)"
            )
            if not isinstance(value, Tensor) or value.dim() != 0:
                got = f"tensor with {value.dim()} dims" if isinstance(value, Tensor) else str(type(value))
                raise RuntimeError(
                    f"grad_and_value(f)(*args): Expected f(*args) to return a scalar tensor, got {got}. "
                    "Maybe you wanted to use the vjp or jacrev APIs instead?"
                )
            leaves, spec = tree_flatten(chosen)
            inputs = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
            grads = iter(_pull([value], inputs, [warptape.ones_like(value)], outer))
            tree = tree_unflatten(
                [next(grads) if isinstance(x, Tensor) and x.requires_grad else None for x in leaves], spec
            )
            result = tree[0] if isinstance(argnums, int) else tuple(tree)
            value = _cut(value, outer)
            return _cut(result, outer), (value, _cut(aux, outer)) if has_aux else value

    return wrapper


def grad(
    func: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the gradient of `func`'s scalar; with `has_aux` (gradient, aux)."""
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result, value = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return wrapper


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(func(*primals), product), where product(cotangents) gives their products with the Jacobian, by primal.

    With `has_aux` func returns (outputs, aux), and this (outputs, product, aux).
    """
    with _level(primals) as outer:
        inputs = _fresh(list(primals))
        outputs, aux = _split(func(*inputs), has_aux, "vjp(f, *primals)")
        leaves, spec = tree_flatten(inputs)
        variables = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    out_leaves, out_spec = tree_flatten(outputs)

    def product(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        vectors, given = tree_flatten(cotangents)
        if given != out_spec:
            raise RuntimeError("vjp: expected cotangents with the structure of the function's outputs")
        on = create_graph
        if on is None:  # as no_grad has it here, not where the function was called
            kept = outer or any(not x.is_leaf for x in variables) or any(v.requires_grad for v in vectors)
            on = kept and warptape.is_grad_enabled()
        with warptape.enable_grad():
            found = iter(_pull(out_leaves, variables, vectors, on, keep=retain_graph))
        rows = [next(found) if isinstance(x, Tensor) and x.requires_grad else None for x in leaves]
        tree = tree_unflatten(rows, spec)
        return tuple(tree)

    results = (_cut(outputs, outer), product)
    return (*results, _cut(aux, outer)) if has_aux else results


def jvp(
    func: Callable[..., Any], primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> tuple[Any, ...]:
    """(func(*primals), the derivative along the tangents), by two reverse passes (Townsend, "A new trick for
    calculating Jacobian vector products"). With `has_aux` func returns (outputs, aux), and this aux too."""
    with _level((primals, tangents)) as outer:
        inputs = _fresh(list(primals))
        outputs, aux = _split(func(*inputs), has_aux, "jvp(f, primals, tangents)")
        directions = [t for t in tree_flatten(tangents)[0] if isinstance(t, Tensor)]
        variables = [x for x in tree_flatten(inputs)[0] if isinstance(x, Tensor) and x.requires_grad]
        if len(variables) != len(directions):
            raise RuntimeError("jvp: expected tangents with the structure of the primals")
        out_leaves, out_spec = tree_flatten(outputs)
        weights = [warptape.zeros_like(o).requires_grad_() for o in out_leaves]
        rows = _pull(out_leaves, variables, weights, True)
        along = _pull(rows, weights, directions, outer)
        results = (_cut(outputs, outer), _cut(tree_unflatten(along, out_spec), outer))
        return (*results, _cut(aux, outer)) if has_aux else results


def _jacobian(
    func: Callable[..., Any], argnums: int | tuple[int, ...], has_aux: bool, what: str
) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _level((args, kwargs)) as outer:
            chosen, places = _chosen(args, argnums)
            chosen = _fresh(chosen)
            outputs, aux = _split(func(*_with(args, places, chosen), **kwargs), has_aux, what)
            leaves, spec = tree_flatten(chosen)
            outs, out_spec = tree_flatten(outputs)
            blocks = []
            for out in outs:
                rows = []
                for unit in warptape.eye(out.numel(), dtype=out.dtype, device=out.device):
                    rows.append(_pull([out], leaves, [unit.view_as(out)], outer, keep=True))
                columns = [
                    warptape.stack(parts).reshape(out.shape + x.shape)
                    if rows
                    else x.new_zeros(out.shape + x.shape)
                    for x, parts in zip(leaves, zip(*rows) if rows else [()] * len(leaves))
                ]
                tree = tree_unflatten(columns, spec)
                blocks.append(tree[0] if isinstance(argnums, int) else tuple(tree))
            result = _cut(tree_unflatten(blocks, out_spec), outer)
            return (result, _cut(aux, outer)) if has_aux else result

    return wrapper


def jacrev(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function that gives the Jacobian, of shape output.shape + input.shape, a row at a time.

    For trees of outputs and inputs it is a tree of trees. `chunk_size` is accepted.
    """
    return _jacobian(func, argnums, has_aux, "jacrev(f)(*args)")


def jacfwd(
    func: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
) -> Callable[..., Any]:
    """As `jacrev`: this tape goes backwards only, so the rows come one at a time here, too."""
    return _jacobian(func, argnums, has_aux, "jacfwd(f)(*args)")


def hessian(func: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """A function that gives the second derivatives of a scalar, the Jacobian of its Jacobian."""
    return jacfwd(jacrev(func, argnums), argnums)


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function that maps `func` over a dim of its arguments and stacks the results.

    It calls `func` once for each element: convenient, differentiable by everything here, but no faster than
    the loop. Random draws differ between elements, unless `randomness` is "same".

    Args:
        func: takes and returns tensors, or trees of them.
        in_dims: the mapped dim of each argument, or of all; None for arguments that are the same for all. May
            be a tree like the arguments.
        out_dims: where the new dim goes, for each output, or for all.
        randomness: "error" and "different" draw anew for each element; "same" repeats the first one's draws.
        chunk_size: accepted.

    Raises:
        ValueError: sizes that differ, no mapped argument, or an in_dims that does not fit.
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}"
        )

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten(list(args))
        dims = _spread(in_dims, args)
        mapped = [(x, d) for x, d in zip(leaves, dims) if d is not None]
        if not mapped:
            raise ValueError(
                "vmap(f, in_dims, ...)(*args): expected at least one Tensor to vmap over; in_dims is None "
                "for all"
            )
        for x, d in mapped:
            if not isinstance(x, Tensor) or not -x.dim() <= d < x.dim():
                shape = f"a Tensor of dimensionality {x.dim()}" if isinstance(x, Tensor) else str(type(x))
                raise ValueError(
                    f"vmap(f, in_dims={in_dims}, ...)(*args): Got in_dim={d} for an input of {shape}"
                )
        sizes = {x.shape[d] for x, d in mapped}
        if len(sizes) > 1:
            raise ValueError(
                "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
                f"{[x.shape[d] for x, d in mapped]} for the mapped dimension"
            )
        (size,) = sizes
        state = warptape.get_rng_state() if randomness == "same" else None
        found = []
        for i in range(size):
            if state is not None:
                warptape.set_rng_state(state)
            each = [x if d is None else x.select(d, i) for x, d in zip(leaves, dims)]
            found.append(func(*tree_unflatten(each, spec), **kwargs))
        return _stacked(found, out_dims)

    return wrapper


def _spread(in_dims: Any, args: tuple[Any, ...]) -> list[int | None]:
    """One dim for each leaf of the arguments."""

    def below(dims: Any, tree: Any) -> list[int | None]:
        leaves = tree_flatten(tree)[0]
        if dims is None or isinstance(dims, int):
            return [dims if isinstance(x, Tensor) else None for x in leaves]
        if isinstance(dims, dict) and isinstance(tree, dict) and dims.keys() == tree.keys():
            return [d for key in tree for d in below(dims[key], tree[key])]
        if isinstance(dims, (list, tuple)) and isinstance(tree, (list, tuple)) and len(dims) == len(tree):
            return [d for part, sub in zip(dims, tree) for d in below(part, sub)]
        raise ValueError(
            f"vmap(f, in_dims={in_dims}, ...)(*args): in_dims is not compatible with the structure of args"
        )

    return below(in_dims if in_dims is None or isinstance(in_dims, int) else tuple(in_dims), args)


def _stacked(found: Sequence[Any], out_dims: Any) -> Any:
    if not found:
        raise ValueError("vmap: expected a mapped dimension of at least one element")
    flat = [tree_flatten(each) for each in found]
    spec = flat[0][1]
    rows = [leaves for leaves, _ in flat]
    for x in rows[0]:
        if not isinstance(x, Tensor):
            raise ValueError(f"vmap(f, ...): `f` must only return Tensors, got type {type(x)} as a return")
    dims = [out_dims] * len(rows[0]) if isinstance(out_dims, int) else list(tree_flatten(list(out_dims))[0])
    if len(dims) != len(rows[0]):
        raise ValueError(
            f"vmap(f, ..., out_dims={out_dims}): out_dims is not compatible with the structure of outputs"
        )
    return tree_unflatten([warptape.stack(parts, d) for parts, d in zip(zip(*rows), dims)], spec)


def stack_module_state(models: Sequence[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, buffers) of modules of one architecture, by name, stacked along a new first dim: what an
    ensemble needs with `functional_call` and `vmap`.

    Raises:
        RuntimeError: no modules, or modules of several classes or modes.
    """
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({m.training for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    if len({type(m) for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")

    def stacked(dicts: list[dict[str, Tensor]], requires_grad: bool) -> dict[str, Tensor]:
        with warptape.no_grad():
            made = {name: warptape.stack([d[name] for d in dicts]) for name in dicts[0]}
        return {
            k: v.requires_grad_() if requires_grad and dicts[0][k].requires_grad else v
            for k, v in made.items()
        }

    return stacked([dict(m.named_parameters()) for m in models], True), stacked(
        [dict(m.named_buffers()) for m in models], False
    )
