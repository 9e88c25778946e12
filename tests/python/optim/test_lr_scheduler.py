"""Schedules against curves recorded from PyTorch 2.13 (golden_schedules.json), and the schedulers' rules.

``python test_lr_scheduler.py`` records the curves again; it needs torch.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
import warnings
from pathlib import Path

import pytest

GOLDEN = Path(__file__).with_name("golden_schedules.json")
EPOCHS = 24

# Each takes a scheduler module and an optimizer with two groups of rates 0.1 and 0.2.
CASES = {
    "LambdaLR": lambda s, o: s.LambdaLR(o, [lambda e: 0.95**e, lambda e: 1 / (1 + e)]),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda e: 0.95 if e < 8 else 1.01),
    "StepLR": lambda s, o: s.StepLR(o, 7, 0.3),
    "StepLR every epoch": lambda s, o: s.StepLR(o, 1, 0.9),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [3, 3, 20, 1]),
    "ConstantLR": lambda s, o: s.ConstantLR(o, 0.25, 6),
    "LinearLR": lambda s, o: s.LinearLR(o, 0.1, 0.9, 13),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.93),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 17, 2.3),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 9, 0.01),
    "CosineAnnealingLR long": lambda s, o: s.CosineAnnealingLR(o, 50),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, 2, 0.003),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, [1.0, 2.0], EPOCHS + 1),
    "OneCycleLR linear, three phases": lambda s, o: s.OneCycleLR(
        o, 1.0, epochs=5, steps_per_epoch=5, three_phase=True, anneal_strategy="linear", pct_start=0.2
    ),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.1, 1.0, 7, 5),
    "CyclicLR triangular2": lambda s, o: s.CyclicLR(o, [0.1, 0.2], [1.0, 3.0], 4, mode="triangular2"),
    "CyclicLR exp_range": lambda s, o: s.CyclicLR(
        o, 0.1, 1.0, 4, mode="exp_range", gamma=0.9, cycle_momentum=False
    ),
    "CyclicLR own scale": lambda s, o: s.CyclicLR(o, 0.1, 1.0, 4, scale_fn=lambda x: 0.5 / x),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 5), s.ExponentialLR(o, 0.9)]),
    "SequentialLR warmup": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, 1.0, 5), s.CosineAnnealingLR(o, 12), s.ExponentialLR(o, 0.9)], [5, 17]
    ),
    "SequentialLR of closed forms": lambda s, o: s.SequentialLR(
        o, [s.ExponentialLR(o, 0.9), s.StepLR(o, 4), s.CosineAnnealingWarmRestarts(o, 5)], [7, 15]
    ),
    "SequentialLR of the others": lambda s, o: s.SequentialLR(
        o,
        [s.CosineAnnealingWarmRestarts(o, 5), s.MultiStepLR(o, [2, 4]), s.ConstantLR(o), s.LinearLR(o)],
        [3, 9, 14],
    ),
}
METRICS = [
    3.0,
    2.0,
    2.1,
    2.0,
    1.9999,
    2.5,
    2.6,
    1.0,
    1.1,
    1.2,
    1.3,
    1.4,
    1.5,
    1.6,
    1.7,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
]
PLATEAUS = {
    "ReduceLROnPlateau": {"patience": 1},
    "ReduceLROnPlateau max, abs, cooldown": {
        "mode": "max",
        "factor": 0.5,
        "patience": 2,
        "threshold": 0.05,
        "threshold_mode": "abs",
        "cooldown": 2,
        "min_lr": [0.01, 0.06],
    },
}


def optimizer_of(package, kind="SGD"):
    groups = [{"params": [package.ones(1, requires_grad=True)], "lr": lr} for lr in (0.1, 0.2)]
    return package.optim.SGD(groups, lr=0.1, momentum=0.9) if kind == "SGD" else package.optim.Adam(groups)


def momenta(optimizer):
    return [g["betas"][0] if "betas" in g else g["momentum"] for g in optimizer.param_groups]


def curve(package, make, kind="SGD", epochs=EPOCHS, resume_at=None):
    """Rates and momenta of both groups, one row per epoch."""
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = optimizer_of(package, kind)
        scheduler = make(package.optim.lr_scheduler, optimizer)
        for epoch in range(epochs):
            rates = [g["lr"] for g in optimizer.param_groups]
            assert list(scheduler.get_last_lr()) == rates
            rows.append(rates + momenta(optimizer))
            if epoch == resume_at:
                saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
                optimizer = optimizer_of(package, kind)
                scheduler = make(package.optim.lr_scheduler, optimizer)
                optimizer.load_state_dict(saved[0])
                scheduler.load_state_dict(saved[1])
            optimizer.step()
            scheduler.step()
    return rows


def plateau_curve(package, options):
    optimizer = optimizer_of(package)
    scheduler = package.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    rows = []
    for metric in METRICS:
        scheduler.step(metric)
        rows.append(scheduler.get_last_lr() + [scheduler.num_bad_epochs, scheduler.cooldown_counter])
    return rows


def record():
    import torch

    curves = {name: curve(torch, make) for name, make in CASES.items()}
    curves.update({name: plateau_curve(torch, options) for name, options in PLATEAUS.items()})
    lines = [f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in curves.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()
    raise SystemExit

import warptape as wt  # noqa: E402
from warptape.optim import SGD, Adam, lr_scheduler  # noqa: E402


def new(lr=0.1, **options):
    return SGD([wt.ones(1, requires_grad=True)], lr=lr, **options)


def golden(name):
    return json.loads(GOLDEN.read_text())[name]


def close(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b):
        assert x == pytest.approx(y, rel=1e-12, abs=1e-17)


# Curves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_golden_curve(name):
    close(curve(wt, CASES[name]), golden(name))


@pytest.mark.parametrize("name", PLATEAUS)
def test_golden_plateau(name):
    close(plateau_curve(wt, PLATEAUS[name]), golden(name))


@pytest.mark.parametrize("name", CASES)
def test_resumed_curve(name):
    close(curve(wt, CASES[name], resume_at=6), golden(name))


@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR"])
def test_beta1_moves_as_momentum_does(name):
    rows = curve(wt, CASES[name], kind="Adam")
    close([row[2:] for row in rows], [row[2:] for row in golden(name)])


def test_curves_from_the_formulas():
    """Not from a recording: the textbook values."""
    rows = curve(wt, lambda s, o: s.CosineAnnealingLR(o, 10, 0.02), epochs=21)
    for epoch, row in enumerate(rows):
        assert row[0] == pytest.approx(0.02 + 0.08 * (1 + math.cos(math.pi * epoch / 10)) / 2, rel=1e-9)
    rows = curve(wt, lambda s, o: s.OneCycleLR(o, 1.0, 101, pct_start=0.3))
    assert rows[0][0] == pytest.approx(0.04) and rows[0][2] == 0.95
    optimizer = new(momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 1.0, 100, pct_start=0.3)
    peak = []
    for _ in range(99):
        optimizer.step()
        scheduler.step()
        peak.append(optimizer.param_groups[0]["lr"])
    assert peak.index(max(peak)) == 28 and max(peak) == pytest.approx(1.0)
    assert peak[-1] == pytest.approx(0.04 / 1e4)


def test_fractional_epochs_of_warm_restarts():
    optimizer = new()
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2, 2)
    for epoch, (start, length) in {0.5: (0, 2), 2.5: (2, 4), 6.25: (6, 8), 1.0: (0, 2)}.items():
        scheduler.step(epoch)
        expected = 0.1 * (1 + math.cos(math.pi * (epoch - start) / length)) / 2
        assert scheduler.get_last_lr()[0] == pytest.approx(expected)
        assert scheduler.last_epoch == math.floor(epoch)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", CASES)
def test_parity(name, kind):
    torch = pytest.importorskip("torch")
    close(curve(wt, CASES[name], kind), curve(torch, CASES[name], kind))


@pytest.mark.parity
@pytest.mark.parametrize("name", CASES)
def test_parity_of_saved_keys(name):
    torch = pytest.importorskip("torch")
    saved = [CASES[name](p.optim.lr_scheduler, optimizer_of(p)).state_dict() for p in (wt, torch)]
    assert set(saved[0]) == set(saved[1])


# Rules ------------------------------------------------------------------------------------------------------


def test_counts_and_initial_step():
    optimizer = new()
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    assert (scheduler.last_epoch, scheduler._step_count) == (0, 1)
    assert optimizer.param_groups[0]["initial_lr"] == 0.1 and scheduler.base_lrs == [0.1]
    optimizer.step()
    scheduler.step()
    assert (scheduler.last_epoch, scheduler._step_count, scheduler.get_last_lr()) == (1, 2, [0.05])


def test_rates_chain():
    """Two schedulers on one optimizer, and a rate changed by hand, multiply."""
    optimizer = new(lr=1.0)
    both = [lr_scheduler.ExponentialLR(optimizer, 0.5), lr_scheduler.StepLR(optimizer, 2, 0.1)]
    for _ in range(2):
        optimizer.step()
        for scheduler in both:
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    optimizer.param_groups[0]["lr"] = 8.0
    both[0].step()
    assert optimizer.param_groups[0]["lr"] == 4.0


def test_resuming_by_last_epoch():
    optimizer = new()
    with pytest.raises(KeyError, match="initial_lr"):
        lr_scheduler.StepLR(optimizer, 3, last_epoch=3)
    optimizer.param_groups[0]["initial_lr"] = 0.4
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda e: 1 / (1 + e), last_epoch=2)
    assert scheduler.last_epoch == 3 and optimizer.param_groups[0]["lr"] == 0.1
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 8, last_epoch=3)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_a_tensor_rate_is_filled_in_place():
    rate = wt.tensor(0.5, dtype=wt.float64)
    optimizer = Adam([wt.ones(1, requires_grad=True)], lr=rate)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.25
    assert scheduler.base_lrs[0].item() == 0.5 and scheduler.get_last_lr()[0] is not rate


def messages(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in caught if issubclass(w.category, UserWarning)]


def test_order_of_the_two_steps():
    def wrong():
        optimizer = new()
        scheduler = lr_scheduler.StepLR(optimizer, 3)
        scheduler.step()
        scheduler.step()

    def right():
        optimizer = new()
        scheduler = lr_scheduler.StepLR(optimizer, 3)
        optimizer.step()
        scheduler.step()

    def stepped_before_only():
        optimizer = new()
        optimizer.step()
        lr_scheduler.StepLR(optimizer, 3).step()

    def replaced_before():
        optimizer = new()
        optimizer.step = lambda: None
        scheduler = lr_scheduler.StepLR(optimizer, 3)
        optimizer.step()
        scheduler.step()

    def replaced_after():
        optimizer = new()
        scheduler = lr_scheduler.StepLR(optimizer, 3)
        optimizer.step = lambda: None
        optimizer.step()
        scheduler.step()

    assert len(messages(wrong)) == 1 and "before `optimizer.step()`" in messages(wrong)[0]
    assert messages(right) == [] and messages(replaced_before) == []
    assert len(messages(stepped_before_only)) == 1
    assert "has been overridden" in messages(replaced_after)[0]


def test_warnings_of_get_lr_and_epoch():
    scheduler = lr_scheduler.StepLR(new(), 3)
    assert "get_last_lr" in messages(scheduler.get_lr)[0]
    scheduler.optimizer.step()
    assert "epoch parameter" in messages(lambda: scheduler.step(7))[0]
    assert scheduler.last_epoch == 7 and scheduler.get_last_lr() == [pytest.approx(0.001)]


class Halving:
    def __init__(self, base):
        self.base = base

    def __call__(self, epoch):
        return self.base**epoch


def test_state_of_functions():
    """A callable object's fields are saved; a lambda is not, and the loader keeps its own."""
    source = lr_scheduler.LambdaLR(new(), Halving(0.5))
    saved = pickle.loads(pickle.dumps(source.state_dict()))
    assert saved["lr_lambdas"] == [{"base": 0.5}]
    target = lr_scheduler.LambdaLR(new(), Halving(0.9))
    target.load_state_dict(saved)
    assert target.lr_lambdas[0].base == 0.5
    assert lr_scheduler.LambdaLR(new(), lambda e: 1.0).state_dict()["lr_lambdas"] == [None]


def test_state_leaves_the_optimizer_out():
    for name, make in CASES.items():
        state = make(lr_scheduler, optimizer_of(wt)).state_dict()
        assert "optimizer" not in state, name
        pickle.dumps(state)


def test_plateau_state_and_groups():
    optimizer = new()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    scheduler.step(wt.tensor(1.0))
    other = lr_scheduler.ReduceLROnPlateau(new(), patience=5)
    other.load_state_dict(scheduler.state_dict())
    other.step(2.0)
    assert other.get_last_lr() == [0.05] and other.best == 1.0
    optimizer.add_param_group({"params": [wt.ones(1, requires_grad=True)], "lr": 1.0})
    scheduler.step(2.0)
    assert scheduler.get_last_lr() == [0.05, 0.5]
    bounded = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=[0.0, 0.0])
    optimizer.add_param_group({"params": [wt.ones(1, requires_grad=True)]})
    bounded.step(1.0)
    with pytest.raises(RuntimeError, match="min_lr"):
        bounded.step(2.0)


def test_sequence_inside_a_sequence():
    optimizer = new(lr=1.0)
    inner = lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ExponentialLR(optimizer, 0.5), lr_scheduler.ConstantLR(optimizer, 0.1, 2)],
        [3],
    )
    outer = lr_scheduler.SequentialLR(optimizer, [inner, lr_scheduler.ExponentialLR(optimizer, 0.9)], [6])
    rates = []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        outer.step()
    assert rates == pytest.approx([1.0, 0.5, 0.25, 0.1, 0.1, 1.0, 1.0, 0.9])


def test_chain_inside_a_sequence():
    optimizer = new(lr=1.0)
    parts = []
    for gamma in (0.5, 0.9):
        halves = lr_scheduler.ExponentialLR(optimizer, gamma), lr_scheduler.ConstantLR(optimizer, 0.1, 2)
        parts.append(lr_scheduler.ChainedScheduler(halves))
    scheduler = lr_scheduler.SequentialLR(optimizer, parts, [3])
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.1, 0.05, 0.25, 0.1, 0.09, 0.81])


# Bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda s: s.StepLR(1, 3), TypeError, "int is not an Optimizer"),
        (lambda s: s.LambdaLR(1, lambda e: 1), TypeError, "int is not an Optimizer"),
        (lambda s: s.LambdaLR(new(), [abs, abs]), ValueError, "Expected 1 lr_lambdas, but got 2"),
        (lambda s: s.LambdaLR(new(), 0.5), TypeError, "should be a function"),
        (lambda s: s.MultiplicativeLR(new(), [0.5]), TypeError, "should be a function"),
        (lambda s: s.ConstantLR(new(), 2.0), ValueError, "between 0 and 1"),
        (lambda s: s.LinearLR(new(), 0.0), ValueError, "greater than 0"),
        (lambda s: s.LinearLR(new(), 0.5, 2.0), ValueError, "Ending multiplicative factor"),
        (lambda s: s.OneCycleLR(1, 1.0, 10), TypeError, "int is not an Optimizer"),
        (lambda s: s.OneCycleLR(new(), 1.0), ValueError, "total_steps OR"),
        (lambda s: s.OneCycleLR(new(), 1.0, epochs=3), ValueError, "total_steps OR"),
        (lambda s: s.OneCycleLR(new(), 1.0, 0), ValueError, "positive integer total_steps, but got 0"),
        (lambda s: s.OneCycleLR(new(), 1.0, 4.5), ValueError, "positive integer total_steps, but got 4.5"),
        (lambda s: s.OneCycleLR(new(), 1.0, epochs=0, steps_per_epoch=3), ValueError, "integer epochs"),
        (
            lambda s: s.OneCycleLR(new(), 1.0, epochs=3, steps_per_epoch=-1),
            ValueError,
            "integer steps_per_epoch",
        ),
        (lambda s: s.OneCycleLR(new(), 1.0, 4, pct_start=2.0), ValueError, "pct_start, but got 2.0"),
        (lambda s: s.OneCycleLR(new(), 1.0, 4, anneal_strategy="x"), ValueError, "'cos' or 'linear'"),
        (lambda s: s.OneCycleLR(new(), [1.0, 2.0], 4), ValueError, "max_lr has 2 values"),
        (lambda s: s.CosineAnnealingWarmRestarts(new(), 0), ValueError, "T_0, but got 0"),
        (lambda s: s.CosineAnnealingWarmRestarts(new(), 1.5), ValueError, "T_0, but got 1.5"),
        (lambda s: s.CosineAnnealingWarmRestarts(new(), 5, 0), ValueError, "T_mult >= 1, but got 0"),
        (lambda s: s.CosineAnnealingWarmRestarts(new(), 5, eta_min="a"), ValueError, "eta_min"),
        (lambda s: s.CosineAnnealingWarmRestarts(new(), 5).step(-1), ValueError, "non-negative epoch"),
        (lambda s: s.ReduceLROnPlateau(new(), factor=1.0), ValueError, "Factor should be < 1.0"),
        (lambda s: s.ReduceLROnPlateau(new(), "x"), ValueError, "mode x is unknown"),
        (lambda s: s.ReduceLROnPlateau(new(), threshold_mode="x"), ValueError, "threshold mode x"),
        (lambda s: s.ReduceLROnPlateau(new(), min_lr=[1, 2]), ValueError, "expected 1 min_lrs, got 2"),
        (lambda s: s.ReduceLROnPlateau(1), TypeError, "int is not an Optimizer"),
        (lambda s: s.CyclicLR(new(), 0.1, 1.0, mode="x"), ValueError, "mode is invalid"),
        (lambda s: s.CyclicLR(new(), [0.1, 0.1], 1.0), ValueError, "base_lr has 2 values"),
        (lambda s: s.LRScheduler(new()), NotImplementedError, "get_lr"),
        (lambda s: s.ChainedScheduler([]), ValueError, "at least one scheduler"),
        (lambda s: s.ChainedScheduler([1]), TypeError, "index 0 should have `optimizer`"),
        (lambda s: s.SequentialLR(new(), [], []), ValueError, "at least one scheduler"),
    ],
)
def test_refused(make, error, text):
    with pytest.raises(error, match=text):
        make(lr_scheduler)


def test_refused_compositions():
    o, other = new(), new()
    constant, stranger = lr_scheduler.ConstantLR(o), lr_scheduler.ConstantLR(other)
    for parts, milestones, text in (
        ([constant], [2], "one more than the number of milestone"),
        ([constant, stranger], [2], "ConstantLR at index 1"),
        ([constant, lr_scheduler.ReduceLROnPlateau(o)], [2], "ReduceLROnPlateau"),
    ):
        with pytest.raises(ValueError, match=text):
            lr_scheduler.SequentialLR(o, parts, milestones)
    for parts, given in (([constant, stranger], None), ([constant], other)):
        with pytest.raises(ValueError, match="same optimizer"):
            lr_scheduler.ChainedScheduler(parts, given)
    saved = lr_scheduler.ChainedScheduler([constant]).state_dict()
    with pytest.raises(ValueError, match="states of 2 schedulers, got 1"):
        lr_scheduler.ChainedScheduler([constant, lr_scheduler.StepLR(o, 2)]).load_state_dict(saved)


def test_one_cycle_ends():
    optimizer = new(momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=3)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    with pytest.raises(ValueError, match=r"step 4 times.*is 3"):
        scheduler.step()


def test_one_cycle_needs_a_momentum():
    class Plain(wt.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        def step(self, closure=None):
            return None

    optimizer = Plain([wt.ones(1, requires_grad=True)])
    with pytest.raises(ValueError, match="cycle_momentum"):
        lr_scheduler.OneCycleLR(optimizer, 1.0, 10)
    lr_scheduler.OneCycleLR(optimizer, 1.0, 10, cycle_momentum=False)
