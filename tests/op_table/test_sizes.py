"""Every row at sizes that its samples do not have: dims of 0, and long sums in bfloat16."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from . import checks, convert
from .driver import callable_of, rows
from .sizes import GROWTH, grown, with_zeros
from .table import Op, Sample, expected_dtype

pytestmark = pytest.mark.filterwarnings("ignore")
Request = pytest.FixtureRequest
SAMPLES = 6  # of a row

# Rows whose references are of dims with elements.
NO_REFERENCE = {"index_copy", "index_fill", "masked.mean", "masked.var", "masked.std"}
# NumPy looks at no bounds there, and would write to memory that is not the array's.
NO_REFERENCE |= {"as_strided", "as_strided_copy", "as_strided_scatter"}
# What is left of a sum that cancels is rounding; windows begin at random numbers that are rounded; and there
# are too many combinations.
NOT_LONG = {
    "log_softmax",
    "nn.functional.log_softmax",
    "nn.functional.linear_cross_entropy",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
    "combinations",
}


def outcome(rt: ModuleType, call: Any, sample: Sample, original: Sample, dtype: str, junk: float) -> Any:
    """What the call gives as arrays, or the class of its error. Memory it may take anew is full of `junk`."""
    args, kwargs = convert.arguments(rt, sample, original, dtype)
    held = [rt.full((n,), junk) for n in range(1, 40)]
    del held
    try:
        result = checks.as_numpy(rt, call(*args, **kwargs))
        if rt.cuda.is_available():  # a result of size 0 does not wait for the kernel that finds a bad index
            rt.cuda.synchronize()
        return result
    except Exception as error:
        return type(error).__name__


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.shape == b.shape and np.array_equal(a, b, equal_nan=True)
    return bool(a == b)


def reference_of(op: Op, sample: Sample, dtype: str) -> Any:
    """The row's reference, where NumPy knows an answer for such sizes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return convert.reference(op, sample, dtype)
        except Exception:
            return None


@rows(lambda op: op.ref is not None and not op.name.startswith(("empty", "Tensor.resize_")))
def test_dims_of_size_0(rt: ModuleType, op: Op, request: Request) -> None:
    """Sums over nothing are what NumPy says they are, nothing of the result is memory that nobody wrote, and
    no size ends the process."""
    call = callable_of(rt, op, request)
    dtype = "float32" if "float32" in op.dtypes else op.dtypes[0]
    for _, original in zip(range(SAMPLES), op.samples(op.rng()), strict=False):
        if original.dtypes is not None and dtype not in original.dtypes:
            continue
        for changed in with_zeros(original):
            sample = convert.concrete(changed, dtype)
            where = checks.describe(op, dtype, 0, sample)
            got = outcome(rt, call, sample, changed, dtype, 7.0)
            again = outcome(rt, call, sample, changed, dtype, -3.0)
            assert same(got, again), f"{where}: {got} and {again} in turn"
            want = None if op.name in NO_REFERENCE else reference_of(op, sample, dtype)
            if isinstance(want, np.ndarray) and isinstance(got, np.ndarray) and want.shape == got.shape:
                kind = expected_dtype(op.result, dtype) if not isinstance(op.result, tuple) else dtype
                relative, absolute = op.tolerance(kind)
                np.testing.assert_allclose(got, want, relative, absolute, equal_nan=True, err_msg=where)


@rows(
    lambda op: (
        op.ref is not None and "bfloat16" in op.dtypes and op.result == "same" and op.name not in NOT_LONG
    )
)
def test_long_sums_in_bfloat16(rt: ModuleType, op: Op, request: Request) -> None:
    """The gradient and the result of 300 ones where a sample has one: what float64 gives, rounded."""
    call = callable_of(rt, op, request)
    for _, original in zip(range(SAMPLES), op.samples(op.rng()), strict=False):
        if original.dtypes is not None and "bfloat16" not in original.dtypes:
            continue
        for changed in grown(original):
            results = []
            for dtype in ("float64", "bfloat16"):
                results.append(value_and_gradients(rt, op, call, changed, dtype))
            where = f"{checks.describe(op, 'bfloat16', 0, changed)}, {GROWTH} times as large"
            compare_sums(op, *results, where)


def value_and_gradients(rt: ModuleType, op: Op, call: Any, original: Sample, dtype: str) -> Any:
    """The result, and the gradients of its sum, in float64; None where the call is refused."""
    sample = convert.concrete(original, dtype)
    try:
        if not op.grad or not original.grad:
            args, kwargs = convert.arguments(rt, sample, original, dtype)
            return [array_of(rt, t) for t in checks.tensors(rt, call(*args, **kwargs))]
        args, kwargs, leaves = checks.leaves_of(rt, op, sample, original, dtype)
        outs = checks.tensors(rt, call(*args, **kwargs))
        total = [t.to(rt.float64).sum() for t in outs if t.requires_grad]
        if total:
            rt.stack(total).sum().backward()
        return [array_of(rt, t) for t in outs] + [array_of(rt, leaf.grad) for leaf in leaves]
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        return None


def array_of(rt: ModuleType, tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().to(rt.float64).cpu().numpy()


def compare_sums(op: Op, wide: Any, narrow: Any, where: str) -> None:
    """Both refuse or both answer; a sum that stops growing at 256 is 15 % off."""
    if wide is None or narrow is None:
        return
    for want, got in zip(wide, narrow, strict=True):
        assert (want is None) == (got is None), where
        if want is not None:
            scale = max(1.0, float(np.max(np.abs(want), initial=0, where=np.isfinite(want))))
            relative = max(op.tolerance("bfloat16")[0], 1.6e-2)
            np.testing.assert_allclose(got, want, relative, relative * scale, equal_nan=True, err_msg=where)
