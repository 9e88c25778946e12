"""The bases of data pipes, and how a class becomes a method of all of them."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

from ..dataset import Dataset, IterableDataset

__all__ = ["DataChunk", "IterDataPipe", "MapDataPipe", "functional_datapipe"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class DataChunk(list[T]):
    """A batch of samples as `batch()` and `groupby()` give it: a list.

    >>> torch.utils.data.datapipes.datapipe.DataChunk(range(3))
    [0, 1, 2]
    """

    def __init__(self, items: Iterable[T]) -> None:
        super().__init__(items)
        self.items = list(self)

    def as_str(self, indent: str = "") -> str:
        """The samples by `str()`, in brackets."""
        return f"{indent}[{', '.join(map(str, self))}]"

    def raw_iterator(self) -> Iterator[T]:
        """The samples."""
        yield from self.items


class _Methods:
    """A base whose subclasses `functional_datapipe` makes methods of."""

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    _home: ClassVar[str]  # the package that has PyTorch's own pipes of this kind

    @classmethod
    def register_function(cls, function_name: str, function: Callable[..., Any]) -> None:
        """Makes `function(pipe, ...)` a method of every pipe of this kind."""
        cls.functions[function_name] = function

    @classmethod
    def register_datapipe_as_function(cls, function_name: str, cls_to_register: Callable[..., Any]) -> None:
        """Makes `cls_to_register(pipe, ...)` a method of every pipe. Raises ValueError for a name in use."""
        if function_name in cls.functions:
            raise ValueError(f"Unable to add DataPipe function name {function_name} as it is already taken")
        cls.functions[function_name] = cls_to_register

    def __getattr__(self, name: str) -> Any:
        functions = type(self).functions
        if name[0] != "_" and name not in functions:
            importlib.import_module(self._home, __package__)  # the pipes, when the first method is wanted
        if name not in functions:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        bound = functools.partial(functions[name], self)
        bound.__doc__ = functions[name].__doc__
        return bound

    def __dir__(self) -> list[str]:
        importlib.import_module(self._home, __package__)
        return [*super().__dir__(), *type(self).functions]

    def __repr__(self) -> str:
        return type(self).__qualname__


def _described(pipe: Any) -> str:
    """A pipe's class with those of its arguments that it kept."""
    shown = []
    for name in inspect.signature(type(pipe)).parameters:
        if name in vars(pipe):
            value = vars(pipe)[name]
            shown.append(f"{name}={value.__name__ if inspect.isfunction(value) else repr(value)}")
    return f"{type(pipe).__name__}({', '.join(shown)})"


class _Pass(Iterator[Any]):
    """One pass over an IterDataPipe; it ends when another one begins."""

    def __init__(self, pipe: IterDataPipe[Any], steps: Iterator[Any], begun: int | None) -> None:
        self._pipe, self._steps, self._number = pipe, steps, begun

    def __next__(self) -> Any:
        pipe = self._pipe
        if self._number is None:  # a generator function has done nothing yet
            self._number = pipe._begin_pass()
        elif not pipe._is_current(self._number):
            raise RuntimeError(
                "This iterator has been invalidated because another iterator has been created from the same "
                f"IterDataPipe: {_described(pipe)}\nThis may be caused by multiple references to the same "
                "IterDataPipe. We recommend using `.fork()` if that is necessary."
            )
        try:
            return next(self._steps)
        except StopIteration:
            raise
        except Exception as error:
            self._add_place(error)
            raise

    def _add_place(self, error: Exception) -> None:
        text = error.args[0] if error.args else ""
        if isinstance(text, str) and "thrown by __iter__ of" not in text:
            place = f"\nThis exception is thrown by __iter__ of {_described(self._pipe)}"
            error.args = (text + place, *error.args[1:])

    def __getattr__(self, name: str) -> Any:
        if name == "_steps":
            raise AttributeError(name)
        return getattr(self._steps, name)


def _one_pass(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """An `__iter__` whose iterators are valid one at a time."""
    lazy = inspect.isgeneratorfunction(function)

    @functools.wraps(function)
    def begin(self: Any) -> Iterator[Any]:
        steps = function(self)
        return _Pass(self, steps, None if lazy else self._begin_pass())

    return begin


class IterDataPipe(_Methods, IterableDataset[T_co]):
    """Base of stream-style pipes: define `__iter__()`, and `reset()` where a pass leaves something behind.

    One iterator of a pipe is valid at a time: a new one calls `reset()`, and the one before raises
    RuntimeError from then on. Where two are needed there is `fork()`. An `__iter__` that is a generator
    function counts as begun with its first sample.

    A DataLoader seeds the pipe's shuffles anew for each pass, has its worker processes and the ranks of the
    default group take turns at every `sharding_filter()`, and its `shuffle=` switches all `shuffle()`.

    >>> from warptape.utils.data.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(5)).map(str).batch(2))
    [['0', '1'], ['2', '3'], ['4']]
    """

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    _home = ".iter"
    _pass: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__iter__" in vars(cls):
            cls.__iter__ = _one_pass(vars(cls)["__iter__"])  # type: ignore[method-assign]

    @_one_pass
    def __iter__(self) -> Iterator[T_co]:
        return self  # type: ignore[return-value]  # of a class with __next__

    def _begin_pass(self) -> int:
        """Ends the pass before; the number of this one."""
        self._pass = 0 if self._pass is None else self._pass + 1
        self.reset()
        return self._pass

    def _is_current(self, number: int) -> bool:
        return self._pass == number

    def reset(self) -> None:
        """Called when a pass begins."""


class MapDataPipe(_Methods, Dataset[T_co]):
    """Base of map-style pipes: define `__getitem__(index)` and usually `__len__()`.

    >>> from warptape.utils.data.datapipes.map import SequenceWrapper
    >>> pipe = SequenceWrapper(range(5)).map(str)
    >>> pipe[3], len(pipe)
    ('3', 5)
    """

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    _home = ".map"


class functional_datapipe:
    """Makes a class of pipes a method of its base, by which pipes are chained.

    >>> @torch.utils.data.functional_datapipe("doubled")
    ... class Doubler(torch.utils.data.IterDataPipe):
    ...     def __init__(self, source):
    ...         self.source = source
    ...     def __iter__(self):
    ...         for x in self.source:
    ...             yield 2 * x
    >>> list(torch.utils.data.datapipes.iter.IterableWrapper([1, 2]).doubled())
    [2, 4]

    Raises:
        ValueError: the name is in use.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, cls: type[Any]) -> type[Any]:  # noqa: D102
        for base in (IterDataPipe, MapDataPipe):
            if issubclass(cls, base):
                base.register_datapipe_as_function(self.name, cls)
        return cls
