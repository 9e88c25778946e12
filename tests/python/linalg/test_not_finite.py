"""Matrices with nan and inf, on which LAPACK's iterations need not end; and Ctrl-C within long ones. The
values are PyTorch 2.13's."""

from __future__ import annotations

import subprocess
import sys

import pytest
import warptape as wt
from time_limits import seconds
from warptape import linalg

INF, NAN = float("inf"), float("nan")

ENDING = """
import warptape as wt
from warptape import linalg
for dtype in (wt.float32, wt.float64, wt.complex64, wt.complex128):
    for value in (float("inf"), -float("inf"), float("nan"), wt.finfo(dtype).max):
        for place in range(9):
            a = wt.arange(9.0).reshape(3, 3).to(dtype) + wt.eye(3)
            a.view(-1)[place] = complex(value, value) if dtype.is_complex else value
            for x in (a, wt.stack([wt.eye(3, dtype=dtype), a]), wt.cat([a, a]), wt.cat([a, a], 1)):
                b = wt.ones(*x.shape[:-1], 2, dtype=dtype)
                calls = [linalg.svd, linalg.svdvals, linalg.pinv, linalg.matrix_rank, linalg.cond, linalg.qr]
                calls += [lambda x, p=p: linalg.matrix_norm(x, p) for p in ("nuc", 2, -2)]
                calls += [lambda x, d=d: linalg.lstsq(x, b, driver=d) for d in ("gels", "gelsy", "gelsd")]
                if x.shape[-1] == x.shape[-2]:
                    calls += [linalg.eigh, linalg.eigvalsh, linalg.eig, linalg.eigvals, linalg.cholesky]
                    calls += [linalg.inv, linalg.det, linalg.slogdet, linalg.lu, linalg.matrix_exp]
                    calls += [lambda x: linalg.matrix_rank(x, hermitian=True)]
                    calls += [lambda x: linalg.pinv(x, hermitian=True)]
                for call in calls:
                    try:
                        call(x)
                    except linalg.LinAlgError:
                        pass
print("ended")
"""


def test_every_function_ends():
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", ENDING], capture_output=True, text=True, timeout=seconds(120)
    )
    assert found.stdout == "ended\n", found.stderr


def with_(value, row, column):
    a = wt.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]], dtype=wt.float64)
    a[row, column] = value
    return a


def test_singular_values():
    a = with_(INF, 2, 0)
    assert linalg.svdvals(a).isnan().all() and linalg.pinv(a).isnan().all()
    assert linalg.matrix_rank(a).item() == 0 and linalg.cond(a).isnan() and linalg.matrix_norm(a, 2).isnan()
    both = linalg.svdvals(wt.stack([with_(4.0, 0, 0), a]))
    assert both[0].isfinite().all() and both[1].isnan().all()
    text = "The algorithm failed to converge because the input matrix contained non-finite values"
    for call in (linalg.svd, linalg.svdvals, linalg.pinv, linalg.matrix_rank, linalg.cond):
        with pytest.raises(linalg.LinAlgError, match=f"linalg.svd: {text}"):
            call(with_(NAN, 0, 1))
        with pytest.raises(linalg.LinAlgError, match=rf"\(Batch element 1\): {text}"):
            call(wt.stack([wt.eye(3), with_(NAN, 0, 1).float()]))


def test_eigenvalues_read_one_triangle():
    plain = linalg.eigvalsh(with_(4.0, 0, 0))
    assert linalg.eigvalsh(with_(NAN, 0, 1)).equal(plain) and linalg.eigvalsh(with_(INF, 0, 1)).equal(plain)
    assert linalg.pinv(with_(INF, 0, 1), hermitian=True).isfinite().all()
    assert linalg.matrix_rank(with_(NAN, 0, 1), hermitian=True).item() == 3
    for call in (linalg.eigh, linalg.eigvalsh, linalg.eig, linalg.eigvals):
        with pytest.raises(linalg.LinAlgError, match="non-finite values"):
            call(with_(NAN, 1, 0))
    with pytest.raises(linalg.LinAlgError, match="non-finite values"):
        linalg.eig(with_(INF, 1, 0))
    assert linalg.eigvalsh(with_(INF, 1, 0)).isnan().all() and linalg.eigh(with_(INF, 1, 0))[1].isnan().all()
    assert wt.view_as_real(linalg.eigvals(with_(INF, 1, 0))).isnan().all()


def test_cholesky_tells_where_it_ends():
    assert linalg.cholesky_ex(with_(NAN, 1, 1)).info.item() == 2
    assert linalg.cholesky_ex(with_(NAN, 0, 0)).info.item() == 1
    assert linalg.cholesky_ex(with_(INF, 2, 0)).info.item() == 3
    L, info = linalg.cholesky_ex(with_(INF, 0, 1))
    assert info.item() == 0 and L.isfinite().all()
    assert linalg.cholesky_ex(wt.full((3, 3), INF)).info.item() == 2


def test_triangular_systems_read_what_they_need():
    b = wt.ones(3, 1, dtype=wt.float64)
    found = linalg.solve_triangular(with_(INF, 0, 1), b, upper=True).flatten().tolist()
    assert found[0] == -INF and found[1:] == pytest.approx([(1 - 0.25 * 0.5) / 3, 0.5])
    a = with_(NAN, 1, 1).requires_grad_()
    found = linalg.solve_triangular(a, b, upper=True, unitriangular=True)
    assert found.flatten().tolist() == [-0.25, 0.75, 1.0]
    found.sum().backward()
    assert a.grad.tolist() == [[0.0, -0.75, -1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    zeros = linalg.solve_triangular(wt.zeros(2, 2), wt.ones(2, 1), upper=True).flatten()
    assert zeros[0].isnan() and zeros[1] == INF


def test_determinants_and_inverses():
    assert linalg.det(with_(INF, 2, 0)).isnan() and linalg.det(with_(INF, 0, 1)).item() == -INF
    sign, log = linalg.slogdet(with_(NAN, 1, 1))
    assert sign.item() == 0 and log.isnan()
    assert linalg.inv(with_(NAN, 1, 1)).isnan().all() and linalg.inv(with_(INF, 0, 1)).isnan().all()
    assert (
        linalg.cond(with_(NAN, 0, 1), 1).item() == INF and linalg.cond(with_(INF, 0, 1), "fro").item() == INF
    )
    LU, pivots, _ = linalg.lu_factor_ex(with_(NAN, 2, 0))
    assert pivots.tolist() == [1, 2, 3] and LU[0].tolist() == [4.0, 1.0, 0.5]


INTERRUPTED = """
import os, signal, sys, threading, time
import warptape as wt
a = wt.randn(100, 150, 150)
sent = []
def interrupt():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.3, interrupt).start()
try:
    wt.linalg.svd(a.expand(20, 100, 150, 150))
except KeyboardInterrupt:
    print(time.monotonic() - sent[0], flush=True)
"""


def test_interrupt():
    """Between the matrices of a batch: LAPACK itself does not look for signals."""
    found = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=seconds(60)
    )
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < seconds(0.5)  # 0.2 s on a quiet machine
