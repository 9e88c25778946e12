"""What the test files share: parameters made of rows, and the step from a row to its callable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from . import ROWS, convert
from .checks import Call, resolve
from .table import Err, Op


def rows(where: Callable[[Op], Any] = lambda op: True) -> Any:
    """Parametrises a test by the rows that satisfy `where`."""
    chosen = [op for op in ROWS if where(op)]
    return pytest.mark.parametrize("op", chosen, ids=[op.id.replace("nn.functional.", "F.") for op in chosen])


def rows_by(name: str, values: Callable[[Op], Iterable[Any]]) -> Any:
    """Parametrises by (row, value), for the values that `values(row)` gives."""
    pairs = [(op, value) for op in ROWS for value in values(op)]
    ids = [f"{op.id.replace('nn.functional.', 'F.')}-{value}" for op, value in pairs]
    return pytest.mark.parametrize(("op", name), pairs, ids=ids)


def computes_complex(op: Op) -> bool:
    """Whether a row computes with complex numbers."""
    return "complex" in op.id or op.name == "polar"


def applies(op: Op, check: str, config: pytest.Config, case: Err | None) -> bool:
    """Whether a check of a row (of a refused call of it) is made on the runtime and the device under test."""
    if config.getoption("--device") != "cpu" and case and case.host:
        return False
    return config.getoption("--runtime") == "warptape" or not (check in op.peer or (case and case.stricter))


def callable_of(rt: Any, op: Op, request: pytest.FixtureRequest) -> Call:
    """The row's callable; a runtime without it fails, and a factory makes its tensors on the device under
    test."""
    request.node.user_properties.append(("op", op.id))
    call = resolve(rt, op)
    return functools.partial(call, device=convert.device) if op.factory and convert.device != "cpu" else call


def count(request: pytest.FixtureRequest, name: str, number: int) -> None:
    """Adds to the session's totals; a check that compared nothing has not checked anything."""
    if not number:
        pytest.fail("the row has no sample for this check: nothing was compared", pytrace=False)
    request.node.user_properties.append((name, number))
