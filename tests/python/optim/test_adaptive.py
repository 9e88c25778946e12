"""Twenty steps of each further optimizer against NumPy in float64, written from the papers' formulas."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import warptape as wt
from optimizer_steps import DTYPES, SHAPES, STEPS, gradient, initial, run


def directed(p, g, weight_decay=0.0, maximize=False):
    return (-g if maximize else g) + weight_decay * p


def rmsprop(p, grads, lr=1e-2, alpha=0.99, eps=1e-8, momentum=0.0, centered=False, **direction):
    square, mean, velocity = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for g in grads:
        g = directed(p, g, **direction)
        square = alpha * square + (1 - alpha) * g**2
        mean = alpha * mean + (1 - alpha) * g
        root = np.sqrt(square - mean**2 if centered else square) + eps
        velocity = momentum * velocity + g / root
        p = p - lr * velocity
    return p


def adagrad(p, grads, lr=1e-2, lr_decay=0.0, initial_accumulator_value=0.0, eps=1e-10, **direction):
    total = np.full_like(p, initial_accumulator_value)
    for t, g in enumerate(grads):
        g = directed(p, g, **direction)
        total = total + g**2
        p = p - lr / (1 + t * lr_decay) * g / (np.sqrt(total) + eps)
    return p


def adadelta(p, grads, lr=1.0, rho=0.9, eps=1e-6, **direction):
    square, changes = np.zeros_like(p), np.zeros_like(p)
    for g in grads:
        g = directed(p, g, **direction)
        square = rho * square + (1 - rho) * g**2
        change = np.sqrt((changes + eps) / (square + eps)) * g
        changes = rho * changes + (1 - rho) * change**2
        p = p - lr * change
    return p


def adamax(p, grads, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, **direction):
    mean, largest = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(grads, 1):
        g = directed(p, g, **direction)
        mean = betas[0] * mean + (1 - betas[0]) * g
        largest = np.maximum(betas[1] * largest, np.abs(g) + eps)
        p = p - lr / (1 - betas[0] ** t) * mean / largest
    return p


def decayed(p, g, lr, weight_decay, decoupled):
    return (p * (1 - lr * weight_decay), g) if decoupled else (p, g + weight_decay * p)


def nadam(
    p,
    grads,
    lr=2e-3,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.0,
    momentum_decay=4e-3,
    decoupled_weight_decay=False,
    maximize=False,
):
    m, v, product = np.zeros_like(p), np.zeros_like(p), np.float32(1)  # counters are kept in float32
    for t, g in enumerate(grads, 1):
        p, g = decayed(p, -g if maximize else g, lr, weight_decay, decoupled_weight_decay)
        mu, ahead = (betas[0] * (1 - 0.5 * 0.96 ** (u * momentum_decay)) for u in (t, t + 1))
        product = np.float32(product * mu)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        look = ahead * m / (1 - float(product) * ahead) + (1 - mu) * g / (1 - float(product))
        p = p - lr * look / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p


def radam(
    p,
    grads,
    lr=1e-3,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.0,
    decoupled_weight_decay=False,
    maximize=False,
):
    m, v = np.zeros_like(p), np.zeros_like(p)
    longest = 2 / (1 - betas[1]) - 1
    for t, g in enumerate(grads, 1):
        p, g = decayed(p, -g if maximize else g, lr, weight_decay, decoupled_weight_decay)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        length = longest - 2 * t * betas[1] ** t / (1 - betas[1] ** t)
        step = m / (1 - betas[0] ** t)
        if length > 5:
            variance = (length - 4) * (length - 2) * longest
            variance /= (longest - 4) * (longest - 2) * length
            step = step * np.sqrt(variance * (1 - betas[1] ** t)) / (np.sqrt(v) + eps)
        p = p - lr * step
    return p


def rprop(p, grads, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50), maximize=False):
    size, before = np.full_like(p, lr), np.zeros_like(p)
    for g in grads:
        g = -g if maximize else g
        agreement = np.sign(g * before)
        size = np.clip(size * np.choose(agreement.astype(int) + 1, [etas[0], 1.0, etas[1]]), *step_sizes)
        g = np.where(agreement < 0, 0, g)
        p = p - np.sign(g) * size
        before = g
    return p


def asgd(p, grads, lr=1e-2, lambd=1e-4, alpha=0.75, **direction):
    eta = np.float32(lr)
    for t, g in enumerate(grads, 1):
        g = directed(p, g, **direction)
        p = p * (1 - lambd * float(eta)) - float(eta) * g
        eta = np.float32(lr / (1 + lambd * lr * t) ** alpha)
    return p


def adafactor(
    p, grads, lr=1e-2, beta2_decay=-0.8, eps=(2.0**-52, 1e-3), d=1.0, weight_decay=0.0, maximize=False
):
    def rms(x):
        return np.sqrt(np.mean(x**2)) if x.size else 0.0

    mean = 0.0
    for t, g in enumerate(grads, 1):
        beta2 = 1 - t**beta2_decay
        rate = max(eps[1], rms(p)) * min(lr, t**-0.5)
        p = p * (1 - lr * weight_decay)
        mean = beta2 * mean + (1 - beta2) * g**2
        v = mean
        if p.ndim > 1:  # the averages of rows and columns are linear in the squares
            rows, columns = mean.mean(-1, keepdims=True), mean.mean(-2, keepdims=True)
            v = rows * columns / np.maximum(rows.mean(-2, keepdims=True), eps[0])
        update = (-g if maximize else g) / np.sqrt(np.maximum(v, eps[0] ** 2))
        p = p - rate * update / max(1.0, rms(update) / d)
    return p


CASES = [
    *(("RMSprop", rmsprop, o) for o in ({}, {"momentum": 0.9}, {"alpha": 0.7, "maximize": True})),
    ("RMSprop", rmsprop, {"momentum": 0.5, "centered": True, "weight_decay": 0.1, "eps": 1e-3}),
    ("Adagrad", adagrad, {}),
    ("Adagrad", adagrad, {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3}),
    ("Adadelta", adadelta, {}),
    ("Adadelta", adadelta, {"lr": 0.5, "rho": 0.7, "weight_decay": 0.1, "maximize": True}),
    ("Adamax", adamax, {}),
    ("Adamax", adamax, {"betas": (0.5, 0.7), "weight_decay": 0.1, "maximize": True}),
    ("NAdam", nadam, {}),
    ("NAdam", nadam, {"weight_decay": 0.2, "momentum_decay": 0.1}),
    ("NAdam", nadam, {"weight_decay": 0.2, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", radam, {}),
    ("RAdam", radam, {"betas": (0.5, 0.8), "weight_decay": 0.2}),
    ("RAdam", radam, {"weight_decay": 0.2, "decoupled_weight_decay": True, "maximize": True}),
    ("Rprop", rprop, {}),
    ("Rprop", rprop, {"etas": (0.3, 1.5), "step_sizes": (1e-3, 0.05), "maximize": True}),
    ("ASGD", asgd, {}),
    ("ASGD", asgd, {"lambd": 0.1, "weight_decay": 0.1, "maximize": True}),
]
KINDS = sorted({kind for kind, _, _ in CASES})


@pytest.mark.parametrize("dtype, tolerance", DTYPES)
@pytest.mark.parametrize("kind, reference, options", CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_steps(kind, reference, options, dtype, tolerance):
    # The sign that Rprop looks at, and roots of small differences, magnify what float32 rounds.
    tolerance *= 10 if dtype == "float32" else 1
    got = run(lambda ps: getattr(wt.optim, kind)(ps, **options), getattr(wt, dtype))
    for i, (shape, value) in enumerate(zip(SHAPES, got)):
        expected = reference(initial(i, shape), [gradient(t, i, shape) for t in range(STEPS)], **options)
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [{}, {"lr": 0.1, "weight_decay": 0.1, "maximize": True}, {"d": 2.0, "beta2_decay": -0.5}],
    ids=str,
)
def test_adafactor(options):
    got = run(lambda ps: wt.optim.Adafactor(ps, **options), wt.float64)
    for i, (shape, value) in enumerate(zip(SHAPES, got)):
        expected = adafactor(initial(i, shape), [gradient(t, i, shape) for t in range(STEPS)], **options)
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)


def test_asgd_averages_from_t0_on():
    p = wt.tensor([1.0, -2.0], dtype=wt.float64, requires_grad=True)
    optimizer = wt.optim.ASGD([p], lr=0.1, t0=4)
    visited = []
    for t in range(9):
        p.grad = wt.tensor([np.sin(t), np.cos(t)])
        optimizer.step()
        visited.append(p.detach().numpy().copy())
    # The weight is set at the end of a step: mu is 1 / (t - t0), below 1 from step t0 + 3 on.
    np.testing.assert_allclose(optimizer.state[p]["ax"].numpy(), np.mean(visited[5:], 0), rtol=1e-6)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_adds_a_nearly_orthogonal_matrix(shape, nesterov):
    rows, columns = shape
    p = wt.tensor(initial(0, shape), requires_grad=True)
    optimizer = wt.optim.Muon([p], lr=0.1, weight_decay=0.5, nesterov=nesterov)
    before = p.detach().numpy().copy()
    direction = np.random.default_rng(0).normal(size=shape)
    p.grad = wt.tensor(direction)
    optimizer.step()
    step = (before * (1 - 0.1 * 0.5) - p.detach().numpy()) / (0.1 * max(1, rows / columns) ** 0.5)
    u, _, vt = np.linalg.svd(direction, full_matrices=False)
    sizes = np.linalg.svd(step, compute_uv=False)
    assert np.all(sizes > 0.5) and np.all(sizes < 1.3)
    np.testing.assert_allclose(u.T @ step @ vt.T, np.diag(np.diag(u.T @ step @ vt.T)), atol=0.05)


def test_muon_of_several_matrices_is_that_of_each():
    """Together they give the bits that each gives alone, whatever their shapes."""
    shapes = [(6, 4), (4, 6), (5, 5), (6, 4), (64, 64), (5, 5), (4, 6)]
    together = [wt.tensor(initial(i, s), requires_grad=True) for i, s in enumerate(shapes)]
    alone = [p.detach().clone().requires_grad_() for p in together]
    optimizers = [wt.optim.Muon(together, lr=0.1), *(wt.optim.Muon([p], lr=0.1) for p in alone)]
    for step in range(3):
        for i, (p, q) in enumerate(zip(together, alone)):
            p.grad = wt.tensor(np.random.default_rng((step, i)).normal(size=shapes[i]), dtype=p.dtype)
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert all(wt.equal(p, q) for p, q in zip(together, alone))


def test_muon_rounds_the_decay_to_the_dtype_of_its_rate():
    p = wt.ones(2, 2, dtype=wt.float64, requires_grad=True)
    p.grad = wt.zeros_like(p)
    wt.optim.Muon([p], lr=wt.tensor(1e-3), weight_decay=0.1).step()
    assert p.tolist() == [[float(np.float32(1) - np.float32(1e-3) * np.float32(0.1))] * 2] * 2


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_adam_refuses_betas(kind):
    p, one = wt.ones(2, requires_grad=True), wt.tensor(0.9)
    for betas in ((0.9, one), (one, 0.9)):
        with pytest.raises(ValueError, match="betas must be either both floats or both Tensors"):
            getattr(wt.optim, kind)([p], betas=betas)
    with pytest.raises(ValueError, match="as a Tensor is not supported for capturable=False and foreach"):
        getattr(wt.optim, kind)([p], betas=(one, one), foreach=True)


def test_muon_takes_matrices_only():
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        wt.optim.Muon([wt.ones(3, requires_grad=True)])
    optimizer = wt.optim.Muon([wt.ones(3, 3, requires_grad=True)])
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        optimizer.add_param_group({"params": [wt.ones(3, requires_grad=True)]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    "kind, options",
    [
        ("RMSprop", {"alpha": -1}),
        ("RMSprop", {"momentum": -1}),
        ("Adagrad", {"lr_decay": -1}),
        ("Adagrad", {"initial_accumulator_value": -1}),
        ("Adadelta", {"rho": 1.5}),
        ("Adamax", {"betas": (0.9, 1.0)}),
        ("NAdam", {"momentum_decay": -1}),
        ("RAdam", {"betas": (1.0, 0.9)}),
        ("Rprop", {"etas": (1.1, 1.2)}),
        ("Muon", {"adjust_lr_fn": "other"}),
        ("Adafactor", {"d": 0.5}),
        ("LBFGS", {"lr": -1.0}),
        *((kind, {"lr": -1.0}) for kind in KINDS),
        *((kind, {"lr": wt.ones(2)}) for kind in KINDS),
    ],
)
def test_refused_options(kind, options):
    with pytest.raises(ValueError, match=r"[Ii]nvalid|should be|1-element|not supported"):
        getattr(wt.optim, kind)([wt.ones(2, 2, requires_grad=True)], **options)


@pytest.mark.parametrize("kind", [*KINDS, "Adafactor", "Muon"])
def test_resumed_run_goes_on_as_if_uninterrupted(kind):
    def train(resume):
        p = wt.tensor(initial(0, (3, 4)), requires_grad=True)
        optimizer = getattr(wt.optim, kind)([p], lr=0.05)
        for t in range(6):
            if t == 3 and resume:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = getattr(wt.optim, kind)([p], lr=0.05)
                optimizer.load_state_dict(state)
            p.grad = wt.tensor(gradient(t, 0, (3, 4)))
            optimizer.step()
        return p.tolist()

    assert train(True) == train(False)


def rosenbrock(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def minimize(lib, steps=5, **options):
    """The losses of `steps` steps on the Rosenbrock function, and the number of evaluations."""
    x = lib.tensor([-1.2, 1.0, 0.5, 2.0], dtype=lib.float64, requires_grad=True)
    optimizer = lib.optim.LBFGS([x], **options)
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = rosenbrock(x)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(steps)], calls


# What PyTorch 2.13 gives.
LBFGS_GOLDEN = [
    (
        {"lr": 0.01, "history_size": 5},
        [355.7, 71.86091572608568, 23.396696514599164, 11.129590846211201, 7.990372038109756],
        100,
    ),
    (
        {"lr": 1, "history_size": 5, "line_search_fn": "strong_wolfe"},
        [355.7, 3.7670913889385758, 3.701428610489954, 3.701428610489954, 3.701428610489954],
        53,
    ),
    (
        {"lr": 0.3, "history_size": 5, "line_search_fn": "strong_wolfe"},
        [355.7, 4.181007306520824, 3.7281234265776906, 3.7014327711999426, 3.7014286112412025],
        79,
    ),
]


@pytest.mark.parametrize("options, losses, calls", LBFGS_GOLDEN, ids=lambda x: str(x)[:30])
def test_lbfgs(options, losses, calls):
    found, count = minimize(wt, **options)
    assert found == pytest.approx(losses, rel=1e-8) and count == calls


def test_lbfgs_finds_the_minimum_of_a_quadratic():
    """n iterations with exact curvature reach the minimum; scipy's solution is the definition's."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    a, b = root @ root.T + np.eye(5), rng.normal(size=5)
    x, still = wt.zeros(5, dtype=wt.float64, requires_grad=True), wt.ones(2, requires_grad=True)
    optimizer = wt.optim.LBFGS([x, still], line_search_fn="strong_wolfe", max_iter=40, tolerance_change=0.0)

    def closure():
        optimizer.zero_grad()
        loss = x @ wt.tensor(a) @ x / 2 - wt.tensor(b) @ x
        loss.backward()
        return loss

    optimizer.step(closure)
    np.testing.assert_allclose(x.detach().numpy(), np.linalg.solve(a, b), rtol=1e-5)
    assert still.tolist() == [1.0, 1.0]
    state = optimizer.state[x]
    assert len(state["al"]) == optimizer.param_groups[0]["history_size"]
    assert [w is None for w in state["al"]] == [i >= len(state["ro"]) for i in range(len(state["al"]))]


def test_lbfgs_refuses():
    x = [wt.ones(2, requires_grad=True), wt.ones(2, requires_grad=True)]
    with pytest.raises(ValueError, match="doesn't support per-parameter options"):
        wt.optim.LBFGS([{"params": x[:1]}, {"params": x[1:]}])
    with pytest.raises(RuntimeError, match="only 'strong_wolfe' is supported"):
        wt.optim.LBFGS(x, line_search_fn="other").step(lambda: 0.0)
    with pytest.raises(TypeError):
        wt.optim.LBFGS(x).step()


@pytest.mark.parity
@pytest.mark.parametrize("kind, reference, options", CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_state_goes_both_ways(kind, reference, options):
    torch = pytest.importorskip("torch")
    ours, theirs = (lib.tensor(initial(0, (3, 4)), requires_grad=True) for lib in (wt, torch))
    optimizers = [getattr(lib.optim, kind)([p], **options) for lib, p in ((wt, ours), (torch, theirs))]
    for t in range(6):
        if t == 3:  # the other's state, as arrays
            states = [o.state_dict() for o in optimizers]
            assert sorted(states[0]["state"][0]) == sorted(states[1]["state"][0])
            assert sorted(states[0]["param_groups"][0]) == sorted(states[1]["param_groups"][0])
            for lib, optimizer, state in zip((wt, torch), optimizers, reversed(copy.deepcopy(states))):
                state["state"][0] = {k: lib.tensor(v.numpy()) for k, v in state["state"][0].items()}
                optimizer.load_state_dict(state)
        for lib, p, optimizer in zip((wt, torch), (ours, theirs), optimizers):
            p.grad = lib.tensor(gradient(t, 0, (3, 4)))
            optimizer.step()
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-6)
