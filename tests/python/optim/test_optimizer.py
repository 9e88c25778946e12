"""Optimizer's groups, state, hooks, files and refusals."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import warptape as wt
from warptape import core
from warptape.optim import SGD, Adam, AdamW
from warptape.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
    required,
)

KINDS = {
    "SGD": lambda ps, **kw: SGD(ps, lr=0.1, momentum=0.9, **kw),
    "Adam": lambda ps, **kw: Adam(ps, amsgrad=True, **kw),
    "AdamW": lambda ps, **kw: AdamW(ps, **kw),
}
STATE_KEYS = {
    "SGD": ["momentum_buffer"],
    "Adam": ["step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
    "AdamW": ["step", "exp_avg", "exp_avg_sq"],
}


def parameter(*values, dtype=wt.float64):
    return wt.tensor(values or (1.0, 2.0), dtype=dtype, requires_grad=True)


def give_gradients(optimizer, scale=1.0):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = wt.ones_like(p) * scale


def train(optimizer, steps, start=0):
    for i in range(start, start + steps):
        give_gradients(optimizer, 0.5 + i % 3)
        optimizer.step()


def values(optimizer):
    return [p.detach().to(wt.float64).numpy().copy() for g in optimizer.param_groups for p in g["params"]]


def count_calls(monkeypatch, *names):
    """How often each multi-tensor op runs from now on."""
    counts = dict.fromkeys(names, 0)

    def counted(name, op):
        def call(*args, **kwargs):
            counts[name] += 1
            return op(*args, **kwargs)

        return call

    for name in names:
        monkeypatch.setattr(core, name, counted(name, getattr(core, name)))
    return counts


# Construction and groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params, error, text",
    [
        (parameter, TypeError, "iterable of Tensors or dicts"),
        (list, ValueError, "empty parameter list"),
        (lambda: [1.0], TypeError, "one of the params is float"),
        (lambda: [parameter() * 2], ValueError, "non-leaf"),
        (lambda: {"a": parameter()}, TypeError, "one of the params is str"),
        (lambda: [{"params": {parameter()}}], TypeError, "ordered collections"),
        (lambda: [("w", parameter()), parameter()], ValueError, "Some param names are missing"),
        (lambda: [{"params": [parameter()]}, [parameter()]], TypeError, "must be a dict"),
        (lambda: [{"params": []}, {"params": [("w", parameter())]}], ValueError, "without names|with names"),
    ],
)
def test_refused_parameters(params, error, text):
    with pytest.raises(error, match=text):
        SGD(params(), lr=0.1)


@pytest.mark.parametrize(
    "kind, options, error, text",
    [
        (SGD, {"lr": -0.1}, ValueError, "Invalid learning rate: -0.1"),
        (SGD, {"lr": float("nan")}, ValueError, "Invalid learning rate"),
        (SGD, {"momentum": -1}, ValueError, "Invalid momentum value: -1"),
        (SGD, {"weight_decay": -1}, ValueError, "Invalid weight_decay value: -1"),
        (SGD, {"nesterov": True}, ValueError, "Nesterov momentum requires"),
        (
            SGD,
            {"nesterov": True, "momentum": 0.9, "dampening": 0.1},
            ValueError,
            "Nesterov momentum requires",
        ),
        (SGD, {"fused": True, "foreach": True}, RuntimeError, "cannot be `True` together"),
        (SGD, {"fused": True, "differentiable": True}, RuntimeError, "does not support `differentiable`"),
        (Adam, {"lr": -1}, ValueError, "Invalid learning rate: -1"),
        (Adam, {"eps": -1}, ValueError, "Invalid epsilon value: -1"),
        (Adam, {"betas": (1.0, 0.9)}, ValueError, "beta parameter at index 0: 1.0"),
        (Adam, {"betas": (0.9, -0.1)}, ValueError, "beta parameter at index 1: -0.1"),
        (Adam, {"weight_decay": -1}, ValueError, "Invalid weight_decay value: -1"),
        (AdamW, {"fused": True, "foreach": True}, RuntimeError, "cannot be `True` together"),
    ],
)
def test_refused_options(kind, options, error, text):
    with pytest.raises(error, match=text):
        kind([parameter()], **options)


def test_refused_tensor_lr():
    with pytest.raises(ValueError, match="1-element"):
        Adam([parameter()], lr=wt.ones(2))
    with pytest.raises(ValueError, match="foreach=True"):
        Adam([parameter()], lr=wt.tensor(0.1), foreach=True)


def test_shared_parameters():
    p = parameter()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        SGD([p, p], lr=0.1)
    with pytest.raises(ValueError, match="more than one parameter group"):
        SGD([{"params": [p]}, {"params": [p]}], lr=0.1)


def test_required_option():
    class Own(Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": required})

    with pytest.raises(ValueError, match="required optimization parameter lr"):
        Own([parameter()])
    assert Own([{"params": [parameter()], "lr": 1.0}]).param_groups[0]["lr"] == 1.0
    with pytest.raises(NotImplementedError, match="step"):
        Own([{"params": [parameter()], "lr": 1.0}]).step()


def test_add_param_group():
    p, q = parameter(), parameter()
    optimizer = SGD([p], lr=0.1, momentum=0.9)
    with pytest.raises(TypeError, match="must be a dict"):
        optimizer.add_param_group([q])
    with pytest.raises(ValueError, match="more than one"):
        optimizer.add_param_group({"params": p})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": q, "lr": 1.0})
    added = optimizer.param_groups[1]
    assert added["params"][0] is q and added["lr"] == 1.0 and added["momentum"] == 0.9
    before = values(optimizer)
    train(optimizer, 1)
    np.testing.assert_allclose([b - a for a, b in zip(values(optimizer), before)], [[0.05] * 2, [0.5] * 2])


def test_names_and_repr():
    optimizer = SGD([("weight", parameter()), ("bias", parameter())], lr=0.1)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ValueError, match="without names"):
        optimizer.add_param_group({"params": [parameter()]})
    lines = repr(optimizer).splitlines()
    assert lines[0] == "SGD (" and lines[1] == "Parameter Group 0" and lines[-1] == ")"
    assert "    lr: 0.1" in lines and "    param_names: ['weight', 'bias']" in lines
    keys = [line.split(":")[0].strip() for line in lines[2:-1]]
    assert keys == sorted(keys) and "params" not in keys
    assert optimizer.defaults["lr"] == 0.1
    two = repr(SGD([{"params": [parameter()]}, {"params": [parameter()]}]))
    assert "\n\nParameter Group 1\n    dampening: 0\n" in two and two.count("\n\n") == 1


# The step ---------------------------------------------------------------------------------------------------


def test_closure_runs_with_gradients_and_its_loss_is_returned():
    p = parameter()
    optimizer = SGD([p], lr=0.1)

    def closure():
        assert wt.is_grad_enabled()
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with wt.no_grad():
        assert optimizer.step(closure).item() == 5.0
    np.testing.assert_allclose(p.detach().numpy(), [0.8, 1.6])
    assert optimizer.step() is None


def test_step_records_nothing_and_changes_in_place():
    p = parameter()
    pointer, optimizer = p.data_ptr(), AdamW([p])
    train(optimizer, 2)
    assert p.is_leaf and p.grad_fn is None and p.requires_grad and p.data_ptr() == pointer
    assert not any(v.requires_grad for v in optimizer.state[p].values())


def test_step_makes_old_graphs_stale():
    """The update counts as a change in place: a graph that saved the old value must not use the new one."""
    p = parameter()
    loss = (p * p).sum()
    optimizer = SGD([p], lr=0.1)
    train(optimizer, 1)
    with pytest.raises(RuntimeError, match=r"modified by an in-?place"):
        loss.backward()


@pytest.mark.parametrize(
    "kind, op", [("SGD", "_fused_sgd_"), ("Adam", "_fused_adam_"), ("AdamW", "_fused_adamw_")]
)
def test_one_call_per_dtype(monkeypatch, kind, op):
    params = [parameter(dtype=wt.float32) for _ in range(5)] + [parameter() for _ in range(3)]
    optimizer = KINDS[kind](params)
    counts = count_calls(monkeypatch, op)
    for _ in range(3):
        counts[op] = 0
        train(optimizer, 1)
        assert counts[op] == 2
    for p in params[5:]:
        p.grad = None
    optimizer.step()
    assert counts[op] == 3


def test_only_parameters_with_gradient_get_state():
    p, q = parameter(), parameter()
    optimizer = AdamW([p, q])
    p.grad = wt.ones_like(p)
    optimizer.step()
    assert [k is p for k in optimizer.state] == [True]
    q.grad = None
    optimizer.zero_grad()
    optimizer.step()  # nothing to do
    assert optimizer.state[p]["step"].item() == 1.0


def test_step_is_a_float32_tensor():
    optimizer = Adam([parameter()])
    train(optimizer, 3)
    step = optimizer.state[optimizer.param_groups[0]["params"][0]]["step"]
    assert step.dtype == wt.float32 and step.shape == () and step.item() == 3.0


def test_plain_sgd_keeps_no_state():
    optimizer = SGD([parameter()], lr=0.1)
    train(optimizer, 2)
    assert optimizer.state_dict()["state"] == {}


@pytest.mark.parametrize("kind", KINDS)
def test_changes_between_steps_are_seen(kind):
    """Replaced state, replaced parameters, another dtype: each must take effect at the next step."""
    p, q = parameter(), parameter()
    optimizer, fresh = KINDS[kind]([p]), KINDS[kind]([q])
    train(optimizer, 3)
    with wt.no_grad():
        p.copy_(q)
    optimizer.state.clear()
    train(optimizer, 2)
    train(fresh, 2)
    np.testing.assert_array_equal(values(optimizer), values(fresh))

    key = STATE_KEYS[kind][-1]
    optimizer.state[p][key] = wt.zeros_like(p)
    fresh.state[q][key].zero_()
    train(optimizer, 1)
    train(fresh, 1)
    np.testing.assert_array_equal(values(optimizer), values(fresh))

    r = parameter(5.0, 6.0)
    optimizer.param_groups[0]["params"] = [r]
    train(optimizer, 1)
    assert (r.detach().numpy() != [5.0, 6.0]).all()
    np.testing.assert_array_equal(p.detach().numpy(), values(fresh)[0])


def test_replaced_parameter_beside_one_without_gradient():
    p, q, r = parameter(), parameter(), parameter(5.0, 6.0)
    optimizer = SGD([p, q], lr=1.0)
    for _ in range(2):
        p.grad, q.grad = wt.ones_like(p), None
        optimizer.step()
    optimizer.param_groups[0]["params"][0] = r
    r.grad = wt.ones_like(r)
    optimizer.step()
    assert r.tolist() == [4.0, 5.0] and p.tolist() == [-1.0, 0.0] and q.tolist() == [1.0, 2.0]


def test_dtype_change_between_steps(monkeypatch):
    p, q = parameter(), parameter()
    optimizer = SGD([p, q], lr=0.5)
    train(optimizer, 1)
    p.data = p.data.to(wt.float32)
    p.grad = None
    before = [p.item() for p in (p[0], q[0])]
    counts = count_calls(monkeypatch, "_fused_sgd_")
    train(optimizer, 1)
    assert counts["_fused_sgd_"] == 2
    np.testing.assert_allclose([p.item() for p in (p[0], q[0])], [b - 0.25 for b in before], rtol=1e-6)


def test_turning_amsgrad_on_midway():
    optimizer = Adam([parameter()])
    train(optimizer, 2)
    optimizer.param_groups[0]["amsgrad"] = True
    train(optimizer, 1)
    state = next(iter(optimizer.state.values()))
    assert (state["max_exp_avg_sq"] >= state["exp_avg_sq"]).all()


def test_refused_update_does_not_count():
    p = parameter()
    optimizer = Adam([p])
    train(optimizer, 2)
    before = values(optimizer)[0]
    optimizer.state[p]["exp_avg"] = wt.zeros(5, dtype=wt.float64)
    with pytest.raises((RuntimeError, ValueError)):
        train(optimizer, 1)
    assert optimizer.state[p]["step"].item() == 2.0
    np.testing.assert_array_equal(values(optimizer)[0], before)


# zero_grad --------------------------------------------------------------------------------------------------


def test_zero_grad():
    p, q, r = parameter(), parameter(dtype=wt.float32), parameter()
    optimizer = SGD([{"params": [p, q]}, {"params": [r]}], lr=0.1)
    p.grad, q.grad = wt.ones_like(p), wt.ones_like(q)
    kept = p.grad
    optimizer.zero_grad(set_to_none=False)
    assert (
        p.grad is kept and p.grad.tolist() == [0.0, 0.0] and q.grad.tolist() == [0.0, 0.0] and r.grad is None
    )
    optimizer.zero_grad()
    assert p.grad is None and q.grad is None


def test_zero_grad_cuts_a_recorded_gradient():
    p = parameter()
    optimizer = SGD([p], lr=0.1)
    (p**3).sum().backward(create_graph=True)
    assert p.grad.requires_grad
    optimizer.zero_grad(set_to_none=False)
    assert not p.grad.requires_grad and p.grad.grad_fn is None and p.grad.tolist() == [0.0, 0.0]


# Saving and loading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_layout(kind):
    params = [parameter() for _ in range(3)]
    optimizer = KINDS[kind]([{"params": params[:2]}, {"params": params[2:], "lr": 0.5}])
    train(optimizer, 1)
    saved = optimizer.state_dict()
    assert list(saved) == ["state", "param_groups"]
    assert sorted(saved["state"]) == [0, 1, 2]
    assert all(list(s) == STATE_KEYS[kind] for s in saved["state"].values())
    assert [g["params"] for g in saved["param_groups"]] == [[0, 1], [2]]
    assert [g["lr"] for g in saved["param_groups"]][1] == 0.5
    assert saved["state"][0][STATE_KEYS[kind][-1]] is optimizer.state[params[0]][STATE_KEYS[kind][-1]]


@pytest.mark.parametrize("through", ["dict", "pickle of the dict", "pickle", "deepcopy"])
@pytest.mark.parametrize("kind", KINDS)
def test_resuming_gives_the_same_curve(kind, through):
    whole = KINDS[kind]([parameter(), parameter(3.0)])
    train(whole, 7)
    first = KINDS[kind]([parameter(), parameter(3.0)])
    train(first, 4)
    if through == "pickle":
        resumed = pickle.loads(pickle.dumps(first))
    elif through == "deepcopy":
        resumed = copy.deepcopy(first)
    else:
        saved = copy.deepcopy(first.state_dict())
        if through.startswith("pickle"):
            saved = pickle.loads(pickle.dumps(saved))
        params = [p.detach().clone().requires_grad_() for p in first.param_groups[0]["params"]]
        resumed = KINDS[kind](params)
        resumed.load_state_dict(saved)
    train(first, 2)  # must not reach into the copy
    train(resumed, 3, start=4)
    for a, b in zip(values(whole), values(resumed)):
        np.testing.assert_array_equal(a, b)


def test_loading_casts_to_the_parameter():
    source = Adam([parameter(dtype=wt.float32)])
    train(source, 3)
    target = Adam([parameter(dtype=wt.float64)])
    target.load_state_dict(source.state_dict())
    state = next(iter(target.state.values()))
    assert state["exp_avg"].dtype == wt.float64 and state["step"].dtype == wt.float32
    train(target, 1)
    assert state["step"].item() == 4.0


def test_loading_old_files():
    """A step kept as a number, and options that did not exist yet."""
    optimizer = AdamW([parameter()])
    train(optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["step"] = 2
    for name in ("amsgrad", "maximize", "foreach", "capturable", "fused", "decoupled_weight_decay"):
        del saved["param_groups"][0][name]
    restored = AdamW([parameter(*values(optimizer)[0])])
    restored.load_state_dict(saved)
    assert restored.param_groups[0]["decoupled_weight_decay"] is True
    train(optimizer, 1)
    train(restored, 1)
    np.testing.assert_array_equal(values(optimizer)[0], values(restored)[0])


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_loaded_state_is_a_copy(kind):
    """Of an optimizer that goes on: neither reaches into the other's state or options."""
    first = KINDS[kind]([parameter()])
    train(first, 2)
    first.param_groups[0]["lr"] = wt.tensor(0.1)
    saved = copy.deepcopy(first.state_dict())
    second = KINDS[kind]([parameter()])
    second.load_state_dict(first.state_dict())
    train(second, 3, start=5)
    second.param_groups[0]["lr"].mul_(2)
    assert first.param_groups[0]["lr"] == saved["param_groups"][0]["lr"]
    for key, value in first.state_dict()["state"].get(0, {}).items():
        expected = saved["state"][0][key]
        assert wt.equal(value, expected) if isinstance(value, wt.Tensor) else value == expected or key


def test_loading_numpy_arrays_copies_them():
    array = np.array([1.0, 2.0])
    optimizer = SGD([parameter()], lr=0.1, momentum=0.9)
    saved = optimizer.state_dict()
    saved["state"] = {0: {"momentum_buffer": array}}
    optimizer.load_state_dict(saved)
    train(optimizer, 1)
    np.testing.assert_array_equal(array, [1.0, 2.0])
    np.testing.assert_allclose(next(iter(optimizer.state.values()))["momentum_buffer"].numpy(), [1.4, 2.3])


@pytest.mark.parametrize(
    "groups, text",
    [([[0]], "different number of parameter groups"), ([[0, 1], [2, 3]], "doesn't match the size")],
)
def test_refused_state_dict(groups, text):
    optimizer = SGD([{"params": [parameter(), parameter()]}, {"params": [parameter()]}], lr=0.1)
    before = optimizer.state_dict()
    with pytest.raises(ValueError, match=text):
        optimizer.load_state_dict({"state": {}, "param_groups": [{"params": g} for g in groups]})
    assert optimizer.state_dict() == before


def test_state_that_belongs_to_no_parameter_is_kept():
    optimizer = SGD([parameter()], lr=0.1)
    saved = optimizer.state_dict()
    saved["state"]["note"] = {"x": [1, 2]}
    optimizer.load_state_dict(saved)
    assert optimizer.state_dict()["state"] == {"note": {"x": [1, 2]}}


# Hooks ------------------------------------------------------------------------------------------------------


def test_step_hooks_run_in_order_and_once():
    class Derived(SGD):
        def step(self, closure=None):
            seen.append("step")
            return super().step(closure)

    seen: list[str] = []
    optimizer = Derived([parameter()], lr=0.1)
    handles = [
        optimizer.register_step_pre_hook(lambda o, a, k: seen.append("pre")),
        optimizer.register_step_post_hook(lambda o, a, k: seen.append("post")),
        register_optimizer_step_pre_hook(lambda o, a, k: seen.append("global pre")),
        register_optimizer_step_post_hook(lambda o, a, k: seen.append("global post")),
    ]
    try:
        train(optimizer, 1)
        assert seen == ["global pre", "pre", "step", "post", "global post"]
    finally:
        for handle in handles:
            handle.remove()
    seen.clear()
    train(optimizer, 1)
    assert seen == ["step"]


def test_step_pre_hook_may_change_the_arguments():
    optimizer = SGD([parameter()], lr=0.1)
    give_gradients(optimizer)
    with optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o,), {"closure": lambda: 42})):
        assert optimizer.step() == 42
    with (
        optimizer.register_step_pre_hook(lambda o, a, k: "no"),
        pytest.raises(RuntimeError, match="None or a tuple"),
    ):
        optimizer.step()
    assert optimizer.step() is None


def test_state_dict_hooks():
    optimizer = SGD([parameter()], lr=0.1)
    seen: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("b"))
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("a"), prepend=True)
    optimizer.register_state_dict_post_hook(lambda o, sd: {**sd, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(lambda o, sd: {k: v for k, v in sd.items() if k != "extra"})
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    saved = optimizer.state_dict()
    assert saved["extra"] == 1
    optimizer.load_state_dict(saved)
    assert seen == ["a", "b", "loaded"]
    with pytest.raises(TypeError, match="callable"):
        optimizer.register_step_post_hook(3)


# Parity -----------------------------------------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("kind", KINDS)
def test_files_go_both_ways(kind):
    """PyTorch trains, warptape goes on, PyTorch goes on from there; against PyTorch alone."""
    torch = pytest.importorskip("torch")
    make = {
        "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
        "Adam": lambda ps: torch.optim.Adam(ps, amsgrad=True),
        "AdamW": torch.optim.AdamW,
    }[kind]

    def torch_train(p, optimizer, start):
        for i in range(start, start + 3):
            p.grad = torch.ones_like(p) * (0.5 + i % 3)
            optimizer.step()

    alone = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    other = alone.detach().clone().requires_grad_()
    optimizer = make([alone])
    for start in (0, 3, 6):
        torch_train(alone, optimizer, start)
    first = make([other])
    torch_train(other, first, 0)

    ours = wt.tensor(other.detach().tolist(), dtype=wt.float64, requires_grad=True)
    middle = KINDS[kind]([ours])
    lent = copy.deepcopy(first.state_dict())
    middle.load_state_dict(lent)
    assert set(middle.state_dict()["param_groups"][0]) == set(first.state_dict()["param_groups"][0])
    train(middle, 3, start=3)
    for key, value in first.state_dict()["state"][0].items():
        assert torch.equal(lent["state"][0][key], value), "another library's tensors are copied, not shared"

    back = torch.tensor(ours.tolist(), dtype=torch.float64, requires_grad=True)
    last = make([back])
    saved = middle.state_dict()
    state = {k: torch.as_tensor(v.numpy()) for k, v in saved["state"][0].items()}
    last.load_state_dict({"state": {0: state}, "param_groups": saved["param_groups"]})
    torch_train(back, last, 6)
    np.testing.assert_allclose(back.detach().numpy(), alone.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("allocations", range(4))
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_step_that_runs_out_of_memory_can_be_taken_again(
    kind: str, allocations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ps = [wt.ones(3, requires_grad=True) for _ in range(2)]
    for p in ps:
        p.grad = wt.ones(3)
    optimizer = KINDS[kind](ps, lr=0.5)
    real, left = wt.zeros_like, [allocations]

    def zeros_like(x: wt.Tensor) -> wt.Tensor:
        if not left[0]:
            raise wt.OutOfMemoryError("no memory")
        left[0] -= 1
        return real(x)

    with monkeypatch.context() as patch:
        patch.setattr(core, "zeros_like", zeros_like)
        with pytest.raises(wt.OutOfMemoryError):
            optimizer.step()
    optimizer.step()
    # The first step of Adam goes by lr against the gradient's sign; AdamW decays by lr * 0.01 besides.
    want = 0.5 if kind == "Adam" else 0.5 - 0.005
    for p in ps:
        np.testing.assert_allclose(p.detach().numpy(), np.full(3, want), rtol=1e-6)
