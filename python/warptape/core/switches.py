"""Switches that a CUDA library reads. They can be set before, and without, one."""

from __future__ import annotations

import warnings

from .. import _C

_values: dict[str, bool] = {}


class Switch:
    """A class attribute that holds a bool and passes it on to the device runtime by its name.

    Args:
        name: as the device runtime knows it.
        default: until it is set.
        doc: its docstring.
    """

    def __init__(self, name: str, default: bool, doc: str) -> None:
        self.name, self.__doc__ = name, doc
        _values[name] = default

    def __get__(self, instance: object, owner: type) -> bool:
        return _values[self.name]

    def __set__(self, instance: object, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"{self.name}: expected a bool, got {type(value).__name__}")
        _set(self.name, value)


class Precision:
    """A class attribute "ieee" or "tf32", which sets a switch of TF32; "none" until it is set."""

    def __init__(self, switch: str) -> None:
        self._switch, self._given = switch, "none"

    def __get__(self, instance: object, owner: type) -> str:
        return self._given

    def __set__(self, instance: object, value: str) -> None:
        if value not in ("ieee", "tf32", "none"):
            raise RuntimeError(f"{self._switch}: expected precision ieee, tf32 or none, got {value!r}")
        if value != "none":
            _set(self._switch, value == "tf32")
        self._given = value


def _set(name: str, value: bool) -> None:
    _C._cuda_module().set_switch(name, value)
    _values[name] = value


_precision = "highest"


def precision() -> str:
    """What set_precision() was given, as far as the switch of TF32 still agrees."""
    if not _values.get("cuda.matmul.allow_tf32"):
        return "highest"
    return "high" if _precision == "highest" else _precision


def set_precision(text: str) -> None:
    """Sets the precision of float32 products, and the switch of TF32 with it.

    Args:
        text: "highest", "high" or "medium"; another one warns.
    """
    global _precision
    if text not in ("highest", "high", "medium"):
        warnings.warn(
            f"{text} is not one of 'highest', 'high', or 'medium'; the current "
            "setFloat32MatmulPrecision call has no effect.",
            stacklevel=3,
        )
        return
    _precision = text
    _set("cuda.matmul.allow_tf32", text != "highest")
