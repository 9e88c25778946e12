"""Float32 copies of narrow parameters in the optimizer's state."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warptape as wt
from warptape.optim import SGD, Adam, AdamW
from warptape.optim.optimizer import Optimizer

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
NARROW = [wt.bfloat16, wt.float16]
KINDS: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda ps, **kw: SGD(ps, lr=1e-4, **kw),
    "SGD with momentum": lambda ps, **kw: SGD(
        ps, lr=1e-4, momentum=0.9, nesterov=True, weight_decay=0.1, **kw
    ),
    "Adam": lambda ps, **kw: Adam(ps, lr=1e-4, amsgrad=True, weight_decay=0.1, **kw),
    "AdamW": lambda ps, **kw: AdamW(ps, lr=1e-4, **kw),
}
STEPS = 40
SHAPES = [(3, 70), (8,), ()]

pytestmark = pytest.mark.parametrize("device", DEVICES)
kinds = pytest.mark.parametrize("kind", KINDS)


def start(dtype: Any, device: str) -> list[Any]:
    """Values in [1, 2], where an update of 1e-4 is below half a unit in the last place of both dtypes."""
    rng = np.random.default_rng(3)
    values = [wt.tensor(rng.uniform(1, 2, s).astype(np.float32)).to(wt.bfloat16) for s in SHAPES]
    return [v.to(device=device, dtype=dtype).requires_grad_(True) for v in values]


def train(
    optimizer: Optimizer, params: list[Any], steps: int = STEPS, seed: int = 0, scale: float = 1.0
) -> None:
    """Gradients are the same numbers in every dtype: powers of two, all upward."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        for p, shape in zip(params, SHAPES, strict=True):
            gradient = scale * 2.0 ** rng.integers(-2, 2, shape).astype(np.float32)
            p.grad = wt.tensor(gradient).to(device=p.device, dtype=p.dtype)
        optimizer.step()


def numbers(params: list[Any]) -> list[np.ndarray]:
    return [p.detach().cpu().float().numpy() for p in params]


@kinds
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_follows_float32_where_narrow_training_stalls(kind: str, dtype: Any, device: str) -> None:
    trained = {}
    for name, kept, options in [
        ("float32", wt.float32, {}),
        ("plain", dtype, {}),
        ("masters", dtype, {"master_weights": True}),
    ]:
        params = start(kept, device)
        optimizer = KINDS[kind](params, **options)
        train(optimizer, params)
        trained[name] = numbers(params)
        if name == "masters":
            copies = numbers([optimizer.state[p]["master_param"] for p in params])
            rounded = numbers([optimizer.state[p]["master_param"].to(dtype) for p in params])
    before = numbers(start(wt.float32, device))
    ulp = {wt.bfloat16: 2.0**-7, wt.float16: 2.0**-10}[dtype]
    for x0, exact, plain, master, copied, near in zip(
        before, trained["float32"], trained["plain"], trained["masters"], copies, rounded, strict=True
    ):
        np.testing.assert_allclose(copied, exact, rtol=3e-6)
        np.testing.assert_array_equal(master, near)  # rounded to the nearest
        assert np.all(np.abs(master - exact) <= ulp / 2 + 1e-5)
        moved = np.abs(exact - x0)
        assert np.all(moved > 1e-3)  # so that standing still is not passing
        if dtype == wt.bfloat16:
            np.testing.assert_array_equal(plain, x0)
        else:
            assert np.all(np.abs(copied - x0) > 1e-3)


@kinds
def test_state_is_float32_and_goes_to_a_file_and_back(kind: str, device: str) -> None:
    params = start(wt.bfloat16, device)
    optimizer = KINDS[kind](params, master_weights=True)
    train(optimizer, params, 5)
    saved = pickle.loads(pickle.dumps(optimizer.state_dict()))
    for state in saved["state"].values():
        assert "master_param" in state
        assert all(value.dtype == wt.float32 for value in state.values())
    again = [p.detach().clone().requires_grad_(True) for p in params]
    other = KINDS[kind](again)  # the saved group brings the option along
    other.load_state_dict(saved)
    for key, state in enumerate(other.state_dict()["state"].values()):
        for name, value in saved["state"][key].items():
            assert state[name].dtype == wt.float32
            np.testing.assert_array_equal(state[name].cpu().numpy(), value.cpu().numpy())
    train(optimizer, params, 30, seed=9)
    train(other, again, 30, seed=9)
    for x, y in zip(numbers(params), numbers(again), strict=True):
        np.testing.assert_array_equal(x, y)
    for p, q in zip(params, again, strict=True):
        copies = [o.state[t]["master_param"].cpu().numpy() for o, t in ((optimizer, p), (other, q))]
        np.testing.assert_array_equal(*copies)
        assert not np.array_equal(copies[0], numbers([p])[0])  # finer than the parameter: not made from it


@kinds
def test_turned_on_midway(kind: str, device: str) -> None:
    """Copies start from the parameters; averages go on from what they were, in float32."""
    params = start(wt.bfloat16, device)
    optimizer = KINDS[kind](params)
    train(optimizer, params, 2)
    optimizer.param_groups[0]["master_weights"] = True
    train(optimizer, params)
    for p, x0 in zip(params, numbers(start(wt.float32, device)), strict=True):
        state = optimizer.state[p]
        assert all(value.dtype == wt.float32 for value in state.values())
        assert np.all(np.abs(state["master_param"].cpu().numpy() - x0) > 1e-3)


@kinds
def test_wide_parameters_have_none(kind: str, device: str) -> None:
    """And groups may hold both."""
    wide, plain = start(wt.float32, device), start(wt.float32, device)
    narrow = start(wt.bfloat16, device)
    both = KINDS[kind](wide + narrow, master_weights=True)
    alone = KINDS[kind](plain)
    for p in (*wide, *plain, *narrow):
        p.grad = wt.ones_like(p)
    both.step()
    alone.step()
    for x, y in zip(numbers(wide), numbers(plain), strict=True):
        np.testing.assert_array_equal(x, y)
    assert all("master_param" not in both.state[p] for p in wide)
    assert all("master_param" in both.state[p] for p in narrow)


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_scaled_gradients_and_skipped_steps(found: float, device: str) -> None:
    """As under a gradient scaler: divided by the scale, and no step where one is infinite."""
    params, masters = ([wt.ones(11, device=device, dtype=t)] for t in (wt.float16, wt.float32))
    grads = [wt.full((11,), 8.0, device=device, dtype=wt.float16)]
    states = [[wt.zeros(11, device=device)] for _ in range(2)]
    wt._fused_adamw_(
        params, grads, *states, [], [wt.ones((), device=device)],
        lr=1e-4, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        grad_scale=wt.tensor(4.0, device=device), found_inf=wt.tensor(found, device=device),
        master_params=masters,
    )  # fmt: skip
    expected = [1.0, 0.0, 0.0] if found else [1 - 1e-4, 0.2, 0.004]
    for got, value in zip((masters, *states), expected, strict=True):
        np.testing.assert_allclose(got[0].cpu().numpy(), value, rtol=1e-6)


def test_copies_of_other_layouts(device: str) -> None:
    """A parameter stored by columns, and one that is a view with gaps."""
    rng = np.random.default_rng(5)
    values = wt.tensor(rng.uniform(1, 2, (6, 10)).astype(np.float32)).to(device=device, dtype=wt.bfloat16)
    for view in (lambda t: t.t(), lambda t: t[:, ::2]):
        results = []
        for x in (view(values.clone()), view(values.clone()).contiguous()):
            p = x.detach().requires_grad_(True)
            optimizer = AdamW([p], lr=1e-4, master_weights=True)
            for i in range(20):
                p.grad = (wt.arange(p.numel(), device=device).reshape(p.shape) % 3 + i % 2).to(wt.bfloat16)
                optimizer.step()
            results.append(optimizer.state[p]["master_param"].cpu().numpy())
            np.testing.assert_array_equal(
                p.detach().cpu().float().numpy(),
                optimizer.state[p]["master_param"].to(wt.bfloat16).cpu().float().numpy(),
            )
        np.testing.assert_array_equal(*results)


def test_wrong_lists_are_refused(device: str) -> None:
    def call(params: Any, master: Any, dtype: Any = wt.float32) -> None:
        wt._fused_sgd_(
            params, [wt.ones_like(p) for p in params], [wt.zeros_like(p, dtype=dtype) for p in params],
            weight_decay=0.0, momentum=0.9, lr=0.1, dampening=0.0, nesterov=False, maximize=False,
            is_first_step=False, master_params=master,
        )  # fmt: skip

    narrow, wide = [wt.ones(3, device=device, dtype=wt.bfloat16)], [wt.ones(3, device=device)]
    copies = [copy.deepcopy(wide[0])]
    call(narrow, copies)
    with pytest.raises(wt.DtypeError, match="master_params are for parameters of float16 and bfloat16"):
        call(wide, copies)
    with pytest.raises(wt.DtypeError, match=r"expected master_params\[0\] of dtype .*float32"):
        call(narrow, narrow)
    with pytest.raises(wt.DtypeError, match=r"expected momentum_buffer_list\[0\] of dtype .*float32"):
        call(narrow, copies, wt.bfloat16)
    with pytest.raises(ValueError, match="expected 1 tensors in master_params, got 0"):
        call(narrow, [])
    with pytest.raises(wt.ShapeError, match=r"expected master_params\[0\] of shape"):
        call(narrow, [wt.ones(4, device=device)])
