"""Modules that hold modules or parameters: in a row, in a list, under names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

from warptape import _C
from warptape.core import Tensor
from warptape.core.python_objects import typename

from ..parameter import Parameter
from .module import Module, _indent

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]

Self = TypeVar("Self", bound="_Indexed")


def _position(index: int, n: int) -> int:
    """A position that may count from the end -> one from the start. Raises IndexError outside."""
    index = index.__index__()
    if not -n <= index < n:
        raise IndexError(f"index {index} is out of range")
    return index % n


class _Indexed(Module):
    """What Sequential and ModuleList share: children named "0", "1", ... that act as a list."""

    def _refill(self, modules: Iterable[Module]) -> None:
        """Takes these children, in this order, numbered anew."""
        _C._module_changed()
        modules = list(modules)
        self._modules.clear()
        self._modules.update((str(i), module) for i, module in enumerate(modules))

    def _name_at(self, index: int) -> str:
        return list(self._modules)[_position(index, len(self))]

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._part(list(self._modules.items())[index])
        return self._modules[self._name_at(index)]

    def _part(self, items: list[tuple[str, Any]]) -> Any:
        """A container of the same class that holds these (name, module) pairs."""
        raise NotImplementedError

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._name_at(index), module)

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._modules)
        for name in names[index] if isinstance(index, slice) else [self._name_at(index)]:
            del self._modules[name]
        self._refill(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.isdigit()]

    def append(self: Self, module: Module) -> Self:
        """Adds a module at the end.

        Args:
            module: its name becomes its index.

        Returns: self.
        """
        self.add_module(str(len(self)), module)
        return self

    def insert(self: Self, index: int, module: Module) -> Any:
        """Adds a module before the one at `index`.

        Later modules move on by one, and so do the names in a state dict.

        Args:
            index: from 0 to the length.
            module: what is put in.

        Raises: AssertionError for what is no Module.
        """
        if not isinstance(module, Module):
            raise AssertionError(f"module should be of type: {Module}")
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._refill(modules)
        return self

    def extend(self: Self, modules: Iterable[Module]) -> Self:
        """Adds several modules at the end.

        Args:
            modules: in their order.

        Returns: self.
        """
        for module in list(modules):
            self.append(module)
        return self

    def pop(self, index: int) -> Any:
        """Takes out the module at `index`, the last one by default for a list, and returns it.

        Args:
            index: counts from the end if negative.

        Raises: IndexError where there is none.
        """
        module = self[index]
        del self[index]
        return module

    def __iadd__(self: Self, modules: Iterable[Module]) -> Self:
        return self.extend(modules)


class Sequential(_Indexed):
    """Calls its modules one after the other; takes modules, or one OrderedDict of named ones.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> model(torch.ones(4, 2)).shape
    torch.Size([4, 1])
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = len(args) == 1 and isinstance(args[0], OrderedDict)
        for name, module in args[0].items() if named else enumerate(args):
            self.add_module(str(name), module)

    def _part(self, items: list[tuple[str, Any]]) -> Sequential:
        return type(self)(OrderedDict(items))

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input

    def __add__(self, other: Iterable[Module]) -> Sequential:
        return Sequential(*self).__iadd__(other)

    def __iadd__(self, other: Iterable[Module]) -> Sequential:
        if not isinstance(other, Sequential):
            raise ValueError(
                f"add operator supports only objects of Sequential class, but {type(other)} is given."
            )
        return self.extend(other)

    def __mul__(self, times: int) -> Sequential:
        return Sequential(*self._repeated(times))

    def __rmul__(self, times: int) -> Sequential:
        return self * times

    def __imul__(self, times: int) -> Sequential:
        return self.extend(self._repeated(times)[len(self) :])

    def _repeated(self, times: int) -> list[Module]:
        if not isinstance(times, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(times)}")
        if times <= 0:
            raise ValueError(f"Non-positive multiplication factor {times} for {type(self)}")
        return list(self) * times


class ModuleList(_Indexed):
    """A list of modules; it has no forward.

    Args:
        modules: in their order.

    >>> layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    >>> x = torch.ones(4)
    >>> for layer in layers:
    ...     x = layer(x)
    >>> len(layers), x.shape
    (3, torch.Size([4]))
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def _part(self, items: list[tuple[str, Any]]) -> ModuleList:
        return type(self)([module for _, module in items])

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList(chain(self, other))

    def extend(self: Self, modules: Iterable[Module]) -> Self:
        """Adds several modules at the end.

        Args:
            modules: in their order.

        Raises: TypeError for what cannot be iterated over.
        """
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"ModuleList.extend should be called with an iterable, but got {type(modules).__name__}"
            )
        return super().extend(modules)

    def pop(self, index: int = -1) -> Any:
        """Takes out the module at `index` and returns it.

        Args:
            index: counts from the end if negative.

        Raises: IndexError where there is none.
        """
        return super().pop(index)

    def __repr__(self) -> str:
        """One line for a run of equal ones: `(0-2): 3 x Linear(...)`."""
        if len(self) == 0:
            return f"{self._get_name()}()"
        runs: list[list[Any]] = []  # [first, last, text]
        for i, module in enumerate(self):
            text = repr(module)
            if runs and runs[-1][2] == text:
                runs[-1][1] = i
            else:
                runs.append([i, i, text])
        lines = [
            f"({first}): {_indent(text)}"
            if first == last
            else f"({first}-{last}): {last - first + 1} x {_indent(text)}"
            for first, last, text in runs
        ]
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


class ModuleDict(Module):
    """Modules under names, in the order they were put in; it has no forward.

    Args:
        modules: a mapping of names to modules, or (name, module) pairs.

    >>> heads = nn.ModuleDict({"small": nn.Linear(2, 1), "large": nn.Linear(2, 9)})
    >>> heads["large"](torch.ones(2)).shape
    torch.Size([9])
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        _C._module_changed()
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Takes out all modules.

        They stay alive where others hold them.
        """
        _C._module_changed()
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Takes out the module under `key` and returns it.

        Raises: KeyError where there is none.
        """
        _C._module_changed()
        return self._modules.pop(key)

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def items(self) -> Any:
        """(name, module) pairs."""
        return self._modules.items()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Puts in modules from a mapping or from (name, module) pairs.

        Args:
            modules: a mapping of names to modules, or an iterable of pairs.

        Raises: TypeError for what cannot be iterated over, ValueError for items that are no pairs.
        """
        for key, module in _pairs(modules, "ModuleDict"):
            self[key] = module


def _pairs(values: Any, kind: str) -> list[tuple[Any, Any]]:
    """A mapping or an iterable of pairs -> a list of pairs."""
    if isinstance(values, (Mapping, ModuleDict, ParameterDict)):
        return list(values.items())
    if not isinstance(values, Iterable):
        raise TypeError(
            f"{kind}.update should be called with an iterable of key/value pairs, but got "
            f"{type(values).__name__}"
        )
    pairs = []
    for i, pair in enumerate(values):
        if not isinstance(pair, Iterable):
            raise TypeError(
                f"{kind} update sequence element #{i} should be Iterable; is {type(pair).__name__}"
            )
        pair = list(pair)
        if len(pair) != 2:
            raise ValueError(f"{kind} update sequence element #{i} has length {len(pair)}; 2 is required")
        pairs.append((pair[0], pair[1]))
    return pairs


def _as_parameter(value: Any) -> Any:
    """A plain tensor becomes a parameter; all else stays."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _describe(value: object, kind: str, dtype_name: Callable[[Tensor], Any]) -> str:
    """A line of the repr of a list or dictionary of parameters."""
    if not isinstance(value, Tensor):
        return f"Object of type: {type(value).__name__}"
    size = "x".join(str(n) for n in value.shape)
    where = f" ({value.device})" if value.device.type != "cpu" else ""
    return f"{kind} containing: [{dtype_name(value)} of size {size}{where}]"


class ParameterList(Module):
    """A list of parameters: a tensor that is put in becomes one, another object stays a plain attribute.

    Args:
        values: tensors or other objects to begin with.

    >>> weights = nn.ParameterList([torch.ones(2), torch.zeros(3)])
    >>> [name for name, _ in weights.named_parameters()]
    ['0', '1']
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self += values

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return getattr(self, str(_position(index, self._size)))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, str(_position(index, self._size)), _as_parameter(value))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(self._size)])

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.isdigit()]

    def append(self, value: Any) -> ParameterList:
        """Adds a value at the end.

        Args:
            value: a tensor, which becomes a parameter, or any object.

        Returns: self.
        """
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Adds several values at the end.

        Args:
            values: in their order.

        Raises: TypeError for a tensor and for what cannot be iterated over.
        """
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(
                f"ParameterList.extend should be called with an iterable, but got {type(values).__name__}"
            )
        for value in list(values):
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return "\n".join(
            f"  ({i}): {_describe(value, type(value).__name__, lambda x: x.dtype)}"
            for i, value in enumerate(self)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ParameterList should not be called.")


class ParameterDict(Module):
    """Parameters under names, in the order they were put in; what is no tensor stays a plain attribute.

    Args:
        parameters: a mapping or (name, value) pairs to begin with.

    >>> scales = nn.ParameterDict({"left": torch.ones(2), "right": torch.zeros(2)})
    >>> scales["left"].requires_grad, list(scales)
    (True, ['left', 'right'])
    """

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def _attribute(self, key: str) -> str:
        if not isinstance(key, str):
            raise TypeError(
                "Index given to ParameterDict cannot be used as a key as it is not a string "
                f"(type is '{type(key).__name__}')."
            )
        return key

    def __getitem__(self, key: str) -> Any:
        return getattr(self, self._attribute(key))

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, self._attribute(key), _as_parameter(value))
        self._keys[key] = None

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, self._attribute(key))

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._keys))

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def __or__(self, other: ParameterDict) -> ParameterDict:
        both = self.copy()
        both.update(other)
        return both

    def __ror__(self, other: ParameterDict) -> ParameterDict:
        both = other.copy()
        both.update(self)
        return both

    def __ior__(self, other: ParameterDict) -> ParameterDict:
        self.update(other)
        return self

    def copy(self) -> ParameterDict:
        """Another dictionary of the same parameters.

        The parameters themselves are not copied.
        """
        return ParameterDict(OrderedDict(self.items()))

    def setdefault(self, key: str, default: object = None) -> Any:
        """The value under `key`, after `default` was put there if there was none.

        Args:
            key: a name.
            default: becomes a parameter if it is a tensor.
        """
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Takes out all values.

        They stay alive where others hold them.
        """
        for key in list(self._keys):
            del self[key]

    def pop(self, key: str) -> Any:
        """Takes out the value under `key` and returns it.

        Raises: AttributeError where there is none.
        """
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Takes out the pair that was put in last and returns it.

        Raises: StopIteration where it is empty.
        """
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def get(self, key: str, default: object = None) -> Any:
        """The value under `key`, or `default`.

        Nothing is put in.
        """
        if key not in self:
            return default
        return self[key]

    def fromkeys(self, keys: Iterable[str], default: object = None) -> ParameterDict:
        """A new dictionary with `default` under each of `keys`.

        Args:
            keys: the names.
            default: one value for all; if it is a tensor each name gets a Parameter of its data.
        """
        return ParameterDict((key, default) for key in keys)

    def keys(self) -> Any:
        """The names."""
        return self._keys.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        """(name, value) pairs."""
        return ((key, self[key]) for key in self._keys)

    def values(self) -> Iterable[Any]:
        """The values."""
        return (self[key] for key in self._keys)

    def update(self, parameters: Any) -> None:
        """Puts in values from a mapping or from (name, value) pairs.

        A plain mapping is put in by its sorted names, as in PyTorch: the order numbers the parameters
        in an optimizer's state dict.
        """
        pairs = _pairs(parameters, "ParameterDict")
        if isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict):
            pairs.sort(key=lambda pair: pair[0])
        for key, value in pairs:
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(
            f"  ({key}): {_describe(value, 'Parameter', typename)}" for key, value in self.items()
        )

    def __call__(self, input: Any) -> Any:
        raise RuntimeError("ParameterDict should not be called.")
