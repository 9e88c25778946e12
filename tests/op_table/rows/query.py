"""What a tensor says of itself, and what is set on it: results that are Python values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..table import ALL, FLOATS, E, Op, Rng, S, Sample, Under

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2}
KEPT = ("transposed", "stepped", "offset")


def shapes(*extra: Any) -> Callable[[Rng], list[Sample]]:
    """Tensors of several dims, of none, and without elements."""
    return lambda r: [S(r(*shape), *extra) for shape in ((3, 4), (2, 1, 5), (), (0, 3))]


def query(name: str, ref: Callable[..., Any], samples: Any = None, call: Any = None, **options: Any) -> Op:
    """A row for a question to a tensor; its answer on the meta device is the same."""
    options = {"dtypes": ALL, "grad": False, "layouts": KEPT} | options
    return Op(name, samples or shapes(), ref, call, **options)


def width(dtype: str) -> int:
    return BYTES.get(dtype, 1)


def started_at(rt: Any, x: Any, first: int) -> int:
    return int(x[first:].storage_offset() - x.storage_offset())


def moved_by(rt: Any, x: Any, first: int, dtype: Any) -> int:
    """Bytes between the address of a tensor and that of its part from `first`."""
    return int(x[first:].data_ptr() - x.data_ptr())


def made_under_inference(rt: Any, x: Any) -> list[bool]:
    with rt.inference_mode():
        inside = x + x
    return [x.is_inference(), inside.is_inference()]


def recording(rt: Any, x: Any) -> list[bool]:
    """requires_grad after requires_grad_() and requires_grad_(False), each on the tensor itself."""
    x = x.clone()
    answers = []
    for args in ((), (False,), (True,)):
        if x.requires_grad_(*args) is not x:
            raise AssertionError("requires_grad_ did not return the tensor itself")
        answers.append(x.requires_grad)
    return answers


def forgotten(rt: Any, x: Any) -> list[Any]:
    """A result of recorded arithmetic after detach_: values, no graph, the same tensor."""
    result = x.clone().requires_grad_() * 1
    same = result.detach_() is result
    return [result, same, result.requires_grad, result.grad_fn is None, result.is_leaf]


def pairs(r: Rng) -> list[Sample]:
    return [S(r(2, 3), r(2, 3)), S(r(2, 3), r(3)), S(r(), r()), S(r(0, 2), r(2, 0)), S(r(1), r())]


ROWS = [
    query("Tensor.dim", lambda x: x.ndim),
    query("Tensor.ndimension", lambda x: x.ndim),
    query("numel", lambda x: x.size, method=True, aliases=("Tensor.nelement",)),
    query("Tensor.size", lambda x: x.shape, errors=(E("TypeError", np.ones(2), "x"),)),
    query(
        "Tensor.size",
        lambda x, dim: x.shape[dim],
        lambda r: [S(r(3, 4), 0), S(r(3, 4), 1), S(r(2, 1, 5), -1), S(r(0, 3), -2)],
        label="Tensor.size, one dim",
        errors=(
            E("IndexError", np.ones((2, 3)), 2, match="[Dd]im"),
            E("IndexError", np.ones(3), -2, match="[Dd]im"),
        ),
    ),
    query(
        "Tensor.element_size",
        lambda x, dtype: width(dtype),
        shapes(Under()),
        lambda rt, x, _: x.element_size(),
    ),
    query(
        "Tensor.storage_offset",
        lambda x, first: first * x[0].size,
        lambda r: [S(r(3, 4), 1), S(r(3, 4), 0), S(r(5), 3), S(r(4, 2, 2), 2)],
        started_at,
        layouts=("offset",),
    ),
    query(
        "Tensor.data_ptr",
        lambda x, first, dtype: first * x[0].size * width(dtype),
        lambda r: [S(r(3, 4), 1, Under()), S(r(3, 4), 0, Under()), S(r(5), 3, Under())],
        moved_by,
        layouts=("offset",),
        meta=None,
    ),
    query("is_floating_point", lambda x: x.dtype.kind == "f", method=True),
    query("is_complex", lambda x: False, method=True),
    query("Tensor.is_inference", lambda x: [False, True], call=made_under_inference),
    query("is_same_size", lambda x, y: x.shape == y.shape, pairs, method=True),
    query("Tensor.requires_grad_", lambda x: [True, False, True], call=recording, dtypes=FLOATS),
    query(
        "Tensor.detach_",
        lambda x: [x, True, False, True, True],
        call=forgotten,
        dtypes=FLOATS,
    ),
]
