"""Gradients and second gradients against finite differences; fused against composed backward."""

from __future__ import annotations

from types import ModuleType

import pytest

from . import numdiff
from .driver import callable_of, count, rows, rows_by
from .table import FLOATS, Op

Request = pytest.FixtureRequest


def differentiable(op: Op) -> bool:
    return op.grad and "float64" in op.dtypes


def floating(op: Op) -> tuple[str, ...]:
    """The dtypes in which the two backward paths are compared."""
    if not op.grad:
        return ()
    return tuple(d for d in op.dtypes if d in FLOATS and d != "float16")


@rows(differentiable)
def test_gradient(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "gradients", numdiff.check_gradient(rt, op, call))


@rows(lambda op: differentiable(op) and op.second)
def test_second_gradient(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "second_gradients", numdiff.check_second_gradient(rt, op, call))


@rows_by("dtype", floating)
def test_fused_equals_composed(rt: ModuleType, op: Op, dtype: str, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "fused", numdiff.check_fused(rt, op, call, dtype))


@rows_by("layout", lambda op: op.layouts if differentiable(op) else ())
def test_gradient_layout(rt: ModuleType, op: Op, layout: str, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "gradients", numdiff.check_gradient_layout(rt, op, call, layout))
