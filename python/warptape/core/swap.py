"""swap_tensors: two tensor objects exchange what they stand for."""

from __future__ import annotations

import copyreg
import weakref
from typing import TYPE_CHECKING, Any

from .. import _C
from .grad_mode import enable_grad

if TYPE_CHECKING:
    from .tensor_class import Tensor


def swap_tensors(t1: Tensor, t2: Tensor) -> None:
    """Lets two tensors exchange values, history, class and attributes; each stays the object that it was.

    What holds `t1`, such as an optimizer or a module, has then what `t2` was. A gradient's accumulator, which
    a graph holds beside the tensor, stays with the old values: to run backward through it raises.

    Args:
        t1: a tensor of any shape.
        t2: another, of any shape, dtype and device.

    Raises:
        RuntimeError: one of them has weak references, their classes have different slots, or something else
            holds the tensor itself, such as a view of it, a graph that saved it or a parameter whose gradient
            it is.

    >>> a, b = torch.ones(2), torch.zeros(1)
    >>> torch.utils.swap_tensors(a, b)
    >>> a, b
    (tensor([0.]), tensor([1., 1.]))
    """
    for name, t in (("t1", t1), ("t2", t2)):
        if weakref.getweakrefs(t):
            raise RuntimeError(f"Cannot swap {name} because it has weakref associated with it")
    slots = set(_slots(t1))
    if slots != set(_slots(t2)):
        raise RuntimeError("Cannot swap t1 and t2 if they have different slots")
    _check_alone(t1, "t1")
    _check_alone(t2, "t2")
    for name in ("__class__", "__dict__"):
        first = getattr(t1, name)
        setattr(t1, name, getattr(t2, name))
        setattr(t2, name, first)
    for name in slots:
        _swap_slot(t1, t2, name)
    _C._swap_tensor_impl(t1, t2)
    _C._module_changed()  # they may be a module's


def _slots(t: Tensor) -> list[str]:
    names: list[str] = copyreg._slotnames(type(t))  # type: ignore[attr-defined]
    return names


def _swap_slot(t1: Tensor, t2: Tensor, name: str) -> None:
    """A slot may be empty on either side."""
    held = [(t, getattr(t, name)) for t in (t1, t2) if hasattr(t, name)]
    for t, _ in held:
        delattr(t, name)
    for t, value in held:
        setattr(t2 if t is t1 else t1, name, value)


def _check_alone(t: Any, name: str) -> None:
    """RuntimeError where more than the object, and at most a leaf's accumulator, holds the tensor."""
    count = t._use_count()
    if count == 1:
        return
    if count == 2 and t.is_leaf and t.requires_grad:
        with enable_grad():
            accumulator = t.view_as(t).grad_fn.next_functions[0][0]
        if t._use_count() == 2:  # it was there; one made just now would be a third
            accumulator.register_prehook(_poisoned)
            return
    raise RuntimeError(
        f"Expected use_count of {name} to be 1 or 2 with an AccumulateGrad node but got {count} "
        "make sure you are not holding references to the tensor in other places."
    )


def _poisoned(gradients: object) -> None:
    raise RuntimeError(
        "Trying to execute AccumulateGrad node that was poisoned by swap_tensors "
        "this can happen when you try to run backward on a tensor that was swapped. "
        "For a module m with `torch.__future__.set_swap_module_params_on_conversion(True)` "
        "you should not change the device or dtype of the module (e.g. `m.cpu()` or `m.half()`) "
        "between running forward and backward. To resolve this, please only change the "
        "device/dtype before running forward (or after both forward and backward)."
    )
