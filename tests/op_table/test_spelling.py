"""Every other path of a row's op (method, in-place form, alias) gives the bytes of the row's own path."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from . import checks, convert, numdiff
from .driver import callable_of, count, rows_by
from .table import Op, Sample, writes

Request = pytest.FixtureRequest
SEED = 5


@rows_by("path", lambda op: op.spellings if op.ref is not None or op.seeded else ())
def test_spelling(rt: ModuleType, op: Op, path: str, request: Request) -> None:
    call = callable_of(rt, op, request)
    other = checks.resolve_path(rt, path)
    done = 0
    for dtype in op.dtypes:
        for number, original, sample in checks.samples_for(op, dtype):
            where = f"{checks.describe(op, dtype, number, sample)}, as {path}"
            done += same_bytes(rt, op, call, other, writes(path), original, sample, dtype, where)
    count(request, "values", done)


@rows_by("path", lambda op: op.spellings if op.grad and "float64" in op.dtypes and not op.view else ())
def test_spelling_gradient(rt: ModuleType, op: Op, path: str, request: Request) -> None:
    call = callable_of(rt, op, request)
    other = checks.resolve_path(rt, path)
    done = 0
    for number, original, sample in checks.samples_for(op, "float64"):
        where = f"{checks.describe(op, 'float64', number, sample)}, gradient as {path}"
        if original.grad:
            done += same_gradient(rt, op, call, other, writes(path), original, sample, where)
    count(request, "gradients", done)


def fits(rt: Any, result: Any, target: Any, view: bool) -> bool:
    """An op may write its result into `target`: one tensor of its dtype and, but for views, its shape."""
    if not isinstance(result, rt.Tensor) or not isinstance(target, rt.Tensor):
        return False
    return result.dtype == target.dtype and (view or tuple(result.shape) == tuple(target.shape))


def same_bytes(
    rt: Any,
    op: Op,
    call: Any,
    other: Any,
    inplace: bool,
    original: Sample,
    sample: Sample,
    dtype: str,
    where: str,
) -> int:
    """Runs both paths on equal arguments (and from one seed); 0 if the op cannot be in place for them."""
    args, kwargs = convert.arguments(rt, sample, original, dtype)
    rt.manual_seed(SEED)
    want = call(*args, **kwargs)
    args, kwargs = convert.arguments(rt, sample, original, dtype)
    if inplace and not fits(rt, want, args[0], op.view):
        return 0
    rt.manual_seed(SEED)
    got = other(*args, **kwargs)
    if inplace and got is not args[0]:
        raise AssertionError(f"{where}: did not return the tensor itself")
    wanted, found = checks.tensors(rt, want), checks.tensors(rt, got)
    if type(want) is not type(got) or len(wanted) != len(found) or (not wanted and want != got):
        raise AssertionError(f"{where}: expected {want!r}, got {got!r}")
    for one, ref in zip(found, wanted, strict=True):
        if one.dtype != ref.dtype or tuple(one.shape) != tuple(ref.shape):
            raise AssertionError(f"{where}: expected {ref.dtype} {tuple(ref.shape)}, got {one!r}")
        if convert.to_numpy(rt, one).tobytes() != convert.to_numpy(rt, ref).tobytes():
            raise AssertionError(f"{where}: expected {ref!r}, got {one!r}")
    return 1


def same_gradient(
    rt: Any, op: Op, call: Any, other: Any, inplace: bool, original: Sample, sample: Sample, where: str
) -> int:
    """Gradients by both paths: equal to the byte, in place within rounding (the graph is another one)."""
    gradients: list[Any] = []
    for path in (call, other):
        args, kwargs, leaves = checks.leaves_of(rt, op, sample, original, "float64")
        rt.manual_seed(SEED)
        if path is other and inplace:
            if not fits(rt, gradients[0][1], args[0], False):
                return 0
            args[0] = args[0].clone()
        result = path(*args, **kwargs)
        results = [x for x in checks.tensors(rt, result) if x.requires_grad]
        weights = [numdiff.weights_for(rt, x) for x in results]
        found = rt.autograd.grad(results, leaves, weights, allow_unused=True) if results else []
        gradients.append(([None if x is None else convert.to_numpy(rt, x) for x in found], result))
    (wanted, _), (found, _) = gradients
    for one, ref in zip(found, wanted, strict=True):
        if (one is None) != (ref is None):
            raise AssertionError(f"{where}: one of the two gradients is missing")
        if one is not None and inplace:
            np.testing.assert_allclose(one, ref, rtol=1e-12, atol=1e-12, err_msg=where)
        elif one is not None and one.tobytes() != ref.tobytes():
            raise AssertionError(f"{where}: expected {ref!r}, got {one!r}")
    return 1
