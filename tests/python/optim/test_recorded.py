"""Steps that are recorded: the gradient through an optimizer, against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as torch

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "adam": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adagrad": (torch.optim.Adagrad, {"weight_decay": 0.1}),
    "adamax": (torch.optim.Adamax, {}),
    "asgd": (torch.optim.ASGD, {}),
    "nadam": (torch.optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "radam": (torch.optim.RAdam, {}),
    "rmsprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "rprop": (torch.optim.Rprop, {}),
}


def _trained(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The loss after three steps, as a function of the first parameter."""
    target = torch.linspace(-1, 1, 4, dtype=torch.float64)

    def loss_after(start: Any) -> Any:
        p = start * 1.0
        optimizer = make(p)
        for _ in range(3):
            now = p.clone()  # what the loss saves must not change in place
            loss = ((now - target) ** 2).sum() + (now**3).sum()
            (p.grad,) = torch.autograd.grad(loss, p, create_graph=True)
            optimizer.step()
        return (p**2).sum()

    return loss_after


@pytest.mark.parametrize("name", CASES)
def test_gradient_through_steps(name: str) -> None:
    cls, options = CASES[name]
    start = torch.tensor([0.5, -1.0, 2.0, 0.3], dtype=torch.float64, requires_grad=True)
    loss = _trained(lambda p: cls([p], lr=0.05, differentiable=True, **options))
    assert torch.autograd.gradcheck(loss, (start,))


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_recorded_steps_are_the_usual_ones(name: str) -> None:
    cls, options = CASES[name]
    leaf = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    twin = leaf.detach().clone().requires_grad_() * 1.0
    usual = cls([leaf], lr=0.05, **options)
    recorded = cls([twin], lr=0.05, differentiable=True, **options)
    for _ in range(4):
        for p, optimizer in ((leaf, usual), (twin, recorded)):
            p.grad = (p.detach() ** 2 + 1).requires_grad_()
            optimizer.step()
    torch.testing.assert_close(leaf.detach(), twin.detach(), rtol=1e-12, atol=0)
    assert twin.grad_fn is not None and leaf.grad_fn is None


def test_gradient_by_the_learning_rate() -> None:
    rate = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    start = torch.tensor([0.5, -1.0, 2.0, 0.3], dtype=torch.float64)

    def loss(lr: Any) -> Any:
        return _trained(lambda p: torch.optim.SGD([p], lr=lr, momentum=0.5, differentiable=True))(
            start.clone().requires_grad_()
        )

    assert torch.autograd.gradcheck(loss, (rate,))


def test_what_cannot_be_recorded() -> None:
    p = torch.ones(2, requires_grad=True) * 1
    with pytest.raises(RuntimeError, match="`fused` does not support `differentiable`"):
        torch.optim.Adam([p], fused=True, differentiable=True)
    with pytest.raises(RuntimeError, match="`master_weights` does not support `differentiable`"):
        torch.optim.SGD([p], differentiable=True, master_weights=True)
    leaf = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([leaf], differentiable=True)
    leaf.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="leaf"):
        optimizer.step()
    assert leaf.tolist() == [1, 1]
