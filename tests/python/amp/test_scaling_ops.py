"""What gradient scalers of other packages are made of, and torch.cpu.amp."""

from __future__ import annotations

import pytest
import warptape as wt


@pytest.mark.parametrize("value", [4.0, float("inf"), float("nan")])
def test_unscaling(value: float) -> None:
    grads = [wt.full((3, 3), 4.0), wt.full((2, 3), 4.0).t(), wt.full((2,), 4.0, dtype=wt.float16)]
    grads[1][0, 0] = value
    found = wt.zeros(1)
    wt._amp_foreach_non_finite_check_and_unscale_(grads, found, wt.full((1,), 0.25))
    assert found.item() == (value != 4.0)
    assert grads[0].tolist() == wt.ones(3, 3).tolist() and grads[2].tolist() == [1.0, 1.0]
    assert grads[2].dtype == wt.float16


def test_following_gradients() -> None:
    scale, steps, found = wt.full((1,), 4.0), wt.zeros(1, dtype=wt.int32), wt.zeros(1)
    seen = []
    for bad in (0.0, 0.0, 1.0):
        wt._amp_update_scale_(scale, steps, found.fill_(bad), 2.0, 0.25, 2)
        seen.append((scale.item(), steps.item()))
    assert seen == [(4.0, 1), (8.0, 0), (2.0, 0)]


def test_gradients_of_an_optimizer() -> None:
    weights = [wt.ones(2, requires_grad=True), wt.ones(3, requires_grad=True)]
    optimizer = wt.optim.SGD(weights, lr=1.0)
    for w in weights:
        w.grad = wt.full_like(w, 8.0)
    found, scaler = wt.zeros(1), wt.amp.GradScaler("cpu")
    assert not any(scaler._unscale_grads_(optimizer, wt.full((1,), 0.5), found, True).values())
    assert weights[1].grad.tolist() == [4.0] * 3 and found.item() == 0
    weights[0].grad[1] = float("inf")
    assert all(scaler._unscale_grads_(optimizer, wt.full((1,), 0.5), found, True).values())
    assert found.item() == 1


def test_the_cpus_older_names() -> None:
    with pytest.warns(FutureWarning, match="use `torch.amp.GradScaler"):
        scaler = wt.cpu.amp.GradScaler(init_scale=8.0)
    assert scaler.scale(wt.ones(1)).item() == 8.0
    with pytest.warns(FutureWarning, match="use `torch.amp.autocast"):
        context = wt.cpu.amp.autocast()
    with context:
        assert (wt.ones(2, 2) @ wt.ones(2, 2)).dtype == wt.bfloat16
