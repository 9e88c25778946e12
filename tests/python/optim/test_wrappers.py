"""Optimizers that wrap another one, as libraries make them."""

from __future__ import annotations

import warptape as wt
from warptape.optim import SGD, Optimizer
from warptape.optim.optimizer import register_optimizer_step_pre_hook


def test_wrapper_that_calls_no_init() -> None:
    class Wrapper(Optimizer):
        def __init__(self, inner: Optimizer) -> None:
            self.inner = inner

        def step(self, closure=None):
            return self.inner.step(closure)

    p = wt.ones(2, requires_grad=True)
    p.grad = wt.ones(2)
    calls = []
    handle = register_optimizer_step_pre_hook(lambda *args: calls.append(type(args[0]).__name__))
    try:
        Wrapper(SGD([p], lr=0.5)).step()
    finally:
        handle.remove()
    assert p.tolist() == [0.5, 0.5] and calls == ["SGD"]


def test_param_groups_of_a_wrapper_are_those_of_what_it_wraps():
    """A wrapper of both classes, as Lightning Fabric makes it, hands on what it lacks itself."""

    class Wrapper:
        def __init__(self, optimizer):
            self.inner = optimizer
            self.__class__ = type("Wrapped", (Wrapper, type(optimizer)), {})

        def __getattr__(self, name):
            return getattr(self.inner, name)

    p = wt.nn.Parameter(wt.ones(2))
    optimizer = SGD([p], lr=0.1)
    wrapped = Wrapper(optimizer)
    assert isinstance(wrapped, SGD) and wrapped.param_groups is optimizer.param_groups
    p.sum().backward()
    wrapped.zero_grad()
    assert p.grad is None
