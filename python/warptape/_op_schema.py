"""Schemas of ops as texts, "name(Tensor x, int n=1) -> Tensor": read, and inferred from annotations."""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import _C
from ._ops import Argument, FunctionSchema

__all__ = ["bind", "infer_schema", "parse_schema"]

_ARGUMENT = re.compile(
    r"(?P<type>\w+)(?P<alias>\([^)]*\))?(?P<rest>(?:\[\d*\]|\?)*)(?P<after>\([^)]*\))?"
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


def _default(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # the name of a constant


def _argument(text: str, keyword_only: bool) -> Argument:
    found = _ARGUMENT.match(text)
    if found is None:
        raise ValueError(f"expected an argument such as 'Tensor x' in a schema, got {text!r}")
    written = "!" in (found["alias"] or "") + (found["after"] or "")
    default = found["default"]
    return Argument(
        found["name"] or "",
        found["type"] + found["rest"],
        None if default is None else _default(default.strip()),
        keyword_only,
        is_write=written,
        has_default=default is not None,
    )


def parse_schema(text: str) -> FunctionSchema:
    """A schema from "name.overload(arguments) -> results"; name and overload may be left out.

    Raises:
        ValueError: the text is no schema.
    """
    found = _SCHEMA.match(text)
    if found is None:
        raise ValueError(f"expected a schema 'name(..) -> ..', got {text!r}")
    arguments, keyword_only = [], False
    for item in _items(found["args"]):
        if item == "*":
            keyword_only = True
        else:
            arguments.append(_argument(item, keyword_only))
    returns = found["returns"]
    if returns.startswith("(") and returns.endswith(")"):
        returns = returns[1:-1]
    return FunctionSchema(
        found["name"],
        found["overload"] or "",
        arguments,
        [_argument(item, False) for item in _items(returns)],
    )


def bind(
    schema: FunctionSchema, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """All positional arguments and all that are by keyword only, defaults filled in.

    Raises:
        RuntimeError: arguments that the schema does not have, or not of tensors where it has some.
    """
    positional = [a for a in schema.arguments if not a.kwarg_only]
    if len(args) > len(positional):
        raise RuntimeError(
            f"{schema.name}() expected at most {len(positional)} argument(s) but received {len(args)} "
            f"argument(s). Declaration: {schema}"
        )
    left = dict(kwargs)
    found: list[Any] = []
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
        if argument.type == "Tensor" and not isinstance(value, _C.TensorBase):
            raise RuntimeError(
                f"{schema.name}() Expected a value of type 'Tensor' for argument '{argument.name}' but "
                f"instead found type '{type(value).__name__}'. Declaration: {schema}"
            )
        found.append(value)
    if left:
        raise RuntimeError(f"{schema.name}() got unknown arguments {sorted(left)}. Declaration: {schema}")
    count = len(positional)
    return found[:count], {a.name: v for a, v in zip(schema.arguments[count:], found[count:], strict=True)}


_TYPES: dict[Any, str] = {
    _C.TensorBase: "Tensor",
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    _C.dtype: "ScalarType",
    _C.device: "Device",
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
