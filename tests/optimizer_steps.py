"""Parameters and gradients that optimizers are stepped on, without any library's random stream."""

from __future__ import annotations

import numpy as np
import warptape as wt

SHAPES = [(3, 4), (), (7,), (0, 3), (2, 1, 5), (33,)]
STEPS = 20
DTYPES = [("float64", 1e-12), ("float32", 2e-5)]


def gradient(step: int, i: int, shape: tuple[int, ...]) -> np.ndarray:
    """A gradient that depends on neither the parameters nor any library's random stream."""
    n = int(np.prod(shape))
    return (np.sin(np.arange(n) * 0.7 + step * 1.3 + i) * (1.0 + 0.5 * np.cos(step + i))).reshape(shape)


def initial(i: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.cos(np.arange(int(np.prod(shape))) * 0.37 + i).reshape(shape)


def run(make, dtype, shapes=SHAPES):
    """The parameters after all steps, as float64 arrays."""
    params = [wt.tensor(initial(i, s), dtype=dtype, requires_grad=True) for i, s in enumerate(shapes)]
    optimizer = make(params)
    for step in range(STEPS):
        for i, (p, s) in enumerate(zip(params, shapes)):
            p.grad = wt.tensor(gradient(step, i, s), dtype=dtype)
        optimizer.step()
    return [p.detach().to(wt.float64).numpy() for p in params]
