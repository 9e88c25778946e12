"""Values of all collectives: simulated and real ranks; errors that every rank sees."""

from __future__ import annotations

import collections
import enum
import os
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import collective_table
import numpy as np
import pytest
import warptape as wt
import warptape.distributed as dist
from launched import launch, started
from warptape import nn
from warptape.distributed import functional

LIMIT = timedelta(seconds=60)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", list(collective_table.CHECKS))
def test_simulated(name: str, ranks: int) -> None:
    dist.simulate(ranks, collective_table.CHECKS[name], timeout=LIMIT)


def test_one_rank() -> None:
    def rank() -> None:
        for name in ("all_reduce", "rounds_once", "all_gather", "reduce_scatter", "all_to_all", "async"):
            collective_table.CHECKS[name]()

    dist.simulate(1, rank)


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes(ranks: int) -> None:
    code, out, err = launch("--nproc-per-node", ranks, Path(collective_table.__file__), OMP_NUM_THREADS="1")
    assert code == 0, err
    assert f"{len(collective_table.CHECKS)} checks on {ranks} ranks" in out


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun.openmpi", "mpirun.mpich"])
def test_other_launchers(launcher: str) -> None:
    command = shutil.which(
        launcher, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    if command is None:
        pytest.skip(f"{launcher} is not installed")
    flags = {
        "torchrun": ["--nproc-per-node=2"],
        "mpirun.openmpi": ["--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable],
        "mpirun.mpich": ["-n", "2", sys.executable],
    }
    job_command = [command, *flags[launcher], collective_table.__file__]
    with started(job_command, OMP_NUM_THREADS="1") as job:
        code, out, err = job.finish(120)
    assert code == 0, err
    assert f"{len(collective_table.CHECKS)} checks on 2 ranks" in out


def test_table_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    real = dist.all_reduce

    def off_by_one(tensor: wt.Tensor, *args, **kwargs):
        work = real(tensor, *args, **kwargs)
        if tensor.numel() == 5000:
            tensor[4999] += 1
        return work

    monkeypatch.setattr(dist, "all_reduce", off_by_one)
    with pytest.raises(dist.RankFailed, match="all_reduce sum"):
        dist.simulate(2, collective_table.CHECKS["all_reduce"])


def errors_of(ranks: int, call: Callable[[], object]) -> list[BaseException]:
    """What the call raises on each rank; the group must be as good as before after it."""

    def rank() -> BaseException:
        with pytest.raises(Exception) as caught:
            call()
        t = wt.ones(2)
        dist.all_reduce(t)
        assert t.tolist() == [ranks, ranks]
        return caught.value

    return dist.simulate(ranks, rank, timeout=timedelta(seconds=20))


MISMATCHES: dict[str, tuple[Callable[[], object], list[str]]] = {
    "op": (
        lambda: dist.all_reduce(wt.ones(3)) if dist.get_rank() else dist.broadcast(wt.ones(3), 0),
        ["rank 0: broadcast(float32[3], root 0)", "rank 1: all_reduce(float32[3], sum)"],
    ),
    "reduce op": (
        lambda: dist.all_reduce(wt.ones(3), dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM),
        ["rank 0: all_reduce(float32[3], sum)", "rank 1: all_reduce(float32[3], max)"],
    ),
    "shape": (
        lambda: dist.all_reduce(wt.ones(2, 3) if dist.get_rank() else wt.ones(3, 2)),
        ["float32[3, 2]", "float32[2, 3]"],
    ),
    "length": (
        lambda: dist.all_gather([wt.empty(4 + dist.get_rank())] * 2, wt.ones(4 + dist.get_rank())),
        ["rank 0: all_gather(float32[4])", "rank 1: all_gather(float32[5])"],
    ),
    "dtype": (
        lambda: dist.all_reduce(wt.ones(3, dtype=wt.int32 if dist.get_rank() else wt.float32)),
        ["float32[3]", "int32[3]"],
    ),
    "root": (
        lambda: dist.broadcast(wt.ones(3), dist.get_rank()),
        ["root 0", "root 1"],
    ),
    "splits": (
        lambda: dist.all_to_all([wt.empty(2), wt.empty(3)], [wt.ones(2), wt.ones(2)]),
        ["sends 8 bytes to rank", "which expects 12"],
    ),
    "gathered sizes": (
        lambda: dist.all_gather([wt.empty(1), wt.empty(2)], wt.ones(1)),
        ["all_gather_v, call", "rank 1 sends 4 bytes to rank 0, which expects 8"],
    ),
    "barrier": (
        lambda: dist.barrier() if dist.get_rank() else dist.all_reduce(wt.ones(3)),
        ["rank 0: all_reduce", "rank 1: barrier()"],
    ),
}


@pytest.mark.parametrize("name", list(MISMATCHES))
def test_mismatch_is_named_on_every_rank(name: str) -> None:
    call, texts = MISMATCHES[name]
    for error in errors_of(2, call):
        assert isinstance(error, dist.DistBackendError)
        for text in [*texts, __file__ if "sends" not in " ".join(texts) else ", call "]:
            assert text in str(error), str(error)


BAD_ARGUMENTS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no tensor": (lambda: dist.all_reduce([1.0]), TypeError, "tensor"),
    "dtypes": (lambda: dist.all_to_all([wt.ones(1)] * 2, [wt.ones(1).int()] * 2), wt.DtypeError, "one dtype"),
    "meta": (lambda: dist.all_reduce(wt.ones(3, device="meta")), wt.DeviceError, "meta"),
    "bits of floats": (
        lambda: dist.all_reduce(wt.ones(3), dist.ReduceOp.BAND),
        wt.DtypeError,
        "band needs integers",
    ),
    "average of bool": (
        lambda: dist.all_reduce(wt.ones(3).bool(), dist.ReduceOp.AVG),
        wt.DtypeError,
        "avg is not supported for bool",
    ),
    "no such rank": (lambda: dist.broadcast(wt.ones(1), 7), ValueError, "7"),
    "no root": (lambda: dist.broadcast(wt.ones(1)), ValueError, "src"),
    "itself": (lambda: dist.send(wt.ones(1), dist.get_rank()), ValueError, "itself"),
    "list too short": (lambda: dist.all_gather([wt.empty(1)], wt.ones(1)), ValueError, "list of 2"),
    "list elements": (
        lambda: dist.reduce_scatter(wt.empty(1), [wt.ones(1), wt.ones(2)]),
        wt.ShapeError,
        "expected tensors like float32[1], got float32[2]",
    ),
    "no tensors": (lambda: dist.all_reduce_coalesced([]), ValueError, "expected at least one tensor"),
    "all_to_all lists": (
        lambda: dist.all_to_all([wt.empty(1)], [wt.ones(1)] * 2),
        wt.ShapeError,
        "all_to_all: expected a tensor for each of 2 ranks, got 1",
    ),
    "single tensor": (
        lambda: dist.all_gather_into_tensor(wt.empty(3), wt.ones(1)),
        wt.ShapeError,
        "2 blocks",
    ),
    "uneven": (lambda: dist.all_to_all_single(wt.empty(3), wt.ones(3)), ValueError, "not a multiple"),
    "unpicklable": (lambda: dist.all_gather_object([None] * 2, object()), TypeError, "pickle=True"),
    "group": (lambda: dist.all_reduce(wt.ones(1), group=3), TypeError, "ProcessGroup"),
    "new_group": (lambda: dist.new_group([0, 5]), ValueError, "below the world size"),
    "init twice": (lambda: dist.init_process_group("shm"), ValueError, "twice"),
}


@pytest.mark.parametrize("name", list(BAD_ARGUMENTS))
def test_bad_argument(name: str) -> None:
    call, kind, text = BAD_ARGUMENTS[name]
    for error in errors_of(2, call):
        assert isinstance(error, kind)
        assert text in str(error)


class Number(enum.IntEnum):
    ONE = 1


Pair = collections.namedtuple("Pair", "rate steps")
KEPT = [
    wt.Size([1, 2]),
    OrderedDict(b=1, a=wt.Size([3])),
    (1, [2.5, True]),
    {1: "a", (1, 2): None},
    float("inf"),
]
REFUSED = [
    Pair(0.1, 5),
    collections.Counter("ab"),
    collections.defaultdict(int, a=1),
    Number.ONE,
    {"a": [nn.Parameter(wt.ones(2))]},
    type("Text", (str,), {})("a"),
    type("List", (list,), {})([1]),
]


def test_objects_arrive_as_they_were_or_not_at_all() -> None:
    def rank() -> None:
        for value in KEPT:
            found: list[Any] = [None, None]
            dist.all_gather_object(found, value)
            assert found[1 - dist.get_rank()] == value and type(found[0]) is type(value)
            lent = [value if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(lent)
            assert lent == [value] and type(lent[0]) is type(value)
        for value in REFUSED:
            with pytest.raises(TypeError, match="travels only with pickle=True"):
                dist.all_gather_object([None, None], value)
        found = [None, None]
        dist.all_gather_object(found, REFUSED[0], pickle=True)
        assert type(found[0]) is Pair

    dist.simulate(2, rank)


def test_pickle_only_on_request() -> None:
    def rank() -> None:
        found: list = [None, None]
        dist.all_gather_object(found, {1, 2}, pickle=True)
        assert found == [{1, 2}, {1, 2}]

    dist.simulate(2, rank)


def test_late_rank_is_named() -> None:
    def rank() -> str:
        dist.barrier()
        if dist.get_rank() == 1:
            import time

            time.sleep(1.5)
        with pytest.raises(dist.DistBackendError) as caught:
            dist.monitored_barrier(timeout=timedelta(seconds=0.5))
        return str(caught.value)

    for text in dist.simulate(3, rank):
        assert "timed out waiting for rank 1" in text
        assert "was last in call 1, barrier" in text


def test_messages_must_fit() -> None:
    def rank() -> str:
        if dist.get_rank() == 0:
            dist.send(wt.ones(4), 1)
        call = dist.barrier if dist.get_rank() == 0 else lambda: dist.recv(wt.empty(3), 0)
        with pytest.raises(dist.DistBackendError) as caught:
            call()
        return str(caught.value)

    assert all("16 bytes" in text and "recv(float32[3]" in text for text in dist.simulate(2, rank))


def test_use_after_destroy() -> None:
    def rank() -> None:
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        with pytest.raises(dist.DistBackendError, match="destroyed"):
            dist.all_reduce(wt.ones(1), group=group)
        dist.barrier()
        world = dist.get_default_group()
        dist.destroy_process_group()
        assert not dist.is_initialized()
        with pytest.raises(dist.DistBackendError, match="destroyed"):
            dist.all_reduce(wt.ones(1), group=world)
        with pytest.raises(ValueError, match="not been initialized"):
            dist.get_rank()

    dist.simulate(2, rank)
    with pytest.raises(ValueError, match="not been initialized"):
        dist.all_reduce(wt.ones(1))


# ---- collectives on the tape ----

PAIRS: dict[str, tuple[Callable, Callable]] = {
    # name: (the function of this rank's input, the same of the inputs of all ranks, as one process has it).
    # A rank's loss is that of its output with weights of its own; one process's is the sum over the ranks.
    "all_reduce_all_reduce": (functional.all_reduce_all_reduce, lambda xs, r: sum(xs)),
    "all_gather_reduce_scatter": (
        lambda x: functional.all_gather_reduce_scatter(x, 1),
        lambda xs, r: wt.cat(xs, 1),
    ),
    "reduce_scatter_all_gather": (
        lambda x: functional.reduce_scatter_all_gather(x, 1),
        lambda xs, r: sum(xs).chunk(len(xs), 1)[r],
    ),
    "all_to_all": (
        lambda x: functional.all_to_all(x),
        lambda xs, r: wt.cat([x.chunk(len(xs), 0)[r] for x in xs], 0),
    ),
    "broadcast_reduce": (lambda x: functional.broadcast_reduce(x, 1), lambda xs, r: xs[1] + 0 * sum(xs)),
    "reduce_broadcast": (
        lambda x: functional.reduce_broadcast(x, 0),
        lambda xs, r: sum(xs) if r == 0 else sum(xs) * 0,
    ),
}


def inputs_of(ranks: int) -> list[wt.Tensor]:
    rng = np.random.default_rng(0)
    return [wt.tensor(rng.standard_normal((4, 8)), requires_grad=True) for _ in range(ranks)]


def loss_of(out: wt.Tensor, rank: int) -> wt.Tensor:
    weights = wt.linspace(-1, 1, out.numel(), dtype=wt.float64).reshape(out.shape) * (rank + 1)
    return (weights * out * out).sum()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", list(PAIRS))
def test_gradient_is_one_processes(name: str, ranks: int) -> None:
    apply, reference = PAIRS[name]

    def rank() -> tuple[wt.Tensor, wt.Tensor]:
        x = inputs_of(ranks)[dist.get_rank()]
        (g,) = wt.autograd.grad(loss_of(apply(x), dist.get_rank()), x, create_graph=True)
        (second,) = wt.autograd.grad(loss_of(g, dist.get_rank()), x)
        return g.detach(), second

    xs = inputs_of(ranks)
    first = wt.autograd.grad(sum(loss_of(reference(xs, r), r) for r in range(ranks)), xs, create_graph=True)
    second = wt.autograd.grad(sum(loss_of(g, r) for r, g in enumerate(first)), xs)
    for r, (g, gg) in enumerate(dist.simulate(ranks, rank, timeout=LIMIT)):
        np.testing.assert_allclose(g.numpy(), first[r].detach().numpy(), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(gg.numpy(), second[r].numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ranks", [2, 4])
def test_same_work_on_every_rank(ranks: int) -> None:
    """The pairs of tensor parallelism: a product split by columns, then by rows, equals the whole one."""
    rng = np.random.default_rng(1)
    x, a, b = (wt.tensor(rng.standard_normal(s), requires_grad=True) for s in ((3, 8), (8, 16), (16, 5)))
    loss = loss_of(wt.tanh(x @ a) @ b, 0)
    wanted = wt.autograd.grad(loss, (x, a, b))

    def rank() -> tuple[wt.Tensor, ...]:
        xr, ar, br = (t.detach().clone().requires_grad_() for t in (x, a, b))
        columns, rows = ar.chunk(ranks, 1)[dist.get_rank()], br.chunk(ranks, 0)[dist.get_rank()]
        h = wt.tanh(functional.pass_through_all_reduce(xr) @ columns)
        out = functional.all_reduce_pass_through(h @ rows)
        gathered = functional.all_gather_split(h, 1)
        assert gathered.shape == (3, 16)
        return wt.autograd.grad(loss_of(out, 0), (xr, ar, br))

    sums = [sum(parts) for parts in zip(*dist.simulate(ranks, rank), strict=True)]
    sums[0] = sums[0] / ranks  # every rank has the whole gradient of x
    for got, want in zip(sums, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12, atol=1e-12)


def test_split_and_gather_undo_each_other() -> None:
    def rank() -> None:
        x = inputs_of(1)[0]
        part = functional.split_all_gather(x, 1)
        assert part.shape == (4, 4)
        whole = functional.all_gather_split(part * 1, 1)
        assert wt.equal(whole, x)
        (g,) = wt.autograd.grad(loss_of(whole, 0), x)
        (want,) = wt.autograd.grad(loss_of(x, 0), x)
        assert wt.equal(g, want)
        with pytest.raises(ValueError, match="does not divide"):
            functional.split_all_gather(wt.ones(3, 5), 1)

    dist.simulate(2, rank)


def test_pipeline_of_two() -> None:
    def rank() -> wt.Tensor:
        x = inputs_of(1)[0]
        if dist.get_rank() == 0:
            functional.send_recv(x * 2, 1).backward()
            return x.grad
        h = functional.recv_send(wt.empty(4, 8, dtype=wt.float64, requires_grad=True), 0)
        loss_of(h, 0).backward()
        return loss_of(h, 0).detach()

    gradient, _ = dist.simulate(2, rank)
    x = inputs_of(1)[0]
    loss_of(x * 2, 0).backward()
    assert wt.equal(gradient, x.grad)
