"""torch.onnx.symbolic_helper: what libraries need to define symbolic functions, which are not used here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .._missing import install_getattr as _install_getattr

F = TypeVar("F", bound=Callable[..., object])


def parse_args(*arg_descriptors: str) -> Callable[[F], F]:
    """The function as it is: no exporter here calls it."""
    return lambda fn: fn


_install_getattr(__name__)
