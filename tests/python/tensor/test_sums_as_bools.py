"""Sums and products with dtype=bool: of what is not 0, as in PyTorch; and lists without items."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as torch


@pytest.mark.parametrize(
    "values", [[0.5, 0.2], [0.0, -0.5, 0.5], [2, -2], [256, 0], [0.5j, 0j], [1e-40, 0.0]], ids=str
)
def test_any(values: list[Any]) -> None:
    x = torch.tensor(values)
    assert torch.sum(x, dtype=torch.bool).item() is True
    assert torch.sum(x, 0, dtype=torch.bool).item() is True
    assert torch.sum(x.expand(3, len(values)), 1, dtype=torch.bool).tolist() == [True] * 3
    assert torch.sum(x, 0, out=torch.empty(0, dtype=torch.bool)).item() is True
    assert torch.prod(x, 0, dtype=torch.bool).item() is bool((x != 0).all())
    assert torch.sum(x * 0, dtype=torch.bool).item() is False


def test_complex_numbers_as_integers() -> None:
    assert torch.prod(torch.tensor([2 + 1j, 3j]), dtype=torch.int64).item() == 0


def test_bools_are_counted_by_einsum() -> None:
    assert torch.einsum("i->", torch.tensor([True, True, False])).item() == 2


def test_gradient_without_spacing() -> None:
    with pytest.raises(RuntimeError, match="got a list of length 0"):
        torch.gradient(torch.arange(4.0), spacing=[])
    with pytest.raises(RuntimeError, match="got a list of length 0"):
        torch.gradient(torch.arange(4.0), spacing=(), dim=0)
