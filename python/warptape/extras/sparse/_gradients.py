"""Sparse gradients of tables of which a few rows are looked up."""

from __future__ import annotations

from ...core import Tensor
from ._tensor import CooTensor


def gradient_of_rows(indices: Tensor, values: Tensor, rows: int, without: int) -> CooTensor:
    """The gradient of a table of `rows` rows, from `values` [*, dim] of the rows at `indices` [*].

    Rows that are looked up several times are there several times. Those of `without` are left out; -1: none.
    """
    index, value = indices.reshape(-1).long(), values.reshape(-1, values.shape[-1])
    if without >= 0:
        kept = index != without
        index, value = index[kept], value[kept]
    else:
        value = value.clone()  # of its own, for writes in place
    return CooTensor.make(index[None], value, (rows, values.shape[-1]), False)
