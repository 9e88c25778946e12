"""How a module's full backward hooks see the gradients of its inputs and outputs.

One call of the module with such hooks is put between two identity functions: `_Leave` on its outputs, whose
backward runs first and holds grad_output, and `_Enter` on its inputs, whose backward holds grad_input. Only
tensors that require grad pass through; the hooks see None in the other places.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.autograd import Function
from warptape.core import Tensor

if TYPE_CHECKING:
    pass

_NO_INPUT_WARNING = (
    "Full backward hook is firing when gradients are computed with respect to module outputs since no inputs "
    "require gradients. See the documentation of register_full_backward_hook."
)


class _Enter(Function):
    @staticmethod
    def forward(ctx: Any, gate: BackwardGate, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.gate = gate
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return (None, *ctx.gate.at_inputs(grads))


class _Leave(_Enter):
    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return (None, *ctx.gate.at_outputs(grads))


class BackwardGate:
    """The hooks of one call of `module` and what its backward has seen so far."""

    def __init__(self, module: Any, hooks: Sequence[Callable], pre_hooks: Sequence[Callable]) -> None:
        self.module, self.hooks, self.pre_hooks = module, hooks, pre_hooks
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.n_inputs = self.n_outputs = 0
        self.grad_output: tuple[Any, ...] | None = None

    def enter(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Positional arguments of the call -> the same, those that require grad watched."""
        self.n_inputs = len(args)
        self.inputs, args = self._watch(_Enter, args)
        return args

    def leave(self, result: Any) -> Any:
        """The call's result -> the same, its tensors that require grad watched."""
        results = result if isinstance(result, tuple) else (result,)
        self.n_outputs = len(results)
        self.outputs, watched = self._watch(_Leave, results)
        if not isinstance(result, tuple):
            return watched[0]
        return type(result)(*watched) if hasattr(result, "_fields") else watched

    def _watch(self, function: Any, values: tuple[Any, ...]) -> tuple[list[int], tuple[Any, ...]]:
        if not wt.is_grad_enabled():
            return [], values
        places = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.requires_grad]
        if not places:
            return places, values
        watched = list(values)
        for place, tensor in zip(places, function.apply(self, *(values[i] for i in places)), strict=True):
            watched[place] = tensor
        return places, tuple(watched)

    def at_outputs(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """Runs the pre-hooks; gradients of the watched outputs in, what goes on into the module out."""
        grad_output = _scatter(self.outputs, grads, self.n_outputs)
        for hook in self.pre_hooks:
            grad_output = _replaced(hook(self.module, grad_output), grad_output, "pre hook", "grad_output")
        if self.inputs:
            self.grad_output = grad_output
        else:
            self._fire_without_inputs(grad_output)
        return tuple(grad_output[i] for i in self.outputs)

    def at_inputs(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """Runs the hooks; gradients of the watched inputs in, what goes on to their producers out."""
        if (
            self.grad_output is None
        ):  # this gradient did not come through the outputs, as in a double backward
            return grads
        grad_input = _scatter(self.inputs, grads, self.n_inputs)
        for hook in self.hooks:
            grad_input = _replaced(
                hook(self.module, grad_input, self.grad_output), grad_input, "hook", "grad_input"
            )
        self.grad_output = None
        return tuple(grad_input[i] for i in self.inputs)

    def _fire_without_inputs(self, grad_output: tuple[Any, ...]) -> None:
        if self.hooks:
            warnings.warn(_NO_INPUT_WARNING, stacklevel=2)
        grad_input = (None,) * self.n_inputs
        for hook in self.hooks:
            result = hook(self.module, grad_input, grad_output)
            if result is not None and not (isinstance(result, tuple) and all(r is None for r in result)):
                raise RuntimeError(
                    "Backward hook for Modules where no input requires gradient should always return None or "
                    "None for all gradients."
                )


def _scatter(places: list[int], grads: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    full: list[Any] = [None] * n
    for place, grad in zip(places, grads, strict=True):
        full[place] = grad
    return tuple(full)


def _replaced(result: Any, grads: tuple[Any, ...], hook: str, what: str) -> tuple[Any, ...]:
    if result is None:
        return grads
    if isinstance(result, Tensor):
        result = (result,)
    if len(result) != len(grads):
        raise RuntimeError(
            f"Backward {hook} returned an invalid number of {what}, got {len(result)}, but expected "
            f"{len(grads)}"
        )
    return tuple(result)
