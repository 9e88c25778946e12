"""examples/optimizers.py against the papers' formulas in NumPy, in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import warptape as wt

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import optimizers


def runs(make, shape=(6, 4), steps=12, prepare=None):
    """The parameter after each step, and the gradients, which were given."""
    rng = np.random.default_rng(1)
    p = wt.tensor(rng.normal(size=shape), requires_grad=True)
    start = p.detach().numpy().copy()
    optimizer = make([p])
    if prepare:
        prepare(optimizer)
    gradients = [rng.normal(size=shape) for _ in range(steps)]
    visited = []
    for g in gradients:
        p.grad = wt.tensor(g)
        optimizer.step()
        visited.append(p.detach().numpy().copy())
    return optimizer, p, start, gradients, visited


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (3, 6, 6)])
def test_polar_express_makes_singular_values_one(shape):
    x = np.random.default_rng(0).normal(size=shape)
    found = optimizers.polar_express(wt.tensor(x), 8, wt.float64).numpy()
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(found, u @ vt, atol=2e-3)
    five = np.linalg.svd(optimizers.polar_express(wt.tensor(x)).float().numpy(), compute_uv=False)
    assert np.all(five > 0.85) and np.all(five < 1.15)


def test_normuon():
    make = lambda params: optimizers.NorMuon(params, lr=0.1, weight_decay=0.2)
    _, _, p, gradients, visited = runs(make)
    mean, rows = np.zeros((6, 4)), np.zeros((6, 1))
    for g, found in zip(gradients, visited):
        mean = 0.95 * mean + 0.05 * g
        o = optimizers.polar_express(wt.tensor(0.05 * g + 0.95 * mean)).double().numpy()
        rows = 0.95 * rows + 0.05 * (o**2).mean(1, keepdims=True)
        o = o / (np.sqrt(rows) + 1e-8)
        p = p * (1 - 0.1 * 0.2) - 0.1 * 0.2 * np.sqrt(24) / np.linalg.norm(o) * o
        np.testing.assert_allclose(found, p, rtol=0, atol=2e-3)  # bfloat16 rounds what is a little different
        p = found


def test_soap():
    make = lambda params: optimizers.SOAP(params, lr=0.1, weight_decay=0.1, frequency=5)
    _, _, p, gradients, visited = runs(make, (4, 4))  # of full rank: no eigenvector is free
    left, right = np.zeros((4, 4)), np.zeros((4, 4))
    mean = square = np.zeros((4, 4))
    ql = qr = None
    for t, (g, found) in enumerate(zip(gradients, visited), 1):
        left, right = 0.95 * left + 0.05 * g @ g.T, 0.95 * right + 0.05 * g.T @ g
        if ql is None:
            ql, qr = np.linalg.eigh(left)[1], np.linalg.eigh(right)[1]
        elif t % 5 == 0:
            ql, qr = np.linalg.qr(left @ ql)[0], np.linalg.qr(right @ qr)[0]
        mean = 0.95 * mean + 0.05 * g
        square = 0.95 * square + 0.05 * (ql.T @ g @ qr) ** 2
        move = (ql.T @ mean @ qr) / (1 - 0.95**t) / (np.sqrt(square / (1 - 0.95**t)) + 1e-8)
        p = p * (1 - 0.1 * 0.1) - 0.1 * ql @ move @ qr.T
        np.testing.assert_allclose(found, p, rtol=1e-6, atol=1e-6)


def test_schedule_free():
    """x is the average of z, y lies between them, and gradients are taken at y."""
    make = lambda params: optimizers.ScheduleFreeAdamW(params, lr=0.1, weight_decay=0.1, warmup_steps=3)
    optimizer, parameter, start, gradients, visited = runs(make, prepare=lambda o: o.train())
    x, z, square, total = start.copy(), start.copy(), np.zeros((6, 4)), 0.0
    for t, (g, found) in enumerate(zip(gradients, visited), 1):
        lr = 0.1 * min(1, t / 3)
        y = 0.1 * z + 0.9 * x
        square = 0.999 * square + 0.001 * g**2
        z = z - lr * (g / (np.sqrt(square / (1 - 0.999**t)) + 1e-8) + 0.1 * y)
        total += lr**2
        x = (1 - lr**2 / total) * x + lr**2 / total * z
        np.testing.assert_allclose(found, 0.1 * z + 0.9 * x, rtol=1e-9, atol=1e-12)
    optimizer.eval()
    np.testing.assert_allclose(parameter.detach().numpy(), x, rtol=1e-9, atol=1e-12)
    with pytest.raises(RuntimeError, match="call train"):
        optimizer.step()


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_the_nearest_of_256(signed):
    table = optimizers.dynamic_codes(signed)
    assert len(table) == len(table.unique()) == 256
    assert (table.min(), table.max()) == (-0.99296875 if signed else 0.0, 1.0)
    x = wt.randn(3, 300, generator=wt.Generator().manual_seed(0))
    x = x if signed else x.abs()
    stored = optimizers.Codes(x, signed)
    stored.write(x)
    flat = x.flatten().numpy()
    for at in range(0, 900, 256):
        part = flat[at : at + 256]
        scale = np.abs(part).max()
        gaps = np.abs(part[:, None] / scale - table.numpy()).min(1) * scale
        found = stored.read().flatten().numpy()[at : at + 256]
        np.testing.assert_allclose(np.abs(found - part), gaps, atol=1e-6)


def test_adam_in_8_bits_stays_near_adam():
    results = []
    for make in (
        lambda params: optimizers.Adam8bit(params, lr=0.01, weight_decay=0.1, least=1),
        lambda params: optimizers.Adam8bit(params, lr=0.01, weight_decay=0.1),
        lambda params: wt.optim.AdamW(params, lr=0.01, weight_decay=0.1),
    ):
        results.append(runs(make, (40, 40))[-1][-1])
    np.testing.assert_allclose(results[1], results[2], atol=1e-6)
    moved = np.abs(results[2] - runs(lambda params: wt.optim.SGD(params, lr=0.0), (40, 40))[2]).mean()
    assert np.abs(results[0] - results[2]).mean() < 0.1 * moved


@pytest.mark.parametrize("name", optimizers.MADE)
def test_each_learns(name):
    assert optimizers.trained(name, 60) < 0.5 * optimizers.trained(name, 0)
