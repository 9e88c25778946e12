"""Tensors of a module that are computed from others: `register_parametrization` and what belongs to it.

A parametrized module gets a class of its own, in which the tensor's name is a property: reading it computes
the tensor, assigning to it goes the other way. What is trained lies in `module.parametrizations`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from warptape import core as wt
from warptape.core import Tensor

from ..modules.container import ModuleDict, ModuleList
from ..modules.module import Module
from ..parameter import Parameter

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]

_depth = 0  # of cached() blocks
_cache: dict[tuple[int, str], Tensor | None] = {}


@contextmanager
def cached() -> Iterator[None]:
    """Inside this block a parametrized tensor is computed once, however often it is read.

    It saves work where a forward reads a weight several times, as a recurrent layer does.

    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    >>> with nn.utils.parametrize.cached():
    ...     layer.weight is layer.weight
    True
    """
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth:
            _cache.clear()


def _register(module: Module, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _refuse(what: str, before: object, after: object, when: str = "Registering a parametrization") -> None:
    raise ValueError(
        f"{when} may not change the {what} of the tensor, unless the `unsafe` flag is enabled: "
        f"it was {before} and would be {after}"
    )


def _check_alike(before: Tensor, after: Tensor, what: str, shape: bool = True) -> None:
    """ValueError unless `after` is a tensor like `before`."""
    if not isinstance(after, Tensor):
        raise ValueError(f"{what} must return a tensor. Got {type(after).__name__}.")
    if after.dtype != before.dtype:
        _refuse("dtype", before.dtype, after.dtype)
    if shape and after.shape != before.shape:
        _refuse("shape", before.shape, after.shape)


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, first to last, and what they start from: `original`, or
    `original0`, `original1`, .. where the last `right_inverse` returns several tensors.

    Args:
        modules: one parametrization or more.
        original: the tensor as it was; becomes what the right inverses make of it.
        unsafe: leaves out the checks that dtype and shape stay.
    """

    original: Tensor
    unsafe: bool

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if len(modules) == 0:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        before = original.detach()  # keeps dtype and shape, whatever becomes of the original
        with wt.no_grad():
            new = original
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    with suppress(NotImplementedError):
                        new = module.right_inverse(new)
        if not isinstance(new, Tensor | Sequence):
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                f"Got {type(new).__name__}"
            )
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if self.is_tensor else len(new)
        if isinstance(new, Tensor):
            if not unsafe and new.dtype != original.dtype:
                _refuse("dtype", original.dtype, new.dtype, "'right_inverse'")
            if new is not original:
                original.data = new.detach()
            _register(self, "original", original)
        else:
            for i, part in enumerate(new):
                if not isinstance(part, Tensor):
                    raise ValueError(
                        "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                        f"Got element {i} of the sequence with type {type(part).__name__}."
                    )
                part = part.detach()
                trained = Parameter(part, original.requires_grad) if isinstance(original, Parameter) else part
                _register(self, f"original{i}", trained)
        if not unsafe:
            with wt.no_grad():
                _check_alike(before, self(), "A parametrization")

    def _originals(self) -> list[Tensor]:
        names = ["original"] if self.is_tensor else [f"original{i}" for i in range(self.ntensors)]
        return [getattr(self, name) for name in names]

    def right_inverse(self, value: Tensor) -> None:
        """Sets the originals to what the parametrizations would make `value` of.

        Args:
            value: what the parametrized tensor shall be.

        Raises: RuntimeError where a parametrization has no right_inverse.
        """
        with wt.no_grad():
            new: Any = value
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(
                        f"parametrization {type(module).__name__} does not implement right_inverse."
                    )
                new = module.right_inverse(new)
            parts = [new] if self.is_tensor else list(new)
            if len(parts) != self.ntensors:
                raise ValueError(
                    f"'right_inverse' must return a sequence of tensors of length {self.ntensors}, got "
                    f"{len(parts)}"
                )
            originals = self._originals()
            for original, part in zip(originals, parts, strict=True):
                _check_alike(original, part, "'right_inverse'", shape=False)
            for original, part in zip(originals, parts, strict=True):
                original.data = part.detach().clone() if part is value else part.detach()

    def forward(self) -> Tensor:
        """The tensor.

        It is computed from the originals by each parametrization in turn.
        """
        first, *rest = self
        value = first(*self._originals())
        for module in rest:
            value = module(value)
        return value


def _own_class(module: Module) -> None:
    """Gives the module a class of its own, where properties can be put."""
    cls = type(module)

    def __getstate__(self: Module) -> Any:
        raise RuntimeError(
            "Serialization of parametrized modules is only supported through state_dict(). "
            "See:\nhttps://pytorch.org/tutorials/beginner/saving_loading_models.html#saving-loading-a-general-checkpoint-for-inference-and-or-resuming-training"
        )

    def __deepcopy__(self: Module, memo: dict[int, Any]) -> Module:
        twin = self.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    own: dict[str, Any] = {"__getstate__": __getstate__}
    if not hasattr(cls, "__deepcopy__"):
        own["__deepcopy__"] = __deepcopy__
    module.__class__ = type(f"Parametrized{cls.__name__}", (cls,), own)


def _add_property(module: Module, name: str) -> None:
    def read(self: Any) -> Tensor:
        if not _depth:
            return self.parametrizations[name]()
        key = (id(self), name)
        if _cache.get(key) is None:
            _cache[key] = self.parametrizations[name]()
        return _cache[key]  # type: ignore[return-value]

    def write(self: Any, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    setattr(type(module), name, property(read, write))


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Makes `module.tensor_name` the result of `parametrization`, a module whose forward takes the tensor.

    Further ones apply to the result of those before. Where the parametrization has a method `right_inverse`,
    it says what to start from, and the tensor can be assigned to.

    Raises:
        ValueError: if the module has no such parameter or buffer, or, unless `unsafe`, if the
            parametrization changes its dtype or shape.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        if not unsafe:
            _check_next(getattr(module, tensor_name), parametrization)
        parametrizations = module.parametrizations[tensor_name]
        parametrizations.append(parametrization)
        parametrizations.unsafe |= unsafe
        return module
    if tensor_name not in module._buffers and tensor_name not in module._parameters:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name "
            f"'{tensor_name}'"
        )
    parametrization_list = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe=unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        _own_class(module)
        module.parametrizations = ModuleDict()
    _add_property(module, tensor_name)
    module.parametrizations[tensor_name] = parametrization_list
    return module


def _check_next(before: Tensor, parametrization: Module) -> None:
    """ValueError unless one more parametrization of a tensor keeps its dtype and shape, both ways."""
    after = parametrization(before)
    _check_alike(before, after, "A parametrization")
    if hasattr(parametrization, "right_inverse"):
        try:
            back = parametrization.right_inverse(after)
        except NotImplementedError:
            return
        _check_alike(before, back, "parametrization.right_inverse")


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether the module has parametrized tensors, or this one.

    Args:
        module: any module.
        tensor_name: a parameter's or buffer's name; None asks for any.
    """
    parametrizations = getattr(module, "parametrizations", None)
    if not isinstance(parametrizations, ModuleDict):
        return False
    return len(parametrizations) > 0 if tensor_name is None else tensor_name in parametrizations


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Makes the tensor a plain one again: with its present value, or else with the original.

    Args:
        module: changed in place and returned.
        tensor_name: the parametrized tensor.
        leave_parametrized: whether the tensor keeps its present value; without it the single original
            returns.

    Raises: ValueError where the tensor is not parametrized, or has several originals to return to.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    parametrizations = module.parametrizations[tensor_name]
    if parametrizations.is_tensor:
        original = parametrizations.original
        if leave_parametrized:
            with wt.no_grad():
                value = getattr(module, tensor_name)
            if not parametrizations.unsafe or value.dtype == original.dtype:
                original.data = value
            else:
                original = Parameter(value) if original.requires_grad else value
    elif leave_parametrized:
        value = getattr(module, tensor_name)
        original = Parameter(value.detach()) if value.requires_grad else value
    else:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms "
            "of a sequence of tensors."
        )
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    _register(module, tensor_name, original)
    if not is_parametrized(module):
        del module.parametrizations
        module.__class__ = type(module).__bases__[0]
    return module


def type_before_parametrizations(module: Module) -> type:
    """The module's class, or what it was before its first parametrization.

    Parametrized modules are of a class made for each; this is the one that users wrote.
    """
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Gives `to_module` parametrizations of `from_module`, all or one tensor's, and their originals.

    Args:
        from_module: whose parametrizations are shared.
        to_module: gets them, and returns.
        tensor_name: one tensor; all if None.
    """
    if not is_parametrized(from_module):
        return to_module
    names = list(from_module.parametrizations) if tensor_name is None else [tensor_name]
    for name in names:
        source = from_module.parametrizations[name]
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name).detach().clone()))
        for parametrization in source:
            register_parametrization(to_module, name, parametrization)
        target = to_module.parametrizations[name]
        for key, tensor in [*source._parameters.items(), *source._buffers.items()]:
            setattr(target, key, tensor)
    return to_module
