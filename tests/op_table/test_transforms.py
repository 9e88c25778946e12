"""Every row under vmap and jvp."""

from __future__ import annotations

from types import ModuleType

import pytest

from . import transforms
from .checks import expected_dtype
from .driver import callable_of, count, rows
from .table import Op
from .test_gradients import differentiable

Request = pytest.FixtureRequest


# Rows whose results are memory that nobody wrote, that change the argument itself or its whole storage, and
# private ops of optimizers.
UNMAPPED = {
    "empty_like",
    "Tensor.new_empty",
    "Tensor.resize_",
    "Tensor.detach_",
    "Tensor.requires_grad_",  # refused within transforms, as in PyTorch
    "as_strided_copy",
    "as_strided_scatter",
}
PRIVATE = ("_foreach_", "_fused_")


def mappable(op: Op) -> bool:
    return (
        bool(op.meta)
        and not op.factory
        and not op.seeded
        and op.name not in UNMAPPED
        and not op.name.startswith(PRIVATE)
    )


@rows(mappable)
def test_vmap(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    dtype = "float64" if "float64" in op.dtypes else op.dtypes[0]
    count(request, "values", transforms.check_vmap(rt, op, call, dtype))


@rows(lambda op: mappable(op) and bool(op.inplace) and not op.view)
def test_vmap_of_inplace(rt: ModuleType, op: Op, request: Request) -> None:
    dtype = "float64" if "float64" in op.dtypes else op.dtypes[0]
    if expected_dtype(op.result, dtype) != dtype:
        pytest.skip("its result is of another dtype than what it would write")
    call = callable_of(rt, op, request)
    count(request, "values", transforms.check_vmap(rt, op, call, dtype, inplace=True))


@rows(lambda op: differentiable(op) and not op.seeded)
def test_jvp(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    count(request, "gradients", transforms.check_jvp(rt, op, call))
