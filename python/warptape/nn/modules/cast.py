"""How a module's tensors change dtype, device or memory: `to`, `half`, `cuda`, `to_empty` and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from warptape import _C
from warptape import core as wt
from warptape.core import Tensor
from warptape.core.swap import swap_tensors
from warptape.core.wrappers import is_wrapper

from ..parameter import Parameter

if TYPE_CHECKING:
    from warptape.core.types import Device

Self = TypeVar("Self", bound="CastMixin")


class CastMixin:
    """The part of Module that converts its tensors in place.

    Every method returns the module itself.
    """

    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replaces each parameter's, gradient's and buffer's values by `fn` of them.

        A parameter stays the same object, so that an optimizer goes on knowing it, unless its new values
        cannot take the place of the old ones (to or from the meta device); then a new Parameter is put in.
        torch.__future__ has other ways. RuntimeError where a parameter or its gradient cannot be swapped.
        """
        _C._module_changed()
        if recurse:
            for child in self._modules.values():
                if child is not None:
                    child._apply(fn)
        for name, parameter in self._parameters.items():
            if parameter is not None:
                self._parameters[name] = (
                    _swapped(parameter, fn, f"{type(self).__name__}.{name}")
                    if swap or is_wrapper(parameter)
                    else _convert(parameter, fn)
                )
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        return self

    def to(self: Self, *args: Any, **kwargs: Any) -> Self:
        """`to(device=None, dtype=None, non_blocking=False)`, `to(dtype)`, `to(tensor)` or
        `to(memory_format=...)`.

        The dtype reaches floating point tensors alone; a memory format reaches those with 4 or 5 dimensions.
        Raises TypeError for a dtype that is not floating point.
        """
        device, dtype, non_blocking, memory_format = _parse_to(*args, **kwargs)

        def convert(tensor: Tensor) -> Tensor:
            options: dict[str, Any] = {"non_blocking": non_blocking}
            if memory_format is not None and tensor.dim() in (4, 5):
                options["memory_format"] = memory_format
            if device is not None:
                options["device"] = device
            if dtype is not None and (tensor.is_floating_point() or tensor.is_complex()):
                options["dtype"] = dtype
            return tensor.to(**options)

        return self._apply(convert)

    def type(self: Self, dst_type: wt.dtype | str) -> Self:
        """Casts every parameter and buffer, integer ones too.

        Args:
            dst_type: a dtype, or the name of a tensor type.

        >>> nn.Linear(2, 2).type(torch.float64).weight.dtype
        torch.float64
        """
        return self._apply(lambda t: t.type(dst_type))

    def float(self: Self) -> Self:
        """Casts every floating point parameter and buffer to float32.

        >>> nn.Linear(2, 2, dtype=torch.float64).float().weight.dtype
        torch.float32
        """
        return self._apply(lambda t: t.float() if t.is_floating_point() else t)

    def double(self: Self) -> Self:
        """Casts every floating point parameter and buffer to float64.

        >>> nn.Linear(2, 2).double().weight.dtype
        torch.float64
        """
        return self._apply(lambda t: t.double() if t.is_floating_point() else t)

    def half(self: Self) -> Self:
        """Casts every floating point parameter and buffer to float16.

        >>> nn.Linear(2, 2).half().weight.dtype
        torch.float16
        """
        return self._apply(lambda t: t.half() if t.is_floating_point() else t)

    def bfloat16(self: Self) -> Self:
        """Casts every floating point parameter and buffer to bfloat16.

        >>> nn.Linear(2, 2).bfloat16().weight.dtype
        torch.bfloat16
        """
        return self._apply(lambda t: t.bfloat16() if t.is_floating_point() else t)

    def cuda(self: Self, device: Device = None) -> Self:
        """Moves every parameter and buffer to a GPU.

        Args:
            device: the current GPU if None.
        """
        return self._apply(lambda t: t.cuda(device))

    def cpu(self: Self) -> Self:
        """Moves every parameter and buffer to the CPU, in place, and returns the module.

        Optimizers made before go on working: parameters stay the same objects.

        >>> next(nn.Linear(2, 2).cpu().parameters()).device
        device(type='cpu')
        """
        return self._apply(lambda t: t.cpu())

    def to_empty(self: Self, *, device: Device, recurse: bool = True) -> Self:
        """Gives every tensor uninitialised memory on `device` (None: where it is).

        >>> with torch.device("meta"):
        ...     model = nn.Linear(2, 3)
        >>> model.to_empty(device="cpu").weight.device
        device(type='cpu')
        """
        return self._apply(lambda t: wt.empty_like(t, device=device), recurse=recurse)

    def share_memory(self: Self) -> Self:
        """Moves every parameter and buffer to memory that other processes can map.

        Workers that get the module by `torch.multiprocessing` then see each other's writes.
        """
        return self._apply(lambda t: t.share_memory_())


overwrite = swap = False  # of torch.__future__


def _convert(parameter: Parameter, fn: Callable[[Tensor], Tensor]) -> Parameter:
    old = parameter.grad
    with wt.no_grad():
        values = fn(parameter)
        grad = None if old is None else fn(old)
    if values.is_meta != parameter.is_meta or (overwrite and values is not parameter):
        parameter = Parameter(values, parameter.requires_grad)
    elif type(old) is type(grad) is Tensor and grad.is_meta == old.is_meta:
        parameter.data, old.data = values, grad  # the gradient stays the same object as well
        return parameter
    else:
        # The old gradient goes first: it would not fit values of another dtype or device.
        parameter.grad = None
        parameter.data = values
    if grad is not None:
        parameter.grad = grad.requires_grad_(False)
    return parameter


def _swapped(parameter: Parameter, fn: Callable[[Tensor], Tensor], name: str) -> Parameter:
    """The same object with `fn` of its values, by swap_tensors, and so its gradient."""
    grad = parameter.grad
    with wt.no_grad():
        values = Parameter(fn(parameter), parameter.requires_grad)
        new_grad = None if grad is None else fn(grad).requires_grad_(grad.requires_grad)
    parameter.grad = None  # held by the parameter it could not be swapped
    try:
        swap_tensors(parameter, values)
    except Exception as error:
        parameter.grad = grad
        raise RuntimeError(f"_apply(): Couldn't swap {name}") from error
    if grad is not None and new_grad is not None:
        try:
            swap_tensors(grad, new_grad)
        except Exception as error:
            raise RuntimeError(f"_apply(): Couldn't swap {name}.grad") from error
        parameter.grad = grad
    return parameter


def _parse_to(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool, Any]:
    """The arguments of `to` in any of its forms -> (device, dtype, non_blocking, memory_format)."""
    unknown = kwargs.keys() - {"device", "dtype", "non_blocking", "memory_format", "tensor"}
    if unknown or len(args) > 3:
        raise TypeError(
            "Module.to: expected (device, dtype, non_blocking), (dtype, non_blocking) or (tensor, "
            f"non_blocking), got {len(args)} positional and the keyword arguments {sorted(kwargs)}"
        )
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    non_blocking = bool(kwargs.get("non_blocking", False))
    for arg in (*args, kwargs.get("tensor")):
        if isinstance(arg, Tensor):
            device, dtype = arg.device, arg.dtype
        elif isinstance(arg, wt.dtype):
            dtype = arg
        elif isinstance(arg, bool):
            non_blocking = arg
        elif arg is not None:
            device = arg
    if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(
            f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={dtype}"
        )
    device = None if device is None else wt.device(device)
    return device, dtype, non_blocking, kwargs.get("memory_format")


_C._nn._parse_to = _parse_to  # type: ignore[attr-defined]  # where libraries look for it
