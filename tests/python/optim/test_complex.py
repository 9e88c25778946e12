"""Complex parameters: every optimizer treats their parts as real parameters, as PyTorch's do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as wt
from warptape import optim

CASES = [
    ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "amsgrad": True}),
    ("AdamW", {"lr": 0.1}),
    ("RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.5}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.1}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("RAdam", {"weight_decay": 0.1}),
    ("ASGD", {"lr": 0.01, "t0": 2}),
    ("Rprop", {}),
    ("LBFGS", {"max_iter": 3, "line_search_fn": "strong_wolfe"}),
]


def numbers(*shape: int, seed: int) -> np.ndarray:
    r = np.random.default_rng(seed)
    return r.standard_normal(shape) + 1j * r.standard_normal(shape)


def train(name: str, options: dict[str, Any], weight: wt.Tensor, steps: int = 6) -> optim.Optimizer:
    x, y = (wt.from_numpy(numbers(6, n, seed=n)) for n in (4, 3))
    bias = wt.zeros(3, dtype=wt.float64, requires_grad=True)  # a real one beside it
    optimizer = getattr(optim, name)([weight, bias], **options)

    def loss() -> wt.Tensor:
        optimizer.zero_grad()
        w = weight if weight.is_complex() else wt.view_as_complex(weight)
        value = ((x @ w + bias - y).abs() ** 2).sum()
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(loss)
    return optimizer


@pytest.mark.parametrize(("name", "options"), CASES)
def test_parts_are_parameters_of_their_own(name: str, options: dict[str, Any]) -> None:
    start = wt.from_numpy(numbers(4, 3, seed=0))
    one, other = start.clone().requires_grad_(), wt.view_as_real(start).clone().requires_grad_()
    state = train(name, options, one).state_dict()["state"][0]
    parts = train(name, options, other).state_dict()["state"][0]
    assert not wt.equal(one.detach(), start)
    np.testing.assert_allclose(wt.view_as_real(one.detach()).numpy(), other.detach().numpy(), 1e-12, 1e-12)
    assert state.keys() == parts.keys()
    for key, value in state.items():
        if isinstance(value, wt.Tensor) and value.shape == start.shape:
            assert value.dtype is wt.complex128, key
            np.testing.assert_allclose(wt.view_as_real(value).numpy(), parts[key].numpy(), 1e-12, 1e-12)


def test_state_is_loaded() -> None:
    start = wt.from_numpy(numbers(4, 3, seed=0))
    saved = start.clone().requires_grad_()
    state = train("Adam", {}, saved).state_dict()
    fresh = optim.Adam([saved, wt.zeros(3, dtype=wt.float64, requires_grad=True)])
    fresh.load_state_dict(state)
    assert wt.equal(fresh.state[saved]["exp_avg_sq"], state["state"][0]["exp_avg_sq"])


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_refusal(name: str) -> None:
    with pytest.raises(wt.DtypeError, match=f"{name} does not support complex parameters"):
        getattr(optim, name)([wt.ones(2, 2, dtype=wt.complex64, requires_grad=True)])


@pytest.mark.parametrize("p", [1.0, 2.0, float("inf")])
def test_clip_grad_norm(p: float) -> None:
    w, v = (wt.from_numpy(numbers(3, seed=i)).requires_grad_() for i in (0, 1))
    v = v.detach().real.clone().requires_grad_()
    ((w.abs() ** 2).sum() + (v**2).sum()).backward()
    both = np.concatenate([w.grad.numpy(), v.grad.numpy()])
    total = wt.nn.utils.clip_grad_norm_([w, v], 0.5, p)
    np.testing.assert_allclose(total.item(), np.linalg.norm(both, p))
    after = np.concatenate([w.grad.numpy(), v.grad.numpy()])
    np.testing.assert_allclose(after, both * 0.5 / np.linalg.norm(both, p), rtol=1e-5)
