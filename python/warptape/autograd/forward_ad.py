"""Forward-mode derivatives by dual numbers: an op on a tensor with a tangent gives its result's tangent."""

from __future__ import annotations

from typing import Any, NamedTuple

from warptape import _C
from warptape._missing import install_getattr as _install_getattr
from warptape.core import Tensor

from . import function_transforms  # noqa: F401, Functions within dual levels
from .function import dual_levels as _levels

__all__ = [
    "UnpackedDualTensor",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]


class UnpackedDualTensor(NamedTuple):
    """The two parts of a dual number, as `unpack_dual` returns them.

    Args:
        primal: the value.
        tangent: the derivative along the direction, of the value's shape; None where the tensor has none.
    """

    primal: Tensor
    tangent: Tensor | None


def enter_dual_level() -> int:
    """Begins a level of dual numbers and returns it.

    Raises:
        RuntimeError: one is open already: nested forward mode is torch.func.jvp's.
    """
    if _levels:
        raise RuntimeError("Nested forward mode AD is not supported at the moment; take torch.func.jvp")
    _levels.append(_C._push_jvp())
    return _levels[-1]


def exit_dual_level(*, level: int | None = None) -> None:
    """Ends the level; the tangents of its dual numbers are gone.

    Raises:
        RuntimeError: there is no level, or `level` is not the one that was entered last.
    """
    if not _levels or level not in (None, _levels[-1]):
        raise RuntimeError(
            "Trying to exit a forward AD level that was not the last one that was created. This is not "
            "supported."
        )
    _C._pop_transform(_levels.pop())


class dual_level:
    """A context within which dual numbers are made and unpacked.

    >>> import warptape.autograd.forward_ad as fwAD
    >>> with fwAD.dual_level():
    ...     x = fwAD.make_dual(torch.tensor(3.0), torch.tensor(1.0))
    ...     fwAD.unpack_dual(x * x).tangent
    tensor(6.)
    """

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(self, *args: Any) -> None:
        exit_dual_level()


def _is_fwd_grad_enabled() -> bool:
    return _C._forward_grad_enabled()


class _set_fwd_grad_enabled:
    """Whether ops see tangents: now, and as a context until its end."""

    def __init__(self, mode: bool) -> None:
        self._before = _C._set_forward_grad(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *args: Any) -> None:
        _C._set_forward_grad(self._before)


def _level(level: int | None, what: str) -> int:
    if not _levels:
        raise RuntimeError(
            f"Trying to {what} for forward AD but no level exists, make sure to enter_dual_level() first."
        )
    return _levels[-1] if level is None else level


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """A tensor of the values of `tensor` with this tangent.

    Raises:
        ValueError: a tensor that is not floating.
        RuntimeError: no level is open, or the tangent has another shape or dtype.
    """
    at = _level(level, "create a dual Tensor")
    for name, x in (("primal", tensor), ("tangent", tangent)):
        if not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"Expected {name} to be floating point or complex, but got: {x.dtype}")
    if tensor.shape != tangent.shape or tensor.dtype != tangent.dtype:
        raise RuntimeError(
            f"make_dual: expected a tangent of shape {tuple(tensor.shape)} and {tensor.dtype}, got "
            f"{tuple(tangent.shape)} and {tangent.dtype}"
        )
    return _C._make_dual(tensor, tangent, at)


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """The primal and the tangent, which is None where there is none.

    Args:
        tensor: any.
        level: None for the present one.
    """
    if not _levels and level is None:
        return UnpackedDualTensor(tensor, None)
    return UnpackedDualTensor(*_C._unpack_dual(tensor, _level(level, "unpack a dual Tensor")))


# -1 where no level is open.
_install_getattr(__name__, _current_level=lambda: len(_levels) - 1)
