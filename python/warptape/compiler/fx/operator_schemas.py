"""The arguments of calls, by the signature of what is called: torch.fx.operator_schemas."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ... import nn
from ...core import Tensor
from ...core.op_docs import default_value
from ...library.ops import OpOverload, OpOverloadPacket, schema_of

__all__ = ["ArgsKwargsPair", "normalize_function", "normalize_module"]

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# What an argument of a declared type may be.
_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "Number": (int, float, complex),
    "Scalar": (int, float, complex),
    "str": (str,),
}


class ArgsKwargsPair(NamedTuple):
    """Positional arguments and arguments by name.

    Args:
        args, kwargs: of a call.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _parameter(name: str, kind: str, by_keyword: bool, default: Any) -> inspect.Parameter:
    where = inspect.Parameter.KEYWORD_ONLY if by_keyword else inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter("input" if name == "self" else name, where, default=default, annotation=kind)


def _signatures(target: Any) -> Iterator[inspect.Signature]:
    """Those of an op's overloads, in the order in which a call tries them; none for what is no op."""
    empty = inspect.Parameter.empty
    if isinstance(target, OpOverloadPacket):
        names = [name for name in target.overloads() if not name.endswith("out")]
        for name in names:
            yield from _signatures(getattr(target, name))
    elif isinstance(target, OpOverload):
        yield inspect.Signature(
            [
                _parameter(
                    a.name, a.type.rstrip("?"), a.kwarg_only, a.default_value if a.has_default else empty
                )
                for a in schema_of(target).arguments
            ]
        )
    else:
        for _, _, arguments, *_ in getattr(target, "_declarations", ()):
            yield inspect.Signature(
                [
                    _parameter(name, kind, by_keyword, default_value(kind, default) if has_default else empty)
                    for name, kind, _, has_default, by_keyword, _, default in arguments
                ]
            )


def _normalized(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], only_kwargs: bool
) -> ArgsKwargsPair | None:
    """All arguments with their defaults. None for a signature with parameters that have no name to call by;
    raises TypeError for arguments that do not fit."""
    if any(p.kind not in _BY_NAME for p in signature.parameters.values()):
        return None
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    named = dict(bound.arguments)
    if only_kwargs:
        return ArgsKwargsPair((), named)
    return ArgsKwargsPair(tuple(args), dict([*named.items()][len(args) :]))


def _fits(given: Any, kind: str, optional: bool) -> bool:
    """Whether an argument of type `given` may stand where `kind` is declared."""
    if given is type(None):
        return optional
    allowed = _TYPES.get(kind)
    if allowed is None:
        return not (isinstance(given, type) and issubclass(given, Tensor))
    return isinstance(given, type) and issubclass(given, allowed)


def _types_fit(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return False
    parameters = signature.parameters
    return all(
        _fits(t, parameters[n].annotation, parameters[n].default is None) for n, t in arguments.items()
    )


def normalize_function(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    arg_types: tuple[Any, ...] | None = None,
    kwarg_types: dict[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """The arguments of `target(*args, **kwargs)` by the names of its signature, with its defaults.

    Args:
        target: an op, an overload of `torch.ops`, or any function.
        arg_types, kwarg_types: types of the arguments, to choose between overloads.
        normalize_to_only_use_kwargs: all by name; else those that came without a name stay so.

    Returns: None where no overload of an op takes the arguments, and for functions with `*args`, `**kwargs`
    or positional-only parameters.
    Raises: RuntimeError for overloads of an op that would give different results, where no types choose.

    >>> from warptape.fx.operator_schemas import normalize_function
    >>> normalize_function(torch.cat, ([1, 2],), {}, normalize_to_only_use_kwargs=True).kwargs
    {'tensors': [1, 2], 'dim': 0}
    """
    named = dict(kwargs or {})
    signatures = [*_signatures(target)]
    if not signatures:
        signature_of_target = inspect.signature(inspect.unwrap(target))
        return _normalized(signature_of_target, args, named, normalize_to_only_use_kwargs)
    out = {"out": named.pop("out")} if named.get("out") is not None else {}
    matches: list[tuple[inspect.Signature, ArgsKwargsPair]] = []
    for signature in signatures:
        try:
            pair = _normalized(signature, args, named, normalize_to_only_use_kwargs)
        except TypeError:
            continue
        if pair is not None:
            matches.append((signature, ArgsKwargsPair(pair.args, {**pair.kwargs, **out})))
    if arg_types is not None or kwarg_types is not None:
        types = tuple(arg_types or ()), dict(kwarg_types or {})
        matches = [(s, pair) for s, pair in matches if _types_fit(s, *types)][:1]
    if len({(tuple(pair.kwargs), _defaults(s, pair)) for s, pair in matches}) > 1:
        choices = "\n".join(str(s) for s, _ in matches)
        raise RuntimeError(
            f"Tried to normalize arguments to {target} but the schema match was ambiguous! Please provide "
            f"argument types to the normalize_arguments() call. Available schemas:\n{choices}"
        )
    return matches[0][1] if matches else None


def _defaults(signature: inspect.Signature, pair: ArgsKwargsPair) -> str:
    """The defaults that a result may have taken from the signature."""
    return repr([signature.parameters[n].default for n in pair.kwargs if n in signature.parameters])


def normalize_module(
    root: nn.Module,
    target: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """As `normalize_function`, for a call of `root.get_submodule(target)` if its class is one of torch.nn's.

    Returns: None for other classes. Raises: AttributeError for a path that `root` lacks.
    """
    module = root.get_submodule(target)
    if getattr(nn, type(module).__name__, None) is not type(module):
        return None
    return _normalized(
        inspect.signature(module.forward), args, dict(kwargs or {}), normalize_to_only_use_kwargs
    )
