"""functorch, the older home of torch.func's transforms, which PyTorch's wheel has beside `torch`.

`import functorch` finds it (_missing.py) where no other package of that name is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warptape.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)
from warptape.nn import Module

__all__ = [
    "combine_state_for_ensemble",
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "make_functional",
    "make_functional_with_buffers",
    "stack_module_state",
    "vjp",
    "vmap",
]


def make_functional(
    model: Module, disable_autograd_tracking: bool = False
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """(f, parameters) with f(parameters, *args) the model's forward; `functional_call` under its older name.

    Raises:
        RuntimeError: the model has buffers: `make_functional_with_buffers` is for such.
    """
    if any(True for _ in model.buffers()):
        raise RuntimeError(
            "make_functional(model): `model` has buffers. Please use make_functional_with_buffers(model) "
            "instead."
        )
    call, parameters, _ = make_functional_with_buffers(model, disable_autograd_tracking)
    return (lambda params, *args, **kwargs: call(params, (), *args, **kwargs)), parameters


def make_functional_with_buffers(
    model: Module, disable_autograd_tracking: bool = False
) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]:
    """(f, parameters, buffers) with f(parameters, buffers, *args) the model's forward.

    Args:
        model: any.
        disable_autograd_tracking: whether parameters are left without gradients.
    """
    names = [name for name, _ in model.named_parameters()]
    buffers = dict(model.named_buffers())
    parameters = tuple(p.detach().clone().requires_grad_(p.requires_grad) for p in model.parameters())
    if disable_autograd_tracking:
        parameters = tuple(p.detach() for p in parameters)

    def call(params: Sequence[Any], held: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        state = dict(zip(names, params, strict=True)) | dict(zip(buffers, held, strict=True))
        return functional_call(model, state, args, kwargs)

    return call, parameters, tuple(b.clone() for b in buffers.values())


def combine_state_for_ensemble(models: Sequence[Module]) -> tuple[Callable[..., Any], Any, Any]:
    """(f, parameters, buffers) of models of one kind, each tensor stacked; map f by vmap.

    Args:
        models: of one class and shapes.
    """
    parameters, buffers = stack_module_state(list(models))
    call, _, _ = make_functional_with_buffers(models[0])
    return call, tuple(parameters.values()), tuple(buffers.values())
