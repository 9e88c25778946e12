"""What is drawn to compare the default generator with PyTorch's; used by the test and by `record.py`.

Sizes lie around 16, where PyTorch's normal distribution changes from a scalar path to blocks of 16."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

SEEDS = (0, 1, 42, 2**32 + 5, 2**63 - 1)
SIZES = (1, 2, 7, 15, 16, 17, 23, 32, 40)
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
Draw = Callable[[Any], Any]


def exact() -> dict[str, Draw]:
    """Equal to the bit."""
    found: dict[str, Draw] = {}
    for size in SIZES:
        found[f"rand({size})"] = lambda rt, n=size: rt.rand(n)
        found[f"randperm({size})"] = lambda rt, n=size: rt.randperm(n)
    for dtype in FLOATS:
        found[f"rand(5, 7, {dtype})"] = lambda rt, d=dtype: rt.rand(5, 7, dtype=getattr(rt, d))
        found[f"uniform_(-3, 2, {dtype})"] = lambda rt, d=dtype: rt.empty(19, dtype=getattr(rt, d)).uniform_(
            -3, 2
        )
        found[f"randint(0, 100, {dtype})"] = lambda rt, d=dtype: rt.randint(
            0, 100, (19,), dtype=getattr(rt, d)
        )
    for dtype in INTS:
        found[f"randint(3, 120, {dtype})"] = lambda rt, d=dtype: rt.randint(
            3, 120, (19,), dtype=getattr(rt, d)
        )
        found[f"random_({dtype})"] = lambda rt, d=dtype: rt.empty(9, dtype=getattr(rt, d)).random_(0, 100)
    for dtype in FLOATS:
        found[f"bernoulli({dtype})"] = lambda rt, d=dtype: rt.bernoulli(
            (rt.arange(20) / 20).to(getattr(rt, d))
        )
        found[f"bernoulli_({dtype})"] = lambda rt, d=dtype: rt.zeros(20).bernoulli_(
            rt.full((20,), 0.5, dtype=getattr(rt, d))
        )
    found["randint(2**40)"] = lambda rt: rt.randint(0, 2**40, (9,))
    found["randint(-5, 5)"] = lambda rt: rt.randint(-5, 5, (2, 9))
    found["rand of a transposed tensor"] = lambda rt: rt.empty(3, 5).t().uniform_()
    found["rand_like"] = lambda rt: rt.rand_like(rt.zeros(2, 9))
    found["rand, randint, rand"] = lambda rt: [rt.rand(3), rt.randint(0, 9, (3,)), rt.rand(3)][2]
    return found


def close() -> dict[str, Draw]:
    """Within 2 ulp: PyTorch's blocks use vector functions of their own."""
    found: dict[str, Draw] = {}
    for size in SIZES:
        for dtype in ("float32", "float64"):
            found[f"randn({size}, {dtype})"] = lambda rt, n=size, d=dtype: rt.randn(n, dtype=getattr(rt, d))
    for dtype in FLOATS:
        found[f"randn(4, 5, {dtype})"] = lambda rt, d=dtype: rt.randn(4, 5, dtype=getattr(rt, d))
        found[f"randn(3, {dtype})"] = lambda rt, d=dtype: rt.randn(3, dtype=getattr(rt, d))
        found[f"normal_(2, 3, {dtype})"] = lambda rt, d=dtype: rt.empty(21, dtype=getattr(rt, d)).normal_(
            2, 3
        )
    found["randn twice, odd"] = lambda rt: [rt.randn(3), rt.randn(3)][1]
    found["randn, rand"] = lambda rt: [rt.randn(5), rt.rand(4)][1]
    found["randn(16), rand"] = lambda rt: [rt.randn(16), rt.rand(4)][1]
    found["normal(1, 2, size)"] = lambda rt: rt.normal(1.0, 2.0, (2, 3))
    return found


def numbers(rt: Any, tensor: Any) -> list[Any]:
    """A drawn tensor as Python numbers (bfloat16 and float16 are exact in float64)."""
    wide = tensor.to(rt.float64) if tensor.is_floating_point() else tensor.to(rt.int64)
    return wide.flatten().tolist()


MANY = 2**21 + 5  # more than is drawn without a pause
LONG = {
    "rand(100003)": lambda rt: rt.rand(100003),
    "randint(0, 7, 100003)": lambda rt: rt.randint(0, 7, (100003,)),
    "randperm(40000)": lambda rt: rt.randperm(40000),
    f"rand({MANY})": lambda rt: rt.rand(MANY),
    f"randperm({MANY})": lambda rt: rt.randperm(MANY),
    f"bernoulli({MANY})": lambda rt: rt.bernoulli(rt.arange(MANY) / MANY),
    f"rand after randn({MANY})": lambda rt: [rt.randn(MANY), rt.rand(9)][1],
}


def digest(rt: Any, tensor: Any) -> str:
    """A hash of a long draw."""
    wide = tensor.to(rt.float64) if tensor.is_floating_point() else tensor.to(rt.int64)
    return hashlib.sha256(np.ascontiguousarray(wide.numpy()).tobytes()).hexdigest()[:16]
