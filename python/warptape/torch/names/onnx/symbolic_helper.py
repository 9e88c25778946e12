"""torch.onnx.symbolic_helper: what libraries need to define symbolic functions, which are not used here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def parse_args(*arg_descriptors: str) -> Callable[[F], F]:
    """The function as it is: no exporter here calls it.

    Args:
        *arg_descriptors: not looked at.
    """
    return lambda fn: fn
