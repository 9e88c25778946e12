"""Layer, RMS, batch, group and instance norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..table import E, Op, Rng, S, Sample

TOL = {"float32": (2e-5, 2e-5), "float16": (5e-3, 1e-2), "bfloat16": (3e-2, 6e-2)}
SHAPE = "ShapeError"


def standardise(x: np.ndarray, axes: tuple[int, ...], eps: float) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def layer_norm(
    x: np.ndarray, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> np.ndarray:
    y = standardise(x, tuple(range(x.ndim - len(shape), x.ndim)), eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def rms_norm(x: np.ndarray, shape: Any, weight: Any = None, eps: float | None = None) -> np.ndarray:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    return x / np.sqrt((x**2).mean(axes, keepdims=True) + (eps or 0)) * (1 if weight is None else weight)


def per_channel(v: Any, ndim: int, default: float) -> Any:
    return default if v is None else v.reshape(1, -1, *[1] * (ndim - 2))


def batch_norm(
    x: np.ndarray,
    mean: Any,
    var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> np.ndarray:
    axes = (0, *range(2, x.ndim))
    if training or mean is None:
        y = standardise(x, axes, eps)
    else:
        y = (x - per_channel(mean, x.ndim, 0)) / np.sqrt(per_channel(var, x.ndim, 1) + eps)
    return y * per_channel(weight, x.ndim, 1) + per_channel(bias, x.ndim, 0)


def group_norm(
    x: np.ndarray, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> np.ndarray:
    y = x.reshape(x.shape[0], groups, -1)
    y = standardise(y, (2,), eps).reshape(x.shape)
    return y * per_channel(weight, x.ndim, 1) + per_channel(bias, x.ndim, 0)


def layer_samples(r: Rng) -> list[Sample]:
    cases = [S(r(3, 5), (5,)), S(r(3, 5), (5,), r.positive(5), r(5)), S(r(2, 3, 4), (3, 4), r(3, 4), r(3, 4))]
    cases += [
        S(r(3, 5), (5,), r.positive(5)),
        S(r(3, 5), (5,), None, None, 1e-2),
        S(r(2, 3, 4), [4], r(4), r(4)),
    ]
    return [*cases, S(r(2, 37), (37,), r(37), r(37)), S(r(0, 4), (4,), r(4), r(4), grad=False)]


def rms_samples(r: Rng) -> list[Sample]:
    cases = [
        S(r(3, 5), (5,), None, 1e-5),
        S(r(3, 5), (5,), r.positive(5), 1e-3),
        S(r(2, 3, 4), (3, 4), r(3, 4), 1e-5),
    ]
    return [*cases, S(r(2, 37), (37,), r(37), 1e-6)]


def batch_samples(r: Rng) -> list[Sample]:
    cases = [
        S(r(4, 3), r(3), r.positive(3)),
        S(r(4, 3), r(3), r.positive(3), r(3), r(3)),
        S(r(2, 3, 4), r(3), r.positive(3), r(3), r(3)),
    ]
    cases += [
        S(r(4, 3), None, None, r(3), r(3), training=True),
        S(r(2, 3, 2, 2), None, None, r(3), r(3), True),
    ]
    return [
        *cases,
        S(r(4, 2), None, None, training=True),
        S(r(3, 2, 5), r(2), r.positive(2), r(2), r(2), False, 0.1, 1e-2),
    ]


def group_samples(r: Rng) -> list[Sample]:
    cases = [
        S(r(2, 4, 3), 2),
        S(r(2, 4, 3), 2, r(4), r(4)),
        S(r(2, 4, 2, 3), 4, r(4), r(4)),
        S(r(2, 4, 5), 1, r(4), r(4), 1e-2),
    ]
    return [*cases, S(r(2, 6, 3), 3, r(6))]


def instance_norm(x: np.ndarray, weight: Any = None, bias: Any = None) -> np.ndarray:
    y = standardise(x, tuple(range(2, x.ndim)), 1e-5)
    return y * per_channel(weight, x.ndim, 1) + per_channel(bias, x.ndim, 0)


def running(rt: Any, x: Any, mean: Any, var: Any, momentum: float) -> tuple[Any, Any]:
    """The running statistics after one training step."""
    mean, var = mean.clone(), var.clone()
    rt.nn.functional.batch_norm(x, mean, var, training=True, momentum=momentum)
    return mean, var


def running_ref(
    x: np.ndarray, mean: np.ndarray, var: np.ndarray, momentum: float
) -> tuple[np.ndarray, np.ndarray]:
    axes = (0, *range(2, x.ndim))
    return (1 - momentum) * mean + momentum * x.mean(axes), (1 - momentum) * var + momentum * x.var(
        axes, ddof=1
    )


F = "nn.functional."
ROWS = [
    Op(
        F + "layer_norm",
        layer_samples,
        layer_norm,
        aliases=("layer_norm",),
        tol=TOL,
        errors=(
            E("RuntimeError", np.ones((2, 3)), (4,)),
            E("RuntimeError", np.ones((2, 3)), (3,), np.ones(4)),
            E("RuntimeError", np.ones((2, 3)), ()),
        ),
    ),
    Op(
        F + "rms_norm",
        rms_samples,
        rms_norm,
        aliases=("rms_norm",),
        tol=TOL,
        errors=(
            E("RuntimeError", np.ones((2, 3)), (4,)),
            E("RuntimeError", np.ones((2, 3)), (3,), np.ones(4)),
        ),
    ),
    Op(
        F + "rms_norm",
        lambda r: [S(r(3, 5), (5,))],
        rms_norm,
        label="rms_norm, default eps",
        dtypes=("float64", "float32"),
        tol=TOL,
    ),
    Op(
        F + "rms_norm",
        lambda r: [S(r(3, 5) * 1e-3, (5,))],
        lambda x, shape: rms_norm(x, shape, eps=float(np.finfo(np.float32).eps)),
        label="rms_norm, default eps of small numbers",
        dtypes=("float32", "float16", "bfloat16"),
        tol=TOL,
    ),
    Op(
        F + "batch_norm",
        batch_samples,
        batch_norm,
        tol=TOL,
        nograd=(1, 2),
        errors=(
            E("RuntimeError", np.ones((2, 3)), np.ones(4), np.ones(4)),
            E("RuntimeError", np.ones((2, 3)), np.ones(3), np.ones(3), np.ones(2)),
            E("ValueError", np.ones((1, 3)), None, None, training=True),
        ),
    ),
    Op(
        F + "batch_norm",
        lambda r: [S(r(4, 3), r(3), r.positive(3), 0.1), S(r(2, 3, 4), r(3), r.positive(3), 0.5)],
        running_ref,
        running,
        label="batch_norm, running statistics",
        dtypes=("float64", "float32"),
        tol=TOL,
        grad=False,
        python=True,
    ),
    Op(
        F + "group_norm",
        group_samples,
        group_norm,
        aliases=("group_norm",),
        tol=TOL,
        errors=(
            E("RuntimeError", np.ones((2, 4, 3)), 3),
            E("RuntimeError", np.ones((2, 4, 3)), 2, np.ones(3)),
        ),
    ),
    Op(
        F + "instance_norm",
        lambda r: [S(r(2, 3, 4)), S(r(2, 3, 4), weight=r(3), bias=r(3)), S(r(2, 2, 3, 3))],
        instance_norm,
        tol=TOL,
    ),
]
