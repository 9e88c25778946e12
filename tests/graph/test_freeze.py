"""Frozen and optimised graphs against eager code: random programs, networks, and what torch.jit says."""

from __future__ import annotations

import io
import warnings
from types import ModuleType
from typing import Any

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape._graphs import GraphFunction, record
from warptape.export import Dim, export, load, save
from warptape.export.passes import optimize_pass
from warptape.models import Decoder, DecoderConfig

from .outcomes import differences, summary
from .random_programs import STEPS, World

# Steps that a graph does not record: reads, modes, hooks, backward passes; and what makes no op's result.
LEFT_OUT = {"read", "branch", "look", "without_grad", "backward", "second", "update", "tensor_hook", "retain"}
LEFT_OUT |= {"own_function", "checkpointed", "saved_hooks", "swap", "temporaries", "random_fill"}
BATCHES = 10


def same_again(world: World) -> None:
    """The same call twice, and once more after what may have been a write."""
    t, other = world.float(1), world.target()
    calls = [torch.exp, lambda x: x * 0.5, lambda x: x.reshape(-1), lambda x: x.sum(0), lambda x: x > 0]
    call = world.rng.choice(calls)
    world.add(call(t))
    world.add(call(call(t)) if call(t).dim() else call(t))
    if world.rng.random() < 0.4:
        other.mul_(0.5)
    world.add(call(t) * 2)


def nothing(world: World) -> None:
    """Calls that change nothing, on a result or on what is there."""
    t = world.float(1)
    t = t.tanh() if world.rng.random() < 0.6 else t
    for _ in range(world.rng.randrange(1, 4)):
        calls = [lambda x: x * 1, lambda x: x / 1, lambda x: x.neg().neg(), lambda x: x.transpose(0, -1)]
        calls += [lambda x: x + 0, lambda x: x - 0, lambda x: x + -0.0, lambda x: x.view(x.shape)]
        calls += [lambda x: x.to(x.dtype), lambda x: x.double().to(x.dtype), lambda x: x.clone()]
        calls += [lambda x: F.dropout(x, 0.5, False), lambda x: x.contiguous(), lambda x: x.unsqueeze(0)]
        calls += [lambda x: x.squeeze(0), lambda x: x.relu(), lambda x: x.expand(x.shape)]
        t = world.rng.choice(calls)(t)
        if world.rng.random() < 0.2:
            world.add(t)
    world.add(t)


def literal(world: World) -> None:
    """Calls on what is no input."""
    rt, t = torch, world.float(1)
    made = rt.arange(t.shape[-1], dtype=rt.float32) * 0.5
    made = made.exp() if world.rng.random() < 0.5 else rt.stack([made, world.fresh().sum() * made])[0]
    world.add(t * made)
    if world.rng.random() < 0.3:
        world.add(made)


def steps(seed: int, inputs: Any) -> list[Any]:
    """The tensors that a random program leaves, which begins with these."""
    world = World(torch, seed)
    world.leaves, world.buffers = list(inputs[:3]), list(inputs[3:])
    world.live = list(inputs)
    known = [(weight, step) for weight, step in STEPS if step.__name__ not in LEFT_OUT]
    known += [(15, same_again), (25, nothing), (8, literal)]
    for _ in range(12):
        step = world.rng.choices([s for _, s in known], [w for w, _ in known])[0]
        try:
            step(world)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if "graph" in str(error):
                raise
    return list(world.live)


def outcome(function: Any, seed: int, with_gradients: bool) -> Any:
    """Results, what became of the inputs and the generator, and gradients."""
    world = World(torch, seed)
    given = [*world.leaves, *world.buffers]
    torch.manual_seed(seed)
    results = function(*given)
    found = [summary(torch, [results, given]), torch.get_rng_state().tolist()]
    learns = [t for t in results if t.requires_grad and not t.is_leaf]
    if learns and with_gradients:
        weights = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape) for t in learns]
        try:
            grads = torch.autograd.grad(learns, world.leaves, weights, allow_unused=True)
            found.append(summary(torch, grads))
        except RuntimeError as error:  # a tensor that the tape keeps was changed in place
            found.append(str(error))
    return found


def check(seed: int) -> tuple[int, int]:
    """One program as a graph and as one after passes: how many calls these changed, and whether the graph
    does to the bit what eager code does (a slice of all, x[:], is no view in a graph)."""
    world = World(torch, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function = record(lambda *inputs: steps(seed, inputs), (*world.leaves, *world.buffers))
        except NotImplementedError:
            return 0, 0
        changed, as_eager = 0, 1
        for options in ({}, {"freeze": True, "gradients": False}):
            made, counts = function.optimised(**options)
            changed += sum(counts.values())
            want = outcome(function, seed, not options)
            as_eager &= want == outcome(lambda *inputs: steps(seed, inputs), seed, not options)
            lines = list(differences(outcome(made, seed, not options), want))
            assert not lines, f"program {seed}, {options}:\n" + "\n".join(lines[:6])
    return changed, as_eager


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch: int, request: pytest.FixtureRequest) -> None:
    count = len(range(batch, request.config.getoption("--programs"), BATCHES))
    seeds = range(batch, request.config.getoption("--programs"), BATCHES)
    changed, as_eager = (sum(part) for part in zip(*map(check, seeds), strict=True))
    assert changed > count and as_eager > count * 0.7
