"""Beside PyTorch, where it is installed: results, their memory layout, gradients and classes of errors."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from . import ROWS, checks, convert, numdiff
from .driver import callable_of, count, rows
from .table import Err, Op

pytestmark = pytest.mark.parity

# PyTorch's gradient of hardsigmoid takes 1 / 6 in single precision in every dtype.
GRADIENT_TOLERANCE = {"nn.functional.hardsigmoid": 1e-7}
Request = pytest.FixtureRequest


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    return pytest.importorskip("torch")


def both(rt: ModuleType, peer: ModuleType, op: Op, request: Request) -> tuple[Any, Any]:
    """The row's callable here and there."""
    here = callable_of(rt, op, request)
    try:
        return here, checks.resolve(peer, op)
    except checks.Missing:
        pytest.skip("not in PyTorch")


def expect_difference(op: Op, check: str, request: Request) -> None:
    """Where PyTorch is known to fail the row's own check, the comparison must fail as well: a reason that no
    longer holds is to be deleted."""
    if check in op.peer:
        assert op.peer_reason, f"{op.id}: peer names {check!r}, but there is no peer_reason"
        request.applymarker(pytest.mark.xfail(reason=op.peer_reason, strict=True))


def probed(op: Op) -> list[str]:
    """A float, an integer and a half precision dtype of the row."""
    return [dtype for dtype in ("float32", "int64", "uint8", "bool", "bfloat16") if dtype in op.dtypes] or [
        op.dtypes[0]
    ]


@rows(lambda op: op.ref is not None)
def test_result(rt: ModuleType, peer: ModuleType, op: Op, request: Request) -> None:
    here, there = both(rt, peer, op, request)
    done = 0
    for dtype in probed(op):
        for number, original, sample in checks.samples_for(op, dtype):
            where = checks.describe(op, dtype, number, sample)
            results = []
            for runtime, call in ((peer, there), (rt, here)):
                args, kwargs = convert.arguments(runtime, sample, original, dtype)
                try:
                    results.insert(0, call(*args, **kwargs))
                except NotImplementedError:
                    if runtime is rt:
                        raise
                    break
            if not results:  # PyTorch has no kernel for this dtype
                continue
            compare(rt, peer, op, *results, where)
            done += 1
    count(request, "values", done)


def compare(rt: ModuleType, peer: ModuleType, op: Op, got: Any, want: Any, where: str) -> None:
    """Asserts equal structure, dtype, shape, strides of results that are not copies by accident, and
    values."""
    found, wanted = checks.tensors(rt, got), checks.tensors(peer, want)
    assert len(found) == len(wanted), where
    if not wanted:
        assert got == want or (got != got and want != want), where
    for one, ref in zip(found, wanted):
        assert convert.dtype_name(rt, one) == convert.dtype_name(peer, ref), where
        assert tuple(one.shape) == tuple(ref.shape), where
        if op.view and ref.numel() > 1:
            assert tuple(one.stride()) == tuple(ref.stride()), f"{where}: strides of a view"
            assert one.storage_offset() == ref.storage_offset(), f"{where}: offset of a view"
        a, b = (convert.widen(convert.to_numpy(runtime, x)) for runtime, x in ((rt, one), (peer, ref)))
        relative, absolute = op.tolerance(convert.dtype_name(rt, one))
        np.testing.assert_allclose(a, b, 2 * relative, 2 * absolute, equal_nan=True, err_msg=where)


def read_part_only(op: Op, args: list[Any]) -> list[Any]:
    """For scatter's kin, PyTorch raises in backward where src is larger than index. For it, the part that is
    read is narrowed beforehand; the gradient with respect to the whole src stays comparable."""
    if not op.name.startswith("scatter") or len(args) < 4 or not hasattr(args[3], "shape"):
        return args
    part = tuple(slice(n) for n in args[2].shape)
    return [*args[:3], args[3][part] if part else args[3], *args[4:]]


@rows(lambda op: op.grad and "float64" in op.dtypes and not op.seeded)
def test_gradient(rt: ModuleType, peer: ModuleType, op: Op, request: Request) -> None:
    here, there = both(rt, peer, op, request)
    expect_difference(op, "gradient", request)
    done = 0
    for number, original, sample in checks.samples_for(op, "float64"):
        where = checks.describe(op, "float64", number, sample)
        gradients = []
        for runtime, call in ((rt, here), (peer, there)):
            args, kwargs, leaves = checks.leaves_of(runtime, op, sample, original, "float64")
            args = read_part_only(op, args) if runtime is peer else args
            results = [x for x in checks.tensors(runtime, call(*args, **kwargs)) if x.requires_grad]
            cotangents = [numdiff.weights_for(runtime, x) for x in results]
            gradients.append(
                runtime.autograd.grad(results, leaves, cotangents, allow_unused=True) if results else []
            )
        assert len(gradients[0]) == len(gradients[1]), where
        tolerance = GRADIENT_TOLERANCE.get(op.name, 1e-9)
        for one, ref in zip(*gradients):
            assert (one is None) == (ref is None), f"{where}: a gradient is missing on one side"
            if ref is not None:
                a, b = convert.to_numpy(rt, one), convert.to_numpy(peer, ref)
                np.testing.assert_allclose(a, b, tolerance, tolerance, equal_nan=True, err_msg=where)
        done += 1
    count(request, "gradients", done)


CASES = [(op, case) for op in ROWS for case in op.errors if not case.stricter]


@pytest.mark.parametrize(
    ("op", "case"),
    CASES,
    ids=[f"{op.id}-{number}" for op in ROWS for number, c in enumerate(op.errors) if not c.stricter],
)
def test_error_class(rt: ModuleType, peer: ModuleType, op: Op, case: Err, request: Request) -> None:
    """Whoever catches what PyTorch raises catches ours."""
    here, there = both(rt, peer, op, request)
    raised: list[BaseException] = []
    for runtime, call in ((peer, there), (rt, here)):
        args, kwargs = error_arguments(runtime, case)
        with pytest.raises(Exception) as caught:
            call(*args, **kwargs)
        raised.append(caught.value)
    theirs, ours = raised
    wanted = next((c for c in type(theirs).__mro__ if c.__module__ == "builtins"), Exception)
    if wanted is AttributeError:
        wanted = TypeError
    assert isinstance(ours, wanted), (
        f"PyTorch: {type(theirs).__name__}: {theirs}\nhere: {type(ours).__name__}: {ours}"
    )
    count(request, "refused", 1)


def error_arguments(runtime: ModuleType, case: Err) -> tuple[list[Any], dict[str, Any]]:
    original = checks.Sample(case.args, case.kwargs, None, True)
    return convert.arguments(runtime, convert.concrete(original, case.dtype), original, case.dtype)
