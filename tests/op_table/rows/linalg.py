"""Linear algebra. What is unique but for signs or phases is tested by its definition in tests/python."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg

from ..table import E, Op, Rng, S, Sample

ERR = "ShapeError"
TWO = ("float64", "float32")
TOL = {"float64": (1e-9, 1e-9), "float32": (2e-4, 2e-4)}
# An expanded matrix has equal rows: it is singular.
COMMON: dict[str, Any] = {"dtypes": TWO, "tol": TOL, "layouts": ("transposed", "stepped", "offset")}
NOT_SQUARE = (E(ERR, np.ones((2, 3))), E(ERR, np.ones(3)), E("DtypeError", np.ones((2, 2), np.int64)))
SHAPES = ((3, 3), (2, 3, 3), (1, 1), (0, 2, 2))


def good(r: Rng, *shape: int) -> np.ndarray:
    """Well-conditioned squares."""
    return r(*shape) + 3 * np.eye(shape[-1])


def spd(r: Rng, *shape: int) -> np.ndarray:
    a = r(*shape)
    return a @ a.swapaxes(-1, -2) + np.eye(shape[-1])


def squares(r: Rng) -> list[Sample]:
    return [S(good(r, *shape)) for shape in SHAPES]


def lower(a: np.ndarray) -> np.ndarray:
    return np.tril(a) + 2 * np.eye(a.shape[-1])


def each(function: Any, *arrays: np.ndarray) -> Any:
    """`function` of each matrix of a batch."""
    batch = np.broadcast_shapes(*(a.shape[:-2] for a in arrays))
    wide = [np.broadcast_to(a, batch + a.shape[-2:]) for a in arrays]
    found = [function(*(a[i] for a in wide)) for i in np.ndindex(batch)]
    return np.array(found).reshape(batch + found[0].shape) if found else np.zeros(wide[-1].shape)


def equations(r: Rng) -> list[Sample]:
    return [
        S(good(r, 3, 3), r(3, 2)),
        S(good(r, 2, 3, 3), r(3, 2)),
        S(good(r, 3, 3), r(2, 3, 1)),
        S(good(r, 3, 3), r(2, 3), left=False),
    ]


def solve(a: np.ndarray, b: np.ndarray, left: bool = True) -> Any:
    return (
        np.linalg.solve(a, b)
        if left
        else np.linalg.solve(a.swapaxes(-1, -2), b.swapaxes(-1, -2)).swapaxes(-1, -2)
    )


def triangular(
    a: np.ndarray, b: np.ndarray, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    a = np.triu(a) if upper else np.tril(a)
    if unitriangular:
        a = a - np.diagonal(a)[..., None] * np.eye(len(a)) + np.eye(len(a))
    return solve(a, b, left)


def lu(a: np.ndarray) -> Any:
    found = [scipy.linalg.lu(m) for m in a.reshape(-1, *a.shape[-2:])]
    return tuple(np.array(part).reshape(a.shape[:-2] + part[0].shape) for part in zip(*found, strict=True))


def lu_factor(a: np.ndarray) -> Any:
    factors, pivots = scipy.linalg.lu_factor(a)
    return factors, (pivots + 1).astype(np.int32)


def householder(a: np.ndarray, tau: np.ndarray) -> np.ndarray:
    m, n = a.shape
    q = np.eye(m)
    for i in range(len(tau)):
        v = np.concatenate([np.zeros(i), [1.0], a[i + 1 :, i]])
        q = q @ (np.eye(m) - tau[i] * np.outer(v, v))
    return q[:, :n]


def ormqr(a: np.ndarray, tau: np.ndarray, c: np.ndarray, left: bool = True, transpose: bool = False) -> Any:
    q = householder(np.pad(a, ((0, 0), (0, len(a) - a.shape[1]))), tau)
    q = q.T if transpose else q
    return q @ c if left else c @ q


def vander(x: np.ndarray, N: int | None = None) -> np.ndarray:
    return x[..., None] ** np.arange(x.shape[-1] if N is None else N)


def ldl_samples(r: Rng) -> list[Sample]:
    """D of ones and the identity: the system is B itself, but for rows that pivots exchange."""
    return [S(np.eye(3) * 2 + np.tril(r(3, 3), -1), np.array([1, 2, 3], np.int32), r(3, 2))]


def ldl_solve(packed: np.ndarray, pivots: np.ndarray, b: np.ndarray) -> np.ndarray:
    L = np.tril(packed, -1) + np.eye(3)
    return np.linalg.solve(L @ np.diag(np.diag(packed)) @ L.T, b)


def of_rank(r: Rng, *shape: int, rank: int = 2) -> np.ndarray:
    return r(*shape[:-1], rank) @ r(*shape[:-2], rank, shape[-1])


def low_rank(name: str, mean: Any) -> Op:
    """U S V^H of a matrix of the rank that is asked for is the matrix, or its deviation from a mean."""

    def call(rt: Any, A: Any, *rest: Any) -> Any:
        U, s, V = getattr(rt, name)(A, *rest)
        return (U * s[..., None, :]) @ V.mT

    return Op(
        name,
        lambda r: [S(of_rank(r, 6, 4), 3), S(of_rank(r, 2, 4, 7), 3)],
        lambda A, *_: A - mean(A),
        call=call,
        grad=False,
        errors=(E(ERR, np.ones(3)),),
        **COMMON,
    )


ROWS = [
    low_rank("svd_lowrank", lambda A: 0.0),
    low_rank("pca_lowrank", lambda A: A.mean(-2, keepdims=True)),
    Op(
        "linalg.inv",
        squares,
        np.linalg.inv,
        aliases=("inverse", "Tensor.inverse"),
        out=True,
        errors=NOT_SQUARE,
        **COMMON,
    ),
    Op(
        "linalg.det",
        squares,
        np.linalg.det,
        aliases=("det", "Tensor.det"),
        out=True,
        errors=NOT_SQUARE,
        **COMMON,
    ),
    Op(
        "linalg.slogdet",
        squares,
        lambda a: tuple(np.linalg.slogdet(a)),
        aliases=("slogdet", "Tensor.slogdet"),
        errors=NOT_SQUARE,
        **COMMON,
    ),
    Op(
        "logdet",
        lambda r: [S(spd(r, 3, 3)), S(spd(r, 2, 2, 2))],
        lambda a: np.linalg.slogdet(a)[1],
        method=True,
        errors=NOT_SQUARE,
        **COMMON,
    ),
    Op(
        "linalg.cholesky",
        lambda r: [S(spd(r, *s)) for s in SHAPES],
        np.linalg.cholesky,
        grad=False,
        out=True,
        aliases=("cholesky", "Tensor.cholesky"),
        errors=NOT_SQUARE,
        **COMMON,
    ),
    Op(
        "cholesky_solve",
        lambda r: [S(r(3, 2), lower(r(3, 3))), S(r(2, 3, 1), lower(r(3, 3)))],
        lambda b, L: np.linalg.solve(np.tril(L) @ np.tril(L).swapaxes(-1, -2), b),
        call=lambda rt, b, L, **out: rt.cholesky_solve(
            b, rt.tril(L), **out
        ),  # see docs/explanation/differences.md
        method=True,
        out=True,
        errors=(E(ERR, np.ones((3, 1)), np.ones((2, 2))),),
        **COMMON,
    ),
    Op(
        "cholesky_inverse",
        lambda r: [S(lower(r(3, 3)))],
        lambda L: np.linalg.inv(np.tril(L) @ np.tril(L).T),
        call=lambda rt, L, **out: rt.cholesky_inverse(
            rt.tril(L), **out
        ),  # see docs/explanation/differences.md
        method=True,
        out=True,
        errors=NOT_SQUARE[:1],
        **COMMON,
    ),
    Op(
        "linalg.solve",
        equations,
        solve,
        out=True,
        errors=(E(ERR, np.ones((2, 3)), np.ones((2, 1))), E(ERR, np.eye(2), np.ones((3, 1)))),
        **COMMON,
    ),
    Op(
        "linalg.solve_triangular",
        lambda r: [
            S(good(r, 3, 3), r(3, 2), upper=True),
            S(good(r, 3, 3), r(2, 3), upper=False, left=False),
            S(good(r, 3, 3), r(3, 1), upper=False, unitriangular=True),
        ],
        triangular,
        out=True,
        errors=(E(ERR, np.eye(2), np.ones((3, 1)), upper=True),),
        **COMMON,
    ),
    Op(
        "linalg.lu",
        lambda r: [S(good(r, 3, 3)), S(r(2, 4, 2)), S(r(2, 4))],
        lu,
        result="same",
        errors=(E(ERR, np.ones(3)),),
        **COMMON,
    ),
    Op(
        "linalg.lu_factor",
        lambda r: [S(good(r, 3, 3)), S(good(r, 5, 5))],
        lu_factor,
        grad=False,
        result=("same", "int32"),
        errors=(E(ERR, np.ones(3)),),
        **COMMON,
    ),
    Op(
        "linalg.householder_product",
        lambda r: [S(r(4, 3), r(3)), S(r(3, 3), r(2))],
        householder,
        aliases=("orgqr", "Tensor.orgqr"),
        out=True,
        errors=(E(ERR, np.ones((2, 3)), np.ones(2), match="householder_product"),),
        **COMMON,
    ),
    Op(
        "ormqr",
        lambda r: [
            S(r(4, 3), r(3), r(4, 2)),
            S(r(3, 3), r(3), r(2, 3), left=False),
            S(r(3, 2), r(2), r(3, 2), transpose=True),
        ],
        ormqr,
        method=True,
        out=True,
        errors=(E(ERR, np.ones((2, 2)), np.ones(2), np.ones((3, 2))),),
        **COMMON,
    ),
    Op(
        "linalg.ldl_solve",
        ldl_samples,
        ldl_solve,
        grad=False,
        out=True,
        errors=(E("RuntimeError", np.eye(2), np.ones(2), np.ones((2, 1))),),
        **COMMON,
    ),
    Op(
        "linalg.eigvalsh",
        lambda r: [S(spd(r, *s)) for s in SHAPES],
        np.linalg.eigvalsh,
        grad=False,
        out=True,
        errors=(*NOT_SQUARE[:2], E("RuntimeError", np.eye(2), "X", match="UPLO")),
        **COMMON,
    ),
    Op(
        "linalg.svdvals",
        lambda r: [S(r(3, 4)), S(r(2, 4, 3)), S(r(0, 3))],
        lambda a: np.linalg.svd(a, compute_uv=False),
        out=True,
        errors=(E(ERR, np.ones(3)),),
        **COMMON,
    ),
    Op(
        "linalg.pinv",
        lambda r: [S(r(3, 4)), S(r(2, 4, 3))],
        np.linalg.pinv,
        errors=(E(ERR, np.ones(3)),),
        **COMMON,
    ),
    Op(
        "linalg.cond",
        lambda r: [S(good(r, 3, 3)), S(good(r, 2, 3, 3), -2)],
        np.linalg.cond,
        errors=(E(ERR, np.ones(3)), E("RuntimeError", np.eye(2), 3)),
        **COMMON,
    ),
    Op(  # PyTorch's backward fails: it changes the inverse in place
        "linalg.cond",
        lambda r: [S(good(r, 2, 3, 3), 1), S(good(r, 3, 3), "fro")],
        np.linalg.cond,
        label="linalg.cond, by norms",
        grad=False,
        **COMMON,
    ),
    Op(
        "matrix_power",
        lambda r: [S(good(r, 3, 3), n) for n in (0, 1, 3, -2)],
        np.linalg.matrix_power,
        method=True,
        out=True,
        aliases=("linalg.matrix_power",),
        errors=(E(ERR, np.ones((2, 3)), 2),),
        **COMMON,
    ),
    Op(
        "matrix_exp",
        lambda r: [S(r(3, 3)), S(r(2, 2, 2))],
        scipy.linalg.expm,
        method=True,
        meta=True,
        aliases=("linalg.matrix_exp",),
        errors=NOT_SQUARE,
        dtypes=TWO,
        tol={"float64": (1e-8, 1e-8), "float32": (1e-3, 1e-3)},
    ),
    Op(
        "linalg.cross",
        lambda r: [S(r(2, 3), r(2, 3)), S(r(1, 3), r(4, 3)), S(r(3, 2), r(3, 2), dim=0)],
        lambda a, b, dim=-1: np.cross(a, b, axis=dim),
        out=True,
        errors=(E(ERR, np.ones(2), np.ones(2)),),
        dtypes=TWO,
    ),
    Op(
        "cross",
        lambda r: [S(r(2, 3), r(2, 3)), S(r(3, 2), r(3, 2), 0)],
        lambda a, b, dim=-1: np.cross(a, b, axis=dim),
        method=True,
        out=True,
        errors=(E(ERR, np.ones(2), np.ones(2)),),
        dtypes=TWO,
    ),
    Op(
        "linalg.vecdot",
        lambda r: [S(r(2, 3), r(2, 3)), S(r(3, 2), r(3, 1), dim=0)],
        lambda a, b, dim=-1: (a * b).sum(dim),
        out=True,
        errors=(E(ERR, np.ones(2), np.ones(3), match="vecdot"),),
        dtypes=TWO,
    ),
    Op(
        "linalg.vander",
        lambda r: [S(r(3)), S(r(2, 3), N=4)],
        vander,
        errors=(E("RuntimeError", np.ones(2), N=1),),
        **COMMON,
    ),
    Op(
        "vander",
        lambda r: [S(r(4)), S(r(3), 2), S(r(3), 5, increasing=True)],
        np.vander,
        errors=(E("RuntimeError", np.ones((2, 2))), E("RuntimeError", np.ones(2), -1)),
        peer=("gradient", "second_gradient", "fused_equals_composed", "gradient_layout"),
        peer_reason="writes over what cumprod saved: its backward always raises",
    ),
    Op(
        "linalg.tensorinv",
        lambda r: [S(good(r, 6, 6).reshape(2, 3, 6), 2)],
        lambda a, ind: np.linalg.tensorinv(a, ind),
        out=True,
        errors=(E(ERR, np.ones((2, 3)), 1), E("RuntimeError", np.ones((2, 2)), 0)),
        **COMMON,
    ),
    Op(
        "linalg.tensorsolve",
        lambda r: [S(good(r, 6, 6).reshape(2, 3, 6), r(2, 3))],
        np.linalg.tensorsolve,
        out=True,
        errors=(E(ERR, np.ones((2, 3)), np.ones(2)),),
        **COMMON,
    ),
    Op(
        "dist",
        lambda r: [S(r(3, 2), r(3, 2)), S(r(3), r(3), 1)],
        lambda a, b, p=2: np.asarray((np.abs(a - b) ** p).sum() ** (1 / p)),
        method=True,
        dtypes=TWO,
    ),
    Op("chain_matmul", lambda r: [S(r(2, 3), r(3, 4), r(4, 2))], lambda *m: np.linalg.multi_dot(m), **COMMON),
]
