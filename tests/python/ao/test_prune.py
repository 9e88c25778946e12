"""nn.utils.prune and ao.pruning: masks, gradients, schedules."""

import numpy as np
import pytest
import warptape as torch
from warptape import ao, nn
from warptape.nn.utils import prune


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))


def test_the_least_weights_become_zero():
    layer = small()[0]
    before = layer.weight.detach().clone()
    assert prune.l1_unstructured(layer, "weight", 0.25) is layer
    gone = np.sort(before.abs().numpy().ravel())[:12]
    np.testing.assert_array_equal(layer.weight_mask.numpy(), before.abs().numpy() > gone[-1])
    np.testing.assert_array_equal(layer.weight.detach().numpy(), (before * layer.weight_mask).numpy())
    assert prune.is_pruned(layer) and sorted(layer.state_dict()) == ["bias", "weight_mask", "weight_orig"]


def test_training_goes_on_and_removing_keeps_the_zeros():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    prune.ln_structured(model[0], "weight", 2, n=2, dim=0)
    rows = model[0].weight_mask.sum(1)
    x = torch.randn(16, 8)
    first = None
    for _ in range(20):
        loss = (model(x) - 1).square().mean()
        first = loss.item() if first is None else first
        optimizer.zero_grad()
        loss.backward()
        assert model[0].weight_orig.grad[rows == 0].abs().max() == 0
        optimizer.step()
    assert loss.item() < 0.7 * first
    shown = model(x)
    prune.remove(model[0], "weight")
    assert isinstance(model[0].weight, nn.Parameter) and not prune.is_pruned(model)
    assert (model[0].weight[rows == 0] == 0).all() and (rows == 0).sum() == 2
    torch.testing.assert_close(model(x), shown)
    assert sorted(model[0].state_dict()) == ["bias", "weight"]


def test_methods_add_up():
    layer = nn.Linear(10, 10)
    prune.l1_unstructured(layer, "weight", 30)
    prune.random_structured(layer, "weight", 3, dim=1)
    prune.l1_unstructured(layer, "weight", 0.5)
    assert layer.weight_mask.sum() <= (100 - 30) / 2
    assert (layer.weight_mask.sum(0) == 0).sum() >= 3
    hooks = list(layer._forward_pre_hooks.values())
    assert len(hooks) == 1 and isinstance(hooks[0], prune.PruningContainer) and len(hooks[0]) == 3


def test_global_pruning_compares_over_layers():
    model = small()
    with torch.no_grad():
        model[2].weight.mul_(100)
    pairs = [(model[0], "weight"), (model[2], "weight")]
    prune.global_unstructured(pairs, prune.L1Unstructured, amount=40)
    assert model[0].weight_mask.sum() == 8 and model[2].weight_mask.sum() == 24


@pytest.mark.parametrize(
    "error, call",
    [
        (ValueError, lambda m: prune.l1_unstructured(m, "weight", 1.5)),
        (ValueError, lambda m: prune.l1_unstructured(m, "weight", 1000)),
        (TypeError, lambda m: prune.l1_unstructured(m, "weight", "half")),
        (AttributeError, lambda m: prune.l1_unstructured(m, "nothing", 0.5)),
        (ValueError, lambda m: prune.ln_structured(m, "bias", 0.5, n=2, dim=0)),
        (IndexError, lambda m: prune.ln_structured(m, "weight", 0.5, n=2, dim=5)),
        (ValueError, lambda m: prune.custom_from_mask(m, "weight", torch.ones(3))),
        (ValueError, lambda m: prune.l1_unstructured(m, "weight", 1, importance_scores=torch.ones(2))),
        (ValueError, lambda m: prune.remove(m, "weight")),
        (TypeError, lambda m: prune.global_unstructured([(m, "weight")], prune.LnStructured, amount=1)),
        (ValueError, lambda m: prune.global_unstructured([], prune.L1Unstructured, amount=1)),
        (ValueError, lambda m: ao.n_of_m(nn.Linear(6, 2))),
        (ValueError, lambda m: ao.n_of_m(m, n=5)),
        (ValueError, lambda m: ao.PolynomialSchedule(1.5, end=3)),
        (ValueError, lambda m: ao.PolynomialSchedule(0.5, end=3, begin=3)),
        (ValueError, lambda m: ao.GradualPruner([], ao.PolynomialSchedule(0.5, end=3))),
    ],
)
def test_bad_input_changes_nothing(error, call):
    layer = nn.Linear(8, 4)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    with pytest.raises(error):
        call(layer)
    assert not prune.is_pruned(layer) and list(layer._parameters) == ["weight", "bias"]
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])


def test_two_of_four():
    layer = nn.Conv2d(8, 4, 3)
    ao.n_of_m(layer)
    groups = layer.weight_mask.reshape(-1, 4)
    assert (groups.sum(1) == 2).all()
    weight = layer.weight_orig.detach().abs().reshape(-1, 4)
    least_kept = torch.where(groups == 1, weight, float("inf")).min(1).values
    most_gone = torch.where(groups == 0, weight, 0).max(1).values
    assert (least_kept >= most_gone).all()


def test_the_schedule_is_zhu_and_guptas():
    schedule = ao.PolynomialSchedule(0.9, initial=0.1, begin=10, end=110, every=5)
    for t in (10, 15, 60, 105):
        assert schedule(t) == pytest.approx(0.9 + (0.1 - 0.9) * (1 - (t - 10) / 100) ** 3, abs=1e-15)
    assert schedule(0) == pytest.approx(0.1) and schedule(12) == schedule(10) and schedule(500) == 0.9


def test_gradual_pruning_reaches_its_share_and_lets_training_go_on():
    model = small()
    pairs = [(model[0], "weight"), (model[2], "weight")]
    pruner = ao.GradualPruner(pairs, ao.PolynomialSchedule(0.75, end=20))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, gone = torch.randn(32, 8), None
    for _ in range(30):
        loss = (model(x) - x[:, :4]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        share = pruner.step()
        now = torch.cat([m.weight_mask.reshape(-1) for m, _ in pairs]) == 0
        assert gone is None or now[gone].all()
        gone = now
    assert share == 0.75 and gone.float().mean() == 0.75 == pytest.approx(ao.sparsity(model))


def test_a_pruned_model_is_saved(tmp_path):
    model = small()
    prune.l1_unstructured(model[0], "weight", 0.5)
    x = torch.randn(3, 8)
    expected = model(x)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    other = small()
    prune.identity(other[0], "weight")
    other.load_state_dict(torch.load(tmp_path / "m.pt"))
    torch.testing.assert_close(other(x), expected)


@pytest.mark.parity
@pytest.mark.parametrize(
    "prune_it",
    [
        lambda p, m: p.l1_unstructured(m, "weight", 0.3),
        lambda p, m: p.random_unstructured(m, "weight", 0.3),
        lambda p, m: p.random_structured(m, "weight", 0.5, dim=0),
        lambda p, m: p.ln_structured(m, "weight", 0.4, n=1, dim=1),
        lambda p, m: p.ln_structured(m, "weight", 2, n=float("-inf"), dim=-1),
        lambda p, m: (p.l1_unstructured(m, "weight", 5), p.ln_structured(m, "weight", 1, n=2, dim=0)),
        lambda p, m: (
            p.ln_structured(m, "weight", 2, n=2, dim=0),
            p.ln_structured(m, "weight", 0.5, n=2, dim=0),
        ),
        lambda p, m: (p.identity(m, "weight"), p.random_unstructured(m, "bias", 2)),
        lambda p, m: p.global_unstructured([(m, "weight"), (m, "bias")], p.L1Unstructured, amount=0.3),
    ],
)
def test_masks_are_pytorchs(prune_it):
    pytorch = pytest.importorskip("torch", exc_type=ImportError)
    if not hasattr(pytorch, "__file__") or pytorch is torch:
        pytest.skip("torch is not PyTorch")
    import torch.nn.utils.prune as theirs

    weight = np.random.default_rng(0).normal(size=(6, 7)).astype(np.float32)
    results = []
    for lib, p in ((torch, prune), (pytorch, theirs)):
        lib.manual_seed(3)
        layer = lib.nn.Linear(7, 6)
        with lib.no_grad():
            layer.weight.copy_(lib.from_numpy(weight))
            layer.bias.copy_(lib.from_numpy(weight[:, 0]))
        lib.manual_seed(4)
        prune_it(p, layer)
        results.append(({k: v.detach().numpy() for k, v in layer.state_dict().items()}, layer.weight))
    assert list(results[0][0]) == list(results[1][0])
    for key, value in results[1][0].items():
        np.testing.assert_array_equal(results[0][0][key], value, err_msg=key)
    np.testing.assert_array_equal(results[0][1].detach().numpy(), results[1][1].detach().numpy())
