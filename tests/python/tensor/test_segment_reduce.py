"""segment_reduce: whose gradient an extreme's is, where runs have ties, NaNs or an `initial`."""

from __future__ import annotations

import pytest
import warptape as wt

NAN = float("nan")


@pytest.mark.parametrize(
    ("reduce", "initial", "data", "out", "grad"),
    [
        ("max", None, [1, 3, 3, 2], [1, 3], [1, 0.5, 0.5, 0]),
        ("max", 3.0, [1, 3, 3, 2], [3, 3], [0, 0.5, 0.5, 0]),  # a tie with initial is the data's
        ("max", 9.0, [1, 3, 3, 2], [9, 9], [0, 0, 0, 0]),
        ("amin", 2.0, [1, 3, 3, 2], [1, 2], [1, 0, 0, 1]),
        ("max", 9.0, [1, 3, NAN, 2], [9, NAN], [0, 0, 1, 0]),
        ("min", None, [NAN, NAN, 3, NAN], [NAN, NAN], [1, 0.5, 0, 0.5]),
        ("prod", 2.0, [5, 3, 4], [10, 24], [2, 8, 6]),
    ],
)
def test_gradient_goes_to_the_extremes(
    reduce: str, initial: float | None, data: list[float], out: list[float], grad: list[float]
) -> None:
    x = wt.tensor(data, dtype=wt.float64, requires_grad=True)
    lengths = wt.tensor([1, len(data) - 1])
    y = wt.segment_reduce(x, reduce, lengths=lengths, initial=initial)
    wt.testing.assert_close(y.detach(), wt.tensor(out, dtype=wt.float64), equal_nan=True)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == grad


def test_product_of_a_run_with_one_nan() -> None:
    """The gradient of the NaN is the product of the others; theirs is no number."""
    x = wt.tensor([2.0, NAN, 3.0, 5.0, NAN, NAN], requires_grad=True)
    y = wt.segment_reduce(x, "prod", lengths=wt.tensor([1, 3, 2]), initial=2)
    assert y.detach().isnan().tolist() == [False, True, True]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.nan_to_num(-1).tolist() == [2, 30, -1, -1, -1, -1]


@pytest.mark.parametrize(("reduce", "start"), [("sum", 0.0), ("prod", 1.0), ("max", float("-inf"))])
def test_runs_of_nothing(reduce: str, start: float) -> None:
    empty = wt.ones(0, requires_grad=True)
    out = wt.segment_reduce(empty, reduce, lengths=wt.tensor([0, 0]))
    assert out.tolist() == [start, start]
    out.sum().backward()
    assert empty.grad is not None and empty.grad.shape == (0,)
