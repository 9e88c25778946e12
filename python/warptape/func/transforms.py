"""Functions that return functions: gradients, products with Jacobians, Jacobians, and maps over a batch.

Each works on nested lists, tuples and dicts of tensors, and on what other transforms return.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from warptape import _C
from warptape import core as wt
from warptape.autograd.graph import disable_saved_tensors_hooks
from warptape.core import Tensor
from warptape.core.pytree import tree_flatten, tree_map, tree_unflatten

from .vmap import vmap

if TYPE_CHECKING:
    from warptape.core.pytree import PyTree

_NO_HOOKS = "torch.func: grad, vjp, jacrev and hessian do not support saved tensor hooks"
_ArgNums = int | tuple[int, ...]


@contextmanager
def _recording(inputs: Any) -> Iterator[bool]:
    """Records inside; yields whether what is computed must stay differentiable outside. There no_grad holds,
    also between transforms, while inside it does not."""
    depth = _C._recording_transforms()
    leaves = [x for x in tree_flatten(inputs)[0] if isinstance(x, Tensor)]
    outer = wt.is_grad_enabled() and (depth > 0 or any(_C._recorded(x) for x in leaves))
    with wt.enable_grad(), disable_saved_tensors_hooks(_NO_HOOKS):
        _C._enter_recording(1)
        try:
            yield outer
        finally:
            _C._enter_recording(-1)


def _fresh(tree: PyTree) -> Any:
    """The tensors of a tree as variables of their own, still part of what recorded them."""
    return tree_map(lambda x: _C._fresh_variable(x) if isinstance(x, Tensor) else x, tree)


def _finished(tree: PyTree, outer: bool) -> Any:
    """A result as plain numbers, unless an outer transform goes on with it."""
    return tree if outer else tree_map(lambda x: _C._without_history(x) if isinstance(x, Tensor) else x, tree)


def _products(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: PyTree, outer: bool, keep: bool = False
) -> list[Tensor]:
    """autograd.grad with zeros for what does not matter."""
    out = _C._gradients(list(outputs), list(inputs), list(vectors), outer, outer or keep)
    return [wt.zeros_like(x) if g is None else g for g, x in zip(out, inputs)]


def _chosen(args: tuple[Any, ...], argnums: _ArgNums) -> tuple[list[Any], list[int]]:
    if not isinstance(argnums, (int, tuple)):
        raise RuntimeError(f"argnum must be int or Tuple[int, ...], got: {type(argnums)}")
    picks = [argnums] if isinstance(argnums, int) else list(argnums)
    if not picks:
        raise RuntimeError("argnums must be non-empty")
    for i in picks:
        if not isinstance(i, int):
            raise RuntimeError(f"argnum must be int, got: {type(i)}")
        if not -len(args) <= i < len(args):
            raise RuntimeError(f"Got argnum={i}, but only {len(args)} positional inputs")
    places = [i % len(args) for i in picks]
    if len(set(places)) != len(places):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    return [args[i] for i in picks], places


def _with(args: tuple[Any, ...], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    changed = list(args)
    for i, value in zip(places, values):
        changed[i] = value
    return changed


def _split(output: PyTree, has_aux: bool, what: str) -> tuple[Any, Any]:
    if not has_aux:
        return output, None
    if not isinstance(output, tuple) or len(output) != 2:
        raise RuntimeError(
            f"{what}: output of function f should be a tuple: (output, aux) if has_aux is True"
        )
    for x in tree_flatten(output[1])[0]:
        if not isinstance(x, Tensor):
            raise RuntimeError(f"{what}: aux: Expected tensors, got unsupported type {type(x)}")
    return output


def _variables(leaves: Sequence[Any]) -> list[Tensor]:
    return [x for x in leaves if isinstance(x, Tensor) and _C._recorded(x)]


def grad_and_value(
    func: Callable[..., Any], argnums: _ArgNums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the gradient of `func`'s scalar by arguments `argnums`, and the scalar.

    With `has_aux` func returns (scalar, aux), and the function (gradient, (scalar, aux)).

    Raises:
        RuntimeError: from the function, where func's result is no scalar tensor.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _recording((args, kwargs)) as outer:
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
            grads = iter(_products([value], _variables(leaves), [wt.ones_like(value)], outer))
            tree = tree_unflatten(
                [next(grads) if isinstance(x, Tensor) and _C._recorded(x) else None for x in leaves], spec
            )
            result = tree[0] if isinstance(argnums, int) else tuple(tree)
            value = _finished(value, outer)
            return _finished(result, outer), (value, _finished(aux, outer)) if has_aux else value

    return wrapper


def grad(func: Callable[..., Any], argnums: _ArgNums = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the gradient of `func`'s scalar; with `has_aux` (gradient, aux).

    >>> torch.func.grad(lambda x: x**2)(torch.tensor(3.0))
    tensor(6.)
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result, value = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return wrapper


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(func(*primals), product), where product(cotangents) gives their products with the Jacobian, by primal.

    With `has_aux` func returns (outputs, aux), and this (outputs, product, aux).

    Raises:
        RuntimeError: func returns what is no tensor; from product, cotangents of another structure.
    """
    of_tape = any(_C._recorded(x) for x in tree_flatten(primals)[0] if isinstance(x, Tensor))
    with _recording(primals) as outer:
        inputs = _fresh(list(primals))
        outputs, aux = _split(func(*inputs), has_aux, "vjp(f, *primals)")
        leaves, spec = tree_flatten(inputs)
        variables = _variables(leaves)
    out_leaves, out_spec = tree_flatten(outputs)
    _check_outputs(out_leaves, "vjp(f, *primals)")

    def product(cotangents: PyTree, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        vectors, cotangents_spec = tree_flatten(cotangents)
        if cotangents_spec != out_spec:
            raise RuntimeError(
                f"Expected pytree structure of cotangents to be the same as pytree structure of outputs to "
                f"the function. cotangents: {cotangents_spec}, primal output: {out_spec}"
            )
        on = create_graph
        if on is None:  # as no_grad has it here, not where the function was called
            kept = outer or of_tape or any(_C._recorded(v) for v in vectors)
            on = kept and wt.is_grad_enabled()
        with wt.enable_grad():
            out = iter(_products(out_leaves, variables, vectors, on, keep=retain_graph))
        rows = [next(out) if isinstance(x, Tensor) and _C._recorded(x) else None for x in leaves]
        tree = tree_unflatten(rows, spec)
        return tuple(tree)

    results = (_finished(outputs, outer), product)
    return (*results, _finished(aux, outer)) if has_aux else results


def _check_outputs(leaves: Sequence[Any], what: str) -> None:
    if all(x is None for x in leaves):
        raise RuntimeError(f"{what}: Expected f to be a function that has non-empty output")
    for x in leaves:
        if not isinstance(x, Tensor):
            raise RuntimeError(
                f"{what}: expected f(*primals) to return only tensors, got unsupported type {type(x)}"
            )


def _pairs(primals: PyTree, tangents: PyTree, what: str) -> tuple[list[Tensor], list[Tensor], Any]:
    if not isinstance(primals, tuple):
        raise RuntimeError(
            f"{what}: Expected primals to be a tuple. E.g. it should be valid to call f(*primals)."
        )
    leaves, spec = tree_flatten(primals)
    along, along_spec = tree_flatten(tangents)
    if spec != along_spec:
        raise RuntimeError(
            f"{what}: Expected primals and tangents to have the same python structure, the tangents to have "
            f"the same argspec as the primals. Got primals with structure {spec} and tangents with structure "
            f"{along_spec}"
        )
    for name, items in (("primals", leaves), ("tangents", along)):
        if not items:
            raise RuntimeError(f"{what}: Expected {name} to contain at least one Tensor.")
        for x in items:
            if not isinstance(x, Tensor):
                raise RuntimeError(
                    f"{what}: Expected {name} to only contain Tensors, got unsupported type {type(x)}"
                )
    for i, (p, t) in enumerate(zip(leaves, along)):
        for fact in ("shape", "dtype", "device"):
            if getattr(p, fact) != getattr(t, fact):
                raise RuntimeError(
                    f"{what}: tangent {i} in flattened pytree doesn't match the {fact} of its primal: "
                    f"expected {getattr(p, fact)}, got {getattr(t, fact)}"
                )
    return leaves, along, spec


def jvp(
    func: Callable[..., Any],
    primals: PyTree,
    tangents: PyTree,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """(func(*primals), the derivative along the tangents), in one pass forward on dual numbers (Griewank and
    Walther, "Evaluating Derivatives", 3.1). With `has_aux` func returns (outputs, aux), and this aux too.

    Raises:
        RuntimeError: tangents that do not fit the primals, outputs that are no tensors; with `strict`, an
            output that does not depend on the primals.
    """
    leaves, along, spec = _pairs(primals, tangents, "jvp(f, primals, tangents)")
    level, forward_grad = _C._push_jvp(), _C._set_forward_grad(True)
    try:
        duals = [
            _C._make_dual(p, t, level) if p.is_floating_point() or p.is_complex() else p
            for p, t in zip(leaves, along)
        ]
        outputs, aux = _split(func(*tree_unflatten(duals, spec)), has_aux, "jvp(f, primals, tangents)")
        out_leaves, out_spec = tree_flatten(outputs)
        _check_outputs(out_leaves, "jvp(f, primals, tangents)")
        parts = [_C._unpack_dual(x, level) for x in out_leaves]
        if strict and any(t is None for _, t in parts):
            raise RuntimeError(
                "jvp(f, primals, tangents, strict=True): The output of f is independent of the inputs. This "
                "is not allowed with strict=True."
            )
        values = tree_unflatten([p for p, _ in parts], out_spec)
        derivatives = tree_unflatten([wt.zeros_like(p) if t is None else t for p, t in parts], out_spec)
        extra = tree_map(lambda x: _C._unpack_dual(x, level)[0] if isinstance(x, Tensor) else x, aux)
        return (values, derivatives, extra) if has_aux else (values, derivatives)
    finally:
        _C._set_forward_grad(forward_grad)
        _C._pop_transform(level)


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(func(*primals), product), where product(*tangents) gives the derivative along them: the derivative of
    the backward, which is linear in the gradient that it is given, so that func is called once (Townsend, "A
    new trick for calculating Jacobian vector products").

    Raises:
        RuntimeError: from product, tangents that do not fit the primals.
    """
    with _recording(primals):
        inputs = _fresh(primals)
        outputs = func(*inputs)
        out_leaves, out_spec = tree_flatten(outputs)
        _check_outputs(out_leaves, "linearize(f, *primals)")
        variables = tree_flatten(inputs)[0]
        weights = _fresh([wt.zeros_like(x) for x in out_leaves])
        rows = _products(out_leaves, variables, weights, True)

    def product(*tangents: Any) -> Any:
        _, along, _ = _pairs(primals, tangents, "linearize(f, *primals)")
        out = _products(rows, weights, along, False, keep=True)
        return tree_unflatten([_C._without_history(x) for x in out], out_spec)

    return _finished(outputs, False), product


def _basis(leaves: Sequence[Tensor]) -> list[Tensor]:
    """The unit vectors of the space of all leaves together, stacked; of each the part that is this leaf's."""
    total = sum(x.numel() for x in leaves)
    out, start = [], 0
    for x in leaves:
        rows = x.new_zeros(total, x.numel())
        if x.numel():
            rows[start : start + x.numel()].fill_diagonal_(1)
        out.append(rows.reshape((total, *x.shape)))
        start += x.numel()
    return out


def _one_or_all(tree: list[Any], argnums: _ArgNums) -> Any:
    return tree[0] if isinstance(argnums, int) else tuple(tree)


def _check_real(leaves: Sequence[Any], what: str) -> None:
    for i, x in enumerate(leaves):
        if isinstance(x, Tensor) and x.is_complex():
            raise RuntimeError(f"{what} to be real but received complex tensor at flattened index {i}")


def jacrev(
    func: Callable[..., Any],
    argnums: _ArgNums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Callable[..., Any]:
    """A function that gives the Jacobian, of shape output.shape + input.shape, by one reverse pass for all
    rows, mapped by `vmap`; `chunk_size` rows at a time. For trees of outputs and inputs it is a tree of
    trees.

    Raises:
        RuntimeError: an output that is no tensor.
        ValueError: a chunk_size that is not positive.

    >>> torch.func.jacrev(lambda x: x**2)(torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError("jacrev: `chunk_size` should be greater than 0.")

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        chosen, places = _chosen(args, argnums)

        def of_chosen(*values: Any) -> Any:
            return func(*_with(args, places, values), **kwargs)

        outputs, product, *aux = vjp(of_chosen, *chosen, has_aux=has_aux)
        out_leaves, out_spec = tree_flatten(outputs)
        in_leaves, in_spec = tree_flatten(list(chosen))
        _check_real(in_leaves, "jacrev: Expected all inputs")
        _check_real(out_leaves, "jacrev: Expected all outputs")
        basis = _basis(out_leaves)
        if chunk_size == 1:  # without vmap and what it refuses
            units = [tree_unflatten([b[i] for b in basis], out_spec) for i in range(len(basis[0]))]
            rows = tree_map(lambda *each: wt.stack(each), *map(product, units))
        else:
            rows = vmap(product, chunk_size=chunk_size)(tree_unflatten(basis, out_spec))
        columns = tree_flatten(list(rows))[0]
        blocks, start = [], 0
        for out in out_leaves:
            parts = [
                c[start : start + out.numel()].reshape((*out.shape, *x.shape))
                for c, x in zip(columns, in_leaves)
            ]
            start += out.numel()
            blocks.append(_one_or_all(tree_unflatten(parts, in_spec), argnums))
        result = tree_unflatten(blocks, out_spec)
        return (result, aux[0]) if has_aux else result

    return wrapper


def jacfwd(
    func: Callable[..., Any], argnums: _ArgNums = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Callable[..., Any]:
    """As `jacrev`, by one forward pass on dual numbers for all columns, mapped by `vmap`.

    Raises:
        RuntimeError: an output that is no tensor.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        chosen, places = _chosen(args, argnums)
        leaves, spec = tree_flatten(tuple(chosen))
        _check_real(leaves, "jacfwd: Expected all inputs")

        def along(basis: Any) -> Any:
            def of_chosen(*values: Any) -> Any:
                return func(*_with(args, places, values), **kwargs)

            out = jvp(of_chosen, tuple(chosen), basis, has_aux=has_aux)
            return (out[1], out[2]) if has_aux else out[1]

        columns = vmap(along, randomness=randomness, out_dims=(-1, 0) if has_aux else -1)(
            tree_unflatten(_basis(leaves), spec)
        )
        aux = tree_map(lambda x: x[0], columns[1]) if has_aux else None
        outs, out_spec = tree_flatten(columns[0] if has_aux else columns)
        _check_real(outs, "jacfwd: Expected all outputs")
        blocks = []
        for out in outs:
            sizes = [x.numel() for x in leaves]
            parts = [c.reshape((*out.shape[:-1], *x.shape)) for c, x in zip(out.split(sizes, dim=-1), leaves)]
            blocks.append(_one_or_all(list(tree_unflatten(parts, spec)), argnums))
        result = tree_unflatten(blocks, out_spec)
        return (result, aux) if has_aux else result

    return wrapper


def hessian(func: Callable[..., Any], argnums: _ArgNums = 0) -> Callable[..., Any]:
    """A function that gives a scalar's second derivatives, its gradient's Jacobian: forward over reverse.

    Args:
        func: of tensors, to one number.
        argnums: which arguments count.

    >>> torch.func.hessian(lambda x: x.pow(3).sum())(torch.tensor([2.0]))
    tensor([[12.]])
    """
    return jacfwd(jacrev(func, argnums), argnums)


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
        stacks = {}
        for name, first in dicts[0].items():
            if requires_grad and any(d[name].requires_grad != first.requires_grad for d in dicts):
                raise RuntimeError(f"Expected {name} from each model to have the same .requires_grad")
            with wt.no_grad():
                stacks[name] = wt.stack([d[name] for d in dicts])
            stacks[name].requires_grad_(requires_grad and first.requires_grad)
        return stacks

    return stacked([dict(m.named_parameters()) for m in models], True), stacked(
        [dict(m.named_buffers()) for m in models], False
    )
