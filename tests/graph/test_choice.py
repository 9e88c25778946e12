"""A compiled function goes the faster of its two ways, and gives the same results on both."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import warptape as torch

FIRST = 3  # calls before the first trial
TRIAL = 12  # at most
INTERVAL = 500


def slow(recorded: bool) -> None:
    """Takes a while in one of the two ways."""
    if torch.compiler.is_compiling() == recorded:
        time.sleep(0.003)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, recorded: bool) -> Any:
        ctx.recorded = recorded
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        slow(ctx.recorded)
        return g * 2, None


def forward_of(x: Any, recorded: bool) -> Any:
    slow(recorded)
    return (x * 2 + 1).sin()


def step_of(x: Any, recorded: bool) -> Any:
    return SlowBackward.apply(x.sin(), recorded)


def call(f: Callable[..., Any], x: Any, recorded: bool) -> list[list[float]]:
    """The result, and the gradient of what was recorded."""
    x = x.clone().requires_grad_()
    out = f(x, recorded)
    out.sum().backward()
    return [out.tolist(), x.grad.tolist()]


@pytest.mark.parametrize("noted_is_slow", [False, True])
@pytest.mark.parametrize("function", [forward_of, step_of])
def test_the_faster_way_stays(function: Callable[..., Any], noted_is_slow: bool) -> None:
    compiled = torch.compile(function)
    x = torch.linspace(-1, 1, 11)
    expected = call(function, x, noted_is_slow)
    for _ in range(FIRST):
        assert call(compiled, x, noted_is_slow) == expected
    before = compiled.explain()
    assert (before.calls, before.eager_calls, before.trials, before.choice()) == (FIRST, 0, 0, "")
    for _ in range(TRIAL):
        assert call(compiled, x, noted_is_slow) == expected
    found = compiled.explain()
    assert (found.trials, found.calls) == (1, FIRST + TRIAL) and "measured 1 times" in str(found)
    assert (found.recorded_seconds > 0.003, found.eager_seconds > 0.003) == (noted_is_slow, not noted_is_slow)
    for _ in range(10):
        assert call(compiled, x, noted_is_slow) == expected
    assert compiled.explain().eager_calls - found.eager_calls == 10 * noted_is_slow


def test_it_is_measured_again_after_some_hundred_calls() -> None:
    """What is faster may change: a first trial on one side, a second on the other."""
    recorded = True
    compiled = torch.compile(lambda x: forward_of(x, recorded))
    x = torch.ones(3)
    for _ in range(FIRST + TRIAL):
        compiled(x)
    assert compiled.explain().trials == 1
    eager = compiled.explain().eager_calls
    for _ in range(INTERVAL - TRIAL):
        compiled(x)
    after = compiled.explain()
    assert (after.trials, after.eager_calls) == (1, eager + INTERVAL - TRIAL)
    recorded = False
    for _ in range(2 * TRIAL):
        compiled(x)
    last = compiled.explain()
    assert last.trials == 2 and last.recorded_seconds < last.eager_seconds
    for _ in range(10):
        compiled(x)
    assert compiled.explain().eager_calls == last.eager_calls


def test_short_and_long_calls_that_take_turns_are_compared_with_their_like() -> None:
    turn = 0

    def f(x: Any) -> Any:
        nonlocal turn
        turn += 1
        time.sleep(0.008 * (turn % 2))
        slow(True)
        return x + 1

    compiled = torch.compile(f)
    for _ in range(FIRST + TRIAL + 1):  # a call's time counts when the next one begins
        compiled(torch.ones(1))
    found = compiled.explain()
    assert found.trials == 1 and found.recorded_seconds > found.eager_seconds


@pytest.mark.parametrize("noted_is_slow", [False, True])
def test_a_turn_is_all_that_comes_before_a_backward_pass_and_that(noted_is_slow: bool) -> None:
    """As with a loss called for 5 sequences: its calls are faster in one way, the step in the other."""

    def f(x: Any) -> Any:
        time.sleep(0.0004 * (torch.compiler.is_compiling() != noted_is_slow))
        return SlowBackward.apply(x, noted_is_slow)

    compiled = torch.compile(f)
    x = torch.ones(2, requires_grad=True)
    while not compiled.explain().trials:
        sum(compiled(x).sum() for _ in range(5)).backward()
        assert compiled.explain().calls < 20 * TRIAL
    found = compiled.explain()
    assert abs(found.recorded_seconds - found.eager_seconds) > 0.004  # of one call: 0.0026
    assert (found.recorded_seconds > found.eager_seconds) == noted_is_slow


def test_training_and_evaluation_choose_apart() -> None:
    compiled = torch.compile(lambda x: forward_of(x, torch.is_grad_enabled()))
    x = torch.ones(3)
    for _ in range(FIRST + TRIAL):
        with torch.no_grad():
            compiled(x)
    for _ in range(FIRST + TRIAL):
        compiled(x)
    before = compiled.explain()
    assert before.trials == 2 and before.eager_seconds < 0.003 < before.recorded_seconds
    for _ in range(5):
        compiled(x)
        with torch.no_grad():
            compiled(x)
    assert compiled.explain().eager_calls == before.eager_calls + 5


def test_one_inside_of_another_goes_its_way() -> None:
    ways = []
    inner = torch.compile(lambda x: ways.append(torch.compiler.is_compiling()) or x + 1)

    def outer(x: Any) -> Any:
        slow(False)
        outside = torch.compiler.is_compiling()
        out = inner(x * 2)
        assert ways.pop() == outside
        return out

    compiled = torch.compile(outer)
    for _ in range(FIRST + TRIAL):
        assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert compiled.explain().trials == 1 and inner.explain().calls == 0


@pytest.mark.parametrize("always", ["fullgraph", "adaptive"])
def test_calls_that_are_always_noted(always: str) -> None:
    compiled = torch.compile(lambda x: forward_of(x, True), fullgraph=always == "fullgraph")
    compiled.region.adaptive = always == "fullgraph"
    for _ in range(FIRST + TRIAL):
        compiled(torch.ones(1))
    found = compiled.explain()
    assert (found.trials, found.eager_calls, found.runs) == (0, 0, FIRST + TRIAL)


def test_errors_on_both_ways() -> None:
    def f(x: Any) -> Any:
        slow(True)
        raise KeyError(str(x.sum().item()))

    compiled = torch.compile(f)
    for _ in range(FIRST + TRIAL):
        with pytest.raises(KeyError, match=r"2\.0"):
            compiled(torch.ones(2))
    assert compiled.explain().trials == 1 and not torch.compiler.is_compiling()
    assert torch.compile(lambda x: x + 1)(torch.ones(1)).item() == 2
