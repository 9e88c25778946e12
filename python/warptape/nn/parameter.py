"""Parameter and Buffer: the tensors that a Module registers when they are assigned to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from warptape import _C
from warptape import core as wt
from warptape.core import Tensor

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = ["Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter", "is_lazy"]


class _MarkedMeta(type(Tensor)):  # type: ignore[misc]
    """Lets a tensor of a custom class count as Parameter or Buffer by carrying the class's mark."""

    _mark: str

    def __instancecheck__(cls, instance: object) -> bool:
        return type.__instancecheck__(cls, instance) or (
            isinstance(instance, Tensor) and getattr(instance, cls._mark, False)
        )


class Parameter(Tensor, metaclass=_MarkedMeta):
    """A tensor that a Module lists in `parameters()` once it is one of its attributes.

    Shares the data's storage. A tensor of a class of its own keeps that class and is marked instead.

    Args:
        data: the values, of any shape; an empty tensor when left out.
        requires_grad: whether gradients are accumulated in `.grad`, also under `no_grad`.

    >>> nn.Parameter(torch.zeros(2))
    Parameter containing:
    tensor([0., 0.], requires_grad=True)
    """

    _mark = "_is_param"
    # What is computed from parameters are plain tensors.
    __torch_function__ = _C._disabled_torch_function_impl

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:  # noqa: D102
        if data is None:
            data = wt.empty(0)
        if type(data) is Tensor or type(data) is Parameter:
            return cast(Parameter, Tensor._make_subclass(cls, data, requires_grad))
        if not isinstance(data, Tensor):
            raise TypeError(
                f"Parameter: expected data to be a Tensor, got {type(data).__name__}; pass "
                "warptape.tensor(data)"
            )
        marked: Any = data.detach().requires_grad_(requires_grad)
        if type(marked) is not type(data):
            raise RuntimeError(
                f"Parameter: {type(data).__name__}.detach() returned {type(marked).__name__}; "
                "it must keep its class to be a Parameter"
            )
        marked._is_param = True
        return cast(Parameter, marked)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.data.clone(), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # Hooks stay behind, as they do for tensors; attributes that a user set come along.
        return _rebuild_parameter, (self.data, self.requires_grad), self.__dict__ or None

    def __repr__(self) -> str:  # type: ignore[override]
        return "Parameter containing:\n" + super().__repr__()


def _rebuild_parameter(data: Tensor, requires_grad: bool) -> Parameter:
    return Parameter(data, requires_grad)


class Buffer(Tensor, metaclass=_MarkedMeta):
    """A tensor that a Module lists in `buffers()` once it is one of its attributes.

    The result is a plain tensor with a mark, for a buffer is no other kind of tensor.

    Args:
        data: the values, of any shape; an empty tensor when left out.
        persistent: whether the buffer is part of the Module's `state_dict`.
    """

    _mark = "_is_buffer"
    persistent: bool

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:  # noqa: D102
        if data is None:
            data = wt.empty(0)
        marked: Any = data.detach().requires_grad_(data.requires_grad)
        marked.persistent = persistent
        marked._is_buffer = True
        return marked


class UninitializedTensorMixin:
    """A tensor that has dtype and device, but no shape until `materialize` gives it one.

    Args:
        requires_grad: whether gradients are wanted later.
        device, dtype: of the tensor to come.
    """

    _becomes: type

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        # What a module does with parameters that have no shape yet: queries and conversions.
        moves = isinstance(getattr(wt, name, None), wt.dtype) or name in (
            "to",
            "cpu",
            "cuda",
            "copy_",
        )
        if moves or name in ("__get__", "__set__", "__hash__", "size") or name.startswith(("is_", "get_")):
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[misc]
        raise ValueError(
            f"{name}: Attempted to use an uninitialized parameter. This error happens when you are using a "
            "`LazyModule` or explicitly manipulating `torch.nn.parameter.UninitializedParameter` objects. "
            "When using LazyModules call `forward` with a dummy batch to initialize the parameters before "
            "calling torch functions"
        )

    def __new__(cls, requires_grad: bool, device: Device = None, dtype: wt.dtype | None = None) -> Any:
        data = wt.empty(0, device=device, dtype=dtype)
        return Tensor._make_subclass(cls, data, requires_grad)

    def materialize(self, shape: Sequence[int], device: Device = None, dtype: wt.dtype | None = None) -> None:
        """Gives the tensor memory for `shape`; its values are not set.

        Args:
            shape: of the tensor.
            device, dtype: in place of those that were given first.
        """
        mine: Any = self
        device, dtype = device or mine.device, dtype or mine.dtype
        mine.data = wt.empty(tuple(shape), device=device, dtype=dtype)
        mine.__class__ = self._becomes

    def _no_shape(self) -> Any:
        raise RuntimeError(
            "Can't access the shape of an uninitialized parameter or buffer. This error usually happens in "
            "`load_state_dict` when trying to load an uninitialized parameter into an initialized one. Call "
            "`forward` to initialize the parameters before accessing their attributes."
        )

    shape: Any = property(_no_shape, doc="RuntimeError: there is none yet.")

    def share_memory_(self) -> Any:
        """Not possible yet.

        Raises: RuntimeError always: there is no memory before the first forward.
        """
        raise RuntimeError(
            "Can't share memory on an uninitialized parameter or buffer. Call `forward` to initialize the "
            "parameters before calling `module.share_memory()`."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        mine: Any = self
        if id(self) not in memo:
            memo[id(self)] = type(self)(mine.requires_grad, mine.device, mine.dtype)  # type: ignore[call-arg]
        return memo[id(self)]

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        mine: Any = self
        return type(self), (mine.requires_grad, mine.device, mine.dtype)


class UninitializedParameter(UninitializedTensorMixin, Parameter):  # type: ignore[misc]
    """A parameter of a lazy module, whose shape follows from the first input.

    Args:
        requires_grad: whether gradients are wanted later.
        device, dtype: of the parameter to come.

    >>> weight = nn.UninitializedParameter()
    >>> weight.materialize((2, 3))
    >>> type(weight).__name__, weight.shape
    ('Parameter', torch.Size([2, 3]))
    """

    _becomes = Parameter

    def __new__(cls, requires_grad: bool = True, device: Device = None, dtype: wt.dtype | None = None) -> Any:  # noqa: D102
        return UninitializedTensorMixin.__new__(cls, requires_grad, device, dtype)


class UninitializedBuffer(UninitializedTensorMixin, Tensor):
    """A buffer of a lazy module, whose shape follows from the first input.

    Args:
        requires_grad: whether gradients are wanted later.
        device, dtype: of the buffer to come.
        persistent: whether it is part of the state dict.
    """

    _becomes = Tensor

    def __new__(  # noqa: D102
        cls,
        requires_grad: bool = False,
        device: Device = None,
        dtype: wt.dtype | None = None,
        persistent: bool = True,
    ) -> Any:
        parameter = UninitializedTensorMixin.__new__(cls, requires_grad, device, dtype)
        parameter.persistent, parameter._is_buffer = persistent, True
        return parameter


def is_lazy(param: object) -> bool:
    """Whether `param` is an uninitialised parameter or buffer."""
    return isinstance(param, UninitializedTensorMixin)
