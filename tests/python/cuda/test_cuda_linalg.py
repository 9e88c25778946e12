"""Linear algebra on the device beside LAPACK on the host: one matrix, batches that run all at once and one by
one, matrices that fail, graphs, and what a device refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import warptape as torch
from warptape import linalg

pytestmark = pytest.mark.cuda

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
# Batches of up to 256 rows are factored, and of up to 32 have their singular values found, all at once. QR
# takes one matrix more for 16 rows more.
SIZES = [(4,), (3, 5), (2, 3, 4), (2, 40), (1, 6)]
rng = np.random.default_rng(0)
emulated_only = pytest.mark.skipif(
    not (torch.cuda.is_available() and "emulated" in torch.cuda.get_device_name().lower()),
    reason="needs the emulated device",
)


def numbers(*shape: int, dtype: Any = torch.float64) -> Any:
    x = rng.standard_normal(shape)
    if dtype.is_complex:
        x = x + 1j * rng.standard_normal(shape)
    return torch.tensor(x).to(dtype)


def square(size: tuple[int, ...], dtype: Any) -> Any:
    n = size[-1]
    return numbers(*size, n, dtype=dtype) + 3 * torch.eye(n, dtype=dtype)


def definite(size: tuple[int, ...], dtype: Any) -> Any:
    x = square(size, dtype)
    return x @ x.mH + torch.eye(size[-1], dtype=dtype)


def close(got: Any, expected: Any) -> None:
    assert got.device.type == "cuda" and got.dtype == expected.dtype and got.shape == expected.shape
    x, y = expected.numpy(), got.cpu().numpy()
    limit = 2e-3 if expected.dtype in (torch.float32, torch.complex64) else 1e-9
    np.testing.assert_allclose(y, x, rtol=limit, atol=limit * max(1, np.abs(x).max(initial=0)))


def both(name: str, function: Any, *inputs: Any) -> None:
    expected, got = function(*inputs), function(*[x.to("cuda") for x in inputs])
    if not isinstance(expected, tuple):
        expected, got = (expected,), (got,)
    for e, g in zip(expected, got):
        close(g, e)


SQUARE = {
    "lu_factor_ex": linalg.lu_factor_ex,
    "lu": linalg.lu,
    "inv": linalg.inv,
    "det": linalg.det,
    "slogdet": linalg.slogdet,
    "qr": linalg.qr,
    "eigvals": lambda x: torch.sort(linalg.eigvals(x).abs(), -1)[0],
    "svdvals": linalg.svdvals,
    "matrix_exp": linalg.matrix_exp,
    "pinv": linalg.pinv,
    "triangular": lambda x: linalg.solve_triangular(x.tril(), x, upper=False),
    "triangular_right": lambda x: linalg.solve_triangular(x.triu(), x, upper=True, left=False),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_of_square_matrices(size: tuple[int, ...], dtype: Any) -> None:
    for name, function in SQUARE.items():
        both(name, function, square(size, dtype))
    for upper in (False, True):
        both("cholesky", lambda x, u=upper: linalg.cholesky(x, upper=u), definite(size, dtype))
    n = size[-1]
    a, b = square(size, dtype), numbers(*size, 3, dtype=dtype)
    both("solve", linalg.solve, a, b)
    both("solve", lambda x, y: linalg.solve(x, y, left=False), a, b.mT[..., :3, :])
    both("cholesky_solve", torch.cholesky_solve, b, linalg.cholesky(definite(size, dtype)))
    for adjoint in (False, True):
        both(
            "lu_solve",
            lambda x, y, t=adjoint: linalg.lu_solve(*linalg.lu_factor(x), y, adjoint=t),
            a,
            b,
        )
    assert n == a.shape[-1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(5, 3), (3, 5), (2, 6, 4), (2, 4, 6), (2, 40, 35), (2, 3, 40), (2, 50, 3)], ids=str
)
def test_of_matrices_of_any_shape(shape: tuple[int, ...], dtype: Any) -> None:
    a = numbers(*shape, dtype=dtype)
    for mode in ("reduced", "complete", "r"):
        both("qr", lambda x, m=mode: linalg.qr(x, mode=m), a)
    both("lu", linalg.lu, a)
    both("svdvals", linalg.svdvals, a)
    on_device = a.to("cuda")
    for full in (False, True):  # vectors are unique but for their phases
        u, s, vh = linalg.svd(on_device, full_matrices=full)
        expected = linalg.svd(a, full_matrices=full)
        assert all(x.shape == e.shape for x, e in zip((u, s, vh), expected))
        k = s.shape[-1]
        close((u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], a)
        for q in (u, vh.mH):
            close(q.mH @ q, torch.eye(q.shape[-1], dtype=dtype).expand(*q.shape[:-2], -1, -1))
    if shape[-2] >= shape[-1]:
        factors, tau = torch.geqrf(a)
        both("householder_product", linalg.householder_product, factors, tau)
        c = numbers(*shape[:-1], 2, dtype=dtype)
        for transpose in (False, True):
            both("ormqr", lambda f, t, x, adj=transpose: torch.ormqr(f, t, x, transpose=adj), factors, tau, c)
            right = lambda f, t, x, adj=transpose: torch.ormqr(f, t, x, left=False, transpose=adj)
            both("ormqr", right, factors, tau, c.mT)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_eigenvectors(size: tuple[int, ...], dtype: Any) -> None:
    a = definite(size, dtype)
    for triangle in ("L", "U"):
        read = (a.tril() if triangle == "L" else a.triu()).to("cuda")
        values, vectors = linalg.eigh(read, UPLO=triangle)
        close(values, linalg.eigvalsh(a))
        close(linalg.eigvalsh(read, UPLO=triangle), linalg.eigvalsh(a))
        close((vectors * values.to(dtype).unsqueeze(-2)) @ vectors.mH, a)
    a = square(size, dtype).to("cuda")
    values, vectors = linalg.eig(a)
    complex_a = a.to(vectors.dtype)
    close(complex_a @ vectors, (vectors * values.unsqueeze(-2)).cpu())
    assert torch.allclose(
        vectors.cpu().norm(dim=-2), torch.ones(*size[:-1], size[-1], dtype=values.real.dtype)
    )


def by_least_squares(x: Any) -> Any:
    return linalg.lstsq(x, torch.ones(5, 2, dtype=x.dtype, device=x.device), driver="gels")[0]


def test_gradients_stay_on_the_device() -> None:
    for function, x in (
        (linalg.inv, square((2, 4), torch.float64)),
        (linalg.det, square((4,), torch.complex128)),
        (lambda x: linalg.cholesky(x @ x.mH), square((3, 4), torch.complex128)),
        (lambda x: linalg.qr(x)[1].abs(), numbers(5, 3)),
        (lambda x: linalg.svdvals(x), numbers(2, 5, 3)),
        (lambda x: linalg.eigvalsh(x + x.mT), numbers(4, 4)),
        (lambda x: linalg.lu_factor(x)[0], square((2, 4), torch.float64)),
        (by_least_squares, numbers(5, 3)),
    ):
        grads = []
        for device in ("cpu", "cuda"):
            leaf = x.detach().to(device).requires_grad_()
            out = function(leaf)
            (out.abs() * torch.arange(out.numel(), device=device).view(out.shape)).sum().backward()
            grads.append(leaf.grad)
        close(grads[1], grads[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 6, 4), (2, 4, 6), (4, 4)], ids=str)
def test_least_squares(shape: tuple[int, ...], dtype: Any) -> None:
    a, b = numbers(*shape, dtype=dtype), numbers(*shape[:-1], 2, dtype=dtype)
    expected, got = linalg.lstsq(a, b, driver="gels"), linalg.lstsq(a.to("cuda"), b.to("cuda"))
    close(got.solution, expected.solution)
    close(got.residuals, expected.residuals)
    assert got.rank.numel() == 0 and got.singular_values.numel() == 0  # "gels" tells none
    for driver in ("gelsy", "gelsd", "gelss"):  # LAPACK's, on the host
        for g, e in zip(
            linalg.lstsq(a.to("cuda"), b.to("cuda"), driver=driver), linalg.lstsq(a, b, driver=driver)
        ):
            close(g, e)
    if shape[-2] < shape[-1]:
        a[..., 0, :] = 0
    else:
        a[..., :, 0] = 0
    with pytest.raises(linalg.LinAlgError, match="does not have full rank"):
        linalg.lstsq(a.to("cuda"), b.to("cuda"))


def test_matrices_that_fail() -> None:
    bad = definite((3, 4), torch.float64)
    bad[1, 2, 2] = -1
    for x in (bad, bad.to("cuda")):
        with pytest.raises(linalg.LinAlgError, match=r"\(Batch element 1\).*minor of order 3"):
            linalg.cholesky(x)
        assert linalg.cholesky_ex(x).info.tolist() == [0, 3, 0]
    singular = square((2, 3), torch.float32)
    singular[1, :, 0] = 0
    for x in (singular, singular.to("cuda")):
        with pytest.raises(linalg.LinAlgError, match=r"linalg.solve: \(Batch element 1\).*singular"):
            linalg.solve(x, x)
        with pytest.raises(linalg.LinAlgError, match=r"linalg.inv: \(Batch element 1\).*element 1 is zero"):
            linalg.inv(x)
        with pytest.raises(linalg.LinAlgError, match=r"U\[1,1\] is zero"):
            linalg.lu_factor(x)
        with pytest.raises(linalg.LinAlgError):
            linalg.inv_ex(x, check_errors=True)
        assert linalg.inv_ex(x).info.tolist() == linalg.lu_factor_ex(x).info.tolist() == [0, 1]
        assert float(linalg.det(x)[1]) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_matrices_that_are_not_finite(value: float) -> None:
    x = definite((3, 4), torch.float64)
    x[1, 2, 1] = value
    for function in (linalg.svdvals, linalg.eigvalsh):
        for given in (x, x.to("cuda")):
            if value != value:
                with pytest.raises(linalg.LinAlgError, match=r"\(Batch element 1\).*non-finite"):
                    function(given)
            else:
                assert function(given)[1].isnan().all()
        if value == value:
            close(function(x.to("cuda"))[[0, 2]], function(x)[[0, 2]])
    y = x.clone()
    y[1, 1, 2] = value
    y[1, 2, 1] = 0  # the lower triangle is finite
    close(linalg.eigvalsh(y.to("cuda")), linalg.eigvalsh(y))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (3, 5, 5), (2, 5, 3), (3, 5)], ids=str)
def test_factors_without_pivoting(shape: tuple[int, ...], dtype: Any) -> None:
    a = numbers(*shape, dtype=dtype) + 4 * torch.eye(*shape[-2:], dtype=dtype)
    with pytest.raises(RuntimeError, match="without pivoting is not implemented on the CPU"):
        linalg.lu_factor(a, pivot=False)
    p, lower, upper = linalg.lu(a.to("cuda"), pivot=False)
    assert p.numel() == 0 and p.device.type == "cuda"
    close(lower @ upper, a)
    packed, pivots = linalg.lu_factor(a.to("cuda"), pivot=False)
    k = min(shape[-2:])
    assert torch.equal(pivots.cpu(), torch.arange(1, k + 1, dtype=torch.int32).expand(pivots.shape))
    if shape[-2] == shape[-1]:
        b = numbers(*shape[:-1], 2, dtype=dtype)
        close(linalg.lu_solve(packed, pivots, b.to("cuda")), linalg.solve(a, b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_indefinite_matrices(size: tuple[int, ...], dtype: Any) -> None:
    a, b = numbers(*size, size[-1], dtype=dtype), numbers(*size, 2, dtype=dtype)
    for hermitian in (False, True):
        x = a + (a.mH if hermitian else a.mT)
        x.diagonal(0, -2, -1)[..., : size[-1] // 2] = 0  # blocks of two
        both("ldl_factor_ex", lambda x, h=hermitian: linalg.ldl_factor_ex(x, hermitian=h), x)
        packed, pivots = linalg.ldl_factor(x.to("cuda"), hermitian=hermitian)
        found = linalg.ldl_solve(packed, pivots, b.to("cuda"), hermitian=hermitian)
        close(x.to("cuda") @ found, b)
    singular = torch.zeros(2, 3, 3, dtype=dtype)
    for given in (singular, singular.to("cuda")):
        assert linalg.ldl_factor_ex(given).info.tolist() == [1, 1]
        with pytest.raises(linalg.LinAlgError, match=r"D\[1,1\] is exactly zero"):
            linalg.ldl_factor(given)


@emulated_only
def test_older_cusolver_leaves_ldl_to_the_host() -> None:
    """cuSOLVER 12.0, which CUDA 13.0 brings, has no Xsytrf, Xhetrf and Xhetrs."""
    code = """
import warptape as torch
a, b = torch.randn(2, 5, 5, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
x = (a + a.mT).cuda()
packed, pivots = torch.linalg.ldl_factor(x)
assert packed.is_cuda and pivots.is_cuda and torch.linalg.ldl_factor_ex(x).info.is_cuda
found = torch.linalg.ldl_solve(packed, pivots, b.cuda())
assert found.is_cuda and torch.allclose(x.cpu() @ found.cpu(), b)
"""
    env = os.environ | {"WARPTAPE_EMULATED_CUSOLVER": "12.0"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120)


def test_empty_matrices() -> None:
    for shape in ((0, 0), (2, 0, 0), (0, 3, 3)):
        x = torch.zeros(shape, dtype=torch.float64)
        for function in (linalg.inv, linalg.det, linalg.cholesky, linalg.svd, linalg.eigvalsh, linalg.qr):
            both("empty", function, x)
    for shape in ((0, 3), (3, 0)):
        x = torch.zeros(shape)
        both("qr", lambda x: linalg.qr(x, mode="complete"), x)
        both("svd", linalg.svd, x)


def test_a_pivot_that_is_no_row() -> None:
    lu, pivots = linalg.lu_factor(square((3,), torch.float32).to("cuda"))
    pivots[1] = 7
    with pytest.raises(IndexError, match="lu: pivots"):
        torch.lu_unpack(lu, pivots)[0].cpu()


def test_a_graph_replays_factors() -> None:
    """Nothing waits for the device where errors are not asked for."""
    x = definite((2, 4), torch.float64).to("cuda")
    run = lambda: (linalg.cholesky_ex(x).L, linalg.inv_ex(x).inverse, linalg.qr(x).R, linalg.det(x))
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    y = definite((2, 4), torch.float64)
    x.copy_(y)
    graph.replay()
    for got, expected in zip(results, (linalg.cholesky(y), linalg.inv(y), linalg.qr(y).R, linalg.det(y))):
        close(got, expected)


def test_a_library_that_refuses_says_so() -> None:
    """On the emulated device alone, where the stand-in does as it is told."""
    if "emulated" not in torch.cuda.get_device_name(0).lower():
        pytest.skip("needs the emulated device")
    code = """
import warptape as wt
for call in (wt.linalg.cholesky, wt.linalg.svdvals):
    try:
        call(wt.eye(3, device="cuda"))
    except wt.DeviceError as error:
        print(error)
"""
    env = {**os.environ, "WARPTAPE_EMULATED_REFUSE": "solver"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
    first, second = done.stdout.strip().splitlines()
    assert first.endswith("linalg.cholesky: potrf of cuSOLVER failed with status 9")
    assert second.endswith("linalg.svd: gesvdj of cuSOLVER failed with status 9")
