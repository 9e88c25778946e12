"""Automatic differentiation: the names of torch.autograd."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import _C
from ..core import enable_grad, inference_mode, no_grad, set_grad_enabled
from ..core.protocols import OwnGradients, TapedByValue
from . import graph
from .anomaly_mode import detect_anomaly, set_detect_anomaly
from .function import Function
from .gradcheck import GradcheckError, _as_tuple, gradcheck, gradgradcheck

if TYPE_CHECKING:
    from ..core import Tensor

__all__ = [
    "Function",
    "Variable",
    "GradcheckError",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
]


class _Engine:
    """What callers of `Variable._execution_engine` use."""

    queue_callback = staticmethod(_C._queue_callback)


class _VariableMeta(type):
    """Makes every tensor an instance of Variable."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _C.TensorBase)


class Variable(metaclass=_VariableMeta):
    """A tensor, as programs before PyTorch 0.4 made it.

    `Variable._execution_engine.queue_callback(f)` calls f at the end of the running backward pass.
    """

    _execution_engine = _Engine()

    def __new__(cls, data: Tensor, requires_grad: bool = False) -> Any:  # noqa: D102
        return data.detach().requires_grad_(requires_grad)


_CYCLE = (
    "Using backward() with create_graph=True will create a reference cycle between the parameter and its "
    "gradient which can cause a memory leak. We recommend using autograd.grad when creating the graph to "
    "avoid this. If you have to use this function, make sure to reset the .grad fields of your parameters "
    "to None after use to break the cycle and avoid the leak."
)


def _gradients(outputs: tuple[Any, ...], given: Any, op: str) -> tuple[Any, ...]:
    gradients = (None,) * len(outputs) if given is None else _as_tuple(given)
    if len(gradients) != len(outputs):
        raise RuntimeError(f"{op}: got {len(outputs)} tensors and {len(gradients)} gradients")
    return gradients


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Tensor | Sequence[Tensor | None] | None = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Adds the gradients of the sum of `tensors` to the `.grad` of the leaves (or of `inputs`).

    Raises:
        RuntimeError: a tensor has no history, the graph was freed, a saved tensor was changed in place, or a
            gradient is missing for a tensor of more than one element.
    """
    outputs = _as_tuple(tensors)
    if inputs is not None and not isinstance(inputs, _C.TensorBase) and len(inputs) == 0:
        raise RuntimeError("'inputs' argument to backward() cannot be empty.")
    inputs = () if inputs is None else _as_tuple(inputs)
    gradients = _gradients(outputs, grad_tensors if grad_variables is None else grad_variables, "backward")
    retain = create_graph if retain_graph is None else retain_graph
    if create_graph:
        warnings.warn(_CYCLE, stacklevel=2)
    grads = _C._run_backward(outputs, gradients, inputs, retain, create_graph, True, True)
    for leaf, gradient in zip(inputs, grads, strict=False):
        if not leaf.is_leaf and gradient is not None:
            leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor, ...]:
    """The gradients of the sum of `outputs` with respect to `inputs`, one per input; no `.grad` changes.

    With `is_grads_batched` each of `grad_outputs` has a first dim more, and so has each gradient.

    Raises:
        RuntimeError: as backward(), and when an input was not used, unless allow_unused.

    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> torch.autograd.grad(x**2, x)
    (tensor(6.),)
    """
    outputs, inputs = _as_tuple(outputs), _as_tuple(inputs)  # once: they may be generators
    tensors = (*outputs, *inputs)
    own = next((t.autograd_grad for t in tensors if isinstance(t, OwnGradients)), None)
    if own is not None and _C._has_torch_function(tensors):  # a class whose tensors lie on several ranks
        more = (grad_outputs, retain_graph, create_graph, only_inputs, allow_unused, is_grads_batched)
        return own(grad, outputs, inputs, *more, materialize_grads)
    if is_grads_batched:
        return _grad_of_each(
            outputs,
            inputs,
            grad_outputs,
            retain_graph or create_graph,
            create_graph,
            allow_unused,
            materialize_grads,
        )
    if materialize_grads and allow_unused is False:
        raise ValueError("Expected allow_unused to be True or not passed when materialize_grads=True")
    outs, tensors = outputs, inputs
    ins = tuple(i.taped_value() if isinstance(i, TapedByValue) else i for i in tensors)
    retain = create_graph if retain_graph is None else retain_graph
    unused = materialize_grads if allow_unused is None else allow_unused
    grads = _C._run_backward(
        outs, _gradients(outs, grad_outputs, "grad"), ins, retain, create_graph, unused, False
    )
    if materialize_grads:
        grads = tuple(
            _C._functions.zeros_like(i) if g is None else g for g, i in zip(grads, ins, strict=True)
        )
    return tuple(
        g if i is place or g is None else place.taped_gradient(g)
        for g, i, place in zip(grads, ins, tensors, strict=True)
    )


def _grad_of_each(outputs: Any, inputs: Any, batches: Any, retain: bool, *options: Any) -> tuple[Tensor, ...]:
    """`grad` for one row after the other of each of `batches`, stacked."""
    create_graph, allow_unused, materialize = options
    rows = list(zip(*_as_tuple(batches)))
    grads = [
        grad(
            outputs,
            inputs,
            row,
            retain or i + 1 < len(rows),
            create_graph,
            True,
            allow_unused,
            False,
            materialize,
        )
        for i, row in enumerate(rows)
    ]
    return tuple(None if each[0] is None else _C._functions.stack(each) for each in zip(*grads))  # type: ignore[misc]
