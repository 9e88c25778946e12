"""Medians, maxima and minima of nan, of equal elements and of integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import warptape as torch

NAN, INF = math.nan, math.inf


def gradient(name: str, x: list[float], *args: Any) -> tuple[list[float], list[float]]:
    t = torch.tensor(x, requires_grad=True)
    found = getattr(torch, name)(t, *args)
    value = found if isinstance(found, torch.Tensor) else found.values
    value.backward()
    assert t.grad is not None
    return np.atleast_1d(value.detach().numpy()).tolist(), t.grad.tolist()


# The values and gradients are those of PyTorch 2.13.
@pytest.mark.parametrize(
    ("name", "x", "value", "grad"),
    [
        ("median", [1.0, NAN, 3.0, 2.0], NAN, [0, 1, 0, 0]),
        ("median", [1.0, 2.0, NAN, NAN, 3.0, 1.0], NAN, [0, 0, 0.5, 0.5, 0, 0]),
        ("median", [INF, INF, 1.0], INF, [0.5, 0.5, 0]),
        ("median", [3.0, 1.0, 3.0, 3.0], 3.0, [1 / 3, 0, 1 / 3, 1 / 3]),
        ("nanmedian", [1.0, NAN, 3.0, 2.0], 2.0, [0, 0, 0, 1]),
        ("nanmedian", [NAN, NAN], NAN, [0.5, 0.5]),
        ("nanmedian", [1.0, 2.0, NAN, NAN, 3.0, 1.0], 1.0, [0.5, 0, 0, 0, 0, 0.5]),
        ("max", [1.0, NAN, 3.0], NAN, [0, 1, 0]),
        ("min", [NAN, NAN], NAN, [0.5, 0.5]),
        ("amax", [1.0, NAN, 3.0], NAN, [NAN, NAN, NAN]),
    ],
)
def test_of_all(name: str, x: list[float], value: float, grad: list[float]) -> None:
    found, slope = gradient(name, x)
    np.testing.assert_equal(found, [value])
    np.testing.assert_allclose(slope, grad, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "x", "value", "index"),
    [
        ("median", [1.0, NAN, 3.0, 2.0], NAN, 1),
        ("median", [1.0, 2.0, NAN, NAN, 3.0, 1.0], NAN, 2),
        ("nanmedian", [1.0, NAN, 3.0, 2.0], 2.0, 3),
        ("nanmedian", [NAN, NAN], NAN, 0),
    ],
)
def test_median_of_dim(name: str, x: list[float], value: float, index: int) -> None:
    for row in (torch.tensor(x), torch.tensor(x, dtype=torch.float16), torch.tensor([x, x]).t()[:, 0]):
        found = getattr(torch, name)(row, 0)
        np.testing.assert_equal(found.values.item(), value)
        assert found.indices.item() == index
    assert gradient(name, x, 0)[1] == [float(i == index) for i in range(len(x))]
    kept = getattr(torch, name)(torch.tensor([x, x]), 1, True)
    assert kept.values.shape == kept.indices.shape == (2, 1)


def test_median_of_little() -> None:
    assert math.isnan(torch.tensor([]).median().item())
    assert math.isnan(torch.tensor([]).nanmedian().item())
    assert torch.tensor(2.0).median(0).indices.item() == 0
    with pytest.raises(IndexError, match="median"):
        torch.zeros(2, 0).median(1)
    assert torch.zeros(2, 0).median(0).values.shape == (0,)
    assert torch.tensor([3, 1, 2]).nanmedian().item() == 2


def test_mode_of_nan() -> None:
    found = torch.tensor([1.0, 2.0, NAN, NAN, 3.0, 1.0]).mode()
    assert found.values.item() == 1 and found.indices.item() in (0, 5)
    assert math.isnan(torch.tensor([NAN, NAN]).mode().values.item())


@pytest.mark.parametrize("other", [torch.tensor([2]), torch.tensor(2), torch.tensor([True])])
def test_other_is_no_dim(other: torch.Tensor) -> None:
    x = torch.tensor([1, 5, 3])
    for name in ("max", "min"):
        for found in (
            getattr(torch, name)(x, other),
            getattr(x, name)(other),
            getattr(torch, name)(x, other=other),
        ):
            assert found.tolist() == getattr(np, f"{name}imum")(x.numpy(), other.numpy()).tolist()
    assert torch.max(x, 0).indices.item() == 1
