"""Solvers and decompositions: by what defines them, with two derivatives, and what they refuse."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
import warptape as wt
from warptape import linalg
from warptape.autograd import gradcheck, gradgradcheck

rng = np.random.default_rng(0)


INF = float("inf")
FIELDS = pytest.mark.parametrize("field", ["real", "complex"])


def any_(*shape, field="real"):
    return rng.normal(size=shape) + (1j * rng.normal(size=shape) if field == "complex" else 0)


def spd(*shape, field="real"):
    root = any_(*shape, field=field)
    return root @ root.conj().swapaxes(-1, -2) + np.eye(shape[-1])


def hermitian(a):
    return (a + a.mH) / 2


def eye(n, field="real"):
    return wt.eye(n, dtype=wt.complex128 if field == "complex" else wt.float64)


def close(a, b, tolerance=1e-10):
    assert a.shape == b.shape and a.dtype == b.dtype
    assert wt.allclose(a, b, rtol=tolerance, atol=tolerance), (a, b)


@FIELDS
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (2, 1, 4, 4), (1, 1), (0, 3, 3)])
def test_square_matrices(shape, field):
    a, n = wt.tensor(spd(*shape, field=field)), shape[-1]
    L = linalg.cholesky(a)
    close(L @ L.mH, a)
    assert bool((L.triu(1) == 0).all())
    close(linalg.cholesky(a, upper=True), L.mH)
    close(linalg.inv(a) @ a, eye(n, field).expand(shape))
    b = wt.tensor(any_(*shape[:-1], 2, field=field))
    close(a @ linalg.solve(a, b), b)
    close(linalg.solve(a, b.mH, left=False) @ a, b.mH)
    close(L @ linalg.solve_triangular(L, b, upper=False), b)
    close(L.mH @ linalg.solve_triangular(L.mH, b, upper=True), b)
    values, vectors = linalg.eigh(a)
    close((vectors * values.unsqueeze(-2)) @ vectors.mH, a)
    close(vectors.mH @ vectors, eye(n, field).expand(shape))
    assert bool((values.diff(dim=-1) >= 0).all())
    close(linalg.eigvalsh(a.triu(), "U"), values)
    close(linalg.eigvals(a).real.sort().values, values)
    close(linalg.det(a), values.prod(-1).to(a.dtype), 1e-8)
    sign, log = linalg.slogdet(a)
    close(log, values.log().sum(-1))
    close(sign, wt.ones_like(sign))
    close(wt.cholesky_inverse(L), linalg.inv(a))
    close(a @ wt.cholesky_solve(b, L), b)


@FIELDS
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 5, 2), (2, 2, 5), (3, 3)])
def test_any_matrices(shape, field):
    a = wt.tensor(any_(*shape, field=field))
    m, n = shape[-2:]
    k = min(m, n)
    for mode, size in (("reduced", k), ("complete", m)):
        q, r = linalg.qr(a, mode)
        close(q @ r, a)
        close(q.mH @ q, eye(size, field).expand((*shape[:-2], size, size)))
        assert bool((r.tril(-1) == 0).all())
    assert linalg.qr(a, "r").Q.numel() == 0
    assert bool((r.diagonal(dim1=-2, dim2=-1).imag == 0).all() if a.is_complex() else True)
    u, s, vh = linalg.svd(a, full_matrices=False)
    close((u * s.unsqueeze(-2)) @ vh, a)
    assert bool((s.diff(dim=-1) <= 0).all()) and bool((s >= 0).all())
    assert linalg.svd(a).U.shape[-1] == m and linalg.svd(a).Vh.shape[-2] == n
    close(linalg.svdvals(a), linalg.eigvalsh(a @ a.mH if m < n else a.mH @ a).flip(-1).sqrt())
    p = linalg.pinv(a)  # Penrose's four conditions
    close(a @ p @ a, a)
    close(p @ a @ p, p)
    close((a @ p).mH, a @ p)
    close((p @ a).mH, p @ a)
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
    assert linalg.matrix_rank(hermitian(a[:4]), hermitian=True).item() == 4


@FIELDS
def test_least_squares(field):
    a, b = wt.tensor(any_(6, 3, field=field)), wt.tensor(any_(6, 2, field=field))
    found = linalg.lstsq(a, b, driver="gelsd")
    close(a.mH @ (a @ found.solution - b), wt.zeros(3, 2, dtype=a.dtype))  # the normal equations
    close(found.residuals, (a @ found.solution - b).abs().square().sum(0))
    assert found.rank.item() == 3 and found.singular_values.shape == (3,)
    wide = linalg.lstsq(a.mH, b[:3])
    close(a.mH @ wide.solution, b[:3])
    assert wide.residuals.numel() == 0
    assert linalg.lstsq(a, b[:, 0]).solution.shape == (3,)
    told = {None: (0, 1, 0), "gels": (2, 0, 0), "gelss": (2, 1, 3), "gelsy": (0, 1, 0)}
    for driver, sizes in told.items():
        assert tuple(t.numel() for t in linalg.lstsq(a, b, driver=driver)[1:]) == sizes, driver
    with pytest.raises(linalg.LinAlgError, match="does not have full rank"):
        linalg.lstsq(a * wt.tensor([1.0, 0.0, 1.0]), b, driver="gels")
    with pytest.raises(RuntimeError, match="should be one of"):
        linalg.lstsq(a, b, driver="gelsx")


@FIELDS
def test_functions_of_matrices(field):
    a = wt.tensor(any_(2, 3, 3, field=field))
    values = wt.tensor([[1.0, -2.0, 30.0], [0.1, 0.2, -0.3]], dtype=wt.float64)
    vectors = linalg.qr(a).Q
    built = (vectors * values.unsqueeze(-2)) @ vectors.mH
    grown = (vectors * values.exp().unsqueeze(-2)) @ vectors.mH
    close(linalg.matrix_exp(built) / 1e13, grown / 1e13)
    close(linalg.matrix_exp(a) @ linalg.matrix_exp(-a), eye(3, field).expand(2, 3, 3))
    assert linalg.matrix_exp(a * float("nan")).isnan().all()
    close(linalg.matrix_power(a, 5), a @ a @ a @ a @ a)
    close(linalg.matrix_power(a, -2) @ a @ a, eye(3, field).expand(2, 3, 3))
    close(linalg.matrix_power(a, 0), eye(3, field).expand(2, 3, 3))
    close(wt.logdet(wt.tensor([[2.0, 0.0], [0.0, 3.0]])), wt.tensor(np.log(6.0, dtype=np.float32)), 1e-6)
    assert wt.logdet(-wt.eye(3)).isnan() and wt.logdet(wt.zeros(2, 2)).item() == -float("inf")
    assert linalg.cond(wt.diag(wt.tensor([4.0, 2.0]))).item() == 2.0
    assert linalg.cond(wt.diag(wt.tensor([4.0, 2.0])), 1).item() == 2.0
    assert linalg.cond(wt.zeros(2, 2), 1).item() == float("inf")


@FIELDS
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (1, 1), (0, 3, 3)])
def test_eigenvectors(shape, field):
    a = wt.tensor(any_(*shape, field=field))
    whole = a.to(wt.complex128)
    values, vectors = linalg.eig(a)
    close(whole @ vectors, vectors * values.unsqueeze(-2))
    close(linalg.vector_norm(vectors, dim=-2), wt.ones(shape[:-1], dtype=wt.float64))
    close(linalg.eigvals(a), values)
    assert linalg.eigvals(hermitian(a)).dtype == linalg.eig(hermitian(a)).eigenvectors.dtype == wt.complex128


@FIELDS
@pytest.mark.parametrize(
    "shape", [(3, 3), (2, 4, 2), (2, 1, 2, 4), (70, 70), (2, 40, 70), (70, 40), (0, 3, 3)]
)
def test_triangular_factors(shape, field):
    a = wt.tensor(any_(*shape, field=field))
    m, n = shape[-2:]
    p, lower, upper = linalg.lu(a)
    close(p @ lower @ upper, a)
    assert bool(((p == 0) | (p == 1)).all()) and bool((p.sum(-1) == 1).all()) and bool((p.sum(-2) == 1).all())
    close(lower.triu(), wt.eye(m, min(m, n), dtype=a.dtype).expand(lower.shape))
    assert bool((upper.tril(-1) == 0).all())
    packed, pivots = linalg.lu_factor(a)
    assert pivots.dtype == wt.int32 and pivots.shape == (*shape[:-2], min(m, n))
    for found, expected in zip(wt.lu_unpack(packed, pivots), (p, lower, upper), strict=True):
        close(found, expected)
    if m != n:
        return
    b = wt.tensor(any_(*shape[:-1], 2, field=field))
    close(a @ linalg.lu_solve(packed, pivots, b), b)
    close(a.mH @ linalg.lu_solve(packed, pivots, b, adjoint=True), b)
    close(linalg.lu_solve(packed, pivots, b.mH, left=False) @ a, b.mH)
    close(linalg.lu_solve(packed, pivots, b.mH, left=False, adjoint=True) @ a.mH, b.mH)
    close(wt.lu_solve(b[..., :1], *wt.lu(a)), linalg.solve(a, b[..., :1]))


def test_triangular_factors_of_singular_matrices():
    a = wt.tensor([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 2.0]]])
    assert linalg.lu_factor_ex(a).info.tolist() == [2, 0, 1]
    assert wt.lu(a, get_infos=True)[2].tolist() == [2, 0, 1]
    p, lower, upper = linalg.lu(a)
    close(p @ lower @ upper, a)
    with pytest.raises(linalg.LinAlgError, match=r"\(Batch element 0\): U\[2,2\] is zero"):
        linalg.lu_factor(a)
    with pytest.raises(RuntimeError, match="without pivoting is not implemented"):
        linalg.lu(a, pivot=False)
    packed, pivots = linalg.lu_factor(wt.eye(3))
    right = wt.ones(3, 1)
    with pytest.raises(wt._C.DtypeError, match="pivots should be"):
        linalg.lu_solve(packed, pivots.long(), right)
    with pytest.raises(wt._C.ShapeError, match="Number of pivots"):
        linalg.lu_solve(packed, pivots[:2], right)
    with pytest.raises(wt._C.ShapeError, match="Incompatible shapes"):
        linalg.lu_solve(packed, pivots, right[:2])
    with pytest.raises(RuntimeError, match="between 1 and"):
        wt.lu_unpack(packed, pivots - 1)
    with pytest.raises(wt._C.DtypeError, match="int32"):
        wt.lu_unpack(packed, pivots.long())
    assert wt.lu_unpack(packed, pivots, unpack_data=False).L.numel() == 0


def test_logarithm_of_complex_determinants():
    a = any_(2, 3, 3, field="complex")
    sign, log = linalg.slogdet(wt.tensor(a))
    close(sign * log.exp(), wt.tensor(np.linalg.det(a)))
    close(wt.logdet(wt.tensor(a)), wt.tensor(np.log(np.linalg.det(a))))
    assert linalg.slogdet(wt.zeros(2, 2, dtype=wt.complex64)).sign.item() == 0


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


def polar(a):
    """The unitary factor: it depends on how the phases of U and of V differ, and on nothing arbitrary."""
    u, _, vh = linalg.svd(a, full_matrices=False)
    return u @ vh


GRADIENTS = {
    "cholesky": (lambda a: linalg.cholesky(hermitian(a)), [spd(2, 3, 3)]),
    "cholesky upper": (lambda a: linalg.cholesky(hermitian(a), upper=True), [spd(3, 3)]),
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
    "slogdet": (lambda a: linalg.slogdet(a)[0 if a.is_complex() else 1 :], [any_(2, 3, 3)]),
    "logdet": (wt.logdet, [spd(2, 3, 3)]),
    "eig": (lambda a: (linalg.eig(a)[0], linalg.eig(a)[1].abs()), [any_(2, 3, 3)]),
    "eigvals": (linalg.eigvals, [any_(3, 3)]),
    "cholesky_solve": (lambda b, a: wt.cholesky_solve(b, a.tril()), [any_(3, 2), spd(2, 3, 3)]),
    "qr": (linalg.qr, [any_(2, 4, 3)]),
    "qr wide": (linalg.qr, [any_(3, 5)]),
    "eigh": (lambda a: (linalg.eigh(hermitian(a))[0], linalg.eigh(hermitian(a))[1].abs()), [any_(2, 3, 3)]),
    "lu": (lambda a: linalg.lu(a)[1:], [any_(2, 3, 3)]),
    "lu tall": (lambda a: linalg.lu(a)[1:], [any_(2, 4, 2)]),
    "lu wide": (lambda a: linalg.lu_factor(a)[0], [any_(2, 4)]),
    "lu_solve": (lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b), [any_(2, 3, 3), any_(3, 2)]),
    "lu_solve adjoint": (
        lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b, left=False, adjoint=True),
        [any_(3, 3), any_(2, 2, 3)],
    ),
    "svd": (lambda a: [t.abs() for t in linalg.svd(a, full_matrices=False)], [any_(2, 4, 3)]),
    "svd wide": (lambda a: [t.abs() for t in linalg.svd(a, full_matrices=False)], [any_(2, 4)]),
    "polar": (polar, [any_(2, 3, 3)]),
    "polar tall": (polar, [any_(4, 2)]),
    "svdvals": (linalg.svdvals, [any_(4, 3)]),
    "pinv": (linalg.pinv, [any_(4, 3)]),
    "pinv wide": (linalg.pinv, [any_(2, 3, 4)]),
    "lstsq": (lambda a, b: linalg.lstsq(a, b)[:2], [any_(4, 3), any_(4, 2)]),
    "matrix_power": (lambda a: linalg.matrix_power(a, 5), [any_(3, 3)]),
    "negative power": (lambda a: linalg.matrix_power(a, -2), [spd(3, 3)]),
    "matrix_exp": (linalg.matrix_exp, [any_(2, 3, 3)]),
    "nuclear norm": (lambda a: linalg.matrix_norm(a, "nuc"), [any_(2, 3, 4)]),
    "1-norm": (lambda a: linalg.matrix_norm(a, 1), [any_(2, 3, 4)]),
    "cond": (linalg.cond, [any_(2, 3, 3)]),
    "cross": (linalg.cross, [any_(2, 3), any_(2, 3)]),
    "vecdot": (linalg.vecdot, [any_(2, 3), any_(2, 3)]),
    "multi_dot": (lambda *m: linalg.multi_dot(m), [any_(2, 3), any_(3, 4), any_(4, 2)]),
    "vander": (lambda a: linalg.vander(a, N=4), [any_(2, 3)]),
}


@FIELDS
@pytest.mark.parametrize("name", GRADIENTS)
def test_derivatives(name, field):
    f, arrays = GRADIENTS[name]
    if field == "complex":  # of less weight, so that what is positive definite stays so
        source = np.random.default_rng(1)
        arrays = [a + 0.4j * source.normal(size=a.shape) for a in arrays]

    def outputs(*inputs):
        found = f(*inputs)
        return tuple(found) if isinstance(found, tuple | list) else found

    inputs = [wt.tensor(a, requires_grad=True) for a in arrays]
    assert gradcheck(outputs, inputs)
    assert gradgradcheck(outputs, inputs, atol=1e-4)


@FIELDS
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 8, 8), (2, 16, 5), (2, 5, 16), (17, 4), (4, 17), (16, 1)])
def test_qr_of_small_matrices_is_that_of_lapack(field, dtype, shape):
    a = any_(*shape, field=field).astype(np.result_type(dtype, np.complex64) if field == "complex" else dtype)
    a[..., 0, :1] = 0  # what has no sign
    limit = 2e-5 if dtype == np.float32 else 1e-13
    for mode in ("reduced", "complete"):
        found = linalg.qr(wt.tensor(a), mode=mode)
        for x, y in zip(found, np.linalg.qr(a, mode=mode), strict=True):
            np.testing.assert_allclose(x.numpy(), y, atol=limit)
        assert linalg.diagonal(found.R).is_complex() == (field == "complex")
        assert not np.iscomplexobj(a) or np.abs(linalg.diagonal(found.R).imag.numpy()).max() < limit
    for scale in (1e-30, 1e30) if dtype == np.float32 else (1e-200, 1e200):
        Q, R = linalg.qr(wt.tensor((a * dtype(scale)).astype(a.dtype)))
        np.testing.assert_allclose((Q @ (R / scale)).numpy(), a, atol=limit)
    assert linalg.qr(wt.zeros(4, 3)).R.tolist() == wt.zeros(3, 3).tolist()
    assert linalg.qr(wt.full((4, 3), float("nan"))).R.isnan().any()


@FIELDS
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("rank", range(4))
def test_derivative_of_a_determinant_of_any_rank(field, by_columns, rank):
    exact = any_(3, rank, field=field) @ any_(rank, 3, field=field)
    minors = [
        [(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(exact, i, 0), j, 1)) for j in range(3)]
        for i in range(3)
    ]
    a = wt.tensor(exact.T).mT if by_columns else wt.tensor(exact)
    a.requires_grad_()
    for create_graph in (False, True):
        found = wt.autograd.grad(linalg.det(a), a, wt.tensor(1.0, dtype=a.dtype), create_graph=create_graph)[
            0
        ]
        np.testing.assert_allclose(found.detach().numpy(), np.conj(minors), atol=1e-10)


@FIELDS
@pytest.mark.parametrize("by_columns", [False, True])
def test_derivatives_by_kept_factors_are_those_of_derivatives_that_have_one(field, by_columns):
    A, B = wt.tensor(any_(2, 4, 4, field=field)), wt.tensor(any_(2, 4, 3, field=field))
    if by_columns:
        A = A.mT.contiguous().mT
    for f, inputs in {
        lambda a: linalg.slogdet(a)[1]: (A,),
        linalg.det: (A,),
        linalg.solve: (A, B),
        lambda a, b: linalg.solve(a, b.mH, left=False): (A, B),
        lambda a, b: linalg.solve(a[0], b): (A, B),
    }.items():
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        out = f(*leaves)
        grad = wt.tensor(any_(*out.shape, field="complex" if out.is_complex() else "real"))
        for once, twice in zip(
            wt.autograd.grad(out, leaves, grad, retain_graph=True),
            wt.autograd.grad(out, leaves, grad, create_graph=True),
            strict=True,
        ):
            close(once, twice.detach(), 1e-10)


def test_equal_eigenvalues_have_a_derivative():
    a = wt.eye(3, dtype=wt.float64).requires_grad_()
    linalg.eigvalsh(a).sum().backward()
    close(a.grad, eye(3))


def test_losses_that_depend_on_phases_are_refused():
    a = wt.tensor(any_(3, 3, field="complex"), requires_grad=True)
    for vectors in (linalg.eig(a)[1], linalg.eigh(hermitian(a))[1], linalg.svd(a).U):
        with pytest.raises(RuntimeError, match="specified up to multiplication by e"):
            vectors.imag.sum().backward()
    assert a.grad is None


def test_pinv_of_hermitian_matrices():
    h = hermitian(wt.tensor(any_(3, 3)))
    close(linalg.pinv(h.tril() + 9 * h.triu(1), hermitian=True), linalg.pinv(h))  # reads the lower triangle
    a, b = (h.clone().requires_grad_() for _ in range(2))
    linalg.pinv(a, hermitian=True).pow(2).sum().backward()
    linalg.pinv(b).pow(2).sum().backward()
    close(a.grad, b.grad)


def test_each_matrix_is_scaled_by_its_own_norm():
    a = wt.stack([wt.eye(2), 60 * wt.eye(2), wt.zeros(2, 2), 1e3 * wt.eye(2)]).reshape(2, 2, 2, 2)
    found = linalg.matrix_exp(a.requires_grad_())
    assert found[0, 0, 0, 0].item() == pytest.approx(math.e, rel=1e-6)
    assert found[1, 0].tolist() == wt.eye(2).tolist() and not found[1, 1].isfinite().all()
    found[0].sum().backward()
    assert a.grad[0, 0, 0, 0].item() == pytest.approx(math.e, rel=1e-6) and not a.grad[1, 0].any()


def test_norms_at_the_edges():
    """As PyTorch's: one number's norm is its absolute value, nan has no part in the gradient of
    the largest, and equal singular values share theirs."""
    for order in (float("nan"), -1e308, 2.0**31, 1e20, 3.0, INF):
        for x in (wt.tensor(-8.5), wt.tensor([-8.5], dtype=wt.bfloat16), wt.tensor([[-8.5], [2.0]])):
            x.requires_grad_()
            found = linalg.vector_norm(x, order, dim=-1 if x.ndim else None)
            found.sum().backward()
            assert found.flatten()[0].item() == 8.5 and x.grad.flatten()[0].item() == -1
    assert linalg.vector_norm(wt.tensor(9.9e29, dtype=wt.bfloat16)).isfinite()
    assert linalg.vector_norm(wt.zeros(0), 1e308).item() == 0
    with pytest.raises(RuntimeError, match="does not have an identity"):
        linalg.vector_norm(wt.zeros(0), INF)
    for order in (INF, -INF):
        x = wt.tensor([float("nan"), 1.0], requires_grad=True)
        linalg.vector_norm(x, order).backward()
        assert x.grad.tolist() == [0, 0]
    for order in (2, -2):
        x = wt.eye(2).requires_grad_()
        linalg.matrix_norm(x, order).backward()
        assert x.grad.tolist() == [[0.5, 0], [0, 0.5]]


def test_matrices_without_elements():
    for shape in ((0, 5), (5, 0), (0, 0), (2, 0, 3)):
        a = wt.zeros(shape)
        assert linalg.matrix_rank(a, rtol=wt.zeros(0)).tolist() == wt.zeros(shape[:-2]).tolist()
        assert linalg.pinv(a, rtol=wt.zeros(0)).shape == a.mT.shape
        assert linalg.cond(a).tolist() == wt.zeros(shape[:-2]).tolist()
        P, L, U = linalg.lu(a)
        assert P.equal(wt.eye(shape[-2]).expand_as(P)) and (P @ L @ U).shape == a.shape
        assert linalg.lu_factor_ex(a).info.tolist() == wt.zeros(shape[:-2]).tolist()
    assert wt.lu_unpack(wt.zeros(3, 0), wt.tensor([1, 3, 3], dtype=wt.int32)).P.tolist() == wt.eye(3).tolist()
    assert wt.triangular_solve(wt.ones(2, 3, 2), wt.eye(3)).cloned_coefficient.shape == (2, 3, 3)


def test_powers_of_elements():
    assert linalg.vander(wt.tensor(1), N=2).tolist() == [[1, 1]]
    large = linalg.vander(wt.tensor([3e10 + 2e10j], dtype=wt.complex64), N=4)
    assert wt.view_as_real(large).isfinite().all()
    assert linalg.vander(wt.tensor([2, 3], dtype=wt.uint8), N=9)[0, -1].item() == 256
    with pytest.raises(RuntimeError, match="N must be greater than 1"):
        linalg.vander(wt.tensor([1.0, 2.0]), N=1)
    with pytest.raises(wt._C.DtypeError, match="got bool"):
        linalg.vander(wt.tensor([True, False]))


def test_weights_of_covariances_below_zero():
    for weights in ({"aweights": wt.tensor([0.1, float("nan")])}, {"fweights": wt.tensor([1, -1])}):
        with pytest.raises(RuntimeError, match="weights cannot be negative"):
            wt.cov(wt.tensor([1.0, 2.0]), **weights)


def test_gradient_of_a_singular_logarithm():
    a = wt.tensor([[1.0, 2.0], [2.0, 4.0]], requires_grad=True)
    linalg.slogdet(a).logabsdet.backward()
    assert a.grad.tolist() == [[-INF, INF], [INF, -INF]]


def test_refusals():
    a = wt.ones(2, 2)
    singular = wt.stack([wt.eye(2), wt.ones(2, 2)])
    for call in (linalg.inv, lambda x: linalg.solve(x, a)):
        with pytest.raises(linalg.LinAlgError, match=r"\(Batch element 1\).*singular"):
            call(singular)
    with pytest.raises(linalg.LinAlgError, match="the leading minor of order 2 is not positive-definite"):
        linalg.cholesky(wt.ones(3, 3))
    L, info = linalg.cholesky_ex(wt.stack([wt.eye(3), wt.ones(3, 3), -wt.eye(3)]))
    assert info.tolist() == [0, 2, 1] and L[0].tolist() == wt.eye(3).tolist()
    assert L[1].tolist() == [[1, 0, 0], [1, 0, 0], [1, 1, 1]]  # factored until the second minor
    inverse, info = linalg.inv_ex(singular)
    assert info.tolist() == [0, 2] and inverse[0].tolist() == wt.eye(2).tolist()
    assert inverse[1].isinf().all()
    with pytest.raises(wt._C.ShapeError, match="must be batches of square matrices, but they are 2 by 3"):
        linalg.inv(wt.ones(2, 3))
    with pytest.raises(wt._C.ShapeError, match="at least 2 dimensions"):
        linalg.det(wt.ones(3))
    with pytest.raises(wt._C.DtypeError, match=r"Got int64"):
        linalg.inv(wt.ones(2, 2, dtype=wt.int64))
    with pytest.raises(wt._C.DtypeError, match="Low precision"):
        linalg.svd(wt.ones(2, 2, dtype=wt.float16))
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        linalg.inv([[1.0]])
    with pytest.raises(wt._C.ShapeError, match="Incompatible shapes"):
        linalg.solve(a, wt.ones(3, 1))
    with pytest.raises(ValueError, match="unrecognized mode"):
        linalg.qr(a, "other")
    with pytest.raises(RuntimeError, match="Expected UPLO"):
        linalg.eigh(a, "X")
    with pytest.raises(wt._C.DtypeError, match=r"same dtype, got .*float32 and .*complex64"):
        linalg.solve_triangular(a, a.to(wt.complex64), upper=True)
    with pytest.raises(linalg.LinAlgError, match=r"linalg.eigvals: "):
        linalg.eigvals(wt.full((2, 2), float("nan")))
    with pytest.raises(linalg.LinAlgError, match=r"linalg.svd: "):
        linalg.svd(wt.full((2, 2), float("nan")))
    with pytest.raises(wt._C.ShapeError, match="must have length 3"):
        linalg.cross(a, a)


PARITY = {
    "inverse": spd(2, 3, 3),
    "logdet": spd(2, 3, 3),
    "pinverse": any_(4, 3),
    "matrix_exp": any_(2, 3, 3),
    "linalg.cond": spd(3, 3),
    "linalg.cholesky": spd(2, 3, 3),
    "linalg.det": any_(2, 3, 3),
    "linalg.eig": any_(2, 4, 4),
    "linalg.eigh": spd(2, 4, 4),
    "linalg.eigvals": any_(4, 4),
    "linalg.eigvalsh": spd(2, 4, 4),
    "linalg.lu": any_(2, 4, 4),
    "linalg.lu_factor": any_(4, 3),
    "linalg.qr": any_(2, 4, 3),
    "linalg.slogdet": any_(2, 3, 3),
    "linalg.svdvals": any_(3, 5),
    "svd": any_(4, 3),
    "linalg.matrix_rank": any_(3, 5),
}


@pytest.mark.parity
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("name", PARITY)
def test_parity(name, dtype):
    """Absolute values, and what a sum of them with weights has for a gradient."""
    torch = pytest.importorskip("torch")
    array, results = PARITY[name], []
    if dtype.startswith("complex"):
        array = array + 0.4j * np.random.default_rng(1).normal(size=array.shape)
    for lib in (wt, torch):
        a = lib.tensor(array, dtype=getattr(lib, dtype), requires_grad=True)
        found = operator.attrgetter(name)(lib)((a + a.mH) / 2 if array.shape[-1] == array.shape[-2] else a)
        found = found if isinstance(found, tuple) else (found,)
        loss = sum((t.abs() * lib.arange(1, t.numel() + 1).reshape(t.shape)).sum() for t in found)
        if loss.requires_grad:
            loss.backward()
            results.append([*(t.detach().abs().numpy() for t in found), a.grad.numpy()])
        else:
            results.append([t.numpy() for t in found])
    tolerance = 1e-9 if dtype in ("float64", "complex128") else 1e-3
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max())
