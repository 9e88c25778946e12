"""torch.masked: reductions and normalisations of what a mask shows, against NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from ..table import E, Op, Rng, S, Sample

INF = float("inf")
TOL = {"float32": (1e-5, 1e-5), "float16": (6e-3, 6e-3), "bfloat16": (5e-2, 5e-2)}
SHOWN = np.array([[True, False, True, True], [False, True, True, False], [True, True, False, True]])
ROW = np.array([True, True, False, True])


def shown(x: np.ndarray, mask: Any, hidden: float) -> np.ndarray:
    return x if mask is None else np.where(np.broadcast_to(mask, x.shape), x, hidden)


def reductions(r: Rng) -> list[Sample]:
    return [
        S(r(3, 4), 1, mask=SHOWN),
        S(r(3, 4), mask=SHOWN),
        S(r(2, 3, 4), (0, 2), keepdim=True, mask=ROW),
        S(r(3, 4), -2),
    ]


def along(r: Rng) -> list[Sample]:
    return [S(r(3, 4), 1, mask=SHOWN), S(r(2, 3, 4), -1, mask=ROW), S(r(3, 4), 0)]


def reduction(name: str, hidden: float, ref: Callable[..., Any], **options: Any) -> Op:
    def reference(x: np.ndarray, dim: Any = None, *, keepdim: bool = False, mask: Any = None) -> Any:
        return np.asarray(ref(shown(x, mask, hidden), axis=dim, keepdims=keepdim))

    options = {
        "samples": reductions,
        "tol": TOL,
        "errors": (E("IndexError", np.ones(2), mask=SHOWN),),
    } | options
    return Op(f"masked.{name}", ref=reference, **options)


def normalisation(name: str, hidden: float, ref: Callable[..., Any], **options: Any) -> Op:
    def reference(x: np.ndarray, dim: int, *, mask: Any = None) -> Any:
        return ref(shown(x, mask, hidden), axis=dim)

    return Op(f"masked.{name}", along, reference, tol=TOL, **options)


def norm(x: np.ndarray, ord: float = 2.0, dim: Any = None, *, keepdim: bool = False, mask: Any = None) -> Any:
    seen = np.abs(shown(x, mask, INF if ord == -INF else 0.0))
    if abs(ord) == INF:
        return (np.max if ord > 0 else np.min)(seen, axis=dim, keepdims=keepdim)
    return np.sum(seen**ord, axis=dim, keepdims=keepdim) ** (1 / ord)


def normalize(x: np.ndarray, ord: float, dim: int, *, eps: float = 1e-12, mask: Any = None) -> np.ndarray:
    return np.asarray(shown(x, mask, 0.0) / np.maximum(norm(x, ord, dim, keepdim=True, mask=mask), eps))


def logaddexp(x: np.ndarray, y: np.ndarray, *, input_mask: Any = None, other_mask: Any = None) -> np.ndarray:
    return np.logaddexp(shown(x, input_mask, -INF), shown(y, other_mask, -INF))


def of_shown(name: str) -> Callable[..., Any]:
    """A reduction of the elements that a mask shows, one by one."""

    def reference(
        x: np.ndarray,
        dim: Any = None,
        unbiased: Any = None,
        *,
        correction: Any = None,
        keepdim: bool = False,
        mask: Any = None,
    ) -> Any:
        masked = np.ma.array(x, mask=~np.broadcast_to(True if mask is None else mask, x.shape))
        how = (
            {}
            if name == "mean"
            else {"ddof": correction if correction is not None else int(unbiased is not False)}
        )
        return np.asarray(getattr(np.ma, name)(masked, axis=dim, keepdims=keepdim, **how))

    return reference


def median(x: np.ndarray, dim: int = -1, *, keepdim: bool = False, mask: Any = None) -> np.ndarray:
    ranked = np.sort(shown(x, mask, np.nan), axis=dim)  # nan comes last
    count = np.sum(~np.isnan(ranked), axis=dim, keepdims=True)
    found = np.take_along_axis(ranked, (count - 1) // 2, dim)
    return found if keepdim else np.squeeze(found, dim)


def deviations(r: Rng) -> list[Sample]:
    return [
        *reductions(r),
        S(r(3, 4), 1, unbiased=False, mask=SHOWN),
        S(r(3, 4), 1, correction=0, mask=SHOWN),
    ]


PLAIN = {"grad": False, "result": "same", "tol": {}}
ROWS = [
    reduction("sum", 0.0, np.sum),
    reduction("prod", 1.0, np.prod),
    reduction("amax", -INF, np.max),
    reduction("amin", INF, np.min),
    reduction("logsumexp", -INF, special.logsumexp),
    reduction(
        "argmax",
        -INF,
        np.argmax,
        **PLAIN,
        samples=lambda r: [S(r.distinct(3, 4), 1, mask=SHOWN), S(r.distinct(3, 4))],
    ),
    reduction(
        "argmin",
        INF,
        np.argmin,
        **PLAIN,
        samples=lambda r: [S(r.distinct(3, 4), 1, mask=SHOWN), S(r.distinct(3, 4))],
    ),
    Op("masked.mean", reductions, of_shown("mean"), tol=TOL, errors=(E("ValueError", np.ones(2, np.int64)),)),
    Op(
        "masked.var",
        deviations,
        of_shown("var"),
        tol=TOL,
        errors=(E("AssertionError", np.ones(2), 0, True, correction=1),),
    ),
    Op("masked.std", deviations, of_shown("std"), tol=TOL, second=False),
    Op(
        "masked.median",
        lambda r: [S(r.distinct(3, 4), mask=SHOWN), S(r.distinct(2, 3, 4), 2, keepdim=True, mask=ROW)],
        median,
    ),
    Op(
        "masked.norm",
        lambda r: (
            [S(r.positive(3, 4), p, 1, mask=SHOWN) for p in (2.0, 1.0, 3.0, INF, -INF)]
            + [S(r(3, 4), mask=SHOWN)]
        ),
        norm,
        tol=TOL,
    ),
    Op(
        "masked.normalize",
        lambda r: [S(r(3, 4), 2.0, 1, mask=SHOWN), S(r(3, 4), 1.0, 0, eps=0.5)],
        normalize,
        tol=TOL,
    ),
    Op(
        "masked.logaddexp",
        lambda r: [
            S(r(3, 4), r(3, 4), input_mask=SHOWN),
            S(r(3, 4), r(3, 4), input_mask=ROW, other_mask=~ROW),
        ],
        logaddexp,
        tol=TOL,
    ),
    normalisation("cumsum", 0.0, np.cumsum),
    normalisation("cumprod", 1.0, np.cumprod),
    normalisation("softmax", -INF, special.softmax),
    normalisation("log_softmax", -INF, special.log_softmax, grad=False),
    normalisation("softmin", INF, lambda x, axis: special.softmax(-x, axis=axis)),
]
