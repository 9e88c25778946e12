"""Activations of nn.functional."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from ..table import FLOATS, E, Op, Rng, S, Sample

NAME = "nn.functional."
SPECIAL = np.array([np.inf, -np.inf, 0.0, 30.0, -30.0, 100.0, -100.0])


def activation(name: str, ref: Callable[..., Any], *variants: dict[str, Any], **options: Any) -> Op:
    """A row for F.name(x, **variant)."""
    edges = options.pop("edges", SPECIAL)

    def samples(r: Rng) -> list[Sample]:
        cases = [S(r(*shape, low=-4, high=4)) for shape in ((3, 37), (), (0, 3))]
        cases += [S(r(2, 5), **variant) for variant in variants]
        return [*cases, S(edges, only=FLOATS, grad=False)]

    options = {"errors": (E("TypeError", [1.0]),), "broadcast": 1} | options
    return Op(NAME + name, samples, ref, **options)


def leaky(x: np.ndarray, negative_slope: float = 0.01) -> np.ndarray:
    return np.where(x > 0, x, negative_slope * x)


def elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(x))


def gelu(x: np.ndarray, approximate: str = "none") -> np.ndarray:
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x * special.ndtr(x)


def softplus(x: np.ndarray, beta: float = 1.0, threshold: float = 20.0) -> np.ndarray:
    return np.where(x * beta > threshold, x, np.logaddexp(0, beta * x) / beta)


def prelu(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    shape = [1, -1] + [1] * (x.ndim - 2) if x.ndim > 1 else [-1]
    return np.where(x > 0, x, x * (weight.reshape(shape) if weight.size > 1 else weight.reshape(())))


def prelu_samples(r: Rng) -> list[Sample]:
    return [
        S(r(2, 3, 4), r.positive(3)),
        S(r(2, 3), r.positive(3)),
        S(r(2, 3, 2), r.positive(1)),
        S(r(5), r.positive(1)),
    ]


SELU_SCALE, SELU_ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717

ROWS = [
    activation("relu", lambda x: np.maximum(x, 0)),
    activation("relu6", lambda x: np.clip(x, 0, 6)),
    activation("leaky_relu", leaky, {"negative_slope": 0.2}, aliases=(NAME + "leaky_relu_",)),
    activation("elu", elu, {"alpha": 0.5}, aliases=(NAME + "elu_",)),
    activation(
        "celu",
        lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x / alpha)),
        {"alpha": 0.5},
        aliases=("celu_",),
    ),
    activation("selu", lambda x: SELU_SCALE * elu(x, SELU_ALPHA), aliases=("selu", "selu_")),
    activation(
        "gelu", gelu, {"approximate": "tanh"}, edges=SPECIAL[2:], out=True, tol={"float32": (4e-6, 4e-6)}
    ),
    activation("silu", lambda x: x * special.expit(x)),
    activation("mish", lambda x: x * np.tanh(np.logaddexp(0, x))),
    activation("softplus", softplus, {"beta": 2.0}, {"beta": 1.0, "threshold": 1.1}, out=True),
    activation("logsigmoid", lambda x: -np.logaddexp(0, -x), out=True),
    activation("softsign", lambda x: x / (1 + np.abs(x))),
    activation("tanhshrink", lambda x: x - np.tanh(x), tol={"float32": (1e-5, 1e-5)}),
    activation(
        "hardtanh",
        lambda x, min_val=-1.0, max_val=1.0: np.clip(x, min_val, max_val),
        {"max_val": 1.5},
        aliases=(NAME + "hardtanh_",),
    ),
    activation("hardsigmoid", lambda x: np.clip(x / 6 + 0.5, 0, 1), peer=("second_gradient",)),
    activation("hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6),
    activation(
        "softshrink",
        lambda x, lambd=0.5: np.where(np.abs(x) > lambd, x - np.sign(x) * lambd, 0.0),
        {"lambd": 1.0},
    ),
    Op(
        NAME + "threshold",
        lambda r: [S(r(3, 37), 0.1, 20.0), S(r(), -0.7, 0.5), S(r(0, 3), 0.1, 2.0), S(r(2, 5), 3.0, -1.0)],
        lambda x, threshold, value: np.where(x > threshold, x, value),
        aliases=("threshold_",),
        broadcast=1,
        errors=(E("TypeError", [1.0], 0.1, 1.0),),
    ),
    activation("hardshrink", lambda x, lambd=0.5: np.where(np.abs(x) > lambd, x, 0.0), {"lambd": 1.0}),
    Op(
        "relu",
        lambda r: [S(r(3, 37)), S(r())],
        lambda x: np.maximum(x, 0),
        method=True,
        inplace="relu_",
        aliases=("relu_",),
    ),
    Op(
        NAME + "prelu",
        prelu_samples,
        prelu,
        errors=(E("RuntimeError", np.ones((2, 3)), np.ones(2)),),
    ),
    Op(
        NAME + "glu",
        lambda r: [S(r(3, 4)), S(r(4, 3), 0), S(r(2, 6, 2), dim=1)],
        lambda x, dim=-1: np.split(x, 2, dim)[0] * special.expit(np.split(x, 2, dim)[1]),
        errors=(E("RuntimeError", np.ones((2, 3))), E("IndexError", np.ones((2, 4)), 3)),
    ),
    Op(
        NAME + "normalize",
        lambda r: [
            S(r(3, 4)),
            S(r(3, 4), dim=0),
            S(r(2, 3), p=1.0),
            S(r(5), dim=0),
            S(r(2, 3), 2.0, 1, 10.0),
        ],
        lambda x, p=2.0, dim=1, eps=1e-12: (
            x / np.maximum((np.abs(x) ** p).sum(dim, keepdims=True) ** (1 / p), eps)
        ),
        errors=(E("IndexError", np.ones((2, 3)), dim=2, match="norm"),),
    ),
    Op(
        NAME + "dropout",
        lambda r: [S(r(3, 4), training=False), S(r(3, 4), 0.0), S(r(3, 4), 1.0)],
        lambda x, p=0.5, training=True: x * (p < 1 or not training),
        label="dropout, p 0 and 1",
        errors=(E("ValueError", np.ones(3), 1.5), E("ValueError", np.ones(3), -0.5)),
    ),
]
