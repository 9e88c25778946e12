"""Special functions, under torch.special's names."""

from __future__ import annotations

import math
from typing import Any

from . import _C
from ._arguments import checked
from ._missing import lookup as _lookup
from ._tensor import Tensor
from .nn import functional as _F

_ops = _C._functions

for _name in (
    *(
        "digamma",
        "erf",
        "erfc",
        "erfinv",
        "exp2",
        "expm1",
        "log1p",
        "log_softmax",
        "logit",
        "logsumexp",
        "round",
    ),
    *("sinc", "softmax", "xlogy"),
):
    if hasattr(_ops, _name):
        globals()[_name] = getattr(_ops, _name)
for _name in ("i0", "i0e", "i1", "i1e", "ndtri", "xlog1py"):
    globals()[_name] = getattr(_C._private, f"special_{_name}")
expit = _ops.sigmoid
gammaln = _ops.lgamma
psi = _ops.digamma
multigammaln = _C._special.multigammaln


@checked
def log_softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """`nn.functional.log_softmax`."""
    return _F.log_softmax(input, dim, dtype=dtype)


@checked
def softmax(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """`nn.functional.softmax`."""
    return _F.softmax(input, dim, dtype=dtype)


@checked
def entr(input: Tensor) -> Tensor:
    """-x log(x); 0 at 0, -inf below."""
    return _ops.where(input < 0, -math.inf, -_ops.xlogy(input, input.clamp(min=0)))


@checked
def ndtr(input: Tensor) -> Tensor:
    """The share of the standard normal distribution below x."""
    return _ops.where(
        input > -1, 0.5 * (1 + _ops.erf(input * math.sqrt(0.5))), 0.5 * _ops.erfc(-input * math.sqrt(0.5))
    )


__getattr__ = _lookup(__name__)
