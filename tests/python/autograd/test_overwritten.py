"""What an in-place op without a derivative overwrites gets a gradient of zero, and so does what it reads."""

from __future__ import annotations

import pytest
import warptape as torch

COMPARE = ("eq_", "ne_", "lt_", "le_", "gt_", "ge_")
LOGIC = ("logical_and_", "logical_or_", "logical_xor_")


@pytest.mark.parametrize("op", [*COMPARE, *LOGIC])
@pytest.mark.parametrize("leads", [True, False])
def test_zeros_flow(op: str, leads: bool) -> None:
    x = torch.tensor([[1.0], [2.0]], requires_grad=leads)
    y = torch.tensor([1.0, 3.0], requires_grad=True)
    z = (x * 1).repeat(1, 2)
    getattr(z, op)(y)
    assert z.requires_grad and type(z.grad_fn).__name__ != "RepeatBackward0"
    (z * 5 + x * 2).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [0, 0]
    if leads:
        assert x.grad is not None and x.grad.tolist() == [[4], [4]]


@pytest.mark.parametrize("op", COMPARE)
def test_numbers_and_masks(op: str) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    z = x * 1
    getattr(z, op)(2)
    (z + x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1]
    mask = torch.tensor([True, False])
    getattr(mask, op)(x)
    assert not mask.requires_grad


def test_renorm_in_place() -> None:
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4]], requires_grad=True)
    y = x * 1
    y.renorm_(2, 0, 1.0)
    y.sum().backward()
    z = x.detach().clone().requires_grad_()
    z.renorm(2, 0, 1.0).sum().backward()
    assert x.grad is not None and z.grad is not None and x.grad.tolist() == z.grad.tolist()
