"""Convolutions with rows shorter than a vector: the gradient of the input is the adjoint of the output."""

from __future__ import annotations

import pytest
import warptape as wt
from warptape.nn import functional as F


@pytest.mark.parametrize(
    "size, kernel, groups, how",
    [
        ((20, 3), (5, 5), 1, {"padding": 2}),
        ((30, 2), (3, 3), 2, {"padding": 1}),
        ((9, 7), (3, 2), 1, {"padding": (2, 0)}),
        ((8, 8), (3, 3), 1, {"padding": 0}),
        ((11, 10), (3, 4), 2, {"padding": (2, 3), "dilation": (2, 3)}),
        ((40, 15), (1, 4), 1, {"padding": "same"}),
        ((12, 6), (3, 3), 1, {"padding": 1, "stride": 2}),  # another way
        ((12, 6), (2, 2), 1, {"padding": 1, "dilation": (1, 2)}),
        ((14, 5), (1, 1), 1, {"padding": 1}),  # another way: more padding than the kernel sees
        ((40,), (5,), 1, {"padding": 3}),
        ((13,), (4,), 2, {"padding": 1}),
    ],
)
@pytest.mark.parametrize("dtype", [wt.float32, wt.float64])
def test_gradient_of_the_input(dtype, size, kernel, groups, how):
    wt.manual_seed(0)
    conv = F.conv2d if len(size) == 2 else F.conv1d
    x = wt.randn(16, 18 * groups, *size, dtype=dtype, requires_grad=True)
    weight = wt.randn(6 * groups, 18, *kernel, dtype=dtype)
    y = conv(x, weight, groups=groups, **how)
    gradient, other = wt.randn_like(y), wt.randn_like(x)
    found = wt.autograd.grad(y, x, gradient)[0]
    with wt.no_grad():
        want = conv(other.double(), weight.double(), groups=groups, **how) * gradient.double()
    scale = want.abs().sum()
    assert (
        abs((found.double() * other.double()).sum() - want.sum())
        < (1e-7 if dtype is wt.float32 else 1e-15) * scale
    )
