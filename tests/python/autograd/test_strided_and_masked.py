"""as_strided on the tape: windows that overlap, tensors that are not dense, changes in place. masked_fill:
what its value becomes in the dtype of the tensor. Values: by hand."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as wt


def test_overlapping_window():
    x = wt.arange(5.0).requires_grad_()
    (x.as_strided((3, 3), (1, 1)) * wt.arange(9.0).reshape(3, 3)).sum().backward()
    assert x.grad.tolist() == [0, 1 + 3, 2 + 4 + 6, 5 + 7, 8]


def test_offset_and_transposed_source():
    """Element (i, j) of the [4, 3] source lies at place i + 4 j; the window reads places 1, 3 and 5."""
    x = wt.arange(12.0).reshape(3, 4).t().requires_grad_()
    y = x.as_strided((3,), (2,), 1)
    assert y.tolist() == [1, 3, 5]
    (y * wt.tensor([1.0, 2.0, 3.0])).sum().backward()
    want = np.zeros((4, 3))
    want[1, 0], want[3, 0], want[1, 1] = 1, 2, 3
    assert x.grad.tolist() == want.tolist()


def test_expanded_source_shares_the_gradient():
    z = wt.arange(4.0).requires_grad_()
    z.expand(3, 4).as_strided((2, 2), (1, 1)).sum().backward()
    assert z.grad.tolist() == [1, 2, 1, 0]


def test_change_in_place_reaches_the_base():
    x = wt.ones(4, requires_grad=True)
    y = x * 2
    y.as_strided((2,), (2,)).mul_(3)
    (y * wt.arange(4.0)).sum().backward()
    assert x.grad.tolist() == [0, 2, 12, 6]


@pytest.mark.parametrize(("dtype", "value"), [("uint8", 300), ("int8", -129), ("int64", float("inf"))])
def test_masked_fill_refuses_what_does_not_fit(dtype, value):
    with pytest.raises(RuntimeError, match="masked_fill: value cannot be converted"):
        wt.zeros(3, dtype=getattr(wt, dtype)).masked_fill(wt.ones(3) > 0, value)


def test_masked_fill_converts():
    mask = wt.tensor([True, False])
    assert wt.zeros(2, dtype=wt.bool).masked_fill(mask, 2.5).tolist() == [True, False]
    assert wt.zeros(2, dtype=wt.int32).masked_fill(mask, wt.tensor(1.5)).tolist() == [1, 0]
    assert wt.zeros(2, dtype=wt.uint8).masked_fill(mask, -3).tolist() == [253, 0]
