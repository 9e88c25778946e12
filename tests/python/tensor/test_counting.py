"""Divisors, neighbours, counts and draws where the op table's references do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as torch

inf, nan = float("inf"), float("nan")


@pytest.mark.parametrize(("name", "other"), [("int8", 31), ("int16", 7), ("int32", 65), ("int64", 7)])
def test_gcd_and_lcm_overflow_as_their_dtype_does(name: str, other: int) -> None:
    dtype = getattr(torch, name)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    pairs = torch.tensor([[low, other], [low, 0], [high, 2], [12, -18], [0, 0]], dtype=dtype)
    assert torch.gcd(pairs[:, 0], pairs[:, 1]).tolist() == [-1, low, 1, 6, 0]
    multiples = torch.lcm(pairs[:, 0], pairs[:, 1])
    assert multiples.dtype is dtype and multiples.tolist()[1:] == [
        0,
        -2 if name in ("int8", "int16") else 2,
        36,
        0,
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_nextafter_steps_to_the_neighbour(dtype: Any) -> None:
    """Along all numbers from one infinity to 0 of a 16-bit dtype, and at the ends of float32."""
    info = torch.finfo(dtype)
    if dtype is torch.float32:
        x = torch.tensor([0.0, 1.0, info.max, inf, -0.0, 1.0], dtype=dtype)
        to = torch.tensor([-1.0, 2.0, inf, 0.0, 1.0, nan], dtype=dtype)
        want = np.nextafter(x.numpy(), to.numpy())
        np.testing.assert_array_equal(torch.nextafter(x, to).numpy(), want)
        return
    bits = torch.arange(0x7C01 if dtype is torch.float16 else 0x7F81).to(torch.int16)
    numbers = bits.view(dtype)
    up, down = torch.tensor(inf, dtype=dtype), torch.tensor(0.0, dtype=dtype)
    assert torch.equal(torch.nextafter(numbers[:-1], up), numbers[1:])
    assert torch.equal(torch.nextafter(numbers[1:], down), numbers[:-1])
    assert torch.equal(torch.nextafter(-numbers[1:], down), -numbers[:-1])


def test_gradient_of_nextafter_is_that_of_the_number_it_starts_from() -> None:
    x, to = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([1.0, 3.0], requires_grad=True)
    grads = torch.autograd.grad(torch.nextafter(x, to).sum(), (x, to))
    assert [g.tolist() for g in grads] == [[0.0, 1.0], [0.0, 0.0]]


def test_out_of_several_results() -> None:
    x = torch.tensor([0.75, -3.0])
    mantissa, exponent = torch.empty(0), torch.empty(0, dtype=torch.int32)
    torch.frexp(x, out=(mantissa, exponent))
    assert mantissa.tolist() == [0.75, -0.75] and exponent.tolist() == [0, 2]
    counts, edges = torch.empty(0), torch.empty(0)
    torch.histogram(x, 2, range=(-4.0, 0.0), out=(counts, edges))
    assert counts.tolist() == [1.0, 0.0] and edges.tolist() == [-4.0, -2.0, 0.0]


def test_no_derivative_is_an_error_of_backward() -> None:
    x = torch.rand(5, requires_grad=True)
    assert not torch.histc(x, 3).requires_grad
    for result in (torch.histogram(x, 3)[0], torch.unique_consecutive(x)):
        with pytest.raises(RuntimeError, match="not implemented"):
            result.sum().backward()


def test_draws_have_gradients_of_zero() -> None:
    x = torch.full((3,), 0.5, requires_grad=True)
    for draw in (
        torch.poisson(x),
        torch.bernoulli(x),
        torch.normal(x, x),
        torch.binomial(torch.ones(3), x),
    ):
        (grad,) = torch.autograd.grad(draw.sum(), x)
        assert grad.tolist() == [0.0, 0.0, 0.0]


def test_counts_follow_their_distribution() -> None:
    torch.manual_seed(3)
    for rate in (0.5, 9.9, 10.0, 250.0):
        drawn = torch.poisson(torch.full((20000,), rate, dtype=torch.float64))
        assert abs(drawn.mean().item() - rate) < 5 * (rate / 20000) ** 0.5
        assert abs(drawn.var().item() / rate - 1) < 0.1
    for count, p in ((3.0, 0.2), (40.0, 0.9), (1000.0, 0.35)):
        drawn = torch.binomial(torch.full((20000,), count, dtype=torch.float64), torch.tensor(p).double())
        spread = count * p * (1 - p)
        assert abs(drawn.mean().item() - count * p) < 5 * (spread / 20000) ** 0.5
        assert abs(drawn.var().item() / spread - 1) < 0.1
        assert drawn.min().item() >= 0 and drawn.max().item() <= count


def test_resize_keeps_the_order_of_memory() -> None:
    x = torch.arange(6).reshape(2, 3)
    view = x[0]
    assert x.resize_(3, 2).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert x.resize_(2).tolist() == [0, 1] and x.data_ptr() == view.data_ptr()
    assert torch.empty(0).resize_as_(torch.empty(2, 2)).shape == (2, 2)
    with pytest.raises(RuntimeError, match="require grad"):
        torch.ones(2, requires_grad=True).resize_(3)


def test_searchsorted_by_side_and_sorter() -> None:
    edges, order = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1, 2, 0])
    values = torch.tensor([1.0, 2.5])
    assert torch.searchsorted(edges, values, sorter=order).tolist() == [0, 2]
    assert torch.searchsorted(edges, values, side="right", sorter=order).tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="opposites"):
        torch.searchsorted(edges, values, right=True, side="left")
