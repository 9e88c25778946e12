"""Derivatives where a formula has 0 * inf or 0 / 0, and the derivative has a value all the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt

F64 = wt.float64


def both(function: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    """The gradient without and with a graph of it."""
    return tuple(wt.autograd.grad(function(x), x, create_graph=graph)[0].detach() for graph in (False, True))


@pytest.mark.parametrize(("dtype", "big"), [(wt.float32, 1e13), (F64, 1e110), (wt.bfloat16, 1e13)])
def test_prod_with_zeros_whose_other_factors_overflow(dtype: Any, big: float) -> None:
    x = wt.tensor([[big, 0, 0], [big, big, 0], [big] * 3], dtype=dtype, requires_grad=True)
    for function in (wt.prod, lambda x: x.flatten().prod(0), lambda x: x.prod()):
        for gradient in both(function, x):
            assert gradient.tolist() == [[0, 0, 0]] * 3
    rows = wt.tensor([[big, 0, big, big, 0], [0, big, big, big, big]], dtype=dtype, requires_grad=True)
    for gradient in both(lambda x: x.prod(1).sum(), rows):
        assert gradient[0].tolist() == [0] * 5 and gradient[1, 1:].tolist() == [0] * 4 and gradient[1, 0] > 0


@pytest.mark.parametrize("values", [[1e-200, 1e-200, 3.0, 1e200, 1e200], [1e200, 1e200, 3.0, 1e-200, 1e-200]])
def test_prod_whose_partial_products_leave_the_range(values: list[float]) -> None:
    x = wt.tensor(values, dtype=F64, requires_grad=True)
    plain, recorded = both(wt.prod, x)
    assert not plain.isnan().any()
    wt.testing.assert_close(recorded[2], wt.tensor(1.0, dtype=F64))


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
def test_prod_derivatives_by_the_products_of_the_others(n: int, zeros: int) -> None:
    values = [0.0 if i < zeros else 0.5 + i for i in range(n)][::-1]
    x = wt.tensor(values, dtype=F64, requires_grad=True)
    want = [math.prod(values[:i] + values[i + 1 :]) for i in range(n)]
    for gradient in both(wt.prod, x):
        wt.testing.assert_close(gradient, wt.tensor(want, dtype=F64))
    hessian = wt.autograd.functional.hessian(wt.prod, x.detach())
    for i, j in itertools.product(range(n), repeat=2):
        rest = 0.0 if i == j else math.prod(v for k, v in enumerate(values) if k not in (i, j))
        assert hessian[i, j].item() == pytest.approx(rest)


@pytest.mark.parametrize("dim", [None, 0])
@pytest.mark.parametrize("given", [wt.complex64, wt.complex128, wt.float32, wt.int32])
@pytest.mark.parametrize("asked", [wt.complex64, wt.complex128, wt.float32, F64, wt.int64, wt.int16, wt.bool])
@pytest.mark.parametrize("op", ["sum", "prod", "cumsum", "cumprod"])
def test_dtype_is_that_of_the_numbers_reduced(op: str, given: Any, asked: Any, dim: int | None) -> None:
    for shape in ((1, 7), (7, 1), (3, 5), (1, 1)):
        n = math.prod(shape)
        real = (wt.arange(n) % 5 - 1.0).reshape(shape)
        x = (wt.complex(real, real * 0.5 + 1) if given.is_complex else real).to(given)
        if dim is None and op.startswith("cum"):
            x, dim = x.flatten(), 0
        args = () if dim is None else (dim,)
        got = getattr(wt, op)(x, *args, dtype=asked)
        assert got.dtype == asked
        wt.testing.assert_close(got, getattr(wt, op)(x.to(asked), *args, dtype=asked))


FLAT: dict[str, tuple[Callable[[Any], Any], list[float]]] = {  # 0 with all derivatives at the point
    "std": (lambda x: x.std(correction=0), [2.0, 2.0, 2.0]),
    "std over a dim": (lambda x: x.reshape(1, 3).std(1).sum(), [2.0, 2.0, 2.0]),
    "std of complex": (lambda x: wt.complex(x, x * 2).std(), [2.0, 2.0, 2.0]),
    "norm": (lambda x: x.norm(), [0.0, 0.0, 0.0]),
    "norm 1.5": (lambda x: x.norm(1.5), [0.0, 0.0, 0.0]),
    "norm 3": (lambda x: wt.linalg.vector_norm(x, 3), [0.0, 0.0, 0.0]),
    "norm of complex": (lambda x: wt.linalg.norm(wt.complex(x, x)), [0.0, 0.0, 0.0]),
    "dist": (lambda x: wt.dist(x, wt.ones(3, dtype=F64)), [1.0, 1.0, 1.0]),
    "pairwise_distance": (
        lambda x: wt.nn.functional.pairwise_distance(x, wt.ones(3, dtype=F64), eps=0.0),
        [1.0, 1.0, 1.0],
    ),
    "cdist": (lambda x: wt.cdist(x[None], wt.ones(1, 3, dtype=F64), p=3.0).sum(), [1.0, 1.0, 1.0]),
    "atan2": (lambda x: wt.atan2(x, x * 0).sum(), [0.0, 0.0, 0.0]),
    "sinc": (lambda x: wt.sinc(wt.complex(x, x * 0)).real.sum(), [0.0, 0.0, 0.0]),
    "pow": (lambda x: (x ** wt.zeros(3, dtype=F64)).sum(), [0.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("name", FLAT)
def test_no_nan_where_the_derivative_is_zero(name: str) -> None:
    function, at = FLAT[name]
    x = wt.tensor(at, dtype=F64, requires_grad=True)
    for gradient in both(function, x):
        assert gradient.tolist() == [0, 0, 0]
    tangent = wt.func.jvp(function, (x.detach(),), (wt.tensor([1.0, 2.0, 3.0], dtype=F64),))[1]
    assert tangent.item() == 0
    first = wt.autograd.grad(function(x), x, create_graph=True)[0]
    if first.requires_grad:
        second = wt.autograd.grad(first.sum(), x, allow_unused=True)[0]
        assert second is None or not second.isnan().any()


def test_cosine_similarity_of_zero_vectors() -> None:
    x, y = wt.zeros(2, 3, dtype=F64), wt.ones(2, 3, dtype=F64)
    function = wt.nn.functional.cosine_similarity
    assert wt.func.jvp(lambda t: function(t, x), (x,), (y,))[1].tolist() == [0, 0]


def test_gradient_of_a_sparse_tensor_with_several_values_at_one_place() -> None:
    index, values = wt.tensor([[0, 0, 1], [1, 1, 0]]), wt.tensor([1.0, 2.0, 3.0], dtype=F64)
    for name in ("to_dense", "sum"):
        s = wt.sparse_coo_tensor(index, values, (2, 2)).requires_grad_()
        result = s.to_dense() if name == "to_dense" else wt.sparse.sum(s)
        (gradient,) = wt.autograd.grad((result * result).sum(), s)
        assert gradient.is_coalesced()
        total = [[0, 6], [6, 0]] if name == "to_dense" else [[0, 12], [12, 0]]
        assert gradient.to_dense().tolist() == total


def test_create_graph_warns_of_the_cycle() -> None:
    w = wt.ones(3, requires_grad=True)
    with pytest.warns(UserWarning, match="create_graph=True will create a reference cycle"):
        (w * w).sum().backward(create_graph=True)
    w.grad = None


def test_results_in_which_nothing_of_the_input_is() -> None:
    x = wt.ones(2, 2, requires_grad=True)
    wt.addr(x, wt.ones(2), wt.ones(2), beta=0).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0, 0], [0, 0]]
    assert not wt.vander(x[0], 1).requires_grad
