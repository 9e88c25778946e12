"""Operands that are alike (contiguous, of one dtype and shape) take a short way through elementwise ops
(csrc/op/pointwise.cpp), numbers beside them too. With gaps they take the general one: both give the same."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as torch

OPS = ("add", "sub", "mul", "div", "pow", "fmod", "remainder", "floor_divide", "eq", "lt", "bitwise_and")
DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.float64)
NUMBERS = (2, 2.5, True, -3, 2**53 + 1, 2**62 + 12345, 2**63 + 5, 300, float("inf"), 1 + 2j)


def with_gaps(t: torch.Tensor) -> torch.Tensor:
    """The same values, one after every other."""
    wide = torch.zeros(*t.shape[:-1], 2 * t.shape[-1], dtype=t.dtype)
    wide[..., ::2] = t
    return wide[..., ::2]


def outcome(name: str, *args: Any) -> tuple[Any, ...]:
    """What a call gives: dtype, shape and values, or the class of the error and its text."""
    try:
        out = getattr(torch.Tensor, name)(*args)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        return type(error), str(error)
    return out.dtype, tuple(out.shape), repr(out.tolist())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_numbers(name: str, dtype: torch.dtype) -> None:
    for shape in ((7,), (3, 5), (0, 4), (1,)):
        values = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype)
        for number in NUMBERS:
            assert outcome(name, values, number) == outcome(name, with_gaps(values), number)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_tensors(name: str, dtype: torch.dtype) -> None:
    values = torch.arange(1, 13).reshape(3, 4).to(dtype)
    for other in (torch.float32, torch.int32, torch.bool, dtype):
        second = torch.arange(12, 0, -1).reshape(3, 4).to(other)
        for b in (second, second[:1], second[0], second[0, 0]):
            expected = outcome(name, with_gaps(values), b.clone())
            assert outcome(name, values, b.contiguous()) == expected
            assert outcome(name, values, with_gaps(b) if b.ndim else b) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [op + "_" for op in OPS])
def test_in_place(name: str, dtype: torch.dtype) -> None:
    values = torch.arange(1, 13).reshape(3, 4).to(dtype)
    others = [torch.arange(1, 13).reshape(3, 4).to(d) for d in (torch.float32, torch.int32, dtype)]
    for other in [*NUMBERS, *others, others[0][0], others[2][0], torch.ones(2, 3, 4), torch.ones(5)]:
        target, spread = values.clone(), with_gaps(values)
        assert outcome(name, target, other) == outcome(name, spread, other)
        assert repr(target.tolist()) == repr(spread.tolist())
        assert target._version == spread._version - 1  # with_gaps wrote to it


def test_a_smaller_operand_is_written_into_a_larger_one() -> None:
    # The inputs are alike, but not of the shape of what is written.
    target = torch.zeros(2, 3)
    target.copy_(torch.arange(3.0))
    target.mul_(torch.full((3,), 2.0))
    assert target.tolist() == [[0.0, 2.0, 4.0]] * 2
    one = torch.zeros(1, 3).add_(torch.arange(3.0))
    assert one.tolist() == [[0.0, 1.0, 2.0]]
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch.zeros(3).add_(torch.zeros(1, 3))


def test_left_out_arguments() -> None:
    x, w, b = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)
    linear = torch.nn.functional.linear
    assert linear(x, w).tolist() == linear(x, w, None).tolist() == linear(x, w, bias=None).tolist()
    assert linear(x, w, b).tolist() == linear(x, w, bias=b).tolist() == [[4.0] * 4] * 2
    assert torch.add(x, x).tolist() == torch.add(x, other=x).tolist() == torch.add(x, x, alpha=1).tolist()
    with pytest.raises(TypeError, match="missing required argument 'weight'"):
        linear(x)
    with pytest.raises(TypeError, match="expected one of"):
        torch.add(x, x, x)
