"""The parameter server: every mode and placement against one process, staleness counted, and ends that come
too early."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from launched import launch
from warptape import nn, optim
from warptape.parallel import ParameterServer
from warptape.parallel.parameter_server import MODES, PLACEMENTS

STEPS, ROWS = 6, 4  # rows of a worker's batch
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
}


def net() -> nn.Module:
    wt.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(wt.float64)
    model[2].bias.requires_grad_(False)
    return model


def batch(step: int, worker: int) -> tuple[wt.Tensor, wt.Tensor]:
    generator = wt.Generator().manual_seed(100 * step + worker)
    x = wt.randn(ROWS, 5, generator=generator, dtype=wt.float64)
    return x, wt.randn(ROWS, 3, generator=generator, dtype=wt.float64)


def backward(model: nn.Module, batches: list[tuple[wt.Tensor, wt.Tensor]]) -> None:
    x, y = (wt.cat(part) for part in zip(*batches, strict=True))
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()


def one_process(workers: int, make: Any) -> list[wt.Tensor]:
    """Parameters after STEPS with the batches of all workers as one."""
    model = net()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make(trained)
    for step in range(STEPS):
        backward(model, [batch(step, w) for w in range(workers)])
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def largest_difference(a: list[wt.Tensor], b: list[wt.Tensor]) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))


def train(make: Any, steps: int = STEPS, **how: Any) -> tuple[list[wt.Tensor], dict[str, Any]]:
    model = net()
    if dist.get_rank():  # the first server's values are the ones that count
        with wt.no_grad():
            model[0].weight.mul_(3)
    server = ParameterServer(model, make, **how)
    if dist.get_rank() in server.workers:
        for step in range(steps):
            backward(model, [batch(step, server.workers.index(dist.get_rank()))])
            server.step()
    report = server.finish()
    return [p.detach().clone() for p in model.parameters()], report


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("mode", ["synchronous", "bounded"])
def test_synchronous_and_bound_zero_are_one_process(name: str, placement: str, mode: str) -> None:
    make, ranks = OPTIMIZERS[name], 3
    workers = ranks - (placement == "host")
    results = dist.simulate(ranks, lambda: train(make, placement=placement, mode=mode))
    alone = one_process(workers, make)
    assert largest_difference(alone, [p.detach() for p in net().parameters()]) > 1e-2
    for parameters, _ in results:
        assert largest_difference(parameters, alone) < 1e-10
    versions = [report["version"] for _, report in results]
    assert versions == ([STEPS] * 3 if placement == "sharded" else [STEPS, 0, 0])
    assert all(set(report["staleness"]) <= {0} for _, report in results)
    elements = sum(p.numel() for p in net().parameters() if p.requires_grad)
    away = (ranks - 1) * elements * 8 * STEPS  # every worker's, but what stays on its own rank
    for way in ("received", "sent"):
        assert sum(report[way] for _, report in results) == away


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("mode", MODES)
def test_tensors_larger_than_a_send_copies_do_not_wait_in_a_circle(mode: str, placement: str) -> None:
    ranks = 4

    def rank() -> tuple[int, float]:
        wt.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(300, 300) for _ in range(ranks)])  # 360 kB each
        server = ParameterServer(model, OPTIMIZERS["sgd"], placement=placement, mode=mode)
        for _ in range(4 if dist.get_rank() in server.workers else 0):
            model.zero_grad()
            model(wt.ones(1, 300)).square().mean().backward()
            server.step()
        return server.finish()["version"], model[0].weight.sum().item()

    results = dist.simulate(ranks, rank, timeout=timedelta(seconds=20))
    workers = ranks - (placement == "host")
    assert results[0][0] == 4 * (workers if mode == "asynchronous" else 1)
    assert len({total for _, total in results}) == 1


def test_one_rank_alone_serves_itself() -> None:
    make = OPTIMIZERS["sgd"]
    ((parameters, report),) = dist.simulate(1, lambda: train(make, placement="rank0"))
    assert largest_difference(parameters, one_process(1, make)) < 1e-12
    assert report["received"] == 0 and report["version"] == STEPS


def test_a_parameter_without_gradient_is_left_as_the_optimizer_leaves_it() -> None:
    def rank() -> float:
        used, unused = nn.Linear(2, 2), nn.Linear(2, 2)
        model = nn.ModuleList([used, unused])
        server = ParameterServer(model, lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.5), placement="rank0")
        before = unused.weight.detach().clone()
        used(wt.ones(1, 2)).sum().backward()
        server.step()
        server.finish()
        return (unused.weight - before).abs().max().item()

    assert dist.simulate(2, rank) == [0.0, 0.0]  # without decay


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_staleness_never_exceeds_the_bound(bound: int, placement: str) -> None:
    """The slow worker does not push before the others stand still; how far they came is counted."""
    ranks, steps = 4, 8
    slow = ranks - 1
    made = [0] * ranks
    still = threading.Barrier(ranks if placement != "host" else ranks - 1)

    def rank() -> tuple[dict[str, Any], list[int]]:
        me = dist.get_rank()
        model = net()
        server = ParameterServer(
            model, OPTIMIZERS["sgd"], placement=placement, mode="bounded", staleness=bound
        )
        seen: list[int] = []
        if me in server.workers:
            for step in range(steps):
                if me == slow and step == 0:
                    fast = [w for w in server.workers if w != slow]
                    limit = time.monotonic() + 10
                    while min(made[w] for w in fast) < bound and time.monotonic() < limit:
                        time.sleep(0.005)
                    time.sleep(0.05)  # who may run further would do so now
                    seen = [made[w] for w in fast]
                backward(model, [batch(step, me)])
                server.step()
                made[me] += 1
            still.wait(10)
        return server.finish(), seen

    results = dist.simulate(ranks, rank, timeout=timedelta(seconds=30))
    assert set(results[slow][1]) == {bound}  # as far as the bound lets them, and no further
    counted = [report["staleness"] for report, _ in results if report["version"]]
    assert len(counted) == (3 if placement == "sharded" else 1)  # a server for each trained tensor
    for staleness in counted:
        assert max(staleness) == bound and min(staleness) >= 0
        assert sum(staleness.values()) == steps * (ranks - (placement == "host"))


def test_the_bound_is_what_holds_workers_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server's rule the count above does exceed the bound: it can fail."""
    from warptape.parallel import _server

    monkeypatch.setattr(_server.Server, "may_go_on", lambda self, worker: True)

    def rank() -> dict[str, Any]:
        model = net()
        server = ParameterServer(model, OPTIMIZERS["sgd"], placement="rank0", mode="bounded", staleness=1)
        for step in range(5):
            if dist.get_rank() == 1 and step == 0:
                time.sleep(0.3)
            backward(model, [batch(step, 0)])
            server.step()
        return server.finish()

    assert max(dist.simulate(2, rank)[0]["staleness"]) > 1


def test_workers_may_make_different_numbers_of_steps() -> None:
    def rank(mode: str) -> int:
        model = net()
        server = ParameterServer(model, OPTIMIZERS["sgd"], placement="sharded", mode=mode)
        for step in range(2 + 2 * dist.get_rank()):
            backward(model, [batch(step, dist.get_rank())])
            server.step()
        return server.finish()["version"]

    assert dist.simulate(3, rank, "synchronous") == [6, 6, 6]  # as many as the one with most
    assert dist.simulate(3, rank, "asynchronous") == [12, 12, 12]  # as many as pushes


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_asynchronous_converges(placement: str) -> None:
    """A regression with a known answer, workers of different speed: the loss falls to the noise's."""
    weights = wt.linspace(-1, 1, 6, dtype=wt.float64)

    def data(generator: wt.Generator, rows: int) -> tuple[wt.Tensor, wt.Tensor]:
        x = wt.randn(rows, 6, generator=generator, dtype=wt.float64)
        return x, (x @ weights + 0.5).unsqueeze(1)

    def rank() -> tuple[float, float]:
        wt.manual_seed(0)
        model = nn.Linear(6, 1).to(wt.float64)
        x, y = data(wt.Generator().manual_seed(99), 64)
        before = nn.functional.mse_loss(model(x), y).item()
        server = ParameterServer(
            model, lambda p: optim.SGD(p, lr=0.05), placement=placement, mode="asynchronous"
        )
        generator = wt.Generator().manual_seed(dist.get_rank())
        if dist.get_rank() in server.workers:
            for _ in range(80):
                model.zero_grad()
                inputs, targets = data(generator, 16)
                nn.functional.mse_loss(model(inputs), targets).backward()
                if dist.get_rank() == 2:
                    time.sleep(0.001)
                server.step()
        server.finish()
        return before, nn.functional.mse_loss(model(x), y).item()

    results = dist.simulate(3, rank)
    before, after = zip(*results, strict=True)
    assert min(before) > 0.5
    assert max(after) < 1e-4 and len(set(after)) == 1


def refused(error: type[Exception], match: str, make_arguments: Callable[[int], Any]) -> None:
    """Every rank raises the same type, and nothing but the comparison of arguments was sent."""

    def rank() -> bool:
        model, make, how = make_arguments(dist.get_rank())
        with pytest.raises(error, match=match):
            ParameterServer(model, make, **how)
        dist.barrier()  # the group still works
        return all(t.name == "MainThread" or "parameter" not in t.name for t in threading.enumerate())

    assert dist.simulate(2, rank, timeout=timedelta(seconds=10)) == [True, True]


@pytest.mark.parametrize("only", [None, 0, 1])
def test_bad_input_is_refused_on_every_rank(only: int | None) -> None:
    """`only`: the rank that gives it; None for all."""
    sgd = OPTIMIZERS["sgd"]

    def case(error: type[Exception], match: str, model: Any = None, make: Any = sgd, **how: Any) -> None:
        def arguments(rank: int) -> Any:
            if only is not None and rank != only:
                return net(), sgd, {}
            return net() if model is None else model(), make, how

        refused(error, match, arguments)

    case(TypeError, "expected a Module, got Tensor", model=lambda: wt.ones(2))
    case(ValueError, "expected a placement of .*got 'cloud'", placement="cloud")
    case(ValueError, "expected a mode of .*got 'fast'", mode="fast")
    case(TypeError, "expected staleness as int, got float", mode="bounded", staleness=1.5)
    case(ValueError, "staleness=-1", mode="bounded", staleness=-1)
    case(ValueError, "staleness=2 in mode 'synchronous'", staleness=2)
    case(ValueError, "of one dtype, got none", model=lambda: net().requires_grad_(False))
    mixed = lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(wt.float64))
    case(ValueError, "of one dtype, got .*float32.*float64", model=mixed)
    if only != 1:  # the server makes it
        case(TypeError, "returned list, not an Optimizer", make=lambda p: p)
        case(ValueError, "all of them", make=lambda p: optim.SGD(p[:1], lr=0.1))
        case(ValueError, "all of them", make=lambda p: optim.SGD(net().parameters(), lr=0.1))
        case(ValueError, "[Ll]earning rate|lr", make=lambda p: optim.SGD(p, lr=-1.0))
    if only is not None:
        case(ValueError, "ranks differ: 0 has .*; 1 has", mode="asynchronous")
        case(ValueError, "ranks differ", model=lambda: nn.Linear(2, 2))


def test_a_host_needs_a_worker_and_does_not_step() -> None:
    with pytest.raises(dist.RankFailed, match="needs 2 ranks"):
        dist.simulate(1, lambda: ParameterServer(net(), OPTIMIZERS["sgd"]))

    def rank() -> None:
        server = ParameterServer(net(), OPTIMIZERS["sgd"])
        if dist.get_rank() == 0:
            with pytest.raises(RuntimeError, match="on the host"):
                server.step()
        server.finish()
        with pytest.raises(RuntimeError, match="after finish"):
            server.step()

    dist.simulate(2, rank)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_late_worker_is_an_error_that_names_it(placement: str) -> None:
    over = threading.Barrier(3)

    def rank() -> list[str]:
        model = net()
        server = ParameterServer(
            model, OPTIMIZERS["sgd"], placement=placement, timeout=timedelta(seconds=0.5)
        )
        if dist.get_rank() == 2:
            over.wait(10)  # leaves when the others have their errors
            return []
        try:
            if dist.get_rank() in server.workers:
                backward(model, [batch(0, 0)])
                server.step()
            server.finish()
        except dist.DistBackendError as error:
            return [str(error)]
        finally:
            over.wait(10)
        return ["none"]

    start = time.monotonic()
    errors = dist.simulate(3, rank, timeout=timedelta(seconds=10))
    assert time.monotonic() - start < 10
    assert all("timed out" in e for found in errors[:2] for e in found) and errors[2] == []


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_server_that_fails_ends_the_job(placement: str) -> None:
    class Broken(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise ArithmeticError("planted")

    over = threading.Barrier(3)

    def rank() -> str:
        model = net()
        server = ParameterServer(model, lambda p: Broken(p, lr=0.1), placement=placement)
        try:
            if dist.get_rank() in server.workers:
                backward(model, [batch(0, 0)])
                server.step()
            server.finish()
        except (dist.DistBackendError, ArithmeticError) as error:
            return str(error)
        finally:
            over.wait(10)  # nobody leaves before all have their errors
        return "none"

    assert all("planted" in said for said in dist.simulate(3, rank, timeout=timedelta(seconds=10)))


FOLDERS = [str(Path(__file__).parents[i]) for i in (0, 1)]
SCRIPT = """
import os, signal, sys, time
sys.path[:0] = {folders!r}
import warptape.distributed as dist
from datetime import timedelta
import test_parameter_server as t
dist.init_process_group(timeout=timedelta(seconds=20))
"""
TRAIN = """
for placement, mode in (("host", "synchronous"), ("rank0", "bounded"), ("sharded", "synchronous")):
    make = t.OPTIMIZERS["adamw"]
    parameters, _ = t.train(make, placement=placement, mode=mode)
    away = t.largest_difference(parameters, t.one_process(3 - (placement == "host"), make))
    assert away < 1e-10, (placement, away)
t.train(t.OPTIMIZERS["sgd"], placement="sharded", mode="asynchronous")
dist.destroy_process_group()
sys.stdout.write("equal" + chr(10))
"""
KILLED = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of the launcher, which would be faster than the error
def say(error):
    sys.stdout.write(f"rank {{dist.get_rank()}}: {{str(error).splitlines()[0]}}" + chr(10))
    sys.stdout.flush()
    time.sleep(0.5)  # till the others, too, have met the rank that died, and not this one's end
    os._exit(3)


model = t.net()
server = t.ParameterServer(model, t.OPTIMIZERS["sgd"], placement={placement!r})
for step in range(5):
    if dist.get_rank() == 0 and {placement!r} == "host":
        break
    if dist.get_rank() == 2 and step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    t.backward(model, [t.batch(step, dist.get_rank())])
    try:
        server.step()
    except dist.DistBackendError as error:
        say(error)
try:
    server.finish()
except dist.DistBackendError as error:
    say(error)
"""


def test_real_processes_equal_one(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(folders=FOLDERS) + TRAIN)
    code, out, err = launch("--nproc-per-node=3", str(path))
    assert code == 0, err
    assert out.split() == ["equal"] * 3


@pytest.mark.parametrize("placement", ["host", "sharded"])
def test_a_killed_worker_is_an_error_on_the_others(tmp_path: Path, placement: str) -> None:
    path = tmp_path / "killed.py"
    path.write_text(SCRIPT.format(folders=FOLDERS) + KILLED.format(placement=placement))
    start = time.monotonic()
    code, out, err = launch("--nproc-per-node=3", str(path))
    assert time.monotonic() - start < 15 and code == 128 + 9, err
    said = sorted(line for line in out.splitlines() if line.startswith("rank"))
    assert [line.split(":")[0] for line in said] == ["rank 0", "rank 1"], (out, err)
    assert all("rank 2" in line for line in said), said
