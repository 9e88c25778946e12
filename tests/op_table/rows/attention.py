"""scaled_dot_product_attention: the reference forms the whole matrix of scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from ..table import E, Op, Rng, S, Sample

F = "nn.functional."
TOL = {"float32": (2e-5, 2e-5), "float16": (5e-3, 5e-3), "bfloat16": (4e-2, 4e-2)}


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> np.ndarray:
    """q (..., H, L, D), k (..., Hk, S, D), v (..., Hk, S, Dv) -> (..., H, L, Dv); rows without a key are
    zero."""
    if enable_gqa:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == bool else scores + attn_mask
    weights = np.nan_to_num(special.softmax(scores, -1), nan=0.0)
    return weights @ v


def qkv(
    r: Rng,
    heads: int = 2,
    length: int = 4,
    keys: int = 4,
    width: int = 3,
    kv_heads: int | None = None,
    value: int | None = None,
) -> tuple[np.ndarray, ...]:
    kv = kv_heads or heads
    return r(1, heads, length, width), r(1, kv, keys, width), r(1, kv, keys, value or width)


def samples(r: Rng) -> list[Sample]:
    mask = np.array(
        [[True, False, True, True], [True, True, False, False], [False, True, True, True], [True] * 4]
    )
    cases = [
        S(*qkv(r)),
        S(*qkv(r), is_causal=True),
        S(*qkv(r), mask),
        S(*qkv(r), r(4, 4)),
        S(*qkv(r), attn_mask=r(1, 1, 4, 4)),
    ]
    cases += [
        S(*qkv(r, length=2, keys=5)),
        S(*qkv(r, value=2), scale=0.3),
        S(*qkv(r, 4, kv_heads=2), enable_gqa=True),
    ]
    cases += [
        S(*qkv(r, 4, kv_heads=1), is_causal=True, enable_gqa=True),
        S(r(4, 3), r(5, 3), r(5, 3)),
        S(r(2, 4, 3), r(2, 4, 3), r(2, 4, 3)),
    ]
    return [
        *cases,
        S(*qkv(r, 1, 19, 19, 8), is_causal=True),
        S(*qkv(r, 1, 3, 20, 16), r(3, 20) < 0.0),
        S(*qkv(r), mask.T.copy(), scale=1.0),
        S(r(2, 4, 3), r(3, 2, 5, 3), r(3, 2, 5, 3)),
        S(r(2, 1, 4, 3), r(2, 4, 3), r(1, 4, 2), is_causal=True),
    ]


def empty_row(r: Rng) -> list[Sample]:
    mask = np.array([[True, False, True, True], [False] * 4, [False, True, True, True], [True] * 4])
    return [S(*qkv(r), mask)]


Q = np.ones((1, 2, 4, 3))
ROWS = [
    Op(
        F + "scaled_dot_product_attention",
        samples,
        attention,
        tol=TOL,
        nograd=(3, "attn_mask"),
        peer=("second_gradient",),
        errors=(
            E("RuntimeError", Q, np.ones((1, 2, 4, 2)), Q),
            E("RuntimeError", Q, np.ones((1, 2, 5, 3)), Q, stricter=True),
            E("RuntimeError", Q, Q, Q, np.ones((3, 3), bool)),
            # PyTorch documents the refusal; its fused CPU path, taken without dropout, applies both.
            E("RuntimeError", Q, Q, Q, np.ones((4, 4), bool), is_causal=True, stricter=True),
            E("RuntimeError", Q, Q, Q, np.ones((4, 4), bool), 0.5, is_causal=True),
            E("RuntimeError", np.ones((1, 3, 4, 3)), Q, Q, enable_gqa=True),
            E("RuntimeError", Q, Q, np.ones((1, 2, 4, 3), np.int64)),
        ),
    ),
    Op(
        F + "scaled_dot_product_attention",
        empty_row,
        attention,
        label="attention, a row without keys",
        tol=TOL,
        peer=("second_gradient",),
    ),
]
