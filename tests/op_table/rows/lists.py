"""Ops over lists of tensors: arithmetic in place, norms, and one step of an optimiser.

Each call works on copies and gives back what it wrote. The references are the update rules of Kingma and Ba
(Adam), Loshchilov and Hutter (AdamW) and of SGD with momentum, written in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..table import E, Op, Rng, S, Sample

TOL = {"float32": (1e-5, 1e-5), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}
COMMON: dict[str, Any] = {"grad": False, "layouts": ("transposed", "stepped", "offset"), "tol": TOL}
WIDE = ("float64", "float32")
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
ADAM |= {"amsgrad": False, "maximize": False}
SGD: dict[str, Any] = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.1, "dampening": 0.0}
SGD |= {"nesterov": False, "maximize": False, "is_first_step": False}
Arrays = list[np.ndarray]


def written(name: str) -> Callable[..., Any]:
    """Copies the first list, runs the op on it, and returns it."""

    def call(rt: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [x.clone() for x in tensors]
        getattr(rt, name)(tensors, *args, **kwargs)
        return tensors

    return call


def stepped(name: str, lists: int) -> Callable[..., Any]:
    """Copies all lists, runs a step, and returns those that it may write: all but the gradients."""

    def call(rt: Any, *args: Any, **kwargs: Any) -> Any:
        copies = [[x.clone() for x in one] for one in args]
        getattr(rt, name)(*copies, **kwargs)
        return [x for index in range(lists) if index != 1 for x in copies[index]]

    return call


def several(r: Rng) -> list[Any]:
    return [r(3, 4), r(5), r(), r(0, 2)]


def adam(decoupled: bool) -> Callable[..., Arrays]:
    def ref(
        params: Arrays,
        grads: Arrays,
        means: Arrays,
        squares: Arrays,
        largest: Arrays,
        steps: Arrays,
        *,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
    ) -> Arrays:
        results: list[Arrays] = [[], [], [], []]
        for i, (p, g, m, v, t) in enumerate(zip(params, grads, means, squares, steps, strict=True)):
            g = -g if maximize else g
            g = g if decoupled else g + weight_decay * p
            p = p * (1 - lr * weight_decay) if decoupled else p
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            top = np.maximum(largest[i], v) if amsgrad else v
            root = np.sqrt(top / (1 - beta2**t)) + eps
            new = (p - lr * (m / (1 - beta1**t)) / root, m, v, top)
            for place, value in zip(results, new, strict=True):
                place.append(np.asarray(value))
        return [x for place in results[: 4 if amsgrad else 3] for x in place]

    return ref


def adam_samples(r: Rng) -> list[Sample]:
    def lists(amsgrad: bool = False) -> list[Any]:
        shapes = [(3, 4), (5,), ()]
        draws: list[Any] = [[r(*s) for s in shapes] for _ in range(3)]
        draws += [[r.positive(*s) for s in shapes], [r.positive(*s) for s in shapes] if amsgrad else []]
        return [*draws, [np.full((), n, np.float32) for n in (1, 2, 10)]]

    cases = [S(*lists(), **ADAM), S(*lists(), **ADAM | {"weight_decay": 0.05, "lr": 0.02})]
    cases += [S(*lists(), **ADAM | {"maximize": True, "weight_decay": 0.1})]
    return [*cases, S(*lists(True), **ADAM | {"amsgrad": True, "beta1": 0.5})]


def sgd(
    params: Arrays,
    grads: Arrays,
    buffers: Arrays,
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
) -> Arrays:
    moved, kept = [], []
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        g = (-g if maximize else g) + weight_decay * p
        if momentum:
            b = g if is_first_step else momentum * buffers[i] + (1 - dampening) * g
            g = g + momentum * b if nesterov else b
            kept.append(np.asarray(b))
        moved.append(np.asarray(p - lr * g))
    return moved + kept


def sgd_samples(r: Rng) -> list[Sample]:
    def lists(momentum: bool = True) -> list[Any]:
        shapes = [(3, 4), (5,), ()]
        draws = [[r(*s) for s in shapes] for _ in range(3)]
        return [*draws[:2], draws[2] if momentum else []]

    cases = [S(*lists(False), **SGD), S(*lists(False), **SGD | {"weight_decay": 0.1, "maximize": True})]
    cases += [S(*lists(), **SGD | {"momentum": 0.9, "dampening": 0.5})]
    cases += [S(*lists(), **SGD | {"momentum": 0.9, "is_first_step": True, "dampening": 0.5})]
    return [*cases, S(*lists(), **SGD | {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1})]


def norms(tensors: Arrays, ord: float = 2.0) -> Arrays:
    def one(x: np.ndarray) -> Any:
        if ord == np.inf:
            return np.abs(x).max()
        return (np.abs(x) ** ord).sum() ** (1 / ord)

    return [np.asarray(one(x)) for x in tensors]


def norm_samples(r: Rng) -> list[Sample]:
    tensors = [r(3, 4), r(5), r(), r(2, 40)]
    return [S(tensors), S(tensors, 1.0), S(tensors, 2.0), S(tensors, float("inf")), S(tensors, 3.0)]


ROWS = [
    Op(
        "_foreach_add_",
        lambda r: [S(several(r), 2), S(several(r), -0.5)],
        lambda xs, value: [x + value for x in xs],
        written("_foreach_add_"),
        **COMMON,
    ),
    Op(
        "_foreach_add_",
        lambda r: [S(several(r), several(r)), S(several(r), several(r), alpha=3)],
        lambda xs, ys, alpha=1: [x + alpha * y for x, y in zip(xs, ys, strict=True)],
        written("_foreach_add_"),
        label="_foreach_add_, lists",
        errors=(E("ShapeError", [np.ones(2)], [np.ones(3)]), E("ValueError", [np.ones(2)], [np.ones(2)] * 2)),
        **COMMON,
    ),
    Op(
        "_foreach_mul_",
        lambda r: [S(several(r), 3), S(several(r), -0.5), S(several(r), r.positive())],
        lambda xs, factor: [np.asarray(x * factor) for x in xs],
        written("_foreach_mul_"),
        errors=(E("ShapeError", [np.ones(2)], np.ones(2)),),
        **COMMON,
    ),
    Op(
        "_foreach_zero_",
        lambda r: [S(several(r))],
        lambda xs: [x * 0 for x in xs],
        written("_foreach_zero_"),
        **COMMON,
    ),
    Op(
        "_foreach_norm",
        norm_samples,
        norms,
        **COMMON,
    ),
    Op("_fused_adam_", adam_samples, adam(False), stepped("_fused_adam_", 5), dtypes=WIDE, **COMMON),
    Op("_fused_adamw_", adam_samples, adam(True), stepped("_fused_adamw_", 5), dtypes=WIDE, **COMMON),
    Op("_fused_sgd_", sgd_samples, sgd, stepped("_fused_sgd_", 3), dtypes=WIDE, peer=("meta",), **COMMON),
]
