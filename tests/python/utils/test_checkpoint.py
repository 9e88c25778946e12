"""Checkpointed regions give the gradients of the plain ones, keep less, and notice a region that changed."""

from __future__ import annotations

import contextlib
import gc
import weakref

import numpy as np
import pytest
import warptape as wt
from warptape.autograd.graph import saved_tensors_hooks
from warptape.utils.checkpoint import (
    CheckpointError,
    checkpoint,
    checkpoint_sequential,
    get_device_states,
    set_checkpoint_early_stop,
    set_device_states,
)


def leaf(*shape, seed=0):
    values = np.cos(np.arange(int(np.prod(shape))) * 0.7 + seed).reshape(shape)
    return wt.tensor(values, dtype=wt.float64, requires_grad=True)


X, W1, W2 = leaf(3, 4), leaf(4, 5, seed=1), leaf(5, 2, seed=2)


def hidden(x):
    return wt.tanh(x @ W1)


def block(x):
    return wt.exp(hidden(x) @ W2)


WAYS = {
    "whole": lambda x: checkpoint(block, x, use_reentrant=False),
    "reentrant is accepted": lambda x: checkpoint(block, x, use_reentrant=True),
    "by keyword": lambda x: checkpoint(lambda *, y: block(y), y=x),
    "to the end": lambda x: checkpoint(block, x, early_stop=False),
    "no comparison": lambda x: checkpoint(block, x, determinism_check="none"),
    "nested": lambda x: checkpoint(lambda y: wt.exp(checkpoint(hidden, y) @ W2), x),
    "nested twice": lambda x: checkpoint(
        lambda z: checkpoint(lambda y: wt.exp(checkpoint(hidden, y) @ W2), z), x
    ),
    "two regions": lambda x: checkpoint(lambda h: wt.exp(h @ W2), checkpoint(hidden, x)),
    "tensor in a list": lambda x: checkpoint(lambda xs: block(xs[0]), [x]),
    "sequence": lambda x: checkpoint_sequential([hidden, lambda h: h @ W2, wt.exp], 2, x),
}


def gradients(f, create_graph=False):
    loss = (f(X) ** 2).sum()
    grads = wt.autograd.grad(loss, [X, W1, W2], create_graph=create_graph)
    if create_graph:
        grads += wt.autograd.grad(sum((g**2).sum() for g in grads), [X, W1, W2])
    return [loss.item(), *(g.detach().numpy() for g in grads)]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_same_gradients(way, create_graph):
    for a, b in zip(gradients(block, create_graph), gradients(WAYS[way], create_graph)):
        np.testing.assert_array_equal(a, b)


def test_runs_twice_and_only_when_needed():
    calls = []

    def counted(x):
        calls.append(wt.is_grad_enabled())
        return block(x)

    loss = checkpoint(counted, X).sum()
    assert calls == [True]
    loss.backward(retain_graph=True)
    assert calls == [True, True]
    loss.backward()
    assert calls == [True, True, True]
    with wt.no_grad():
        checkpoint(counted, X)
    assert calls == [True, True, True, False]
    checkpoint(counted, X.detach())
    X.grad = W1.grad = W2.grad = None


def test_stops_early():
    reached = []

    def region(x):
        y = wt.exp(wt.sin(x))
        reached.append("end")
        return y

    checkpoint(region, X).sum().backward()
    assert reached == ["end"]
    with set_checkpoint_early_stop(False):
        loss = checkpoint(region, X).sum()
    loss.backward()
    assert reached == ["end"] * 3
    X.grad = None


def test_keeps_inputs_only():
    """Inside the region nothing is saved but the region's inputs; an outer hook sees no activation."""
    seen = []

    def pack(t):
        seen.append(tuple(t.shape))
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        y = checkpoint(block, X)
    assert seen == [(3, 4)]
    y.sum().backward()
    X.grad = W1.grad = W2.grad = None


def test_activations_die():
    kept = []

    def region(x):
        h = wt.sin(x)
        kept.append(weakref.ref(h))
        return wt.exp(h)

    y = checkpoint(region, X)
    gc.collect()
    assert kept[0]() is None
    y.sum().backward()
    gc.collect()
    assert all(ref() is None for ref in kept)
    X.grad = None


def test_graph_is_freed():
    y = checkpoint(block, leaf(3, 4))
    ref = weakref.ref(y)
    y.sum().backward()
    del y
    gc.collect()
    assert ref() is None
    W1.grad = W2.grad = None


def test_random_numbers_repeat():
    def noisy(x):
        return (wt.nn.functional.dropout(x, 0.5) * wt.rand_like(x)) ** 2

    wt.manual_seed(4)
    x = leaf(50)
    expected = wt.autograd.grad(noisy(x).sum(), x)[0]
    after = wt.get_rng_state()
    wt.manual_seed(4)
    loss = checkpoint(noisy, x).sum()
    wt.rand(7)
    state = wt.get_rng_state()
    got = wt.autograd.grad(loss, x)[0]
    assert (got == expected).all() and (got != 0).any()
    assert (wt.get_rng_state() == state).all(), "backward must not move the random stream"
    assert not (state == after).all()


def test_random_numbers_may_be_left_alone():
    x = leaf(50)
    wt.manual_seed(4)
    loss = checkpoint(lambda x: x**2 * wt.rand_like(x), x, preserve_rng_state=False).sum()
    before = wt.get_rng_state()
    loss.backward()
    assert not (wt.get_rng_state() == before).all()


def test_autocast_surrounds_the_second_run_too():
    seen = []

    def region(x):
        seen.append((x @ x.t()).dtype)
        return wt.exp(x @ W1.to(x.dtype))

    with wt.autocast("cpu", dtype=wt.bfloat16):
        loss = checkpoint(region, X.detach().to(wt.float32).requires_grad_()).sum()
    loss.backward()
    assert seen == [wt.bfloat16] * 2
    W1.grad = None


def test_contexts():
    seen = []

    @contextlib.contextmanager
    def marked(name):
        seen.append(name)
        yield

    y = checkpoint(block, X, context_fn=lambda: (marked("first"), marked("second")))
    assert seen == ["first"]
    y.sum().backward()
    assert seen == ["first", "second"]
    X.grad = W1.grad = W2.grad = None


def test_several_outputs_and_plain_arguments():
    def region(x, scale, flag=False):
        assert flag
        return wt.sin(x) * scale, "text", wt.cos(x)

    a, text, b = checkpoint(region, X, 2.0, flag=True)
    assert text == "text"
    grad = wt.autograd.grad(a.sum() + b.sum(), X)[0]
    np.testing.assert_allclose(grad.numpy(), 2 * np.cos(X.detach().numpy()) - np.sin(X.detach().numpy()))


def test_backward_inside_the_region():
    def region(x):
        y = wt.sin(x)
        inner = wt.autograd.grad(y.sum(), x, create_graph=True)[0]  # cos(x)
        return inner * y

    grad = wt.autograd.grad(checkpoint(region, X).sum(), X)[0]
    np.testing.assert_allclose(grad.numpy(), np.cos(2 * X.detach().numpy()), atol=1e-15)


def test_saved_tensors_keep_their_history_behind_hooks():
    """The hooks hand back tensors without history; the second gradient needs it."""
    x = leaf(5)
    with saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        y = (x * x) * (x * x)
    (first,) = wt.autograd.grad(y, x, wt.ones_like(y), create_graph=True)
    (second,) = wt.autograd.grad(first, x, wt.ones_like(y))
    np.testing.assert_allclose(second.numpy(), 12 * x.detach().numpy() ** 2, rtol=1e-14)


def test_error_in_the_region_comes_through():
    def region(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        checkpoint(region, X)
    assert wt.is_grad_enabled()


def changing(*functions):
    runs = iter(functions)
    return lambda x: next(runs)(x)


def test_region_that_saves_less_the_second_time():
    loss = checkpoint(changing(block, hidden), X).sum()
    with pytest.raises(CheckpointError, match=r"save \d tensors as the first did, got"):
        loss.backward()


def test_region_that_saves_another_shape():
    loss = checkpoint(changing(wt.exp, lambda x: wt.exp(x[:2])), X).sum()
    with pytest.raises(CheckpointError, match=r"saved tensor 0.*\(3, 4\).*\(2, 4\)"):
        loss.backward()


def test_input_changed_in_place():
    x = leaf(3, 4) * 1
    loss = checkpoint(block, x).sum()
    with wt.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an in-?place"):
        loss.backward()


def test_refused():
    with pytest.raises(ValueError, match="determinism_check"):
        checkpoint(block, X, determinism_check="x")
    with pytest.raises(NotImplementedError, match="debug=False"):
        checkpoint(block, X, debug=True)
    with pytest.raises(ValueError, match="Unexpected keyword arguments: y"):
        checkpoint_sequential([hidden], 1, X, y=1)
    for segments in (0, 3):
        with pytest.raises(ValueError, match="1 to 2 segments"):
            checkpoint_sequential([hidden, wt.exp], segments, X)


def test_sequential_module():
    wt.manual_seed(0)
    nn = wt.nn
    model = nn.Sequential(
        nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
    )
    x = wt.rand(5, 4, requires_grad=True)
    found = []
    for f in (model, lambda x: checkpoint_sequential(model, 3, x), lambda x: checkpoint(model, x)):
        wt.manual_seed(1)
        model.zero_grad()
        x.grad = None
        f(x).pow(2).sum().backward()
        found.append([p.grad.numpy().copy() for p in (x, *model.parameters())])
    for other in found[1:]:
        for a, b in zip(found[0], other):
            np.testing.assert_array_equal(a, b)


def test_states_of_devices_without_any():
    states = get_device_states(X, "no tensor")
    assert states == ([], [])
    set_device_states(*states)
