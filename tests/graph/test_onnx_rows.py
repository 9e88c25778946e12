"""Rows of the op table as ONNX files, run by onnxruntime beside eager code."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from op_table import checks, convert
from op_table.driver import callable_of, computes_complex, count, rows
from op_table.table import Op

from .test_op_table import GARBAGE, SEED

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
ort.set_default_logger_severity(4)

import warptape as runtime  # noqa: E402
from warptape.onnx._builder import MAPPINGS  # noqa: E402
from warptape.utils._pytree import tree_leaves  # noqa: E402

# Rows of ops that have a form, for uses that have none; torch.onnx.export refuses them.
REFUSED = {
    "Tensor.bfloat16",
    "Tensor.detach_",
    "avg_pool1d, integers",
    "batch_norm, running statistics",
    "linalg.vector_norm, order 0",
    "masked.norm",
    "max_pool2d, indices",
    "max_pool2d, integers",
    "nn.functional.adaptive_max_pool1d",
    "nn.functional.dropout",
    "norm, nuclear",
    "torch.dropout",
    "where, condition alone",
}
# onnxruntime multiplies integers in floating point.
WRONG_THERE = {("prod", "int64"), ("prod", "int32")}
TOLERANCES = {"float64": 1e-6, "float32": 1e-4, "float16": 2e-2}


def has_form(op: Op) -> bool:
    known = MAPPINGS.find(op.name.split(".")[-1]) is not None
    return known and not computes_complex(op) and op.name not in GARBAGE


def cases(op: Op) -> Iterator[tuple[str, Any]]:
    """(description, maker of the arguments): all samples in one dtype, one in each other dtype."""
    layouts = ("contiguous", *op.layouts)
    dtypes = [d for d in op.dtypes if d != "bfloat16" and (op.name, d) not in WRONG_THERE]
    for k, dtype in enumerate(sorted(dtypes, key=lambda d: d != "float32")):
        found = list(checks.samples_for(op, dtype, layouts[k % len(layouts)]))
        for number, original, sample in found[k * 7 % len(found) :][:1] if k else found:

            def make(dtype: str = dtype, k: int = k, original: Any = original, sample: Any = sample) -> Any:
                return convert.arguments(runtime, sample, original, dtype, layouts[k % len(layouts)])

            yield checks.describe(op, dtype, number, sample), make


def eager(rt: Any, call: Any, make: Any) -> list[Any] | None:
    """What eager code computes, as NumPy arrays; None where it raises."""
    rt.manual_seed(SEED)
    args, kwargs = make()
    try:
        return [t.detach().numpy() for t in checks.tensors(rt, call(*args, **kwargs))]
    except Exception:
        return None


def exported(rt: Any, call: Any, make: Any) -> Any:
    """onnxruntime's session of a call's file; None where the call or its dtype has no form there."""

    def recorded(*args: Any, **kwargs: Any) -> Any:
        return tuple(checks.tensors(rt, call(*args, **kwargs)))

    args, kwargs = make()
    try:
        model = rt.onnx.export(recorded, tuple(args), kwargs=kwargs)
        return ort.InferenceSession(model.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    except rt.onnx.UnsupportedOperatorError:
        return None
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error):
            return None
        raise


def compare(got: Any, want: Any, where: str) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape, where
    tolerance = TOLERANCES.get(str(got.dtype), 0)
    np.testing.assert_allclose(got, want, tolerance, tolerance, equal_nan=True, err_msg=where)


@rows(has_form)
def test_row(rt: ModuleType, op: Op, request: pytest.FixtureRequest) -> None:
    call = callable_of(rt, op, request)
    done = 0
    for where, make in cases(op):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = eager(rt, call, make)
            session = None if want is None else exported(rt, call, make)
        if session is None:
            continue
        given = [t.detach().numpy() for t in tree_leaves(make()) if isinstance(t, rt.Tensor)]
        names = [i.name for i in session.get_inputs()]
        try:
            got = session.run(None, dict(zip(names, given, strict=True)))
        except Exception as error:
            if "is not supported" in str(error):
                continue
            raise
        for x, wanted in zip(got, want, strict=True):
            compare(x, wanted, where)
        done += 1
    if op.id in REFUSED:
        assert not done, f"{op.id} has a form in ONNX: take it out of REFUSED"
    else:
        count(request, "through ONNX", done)
