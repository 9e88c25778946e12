"""Backward passes of several threads that reach the same leaves, with hooks that run passes of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
from in_threads import together

THREADS, ROUNDS = 4, 30


def in_threads(work: Callable[[int], None]) -> None:
    """Runs `work(number)` some times in each thread."""

    def rounds(number: int) -> None:
        for _ in range(ROUNDS):
            work(number)

    together(rounds, THREADS)


@pytest.mark.parametrize("sparse", [(True,) * THREADS, (False, True) * (THREADS // 2), (False,) * THREADS])
def test_shared_leaf(sparse: tuple[bool, ...]) -> None:
    weight = wt.zeros(50, 40, requires_grad=True)
    index = wt.arange(50)

    def work(number: int) -> None:
        wt.nn.functional.embedding(index, weight, sparse=sparse[number]).sum().backward()

    in_threads(work)
    assert weight.grad is not None
    assert bool((weight.grad.to_dense() == THREADS * ROUNDS).all())


def test_hooks_that_run_passes() -> None:
    shared = wt.ones(1000, requires_grad=True)
    seen = wt.ones(1000, requires_grad=True)

    def hook(gradient: Any) -> None:
        with wt.enable_grad():
            (seen * gradient.detach()).sum().backward()

    def after(leaf: Any) -> None:
        with wt.enable_grad():
            assert wt.autograd.grad((seen * 2).sum(), seen)[0][0].item() == 2

    shared.register_hook(hook)
    shared.register_post_accumulate_grad_hook(after)
    in_threads(lambda number: (shared * 3).sum().backward())
    assert shared.grad is not None and seen.grad is not None
    assert bool((shared.grad == 3 * THREADS * ROUNDS).all()) and bool(
        (seen.grad == 3 * THREADS * ROUNDS).all()
    )


def test_recorded_gradients_of_a_shared_leaf() -> None:
    shared = wt.ones(100, requires_grad=True)
    with pytest.warns(UserWarning, match="create_graph"):
        in_threads(lambda number: (shared * shared).sum().backward(create_graph=True))
    assert shared.grad is not None and shared.grad[0].item() == 2 * THREADS * ROUNDS
    shared.grad = None
