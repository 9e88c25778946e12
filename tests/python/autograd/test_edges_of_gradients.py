"""Gradients that were lost or nan: of values that fill, of logarithms of large and small sums, of windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import warptape as torch


def test_index_fill_of_a_tensor() -> None:
    x, value = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor(5.0, requires_grad=True)
    for filled in (
        x.index_fill(0, torch.tensor([0, 2]), value),
        (x * 1).index_fill_(0, torch.tensor([0, 2]), value),
    ):
        x.grad = value.grad = None
        assert filled.tolist() == [5, 2, 5]
        (filled * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [0, 10, 0]
        assert value.grad is not None and value.grad.item() == 101
    with pytest.raises(RuntimeError, match="0-dim"):
        x.index_fill(0, torch.tensor([0]), torch.ones(1))


def softmaxes(x: list[float], weights: list[float]) -> np.ndarray:
    """The gradient of the weighted sum of logcumsumexp: a softmax of every beginning."""
    total = np.zeros(len(x))
    for n, weight in enumerate(weights, 1):
        e = np.exp(np.array(x[:n]) - max(x[:n]))
        total[:n] += weight * e / e.sum()
    return total


@pytest.mark.parametrize(
    "x", [[1000.0, 1001.0, 999.0], [-1000.0, -999.0, 0.0], [0.3, -0.2, 1.0], [1.0, -math.inf, 2.0]]
)
def test_logcumsumexp(x: list[float]) -> None:
    weights = [1.0, -2.0, 0.5]
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (t.logcumsumexp(0) * torch.tensor(weights, dtype=torch.float64)).sum().backward()
    assert t.grad is not None
    np.testing.assert_allclose(t.grad.numpy(), softmaxes(x, weights), rtol=1e-9, atol=1e-12)


def test_logcumsumexp_of_nothing() -> None:
    for t in (torch.zeros(0, requires_grad=True), torch.zeros(2, 0, requires_grad=True)):
        t.logcumsumexp(0).sum().backward()
        assert t.grad is not None and t.grad.shape == t.shape
    t = torch.tensor(3.0, requires_grad=True)
    t.logcumsumexp(0).backward()
    assert t.grad is not None and t.grad.item() == 1


def test_cumsum_keeps_an_infinite_gradient_to_its_places() -> None:
    x = torch.zeros(3, requires_grad=True)
    x.cumsum(0).backward(torch.tensor([1.0, math.inf, 1e-3]))
    assert x.grad is not None and x.grad[:2].tolist() == [math.inf] * 2
    assert x.grad[2].item() == pytest.approx(1e-3)


def test_unfold_of_a_number() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    (x.unfold(0, 1, 1) * 2).sum().backward()
    assert x.grad is not None and x.grad.item() == 2


def test_missing_derivatives_are_said() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    for name in ("floor_divide", "heaviside"):
        y = getattr(torch, name)(x, torch.tensor([2.0, 3.0]))
        assert y.requires_grad
        with pytest.raises(NotImplementedError, match=f"derivative for {name} is not implemented"):
            y.sum().backward()
