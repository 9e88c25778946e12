"""Low-discrepancy sequences: torch.quasirandom."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from warptape import core as wt

from .. import _C
from ..core import Tensor

__all__ = ["SobolEngine"]

_BITS = 30


def _direction_numbers(dimension: int) -> Tensor:
    """[dimension, bits], by the recurrence of Bratley and Fox, "Algorithm 659", 1988.

    The primitive polynomials and first numbers are those of Joe and Kuo, "Constructing Sobol sequences with
    better two-dimensional projections", 2008, which SciPy has as a file.

    Raises:
        ImportError: without SciPy.
    """
    import numpy as np

    spec = importlib.util.find_spec("scipy")
    path = (
        os.path.join(os.path.dirname(spec.origin), "stats", "_sobol_direction_numbers.npz")
        if spec and spec.origin
        else ""
    )
    if not os.path.exists(path):
        raise ImportError("SobolEngine: the direction numbers are read from SciPy: pip install scipy")
    with np.load(path) as data:
        polynomials, first = data["poly"][:dimension].tolist(), data["vinit"][:dimension].tolist()
    rows = [[1] * _BITS]
    for polynomial, start in zip(polynomials[1:], first[1:]):
        degree = polynomial.bit_length() - 1
        row = start[:degree]
        for j in range(degree, _BITS):
            new = row[j - degree]
            for k in range(degree):
                if polynomial >> (degree - 1 - k) & 1:
                    new ^= row[j - k - 1] << (k + 1)
            row.append(new)
        rows.append(row[:_BITS])
    shifts = wt.arange(_BITS - 1, -1, -1)
    return wt.tensor(rows, dtype=_C.int64) << shifts


def _as_bits(x: Tensor) -> Tensor:
    """The bits of whole numbers, highest first, along a new last dim."""
    return (x.unsqueeze(-1) >> wt.arange(_BITS - 1, -1, -1)) & 1


class SobolEngine:
    """Points of a (scrambled) Sobol sequence in [0, 1)^dimension.

    Scrambling is Matousek's, a random lower triangular matrix and a digital shift: "On the L2-discrepancy
    for anchored boxes", 1998.

    Args:
        dimension: 1 to 21201.
        scramble: at random.
        seed: of the scrambling; the default generator's numbers without one.

    Raises:
        ValueError: the dimension.
        ImportError: without SciPy, which has the direction numbers.
    """

    MAXBIT = _BITS
    MAXDIM = 21201

    def __init__(self, dimension: int, scramble: bool = False, seed: int | None = None) -> None:
        if not 1 <= dimension <= self.MAXDIM:
            raise ValueError(
                f"Supported range of dimensionality for SobolEngine is [1, {self.MAXDIM}], got {dimension}"
            )
        self.dimension, self.scramble, self.seed = dimension, scramble, seed
        self.sobolstate = _direction_numbers(dimension)
        self.shift = wt.zeros(dimension, dtype=_C.int64)
        if scramble:
            self._scramble()
        self.quasi = self.shift.clone()
        self.num_generated = 0

    def _scramble(self) -> None:
        generator = None
        if self.seed is not None:
            generator = wt.Generator()
            generator.manual_seed(self.seed)
        bits = wt.randint(2, (self.dimension, _BITS), generator=generator)
        self.shift = (bits << wt.arange(_BITS)).sum(1)
        lower = wt.randint(2, (self.dimension, _BITS, _BITS), generator=generator).tril()
        lower.diagonal(0, -2, -1).fill_(1)
        # Row p of the matrix, as a number's bits, times a direction number gives bit p of the new one.
        digits = _as_bits(self.sobolstate)  # [dims, numbers, bits]
        products = (digits.unsqueeze(2) & lower.unsqueeze(1)).sum(-1) & 1  # [dims, numbers, bits]
        self.sobolstate = (products << wt.arange(_BITS - 1, -1, -1)).sum(-1)

    def _advance(self, n: int) -> Tensor:
        """The n numbers [n, dimension] after the last one: each differs from that before by the direction
        of the lowest zero bit of its index."""
        first = max(self.num_generated - 1, 0)
        index = wt.arange(first, first + n)
        lowest_zero = _as_bits(~index).flip(-1).argmax(-1)
        steps, last = self.sobolstate.t()[lowest_zero], self.quasi
        # exclusive ors from the start, in doubling strides
        stride = 1
        while stride < n:
            steps = wt.cat([steps[:stride], steps[stride:] ^ steps[:-stride]])
            stride *= 2
        flipped = steps ^ last
        self.quasi = flipped[-1].clone()
        return flipped

    def draw(self, n: int = 1, out: Tensor | None = None, dtype: Any = None) -> Tensor:
        """The next n points, [n, dimension].

        Args:
            n: how many.
            out: takes them.
            dtype: the default one if None.
        """
        numbers = []
        if self.num_generated == 0 and n > 0:
            numbers.append(self.quasi[None])
        more = n - len(numbers)
        if more > 0:
            numbers.append(self._advance(more))
        self.num_generated += n
        joined = wt.cat(numbers) if numbers else self.quasi[None][:0]
        points = joined.to(dtype or wt.get_default_dtype()) / 2**_BITS
        if out is None:
            return points
        return out.resize_as_(points).copy_(points)

    def draw_base2(self, m: int, out: Tensor | None = None, dtype: Any = None) -> Tensor:
        """The next 2^m points. ValueError where that does not make a power of 2 in all.

        Args:
            m: the power.
            out: takes them.
            dtype: the default one if None.
        """
        n = 2**m
        total = self.num_generated + n
        if total & (total - 1):
            raise ValueError(
                "The balance properties of Sobol' points require n to be a power of 2. "
                f"{self.num_generated} points have been previously generated, then: n={total}"
            )
        return self.draw(n, out, dtype)

    def reset(self) -> SobolEngine:
        """Back to the first point."""
        self.quasi, self.num_generated = self.shift.clone(), 0
        return self

    def fast_forward(self, n: int) -> SobolEngine:
        """Leaves out n points.

        Args:
            n: how many.
        """
        if n > 0:
            self.draw(n)
        return self

    def __repr__(self) -> str:
        text = f"dimension={self.dimension}"
        text += ", scramble=True" if self.scramble else ""
        return f"SobolEngine({text}{'' if self.seed is None else f', seed={self.seed}'})"
