"""Averaged weights: the rules of the averages, buffers, batch norms, and the schedule."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as wt
from warptape.optim import SGD, swa_utils


def run(make, steps=4):
    """The averages after each step, and the weights that were averaged."""
    wt.manual_seed(0)
    model = wt.nn.Linear(2, 1)
    averaged = make(model)
    seen, found = [], []
    for i in range(steps):
        with wt.no_grad():
            model.weight.fill_(float(i * i))
        averaged.update_parameters(model)
        seen.append(float(i * i))
        found.append(averaged.module.weight[0, 0].item())
    assert averaged.n_averaged.item() == steps
    return seen, found


@pytest.mark.parametrize("multi", [False, True])
def test_averages(multi):
    name = "multi_avg_fn" if multi else "avg_fn"
    swa = swa_utils.get_swa_multi_avg_fn() if multi else swa_utils.get_swa_avg_fn()
    ema = swa_utils.get_ema_multi_avg_fn(0.9) if multi else swa_utils.get_ema_avg_fn(0.9)
    seen, found = run(lambda m: swa_utils.AveragedModel(m, **{name: swa}))
    assert found == pytest.approx([np.mean(seen[: i + 1]) for i in range(4)])
    seen, found = run(lambda m: swa_utils.AveragedModel(m, **{name: ema}))
    expected = seen[:1]
    for value in seen[1:]:
        expected.append(0.9 * expected[-1] + 0.1 * value)
    assert found == pytest.approx(expected)
    assert run(swa_utils.AveragedModel)[1] == pytest.approx([np.mean(seen[: i + 1]) for i in range(4)])


def test_buffers_and_state():
    model = wt.nn.BatchNorm1d(2)
    copied, averaged = swa_utils.AveragedModel(model), swa_utils.AveragedModel(model, use_buffers=True)
    for value in (1.0, 3.0):
        model.running_mean.fill_(value)
        copied.update_parameters(model)
        averaged.update_parameters(model)
    assert copied.module.running_mean.tolist() == [3, 3] and averaged.module.running_mean.tolist() == [2, 2]
    assert model.running_mean is not copied.module.running_mean
    again = swa_utils.AveragedModel(wt.nn.BatchNorm1d(2))
    again.load_state_dict(copied.state_dict())
    assert again.n_averaged.item() == 2
    with pytest.raises(AssertionError, match="Only one of"):
        swa_utils.AveragedModel(model, avg_fn=print, multi_avg_fn=print)
    with pytest.raises(ValueError, match="Invalid decay value"):
        swa_utils.get_ema_avg_fn(1.5)


def test_update_bn():
    model = wt.nn.Sequential(wt.nn.BatchNorm1d(3, momentum=0.3), wt.nn.Dropout())
    model.eval()
    data = wt.tensor(np.random.default_rng(0).normal(2.0, 3.0, size=(4, 16, 3)).astype("f"))
    swa_utils.update_bn([(x, 0) for x in data], model)
    np.testing.assert_allclose(model[0].running_mean.numpy(), data.mean((0, 1)).numpy(), rtol=1e-5)
    np.testing.assert_allclose(model[0].running_var.numpy(), data.var(1).mean(0).numpy(), rtol=1e-5)
    assert model[0].momentum == 0.3 and not model.training


@pytest.mark.parametrize("strategy", ["linear", "cos"])
def test_schedule(strategy):
    optimizer = SGD([wt.ones(1, requires_grad=True)], lr=1.0)
    schedule = swa_utils.SWALR(optimizer, swa_lr=0.2, anneal_epochs=4, anneal_strategy=strategy)
    rates = []
    for _ in range(7):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    share = np.minimum(np.arange(7) / 4, 1)
    share = share if strategy == "linear" else (1 - np.cos(np.pi * share)) / 2
    assert rates == pytest.approx(list(1.0 - 0.8 * share))
    with pytest.raises(ValueError, match="anneal_strategy must by one of"):
        swa_utils.SWALR(optimizer, 0.1, anneal_strategy="x")


def test_a_rate_that_is_a_tensor_is_copied() -> None:
    rate = wt.tensor(0.05)
    optimizer = SGD([wt.ones(1, requires_grad=True)], lr=0.1)
    swa_utils.SWALR(optimizer, rate)
    rate.mul_(0.5)
    assert optimizer.param_groups[0]["swa_lr"] == pytest.approx(0.05)
