"""Reductions and normalisations that leave out what a mask hides: torch.masked."""

from __future__ import annotations

from typing import Any as _Any

from ... import _C
from .. import Tensor as _Tensor
from .. import iinfo as _iinfo

globals().update({name: op for name, op in vars(_C._masked).items() if not name.startswith("__")})


def _reduction_identity(op_name: str, input: _Tensor, *args: _Any) -> _Tensor | None:
    """What leaves the result of a reduction as it is: a 0-d tensor of input's dtype; None for mean and var.

    `args` has the order of a norm, if it is not 2.

    Raises:
        NotImplementedError: another op, or one of no such value for the dtype.
    """
    name, dtype = op_name.rpartition(".")[2], input.dtype
    largest = name in ("amax", "argmax", "logsumexp")
    value: float | None = None
    if name in ("mean", "var", "std"):
        return None
    if name in ("sum", "cumsum", "prod", "cumprod", "norm"):
        value = 1 if name.endswith("prod") else 0
        if name == "norm" and args and args[0] == float("-inf"):
            value = float("inf")
    elif name == "median":
        value, dtype = float("nan"), dtype if dtype.is_floating_point else _C.float32
    elif largest or name in ("amin", "argmin"):
        if dtype.is_floating_point:
            value = float("-inf" if largest else "inf")
        elif dtype is not _C.bool and not dtype.is_complex:
            limits = _iinfo(dtype)
            value = limits.min if largest else limits.max
    if value is None:
        raise NotImplementedError(f"identity of {name} on {dtype} input")
    return _C._functions.full((), value, dtype=dtype, device=input.device)
