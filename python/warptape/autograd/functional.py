"""Jacobians, Hessians and products with them, of a function at given inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from . import grad
from .function_transforms import in_function_transform

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _tuple(x: object, what: str) -> tuple[Tensor, ...]:
    values = x if isinstance(x, tuple) else tuple(x) if isinstance(x, list) else (x,)
    for each in values:
        if not isinstance(each, Tensor):
            raise TypeError(f"The {what} must be given as a Tensor or a tuple of Tensors, got {type(each)}")
    return values


def _call(
    func: Callable[..., Any], inputs: Tensor | tuple[Tensor, ...], create_graph: bool
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], bool]:
    """The inputs as variables of their own, the outputs, and whether those are one tensor."""
    if in_function_transform():
        raise RuntimeError(
            "torch.autograd.functional: called inside of a function that torch.func transforms, where its "
            "variables are not the transform's; take torch.func.jvp, vjp, jacrev, jacfwd or hessian"
        )
    values = _tuple(inputs, "inputs given to the function")
    variables = tuple(
        x.view_as(x) if create_graph and x.requires_grad else x.detach().requires_grad_() for x in values
    )
    out = func(*variables)
    return variables, _tuple(out, "outputs of the user-provided function"), isinstance(out, Tensor)


def _like(x: Any, wanted: object) -> Any:
    """A tuple, or its only element where the caller gave a tensor."""
    return x[0] if isinstance(wanted, Tensor) or wanted is True else tuple(x)


def _grads(
    outputs: Sequence[Tensor],
    inputs: Tensor | tuple[Tensor, ...],
    vectors: Sequence[Tensor],
    create_graph: bool,
    strict: bool,
    what: str,
) -> tuple[Tensor, ...]:
    recorded = [(o, v) for o, v in zip(outputs, vectors) if o.requires_grad]
    grads: Any = [None] * len(inputs)
    if recorded:
        grads = grad(
            [o for o, _ in recorded],
            inputs,
            [v for _, v in recorded],
            create_graph=create_graph,
            retain_graph=True,
            allow_unused=True,
        )
    if strict and (any(g is None for g in grads) or len(recorded) < len(outputs)):
        raise RuntimeError(
            f"{what}: an output of the user-provided function is independent of an input. "
            "This is not allowed in strict mode."
        )
    return tuple(wt.zeros_like(x) if g is None else g for g, x in zip(grads, inputs))


def _detached(x: Any, create_graph: bool) -> Any:
    return x if create_graph else tuple(t.detach() for t in x)


def _vectors(
    v: Tensor | tuple[Tensor, ...] | None, outputs: tuple[Tensor, ...], what: str
) -> tuple[Tensor, ...]:
    if v is None:
        if len(outputs) != 1 or outputs[0].numel() != 1:
            raise RuntimeError(f"The vector v can only be None if the {what} has a single element")
        return (wt.ones_like(outputs[0]),)
    vectors = _tuple(v, "v")
    if [t.shape for t in vectors] != [o.shape for o in outputs]:
        raise RuntimeError(f"v has invalid size: expected that of the {what}")
    return vectors


def vjp(
    func: Callable[..., Any],
    inputs: Tensor | tuple[Tensor, ...],
    v: Tensor | tuple[Tensor, ...] | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """(outputs, product of `v` and the Jacobian): v has the shapes of the outputs.

    Args:
        func: of tensors.
        inputs: a tensor, or a tuple of them.
        v: None for one output of one element.
        create_graph: whether the result can be differentiated.
        strict: whether an output that depends on no input raises.

    >>> torch.autograd.functional.vjp(lambda x: x**2, torch.tensor([3.0]), torch.tensor([1.0]))[1]
    tensor([6.])
    """
    with wt.enable_grad():
        x, out, one = _call(func, inputs, create_graph)
        grads = _grads(out, x, _vectors(v, out, "output of the function"), create_graph, strict, "vjp")
    return _like(_detached(out, create_graph), one), _like(_detached(grads, create_graph), inputs)


def jvp(
    func: Callable[..., Any],
    inputs: Tensor | tuple[Tensor, ...],
    v: Tensor | tuple[Tensor, ...] | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """(outputs, product of the Jacobian and `v`): v has the shapes of the inputs. By two reverse passes.

    Args:
        func: of tensors.
        inputs: a tensor, or a tuple of them.
        v: None for one input of one element.
        create_graph: whether the result can be differentiated.
        strict: whether an output that depends on no input raises.

    >>> torch.autograd.functional.jvp(lambda x: x**2, torch.tensor([3.0]), torch.tensor([1.0]))[1]
    tensor([6.])
    """
    with wt.enable_grad():
        x, out, one = _call(func, inputs, create_graph)
        direction = _vectors(v, x, "input of the function")
        weights = tuple(wt.zeros_like(o).requires_grad_() for o in out)
        rows = _grads(out, x, weights, True, strict, "jvp")
        products = _grads(rows, weights, direction, create_graph, False, "jvp")
    return _like(_detached(out, create_graph), one), _like(_detached(products, create_graph), one)


def jacobian(
    func: Callable[..., Any],
    inputs: Tensor | tuple[Tensor, ...],
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian at `inputs`: of one output by one input a tensor of output.shape + input.shape, else
    tuples of them, by output first. `vectorize` and `strategy` are accepted.

    Raises:
        TypeError: inputs or outputs that are no tensors.
        RuntimeError: with `strict`, for an output that does not depend on an input.
    """
    with wt.enable_grad():
        x, out, one = _call(func, inputs, create_graph)
        blocks = []
        for o in out:
            units = wt.eye(o.numel(), dtype=o.dtype, device=o.device)
            rows = [_grads([o], x, [unit.view_as(o)], create_graph, strict, "jacobian") for unit in units]
            parts = [wt.stack(r).reshape(o.shape + p.shape) for p, r in zip(x, zip(*rows))]
            blocks.append(_like(_detached(tuple(parts), create_graph), inputs))
    return _like(blocks, one)


def _scalar(func: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*inputs: Any) -> Any:
        out = func(*inputs)
        if not isinstance(out, Tensor) or out.numel() != 1:
            raise RuntimeError(
                "The Tensor returned by the function given to hessian should contain a single element"
            )
        return out.reshape(())

    return checked


def hessian(
    func: Callable[..., Any],
    inputs: Tensor | tuple[Tensor, ...],
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The second derivatives of a scalar function: by one input a tensor of input.shape + input.shape, else a
    tuple of tuples."""
    scalar = _scalar(func)

    def first(*x: Any) -> Any:
        gradient = jacobian(scalar, x, create_graph=True, strict=strict)
        return gradient[0] if isinstance(inputs, Tensor) else gradient

    return jacobian(first, inputs, create_graph, strict)


def vhp(
    func: Callable[..., Any],
    inputs: Tensor | tuple[Tensor, ...],
    v: Tensor | tuple[Tensor, ...] | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """(output, product of `v` and the Hessian): v has the shapes of the inputs.

    Args:
        func: of tensors, to one number.
        inputs: a tensor, or a tuple of them.
        v: None for one input of one element.
        create_graph: whether the result can be differentiated.
        strict: whether a result that depends on no input raises.
    """
    with wt.enable_grad():
        x, out, _ = _call(_scalar(func), inputs, create_graph)
        slopes = _grads(out, x, [wt.ones_like(out[0])], True, strict, "vhp")
        products = _grads(slopes, x, _vectors(v, x, "input of the function"), create_graph, strict, "vhp")
    return _like(_detached(out, create_graph), True), _like(_detached(products, create_graph), inputs)


def hvp(
    func: Callable[..., Any],
    inputs: Tensor | tuple[Tensor, ...],
    v: Tensor | tuple[Tensor, ...] | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> Any:
    """(output, product of the Hessian and `v`), which is `vhp`, for Hessians are symmetric.

    Args:
        func: of tensors, to one number.
        inputs: a tensor, or a tuple of them.
        v: None for one input of one element.
        create_graph: whether the result can be differentiated.
        strict: whether a result that depends on no input raises.

    >>> torch.autograd.functional.hvp(lambda x: x.pow(3).sum(), torch.tensor([2.0]), torch.tensor([1.0]))[1]
    tensor([12.])
    """
    return vhp(func, inputs, v, create_graph, strict)
