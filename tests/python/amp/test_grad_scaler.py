"""GradScaler: the rule for the scale, steps left out, what it refuses, and what it is for."""

from __future__ import annotations

import pickle
import warnings

import pytest
import warptape as wt
from warptape.amp import GradScaler

INF, NAN = float("inf"), float("nan")


def scaled_step(scaler, optimizer, grads, clip=False):
    """One step with the given gradients of the loss; of the scaled loss they are larger."""
    params = optimizer.param_groups[0]["params"]
    loss = scaler.scale(sum((p * wt.tensor(g, dtype=p.dtype)).sum() for p, g in zip(params, grads)))
    optimizer.zero_grad()
    loss.backward()
    if clip:
        scaler.unscale_(optimizer)
    result = scaler.step(optimizer)
    scaler.update()
    return result


def make(kind="SGD", fused=None, n=2, **options):
    params = [wt.ones(3, requires_grad=True) for _ in range(n)]
    return params, getattr(wt.optim, kind)(params, lr=0.5, fused=fused, **options)


FUSED = [("SGD", {}), ("SGD", {"momentum": 0.9}), ("Adam", {"amsgrad": True}), ("AdamW", {})]


def test_scale_follows_the_rule():
    _, optimizer = make()
    scaler = GradScaler("cpu", init_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)
    seen = []
    for bad in (False, False, False, True, False, False, True, True):
        scaled_step(scaler, optimizer, [[1.0, INF if bad else 1.0, 1.0], [1.0, 1.0, 1.0]])
        seen.append((scaler.get_scale(), scaler._get_growth_tracker()))
    assert seen == [(8, 1), (32, 0), (32, 1), (8, 0), (8, 1), (32, 0), (8, 0), (2, 0)]


def test_scale_does_not_grow_to_infinity():
    _, optimizer = make()
    scaler = GradScaler("cpu", init_scale=2.0**120, growth_factor=2.0**10, growth_interval=1)
    scaled_step(scaler, optimizer, [[1e-3] * 3] * 2)
    assert scaler.get_scale() == 2.0**120 and scaler._get_growth_tracker() == 0


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    "kind, fused, options",
    [
        *((kind, fused, options) for kind, options in FUSED for fused in (None, True)),
        ("RMSprop", None, {}),
    ],
)
def test_steps_are_those_without_scaling(kind, fused, options, clip):
    if kind == "RMSprop":
        a, b = wt.ones(3, requires_grad=True), wt.ones(3, requires_grad=True)
        plain, scaled = wt.optim.RMSprop([a], lr=0.5), wt.optim.RMSprop([b], lr=0.5)
    else:
        (a,), plain = make(kind, None, 1, **options)
        (b,), scaled = make(kind, fused, 1, **options)
    scaler = GradScaler("cpu", init_scale=1024.0)
    for step, gradient in enumerate([[0.0, NAN, 0.0], [1.0, 2.0, -3.0], [0.5, 0.25, INF], [4.0, -2.0, 1.0]]):
        if step % 2:
            a.grad = wt.tensor(gradient)
            plain.step()
        scaled_step(scaler, scaled, [gradient], clip)
    assert b.tolist() == pytest.approx(a.tolist(), rel=1e-6) and a.tolist() != [1, 1, 1]
    steps = [state["step"].item() for state in scaled.state.values() if "step" in state]
    assert steps in ([], [2.0])
    assert scaler.get_scale() == 256.0


def test_what_float16_loses_is_rescued():
    """A weight of 2**-3 in float32, a gradient of 2**-28 (below float16's smallest), an update of 2**-14."""

    def train(scaler):
        weight = wt.tensor([2.0**-3], requires_grad=True)
        optimizer = wt.optim.SGD([weight], lr=2.0**14)
        loss = (weight.half() * 2.0**-14).sum().float() * 2.0**-14
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return weight.item()

    assert train(GradScaler("cpu", enabled=False)) == 2.0**-3
    assert train(GradScaler("cpu", init_scale=2.0**16)) == 2.0**-3 - 2.0**-14


def test_update_below_the_weights_precision_needs_the_wide_copy():
    """float16 holds 2**-3 - 2**-14 exactly as 2**-3's neighbour 2**-14 apart, but not 2**-3 - 2**-15."""
    assert wt.tensor(2.0**-3 - 2.0**-14).half().item() == 2.0**-3 - 2.0**-14
    half = wt.tensor([2.0**-3], dtype=wt.float16, requires_grad=True)
    half.grad = wt.tensor([2.0**-16], dtype=wt.float16)
    optimizer = wt.optim.SGD([half], lr=1.0, master_weights=True)
    optimizer.step()
    assert half.item() == 2.0**-3
    for _ in range(7):
        optimizer.step()
    assert half.item() == 2.0**-3 - 2.0**-13


def test_several_optimizers_and_losses():
    first, one = make(n=1)
    second, two = make(n=1)
    scaler = GradScaler("cpu", init_scale=4.0)
    a, (b, c) = (t.sum() for t in first), (scaler.scale([second[0].sum(), (second[0] * INF).sum()]))
    scaler.scale(next(a)).backward()
    (b + c).backward()
    assert scaler.step(one) is None and scaler.step(two) is None
    scaler.update()
    assert first[0].tolist() == [0.5] * 3 and second[0].tolist() == [1.0] * 3
    assert scaler.get_scale() == 2.0


def test_scale_keeps_the_containers():
    scaler = GradScaler("cpu", init_scale=2.0)
    out = scaler.scale([wt.ones(2), (wt.ones(1), [wt.ones(())])])
    assert type(out) is list and type(out[1]) is tuple and out[1][1][0].item() == 2.0
    assert scaler.scale(wt.ones(1).half()).dtype == wt.float16
    with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
        scaler.scale(3.0)


def test_refusals():
    params, optimizer = make()
    scaler = GradScaler("cpu")
    with pytest.raises(AssertionError, match="Attempted unscale_ but _scale is None"):
        scaler.unscale_(optimizer)
    with pytest.raises(AssertionError, match="Attempted update but _scale is None"):
        scaler.update()
    scaler.scale(wt.ones(1))
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()
    scaler.update(2.0)
    scaler.scale(params[0].sum()).backward()
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, lambda: 1.0)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step\(\)"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        scaler.step(optimizer)
    with pytest.raises(AssertionError, match="new_scale should be a float"):
        scaler.update(wt.ones(2))
    with pytest.raises(AssertionError, match="may only be pickled at the beginning"):
        pickle.dumps(scaler)
    scaler.update(16.0)
    assert scaler.get_scale() == 16.0
    scaler.update(wt.tensor([8.0]))
    assert scaler.get_scale() == 8.0
    for options in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}):
        with pytest.raises(ValueError, match="expected a"):
            GradScaler("cpu", **options)


def test_float16_gradients_are_refused_and_kept():
    half = wt.ones(2, dtype=wt.float16, requires_grad=True)
    optimizer = wt.optim.SGD([half], lr=1.0)
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale(half.sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.step(optimizer)
    assert half.grad.tolist() == [4.0, 4.0] and half.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("through", ["state_dict", "pickle"])
def test_saved_and_loaded(through):
    _, optimizer = make()
    scaler = GradScaler("cpu", init_scale=32.0, growth_interval=3)
    scaled_step(scaler, optimizer, [[1.0] * 3] * 2)
    state = scaler.state_dict()
    assert state == {
        "scale": 32.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 3,
        "_growth_tracker": 1,
    }
    other = GradScaler("cpu")
    if through == "pickle":
        other = pickle.loads(pickle.dumps(scaler))
    else:
        other.load_state_dict(state)
    for _ in range(2):
        scaled_step(other, optimizer, [[1.0] * 3] * 2)
    assert other.get_scale() == 64.0
    with pytest.raises(RuntimeError, match="The source state dict is empty"):
        other.load_state_dict({})
    with pytest.raises(KeyError):
        other.load_state_dict({"scale": 1.0})
    assert other.get_scale() == 64.0


def test_disabled_and_missing_device():
    params, optimizer = make()
    scaler = GradScaler("cpu", enabled=False)
    loss = params[0].sum() + params[1].sum()
    assert scaler.scale(loss) is loss and scaler.state_dict() == {} and scaler.get_scale() == 1.0
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert params[0].tolist() == [0.5] * 3
    if not wt.cuda.is_available():
        with pytest.warns(UserWarning, match="CUDA is not available"):
            assert not GradScaler("cuda").is_enabled()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert not wt.cuda.amp.GradScaler().is_enabled()


@pytest.mark.parametrize("stages", [False, True])
def test_ranks_that_hold_parts_agree(stages):
    """Of parameters, or stages, split among ranks: inf on one rank makes both leave out the step."""
    from warptape import distributed as dist
    from warptape.core.placed import set_norm_stages
    from warptape.distributed.tensor import Shard, distribute_tensor

    def body():
        weight = wt.ones(2, requires_grad=True)
        if stages:
            set_norm_stages(weight, dist.get_default_group(), True)
        else:
            mesh = dist.init_device_mesh("cpu", (2,))
            weight = distribute_tensor(wt.ones(4, requires_grad=True), mesh, [Shard(0)])
        optimizer = wt.optim.SGD([weight], lr=1.0)
        scaler = GradScaler("cpu", init_scale=2.0)
        for bad in (dist.get_rank() == 1, False):
            optimizer.zero_grad()
            local = weight if stages else weight.to_local()
            scaler.scale((local * (INF if bad else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        return (weight if stages else weight.to_local()).tolist(), scaler.get_scale()

    assert dist.simulate(2, body) == [([0.0, 0.0], 1.0)] * 2


@pytest.mark.parity
def test_parity():
    torch = pytest.importorskip("torch")
    curves = []
    for m in (torch, wt):
        m.manual_seed(0)
        params = [m.ones(4, requires_grad=True)]
        optimizer = m.optim.AdamW(params, lr=0.1)
        scaler = m.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        curve = []
        for step in range(12):
            optimizer.zero_grad()
            factor = m.tensor([1.0, 2.0, INF if step in (4, 5) else 3.0, 0.1 * step])
            scaler.scale((params[0] * factor).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            curve.append((scaler.get_scale(), params[0].tolist()))
        curves.append(curve)
    for (scale, weights), (expected_scale, expected) in zip(curves[1], curves[0]):
        assert scale == expected_scale and weights == pytest.approx(expected, rel=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("kind, options", [("SGD", {"momentum": 0.9}), ("AdamW", {"amsgrad": True})])
def test_on_the_device_as_on_the_cpu(kind, options, fused):
    found = []
    for device in ("cpu", "cuda"):
        p = wt.ones(3, device=device).requires_grad_()
        optimizer = getattr(wt.optim, kind)([p], lr=0.5, fused=fused, **options)
        scaler = GradScaler(device, init_scale=1024.0)
        for gradient in ([0.0, NAN, 0.0], [1.0, 2.0, -3.0], [0.5, 0.25, INF], [4.0, -2.0, 1.0]):
            optimizer.zero_grad()
            scaler.scale((p * wt.tensor(gradient, device=device)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        steps = [state["step"].item() for state in optimizer.state.values() if "step" in state]
        found.append((p.tolist(), scaler.get_scale(), steps))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6) and found[1][1:] == found[0][1:]
    assert found[0][1] == 256.0 and found[0][2] in ([], [2.0])
