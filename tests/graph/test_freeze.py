"""Frozen and optimised graphs against eager code: random programs, networks, and what torch.jit says."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape._graphs import record
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


class Steps(World):
    """What is drawn follows from the seed and the shapes alone: not from is_leaf, which is True of views that
    require a gradient while a graph is recorded. Of what is live nothing is a leaf that requires one."""

    def target(self) -> Any:
        """A floating tensor that may be written in place."""
        return self.float()


def steps(seed: int, inputs: Any) -> list[Any]:
    """The tensors that a random program leaves, which begins with these."""
    world = Steps(torch, seed)
    world.leaves, world.buffers = list(inputs[:3]), list(inputs[3:])
    world.live = [*(t * 1 for t in inputs[:3]), *inputs[3:]]
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


def facts(grad: Any) -> Any:
    return {} if grad is None else summary(torch, grad)


def outcome(function: Any, seed: int, with_gradients: bool) -> Any:
    """Results, what became of the inputs and the generator, and gradients."""
    world = World(torch, seed)
    given = [*world.leaves, *world.buffers]
    torch.manual_seed(seed)
    try:
        results = function(*given)
        found = [summary(torch, [results, given]), torch.get_rng_state().tolist()]
    except (
        RuntimeError
    ) as error:  # a part of a split was changed, or its tensor was: it says no more what it is
        return str(error)
    learns = [t for t in results if t.requires_grad and not t.is_leaf]
    if learns and with_gradients:
        weights = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape) for t in learns]
        try:
            grads = torch.autograd.grad(learns, world.leaves, weights, allow_unused=True)
            found.append([{k: v for k, v in g.items() if k != "is_view"} for g in map(facts, grads)])
        except RuntimeError as error:  # a tensor that the tape keeps was changed in place
            found.append(str(error))
    return found


def check(seed: int) -> tuple[int, int, int]:
    """One program as a graph and as one after passes: whether it was recorded, how many calls the passes
    changed, and whether the graph does to the bit what eager code does (a slice of all, x[:], is no view in a
    graph)."""
    world = World(torch, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function = record(lambda *inputs: steps(seed, inputs), (*world.leaves, *world.buffers))
        except NotImplementedError:
            return 0, 0, 0
        changed, as_eager = 0, 1
        for options in ({}, {"freeze": True, "gradients": False}):
            made, counts = function.optimised(**options)
            changed += sum(counts.values())
            want = outcome(function, seed, not options)
            as_eager &= want == outcome(lambda *inputs: steps(seed, inputs), seed, not options)
            lines = list(differences(outcome(made, seed, not options), want))
            assert not lines, f"program {seed}, {options}:\n" + "\n".join(lines[:6])
    return 1, changed, as_eager


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch: int, request: pytest.FixtureRequest) -> None:
    count = len(range(batch, request.config.getoption("--programs"), BATCHES))
    seeds = range(batch, request.config.getoption("--programs"), BATCHES)
    recorded, changed, as_eager = (sum(part) for part in zip(*map(check, seeds), strict=True))
    assert changed > count and recorded >= count * 0.8
    # Others write to a part of a split: eager code refuses that and goes on, a graph when it runs.
    assert as_eager >= recorded * 0.75


# ---- networks ---------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Two convolutions beside their input, as in ResNet-18: [N, I, H, W] -> [N, O, H / s, W / s]."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential()
        if stride != 1:
            self.down = nn.Sequential(nn.Conv2d(wide, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.down(x)
        return self.relu(y)


def resnet() -> nn.Module:
    """ResNet-18 with a quarter of the channels, its norms as after a training."""
    torch.manual_seed(0)
    widths = (16, 16, 32, 64, 128)
    layers: list[nn.Module] = [
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
    ]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for i in range(1, 5):
        layers += [Block(widths[i - 1], widths[i], 1 + (i > 1)), Block(widths[i], widths[i], 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(128, 10), nn.BatchNorm1d(10)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for norm in model.modules():
            if isinstance(norm, (nn.BatchNorm2d, nn.BatchNorm1d)):
                norm.running_mean.normal_(0, 0.2), norm.running_var.uniform_(0.5, 2)
                norm.weight.uniform_(0.5, 1.5), norm.bias.normal_(0, 0.2)
    return model.eval()


def through_a_file(made: Any) -> Any:
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    return torch.jit.load(file)


def test_resnet() -> None:
    model, x = resnet(), torch.randn(2, 3, 64, 64)
    traced = torch.jit.trace(model, x, check_trace=False)
    with torch.no_grad():
        want = model(x)
        exact = torch.jit.freeze(traced, optimize_numerics=False)
        folded = torch.jit.freeze(traced)
        assert exact.pass_counts["fold_frozen_conv_bn"] == 0
        assert folded.pass_counts["fold_frozen_conv_bn"] == 21  # with the one of the linear layer
        assert "batch_norm" in exact.graph and "batch_norm" not in folded.graph
        for made in (exact, through_a_file(exact)):
            assert torch.equal(made(x), want)
        for made in (folded, through_a_file(folded), torch.jit.optimize_for_inference(traced)):
            torch.testing.assert_close(made(x), want, rtol=1e-5, atol=1e-5)
        torch.jit.run_frozen_optimizations(exact)
        assert exact.pass_counts["fold_frozen_conv_bn"] == 21 and torch.equal(exact(x), folded(x))
    assert torch.equal(traced(x), want)  # it stays as it was, with its parameters
    assert traced.state_dict().keys() == model.state_dict().keys()


def test_decoder() -> None:
    """A GPT as an exported program: passes keep logits and, without `freeze`, gradients to the bit."""
    torch.manual_seed(0)
    config = DecoderConfig.from_hf(
        {"model_type": "gpt2", "vocab_size": 61, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 3}
    )
    model = Decoder(config).eval()
    ids = torch.randint(0, 61, (2, 8))
    time = Dim("time", min=2, max=32)
    program = export(model, (ids,), dynamic_shapes=({1: time},))
    kept, frozen = optimize_pass(program), optimize_pass(program, freeze=True)
    assert sum(kept.pass_counts.values()) > 0 and sum(frozen.pass_counts.values()) > 0
    again = io.BytesIO()
    save(frozen, again)
    again.seek(0)
    for length in (8, 3, 17):
        ids = torch.randint(0, 61, (2, length))
        grads = []
        for module in (program.module(), kept.module()):
            module.zero_grad()
            module(ids).float().square().mean().backward()
            grads.append([p.grad.clone() for p in module.parameters()])
        assert len(grads[0]) > 10 and all(torch.equal(*pair) for pair in zip(*grads, strict=True))
        with torch.no_grad():
            for made in (kept.module(), frozen.module(), load(again).module()):
                assert torch.equal(made(ids), model(ids))
            again.seek(0)
    assert not list(frozen.module().parameters()) and not frozen.module().state_dict()


def test_norms_that_stay() -> None:
    """Batch norm that a convolution cannot take over: in training, or where others read what it reads."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            return self.norm(y) + y

    model, x = Twice().eval(), torch.randn(2, 3, 8, 8)
    frozen = torch.jit.freeze(torch.jit.trace(model, x, check_trace=False))
    assert frozen.pass_counts["fold_frozen_conv_bn"] == 0 and torch.equal(frozen(x), model(x))
    training = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    function = record(training, (x,))
    made, counts = function.optimised(freeze=True, gradients=False, fold_frozen_conv_bn=True)
    assert counts["fold_frozen_conv_bn"] == 0 and "batch_norm" in made.graph.text()


# ---- what torch.jit says -----------------------------------------------------------------------------------


def test_scripted_modules_are_recorded_in_the_first_call() -> None:
    model, x = resnet(), torch.randn(1, 3, 32, 32)
    frozen = torch.jit.freeze(torch.jit.script(model))
    assert frozen.pass_counts == {}
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), model(x), rtol=1e-5, atol=1e-5)
    assert frozen.pass_counts["fold_frozen_conv_bn"] == 21 and not list(frozen.parameters())


def test_attributes_and_errors() -> None:
    class Named(nn.Linear):
        label = "a linear layer"

        def twice(self) -> int:
            return 2 * self.in_features

    scripted = torch.jit.script(Named(3, 2).eval())
    frozen = torch.jit.freeze(scripted, preserved_attrs=["label", "twice"])
    assert frozen.label == "a linear layer" and frozen.twice() == 6 and not frozen.training
    assert torch.jit.optimize_for_inference(frozen) is frozen
    with pytest.raises(NotImplementedError, match="weight cannot stay"):
        torch.jit.freeze(scripted, preserved_attrs=["weight"])
    with pytest.raises(AttributeError):
        torch.jit.freeze(scripted, preserved_attrs=["nothing"])
    for call in (torch.jit.freeze, torch.jit.optimize_for_inference):
        with pytest.raises(RuntimeError, match="expects a ScriptModule as input"):
            call(nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="only implemented for modules in eval mode"):
        torch.jit.freeze(scripted.train())
    assert torch.jit.optimize_for_inference(scripted)(torch.ones(1, 3)).shape == (1, 2)
    assert torch.jit.run_frozen_optimizations(scripted) is None
    with pytest.raises(TypeError, match="no pass or option fold"):
        optimize_pass(export(nn.Linear(3, 2), (torch.ones(1, 3),)), fold=True)


def test_results_are_never_constants() -> None:
    """A caller may change what it gets: the next run gives the same."""
    frozen = torch.jit.freeze(torch.jit.trace(nn.Linear(2, 2).eval(), torch.ones(1, 2), check_trace=False))
    shape = record(lambda x: (torch.arange(3) * 2, x), (torch.ones(1),))
    made, _ = shape.optimised(freeze=True, gradients=False)
    first = made(torch.ones(1))[0]
    first.zero_()
    assert made(torch.ones(1))[0].tolist() == [0, 2, 4]
    before = frozen(torch.ones(1, 2)).detach().clone()
    frozen(torch.ones(1, 2)).detach().zero_()
    assert torch.equal(frozen(torch.ones(1, 2)), before)
