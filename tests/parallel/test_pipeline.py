"""Pipelines on ranks that are threads, and on two processes, against the same training in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pipeline_models
import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from launched import launch
from pipeline_models import (
    BATCH,
    KINDS,
    MODELS,
    WIDTH,
    Found,
    M,
    assert_equal_training,
    build,
    draw,
    make_schedule,
    mlp,
    simulate,
    train_in_parts,
    train_plainly,
)
from warptape import nn
from warptape.parallel.pipeline import rng


@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", MODELS)
def test_equals_one_process(kind: str, ranks: int, schedule: str) -> None:
    for optimizer in ("sgd", "adamw") if kind in ("mlp", "tied_transformer") else ("adamw",):
        found = simulate(ranks, train_in_parts, kind, optimizer, schedule)
        assert_equal_training(found, train_plainly(kind, optimizer))


def test_one_rank_is_a_pipeline_too() -> None:
    for schedule in KINDS:
        found = simulate(1, train_in_parts, "mlp", "sgd", schedule)
        assert_equal_training(found, train_plainly("mlp", "sgd"))


def test_a_wrong_scale_is_found() -> None:
    def body() -> Found:
        net, loss_fn = build("mlp")
        runner = make_schedule("1f1b", net, loss=loss_fn, scale_grads=False)
        x, y = draw("mlp")[0]
        losses: list[wt.Tensor] = []
        runner.step(*x, target=y, losses=losses)
        named = dict(runner.stages[dist.get_rank()].submod.named_parameters())
        return [sum(p.item() for p in losses) / M] if losses else [], [{n: p.grad for n, p in named.items()}]

    losses, gradients = train_plainly("mlp", "sgd")
    with pytest.raises(AssertionError):
        assert_equal_training(simulate(2, body), (losses[:1], gradients[:1]))


@pytest.mark.parametrize("planted", ["the whole batch's part", "calls of this stage alone"])
def test_dropout_of_wrong_numbers_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if planted == "the whole batch's part":
        monkeypatch.setattr(rng, "slice_of_batch", lambda j, n: nullcontext())
    else:
        monkeypatch.setattr(rng, "set_calls", lambda generator, calls: None)
    found = simulate(2, train_in_parts, "dropping", "sgd", "1f1b")
    with pytest.raises(AssertionError):
        assert_equal_training(found, train_plainly("dropping", "sgd"))


def test_losses_that_are_sums_and_steps_that_accumulate() -> None:
    """Two steps without zero_grad, of a tied model, with a loss that sums: as one process's two backwards."""

    def total(out: wt.Tensor, target: wt.Tensor) -> wt.Tensor:
        return F.cross_entropy(out.flatten(0, 1), target.flatten(), reduction="sum")

    batches = draw("tied_transformer")[:2]

    def body() -> dict[str, wt.Tensor]:
        runner = make_schedule("zb_h1", build("tied_transformer")[0], loss=total, scale_grads=False)
        for x, y in batches:
            runner.step(*x, target=y)
        return {n: p.grad for n, p in runner.stages[dist.get_rank()].submod.named_parameters()}

    net, _ = build("tied_transformer")
    for x, y in batches:
        total(net(*x), y).backward()
    found, seen = simulate(2, body), set()
    for name, p in net.named_parameters(remove_duplicate=False):
        for part in found:
            if name in part:
                seen.add(name)
                assert (part[name] - p.grad).norm() <= 1e-10 * p.grad.norm()
    assert {"0.weight", "7.weight"} <= seen


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_batches_that_are_cut_already(schedule: str) -> None:
    """Each micro-batch given by itself, and what goes with the loss: as the whole batch cut here."""
    (x,), y = draw("mlp")[0]

    def scaled(out: wt.Tensor, target: wt.Tensor, by: float = 1.0) -> wt.Tensor:
        return F.mse_loss(out, target) * by

    def body() -> Any:
        found = []
        for cut in (False, True):
            runner = make_schedule(schedule, build("mlp")[0], loss=scaled)
            losses: list[wt.Tensor] = []
            if cut:
                parts = {"arg_mbs": [(part,) for part in x.chunk(4)], "target_mbs": list(y.chunk(4))}
                more = {"kwarg_mbs": [{}] * 4, "losses": losses, "return_outputs": False}
                runner.step(**parts, **more, loss_kwargs={"by": 3.0})
                evaluated = runner.eval(**parts, loss_kwargs={"by": 3.0})
                assert (evaluated is None) == (dist.get_rank() == 0)
                with pytest.raises(ValueError, match="expected 4 micro-batches in target_mbs, got 3"):
                    runner.step(**(parts | {"target_mbs": list(y.chunk(4))[:3]}))
            else:
                runner.step(x, target=y, losses=losses, loss_kwargs={"by": 3.0})
            gradients = [p.grad for stage in runner.stages.values() for p in stage.submod.parameters()]
            found.append([*losses, *gradients])
        return all((a - b).abs().max() < 1e-12 for a, b in zip(*found, strict=True))

    assert simulate(2, body) == [True, True]


def test_outputs_and_evaluation() -> None:
    x = draw("mlp")[0][0][0]

    def body(schedule: str) -> Any:
        runner = make_schedule(schedule, build("mlp")[0])
        losses: list[wt.Tensor] = []
        first = runner.eval(x, target=x, losses=losses)
        trained = runner.step(x, target=x)
        again = runner.eval(x)
        return first, trained, again, losses

    plain = build("mlp")[0](x).detach()
    for schedule in KINDS:
        *others, last = sorted(simulate(2, body, schedule), key=lambda found: found[0] is not None)
        assert all(each[:3] == (None, None, None) for each in others)
        for out in last[:3]:
            assert (out - plain).norm() <= 1e-12 * plain.norm() and not out.requires_grad
        assert len(last[3]) == M


def test_zero_bubble_runs_each_node_once_for_each_of_its_gradients() -> None:
    """Hooks on the linear layers' weights and inputs: one call each, the weights' after the inputs'."""

    def body() -> list[str]:
        net, _ = build("mlp")
        runner = make_schedule("zb_h1", net, m=2)
        seen: list[str] = []
        lock = threading.Lock()

        def note(what: str) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                with lock:
                    seen.append(what)

            return hook

        stage = runner.stages[dist.get_rank()].submod
        layer = next(iter(stage.children()))
        layer.weight.register_hook(note("weight"))
        layer.register_forward_hook(lambda m, a, out: out.register_hook(note("output")) and None)
        x = draw("mlp")[0][0][0]
        runner.step(x, target=x)
        return seen

    first, last = simulate(2, body)
    assert sorted(first) == sorted(last) == ["output"] * 2 + ["weight"] * 2
    assert last == ["output", "output", "weight", "weight"]  # rank 1 leaves one weight gradient for later


def test_two_processes_equal_one() -> None:
    code, out, err = launch("--nproc-per-node", 2, pipeline_models.__file__, OMP_NUM_THREADS="1")
    assert code == 0, err
    for rank in range(2):
        assert f"rank {rank}: {len(KINDS)} schedules equal one process" in out


def test_batches_of_other_shapes_and_layers_that_thaw() -> None:
    """What ranks know of each other's shapes and gradients is of the batch at hand."""
    g = wt.Generator().manual_seed(1)
    sizes = [16, 8, 8, 24, 16]
    batches = [wt.randn(n, WIDTH, generator=g, dtype=wt.float64) for n in sizes]

    def thaw(net: nn.Module, step: int) -> None:
        for at in range(3):
            net.get_submodule(str(at)).requires_grad_(step >= 2)

    def body(schedule: str) -> list[dict[str, wt.Tensor]]:
        net, _ = build("mlp")
        runner, out = make_schedule(schedule, net), []
        for step, x in enumerate(batches):
            thaw(net, step)
            net.zero_grad()
            runner.step(x, target=x)
            named = [p for s in runner.stages.values() for p in s.submod.named_parameters()]
            out.append({n: p.grad for n, p in named if p.grad is not None})
        return out

    net, _ = build("mlp")
    expected = []
    for step, x in enumerate(batches):
        thaw(net, step)
        net.zero_grad()
        F.mse_loss(net(x), x).backward()
        expected.append({n: p.grad for n, p in net.named_parameters() if p.grad is not None})
    for schedule in KINDS:
        found = simulate(2, body, schedule)
        for step, wanted in enumerate(expected):
            merged = found[0][step] | found[1][step]
            assert set(merged) == set(wanted)
            for name, gradient in merged.items():
                assert (gradient - wanted[name]).norm() <= 1e-10 * wanted[name].norm(), (schedule, step, name)


def test_keyword_arguments_go_to_every_stage_in_parts() -> None:
    class Shift(nn.Linear):
        def forward(self, x: wt.Tensor, shift: wt.Tensor, factor: float) -> wt.Tensor:
            return super().forward(x) + shift * factor

    x = wt.randn(BATCH, WIDTH)

    def body() -> Any:
        wt.manual_seed(0)
        net = [Shift(WIDTH, WIDTH) for _ in range(4)]
        runner = make_schedule("1f1b", net)
        out = runner.step(x, target=x, shift=x[:, :1], factor=3.0)
        assert runner.step(x, target=x, shift=x[:, :1], factor=3.0, return_outputs=False) is None
        plain = x
        for layer in net:
            plain = layer(plain, x[:, :1], 3.0)
        return out if out is None else (out - plain).abs().max().item()

    assert simulate(2, body) == [None, pytest.approx(0, abs=1e-5)]


def test_a_layer_used_twice_and_one_without_parameters() -> None:
    x = draw("mlp")[0][0][0]

    def layers() -> list[nn.Module]:
        wt.manual_seed(0)
        twice = nn.Linear(WIDTH, WIDTH).double()
        return [twice, nn.Linear(WIDTH, WIDTH).double(), twice, nn.Tanh()]

    def body() -> list[wt.Tensor]:
        runner = make_schedule("zb_h1", layers(), balance=[1, 1, 1, 1])
        runner.step(x, target=x)
        return [p.grad for p in runner.stages[dist.get_rank()].submod.parameters()]

    plain = layers()
    F.mse_loss(nn.Sequential(*plain)(x), x).backward()
    first, second, third, last = simulate(4, body)
    assert last == []
    for got, layer in ((first, plain[0]), (second, plain[1]), (third, plain[0])):
        for a, p in zip(got, layer.parameters(), strict=True):
            assert (a - p.grad).norm() <= 1e-10 * p.grad.norm()


@pytest.mark.parametrize("schedule", KINDS)
def test_a_rank_keeps_what_its_timeline_says(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> tuple[int, int]:
        runner, most = make_schedule(schedule, mlp(), m=16), 0
        plain = runner._do

        def count(*args: Any) -> None:
            nonlocal most
            plain(*args)
            most = max(most, sum(len(s.outputs) + len(s.rests) for s in runner.stages.values()))

        monkeypatch.setattr(runner, "_do", count)
        x = wt.zeros(16, WIDTH)
        runner.step(x, target=x)
        return most, runner.ideal.held[dist.get_rank()]

    for most, ideal in simulate(4, body):
        assert most == ideal
