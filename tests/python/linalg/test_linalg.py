"""Solvers and decompositions: by what defines them, with two derivatives, and what they refuse."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import warptape as wt
from warptape import linalg
from warptape.autograd import gradcheck, gradgradcheck

rng = np.random.default_rng(0)


def any_(*shape):
    return rng.normal(size=shape)


def spd(*shape):
    root = any_(*shape)
    return root @ root.swapaxes(-1, -2) + np.eye(shape[-1])


def symmetric(a):
    return (a + a.mT) / 2


def eye(n):
    return wt.eye(n, dtype=wt.float64)


def close(a, b, tolerance=1e-10):
    assert a.shape == b.shape
    assert wt.allclose(a, b, rtol=tolerance, atol=tolerance), (a, b)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (2, 1, 4, 4), (1, 1), (0, 3, 3)])
def test_square_matrices(shape):
    a, n = wt.tensor(spd(*shape)), shape[-1]
    L = linalg.cholesky(a)
    close(L @ L.mT, a)
    assert bool((L.triu(1) == 0).all())
    close(linalg.cholesky(a, upper=True), L.mT)
    close(linalg.inv(a) @ a, eye(n).expand(shape))
    b = wt.tensor(any_(*shape[:-1], 2))
    close(a @ linalg.solve(a, b), b)
    close(linalg.solve(a, b.mT, left=False) @ a, b.mT)
    close(L @ linalg.solve_triangular(L, b, upper=False), b)
    close(L.mT @ linalg.solve_triangular(L.mT, b, upper=True), b)
    values, vectors = linalg.eigh(a)
    close(vectors @ values.diag_embed() @ vectors.mT, a)
    close(vectors.mT @ vectors, eye(n).expand(shape))
    assert bool((values.diff(dim=-1) >= 0).all())
    close(linalg.det(a), values.prod(-1), 1e-8)
    sign, log = linalg.slogdet(a)
    close(log, values.log().sum(-1))
    assert bool((sign == 1).all())
    close(wt.cholesky_inverse(L), linalg.inv(a))
    close(a @ wt.cholesky_solve(b, L), b)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 5, 2), (2, 2, 5), (3, 3)])
def test_any_matrices(shape):
    a = wt.tensor(any_(*shape))
    m, n = shape[-2:]
    k = min(m, n)
    for mode, size in (("reduced", k), ("complete", m)):
        q, r = linalg.qr(a, mode)
        close(q @ r, a)
        close(q.mT @ q, eye(size).expand((*shape[:-2], size, size)))
        assert bool((r.tril(-1) == 0).all())
    assert linalg.qr(a, "r").Q.numel() == 0
    u, s, vh = linalg.svd(a, full_matrices=False)
    close(u @ s.diag_embed() @ vh, a)
    assert bool((s.diff(dim=-1) <= 0).all()) and bool((s >= 0).all())
    assert linalg.svd(a).U.shape[-1] == m and linalg.svd(a).Vh.shape[-2] == n
    close(linalg.svdvals(a), linalg.eigvalsh(a @ a.mT if m < n else a.mT @ a).flip(-1).sqrt())
    p = linalg.pinv(a)  # Penrose's four conditions
    close(a @ p @ a, a)
    close(p @ a @ p, p)
    close((a @ p).mT, a @ p)
    close((p @ a).mT, p @ a)
    assert linalg.matrix_rank(a).eq(k).all()
    close(linalg.matrix_norm(a, "nuc"), s.sum(-1))
    close(linalg.matrix_norm(a, 2, keepdim=True).flatten(), s.amax(-1).flatten())
    close(linalg.matrix_norm(a, -2), s.amin(-1))


def test_rank_and_pinv_of_low_rank():
    a = wt.tensor(any_(5, 2) @ any_(2, 4))
    assert linalg.matrix_rank(a).item() == 2
    assert linalg.matrix_rank(a, atol=1e9).item() == 0 and linalg.matrix_rank(a, 1e9).item() == 0
    p = linalg.pinv(a)
    close(a @ p @ a, a)
    assert linalg.matrix_rank(symmetric(a[:4]), hermitian=True).item() == 4


def test_least_squares():
    a, b = wt.tensor(any_(6, 3)), wt.tensor(any_(6, 2))
    found = linalg.lstsq(a, b)
    close(a.mT @ (a @ found.solution - b), wt.zeros(3, 2, dtype=wt.float64))  # the normal equations
    close(found.residuals, (a @ found.solution - b).square().sum(0))
    assert found.rank.item() == 3 and found.singular_values.shape == (3,)
    wide = linalg.lstsq(a.mT, b[:3])
    close(a.mT @ wide.solution, b[:3])
    assert wide.residuals.numel() == 0
    assert linalg.lstsq(a, b[:, 0]).solution.shape == (3,)


def test_functions_of_matrices():
    a = wt.tensor(any_(2, 3, 3))
    values = wt.tensor([[1.0, -2.0, 30.0], [0.1, 0.2, -0.3]], dtype=wt.float64)
    vectors = linalg.qr(a).Q
    built = vectors @ values.diag_embed() @ vectors.mT
    close(linalg.matrix_exp(built) / 1e13, vectors @ values.exp().diag_embed() @ vectors.mT / 1e13)
    close(linalg.matrix_exp(a) @ linalg.matrix_exp(-a), eye(3).expand(2, 3, 3))
    close(linalg.matrix_power(a, 5), a @ a @ a @ a @ a)
    close(linalg.matrix_power(a, -2) @ a @ a, eye(3).expand(2, 3, 3))
    close(linalg.matrix_power(a, 0), eye(3).expand(2, 3, 3))
    close(wt.logdet(wt.tensor([[2.0, 0.0], [0.0, 3.0]])), wt.tensor(np.log(6.0, dtype=np.float32)), 1e-6)
    assert wt.logdet(-wt.eye(3)).isnan() and wt.logdet(wt.zeros(2, 2)).item() == -float("inf")
    assert linalg.cond(wt.diag(wt.tensor([4.0, 2.0]))).item() == 2.0
    assert linalg.cond(wt.diag(wt.tensor([4.0, 2.0])), 1).item() == 2.0
    assert not linalg.cond(wt.zeros(2, 2), 1).isfinite()


def test_tensors_as_maps():
    a, b = wt.tensor(any_(2, 3, 6)), wt.tensor(any_(2, 3))
    close(wt.tensordot(linalg.tensorinv(a), a, 2), eye(6))
    close(wt.tensordot(a, linalg.tensorsolve(a, b), 1), b)
    moved = wt.tensor(any_(6, 2, 3))
    close(wt.tensordot(moved, linalg.tensorsolve(moved, b, dims=(0,)), ([0], [0])), b)


def test_products():
    x, y = wt.tensor(any_(2, 3)), wt.tensor(any_(2, 3))
    np.testing.assert_allclose(linalg.cross(x, y).numpy(), np.cross(x.numpy(), y.numpy()))
    close(wt.cross(x.mT, y.mT), linalg.cross(x, y).mT)
    close(linalg.vecdot(x, y), (x * y).sum(-1))
    np.testing.assert_allclose(linalg.vander(x[0], N=4).numpy(), np.vander(x[0].numpy(), 4, increasing=True))
    cube = any_(2, 3, 4)
    assert linalg.diagonal(wt.tensor(cube)).tolist() == cube.diagonal(0, -2, -1).tolist()
    assert wt.dist(x, y, 1).item() == pytest.approx(np.abs((x - y).numpy()).sum())
    close(wt.chain_matmul(x, y.mT, x), x @ y.mT @ x)


GRADIENTS = {
    "cholesky": (lambda a: linalg.cholesky(symmetric(a)), [spd(2, 3, 3)]),
    "cholesky upper": (lambda a: linalg.cholesky(symmetric(a), upper=True), [spd(3, 3)]),
    "inv": (linalg.inv, [spd(2, 3, 3)]),
    "solve": (linalg.solve, [spd(2, 3, 3), any_(3, 2)]),
    "solve vectors": (linalg.solve, [spd(2, 3, 3), any_(2, 3)]),
    "solve right": (lambda a, b: linalg.solve(a, b, left=False), [spd(3, 3), any_(2, 2, 3)]),
    "upper": (lambda a, b: linalg.solve_triangular(a, b, upper=True), [spd(2, 3, 3), any_(3, 2)]),
    "lower": (
        lambda a, b: linalg.solve_triangular(a, b, upper=False, unitriangular=True),
        [spd(3, 3), any_(2, 3, 2)],
    ),
    "lower right": (
        lambda a, b: linalg.solve_triangular(a, b, upper=False, left=False),
        [spd(3, 3), any_(2, 3)],
    ),
    "det": (linalg.det, [any_(2, 3, 3)]),
    "slogdet": (lambda a: linalg.slogdet(a)[1], [any_(2, 3, 3)]),
    "qr": (linalg.qr, [any_(2, 4, 3)]),
    "qr wide": (linalg.qr, [any_(3, 5)]),
    "eigh": (lambda a: (linalg.eigh(symmetric(a))[0], linalg.eigh(symmetric(a))[1].abs()), [any_(2, 3, 3)]),
    "svd": (lambda a: [t.abs() for t in linalg.svd(a, full_matrices=False)], [any_(2, 4, 3)]),
    "svd wide": (lambda a: [t.abs() for t in linalg.svd(a, full_matrices=False)], [any_(2, 4)]),
    "svdvals": (linalg.svdvals, [any_(4, 3)]),
    "pinv": (linalg.pinv, [any_(4, 3)]),
    "pinv wide": (linalg.pinv, [any_(2, 3, 4)]),
    "lstsq": (lambda a, b: linalg.lstsq(a, b).solution, [any_(4, 3), any_(4, 2)]),
    "matrix_power": (lambda a: linalg.matrix_power(a, 5), [any_(3, 3)]),
    "matrix_exp": (linalg.matrix_exp, [any_(2, 3, 3)]),
    "nuclear norm": (lambda a: linalg.matrix_norm(a, "nuc"), [any_(2, 3, 4)]),
    "cross": (linalg.cross, [any_(2, 3), any_(2, 3)]),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_derivatives(name):
    f, arrays = GRADIENTS[name]

    def outputs(*inputs):
        found = f(*inputs)
        return tuple(found) if isinstance(found, tuple | list) else found

    inputs = [wt.tensor(a, requires_grad=True) for a in arrays]
    assert gradcheck(outputs, inputs)
    assert gradgradcheck(outputs, inputs, atol=1e-4)


def test_derivative_of_a_singular_determinant():
    a = wt.tensor(any_(3, 2) @ any_(2, 3), requires_grad=True)
    linalg.det(a).backward()
    minors = [
        [
            (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a.detach().numpy(), i, 0), j, 1))
            for j in range(3)
        ]
        for i in range(3)
    ]
    np.testing.assert_allclose(a.grad.numpy(), minors, atol=1e-10)


def test_equal_eigenvalues_have_a_derivative():
    a = wt.eye(3, dtype=wt.float64).requires_grad_()
    linalg.eigvalsh(a).sum().backward()
    close(a.grad, eye(3))


def test_refusals():
    a = wt.ones(2, 2)
    singular = wt.stack([wt.eye(2), wt.ones(2, 2)])
    for call in (linalg.inv, lambda x: linalg.solve(x, a)):
        with pytest.raises(linalg.LinAlgError, match=r"\(Batch element 1\).*singular"):
            call(singular)
    with pytest.raises(RuntimeError, match="singular"):
        linalg.solve_triangular(wt.zeros(2, 2), a, upper=True)
    with pytest.raises(linalg.LinAlgError, match="the leading minor of order 2 is not positive-definite"):
        linalg.cholesky(wt.ones(3, 3))
    L, info = linalg.cholesky_ex(wt.stack([wt.eye(3), wt.ones(3, 3), -wt.eye(3)]))
    assert info.tolist() == [0, 2, 1] and L[0].tolist() == wt.eye(3).tolist() and not L[1:].any()
    assert linalg.inv_ex(singular).info.tolist() == [0, 1]
    with pytest.raises(wt._C.ShapeError, match="must be batches of square matrices, but they are 2 by 3"):
        linalg.inv(wt.ones(2, 3))
    with pytest.raises(wt._C.ShapeError, match="at least 2 dimensions"):
        linalg.det(wt.ones(3))
    with pytest.raises(wt._C.DtypeError, match=r"Got torch.int64"):
        linalg.inv(wt.ones(2, 2, dtype=wt.int64))
    with pytest.raises(wt._C.DtypeError, match="Low precision"):
        linalg.svd(wt.ones(2, 2, dtype=wt.float16))
    with pytest.raises(TypeError, match="expected a Tensor"):
        linalg.inv([[1.0]])
    with pytest.raises(wt._C.ShapeError, match="Incompatible shapes"):
        linalg.solve(a, wt.ones(3, 1))
    with pytest.raises(ValueError, match="unrecognized mode"):
        linalg.qr(a, "other")
    with pytest.raises(RuntimeError, match="Expected UPLO"):
        linalg.eigh(a, "X")
    with pytest.raises(RuntimeError, match="only differentiable with"):
        linalg.svd(wt.ones(2, 3, requires_grad=True))
    with pytest.raises(linalg.LinAlgError, match=r"linalg.svd: "):
        linalg.svd(wt.full((2, 2), float("nan")))
    with pytest.raises(wt._C.ShapeError, match="must have length 3"):
        linalg.cross(a, a)


@pytest.mark.parity
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parity(dtype):
    torch = pytest.importorskip("torch")
    tolerance = 2e-4 if dtype == "float32" else 1e-10
    calls = {
        "inverse": spd(2, 3, 3),
        "logdet": spd(2, 3, 3),
        "pinverse": any_(4, 3),
        "matrix_exp": any_(2, 3, 3),
        "linalg.cond": spd(3, 3),
        "linalg.eigvalsh": spd(2, 4, 4),
        "linalg.svdvals": any_(3, 5),
        "linalg.matrix_rank": any_(3, 5),
        "linalg.cholesky": spd(3, 3),
    }
    for name, array in calls.items():
        found, expected = (
            operator.attrgetter(name)(lib)(lib.tensor(array, dtype=getattr(lib, dtype)))
            for lib in (wt, torch)
        )
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=tolerance, atol=tolerance)
