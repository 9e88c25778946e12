"""What the test files share: parameters made of rows, and the step from a row to its callable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from . import ROWS
from .checks import Call, Missing, native, resolve
from .table import Op


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
    """Whether a row computes with complex numbers, which other devices only hold, view and copy."""
    return "complex" in op.id or op.name == "polar"


def callable_of(rt: Any, op: Op, request: pytest.FixtureRequest) -> Call:
    """The row's callable; skips, or fails under --strict-ops, where the runtime has none."""
    request.node.user_properties.append(("op", op.id))
    if not native(rt) and request.function.__name__.removeprefix("test_") in op.peer:
        pytest.skip("PyTorch fails here, or differs by design")
    if request.config.getoption("--device") != "cpu" and computes_complex(op):
        request.node.user_properties.append(("without_kernel", "complex numbers"))
        pytest.skip("complex numbers are computed on the CPU alone")
    try:
        return on_device(resolve(rt, op), request)
    except Missing:
        request.node.user_properties.append(("missing_op", op.id))
        if request.config.getoption("--strict-ops"):
            pytest.fail(f"{op.name}: not in this build", pytrace=False)
        pytest.skip("not in this build")


# Slots that no CUDA kernel fills yet, by design of what is built first. Anything else that is missing fails.
WITHOUT_CUDA_KERNEL: frozenset[str] = frozenset()


def on_device(call: Call, request: pytest.FixtureRequest) -> Call:
    """The callable; on another device than the CPU it skips, and counts, where a known kernel is missing."""
    if request.config.getoption("--device") == "cpu":
        return call

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except NotImplementedError as error:
            slot, _, rest = str(error).partition(":")
            if "no kernel for device" not in rest or slot not in WITHOUT_CUDA_KERNEL:
                raise
            request.node.user_properties.append(("without_kernel", slot))
            pytest.skip(f"no kernel for {slot} on this device")

    return run


def count(request: pytest.FixtureRequest, name: str, number: int) -> None:
    """Adds to the session's totals; a check that compared nothing has not checked anything."""
    if not number:
        pytest.fail("the row has no sample for this check: nothing was compared", pytrace=False)
    request.node.user_properties.append((name, number))
