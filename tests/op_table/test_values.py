"""Values, result types, layouts, broadcasting, variants, views, the meta device: every row."""

from __future__ import annotations

from types import ModuleType

import pytest

from . import checks
from .driver import callable_of, count, rows, rows_by
from .table import Op

Request = pytest.FixtureRequest


def inplace_dtypes(op: Op) -> tuple[str, ...]:
    """The dtypes in which the op's result has its input's dtype."""
    if not op.inplace or op.view:  # a view changes the shape, not the values: see test_inplace_shape
        return ()
    return tuple(d for d in op.dtypes if checks.expected_dtype(op.result, d) == d)


@rows_by("dtype", lambda op: op.dtypes)
def test_values(rt: ModuleType, op: Op, dtype: str, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "values", checks.check_values(rt, op, call, dtype))


@rows_by("layout", lambda op: op.layouts)
def test_layouts(rt: ModuleType, op: Op, layout: str, request: Request) -> None:
    call = callable_of(rt, op, request)
    done = [checks.check_values(rt, op, call, dtype, layout) for dtype in {op.dtypes[0], op.dtypes[-1]}]
    count(request, "values", sum(done))


@pytest.mark.filterwarnings(
    "ignore:Using a target size",
    "ignore:reduction. 'mean'",
    "ignore:Mean of empty slice",
    "ignore:invalid value",
)
@rows(lambda op: op.broadcast and op.ref is not None)
def test_broadcast(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "values", checks.check_broadcast(rt, op, call, op.dtypes[0]))


@pytest.mark.filterwarnings(
    "ignore:Using a target size",
    "ignore:reduction. 'mean'",
    "ignore:Mean of empty slice",
    "ignore:invalid value",
)
@rows(lambda op: op.broadcast and op.ref is not None)
def test_many_elements(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    dtype = "float32" if "float32" in op.dtypes else op.dtypes[0]
    count(request, "values", checks.check_large(rt, op, call, dtype))


@rows(lambda op: op.method and op.ref is not None)
def test_method(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "values", checks.check_method(rt, op, call, op.dtypes[0]))


@rows_by("dtype", inplace_dtypes)
def test_inplace(rt: ModuleType, op: Op, dtype: str, request: Request) -> None:
    call = callable_of(rt, op, request)
    layouts = [
        form
        for form in ("contiguous", "transposed", "stepped", "offset")
        if form in ("contiguous", *op.layouts)
    ]
    count(request, "values", sum(checks.check_inplace(rt, op, call, dtype, form) for form in layouts))


@rows(lambda op: op.inplace and op.view)
def test_inplace_shape(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "values", checks.check_inplace_shape(rt, op, call))


@rows(lambda op: op.inplace and not op.view and op.grad and "float64" in op.dtypes)
def test_inplace_autograd(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "gradients", checks.check_inplace_autograd(rt, op, call))


@rows_by("dtype", lambda op: op.dtypes if op.out else ())
def test_out(rt: ModuleType, op: Op, dtype: str, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "values", checks.check_out(rt, op, call, dtype))


@rows(lambda op: op.view)
def test_view(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "values", checks.check_view(rt, op, call))


@rows(lambda op: op.meta is not None)
def test_meta(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "values", checks.check_meta(rt, op, call))


@rows(lambda op: op.seeded)
def test_seeded(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "values", checks.check_seeded(rt, op, call))
