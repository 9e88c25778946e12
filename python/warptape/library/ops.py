"""What torch.ops holds: an op is an OpOverloadPacket, `torch.ops.aten.add`, with OpOverloads, `add.Tensor`.

Both call the same function, which finds by the arguments what is to be done. Which overloads there are says
PyTorch's list of names (torch/aten.txt); their schemas are read from the declarations of the ops.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .. import _C
from .._missing import install_getattr as _install_getattr
from .._missing import unusable
from ..core import offered
from ..core.op_docs import default_value

HigherOrderOperator = unusable(
    "torch._ops.HigherOrderOperator", "no compiler is here that would trace it; call the function itself"
)
_IN_PLACE = re.compile(r"[a-z0-9]_$")  # add_ and other in-place ops


class Argument(NamedTuple):
    """An argument of a schema."""

    name: str
    type: str
    default_value: Any = None
    kwarg_only: bool = False
    is_out: bool = False
    is_write: bool = False
    has_default: bool = False
    is_alias: bool = False

    def has_default_value(self) -> bool:
        """Whether it may be left out."""
        return self.has_default

    def __str__(self) -> str:
        mark = "(a!)" if self.is_write else ""
        value = (
            f'"{self.default_value}"'
            if self.type in ("str", "str?") and self.default_value is not None
            else self.default_value
        )
        return f"{self.type}{mark} {self.name}" + (f"={value}" if self.has_default else "")


class FunctionSchema:
    """An overload's name and, as far as they are known, its arguments and results."""

    def __init__(self, name: str, overload_name: str, arguments: list[Argument], returns: list[Argument]):
        self.name, self.overload_name = name, overload_name
        self.arguments, self.returns = arguments, returns

    @property
    def is_mutable(self) -> bool:
        """Whether it writes to an argument."""
        return any(argument.is_write for argument in self.arguments)

    def __str__(self) -> str:
        parts: list[str] = []
        for argument in self.arguments:
            if argument.kwarg_only and "*" not in parts:
                parts.append("*")
            parts.append(str(argument))
        kinds = [r.type for r in self.returns]
        returns = kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"
        called = f"{self.name}.{self.overload_name}" if self.overload_name else self.name
        return f"{called}({', '.join(parts)}) -> {returns}"

    __repr__ = __str__


@functools.cache
def _declarations() -> dict[str, list[Any]]:
    """Of each name: its declarations, each (arguments, kind of result)."""
    declarations: dict[str, list[Any]] = {}
    for name, _, args, returns, *_ in _C._list_ops():
        declarations.setdefault(name, []).append((args, returns))
    return declarations


def _declared(base: str, overload: str) -> Any:
    """The declaration that an overload's name speaks of: that whose second argument fits, else the first."""
    declared = _declarations()[base]
    kind = {"Scalar": "Number", "Tensor": "Tensor"}.get(overload.split("_")[0])
    fits = [d for d in declared if len(d[0]) > 1 and d[0][1][1] == kind]
    return (fits or declared)[0]


@functools.cache
def schema_of(op: OpOverload) -> FunctionSchema:
    """The schema of an op: its arguments and what it returns.

    Args:
        op: an overload of `torch.ops`.
    """
    packet, overload = op._overloadpacket, op._overloadname
    name, given = packet._qualified_op_name, "" if overload == "default" else overload
    if isinstance(schema := getattr(op.op, "_schema", None), FunctionSchema):
        return schema
    base = packet.__name__
    if base not in _declarations():
        function = packet._function
        function = getattr(function, "__wrapped__", function)
        try:
            names = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return FunctionSchema(name, given, [], [])
        arguments = [
            Argument(p.name, _annotation(p), _or_none(p.default), p.kind is p.KEYWORD_ONLY)
            for p in names
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        return FunctionSchema(name, given, arguments, [Argument("", "Tensor")])
    args, returns = _declared(base, overload)
    in_place = _IN_PLACE.search(base) is not None
    arguments = [
        Argument(
            "self" if arg == "input" else arg,
            kind.replace("Number", "Scalar") + ("?" if optional else ""),
            default_value(kind, default),
            only,
            is_write=in_place and place == 0,
            has_default=has_default,
        )
        for place, (arg, kind, optional, has_default, only, _, default) in enumerate(args)
    ]
    if overload.endswith("out"):
        arguments.append(Argument("out", "Tensor", None, True, True, True))
    return FunctionSchema(name, given, arguments, [Argument("", returns)])


def _annotation(parameter: inspect.Parameter) -> str:
    kind = parameter.annotation
    return "Any" if kind is parameter.empty else getattr(kind, "__name__", str(kind))


def _or_none(default: Any) -> Any:
    return None if default is inspect.Parameter.empty else default


class OpOverload:
    """`torch.ops.namespace.name.overload`, called as the op."""

    def __init__(self, packet: OpOverloadPacket, overload: str) -> None:
        self._overloadpacket = self.overloadpacket = packet
        self._overloadname, self._opname, self.namespace = overload, packet.__name__, packet._namespace
        self.__name__, self.__module__ = f"{packet.__name__}.{overload}", packet.__module__
        self.__qualname__, self.__doc__ = self.name(), packet.__doc__

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the op."""
        packet = self._overloadpacket
        if _C._any_dispatches(args, kwargs):
            out = offered("subclass_calls").call_overload(self, args, kwargs)
            if out is not NotImplemented:
                return out
        return (self.op if packet._by_overload else packet)(*args, **kwargs)

    op = property(
        lambda self: self._overloadpacket._by_overload.get(
            self._overloadname, self._overloadpacket._function
        ),
        doc="The function behind it.",
    )

    tags = property(lambda self: getattr(self.op, "tags", []), doc="The tags that custom_op was given.")

    _schema = property(schema_of, doc="Its arguments and what it returns.")

    def name(self) -> str:
        """As "aten::add.Tensor"."""
        return self._overloadpacket._qualified_op_name + (
            "" if self._overloadname == "default" else f".{self._overloadname}"
        )

    def __str__(self) -> str:
        return f"{self.namespace}.{self.__name__}"

    def __repr__(self) -> str:
        return f"<OpOverload(op='{self._overloadpacket}', overload='{self._overloadname}')>"

    def __reduce__(self) -> Any:
        return getattr, (self._overloadpacket, self._overloadname)

    def __deepcopy__(self, memo: Any) -> OpOverload:
        return self


class OpOverloadPacket:
    """`torch.ops.namespace.name`, called as the op; its attributes are its overloads."""

    _by_overload: dict[str, Any] = {}  # where each has a function of its own

    def __init__(self, qualname: str, function: Callable[..., Any], overloads: Any = ("default",)) -> None:
        self._qualified_op_name, self._function, self._overloads = qualname, function, tuple(overloads)
        self._namespace, _, self.__name__ = qualname.partition("::")
        self.__qualname__, self.__module__ = str(self), f"torch._ops.{self._namespace}"
        self.__doc__ = getattr(function, "__doc__", None)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the op."""
        if "self" in kwargs:  # the first argument, which PyTorch's dispatcher calls so
            args = (kwargs.pop("self"), *args)
        return self._function(*args, **kwargs)

    def overloads(self) -> list[str]:
        """The names of the overloads."""
        return [*self._overloads]

    def __getattr__(self, overload: str) -> Any:
        if overload.startswith("__") or overload not in self.__dict__.get("_overloads", ()):
            called = f"{self.__dict__.get('_namespace')}.{self.__dict__.get('__name__')}"
            raise AttributeError(f"The underlying op of '{called}' has no overload name '{overload}'")
        op = OpOverload(self, overload)
        self.__dict__[overload] = op
        return op

    def __iter__(self) -> Iterator[str]:
        return iter(self._overloads)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._overloads]

    def __str__(self) -> str:
        return f"{self._namespace}.{self.__name__}"

    def __repr__(self) -> str:
        return f"<OpOverloadPacket(op='{self}')>"

    def __reduce__(self) -> Any:
        return _find, (self._namespace, self.__name__)

    def __deepcopy__(self, memo: Any) -> OpOverloadPacket:
        return self


def _find(namespace: str, name: str) -> Any:
    return getattr(getattr(offered("ops"), namespace), name)


_install_getattr(__name__, ops=lambda: offered("ops"))
