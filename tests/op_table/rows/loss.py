"""Losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from ..table import E, Err, Op, Rng, S, Sample

F = "nn.functional."
TOL = {"float32": (1e-5, 1e-5), "float16": (5e-3, 1e-2), "bfloat16": (3e-2, 6e-2)}
LOGITS, TARGET = np.ones((2, 3)), np.array([0, 1])


def reduce(loss: np.ndarray, reduction: str) -> np.ndarray:
    return loss if reduction == "none" else np.asarray(loss.sum() if reduction == "sum" else loss.mean())


def pointwise(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A loss that is a mean of an elementwise function of input and target."""

    def loss(
        x: np.ndarray, y: np.ndarray, *, reduction: str = "mean", weight: Any = None, **options: Any
    ) -> np.ndarray:
        losses = function(x, y, **options)
        if weight is None:
            return reduce(losses, reduction)
        # The mean of weighted squares and magnitudes is over the weights, huber_loss's over the elements.
        total = reduce(losses * weight, "sum" if reduction == "mean" else reduction)
        if reduction != "mean":
            return total
        return np.asarray(total / (losses.size if function is huber else weight.sum()))

    return loss


def both(r: Rng, *options: dict[str, Any]) -> list[Sample]:
    """Every reduction, a longer row, 0-dim, and the given options."""

    def pair(*shape: int) -> tuple[np.ndarray, np.ndarray]:
        y = r(*shape)
        return np.asarray(y + r(*shape)), y  # the difference stays clear of the kinks at 0, 0.5 and 1

    cases = [S(*pair(3, 4), reduction=kind) for kind in ("mean", "sum", "none")]
    return [*cases, S(*pair(2, 37)), S(*pair())] + [S(*pair(3, 4), **option) for option in options]


def difference(
    name: str,
    function: Callable[..., np.ndarray],
    *options: dict[str, Any],
    weighted: bool = True,
    errors: Sequence[Err] = (),
) -> Op:
    """A row for a loss of input minus target."""

    def samples(r: Rng) -> list[Sample]:
        weights = [
            S(r(3, 4), r(3, 4), weight=r.positive(3, 4), reduction=kind) for kind in ("mean", "sum", "none")
        ]
        return [*both(r, *options), *(weights if weighted else [])]

    return Op(
        F + name,
        samples,
        pointwise(function),
        tol=TOL,
        nograd=("weight",),
        errors=(
            E("ShapeError", np.ones((2, 3)), np.ones((2, 4))),
            E("ValueError", np.ones(3), np.ones(3), reduction="average", match=f"{name}|reduction"),
            E("NotImplementedError|RuntimeError", np.ones(3), np.ones(3), dtype="int64"),
            *(E("ValueError", np.ones((2, 3)), np.ones((2, 3)), weight=np.ones(3)) for _ in range(weighted)),
            *errors,
        ),
        broadcast=2,
    )


def huber(x: np.ndarray, y: np.ndarray, delta: float = 1.0) -> np.ndarray:
    d = np.abs(x - y)
    return np.where(d < delta, d**2 / 2, delta * (d - delta / 2))


def smooth_l1(x: np.ndarray, y: np.ndarray, beta: float = 1.0) -> np.ndarray:
    return huber(x, y, beta) / beta


def nll(
    logp: np.ndarray,
    target: np.ndarray,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> np.ndarray:
    logp, axis = (logp, 1) if logp.ndim > 1 else (logp[None], 1)
    flat = np.moveaxis(logp, axis, -1)
    labels = np.asarray(target).reshape(flat.shape[:-1])
    kept = labels != ignore_index
    safe = np.where(kept, labels, 0)
    scale = (np.ones(flat.shape[-1]) if weight is None else weight)[safe] * kept
    loss = -np.take_along_axis(flat, safe[..., None], -1)[..., 0] * scale
    if reduction == "none":
        return loss.reshape(np.shape(target))
    return np.asarray(loss.sum() / (scale.sum() if reduction == "mean" else 1))


def cross_entropy(
    x: np.ndarray,
    target: np.ndarray,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> np.ndarray:
    axis = 1 if x.ndim > 1 else 0
    logp = special.log_softmax(x, axis)
    classes = x.shape[axis]
    shape = [1] * x.ndim
    shape[axis] = classes
    scale = (np.ones(classes) if weight is None else weight).reshape(shape)
    if target.dtype == np.float64:
        soft = target * (1 - label_smoothing) + label_smoothing / classes
        loss = -(logp * soft * scale).sum(axis)
        return (
            loss
            if reduction == "none"
            else np.asarray(loss.sum() / (loss.size if reduction == "mean" else 1))
        )
    hard = nll(logp, target, weight, ignore_index, reduction)
    if not label_smoothing:
        return hard
    kept = target != ignore_index
    smooth = -(logp * scale).sum(axis) * kept
    if reduction == "mean":
        smooth = (
            smooth.sum()
            / ((np.ones(classes) if weight is None else weight)[np.where(kept, target, 0)] * kept).sum()
        )
    smooth = smooth.sum() if reduction == "sum" else smooth
    return (1 - label_smoothing) * hard + label_smoothing / classes * smooth


def linear_cross_entropy(
    x: np.ndarray,
    w: np.ndarray,
    target: np.ndarray,
    *,
    linear_bias: Any = None,
    ignore_index: int = -100,
    **how: Any,
) -> np.ndarray:
    logits = np.einsum("...i,cki->...ck", x, w) if w.ndim == 3 else x @ w.T
    logits = logits + (0 if linear_bias is None else linear_bias)
    return cross_entropy(logits, target, ignore_index=ignore_index, **how)


def class_samples(r: Rng) -> list[Sample]:
    cases = [S(r(4, 3), r.index(4, high=3), reduction=kind) for kind in ("mean", "sum", "none")]
    cases += [
        S(r(4, 3), r.index(4, high=3), r.positive(3)),
        S(r(3, 5), np.array([1, -1, 4]), ignore_index=-1),
        S(r(3), r.index(high=3)),
    ]
    cases += [
        S(r(2, 3, 4), r.index(2, 4, high=3)),
        S(r(2, 3, 2, 2), r.index(2, 2, 2, high=3), reduction="none"),
        S(r(3, 40), r.index(3, high=40)),
    ]
    return [
        *cases,
        S(r(4, 3), np.array([0, -100, 2, 1]), r.positive(3), reduction="sum"),
        S(r(3, 4), np.array([0, -100, 2])),
    ]


def entropy_samples(r: Rng) -> list[Sample]:
    cases = [
        S(r(4, 3), r.index(4, high=3), label_smoothing=0.1),
        S(r(4, 3), np.array([0, -100, 2, 1]), r.positive(3), label_smoothing=0.2),
    ]
    cases += [S(r(4, 3), r.index(4, high=3), label_smoothing=0.1, reduction=kind) for kind in ("sum", "none")]
    soft = [S(r(4, 3), r.prob(4, 3), reduction=kind) for kind in ("mean", "none")] + [
        S(r(4, 3), r.prob(4, 3), r.positive(3), label_smoothing=0.1)
    ]
    extreme = np.array([[1000.0, -1000.0, 0.0], [60.0, 50.0, 40.0]])
    return class_samples(r) + cases + soft + [S(extreme, TARGET, grad=False)]


def bce(x: np.ndarray, y: np.ndarray, weight: Any = None, reduction: str = "mean") -> np.ndarray:
    loss = -(y * np.maximum(np.log(x), -100) + (1 - y) * np.maximum(np.log1p(-x), -100))
    return reduce(loss * (1 if weight is None else weight), reduction)


def bce_samples(r: Rng) -> list[Sample]:
    cases = [S(r.prob(3, 4), r.prob(3, 4), reduction=kind) for kind in ("mean", "sum", "none")]
    return [
        *cases,
        S(r.prob(3, 4), r.prob(3, 4), r.positive(3, 4)),
        S(r.prob(3, 4), r.prob(3, 4), r.positive(4), reduction="none"),
        S(r.prob(2, 37), r.prob(2, 37), r.positive(2, 1), reduction="sum"),
        S(np.array([0.0, 1.0]), np.array([1.0, 0.0]), grad=False),
    ]


def bce_logits(
    x: np.ndarray, y: np.ndarray, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> np.ndarray:
    positive = 1 if pos_weight is None else pos_weight
    loss = (1 - y) * np.logaddexp(0, x) + positive * y * np.logaddexp(0, -x)
    return reduce(loss * (1 if weight is None else weight), reduction)


def bce_logits_samples(r: Rng) -> list[Sample]:
    cases = [S(r(3, 4), r.prob(3, 4), reduction=kind) for kind in ("mean", "sum", "none")]
    cases += [
        S(r(3, 4), r.prob(3, 4), r.positive(3, 4)),
        S(r(3, 4), r.prob(3, 4), pos_weight=r.positive(4)),
        S(r(3, 4), r.prob(3, 4), r.positive(3, 1), reduction="none", pos_weight=r.positive(4)),
        S(r(2, 37), r.prob(2, 37)),
    ]
    return [*cases, S(np.array([100.0, -100.0]), np.array([1.0, 1.0]), grad=False)]


def kl_div(x: np.ndarray, y: np.ndarray, reduction: str = "mean", log_target: bool = False) -> np.ndarray:
    loss = np.exp(y) * (y - x) if log_target else special.xlogy(y, y) - y * x
    return np.asarray(loss.sum() / len(x)) if reduction == "batchmean" else reduce(loss, reduction)


def kl_samples(r: Rng) -> list[Sample]:
    cases = [S(r(3, 4), r.prob(3, 4), reduction=kind) for kind in ("mean", "sum", "none", "batchmean")]
    return [
        *cases,
        S(r(3, 4), r(3, 4), reduction="sum", log_target=True),
        S(r(2, 37), r(2, 37), reduction="batchmean", log_target=True),
        S(r(2, 2), np.array([[0.0, 1.0], [0.5, 0.0]]), reduction="none", grad=False),
    ]


def cosine(x: np.ndarray, y: np.ndarray, dim: int = 1, eps: float = 1e-8) -> np.ndarray:
    return np.asarray(
        (x * y).sum(dim) / np.maximum(np.sqrt((x * x).sum(dim)) * np.sqrt((y * y).sum(dim)), eps)
    )


def gaussian_nll(
    x: np.ndarray,
    y: np.ndarray,
    var: np.ndarray,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> np.ndarray:
    var = np.maximum(var, eps)
    return reduce((np.log(var) + (x - y) ** 2 / var) / 2 + (np.log(2 * np.pi) / 2 if full else 0), reduction)


CLASS_ERRORS = (
    E("IndexError", LOGITS, np.array([0, 3])),
    E("IndexError", LOGITS, np.array([0, -1])),
    E("ValueError", LOGITS, np.array([0, 1, 2])),
    E("RuntimeError", LOGITS, np.array([[0], [1]])),
    E("RuntimeError", LOGITS, TARGET, np.ones(4)),
)


def multilabel_margin(x: np.ndarray, y: np.ndarray, reduction: str = "mean") -> np.ndarray:
    losses = []
    for scores, row in zip(np.atleast_2d(x), np.atleast_2d(y), strict=True):
        wanted = row[: np.argmax(row < 0)] if (row < 0).any() else row
        rest = [i for i in range(len(scores)) if i not in wanted]
        gaps = [max(0, 1 - (scores[j] - scores[i])) for j in wanted for i in rest]
        losses.append(np.sum(gaps) / len(scores))
    return reduce(np.asarray(losses if x.ndim == 2 else losses[0]), reduction)


def ctc(
    log_probs: np.ndarray,
    targets: np.ndarray,
    steps: Any,
    lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
) -> np.ndarray:
    """Minus the logarithm of the summed chances of all paths that read as the labels, one by one."""
    losses, counts = [], [int(n) for n in np.atleast_1d(lengths)]
    for n, (last, count) in enumerate(zip(np.atleast_1d(steps), counts, strict=True)):
        start = sum(counts[:n])
        labels = list(targets[n, :count] if targets.ndim == 2 else targets[start : start + count])
        total = 0.0
        for path in np.ndindex(*[log_probs.shape[2]] * int(last)):
            read = [c for c, before in zip(path, (-1, *path[:-1]), strict=True) if c != before]
            if [c for c in read if c != blank] == labels:
                total += np.exp(sum(log_probs[t, n, c] for t, c in enumerate(path)))
        losses.append(-np.log(total))
    if reduction == "mean":
        losses = [loss / max(count, 1) for loss, count in zip(losses, counts, strict=True)]
    return reduce(np.asarray(losses), reduction)


def ctc_samples(r: Rng) -> list[Sample]:
    def scores(*shape: int) -> np.ndarray:
        return np.asarray(special.log_softmax(r(*shape), -1))

    rows = np.array([[1, 2], [1, 1], [2, 0]])
    cases = [
        S(scores(4, 3, 3), rows, (4, 4, 3), (2, 2, 1), reduction=kind) for kind in ("none", "mean", "sum")
    ]
    flat = S(scores(4, 3, 3), np.array([1, 2, 2]), np.array([4, 2, 1]), np.array([2, 1, 0]), reduction="none")
    return [*cases, flat, S(scores(3, 1, 3), np.array([[0, 1]]), (3,), (2,), blank=2)]


CTC = (np.zeros((4, 1, 3)), np.array([[1, 2]]))
ROWS = [
    difference("mse_loss", lambda x, y: (x - y) ** 2),
    difference("l1_loss", lambda x, y: np.abs(x - y)),
    difference(
        "smooth_l1_loss",
        smooth_l1,
        {"beta": 0.5},
        {"beta": 0.5, "reduction": "none"},
        {"beta": 1.5, "reduction": "sum"},
        weighted=False,
        errors=(E("RuntimeError", np.ones(3), np.ones(3), beta=-1.0),),
    ),
    difference(
        "huber_loss",
        huber,
        {"delta": 0.5},
        {"delta": 0.5, "reduction": "none"},
        {"delta": 1.5, "reduction": "sum"},
        errors=(E("RuntimeError", np.ones(3), np.ones(3), delta=0.0),),
    ),
    Op(
        F + "nll_loss",
        class_samples,
        nll,
        tol=TOL,
        nograd=(2,),
        errors=CLASS_ERRORS,
        peer=("gradient_layout",),
    ),
    Op(
        F + "cross_entropy",
        entropy_samples,
        cross_entropy,
        tol=TOL,
        nograd=(2,),
        errors=(*CLASS_ERRORS, E("RuntimeError", LOGITS, TARGET, label_smoothing=1.5)),
    ),
    Op(
        F + "linear_cross_entropy",
        lambda r: [
            S(r(4, 3), r(5, 3), r.index(4, high=5)),
            S(r(3), r(5, 3), r.index(high=5), linear_bias=r(5), reduction="sum"),
            S(r(4, 3), r(5, 2, 3), r.index(4, 2, high=5), linear_bias=r(5, 2), weight=r.positive(5)),
            S(r(4, 3), r(5, 3), r.index(4, high=5), ignore_index=1, reduction="none", label_smoothing=0.1),
            S(r(4, 3), r(5, 3), r.prob(4, 5)),
        ],
        linear_cross_entropy,
        tol=TOL,
        nograd=("weight",),
        errors=(
            E("RuntimeError", np.ones((2, 3)), np.ones((4, 2)), np.array([0, 1])),
            E("RuntimeError", np.ones(3), np.ones((4, 2, 3)), np.array([0, 1])),
            E("RuntimeError", np.ones((2, 3)), np.ones((4, 3)), np.array([0, 1]), linear_bias=np.ones(3)),
        ),
    ),
    Op(
        F + "binary_cross_entropy",
        bce_samples,
        bce,
        tol=TOL,
        nograd=(2,),
        errors=(
            E("ValueError", np.full(3, 0.5), np.full(2, 0.5)),
            E("RuntimeError", np.full(2, 1.5), np.full(2, 0.5), host=True),
            E("RuntimeError", np.full(2, 0.5), np.array([0.5, -0.5]), host=True),
            E("RuntimeError", np.full((2, 3), 0.5), np.full((2, 3), 0.5), np.ones(2)),
            E("ValueError", np.full(2, 0.5), np.full(2, 0.5), reduction="average"),
        ),
    ),
    Op(
        F + "binary_cross_entropy_with_logits",
        bce_logits_samples,
        bce_logits,
        tol=TOL,
        nograd=(2, "pos_weight"),
        errors=(
            E("ValueError", np.ones(3), np.ones(2)),
            E("RuntimeError", np.ones((2, 3)), np.ones((2, 3)), np.ones(2)),
            E("RuntimeError", np.ones((2, 3)), np.ones((2, 3)), pos_weight=np.ones(2)),
            E("ValueError", np.ones(2), np.ones(2), reduction="average"),
        ),
    ),
    Op(
        F + "kl_div",
        kl_samples,
        kl_div,
        tol=TOL,
        broadcast=2,
        errors=(
            E("ShapeError", np.ones((2, 3)), np.ones((2, 2)), reduction="sum"),
            E("RuntimeError", np.ones(3), np.ones(3), reduction="sum", dtype="int64"),
            E("ValueError", np.ones(3), np.ones(3), reduction="average"),
        ),
    ),
    Op(
        F + "poisson_nll_loss",
        lambda r: [S(r(3, 4), r.positive(3, 4)), S(r(3, 4), r.positive(3, 4), reduction="none")],
        lambda x, y, reduction="mean": reduce(np.exp(x) - y * x, reduction),
        tol=TOL,
    ),
    Op(
        F + "gaussian_nll_loss",
        lambda r: [
            S(r(3, 4), r(3, 4), r.positive(3, 4)),
            S(r(3, 4), r(3, 4), r.positive(3, 4), full=True, reduction="sum"),
        ],
        gaussian_nll,
        dtypes=("float64", "float32"),
        tol=TOL,
        meta=None,
    ),
    Op(
        F + "cosine_similarity",
        lambda r: [S(r(3, 4), r(3, 4)), S(r(3, 4), r(3, 4), dim=0), S(r(5), r(5), 0)],
        cosine,
        tol=TOL,
    ),
    Op(
        F + "pairwise_distance",
        lambda r: [S(r(3, 4), r(3, 4)), S(r(3, 4), r(3, 4), 1.0)],
        lambda x, y, p=2.0, eps=1e-6: (np.abs(x - y + eps) ** p).sum(-1) ** (1 / p),
        dtypes=("float64", "float32"),
        tol=TOL,
    ),
    Op(
        F + "hinge_embedding_loss",
        lambda r: [S(r(3, 4), np.array([[1.0, -1.0, 1.0, -1.0]] * 3))],
        lambda x, y: np.asarray(np.where(y == 1, x, np.maximum(0, 1 - x)).mean()),
        tol=TOL,
        nograd=(1,),
    ),
    Op(
        F + "margin_ranking_loss",
        lambda r: [S(r(4), r(4), np.array([1.0, -1.0, 1.0, -1.0]), 0.3)],
        lambda a, b, y, margin: np.asarray(np.maximum(0, -y * (a - b) + margin).mean()),
        tol=TOL,
        nograd=(2,),
    ),
    Op(
        F + "soft_margin_loss",
        lambda r: [S(r(4), np.array([1.0, -1.0, 1.0, -1.0]))],
        lambda x, y: np.asarray(np.log1p(np.exp(-x * y)).mean()),
        tol=TOL,
        nograd=(1,),
    ),
    Op(
        F + "multilabel_margin_loss",
        lambda r: [
            *(
                S(r(3, 4), np.array([[1, 0, -1, 2], [3, -1, 0, 1], [0, 1, 2, 3]]), reduction=k)
                for k in ("none", "mean", "sum")
            ),
            S(r(3), np.array([-1, 0, 1])),
            S(r(3) * 0.4, np.array([2, -1, -1])),
        ],
        multilabel_margin,
        tol=TOL,
        python=True,
        errors=(
            E("RuntimeError", np.ones((2, 3)), np.array([0, 1])),
            E("RuntimeError", np.ones((2, 3)), np.ones((2, 3), np.int32)),
        ),
    ),
    Op(
        F + "ctc_loss",
        ctc_samples,
        ctc,
        dtypes=("float64", "float32"),
        tol=TOL,
        python=True,
        meta=None,
        # The gradient is that behind log_softmax: tests/python/nn has it against differences.
        grad=False,
        errors=(
            E("RuntimeError", *CTC, (5,), (2,), host=True),
            E("RuntimeError", *CTC, (4,), (3,), host=True),
            E("RuntimeError", *CTC, (4, 4), (2,)),
            E("RuntimeError", *CTC, (4,), (2,), blank=3),
            E("ValueError", *CTC, (4,), (2,), reduction="all"),
        ),
    ),
]
