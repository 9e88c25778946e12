"""torch._C._functorch: what a tensor inside of vmap, jvp or grad stands for."""

from __future__ import annotations

from typing import Any

from warptape import _C

__all__ = [
    "get_unwrapped",
    "is_batchedtensor",
    "is_functorch_wrapped_tensor",
    "is_gradtrackingtensor",
    "maybe_get_bdim",
    "maybe_get_level",
]


def is_batchedtensor(tensor: object) -> bool:
    """Whether it is what a function under vmap sees of a mapped tensor."""
    wrapper = _C._wrapper(tensor)
    return wrapper is not None and wrapper[0] == "vmap"


def is_gradtrackingtensor(tensor: object) -> bool:
    """Whether it is a dual number of jvp. What grad sees are tensors that the tape knows."""
    wrapper = _C._wrapper(tensor)
    return wrapper is not None and wrapper[0] == "jvp"


def is_functorch_wrapped_tensor(tensor: object) -> bool:
    """Whether it is either."""
    return _C._wrapper(tensor) is not None


def get_unwrapped(tensor: object) -> Any:
    """The tensor that it stands for; a mapped one has its mapped dim first."""
    wrapper = _C._wrapper(tensor)
    if wrapper is None:
        raise RuntimeError("get_unwrapped: expected a tensor that a function transform has wrapped")
    return wrapper[2]


def maybe_get_bdim(tensor: object) -> int:
    """Where the mapped dim is: first; -1 for other tensors."""
    return 0 if is_batchedtensor(tensor) else -1


def maybe_get_level(tensor: object) -> int:
    """The number of the transform, from 1 for the outermost; -1 for plain tensors."""
    wrapper = _C._wrapper(tensor)
    return -1 if wrapper is None else _C._level_number(wrapper[1])
