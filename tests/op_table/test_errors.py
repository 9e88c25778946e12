"""Refused calls: the class of the error, and a message that names the op."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from . import ROWS, checks
from .driver import callable_of, count, rows
from .table import Err, Op

Request = pytest.FixtureRequest
CASES = [(op, number, case) for op in ROWS for number, case in enumerate(op.errors)]


@pytest.mark.parametrize(
    ("op", "case"),
    [(op, case) for op, _, case in CASES],
    ids=[f"{op.id}-{number}-{case.kind}" for op, number, case in CASES],
)
def test_error(rt: ModuleType, op: Op, case: Err, request: Request) -> None:
    call = callable_of(rt, op, request)
    checks.check_error(rt, op, call, case)
    count(request, "refused", 1)


def plain(op: Op) -> bool:
    """Rows whose name is the callable itself."""
    return op.call is None and not op.python and "__" not in op.name


@rows(plain)
def test_no_arguments(rt: ModuleType, op: Op, request: Request) -> None:
    refuse(rt, op, request)


@rows(plain)
def test_unknown_keyword(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    original = op.samples(op.rng())[0]
    sample = checks.convert.concrete(original, op.dtypes[0])
    args, kwargs = checks.convert.arguments(rt, sample, original, op.dtypes[0])
    refuse(rt, op, request, *args, **kwargs, no_such_argument=1)
    del call


@rows(lambda op: plain(op) and not op.factory)
def test_wrong_type(rt: ModuleType, op: Op, request: Request) -> None:
    original = op.samples(op.rng())[0]
    sample = checks.convert.concrete(original, op.dtypes[0])
    callable_of(rt, op, request)
    args, kwargs = checks.convert.arguments(rt, sample, original, op.dtypes[0])
    refuse(rt, op, request, object(), *args[1:], **kwargs)


def refuse(rt: ModuleType, op: Op, request: Request, *args: Any, **kwargs: Any) -> None:
    """The call must raise a TypeError that names the op."""
    call = callable_of(rt, op, request)
    native = checks.native(rt)
    with pytest.raises(
        TypeError if native else Exception
    ) as caught:  # PyTorch's own Python layer is less careful
        call(*args, **kwargs)
    if native:
        assert checks.re.search(checks.name_pattern(op), str(caught.value)), (
            f"does not name {op.short}: {caught.value}"
        )
    count(request, "refused", 1)
