"""Dtypes of results, numbers that a dtype holds or not, and draws into `out`.

The numbers are PyTorch 2.13's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import warptape as torch

F = torch.nn.functional


def grad_of(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


DTYPES = [
    (lambda: F.relu6(torch.tensor([-1, 3, 9], dtype=torch.int32)), "int32", [0, 3, 6]),
    (lambda: F.relu6(torch.tensor([3, 9], dtype=torch.uint8), inplace=True), "uint8", [3, 6]),
    (lambda: F.hardtanh(torch.tensor([-5, 0, 5]), -1.5, 2.5), "int64", [-1, 0, 2]),
    (lambda: F.hardtanh_(torch.tensor([-5, 0, 5], dtype=torch.int8)), "int8", [-1, 0, 1]),
    (lambda: F.threshold(torch.tensor([1, 3], dtype=torch.uint8), 2, 7), "uint8", [7, 3]),
    (lambda: torch.threshold_(torch.tensor([1, 3], dtype=torch.int16), 2.5, 7.5), "int16", [7, 3]),
    (lambda: torch.square(torch.tensor([True, False])), "int64", [1, 0]),
    (lambda: torch.unravel_index(torch.tensor([7], dtype=torch.int32), (2, 5)), "int64", [1]),
    (
        lambda: torch.clamp(torch.tensor([True, False]), min=torch.tensor(0.5, dtype=torch.float64)),
        "float64",
        [1.0, 0.5],
    ),
    (
        lambda: torch.clamp_min(torch.tensor([True, False]), torch.tensor(1, dtype=torch.uint8)),
        "uint8",
        [1, 1],
    ),
    (
        lambda: torch.clamp_max(
            torch.tensor([-8, 6], dtype=torch.int32), torch.tensor(-inf, dtype=torch.bfloat16)
        ),
        "bfloat16",
        [-inf, -inf],
    ),
    (lambda: torch.tensor([1.0, 5.0]).clamp_min_(torch.tensor([2])), "float32", [2.0, 5.0]),
    (lambda: torch.tensor([1, 5]).clamp_max_(torch.tensor(2)), "int64", [1, 2]),
    (
        lambda: torch.special.i0e(torch.tensor([1, 200], dtype=torch.uint8)),
        "float32",
        [0.46575963, 0.028227158],
    ),
    (lambda: torch.special.i1(torch.tensor([True])), "float32", [0.56515908]),
    (lambda: torch.special.ndtri(torch.tensor([0, 1], dtype=torch.uint8)), "float32", [-inf, inf]),
    (lambda: torch.mvlgamma(torch.tensor([9], dtype=torch.uint8), 3), "float32", [30.396126]),
    (
        lambda: torch.mvlgamma(torch.tensor(2.5, dtype=torch.float16), torch.tensor(1, dtype=torch.uint8)),
        "float16",
        0.28466797,
    ),
    (
        lambda: torch.ldexp(torch.tensor([True, False]), torch.tensor([3, 4], dtype=torch.uint8)),
        "float32",
        [8.0, 0.0],
    ),
    (
        lambda: torch.ldexp(torch.tensor([1.0]), torch.tensor([1j])),
        "complex64",
        [complex(0.76923889, 0.63896126)],
    ),
    (
        lambda: torch.special.xlog1py(torch.tensor([1.0, 2.0], dtype=torch.float16), torch.tensor([1, 2])),
        "float16",
        [0.69335938, 2.1972656],
    ),
    (lambda: torch.special.xlog1py(2, torch.tensor([0.5], dtype=torch.float16)), "float16", [0.81103516]),
    (
        lambda: torch.gcd(torch.tensor([[4, 6]], dtype=torch.uint8), torch.tensor(4, dtype=torch.int32)),
        "uint8",
        [[4, 2]],
    ),
    (lambda: torch.lcm(torch.tensor([[4, 6]], dtype=torch.int8), torch.tensor(4)), "int8", [[4, 12]]),
    (
        lambda: torch.nextafter(torch.tensor([[1.0, 2.0]]), torch.tensor(-8, dtype=torch.int32)),
        "float32",
        [[0.99999994, 1.9999999]],
    ),
    (
        lambda: torch.addr(
            torch.tensor([[True, False]]), torch.tensor([True]), torch.tensor([False, True]), beta=3, alpha=2
        ),
        "bool",
        [[True, True]],
    ),
    (lambda: torch.trapezoid(torch.ones(0, dtype=torch.uint8)), "uint8", 0),
    (
        lambda: torch.trapezoid(
            torch.tensor([200, 250, 3], dtype=torch.uint8), torch.tensor([1, 5, 2], dtype=torch.uint8)
        ),
        "float32",
        8.5,
    ),
    (
        lambda: torch.cumulative_trapezoid(
            torch.tensor([200, 250, 3], dtype=torch.uint8), torch.tensor([1, 5, 2], dtype=torch.uint8)
        ),
        "float32",
        [4.0, 8.5],
    ),
    (lambda: torch.cumulative_trapezoid(torch.ones(0)), "float32", []),
    (lambda: torch.arange(-0.9, 2.1, 2.0, dtype=torch.int64), "int64", [0]),
    (lambda: torch.arange(-2.5, 2.5, dtype=torch.int64), "int64", [-2, -1, 0, 1]),
    (lambda: torch.arange(-2.5, 2.5, dtype=torch.int32), "int32", [-2, -1, 0, 1, 2]),
    (lambda: torch.arange(0, 10, 2.5, dtype=torch.int32), "int32", [0, 2, 4, 6]),
    (lambda: torch.arange(0, 2.5, out=torch.empty(0, dtype=torch.int64)), "int64", [0, 1]),
    (lambda: torch.linspace(4.3, 50, 5, dtype=torch.int32), "int32", [4, 15, 27, 38, 50]),
    (
        lambda: torch.linspace(-1.5, 7.3, 23, dtype=torch.int64),
        "int64",
        [-1, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 7],
    ),
    (lambda: torch.logspace(0, 1.2, 2, 5.0, dtype=torch.int32), "int32", [1, 5]),
    (
        lambda: torch.logspace(0, 1, 3, out=torch.empty(0, dtype=torch.float64)),
        "float64",
        [1.0, 3.1622777, 10.0],
    ),
    (
        lambda: torch.zeros(4, dtype=torch.int8).random_(120, None).clamp(max=119),
        "int8",
        [119, 119, 119, 119],
    ),
    (lambda: torch.add(torch.tensor([True]), torch.tensor([True]), alpha=2), "bool", [True]),
    (
        lambda: torch.tensor([1, 2]).index_add(0, torch.tensor([0]), torch.tensor([3]), alpha=2**62 + 1),
        "int64",
        [-4611686018427387900, 2],
    ),
]

DRAWS = [
    (
        lambda: torch.randn(3, out=torch.empty(3, dtype=torch.complex64)),
        "complex64",
        [complex(1.0896488, -0.20748557), complex(-1.5406368, 0.4019416), complex(-0.76687312, -0.98895627)],
    ),
    (
        lambda: torch.rand(3, out=torch.empty(3, dtype=torch.float64)),
        "float64",
        [0.970053, 0.70781986, 0.45938294],
    ),
    (
        lambda: torch.randn(20, out=torch.empty(20, dtype=torch.float64))[:3],
        "float64",
        [-2.3104118, -0.37325086, -1.0608167],
    ),
    (
        lambda: torch.randn(20, out=torch.empty(20, dtype=torch.bfloat16))[4:7],
        "bfloat16",
        [-1.3515625, -1.6953125, 0.56640625],
    ),
    (
        lambda: torch.normal(0.0, 1.0, (3,), out=torch.empty(3, dtype=torch.float64)),
        "float64",
        [1.5409961, -0.29342891, -2.1787894],
    ),
    (
        lambda: torch.normal(torch.zeros(20), 1.0, out=torch.empty(20, dtype=torch.float64))[:3],
        "float64",
        [-2.3104118, -0.37325086, -1.0608167],
    ),
    (
        lambda: torch.bernoulli(torch.tensor([0.0, 1.0]), out=torch.empty(2, dtype=torch.int64)),
        "int64",
        [0, 1],
    ),
    (
        lambda: torch.full((2,), 1 / 3, out=torch.empty(2, dtype=torch.float64)),
        "float64",
        [0.33333333, 0.33333333],
    ),
    (lambda: torch.zeros(2, out=torch.empty(0, dtype=torch.int64)), "int64", [0, 0]),
    (lambda: torch.full((2,), 2.5, out=torch.empty(2, dtype=torch.int64)), "int64", [2, 2]),
    (
        lambda: torch.linspace(0, 1, 4, out=torch.empty(4, dtype=torch.float64)),
        "float64",
        [0.0, 0.33333333, 0.66666667, 1.0],
    ),
]

FITTING = [
    (lambda: torch.tensor([-1, -255], dtype=torch.uint8), "uint8", [255, 1]),
    (lambda: torch.full((1,), -1, dtype=torch.uint8), "uint8", [255]),
    (lambda: torch.tensor([1e40, -1e40], dtype=torch.float32), "float32", [inf, -inf]),
    (lambda: torch.tensor([2**70], dtype=torch.float64), "float64", [1.1805916e21]),
    (lambda: torch.full((1,), inf, dtype=torch.float16), "float16", [inf]),
    (lambda: torch.full((1,), 300, dtype=torch.bool), "bool", [True]),
    (lambda: torch.tensor([2**63 - 1, -(2**63)]), "int64", [9223372036854775807, -9223372036854775808]),
    (lambda: torch.full((1,), 3.7, dtype=torch.int8), "int8", [3]),
    (
        lambda: torch.zeros(2, dtype=torch.float16).masked_fill(torch.tensor([True, False]), -inf),
        "float16",
        [-inf, 0.0],
    ),
    (lambda: torch.full((1,), 2**63 - 1), "int64", [9223372036854775807]),
]


@pytest.mark.parametrize("call, dtype, expected", DTYPES + DRAWS + FITTING)
def test_numbers(call: Callable[[], Any], dtype: str, expected: Any) -> None:
    torch.manual_seed(0)
    found = call()
    found = found if isinstance(found, torch.Tensor) else found[0]
    assert str(found.dtype) == f"torch.{dtype}"
    wide = np.asarray(found.detach().cpu().tolist())
    np.testing.assert_allclose(wide, np.asarray(expected), rtol=2e-6, atol=0)


MASK = torch.tensor([True, False])


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.tensor(300, dtype=torch.uint8),
        lambda: torch.tensor([-256], dtype=torch.uint8),
        lambda: torch.tensor([300.0], dtype=torch.int8),
        lambda: torch.tensor([2**40], dtype=torch.int32),
        lambda: torch.tensor([inf], dtype=torch.int64),
        lambda: torch.tensor([nan], dtype=torch.uint8),
        lambda: torch.full((2,), 300, dtype=torch.uint8),
        lambda: torch.full((2,), -3.7, dtype=torch.uint8),
        lambda: torch.full((2,), nan, dtype=torch.int32),
        lambda: torch.full((2,), 1e6, dtype=torch.float16),
        lambda: torch.zeros(2).fill_(1j),
        lambda: torch.full_like(torch.zeros(2, dtype=torch.uint8), 300),
        lambda: torch.zeros(2).new_full((2,), 300, dtype=torch.uint8),
        lambda: torch.zeros(2, dtype=torch.uint8).fill_(300),
        lambda: torch.zeros(2).fill_(1e40),
        lambda: torch.zeros(2, dtype=torch.uint8).masked_fill(MASK, 300),
        lambda: torch.zeros(2, dtype=torch.uint8).masked_fill(MASK, torch.tensor(300)),
        lambda: torch.zeros(2, dtype=torch.float16).masked_fill_(MASK, -1e9),
        lambda: torch.zeros(2, dtype=torch.int64).masked_fill(MASK, inf),
        lambda: torch.zeros(2, dtype=torch.uint8).index_fill(0, torch.tensor([0]), 300),
        lambda: torch.zeros(2, dtype=torch.uint8).scatter(0, torch.tensor([0]), 300),
        lambda: torch.zeros(2, dtype=torch.uint8).__setitem__(0, 300),
        lambda: torch.zeros(2, dtype=torch.int32).__setitem__(slice(None), 1e30),
        lambda: torch.zeros(2, dtype=torch.uint8).__setitem__(MASK, 300),
        lambda: F.pad(torch.zeros(2, dtype=torch.uint8), (1, 1), value=300),
        lambda: torch.where(MASK, torch.zeros(2, dtype=torch.uint8), 300),
        lambda: torch.arange(1e20, 1e20 + 1e5, dtype=torch.int64),
        lambda: torch.add(torch.zeros(1, dtype=torch.uint8), torch.ones(1, dtype=torch.uint8), alpha=256),
        lambda: F.threshold(torch.zeros(2, dtype=torch.uint8), 2, 300),
    ],
)
def test_a_number_that_does_not_fit_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="without overflow"):
        call()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: torch.arange(3, dtype=torch.bool), "not implemented"),
        (lambda: torch.zeros(3, dtype=torch.uint8).random_(300), "to - 1 is out of bounds"),
        (lambda: torch.zeros(3, dtype=torch.int8).random_(-200, 5), "from is out of bounds"),
        (lambda: torch.zeros(3, dtype=torch.uint32).random_(-1, 5), "from is out of bounds"),
        (lambda: torch.zeros(3, dtype=torch.float16).random_(0, 70000), "to - 1 is out of bounds"),
        (lambda: torch.zeros(3, dtype=torch.uint8).random_(-1, 5), "out of bounds"),
        (lambda: torch.randint(0, 300, (2,), dtype=torch.uint8), "out of bounds"),
        (lambda: torch.empty(2, 4, 2**29, 2**29), "Storage size calculation overflowed"),
        (lambda: torch.round(torch.tensor([15]), decimals=-1), "not implemented"),
        (lambda: torch.tensor([True]).square_(), "can't be cast"),
        (lambda: torch.unravel_index(torch.tensor([3.0]), (5,)), "integer dtype"),
        (lambda: torch.nanmean(torch.tensor([1, 2])), "floating point or complex"),
        (lambda: F.hardtanh(torch.tensor([1], dtype=torch.uint8)), "without overflow|unsigned"),
        (lambda: torch.arange(0, 2.5, 0.5, dtype=torch.int64), "step must be nonzero"),
        (lambda: torch.add(torch.tensor([1]), torch.tensor([3]), alpha=1.0), "floating point"),
        (lambda: torch.sub(torch.tensor([1]), torch.tensor([3]), alpha=True), "Boolean alpha"),
        (lambda: torch.add(torch.tensor([1.0]), torch.tensor([3.0]), alpha=1 + 0j), "complex number"),
        (lambda: torch.tensor([1]).add_(torch.tensor([3]), alpha=1.0), "floating point"),
        (
            lambda: torch.rand(3, dtype=torch.float32, out=torch.empty(3, dtype=torch.float64)),
            "does not match dtype of out",
        ),
        (lambda: torch.nextafter(torch.tensor([1, 2]), torch.tensor([3, 4])), "not implemented for"),
        (
            lambda: torch.tensor([1j]).scatter_(0, torch.tensor([0]), torch.tensor([1j]), reduce="amax"),
            "reduce",
        ),
        (
            lambda: F.interpolate(torch.zeros(1, 1, 4, 4, dtype=torch.int32), 7, mode="bilinear"),
            "not implemented for",
        ),
        (
            lambda: F.interpolate(torch.zeros(1, 1, 4, dtype=torch.uint8), 7, mode="linear"),
            "not implemented for",
        ),
    ],
)
def test_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError), match=message):
        call()
