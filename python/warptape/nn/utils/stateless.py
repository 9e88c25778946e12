"""Calls of a module with other tensors in place of its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from warptape import _C
from warptape.core import Tensor

from ..modules.module import Module

__all__ = ["functional_call"]

_Place = tuple[
    dict[str, Any], str
]  # a module's dictionary of parameters, buffers or attributes, and the name
_ABSENT = object()


def _places(module: Module) -> dict[str, _Place]:
    """Every parameter and buffer by its dotted name, shared ones under each of theirs."""
    places = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for home in (part._parameters, part._buffers):
            for name in home:
                places[f"{path}.{name}" if path else name] = (home, name)
    return places


def _tied(places: Mapping[str, _Place], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The given tensors, and each also for the other names of the tensor that it replaces."""
    names: dict[int, list[str]] = {}
    for key, (home, name) in places.items():
        if home[name] is not None:
            names.setdefault(id(home[name]), []).append(key)
    for keys in names.values():
        said = [key for key in keys if key in given]
        if any(given[key] is not given[said[0]] for key in said):
            raise ValueError(
                f"functional_call got multiple values for keys {said}, which are tied. "
                "Consider using tie_weights=False"
            )
    complete = dict(given)
    for keys in names.values():
        said = [key for key in keys if key in given]
        if said:
            complete.update(dict.fromkeys(keys, given[said[0]]))
    return complete


def _check_keys(
    module: Module,
    places: Mapping[str, _Place],
    keys: Iterable[str],
    given: Mapping[str, Tensor],
    strict: bool,
) -> None:
    unexpected = [key for key in given if key not in places]
    missing = [key for key, (home, name) in places.items() if home[name] is not None and key not in keys]
    if not strict:
        return
    listed = [
        f"{kind} key(s): " + ", ".join(map(repr, sorted(names))) + "."
        for kind, names in (("Unexpected", unexpected), ("Missing", missing))
        if names
    ]
    if listed:
        raise RuntimeError(
            f"Error(s) in reparametrizing for {type(module).__name__}:\n\t" + "\n\t".join(listed)
        )


def _attribute(module: Module, key: str) -> _Place:
    """The place of a name that is no parameter's or buffer's: it may be new, and what has it a tensor."""
    path, _, name = key.rpartition(".")
    part = module.get_submodule(path)
    value = getattr(part, name, _ABSENT)
    if value is not _ABSENT and not isinstance(value, Tensor):
        raise TypeError(f"attribute `{name}`: {value} is not an instance of warptape.Tensor")
    return vars(part), name


@contextmanager
def _replaced(module: Module, given: Mapping[str, Any], tie_weights: bool, strict: bool) -> Iterator[None]:
    places = _places(module)
    tensors = _tied(places, given) if tie_weights else dict(given)
    _check_keys(module, places, tensors, given, strict)
    places.update((key, _attribute(module, key)) for key in tensors if key not in places)
    for value in tensors.values():
        if not isinstance(value, Tensor):
            raise TypeError(f"{value} is not an instance of warptape.Tensor")
    before = {key: places[key][0].get(places[key][1], _ABSENT) for key in tensors}
    try:
        _C._module_changed()
        for key, value in tensors.items():
            home, name = places[key]
            home[name] = value
        yield
    finally:
        _C._module_changed()
        for key, value in before.items():
            home, name = places[key]
            if key in given and home.get(name) is not given[key] and isinstance(given, dict):
                given[key] = home.get(name)  # what forward put there
            if value is _ABSENT:
                home.pop(name, None)
            else:
                home[name] = value


def call_with(
    module: Module,
    given: Mapping[str, Any],
    args: Any,
    kwargs: dict[str, Any] | None,
    tie_weights: bool,
    strict: bool,
) -> Any:
    """What both functions of the name functional_call do.

    Args:
        module: called once.
        given: a dict of tensors by name, or a sequence of dicts.
        args: a tuple of arguments, one argument, or None for none.
        kwargs: arguments by name.
        tie_weights: whether a tensor that stands for one of two tied ones stands for both.
        strict: whether every parameter and buffer must be given.
    """
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, given, tie_weights, strict):
        return module(*args, **(kwargs or {}))


def functional_call(
    module: Module,
    parameters_and_buffers: dict[str, Tensor],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """`warptape.func.functional_call` for one dict, under its former name.

    Args:
        module: called once.
        parameters_and_buffers: tensors by name, in place of the module's own.
        args, kwargs: the arguments.
        tie_weights: whether a tensor that stands for one of two tied ones stands for both.
        strict: whether every parameter and buffer must be given.
    """
    warnings.warn(
        "This API is deprecated as of PyTorch 2.0 and will be removed in a future version of PyTorch. Please "
        "use torch.func.functional_call instead which is a drop-in replacement for this API.",
        FutureWarning,
        stacklevel=2,
    )
    return call_with(module, parameters_and_buffers, args, kwargs, tie_weights, strict)
