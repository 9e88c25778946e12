"""The nccl backend: the collective table on devices, stream order, and how calls that fail end.

With an emulated device ranks are threads, and a stand-in takes NCCL's place; with a GPU they are processes,
several of them on one device if there are no more.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import collective_table
import pytest
import warptape as wt
import warptape.distributed as dist
from launched import launch

pytestmark = pytest.mark.cuda
EMULATED = "emulated" in wt.cuda.get_device_name(0).lower() if wt.cuda.is_available() else False
emulated = pytest.mark.skipif(not EMULATED, reason="needs the emulated device")
real = pytest.mark.skipif(EMULATED, reason="needs a GPU: on the emulated device ranks are threads")


def on_devices(ranks: int, fn: Callable[[], object], seconds: float = 60) -> list:
    """The results of fn on ranks that are threads, each with a device if there are enough, and with a stream
    of its own: on a common one a rank would wait behind another's call, which waits for it."""

    def rank() -> object:
        collective_table.use_cuda(dist.get_rank())
        with wt.cuda.stream(wt.cuda.Stream()):
            return fn()

    return dist.simulate(ranks, rank, timeout=timedelta(seconds=seconds))


def caught(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def here(*shape: int) -> wt.Tensor:
    return wt.full(shape, 1.0 + dist.get_rank(), device="cuda")


@emulated
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", collective_table.WITH_NCCL)
def test_table(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_table, "SIZES", (0, 1, 3, 5000))
    on_devices(ranks, collective_table.CHECKS[name])


@real
@pytest.mark.parametrize("ranks", [2])
def test_processes(ranks: int) -> None:
    """Ranks that share a device must look like different hosts to NCCL before 2.30."""
    script = Path(collective_table.__file__)
    code, out, err = launch("--nproc-per-node", ranks, script, "cuda", OMP_NUM_THREADS="1")
    assert code == 0, err
    assert f"{len(collective_table.WITH_NCCL)} checks on {ranks} ranks" in out


@emulated
def test_bool_and_average() -> None:
    def rank() -> None:
        t = wt.tensor([True, dist.get_rank() == 1, False], device="cuda")
        dist.all_reduce(t)
        assert t.tolist() == [True, True, False]
        t = wt.tensor([True, dist.get_rank() == 1, False], device="cuda")
        dist.all_reduce(t, dist.ReduceOp.PRODUCT)
        assert t.tolist() == [True, False, False]
        t = here(3).int() * 3
        dist.all_reduce(t, dist.ReduceOp.AVG)
        assert t.tolist() == [4, 4, 4]

    on_devices(2, rank)


@emulated
def test_order_of_streams() -> None:
    """A call comes after the stream it was made on; who waits comes after the call; others do not wait."""

    def rank() -> None:
        side = wt.cuda.Stream()
        with wt.cuda.stream(side):
            t = wt.zeros(1000, device="cuda")
            for _ in range(20):
                t += 1
            work = dist.all_reduce(t, async_op=True)
            u = t if work.wait() else None
            side_sum = (u * 2).sum()
        work.wait()
        main = (t * 3).sum()
        side.synchronize()
        assert float(side_sum) == 2 * 20 * 1000 * dist.get_world_size()
        assert float(main) == 3 * 20 * 1000 * dist.get_world_size()
        assert work.is_completed() and work.is_success() and work.exception() is None

    on_devices(2, rank)


@emulated
def test_memory_is_kept_for_the_stream() -> None:
    """A tensor dropped right after an asynchronous call: nobody gets its memory before the call is over."""

    def rank() -> None:
        for _ in range(30):
            t = here(4096)
            keep = wt.empty(4096, device="cuda")
            work = dist.all_gather_into_tensor(wt.empty(2 * 4096, device="cuda"), t, async_op=True)
            del t
            gc.collect()
            spoil = wt.full((4096,), -7.0, device="cuda")
            out = work.result()[0]
            work.wait()
            assert wt.equal(out, wt.arange(2 * 4096) // 4096 + 1.0), out
            del spoil, keep

    on_devices(2, rank)


REFUSED = {
    "bitwise": (
        lambda: dist.all_reduce(here(3).int(), dist.ReduceOp.BXOR),
        ValueError,
        "NCCL does not support bxor",
    ),
    "int16": (lambda: dist.all_reduce(here(3).to(wt.int16)), wt.DtypeError, "NCCL does not reduce int16"),
    "anybody": (lambda: dist.recv(here(3)), ValueError, "give src"),
    "tag": (lambda: dist.send(here(3), 1 - dist.get_rank(), tag=3), ValueError, "no tags"),
    "device": (
        lambda: dist.all_reduce(wt.ones(3, device=f"cuda:{1 - dist.get_rank()}")),
        wt.DeviceError,
        "one device",
    ),
}


@emulated
@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_starts(name: str) -> None:
    call, kind, text = REFUSED[name]

    def rank() -> None:
        dist.all_reduce(here(3))
        error = caught(call)
        assert isinstance(error, kind) and text in str(error), error
        t = here(3)
        dist.all_reduce(t)
        assert t.tolist() == [3.0] * 3

    on_devices(2, rank)


@emulated
def test_moves_what_it_cannot_combine() -> None:
    def rank() -> None:
        t = wt.tensor([1, 2, 3 + dist.get_rank()], dtype=wt.int16, device="cuda")
        dist.broadcast(t, 1)
        assert t.tolist() == [1, 2, 4]

    on_devices(2, rank)


def fails(ranks: int, fn: Callable[[], object], seconds: float = 20) -> list[BaseException]:
    errors = on_devices(ranks, lambda: caught(fn), seconds)
    assert all(isinstance(each, dist.DistBackendError) for each in errors), errors
    return errors


@emulated
def test_late_rank_ends_the_group(tmp_path: Path) -> None:
    """Rank 1 does not come: rank 0's wait for the device ends with an error that names both; a record."""
    begin = time.monotonic()

    def rank() -> None:
        group = dist.new_group(timeout=timedelta(seconds=1))
        t = here(3)
        dist.all_reduce(t, group=group)
        if dist.get_rank() == 1:
            time.sleep(2.5)
        dist.all_reduce(t, group=group)
        t.cpu()

    errors = fails(2, rank)
    assert time.monotonic() - begin < 15
    for error in errors:
        assert "all_reduce(float32[3], sum) at" in str(error) and "call 2 on rank 0" in str(error), error
        assert "timed out after 1 s; rank 1 was last in call 1, all_reduce(float32[3], sum)" in str(error)
    assert "flight record: " in str(errors[0]) and list(tmp_path.glob("flight_*_rank0.json"))


MISMATCHES = {
    "op": (
        lambda r: dist.all_reduce(here(3)) if r else dist.broadcast(here(3), 0),
        ("rank 0: broadcast(float32[3], root 0)", "rank 1: all_reduce(float32[3], sum)"),
    ),
    "shape": (lambda r: dist.all_reduce(here(2, 3) if r else here(3, 2)), ("float32[3, 2]", "float32[2, 3]")),
    "dtype": (lambda r: dist.all_reduce(here(3).int() if r else here(3)), ("float32[3]", "int32[3]")),
    "reduce": (
        lambda r: dist.all_reduce(here(3), dist.ReduceOp.MAX if r else dist.ReduceOp.MIN),
        (", min)", ", max)"),
    ),
}


@emulated
@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_is_named(name: str) -> None:
    call, texts = MISMATCHES[name]

    def rank() -> None:
        dist.all_reduce(here(5))
        call(dist.get_rank())
        wt.cuda.synchronize()
        while True:  # ranks of one shape do not wait for each other
            time.sleep(0.05)
            dist.barrier()
            dist.all_reduce(here(1))
            wt.cuda.synchronize()

    for error in fails(2, rank):
        assert "the ranks differ in call 2:" in str(error) and all(t in str(error) for t in texts), error


@emulated
@pytest.mark.parametrize("error", [None, ValueError("no data")])
def test_rank_that_left_is_named(error: ValueError | None) -> None:
    def rank() -> None:
        group = dist.new_group()
        dist.all_reduce(here(3), group=group)
        if dist.get_rank() == 1:
            with contextlib.suppress(ValueError):
                try:
                    if error:
                        raise error
                finally:
                    dist.destroy_process_group(group)
            return
        found = caught(lambda: (dist.all_reduce(here(3), group=group), wt.cuda.synchronize()))
        assert isinstance(found, dist.DistBackendError), found
        text = "after ValueError: no data" if error else "(destroy_process_group)"
        assert f"rank 1 has left the group {text}" in str(found), found

    on_devices(2, rank)


@emulated
def test_error_of_nccl_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPTAPE_EMULATED_NCCL_FAIL", "2")

    def rank() -> None:
        for _ in range(5):
            dist.all_reduce(here(3))
            wt.cuda.synchronize()

    for error in fails(2, rank):
        assert "remote process exited" in str(error) and "all_reduce(float32[3], sum)" in str(error), error


@emulated
def test_abort_and_use_after_destroy() -> None:
    def rank() -> None:
        group = dist.new_group()
        t = here(3)
        dist.all_reduce(t, group=group)
        if dist.get_rank() == 0:
            work = dist.all_reduce(t, group=group, async_op=True)
            dist.abort_process_group(group)
            assert "rank 0 aborted the group" in str(caught(work.wait))
            assert work.is_completed() and not work.is_success()
        error = caught(lambda: [(dist.all_reduce(t, group=group), wt.cuda.synchronize()) for _ in range(99)])
        assert "rank 0 aborted the group" in str(error), error
        dist.destroy_process_group(group)
        error = caught(lambda: group._run(dist.collectives._Op.all_reduce, [], [t]))
        assert isinstance(error, dist.DistBackendError) and "was destroyed" in str(error), error

    on_devices(2, rank)


@emulated
def test_rank_that_does_not_join_is_named() -> None:
    def rank() -> None:
        group = dist.new_group(timeout=timedelta(seconds=0.5))
        if dist.get_rank() == 1:
            time.sleep(1.5)
            return
        error = caught(lambda: dist.all_reduce(here(3), group=group))
        assert isinstance(error, dist.DistBackendError), error
        assert "timed out waiting for rank 1 to make a first call" in str(error), error
        return

    on_devices(2, rank)


@emulated
def test_wait_with_a_time() -> None:
    def rank() -> None:
        t = here(3)
        dist.all_reduce(t)
        if dist.get_rank() == 1:
            time.sleep(0.6)
        work = dist.all_reduce(t, async_op=True)
        if dist.get_rank() == 0:
            error = caught(lambda: work.wait(timedelta(seconds=0.2)))
            assert "the work is still running" in str(error), error
        assert work.wait(timedelta(seconds=20)) and t.tolist() == [6.0] * 3

    on_devices(2, rank)


@emulated
def test_data_parallel() -> None:
    """Gradients of two ranks are those of one with both batches, as far as rounding goes."""
    wt.manual_seed(3)
    x, start = wt.randn(8, 6), wt.nn.Linear(6, 4).state_dict()

    def rank() -> list:
        model = wt.nn.Linear(6, 4).to("cuda")
        model.load_state_dict(start)
        parallel = wt.nn.parallel.DistributedDataParallel(model)
        n = 8 // dist.get_world_size()
        for _ in range(2):
            parallel.zero_grad()
            mine = x[dist.get_rank() * n :][:n].to("cuda")
            (parallel(mine) ** 2).mean().backward()
        return [p.grad.cpu() for p in model.parameters()]

    alone, together = on_devices(1, rank)[0], on_devices(2, rank)
    for grads in together:
        for a, b in zip(alone, grads, strict=True):
            assert wt.allclose(a, b, atol=1e-6)


def test_backend_is_there() -> None:
    assert dist.is_nccl_available()
