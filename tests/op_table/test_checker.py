"""The checker itself: planted bugs must be found, and the sound op they were made from must pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from . import checks, convert, numdiff
from .table import NUMERIC, E, Op, S
from .test_spelling import same_bytes, same_gradient

SOUND = Op(
    "mul",
    lambda r: [S(r(3, 4), r(3, 4)), S(r(2, 1), r(3))],
    np.multiply,
    dtypes=NUMERIC,
    inplace="mul_",
    out=True,
    broadcast=2,
)
Body = Callable[..., Any]


def planted(call: Body, **options: Any) -> Op:
    """The sound row over a broken implementation."""
    return replace(SOUND, call=call, **options)


def product(rt: Any, backward: Body) -> Any:
    """x * y as an autograd.Function with a backward of choice."""

    class Product(rt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return backward(grad, *ctx.saved_tensors)

    return Product.apply


SQUARE = [S(np.array([[0.7, -1.2], [1.1, 0.4]]), np.array([[0.3, 0.9], [-0.6, 1.3]]))]


def with_backward(backward: Body) -> Op:
    return planted(
        lambda rt, x, y: product(rt, backward)(x, y), samples=lambda r: SQUARE, dtypes=("float64", "float32")
    )


def caught(check: Callable[..., Any], rt: Any, op: Op, *args: Any) -> str:
    """The report of a planted bug."""
    with pytest.raises(AssertionError) as found:
        check(rt, op, checks.resolve(rt, op), *args)
    return str(found.value)


def test_sound_op_passes(rt: ModuleType) -> None:
    call = checks.resolve(rt, SOUND)
    assert checks.check_values(rt, SOUND, call, "float32") == 2
    assert checks.check_out(rt, SOUND, call, "float32")
    assert checks.check_broadcast(rt, SOUND, call, "int32")
    assert numdiff.check_gradient(rt, SOUND, call) == 2
    assert numdiff.check_second_gradient(rt, SOUND, call) == 2
    assert numdiff.check_fused(rt, SOUND, call, "float32") == 2
    sound = with_backward(lambda g, x, y: (g * y, g * x))
    assert numdiff.check_gradient(rt, sound, checks.resolve(rt, sound)) == 1
    assert numdiff.check_second_gradient(rt, sound, checks.resolve(rt, sound)) == 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int32"])
def test_wrong_value(rt: ModuleType, dtype: str) -> None:
    def broken(rt: Any, x: Any, y: Any) -> Any:
        z = x * y
        return z + z.abs().max() // 16 + 1 if dtype == "int32" else z * 1.05

    assert "sample 0" in caught(checks.check_values, rt, planted(broken), dtype)


def test_one_wrong_element(rt: ModuleType) -> None:
    def broken(rt: Any, x: Any, y: Any) -> Any:
        z = (x * y).clone()
        z[-1, -1] += 1e-4
        return z

    caught(checks.check_values, rt, planted(broken), "float32")


def test_wrong_dtype(rt: ModuleType) -> None:
    op = planted(lambda rt, x, y: (x * y).to(rt.float64))
    assert "expected dtype float32" in caught(checks.check_values, rt, op, "float32")


def test_wrong_shape(rt: ModuleType) -> None:
    op = planted(lambda rt, x, y: (x * y).reshape(-1))
    assert "expected shape" in caught(checks.check_values, rt, op, "float32")


def test_not_a_tensor(rt: ModuleType) -> None:
    op = planted(lambda rt, x, y: (x * y).tolist())
    assert "expected a tensor" in caught(checks.check_values, rt, op, "float32")


def test_strides_ignored(rt: ModuleType) -> None:
    def broken(rt: Any, x: Any, y: Any) -> Any:
        return x * y if x.is_contiguous() else x.flatten().flip((0,)).reshape(x.shape) * y

    checks.check_values(rt, planted(broken), checks.resolve(rt, planted(broken)), "float32")
    assert "stepped" in caught(checks.check_values, rt, planted(broken), "float32", "stepped")


def test_changed_argument(rt: ModuleType) -> None:
    op = planted(lambda rt, x, y: (x * y, x.add_(1))[0])
    assert "changed an argument" in caught(checks.check_values, rt, op, "float32")


def test_wrong_gradient(rt: ModuleType) -> None:
    assert "gradient 1" in caught(
        numdiff.check_gradient, rt, with_backward(lambda g, x, y: (g * y, g * x * 1.001))
    )


def test_wrong_gradient_of_one_element(rt: ModuleType) -> None:
    def backward(g: Any, x: Any, y: Any) -> Any:
        first = (g * y).clone()
        first[1, 0] = 0
        return first, g * x

    assert "(1, 0)" in caught(numdiff.check_gradient, rt, with_backward(backward))


def test_missing_gradient(rt: ModuleType) -> None:
    assert "gradient 1" in caught(numdiff.check_gradient, rt, with_backward(lambda g, x, y: (g * y, None)))


def test_wrong_second_gradient(rt: ModuleType) -> None:
    op = with_backward(lambda g, x, y: (g * y.detach(), g * x))
    assert numdiff.check_gradient(rt, op, checks.resolve(rt, op)) == 1
    assert "second" in caught(numdiff.check_second_gradient, rt, op)


def test_fused_differs_from_composed(rt: ModuleType) -> None:
    def backward(g: Any, x: Any, y: Any) -> Any:
        return (g * y, g * x) if rt.is_grad_enabled() else (g * y * 1.01, g * x)

    assert "fused" in caught(numdiff.check_fused, rt, with_backward(backward), "float32")


def test_out_ignored(rt: ModuleType) -> None:
    assert "return the tensor given" in caught(
        checks.check_out, rt, planted(lambda rt, x, y, out=None: x * y), "float32"
    )


def test_inplace_not_in_place(rt: ModuleType) -> None:
    assert "tensor itself" in caught(
        checks.check_inplace, rt, replace(SOUND, inplace="mul"), "float32", "contiguous"
    )


def test_view_that_copies(rt: ModuleType) -> None:
    op = Op(
        "Tensor.view",
        lambda r: [S(r(2, 3))],
        lambda x: x.reshape(-1),
        lambda rt, x: x.reshape(-1).clone(),
        view=True,
    )
    caught(checks.check_view, rt, op)


def test_meta_of_another_shape(rt: ModuleType) -> None:
    def broken(rt: Any, x: Any, y: Any) -> Any:
        return (x * y).reshape(-1) if x.device.type == "meta" else x * y

    assert "expected" in caught(checks.check_meta, rt, planted(broken))


def test_error_of_another_class_or_none(rt: ModuleType) -> None:
    case = E("ShapeError", np.ones(2), np.ones(3))

    def raising(rt: Any, x: Any, y: Any) -> Any:
        raise KeyError("mul")

    assert "KeyError" in caught(checks.check_error, rt, planted(raising), case)
    assert "accepted" in caught(checks.check_error, rt, planted(lambda rt, x, y: x), case)


def test_error_that_does_not_name_the_op(rt: ModuleType) -> None:
    if not checks.native(rt):
        pytest.skip("messages are asked of warptape")

    def raising(rt: Any, x: Any, y: Any) -> Any:
        raise rt.ShapeError("shapes differ")

    assert "does not match" in caught(
        checks.check_error, rt, planted(raising), E("ShapeError", np.ones(2), np.ones(3))
    )


def test_missing_op_is_not_silent(rt: ModuleType) -> None:
    with pytest.raises(checks.Missing):
        checks.resolve(rt, replace(SOUND, name="no_such_op"))


def spelled(check: Callable[..., int], rt: Any, other: Body, inplace: bool, *dtype: str) -> int:
    """One of the checks of another spelling of the sound op, on its first sample."""
    original = SOUND.samples(SOUND.rng())[0]
    sample = convert.concrete(original, "float64")
    return check(rt, SOUND, rt.mul, other, inplace, original, sample, *dtype, "mul, as other")


def test_sound_spellings_pass(rt: ModuleType) -> None:
    for other, inplace in ((rt.mul, False), (rt.Tensor.mul_, True)):
        assert spelled(same_bytes, rt, other, inplace, "float64") == 1
        assert spelled(same_gradient, rt, other, inplace) == 1


def test_another_op_is_no_spelling(rt: ModuleType) -> None:
    with pytest.raises(AssertionError, match="as other"):
        spelled(same_bytes, rt, rt.div, False, "float64")
    with pytest.raises(AssertionError, match="the tensor itself"):
        spelled(same_bytes, rt, rt.mul, True, "float64")
    with pytest.raises(AssertionError, match="as other"):
        spelled(same_gradient, rt, lambda x, y: x.detach() * y + x, False)
