"""Twenty steps of each optimizer against NumPy in float64, written from the papers' formulas."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import warptape as wt
from optimizer_steps import DTYPES, SHAPES, STEPS, gradient, initial, run


def reference_sgd(
    p, grads, lr, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False
):
    velocity = None
    for g in grads:
        g = -g if maximize else g
        g = g + weight_decay * p
        if momentum:
            velocity = g if velocity is None else momentum * velocity + (1 - dampening) * g
            g = g + momentum * velocity if nesterov else velocity
        p = p - lr * g
    return p


def reference_adam(
    p,
    grads,
    lr=1e-3,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.0,
    amsgrad=False,
    maximize=False,
    decoupled=False,
):
    m, v, largest = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(grads, start=1):
        g = -g if maximize else g
        if decoupled:
            p = p * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        largest = np.maximum(largest, v)
        m_hat = m / (1 - betas[0] ** t)
        v_hat = (largest if amsgrad else v) / (1 - betas[1] ** t)
        p = p - lr * m_hat / (np.sqrt(v_hat) + eps)
    return p


def check(make, reference, options, dtype, tolerance):
    got = run(make, dtype)
    for i, (shape, value) in enumerate(zip(SHAPES, got)):
        grads = [gradient(step, i, shape) for step in range(STEPS)]
        expected = reference(initial(i, shape), grads, **options)
        assert value.shape == shape
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)


SGD_OPTIONS = [
    {"lr": 0.1},
    {"lr": 0.1, "maximize": True},
    {"lr": 0.05, "weight_decay": 0.1},
    *(
        {"lr": 0.03, "momentum": 0.9, "dampening": d, "weight_decay": w, "maximize": m}
        for d, w, m in product((0.0, 0.4), (0.0, 0.2), (False, True))
    ),
    {"lr": 0.03, "momentum": 0.9, "nesterov": True},
    {"lr": 0.03, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1, "maximize": True},
]
ADAM_OPTIONS = [
    {},
    {"lr": 0.1, "betas": (0.5, 0.7), "eps": 1e-3},
    {"lr": 0.1, "betas": (0.0, 0.9)},
    *(
        {"lr": 0.02, "weight_decay": w, "amsgrad": a, "maximize": m}
        for w, a, m in product((0.0, 0.3), (False, True), (False, True))
    ),
]


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
@pytest.mark.parametrize("options", SGD_OPTIONS, ids=str)
def test_sgd(options, dtype, tolerance):
    check(lambda ps: wt.optim.SGD(ps, **options), reference_sgd, options, getattr(wt, dtype), tolerance)


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
@pytest.mark.parametrize("decoupled", [False, True], ids=["Adam", "AdamW"])
@pytest.mark.parametrize("options", ADAM_OPTIONS, ids=str)
def test_adam(options, decoupled, dtype, tolerance):
    options = {"weight_decay": 0.0, **options}
    kind = wt.optim.AdamW if decoupled else wt.optim.Adam
    reference = {**options, "decoupled": decoupled}
    check(lambda ps: kind(ps, **options), reference_adam, reference, getattr(wt, dtype), tolerance)


def test_adamw_decays_by_default_and_adam_does_not():
    grads = [gradient(s, 0, (7,)) for s in range(STEPS)]
    for kind, weight_decay in ((wt.optim.Adam, 0.0), (wt.optim.AdamW, 0.01)):
        got = run(kind, wt.float64, shapes=[(7,)])[0]
        expected = reference_adam(initial(0, (7,)), grads, weight_decay=weight_decay, decoupled=True)
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "flags", [{"fused": True}, {"foreach": True}, {"fused": False}, {"capturable": True}]
)
def test_flags_choose_no_other_result(flags):
    plain = run(wt.optim.AdamW, wt.float32)
    for a, b in zip(plain, run(lambda ps: wt.optim.AdamW(ps, **flags), wt.float32)):
        np.testing.assert_array_equal(a, b)


def test_lr_may_be_a_tensor():
    lr = wt.tensor(0.03, dtype=wt.float64)
    options = {"lr": 0.03, "momentum": 0.9}
    check(lambda ps: wt.optim.SGD(ps, lr=lr, momentum=0.9), reference_sgd, options, wt.float64, 1e-12)
    check(lambda ps: wt.optim.Adam(ps, lr=lr), reference_adam, {"lr": 0.03}, wt.float64, 1e-12)


@pytest.mark.parametrize("kind, options", [("SGD", {"lr": 0.01, "momentum": 0.9}), ("AdamW", {"lr": 0.05})])
def test_bfloat16_follows_float64(kind, options):
    make = lambda ps: getattr(wt.optim, kind)(ps, **options)
    for low, high in zip(run(make, wt.bfloat16), run(make, wt.float64)):
        np.testing.assert_allclose(low, high, atol=0.06)  # 20 roundings to 8 bits


def test_transposed_parameter():
    """A parameter whose strides are not its shape's: state and gradient must meet element by element."""
    base = initial(0, (4, 3))
    p = wt.tensor(base, dtype=wt.float64).t().requires_grad_()
    assert not p.is_contiguous()
    optimizer = wt.optim.AdamW([p], lr=0.1, weight_decay=0.1)
    grads = [gradient(s, 0, (3, 4)) for s in range(STEPS)]
    for g in grads:
        p.grad = wt.tensor(g, dtype=wt.float64)
        optimizer.step()
    expected = reference_adam(base.T, grads, lr=0.1, weight_decay=0.1, decoupled=True)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12)


def test_groups_have_their_own_options():
    shapes = [(3,), (4,)]
    params = [wt.tensor(initial(i, s), dtype=wt.float64, requires_grad=True) for i, s in enumerate(shapes)]
    groups = [
        {"params": params[:1], "lr": 0.2},
        {"params": params[1:], "weight_decay": 0.0, "betas": (0.8, 0.9)},
    ]
    optimizer = wt.optim.AdamW(groups, lr=0.01, weight_decay=0.1)
    for step in range(STEPS):
        for i, p in enumerate(params):
            p.grad = wt.tensor(gradient(step, i, shapes[i]), dtype=wt.float64)
        optimizer.step()
    grads = [[gradient(step, i, shapes[i]) for step in range(STEPS)] for i in range(2)]
    expected = [
        reference_adam(initial(0, (3,)), grads[0], lr=0.2, weight_decay=0.1, decoupled=True),
        reference_adam(initial(1, (4,)), grads[1], lr=0.01, betas=(0.8, 0.9), decoupled=True),
    ]
    for p, e in zip(params, expected):
        np.testing.assert_allclose(p.detach().numpy(), e, rtol=1e-12)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_parameter_without_gradient_stands_still_and_starts_late(kind):
    """Its first step is step 1 of its own count, whenever it comes."""
    options = {"lr": 0.1, "momentum": 0.9} if kind == "SGD" else {"lr": 0.1, "weight_decay": 0.1}
    early, late = (wt.tensor(initial(i, (5,)), dtype=wt.float64, requires_grad=True) for i in range(2))
    optimizer = getattr(wt.optim, kind)([early, late], **options)
    for step in range(6):
        early.grad = wt.tensor(gradient(step, 0, (5,)), dtype=wt.float64)
        late.grad = wt.tensor(gradient(step, 1, (5,)), dtype=wt.float64) if step >= 2 else None
        optimizer.step()
    reference = reference_sgd if kind == "SGD" else reference_adam
    extra = {} if kind == "SGD" else {"decoupled": True}
    for i, (p, start) in enumerate(((early, 0), (late, 2))):
        grads = [gradient(s, i, (5,)) for s in range(start, 6)]
        np.testing.assert_allclose(
            p.detach().numpy(), reference(initial(i, (5,)), grads, **options, **extra), rtol=1e-12
        )


@pytest.mark.parity
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "kind, options", [*(("SGD", o) for o in SGD_OPTIONS), *(("Adam", o) for o in ADAM_OPTIONS), ("AdamW", {})]
)
def test_parity(kind, options, dtype):
    torch = pytest.importorskip("torch")
    got = run(lambda ps: getattr(wt.optim, kind)(ps, **options), getattr(wt, dtype))
    params = [
        torch.tensor(initial(i, s), dtype=getattr(torch, dtype), requires_grad=True)
        for i, s in enumerate(SHAPES)
    ]
    optimizer = getattr(torch.optim, kind)(params, fused=True, **options)
    for step in range(STEPS):
        for i, p in enumerate(params):
            p.grad = torch.tensor(gradient(step, i, SHAPES[i]), dtype=p.dtype)
        optimizer.step()
    tolerance = 1e-12 if dtype == "float64" else 2e-6
    for value, p in zip(got, params):
        np.testing.assert_allclose(value, p.detach().double().numpy(), rtol=tolerance, atol=tolerance)
