"""Compiled forwards whose loss and backward are outside: what backward reads is computed when it does, in
less memory, and equal to eager code to the bit, whatever happens between the two."""

from __future__ import annotations

import copy
import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape.utils.checkpoint import checkpoint

from .test_compile import peak_of
from .test_rows import same


class Block(nn.Module):
    """A residual layer: norm, bias, activation and sum are cheap to compute again."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down, self.dropout = nn.Linear(4 * width, width), nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        return x + self.down(self.dropout(F.gelu(self.up(self.norm(x)))))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.gate = nn.RMSNorm(width), nn.Linear(width, 2 * width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def stack(make: Callable[[], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(make() for _ in range(3)))


MODELS = {
    "gelu": lambda: stack(lambda: Block(32)),
    "dropout": lambda: stack(lambda: Block(32, 0.1)),
    "gated": lambda: stack(lambda: Gated(32)),
    "convolutions": lambda: stack(
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU())
    ),
}


def compiled(f: Any) -> Any:
    out = torch.compile(f)
    region = region_of(out)
    region.adaptive, region.least_recomputed_bytes = False, 1
    return out


def region_of(f: Any) -> Any:
    return (f.forward if isinstance(f, nn.Module) else f).region


def promised(f: Any) -> int:
    return f.explain().rematerialized


def both(work: Callable[[Callable[[Any], Any]], Any], least: int = 1) -> list[Any]:
    """What work(compile) gives with compiled functions, which have to leave values to backward, after it was
    compared with eager code's."""
    made: list[Any] = []

    def compile_(f: Any) -> Any:
        made.append(compiled(f))
        return made[-1]

    torch.manual_seed(1)
    want = work(lambda f: f)
    torch.manual_seed(1)
    got = work(compile_)
    assert len(want) == len(got) > 0
    for a, b in zip(got, want, strict=True):
        assert same(a, b) if isinstance(b, torch.Tensor) else a == b
    assert sum(map(promised, made)) >= least
    return made


def steps(model: Any, forward: Any, x: Any, count: int = 5) -> list[Any]:
    """Losses and gradients of training steps."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(count):
        loss = forward(x).square().mean()
        loss.backward()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return seen


def input_for(name: str) -> Any:
    torch.manual_seed(3)
    return torch.randn(2, 4, 12, 12) if name == "convolutions" else torch.randn(48, 32)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("autocast", [False, True])
def test_steps_are_equal_to_the_bit(name: str, autocast: bool) -> None:
    def work(compile_: Any) -> Any:
        model = MODELS[name]()
        forward = compile_(model)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return [t.float() for t in steps(model, forward, input_for(name))]

    both(work)


def test_less_memory() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(Block(64) for _ in range(4))), torch.randn(512, 64)

    def step(forward: Any) -> None:
        forward(x).square().mean().backward()
        model.zero_grad()

    step(model)
    eager = peak_of(lambda: step(model))
    forward = torch.compile(model)
    region_of(forward).adaptive = False
    step(forward)
    step(forward)
    assert peak_of(lambda: step(forward)) < 0.75 * eager
    region_of(forward).rematerializes = False
    assert peak_of(lambda: step(forward)) > 0.85 * eager


def trained(f: Any, *args: Any) -> None:
    """Until the program is known of which backward reads the values."""
    for _ in range(3):
        f(*args).sum().backward()
    for t in args:
        t.grad = None


def chain(x: Any, w: Any) -> Any:
    """Backward reads the sum, which is computed again from tensors that eager code does not save, and its
    GELU."""
    y = F.gelu(x + w)
    return (y @ y.t()) * 0.5


def leaves() -> tuple[Any, Any]:
    torch.manual_seed(5)
    return torch.randn(24, 24, requires_grad=True), torch.randn(24, requires_grad=True)


def zero(x: Any, w: Any) -> None:
    with torch.no_grad():
        x.zero_()


def zero_data(x: Any, w: Any) -> None:
    x.data.zero_()


def write_by_numpy(x: Any, w: Any) -> None:
    x.detach().numpy()[...] = 7


def write_by_dlpack(x: Any, w: Any) -> None:
    np.from_dlpack(x.detach())
    torch.from_dlpack(x.detach()).mul_(2)


def optimize(x: Any, w: Any) -> None:
    x.grad, w.grad = torch.ones_like(x), torch.ones_like(w)
    torch.optim.AdamW([x, w], lr=0.5).step()
    x.grad = w.grad = None


def copy_view(x: Any, w: Any) -> None:
    x.detach()[3:5].copy_(torch.ones(2, 24))


def resize(x: Any, w: Any) -> None:
    w.data.untyped_storage().resize_(0)


def in_region(x: Any, w: Any) -> None:
    def change() -> None:
        with torch.no_grad():
            x.add_(1).mul_(w)

    compiled(change)()


def other_memory(x: Any, w: Any) -> None:
    x.data = torch.ones_like(x)


def batch_statistics(x: Any, w: Any) -> None:
    F.batch_norm(torch.ones(4, 24), w.data, torch.ones(24), training=True)


CHANGES = [
    zero,
    zero_data,
    write_by_numpy,
    write_by_dlpack,
    optimize,
    copy_view,
    in_region,
    other_memory,
    resize,
    batch_statistics,
]


@pytest.mark.parametrize("change", CHANGES)
def test_inputs_of_what_is_computed_again_change(change: Any) -> None:
    def work(compile_: Any) -> Any:
        x, w = leaves()
        f = compile_(chain)
        trained(f, x, w)
        out = f(x, w)
        change(x, w)
        out.sum().backward()
        return [out.detach(), x.grad, w.grad]

    both(work)


@pytest.mark.parametrize("shared", [False, True])
def test_memory_that_others_see_is_not_read_later(shared: bool) -> None:
    """What processes share may be written at any time, too; a compiled function does not wait for that."""

    def work(compile_: Any) -> Any:
        x, (_, w) = torch.ones(24, 24), leaves()
        if shared:
            x.share_memory_()
        array = x.numpy()
        f = compile_(chain)
        trained(f, x, w)
        out = f(x, w)
        array[...] = 3
        out.sum().backward()
        return [out.detach(), w.grad]

    both(work, 0)


def test_gradients_that_are_read_are_added_to() -> None:
    def work(compile_: Any) -> Any:
        x, w = leaves()
        f = compile_(chain)
        trained(f, x, w)
        q = torch.zeros(24, 24, requires_grad=True)
        q.grad = x.detach().clone()
        out = f(q.grad, w)
        (q * 3).sum().backward()
        out.sum().backward()
        return [out.detach(), w.grad, q.grad]

    both(work)


def test_a_saved_value_that_changes_is_an_error() -> None:
    def work(compile_: Any) -> Any:
        x, w = leaves()
        kept: list[Any] = []

        def f(x: Any, w: Any) -> Any:
            y = F.gelu(x + w)
            kept[:] = [y]
            return y @ y.t()

        g = compile_(f)
        trained(g, x, w)
        out = g(x, w)
        with torch.no_grad():
            kept[0].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            out.sum().backward()
        return [str(error.value), kept[0].detach()]

    both(work)


def test_backward_twice_and_of_second_order() -> None:
    def work(compile_: Any) -> Any:
        x, w = leaves()
        f = compile_(chain)
        trained(f, x, w)
        out = f(x, w).sum()
        out.backward(retain_graph=True)
        seen = [x.grad.clone()]
        out.backward()
        seen += [x.grad.clone(), w.grad.clone()]
        out = f(x, w).square().sum()
        (first,) = torch.autograd.grad(out, x, create_graph=True)
        first.square().sum().backward()
        return [*seen, first.detach(), x.grad, w.grad]

    both(work)


def test_what_is_saved_can_be_looked_at() -> None:
    def work(compile_: Any) -> Any:
        x, w = leaves()
        f = compile_(chain)
        trained(f, x, w)
        out = f(x, w)
        product = out.grad_fn.next_functions[0][0]
        saved = (*product.saved_tensors, *product.next_functions[0][0].saved_tensors)
        seen = [t.detach().clone() for t in saved]
        out.sum().backward()
        return [*seen, x.grad, w.grad]

    both(work)


def test_part_of_a_backward_and_other_threads() -> None:
    def work(compile_: Any) -> Any:
        x, w = leaves()
        f = compile_(chain)
        trained(f, x, w)
        out = f(x, w).sum()
        (of_w,) = torch.autograd.grad(out, w, retain_graph=True)
        thread = threading.Thread(target=out.backward)
        thread.start()
        thread.join()
        return [of_w, x.grad, w.grad]

    both(work)


def test_hooks_scaling_and_checkpoints() -> None:
    def work(compile_: Any) -> Any:
        model, seen = MODELS["gelu"](), []
        f, scaler = compile_(model), torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), input_for("gelu")
        model[1].register_full_backward_hook(lambda m, i, o: seen.append(o[0].clone()))
        for k in range(5):
            x.requires_grad_()
            y = checkpoint(f, x, use_reentrant=bool(k % 2)) if k > 2 else f(x)
            scaler.scale(y.square().mean()).backward()
            seen += [p.grad.clone() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return seen

    both(work)


def test_values_that_others_read_are_kept() -> None:
    """They cost one call in which they are computed twice."""
    x, w = leaves()

    def f(x: Any, w: Any) -> Any:
        y = F.gelu(x + w)
        return y, y @ y.t()

    g, counts = compiled(f), []
    for _ in range(5):
        y, z = g(x, w)
        y.sum().item()
        z.sum().backward()
        counts.append(promised(g))
    assert counts == [0, counts[1], *[counts[2]] * 3] and counts[2] < counts[1]


def test_without_backward_memory_is_given_back() -> None:
    x, w = leaves()
    f = compiled(chain)
    trained(f, x, w)
    gc.collect()
    held = torch._C._memory_stats()["allocated_bytes"]
    for _ in range(3):
        out = f(x, w)
        assert torch._C._memory_stats()["allocated_bytes"] > held
        del out
        assert torch._C._memory_stats()["allocated_bytes"] == held
    with torch.no_grad():
        want, runs = chain(x, w), promised(f)
        assert same(f(x, w), want) and promised(f) == runs
    f(x, w).sum().backward()


def test_a_copy_of_a_promised_value() -> None:
    def work(compile_: Any) -> Any:
        x, w = leaves()
        f = compile_(chain)
        trained(f, x, w)
        out = f(x, w)
        kept = out.grad_fn.next_functions[0][0].saved_tensors[0].detach()
        twin = copy.deepcopy(kept)
        del out
        return [kept, twin]

    both(work)


# ---- random programs ---------------------------------------------------------------------------------------


def drawn(rng: random.Random, x: Any, weights: list[Any]) -> list[Any]:
    """A random network of elementwise ops, rows and products."""
    pool = [x, x @ weights[0], weights[1] * x]
    for _ in range(rng.randrange(4, 14)):
        a, b, kind = rng.choice(pool), rng.choice(pool), rng.randrange(12)
        if kind < 4:
            pool.append(rng.choice((torch.tanh, F.gelu, F.silu, torch.sigmoid, torch.relu, torch.square))(a))
        elif kind < 7:
            pool.append(rng.choice((torch.add, torch.mul, torch.sub, torch.maximum))(a, b))
        elif kind < 9:
            pool.append(a @ rng.choice(weights) / 16)
        elif kind == 9:
            pool.append(
                rng.choice((F.layer_norm(a, (32,)), a.softmax(-1), F.layer_norm(a, (32,), b[0], b[1])))
            )
        elif kind == 10:
            pool.append(F.dropout(a, 0.25) if rng.random() < 0.5 else a.bfloat16().float() * 2)
        else:
            pool.append(rng.choice((a.t().contiguous(), a[:, ::2].repeat(1, 2), a.clone().add_(1))))
    return [pool[-1], rng.choice(pool), rng.choice(pool)]


def disturb(rng: random.Random, x: Any, weights: list[Any], outputs: list[Any], seen: list[Any]) -> None:
    """What a program may do between forward and backward."""
    for _ in range(rng.randrange(3)):
        t = rng.choice([x, *weights, *outputs])
        kind = rng.randrange(5)
        if kind == 0:
            seen.append(t.detach().clone())
        elif kind == 1:
            t.data.mul_(0.5)
        elif kind == 2:
            with torch.no_grad():
                t.add_(0.125)
        elif kind == 3:
            seen.append(t.detach().sum().item())
        else:
            gc.collect()


def random_training(seed: int, compile_: Any) -> list[Any]:
    torch.manual_seed(seed)
    x = torch.randn(32, 32)
    weights = [torch.randn(32, 32, requires_grad=True) for _ in range(3)]
    f = compile_(lambda k, x: drawn(random.Random(k), x, weights))
    seen: list[Any] = []
    for call in range(6):
        rng = random.Random(1000 * seed + call)
        outputs = f(seed if call % 3 else seed + 1000000, x)
        try:
            if call > 1:
                disturb(rng, x, weights, outputs, seen)
            loss = sum(F.gelu(o).mean() for o in outputs)
            loss.backward(retain_graph=rng.random() < 0.3)
            seen.append(loss.detach())
        except RuntimeError as error:
            seen.append(str(error))
        seen += [o.detach().clone() for o in outputs]
        seen += [w.grad.clone() for w in weights if w.grad is not None]
    return seen


@pytest.mark.parametrize("batch", range(10))
def test_random_programs(batch: int, request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--programs") // 4  # each runs several times
    made = [f for seed in range(batch, count, 10) for f in both(lambda c, s=seed: random_training(s, c), 0)]
    assert sum(map(promised, made)) > 0
