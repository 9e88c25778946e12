"""In-place forms and out= with arguments in the memory that is written: refused, or as with copies."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from . import checks, convert
from .driver import callable_of, rows
from .table import Op, Sample

Request = pytest.FixtureRequest
MESSAGE = "single memory location"

# Where x and another tensor of n elements lie in one memory, and whether they have elements in common.
PLACES = {
    "one behind": (lambda n: (slice(0, n), slice(1, n + 1)), True),
    "one before": (lambda n: (slice(1, n + 1), slice(0, n)), True),
    "every second": (lambda n: (slice(0, 2 * n, 2), slice(0, n)), True),
    "interleaved": (lambda n: (slice(0, 2 * n, 2), slice(1, 2 * n + 1, 2)), False),
    "apart": (lambda n: (slice(0, n), slice(n, 2 * n)), False),
    "same": (lambda n: (slice(0, n), slice(0, n)), True),
}


def in_one_memory(rt: ModuleType, a: np.ndarray, b: np.ndarray, place: str) -> tuple[Any, Any]:
    """Two tensors of a's shape: b's values where they have elements in common."""
    n = a.size
    first, second = PLACES[place][0](n)
    memory = convert.from_array(rt, np.zeros(3 * n + 3, a.dtype))
    x, y = memory[first].view(a.shape), memory[second].view(a.shape)
    x.copy_(rt.from_numpy(a.copy()))
    y.copy_(rt.from_numpy(b.copy()))
    return x, y


def partners(sample: Sample, original: Sample) -> list[int]:
    """Positions of arguments that have the shape and the dtype of the first."""
    first = sample.args[0]
    return [
        i
        for i, value in enumerate(sample.args)
        if i and isinstance(value, np.ndarray) and value.shape == first.shape and value.dtype == first.dtype
    ]


@pytest.mark.parametrize("place", PLACES)
@rows(lambda op: op.inplace and not op.view and op.ref is not None and "float32" in op.dtypes)
def test_inplace(rt: ModuleType, op: Op, place: str, request: Request) -> None:
    callable_of(rt, op, request)
    for number, original, sample in checks.samples_for(op, "float32"):
        if not isinstance(sample.args[0], np.ndarray) or sample.args[0].size < 2:
            continue
        for i in partners(sample, original):
            args, kwargs = convert.arguments(rt, sample, original, "float32")
            args[0], args[i] = in_one_memory(rt, sample.args[0], sample.args[i], place)
            copies = [arg.clone() if isinstance(arg, rt.Tensor) else arg for arg in args]
            want = outcome(copies[0], op.inplace, copies[1:], kwargs)
            got = outcome(args[0], op.inplace, args[1:], kwargs)
            where = f"{checks.describe(op, 'float32', number, sample)}, {op.inplace}, argument {i} {place}"
            if isinstance(got, str) and MESSAGE in got:
                assert PLACES[place][1], f"{where}: refused without need"
            else:
                assert type(got) is type(want), f"{where}: {got} instead of {want}"
                if not isinstance(got, str):
                    np.testing.assert_array_equal(got, want, err_msg=where)


def outcome(x: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return getattr(x, name)(*args, **kwargs).cpu().numpy()
    except Exception as error:
        return str(error)


@pytest.mark.parametrize("place", PLACES)
@rows(lambda op: op.out and op.ref is not None and "float32" in op.dtypes and op.result == "same")
def test_out(rt: ModuleType, op: Op, place: str, request: Request) -> None:
    call = callable_of(rt, op, request)
    for number, original, sample in checks.samples_for(op, "float32"):
        first = sample.args[0] if sample.args else None
        if not isinstance(first, np.ndarray) or first.size < 2 or first.dtype != np.float32:
            continue
        args, kwargs = convert.arguments(rt, sample, original, "float32")
        want = call(*args, **kwargs)
        if not isinstance(want, rt.Tensor) or want.shape != args[0].shape:
            continue
        want = want.cpu().numpy()
        args, kwargs = convert.arguments(rt, sample, original, "float32")
        out, args[0] = in_one_memory(rt, first, first, place)
        where = f"{checks.describe(op, 'float32', number, sample)}, out= {place}"
        refusal = ""
        try:
            call(*args, **kwargs, out=out)
        except RuntimeError as error:
            refusal = str(error)
        if refusal:
            assert MESSAGE in refusal and PLACES[place][1], f"{where}: {refusal}"
        else:
            # On a GPU results of another alignment may be rounded in another order.
            relative = 1e-6 if convert.device == "cuda" else 0
            np.testing.assert_allclose(out.cpu().numpy(), want, relative, relative, err_msg=where)
