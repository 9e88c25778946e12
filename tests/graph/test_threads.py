"""Compiled functions in several threads: over shared weights, with tensors that go from thread to thread, and
with weights that somebody writes meanwhile."""

from __future__ import annotations

import contextlib
import queue
import random
import sys
import threading
from typing import Any

import pytest
import warptape as torch
from in_threads import together
from time_limits import SANITIZED
from warptape import nn

from . import short_threads

THREADS = 8
RUNS = 100  # of each thread; 10,000 with --programs 10000


def compiled(f: Any) -> Any:
    """All calls are recorded, and what is small is recomputed as well."""
    c = torch.compile(f)
    c.region.adaptive, c.region.least_recomputed_bytes = False, 1
    return c


def bits(tensors: Any) -> list[bytes]:
    return [t.detach().numpy().tobytes() for t in tensors]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)

    def forward(self, x: Any) -> Any:
        y = self.norm(x + self.b(nn.functional.gelu(self.a(x))))
        return torch.cumsum(y * torch.sigmoid(y), -1)


@pytest.fixture(autouse=True)
def _runs(pytestconfig, monkeypatch):
    if pytestconfig.getoption("--programs") >= 10_000:
        monkeypatch.setitem(globals(), "RUNS", pytestconfig.getoption("--programs"))


@pytest.fixture(autouse=True)
def _one_thread_each():
    before, interval = torch.get_num_threads(), sys.getswitchinterval()
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-5)  # seconds: threads take turns in the middle of what they record
    torch.manual_seed(0)
    yield
    sys.setswitchinterval(interval)
    torch.set_num_threads(before)


@pytest.mark.parametrize("functions", ["own", "same"])
def test_inference_over_shared_weights(functions: str) -> None:
    model = Block().eval()
    shared = compiled(model.forward)
    inputs = [torch.randn(n, 16) for n in range(1, 7)]
    with torch.no_grad():
        want = [bits([model(x)]) for x in inputs]

    def work(k: int) -> None:
        f = shared if functions == "same" else compiled(model.forward)
        with torch.no_grad():
            for i in range(RUNS):
                at = (i + k) % len(inputs)
                assert bits([f(inputs[at])]) == want[at]

    together(work)


@pytest.mark.parametrize("functions", ["own", "same"])
@pytest.mark.parametrize("inside", [True, False])
def test_training_over_shared_weights(functions: str, inside: bool) -> None:
    model = Block()
    weights = list(model.parameters())

    def step(x: Any) -> Any:
        return torch.autograd.grad(model(x).square().sum(), weights)

    whole, forward = compiled(step), compiled(model.forward)
    inputs = [torch.randn(n, 16) for n in range(1, 5)]
    want = [bits(step(x)) for x in inputs]

    def work(k: int) -> None:
        own_step, own_forward = compiled(step), compiled(model.forward)
        f, g = (whole, forward) if functions == "same" else (own_step, own_forward)
        for i in range(RUNS):
            at = (i + k) % len(inputs)
            got = f(inputs[at]) if inside else torch.autograd.grad(g(inputs[at]).square().sum(), weights)
            assert bits(got) == want[at]

    together(work)


@pytest.mark.parametrize("functions", ["own", "same"])
def test_training_beside_inference(functions: str) -> None:
    """Half of the threads train, half infer, over the same weights."""
    model = Block()
    weights = list(model.parameters())

    def step(x: Any) -> Any:
        return torch.autograd.grad(model(x).square().sum(), weights)

    train, infer = compiled(step), compiled(model.forward)
    inputs = [torch.randn(n, 16) for n in range(1, 5)]
    gradients = [bits(step(x)) for x in inputs]
    with torch.no_grad():
        results = [bits([model(x)]) for x in inputs]

    def work(k: int) -> None:
        own_step, own_forward = compiled(step), compiled(model.forward)
        f, g = (train, infer) if functions == "same" else (own_step, own_forward)
        for i in range(RUNS):
            at = (i + k) % len(inputs)
            if k % 2:
                assert bits(f(inputs[at])) == gradients[at]
            else:
                with torch.no_grad():
                    assert bits([g(inputs[at])]) == results[at]

    together(work)


def test_who_takes_calls_over_runs_them_unlocked() -> None:
    """One thread runs, slowly, what another has recorded; that one records on meanwhile."""
    there, taken = queue.SimpleQueue(), queue.SimpleQueue()
    a = torch.randn(700, 700)

    def slow(x: Any) -> Any:
        for _ in range(6):
            x = torch.tanh(x @ a) * 0.5
        return x

    def work(k: int) -> None:
        if k:
            for _ in range(10):
                y = there.get()
                taken.put(y.sum().item())
            return

        def f(x: Any) -> Any:
            y = slow(x)
            there.put(y)
            z = x + 1
            for _ in range(50):  # beside the run of y's calls
                z = torch.cumsum(z * 0.5, 0)
            return y, z, x.sum()

        g = compiled(f)
        for i in range(10):
            x = torch.full((700, 700), float(i))
            y, z, total = g(x)
            want = slow(x)
            assert bits([y]) == bits([want]) and taken.get() == want.sum().item()
            w = x + 1
            for _ in range(50):
                w = torch.cumsum(w * 0.5, 0)
            assert bits([z, total]) == bits([w, x.sum()])

    together(work, 2)


def test_gradients_add_up_in_shared_weights() -> None:
    w = torch.ones(16, 16, requires_grad=True)

    def loss(x: Any) -> Any:
        return ((x @ w).relu() * 2).sum()

    x = torch.ones(4, 16)

    def work(k: int) -> None:
        f = compiled(loss)
        for _ in range(RUNS):
            f(x).backward()

    together(work)
    assert (w.grad == 8 * RUNS * THREADS).all()


@pytest.mark.parametrize("reader", ["eager", "compiled"])
def test_a_tensor_goes_to_another_thread(reader: str) -> None:
    pairs = [(queue.SimpleQueue(), queue.SimpleQueue()) for _ in range(THREADS // 2)]

    def double(y: Any) -> Any:
        return y * 2 - 1

    def work(k: int) -> None:
        there, back = pairs[k // 2]
        if k % 2:
            f = compiled(double) if reader == "compiled" else double
            for _ in range(RUNS):
                back.put(f(there.get()))
            return

        def send(x: Any) -> Any:
            y = (x * 3 + 1).exp().log()
            there.put(y)
            return y + back.get()

        f = compiled(send)
        for i in range(RUNS):
            x = torch.full((5,), float(i))
            y = (x * 3 + 1).exp().log()
            assert bits([f(x)]) == bits([y + double(y)])

    together(work)


def test_both_wait_for_the_other() -> None:
    """Each reads what the other has pending."""
    queues = [queue.SimpleQueue(), queue.SimpleQueue()]

    def work(k: int) -> None:
        def f(x: Any) -> Any:
            y = torch.cumsum(x * 2 + k, 0)
            queues[k].put(y)
            return (queues[1 - k].get() + y).cumsum(0)

        f = compiled(f)
        for i in range(RUNS):
            x = torch.full((4,), float(i))
            each = [torch.cumsum(x * 2 + j, 0) for j in range(2)]
            assert bits([f(x)]) == bits([(each[1 - k] + each[k]).cumsum(0)])

    together(work, 2)


def test_weights_are_written_meanwhile() -> None:
    w = torch.zeros(64)
    lock = threading.Lock()

    def add(x: Any) -> Any:
        y = x + w  # before it changes
        w.add_(1)
        return y * 2

    def work(k: int) -> None:
        x = torch.zeros(64)
        if k % 2:
            f = compiled(lambda x: (x + w) * 2)
            for _ in range(RUNS):
                # Reads of contents that change are the program's own race, which a sanitizer reports.
                with lock if SANITIZED else contextlib.nullcontext():
                    f(x)
            return
        g = compiled(add)
        for _ in range(RUNS):
            with lock:
                before = w[0].item()
                assert g(x).tolist() == [2 * before] * 64

    together(work)
    assert w.tolist() == [RUNS * THREADS // 2] * 64


@pytest.mark.skipif(SANITIZED, reason="threads write one tensor without a lock, which a sanitizer reports")
def test_a_step_of_each_thread_on_the_same_weights() -> None:
    """Without a lock: which step comes first is open, and all end."""
    w = torch.zeros(8, 8, requires_grad=True)

    def step(x: Any) -> Any:
        loss = (x @ w).sin().sum()
        (g,) = torch.autograd.grad(loss, [w])
        with torch.no_grad():
            w.sub_(g, alpha=0.0)
        return loss

    def work(k: int) -> None:
        f = compiled(step)
        x = torch.ones(2, 8)
        for _ in range(RUNS):
            # As without torch.compile, where w changes between forward and backward.
            with contextlib.suppress(RuntimeError):
                f(x)

    together(work)


def test_short_programs(pytestconfig) -> None:
    """A fifth of --programs, all of them from 10,000 on."""
    count = pytestconfig.getoption("--programs")
    rng = random.Random(count)
    for _ in range(count if count >= 10_000 else max(1, count // 5)):
        short_threads.run(rng)


def test_an_error_is_the_threads_own() -> None:
    w = torch.ones(2, 3)

    def take(at: Any) -> Any:
        return torch.take(w, at).sum() + w.sum()

    def work(k: int) -> None:
        f = compiled(take)
        for _ in range(RUNS):
            if k % 2:
                with pytest.raises(IndexError):
                    f(torch.tensor([9]))
            else:
                assert f(torch.tensor([2])).item() == 7

    together(work)
