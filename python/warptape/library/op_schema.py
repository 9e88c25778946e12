"""Schemas of ops as texts, "name(Tensor x, int n=1) -> Tensor": read, and inferred from annotations."""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .. import _C
from .ops import Argument, FunctionSchema

_ARGUMENT = re.compile(
    r"(?P<type>\w+)(?P<alias>!|\([^)]*\))?(?P<rest>(?:\[\d*\]|\?)*)(?P<after>!|\([^)]*\))?"
    r"(?:\s+(?P<name>\w+))?(?:\s*=\s*(?P<default>.+))?$",
    re.DOTALL,
)
_SCHEMA = re.compile(
    r"\s*(?P<name>[\w:]*)(?:\.(?P<overload>\w+))?\s*\((?P<args>.*)\)\s*->\s*(?P<returns>.+?)\s*$", re.DOTALL
)


def _items(text: str) -> Iterator[str]:
    """What commas separate, outside of brackets and quotes."""
    depth, start, quote = 0, 0, ""
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if text[start:].strip():
        yield text[start:].strip()


def _default(kind: str, text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):  # the name of a constant
        dtype = getattr(_C, text, None) if kind == "ScalarType" else None
        return dtype if isinstance(dtype, _C.dtype) else text


def _argument(text: str, keyword_only: bool) -> Argument:
    match = _ARGUMENT.match(text)
    if match is None:
        raise ValueError(f"expected an argument such as 'Tensor x' in a schema, got {text!r}")
    alias = (match["alias"] or "") + (match["after"] or "")  # "!" alone writes without naming an alias set
    if match["type"] not in _KINDS:
        raise ValueError(f"unknown type {match['type']!r} in a schema; there are {', '.join(_KINDS)}")
    default = match["default"]
    return Argument(
        match["name"] or "",
        match["type"] + match["rest"],
        None if default is None else _default(match["type"], default.strip()),
        keyword_only,
        is_write="!" in alias,
        has_default=default is not None,
        is_alias=bool(alias),
    )


def parse_schema(text: str) -> FunctionSchema:
    """A schema from "name.overload(arguments) -> results"; name and overload may be left out.

    Raises:
        ValueError: the text is no schema.
    """
    match = _SCHEMA.match(text)
    if match is None:
        raise ValueError(f"expected a schema 'name(..) -> ..', got {text!r}")
    arguments, keyword_only = [], False
    for item in _items(match["args"]):
        if item == "*":
            keyword_only = True
        else:
            arguments.append(_argument(item, keyword_only))
    seen: set[str] = set()
    for a in arguments:
        if a.name in seen:
            raise ValueError(f"argument {a.name!r} is there twice in schema {text!r}")
        seen.add(a.name)
    places = [a.has_default for a in arguments if not a.kwarg_only]
    if True in places and not all(places[places.index(True) :]):
        raise ValueError(f"an argument without a default after one with a default in schema {text!r}")
    returns = match["returns"]
    if returns.startswith("(") and returns.endswith(")"):
        returns = returns[1:-1]
    return FunctionSchema(
        match["name"],
        match["overload"] or "",
        arguments,
        [_argument(item, False) for item in _items(returns)],
    )


def bind(
    schema: FunctionSchema, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """All positional arguments and all that are by keyword only, defaults filled in.

    Raises:
        RuntimeError: arguments that the schema does not have, or of other types.
    """
    positional = [a for a in schema.arguments if not a.kwarg_only]
    if len(args) > len(positional):
        raise RuntimeError(
            f"{schema.name}() expected at most {len(positional)} argument(s) but received {len(args)} "
            f"argument(s). Declaration: {schema}"
        )
    left = dict(kwargs)
    values: list[Any] = []
    for i, argument in enumerate(schema.arguments):
        if i < len(args):
            if argument.name in left:
                raise RuntimeError(f"{schema.name}() got multiple values for argument {argument.name!r}")
            value = args[i]
        elif argument.name in left:
            value = left.pop(argument.name)
        elif argument.has_default:
            value = argument.default_value
        else:
            raise RuntimeError(
                f"{schema.name}() is missing value for argument '{argument.name}'. Declaration: {schema}"
            )
        try:
            values.append(converter(argument.type)(value))
        except TypeError:
            raise RuntimeError(
                f"{schema.name}() Expected a value of type '{_python_type(argument.type)}' for argument "
                f"'{argument.name}' but instead found type '{type(value).__name__}'. Declaration: {schema}"
            ) from None
    if left:
        raise RuntimeError(
            f"Unknown keyword argument '{min(left)}' for operator '{schema.name}'. Schema: {schema}"
        )
    count = len(positional)
    return values[:count], {a.name: v for a, v in zip(schema.arguments[count:], values[count:], strict=True)}


def check_results(schema: FunctionSchema, out: Any) -> Any:
    """What an op's function returned, as its schema has it: nothing, one value or a tuple.

    Raises:
        RuntimeError: results of other types, or more or fewer.
    """
    returns = schema.returns
    if not returns:
        if out is not None:
            raise RuntimeError(
                f"{schema.name}: expected its function to return None, got {type(out).__name__}. "
                f"Declaration: {schema}"
            )
        return None
    items = (out,) if len(returns) == 1 else out
    if not isinstance(items, (tuple, list)) or len(items) != len(returns):
        count = len(items) if isinstance(items, (tuple, list)) else type(out).__name__
        raise RuntimeError(
            f"{schema.name}: expected its function to return {len(returns)} values, got {count}. "
            f"Declaration: {schema}"
        )
    results = []
    for place, (kind, value) in enumerate(zip(returns, items, strict=True)):
        try:  # None stands for a tensor that is not there
            absent = value is None and kind.type == "Tensor"
            results.append(None if absent else converter(kind.type)(value))
        except TypeError:
            raise RuntimeError(
                f"{schema.name}: expected result {place} of type '{_python_type(kind.type)}', got "
                f"{type(value).__name__}. Declaration: {schema}"
            ) from None
    return results[0] if len(returns) == 1 else tuple(results)


# ---- values of a schema's types ------------------------------------------------------------------------


def _of(*kinds: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if isinstance(value, kinds):
            return value
        raise TypeError

    return check


def _number_of(value: Any, kind: type) -> Any:
    """The number in a 0-dim tensor or an own class of numbers, as NumPy's."""
    if isinstance(value, _C.TensorBase):
        if value.dim() or value.is_complex() or (kind is int and value.is_floating_point()):
            raise TypeError
        return kind(value.item())
    if isinstance(value, (str, bytes)):
        raise TypeError
    return kind(operator.index(value)) if kind is int else kind(float(value))


def _scalar(value: Any) -> Any:
    if isinstance(value, (bool, int, float, complex)):
        return value
    if isinstance(value, (_C.TensorBase, str, bytes)) or not hasattr(value, "item"):
        raise TypeError
    return value.item()


def _bool(value: Any) -> bool:
    if isinstance(value, (float, complex, str, bytes, list, tuple, type(None))):
        raise TypeError
    return bool(value)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "Tensor": _of(_C.TensorBase),
    "int": lambda value: _number_of(value, int),
    "SymInt": lambda value: _number_of(value, int),
    "float": lambda value: _number_of(value, float),
    "bool": _bool,
    "SymBool": _bool,
    "str": _of(str),
    "Scalar": _scalar,
    "number": _scalar,
    "complex": _of(complex, float, int),
    "ScalarType": _of(_C.dtype),
    "Device": lambda value: _C.device(value) if isinstance(value, str) else _of(_C.device)(value),
    "Layout": lambda value: value,
    "MemoryFormat": lambda value: value,
    "Generator": _of(_C.Generator),
    "Any": lambda value: value,
    "Dimname": lambda value: value,
    "Storage": lambda value: value,
    "Stream": lambda value: value,
    "QScheme": lambda value: value,
}


@functools.cache
def converter(kind: str) -> Callable[[Any], Any]:
    """What makes a value of a schema's type, "int[]?"; it raises TypeError for one of another type."""
    if kind.endswith("?"):
        inner = converter(kind[:-1])
        return lambda value: None if value is None else inner(value)
    if kind.endswith("]"):
        inside, _, count = kind[:-1].rpartition("[")
        item = converter(inside)

        def convert(value: Any) -> list[Any]:
            if count and not isinstance(value, (list, tuple)):
                return [item(value)] * int(count)
            if not isinstance(value, (list, tuple)):
                raise TypeError
            return [item(x) for x in value]

        return convert
    return _KINDS[kind]


def _python_type(kind: str) -> str:
    if kind.endswith("?"):
        return f"Optional[{_python_type(kind[:-1])}]"
    if kind.endswith("]"):
        return f"List[{_python_type(kind.rpartition('[')[0])}]"
    return {"Scalar": "number", "SymInt": "int"}.get(kind, kind)


_TYPES: dict[Any, str] = {
    _C.TensorBase: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    _C.dtype: "ScalarType",
    _C.device: "Device",
    _C.Generator: "Generator",
}
_NUMBER = frozenset([int, float, bool])


def _type_text(kind: Any) -> str | None:
    """A type of Python as a schema has it; None for one that none has."""
    if isinstance(kind, type) and issubclass(kind, _C.TensorBase):
        return "Tensor"
    if kind in _TYPES:
        return _TYPES[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if _is_union(origin):
        plain = [p for p in parts if p is not type(None)]
        inner = "Scalar" if frozenset(plain) == _NUMBER else _type_text(plain[0]) if len(plain) == 1 else None
        return inner and inner + ("?" if len(plain) < len(parts) else "")
    if isinstance(origin, type) and issubclass(origin, Sequence) and origin is not tuple and len(parts) == 1:
        inner = _type_text(parts[0])
        return inner and inner + "[]"
    return None


def _is_union(origin: Any) -> bool:
    import types

    return origin is typing.Union or origin is types.UnionType


def _default_text(value: Any, fail: Callable[[str], Exception], name: str) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (_C.dtype, _C.device)):
        return str(value).removeprefix("torch.") if isinstance(value, _C.dtype) else f'"{value}"'
    raise fail(f"Parameter {name} has an unsupported default value type {type(value)}")


def _return_text(kind: Any, fail: Callable[[str], Exception]) -> str:
    if kind is inspect.Signature.empty:
        raise fail("No return type annotation was provided. Please add one")
    if kind is None or kind is type(None):
        return "()"
    kinds = [*typing.get_args(kind)] if typing.get_origin(kind) is tuple else [kind]
    texts = [_type_text(k) for k in kinds]
    if None in texts:
        raise fail(f"Return has unsupported type {kind}")
    return ", ".join(t for t in texts if t) if len(texts) == 1 else f"({', '.join(t for t in texts if t)})"


def infer_schema(
    prototype_function: Callable[..., Any],
    /,
    *,
    mutates_args: str | Iterable[str],
    op_name: str | None = None,
) -> str:
    """The schema of a function with annotations; `op_name`, if any, comes in front.

    Args:
        prototype_function: its parameters are tensors, numbers, strings, dtypes, devices, lists of these.
        mutates_args: the names of the tensors that it changes, or "unknown": any of them.

    Raises:
        ValueError: an annotation that is missing or that no schema has, or a name that is no parameter's.

    >>> def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor: ...
    >>> torch.library.infer_schema(scaled, mutates_args=(), op_name="scaled")
    'scaled(Tensor x, float by=2.0) -> Tensor'
    """
    signature = inspect.signature(prototype_function)

    def fail(text: str) -> ValueError:
        return ValueError(f"infer_schema(func): {text}. Got func with signature {signature})")

    hints = typing.get_type_hints(prototype_function)
    unknown = isinstance(mutates_args, str)
    if unknown and mutates_args != "unknown":
        raise fail(
            f"mutates_args must be a sequence of the names of arguments or 'unknown', got {mutates_args!r}"
        )
    names = set() if unknown else set(mutates_args)
    if missing := names - set(signature.parameters):
        raise fail(f"{missing} in mutates_args were not found in the custom op's signature")
    texts: list[str] = []
    for place, (name, p) in enumerate(signature.parameters.items()):
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise fail("We do not support positional-only args, varargs, or varkwargs")
        if p.kind is p.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        if p.annotation is p.empty:
            raise fail(f"Parameter {name} must have a type annotation")
        kind = _type_text(hints.get(name, p.annotation))
        if kind is None:
            raise fail(f"Parameter {name} has unsupported type {hints.get(name, p.annotation)}")
        if name in names and not kind.startswith("Tensor"):
            raise fail(
                f"Parameter {name} is in mutates_args but only Tensors or lists of Tensors can be mutated"
            )
        if name in names or (unknown and kind.startswith("Tensor")):
            kind = f"Tensor(a{place}!){kind.removeprefix('Tensor')}"
        default = "" if p.default is p.empty else "=" + _default_text(p.default, fail, name)
        texts.append(f"{kind} {name}{default}")
    returns = _return_text(hints.get("return", signature.return_annotation), fail)
    return f"{op_name or ''}({', '.join(texts)}) -> {returns}"
