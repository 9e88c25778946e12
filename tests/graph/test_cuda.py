"""Compiled functions on CUDA: results are eager's to the bit, work keeps its order in streams, and what is
captured, read by other threads or waited for is there. Kernels of chains: tests/chain/test_cuda_chain.py."""

from __future__ import annotations

import copy
import gc
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn

from .test_random_programs import check

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled ones go to a folder that the whole session has."""
    folder = tmp_path_factory.getbasetemp() / "kernels"
    monkeypatch.setenv("WARPTAPE_CACHE", str(folder))


def compiles() -> bool:
    """Whether chains get kernels here."""
    f = torch.compile(lambda x: x * 2 + 1)
    for _ in range(2):
        f(torch.ones(3, device="cuda"))
        torch._C._wait_for_kernels(False)
    return not f.explain().problems


def same(a: Any, b: Any) -> bool:
    assert a.dtype == b.dtype and a.shape == b.shape and a.device == b.device
    return bool(a.detach().cpu().numpy().tobytes() == b.detach().cpu().numpy().tobytes())


def chain(x: Any, y: Any) -> Any:
    return F.gelu((x + y) * 2.5).relu() - y


@pytest.mark.parametrize("shape", [(4, 8), (3001,), (5, 7)])
def test_kernels_run_one_by_one_until_theirs_is_there(shape: tuple[int, ...]) -> None:
    f = torch.compile(chain)
    x, y = torch.randn(*shape, device="cuda"), torch.randn(shape[-1], device="cuda")
    for _ in range(3):
        assert same(f(x, y), chain(x, y))
        torch._C._wait_for_kernels(False)
    e = f.explain()
    assert (e.graph_count, e.fused, e.runs) == (1, 4, 3)
    assert e.problems == [] or "NVRTC" in e.problems[0]
    assert e.problems or not shutil.which("c++") or compiles()


def test_numbers_are_arguments_of_a_kernel() -> None:
    f = torch.compile(lambda x, a, b: torch.full((9,), 0.5, device="cuda") * a + x * b)
    x = torch.randn(9, device="cuda")
    for a, b in ((0.1, 2), (3, 0.5), (1e-3, -1)):
        assert same(f(x, a, b), torch.full((9,), 0.5, device="cuda") * a + x * b)
        torch._C._wait_for_kernels(False)
    assert f.explain().graph_count == 1


def network() -> Any:
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4)
    return nn.Sequential(*layers).cuda()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_training_step(optimizer: str, mode: str) -> None:
    models = [network(), network()]
    optimizers = [getattr(torch.optim, optimizer)(m.parameters(), lr=0.01) for m in models]
    x, t = torch.randn(32, 8, device="cuda"), torch.randint(0, 4, (32,), device="cuda")

    def step(model: Any, optimizer: Any) -> Any:
        loss = F.cross_entropy(model(x), t)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    compiled = torch.compile(step, mode=mode)
    compiled.region.adaptive = False
    for i in range(6):
        torch.manual_seed(i)
        expected = step(models[0], optimizers[0])
        torch.manual_seed(i)
        assert same(compiled(models[1], optimizers[1]), expected)
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert same(p, q) and same(p.grad, q.grad)
        torch._C._wait_for_kernels(False)
    e = compiled.explain()
    assert (e.graph_break_count, e.not_deferred) == (0, 0) and e.graph_count <= 2


def test_work_keeps_to_the_stream_in_which_it_was_asked_for() -> None:
    """The emulated device runs each stream late, and this one alone when it is waited for."""
    side = torch.cuda.Stream()

    @torch.compile
    def f(x: Any) -> Any:
        y = x + 1
        event = torch.cuda.Event()
        with torch.cuda.stream(side):
            z = x * 3 - 1
            event.record()
        event.wait()
        return y, z, y + z

    x = torch.randn(50, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(2):
        y, z, both = f(x)
        with torch.cuda.stream(side):
            assert same(z, x * 3 - 1)
        assert same(y, x + 1) and same(both, (x + 1) + (x * 3 - 1))


def test_synchronize_runs_what_was_asked_for() -> None:
    stream = torch.cuda.Stream()

    @torch.compile
    def f(x: Any) -> Any:
        y = x * 2 + 1
        event = torch.cuda.Event()
        event.record()
        event.synchronize()
        seen.append(event.query() and stream.query())
        torch.cuda.synchronize()
        stream.synchronize()
        y.record_stream(stream)
        return y + 1

    seen: list[bool] = []
    x = torch.ones(5, device="cuda")
    assert same(f(x), x * 2 + 1 + 1) and seen == [True]
    assert f.explain().graph_break_count == 1  # the event's; the rest had nothing to run


def test_another_thread_reads_in_the_streams_of_the_region() -> None:
    found = []

    @torch.compile
    def f(x: Any) -> Any:
        y = x * 2
        reader = threading.Thread(target=lambda: found.append(y.sum().item()))
        reader.start()
        reader.join()
        assert torch.cuda.current_stream() == side
        return y + 1

    side = torch.cuda.Stream()
    x = torch.ones(6, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        assert f(x).tolist() == [3.0] * 6
    assert found == [12.0]


def test_a_captured_graph_of_a_compiled_function() -> None:
    f = torch.compile(chain)
    x, y = torch.randn(40, device="cuda"), torch.randn(40, device="cuda")
    for _ in range(2):
        f(x, y)
        torch._C._wait_for_kernels(False)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        out = f(x, y)
    for _ in range(2):
        x.copy_(torch.randn(40, device="cuda"))
        g.replay()
        assert same(out, chain(x, y))


def test_capture_begins_and_ends_inside_of_a_compiled_function() -> None:
    g = torch.cuda.CUDAGraph()

    @torch.compile
    def f(x: Any) -> Any:
        before = x + 1
        with torch.cuda.graph(g):
            y = x * 2
        return before, y

    x = torch.ones(4, device="cuda")
    before, y = f(x)
    assert before.tolist() == [2.0] * 4
    x.fill_(3)
    g.replay()
    assert y.tolist() == [6.0] * 4


def test_index_errors_come_at_the_next_synchronisation() -> None:
    f = torch.compile(lambda w, i: F.embedding(i, w) * 2)
    w = torch.randn(3, 2, device="cuda")
    with pytest.raises(IndexError):
        f(w, torch.tensor([7], device="cuda")).cpu()
    assert same(f(w, torch.tensor([2], device="cuda")), w[2:] * 2)


@pytest.mark.parametrize("kernels_there", [False, True])
def test_memory_of_what_nobody_sees_is_given_back(
    kernels_there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WARPTAPE_CACHE", str(tmp_path))

    def f(x: Any) -> Any:
        for _ in range(10):
            x = (x * 1.01).sin()
        return x

    compiled, x = torch.compile(f), torch.randn(1 << 16, device="cuda")
    assert same(compiled(x), f(x))
    if kernels_there:
        torch._C._wait_for_kernels(False)

    def peak(f: Callable[[Any], Any]) -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        f(x)
        return int(torch.cuda.max_memory_allocated()) - before

    fused = kernels_there and compiles()
    assert peak(compiled) <= (1 if fused else 2) * x.numel() * 4 + 4096 <= peak(f) + 4096


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_programs(first: int) -> None:
    torch.set_default_device("cuda")
    try:
        for seed in range(first, first + 10):
            check(torch, seed)
    finally:
        torch.set_default_device("cpu")
        torch._C._wait_for_kernels(True)  # of hundreds; other tests wait for theirs


def test_copies_of_modules() -> None:
    model = torch.compile(network().eval())
    x = torch.randn(3, 8, device="cuda")
    assert same(model(x), model._orig_mod(x)) and same(copy.deepcopy(model)(x), model(x))
