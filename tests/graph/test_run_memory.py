"""Runs of frozen graphs in one block of memory: what they return, what stays, and how much is held."""

from __future__ import annotations

import threading
from typing import Any

import warptape as torch
import warptape.nn.functional as F
from warptape import _C, nn
from warptape._graphs import GraphFunction, record


def function_of(fn: Any, *args: Any) -> GraphFunction:
    with torch.no_grad():
        return record(fn, args).optimised(freeze=True, gradients=False, plan_memory=True)[0]


def widening(x: Any) -> Any:
    """Results of many sizes, most of which die soon; two that stay, one of them a view."""
    kept = x.exp()
    for rows in (2, 3, 5, 7, 11):
        x = torch.cat([x] * rows).cumsum(0)[: 8 * rows] * 0.5
    y = x @ x.t()
    return y[1:3], kept, y.sum(0).relu()


def held(call: Any) -> int:
    """The most bytes that the allocator took for the call, from an empty cache."""
    call()
    _C._empty_cache()
    before = _C._memory_stats()["reserved_bytes"]
    _C._reset_peak_memory()
    call()
    return int(_C._memory_stats()["peak_reserved_bytes"] - before)


@torch.no_grad()
def test_results_stay() -> None:
    made = function_of(widening, torch.ones(8, 300))
    inputs = [torch.randn(8, 300) for _ in range(6)]
    want = [widening(x) for x in inputs]
    got = [made(x) for x in inputs]  # none is overwritten by a later run
    assert made.graph.planned_bytes > 0
    for a, b in zip(got, want, strict=True):
        assert all(torch.equal(*pair) for pair in zip(a, b, strict=True))
    got[0][0].zero_()
    assert torch.equal(made(inputs[0])[0], want[0][0])


@torch.no_grad()
def test_less_is_held() -> None:
    x = torch.randn(8, 30000)
    made = function_of(widening, x)
    made(x)
    other = record(widening, (x,))
    planned, cached = held(lambda: made(x)), held(lambda: other(x))
    assert made.graph.planned_bytes <= planned < 0.8 * cached


@torch.no_grad()
def test_no_two_that_live_share() -> None:
    """Every value is read at the end: a wrong place would show."""

    def all_live(x: Any) -> Any:
        parts = [torch.full((100 + 37 * i,), float(i)) + x.sum() for i in range(20)]
        return torch.cat(parts + [p * 2 for p in parts])

    made = function_of(all_live, torch.ones(3))
    for _ in range(3):
        x = torch.randn(3)
        assert torch.equal(made(x), all_live(x))


@torch.no_grad()
def test_runs_that_allocate_otherwise() -> None:
    """Sizes that depend on values, and inputs of other layouts."""

    def chosen(x: Any) -> Any:
        y = x[x > 0].exp()
        return (y * 2).sum() + y.contiguous().cumsum(0).sum(), x.t().contiguous() + 1

    made = function_of(chosen, torch.randn(20, 30))
    for seed in range(12):
        torch.manual_seed(seed)
        for x in (torch.randn(20, 30), torch.randn(30, 20).t(), torch.zeros(20, 30)):
            assert all(torch.equal(a, b) for a, b in zip(made(x), chosen(x), strict=True))


def test_not_with_gradients() -> None:
    model, x = nn.Sequential(nn.Linear(30, 30), nn.GELU(), nn.Linear(30, 2)).eval(), torch.randn(4, 30)
    frozen = torch.jit.freeze(torch.jit.trace(model, x, check_trace=False))
    x.requires_grad_(True)
    (grad,) = torch.autograd.grad(frozen(x).sum(), x)
    assert torch.equal(grad, torch.autograd.grad(model(x).sum(), x)[0])
    assert frozen._function.graph.planned_bytes == 0
    with torch.no_grad():
        assert torch.equal(frozen(x), model(x)) and frozen._function.graph.planned_bytes > 0
        assert torch.equal(frozen(x), model(x))


def test_errors_leave_nothing() -> None:
    made = function_of(lambda x, i: F.relu(x.exp() * 2)[i] + 1, torch.ones(5, 400), torch.tensor([1]))
    with torch.no_grad():
        x = torch.randn(5, 400)
        for index in (1, 9, 2, 9, 3):
            before = _C._memory_stats()["allocated_bytes"]
            try:
                result = made(x, torch.tensor([index]))
                assert torch.equal(result, F.relu(x.exp() * 2)[[index]] + 1)
                del result
            except IndexError:
                assert index == 9
            assert _C._memory_stats()["allocated_bytes"] == before


def test_threads() -> None:
    with torch.no_grad():
        made = function_of(widening, torch.ones(8, 300))
        inputs = [torch.randn(8, 300) for _ in range(4)]
        want = [widening(x) for x in inputs]
    wrong = []

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                got = made(inputs[i])
                wrong.extend(i for a, b in zip(got, want[i], strict=True) if not torch.equal(a, b))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
