"""Gradients of many rows at once by vmap, of views that step over memory that elements share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt

CASES: list[tuple[tuple[int, ...], Callable[[Any], Any]]] = [
    ((5,), lambda x: x.expand(5, 5).as_strided((5, 5), (0, 1), 0)),
    ((2, 3), lambda x: x.expand(10, 2, 3).as_strided((2, 3), (3, 1), 0)),
    ((3, 4), lambda x: x.t().as_strided((4, 3), (1, 4))),
    ((7,), lambda x: x[2:].as_strided((2, 2), (2, 1))),
]


@pytest.mark.parametrize("shape, view", CASES)
def test_rows_do_not_mix(shape: tuple[int, ...], view: Callable[[Any], Any]) -> None:
    x = wt.randn(shape, dtype=wt.float64, requires_grad=True)
    assert wt.autograd.gradcheck(view, [x], check_batched_grad=True)
    assert wt.autograd.gradgradcheck(view, [x], check_batched_grad=True)
