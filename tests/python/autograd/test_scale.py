"""Long graphs, threads, interruption and leaks."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import time_limits
import warptape as wt

# ---- long graphs -----------------------------------------------------------------------------------------


def test_a_chain_of_a_million_ops_runs_and_is_freed() -> None:
    before = wt._C._memory_stats()["allocated_bytes"]
    x = wt.ones(1, requires_grad=True)
    y = x
    for _ in range(1_000_000):
        y = -y
    y.backward()
    assert x.grad.tolist() == [1.0]
    del y
    z = x
    for _ in range(1_000_000):
        z = -z
    del z  # freed without a backward pass, without recursion
    gc.collect()
    assert wt._C._memory_stats()["allocated_bytes"] <= before + 1024


def test_a_chain_of_views_and_in_place_changes() -> None:
    x = wt.ones(4, requires_grad=True)
    y = x * 1
    for i in range(20_000):
        y[i % 4].mul_(1.0)
    y.sum().backward()
    assert x.grad.tolist() == [1.0] * 4


def test_a_wide_graph() -> None:
    x = wt.ones(1, dtype=wt.float64, requires_grad=True)
    wt.stack([x * i for i in range(20_000)]).sum().backward()
    assert x.grad.item() == sum(range(20_000))


class Successor(wt.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x + 1

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


def test_a_call_of_a_function_costs_the_same_at_any_depth() -> None:
    y = wt.ones(1, requires_grad=True)
    rounds: list[float] = []
    for _ in range(40):
        started = time.perf_counter()
        for _ in range(500):
            y = Successor.apply(y)
        rounds.append(time.perf_counter() - started)
    assert sorted(rounds[-10:])[5] < 3 * sorted(rounds[:10])[5]
    assert len({type(y.grad_fn)}) == 1 and "_backward_cls" in vars(Successor)


# ---- threads ---------------------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * count

    def run(i: int) -> None:
        try:
            results[i] = work(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    return results


def test_backward_from_several_threads_into_one_leaf() -> None:
    x = wt.ones(10_000, requires_grad=True)

    def work(i: int) -> None:
        for _ in range(20):
            (x * (i + 1)).sum().backward()

    assert in_threads(4, work) == [None] * 4
    assert set(x.grad.tolist()) == {20.0 * (1 + 2 + 3 + 4)}


def test_backward_through_one_graph_from_several_threads() -> None:
    x = wt.ones(1000, dtype=wt.float64, requires_grad=True)
    shared = (x * 3).exp()
    losses = [(shared * i).sum() for i in range(1, 5)]
    assert in_threads(4, lambda i: losses[i].backward(retain_graph=True)) == [None] * 4
    expected = wt.ones(1000, dtype=wt.float64).mul(3).exp() * 3 * (1 + 2 + 3 + 4)
    assert wt.allclose(x.grad, expected, rtol=1e-12)


def test_a_leaf_whose_graphs_come_and_go_in_several_threads() -> None:
    x = wt.ones(1 << 15, requires_grad=True)  # large enough for ops to release the GIL

    def work(_: int) -> float:
        got = [wt.autograd.grad((x * 3 + x).sum(), x)[0][0].item() for _ in range(50)]
        return min(got) + max(got)

    assert in_threads(4, work) == [8.0] * 4


def test_modes_belong_to_a_thread() -> None:
    with wt.no_grad():
        assert in_threads(1, lambda i: wt.is_grad_enabled()) == [True]
    with wt.inference_mode():
        assert in_threads(1, lambda i: wt.is_inference_mode_enabled()) == [False]


def test_backward_inside_a_hook() -> None:
    x = wt.tensor([2.0], requires_grad=True)
    inner: list[float] = []

    def hook(g: Any) -> None:
        z = wt.tensor([3.0], requires_grad=True)
        with wt.enable_grad():
            (z * z * g.detach()).sum().backward()
        inner.append(z.grad.item())

    y = x * 5
    y.register_hook(hook)
    y.sum().backward()
    assert inner == [6.0] and x.grad.tolist() == [5.0]


# ---- interruption ----------------------------------------------------------------------------------------


def interrupted_after(seconds: float, work: Callable[[], Any]) -> float:
    """Seconds from Ctrl-C to KeyboardInterrupt; `work` must last longer than `seconds`. Another process sends
    the signal and notes the time, so that work which keeps the interpreter to itself counts in full."""
    send = f"sent = time.monotonic(); os.kill({os.getpid()}, signal.SIGINT); print(sent)"
    command = [sys.executable, "-I", "-c", f"import os, signal, time; time.sleep({seconds}); {send}"]
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a background job starts with it ignored
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        try:
            with pytest.raises(KeyboardInterrupt):
                work()
            came = time.monotonic()
            return came - float(sender.communicate()[0])
        finally:
            sender.kill()
            signal.signal(signal.SIGINT, before)


def repeated(call: Callable[[], Any]) -> Callable[[], Any]:
    """Calls without end that keep no result: kept ones would fill the memory where the signal comes late."""

    def work() -> None:
        while True:
            call()

    return work


LONG: dict[str, Callable[[], Callable[[], Any]]] = {}


def long(make: Callable[[], Callable[[], Any]]) -> Callable[[], Callable[[], Any]]:
    LONG[make.__name__] = make
    return make


@long
def elementwise() -> Callable[[], Any]:
    x = wt.ones(1 << 22)
    return repeated(x.exp)


@long
def one_elementwise_op() -> Callable[[], Any]:
    x = wt.ones(1, 1 << 20).expand(4000, 1 << 20)
    return lambda: x.sum()


@long
def product() -> Callable[[], Any]:
    x = wt.ones(8192, 8192)
    return lambda: x @ x


@long
def batched_product() -> Callable[[], Any]:
    x = wt.ones(512, 1024, 1024)
    return lambda: x @ x


@long
def one_sorted_row() -> Callable[[], Any]:
    x = wt.arange(1 << 25)
    return repeated(x.sort)


@long
def few_scanned_rows() -> Callable[[], Any]:
    x = wt.ones(3, 1 << 26, dtype=wt.int64)
    return repeated(lambda: x.cumsum(1))


@long
def draws() -> Callable[[], Any]:
    x = wt.empty(1 << 27)
    return repeated(x.normal_)


@long
def scattered_values() -> Callable[[], Any]:
    x, index = wt.zeros(1 << 20), wt.arange(1 << 25) % (1 << 20)
    values = wt.ones(1 << 25)
    return repeated(lambda: x.scatter_add_(0, index, values))


@long
def backward_of_many_ops() -> Callable[[], Any]:
    x = wt.ones(1 << 20, requires_grad=True)
    y = x
    for _ in range(300):
        y = y * 1.0001
    y = y.sum()

    def work() -> None:
        for _ in range(100):
            y.backward(retain_graph=True)

    return work


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_comes_through(name: str) -> None:
    work = LONG[name]()
    limit = time_limits.seconds(0.5)  # 0.2 s on a quiet machine
    assert any(interrupted_after(0.3, work) < limit for _ in range(3)), "too late three times"
    assert (wt.ones(2, 2) @ wt.ones(2, 2)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert wt.is_grad_enabled()


# ---- leaks -----------------------------------------------------------------------------------------------


def hook_on_itself() -> list[Any]:
    x = wt.ones(1, requires_grad=True)
    x.register_hook(lambda g: x and None)
    return [x]


def hook_on_a_result() -> list[Any]:
    x = wt.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: y and None)
    return [x, y]


def hook_on_the_loss() -> list[Any]:
    x = wt.ones(1, requires_grad=True)
    y = x * 2
    loss = (y * y).sum()
    y.register_hook(lambda g: loss and None)
    x.register_hook(lambda g: loss and None)
    return [x, y, loss]


def hook_after_backward() -> list[Any]:
    x, y, loss = hook_on_the_loss()
    loss.backward(retain_graph=True)
    return [x, y, loss]


def post_accumulate_hook() -> list[Any]:
    x = wt.ones(1, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda p: x)
    (x * 2).sum().backward()
    return [x]


def node_hook() -> list[Any]:
    x = wt.ones(1, requires_grad=True)
    y = (x * 2).sum()
    y.grad_fn.register_hook(lambda gi, go: y and None)
    y.grad_fn.register_prehook(lambda go: y and None)
    return [x, y]


def saved_tensor_hooks() -> list[Any]:
    x = wt.ones(1, requires_grad=True)
    box: list[Any] = []
    with wt.autograd.graph.saved_tensors_hooks(lambda t: (t, box), lambda p: p[0]):
        y = x.exp()
    box.append(y)
    return [x, y]


def custom_function() -> list[Any]:
    class F(wt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, box: Any) -> Any:
            ctx.box = box
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2, None

    box: list[Any] = []
    x = wt.ones(1, requires_grad=True)
    y = F.apply(x, box)
    box.append(y)
    return [x, y]


def attribute_cycle() -> list[Any]:
    x = wt.ones(1, requires_grad=True)
    x.me = x
    y = x * 2
    y.other = [x, y]
    return [x, y]


def own_grad() -> list[Any]:
    x = wt.ones(1, requires_grad=True)
    x.grad = wt.ones(1)
    x.grad.owner = x
    return [x, x.grad]


def view_of_base() -> list[Any]:
    x = wt.ones(3, requires_grad=True)
    y = x * 2
    v = y[1:]
    y.view_of_me = v
    return [x, y, v]


def collected_in_a_cycle(t: Any) -> None:
    """Makes the Python object of t garbage that only the collector frees; it meets the tensor first."""

    class Owner:
        pass

    owner = Owner()
    owner.me, owner.tensor = owner, t  # type: ignore[attr-defined]


def test_a_collected_gradient_keeps_its_history() -> None:
    x = wt.ones(2, requires_grad=True)
    y = wt.ones(2, requires_grad=True)
    (x**2 + y * x + y**2).backward(wt.ones(2), create_graph=True)
    collected_in_a_cycle(x.grad)
    gc.collect()
    total = 2 * x.grad + y.grad
    assert wt.autograd.grad(total, x, wt.ones(2))[0].tolist() == [5.0, 5.0]


def test_a_collected_leaf_keeps_hooks_gradient_and_attributes() -> None:
    x = wt.ones(1, requires_grad=True)
    seen: list[float] = []
    x.register_hook(lambda g: seen.append(g.item()))
    (x * 2).backward()
    x.name_of_mine, x.list_of_mine = "kept", ["kept"]  # the collector knows the dict of one with a list
    graph = (x * 3).sum()
    collected_in_a_cycle(x)
    del x
    gc.collect()
    graph.backward()
    leaf = graph.grad_fn.next_functions[0][0].next_functions[0][0].variable
    assert seen == [2.0, 3.0] and leaf.grad.item() == 5.0 and leaf.name_of_mine == "kept"
    assert leaf.list_of_mine == ["kept"]


def test_a_graph_larger_than_a_young_walk_is_freed_by_a_full_collection() -> None:
    def make() -> Any:
        x = wt.ones(1, requires_grad=True)
        x.register_hook(lambda g: loss and None)
        loss = x
        for _ in range(5000):
            loss = -loss
        return weakref.ref(loss)

    alive = make()
    gc.collect(0)
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "make",
    [
        hook_on_itself,
        hook_on_a_result,
        hook_on_the_loss,
        hook_after_backward,
        post_accumulate_hook,
        node_hook,
        saved_tensor_hooks,
        custom_function,
        attribute_cycle,
        own_grad,
        view_of_base,
    ],
)
def test_no_leak(make: Callable[[], list[Any]]) -> None:
    alive = [weakref.ref(t) for _ in range(100) for t in make()]
    gc.collect()
    gc.collect()
    assert sum(r() is not None for r in alive) == 0
