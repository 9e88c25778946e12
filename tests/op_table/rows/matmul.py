"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..table import FLOATS, NUMERIC, E, Op, Rng, S, Sample
from .activation import gelu

ERR = "ShapeError"
# The sum runs over up to 40 products of values near 1; half precisions round once, at the end.
TOL = {"float32": (1e-5, 1e-5), "float16": (4e-3, 2e-2), "bfloat16": (3e-2, 1e-1)}
COMMON: dict[str, Any] = {"method": True, "tol": TOL}


def products(*shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Any:
    return lambda r: [S(r(*one), r(*other)) for one, other in shapes]


def addmm(x: np.ndarray, a: np.ndarray, b: np.ndarray, *, beta: float = 1, alpha: float = 1) -> np.ndarray:
    return (beta * x if beta else 0) + alpha * (a @ b)


def addmm_samples(r: Rng) -> list[Sample]:
    cases = [S(r(*b), r(2, 3), r(3, 4)) for b in ((2, 4), (4,), (2, 1), ())]
    return [
        *cases,
        S(r(2, 4), r(2, 3), r(3, 4), beta=2, alpha=3),
        S(r(2, 4), r(2, 3), r(3, 4), beta=0),
        S(r(2, 4), r(2, 0), r(0, 4)),
    ]


def baddbmm_samples(r: Rng) -> list[Sample]:
    cases = [S(r(*b), r(2, 3, 4), r(2, 4, 2)) for b in ((2, 3, 2), (2,), (1, 3, 1))]
    return [*cases, S(r(2, 3, 2), r(2, 3, 4), r(2, 4, 2), beta=2, alpha=3)]


def linear(x: np.ndarray, weight: np.ndarray, bias: Any = None) -> np.ndarray:
    return x @ weight.T + (0 if bias is None else bias)


def ends(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def grouped_mm(a: np.ndarray, b: np.ndarray, *, offs: Any = None) -> np.ndarray:
    if offs is None:
        return a @ b
    spans = [slice(0 if g == 0 else int(offs[g - 1]), int(end)) for g, end in enumerate(offs)]
    if a.ndim == b.ndim == 2:
        return np.stack([a[:, s] @ b[s] for s in spans])
    out = np.zeros((a.shape[-2], b.shape[-1]))
    for g, s in enumerate(spans):
        if a.ndim == 2:
            out[s] = a[s] @ b[g]
        else:
            out[:, s] = a[g] @ b[:, s]
    return out


def grouped_mm_samples(r: Rng) -> list[Sample]:
    """Groups of rows, along k and of columns; empty ones, all in one, ragged, some in none; many rows.
    PyTorch takes rows of multiples of 16 bytes, and no float64."""
    wide: Any = {"only": ("float64",)}
    return [
        S(r(9, 8), r(4, 8, 16), offs=ends(2, 2, 8, 9)),
        S(r(9, 8), r(3, 8, 16), offs=ends(0, 9, 9)),
        S(r(9, 5), r(2, 5, 3), offs=np.array([4, 7]), **wide),
        S(r(150, 24), r(3, 24, 40), offs=ends(20, 149, 150)),
        S(r(8, 24), r(24, 16), offs=ends(8, 8, 24)),
        S(r(3, 7), r(7, 5), offs=ends(4, 5), **wide),
        S(r(3, 8, 16), r(16, 24), offs=ends(8, 8, 24)),
        S(r(3, 2, 4), r(4, 9), offs=ends(2, 2, 9), **wide),
        S(r(2, 3, 8), r(2, 8, 16)),
        S(r(0, 8), r(2, 8, 16), offs=ends(0, 0), **wide),
        S(r(4, 0), r(2, 0, 8), offs=ends(1, 4), **wide),
    ]


def linear_prepacked(x: np.ndarray, weight: np.ndarray, bias: Any = None, packed: Any = None) -> np.ndarray:
    return linear(x, weight, bias)


def linear_gelu_linear(
    x: np.ndarray, w1: np.ndarray, b1: Any, w2: np.ndarray, b2: Any = None, approximate: str = "none"
) -> np.ndarray:
    return linear(gelu(linear(x, w1, b1), approximate), w2, b2)


def linear_gelu_linear_samples(r: Rng) -> list[Sample]:
    return [
        S(r(2, 3), r(4, 3), r(4), r(5, 4), r(5), approximate="tanh"),
        S(r(2, 1, 3), r(8, 3), r(8), r(2, 8), approximate="tanh"),
        S(r(3), r(8, 3), None, r(2, 8), r(2), approximate="tanh"),
        S(r(2, 3), r(4, 3), r(4), r(5, 4), r(5)),
        S(r(0, 3), r(4, 3), r(4), r(5, 4), r(5), approximate="tanh"),
    ]


def linear_samples(r: Rng) -> list[Sample]:
    cases = [
        S(r(2, 3), r(4, 3)),
        S(r(2, 3), r(4, 3), r(4)),
        S(r(2, 2, 3), r(4, 3), r(4)),
        S(r(3), r(4, 3), r(4)),
    ]
    return [*cases, S(r(0, 3), r(4, 3), r(4)), S(r(5, 20), r(18, 20), r(18)), S(r(2, 3), r(1, 3), bias=r(1))]


def einsum_samples(r: Rng) -> list[Sample]:
    cases = [
        S("ij,jk->ik", r(2, 3), r(3, 4)),
        S("ij,jk", r(2, 3), r(3, 4)),
        S("bij,bjk->bik", r(2, 2, 3), r(2, 3, 2)),
    ]
    cases += [
        S("ij->ji", r(2, 3)),
        S("ii->i", r(3, 3)),
        S("ii", r(3, 3)),
        S("ij->", r(2, 3)),
        S("i,j->ij", r(2), r(3)),
    ]
    cases += [
        S("...i,ij->...j", r(2, 2, 3), r(3, 2)),
        S("bhqd,bhkd->bhqk", r(1, 2, 3, 2), r(1, 2, 4, 2)),
        S("i,i", r(3), r(3)),
    ]
    return [
        *cases,
        S("ij,kj,ik->", r(2, 3), r(4, 3), r(2, 4)),
        S("b i, b j -> b i j", r(2, 2), r(2, 3)),
        S("ijk,jil->kl", r(2, 3, 2), r(3, 2, 2)),
    ]


MATMUL = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 2)),
    ((2, 3), (3, 4)),
    ((2, 2, 3), (3, 4)),
    ((2, 3), (2, 3, 2)),
    ((3,), (2, 3, 2)),
]
MATMUL += [
    ((2, 2, 3), (3,)),
    ((2, 1, 2, 3), (3, 3, 2)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
    ((17, 40), (40, 19)),
    ((2, 5, 3), (2, 3, 5)),
]

ROWS = [
    Op(
        "matmul",
        products(*MATMUL),
        np.matmul,
        dtypes=NUMERIC,
        out=True,
        errors=(
            E(ERR, np.ones((2, 3)), np.ones((2, 3))),
            E(ERR, np.ones(3), np.ones(2)),
            E(ERR, np.ones((2, 2, 3)), np.ones((3, 3, 2))),
            E("RuntimeError", np.ones(()), np.ones(3)),
            E("RuntimeError", np.ones((2, 3)), np.ones((3, 2), np.int64)),
        ),
        **COMMON,
    ),
    Op(
        "Tensor.__matmul__",
        products(((2, 3), (3, 4)), ((2, 2, 3), (3,))),
        np.matmul,
        tol=TOL,
        errors=(E(ERR, np.ones((2, 3)), np.ones((2, 3)), match="matmul"),),
    ),
    Op(
        "mm",
        products(((2, 3), (3, 4)), ((0, 3), (3, 2)), ((2, 0), (0, 2)), ((9, 33), (33, 17)), ((1, 4), (4, 1))),
        np.matmul,
        dtypes=NUMERIC,
        out=True,
        errors=(E(ERR, np.ones((2, 3)), np.ones((2, 3))), E("RuntimeError", np.ones(3), np.ones((3, 2)))),
        **COMMON,
    ),
    Op(
        "_int_mm",
        products(((2, 3), (3, 4)), ((9, 33), (33, 17)), ((17, 8), (8, 8))),
        lambda a, b: a.astype(np.int32) @ b.astype(np.int32),
        dtypes=("int8",),
        result="int32",
        out=True,
        errors=(
            E("RuntimeError", np.ones((2, 3), np.int8), np.ones((2, 3), np.int8), match="needs to match"),
            E("RuntimeError", np.ones((2, 3)), np.ones((3, 2)), match="int8 or uint8"),
        ),
    ),
    Op(
        "bmm",
        products(((2, 2, 3), (2, 3, 4)), ((0, 2, 3), (0, 3, 2)), ((3, 5, 9), (3, 9, 6))),
        np.matmul,
        dtypes=NUMERIC,
        out=True,
        errors=(
            E(ERR, np.ones((2, 2, 3)), np.ones((3, 3, 2))),
            E("RuntimeError", np.ones((2, 3)), np.ones((3, 2))),
        ),
        **COMMON,
    ),
    Op(
        "mv",
        products(((2, 3), (3,)), ((9, 33), (33,)), ((2, 0), (0,))),
        np.matmul,
        dtypes=NUMERIC,
        out=True,
        errors=(E(ERR, np.ones((2, 3)), np.ones(2)), E("RuntimeError", np.ones(3), np.ones(3))),
        **COMMON,
    ),
    Op(
        "dot",
        products(((3,), (3,)), ((37,), (37,)), ((0,), (0,))),
        np.dot,
        dtypes=NUMERIC,
        out=True,
        errors=(E(ERR, np.ones(3), np.ones(2)), E("RuntimeError", np.ones((1, 3)), np.ones(3))),
        **COMMON,
    ),
    Op("inner", products(((3,), (3,)), ((2, 3), (4, 3))), np.inner, **COMMON),
    Op(
        "outer",
        products(((3,), (4,)), ((1,), (5,)), ((0,), (2,))),
        np.outer,
        dtypes=NUMERIC,
        errors=(E("RuntimeError", np.ones((2, 2)), np.ones(2)),),
        **COMMON,
    ),
    Op("ger", products(((3,), (4,))), np.outer, **COMMON),
    Op(
        "addmm",
        addmm_samples,
        addmm,
        dtypes=NUMERIC,
        out=True,
        inplace="addmm_",
        errors=(
            E(ERR, np.ones((2, 2)), np.ones((2, 3)), np.ones((2, 3))),
            E("RuntimeError", np.ones((3, 3)), np.ones((2, 3)), np.ones((3, 2))),
        ),
        **COMMON,
    ),
    Op(
        "addmv",
        lambda r: [S(r(2), r(2, 3), r(3)), S(r(1), r(2, 3), r(3), beta=2, alpha=3)],
        addmm,
        errors=(E("RuntimeError", np.ones(2), np.ones((2, 3)), np.ones(2)),),
        inplace="addmv_",
        **COMMON,
    ),
    Op(
        "addbmm",
        lambda r: [S(r(3, 2), r(2, 3, 4), r(2, 4, 2))],
        lambda x, a, b: x + (a @ b).sum(0),
        method=True,
        inplace="addbmm_",
        tol=TOL,
    ),
    Op(
        "baddbmm",
        baddbmm_samples,
        addmm,
        dtypes=NUMERIC,
        out=True,
        inplace="baddbmm_",
        errors=(E("RuntimeError", np.ones((2, 3, 3)), np.ones((2, 3, 4)), np.ones((2, 3, 3))),),
        **COMMON,
    ),
    Op(
        "nn.functional.grouped_mm",
        grouped_mm_samples,
        grouped_mm,
        tol=TOL,
        peer=("gradient",),
        peer_reason="PyTorch takes no float64",
        errors=(
            E(ERR, np.ones((4, 3)), np.ones((2, 4, 5)), offs=ends(1, 4)),
            E(ERR, np.ones((4, 3)), np.ones((2, 3, 5)), offs=ends(4)),
            E(ERR, np.ones(3), np.ones((2, 3, 5)), offs=ends(1, 1)),
            E("ValueError", np.ones((4, 3)), np.ones((2, 3, 5)), match="needs offs"),
            E("ValueError", np.ones((2, 4, 3)), np.ones((2, 3, 5)), offs=ends(1, 4), match="have no offsets"),
            E("DtypeError", np.ones((4, 3)), np.ones((2, 3, 5)), offs=np.array([1.0, 4.0])),
            E("DtypeError", np.ones((4, 3)), np.ones((2, 3, 5)), offs=ends(1, 4), dtype="int64"),
            E(
                "NotImplementedError",
                np.ones((4, 3)),
                np.ones((2, 3, 5)),
                offs=ends(1, 4),
                bias=np.ones((2, 5)),
            ),
            E("IndexError", np.ones((4, 3)), np.ones((2, 3, 5)), offs=ends(1, 5), host=True, stricter=True),
            E("IndexError", np.ones((4, 3)), np.ones((2, 3, 5)), offs=ends(3, 2), host=True, stricter=True),
        ),
    ),
    Op(
        "nn.functional.linear",
        linear_samples,
        linear,
        out=True,
        tol=TOL,
        errors=(
            E(ERR, np.ones((2, 3)), np.ones((4, 2)), match="linear|addmm|mm|matmul"),
            E("RuntimeError", np.ones((2, 3)), np.ones((4, 3)), np.ones(3), match="linear|addmm"),
        ),
    ),
    Op(
        "_C._private._linear_prepacked",
        linear_samples,
        linear_prepacked,
        tol=TOL,
        errors=(
            E(ERR, np.ones((2, 3)), np.ones((4, 2)), match="linear|addmm|mm|matmul"),
            E("RuntimeError", np.ones((2, 3)), np.ones((9, 3)), packed=np.ones(7, np.uint8)),
        ),
    ),
    Op(
        "nn.functional.linear_gelu_linear",
        linear_gelu_linear_samples,
        linear_gelu_linear,
        tol=TOL,
        errors=(
            E(ERR, np.ones((2, 3)), np.ones((4, 2)), np.ones(4), np.ones((5, 4)), match="linear"),
            E(ERR, np.ones((2, 3)), np.ones((4, 3)), np.ones(4), np.ones((5, 3)), match="linear"),
            E(ERR, np.ones((2, 3)), np.ones((4, 3)), np.ones(3), np.ones((5, 4)), match="linear"),
        ),
    ),
    Op(
        "nn.functional.bilinear",
        lambda r: [S(r(2, 3), r(2, 4), r(5, 3, 4), r(5))],
        lambda a, b, w, c: np.einsum("bi,oij,bj->bo", a, w, b) + c,
        aliases=("bilinear",),
        tol=TOL,
    ),
    Op(
        "einsum",
        einsum_samples,
        lambda equation, *xs: np.asarray(np.einsum(equation, *xs)),
        tol=TOL,
        errors=(
            E("RuntimeError", "ij,jk->ik", np.ones((2, 3)), np.ones((2, 3))),
            E("RuntimeError", "ijk->i", np.ones((2, 3))),
            E("RuntimeError", "ij->ik", np.ones((2, 3))),
            E("RuntimeError", "ij,jk->ik", np.ones((2, 3))),
            E("RuntimeError", "i!->i", np.ones((2, 3))),
        ),
    ),
    Op(
        "tensordot",
        lambda r: [S(r(2, 3), r(3, 4), 1), S(r(2, 3, 4), r(4, 3, 2), ([1, 2], [1, 0]))],
        np.tensordot,
        dtypes=FLOATS,
        tol=TOL,
    ),
    Op("linalg.multi_dot", lambda r: [S([r(2, 3), r(3, 4), r(4, 2)])], np.linalg.multi_dot, tol=TOL),
    Op(
        "cdist",
        lambda r: [
            S(r(3, 4), r(2, 4)),
            S(r(2, 3, 2), r(2, 4, 2), p=1.0),
            S(r(3, 5), r(2, 4, 5), p=float("inf")),
            S(r(30, 3), r(2, 3), compute_mode="donot_use_mm_for_euclid_dist"),
        ],
        lambda a, b, p=2.0, compute_mode="": np.linalg.norm(
            a[..., :, None, :] - b[..., None, :, :], p, axis=-1
        ),
        dtypes=("float64", "float32"),
        tol={"float32": (1e-4, 1e-4)},
        second=False,
    ),
    Op(
        "nn.functional.pdist",
        lambda r: [S(r(5, 3)), *(S(r(4, 70), p) for p in (1.0, 2.0, 3.0, float("inf")))],
        lambda x, p=2.0: np.linalg.norm((x[:, None] - x)[np.triu_indices(len(x), 1)], p, axis=-1),
        dtypes=("float64", "float32"),
        tol={"float32": (1e-5, 1e-5)},
        aliases=("pdist",),
        errors=(
            E("ShapeError", np.ones(3)),
            E("RuntimeError", np.ones((3, 2)), -1.0),
            E("DtypeError", np.ones((3, 2)), dtype="int64"),
        ),
    ),
]
