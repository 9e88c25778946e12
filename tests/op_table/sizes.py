"""Samples of other sizes: dims of 0, and sums over so many ones that narrow floats stop growing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .table import Sample, tree_map

Change = Callable[[np.ndarray], np.ndarray]
GROWTH = 300  # 256 + 1 is 256 in bfloat16
MOST = 100_000  # elements of an array that is grown


def arrays(sample: Sample) -> list[np.ndarray]:
    """All arrays among the arguments, in order."""
    found: list[np.ndarray] = []

    def see(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            found.append(value)
        return value

    tree_map(see, list(sample.args))
    tree_map(see, dict(sample.kwargs))
    return found


def changed(sample: Sample, change: Change) -> Sample:
    """The sample with every array replaced."""

    def leaf(value: Any) -> Any:
        return change(value) if isinstance(value, np.ndarray) else value

    args = tuple(tree_map(leaf, value) for value in sample.args)
    return dataclasses.replace(
        sample, args=args, kwargs={k: tree_map(leaf, v) for k, v in sample.kwargs.items()}
    )


def emptied(array: np.ndarray, which: Callable[[int, int], bool]) -> np.ndarray:
    """`array` with size 0 in the dims for which `which(dim, size)` holds."""
    return array[tuple(slice(0, 0 if which(d, n) else n) for d, n in enumerate(array.shape))]


def with_zeros(sample: Sample) -> Iterator[Sample]:
    """The sample with one size replaced by 0 wherever it occurs, in one dim of all arrays, in one of one."""
    found = arrays(sample)
    for size in sorted({n for array in found for n in array.shape}):
        yield changed(sample, lambda array, size=size: emptied(array, lambda _, own: own == size))
    for dim in range(max((array.ndim for array in found), default=0)):
        yield changed(sample, lambda array, dim=dim: emptied(array, lambda d, n: d == dim))
        yield changed(sample, lambda array, dim=dim: emptied(array, lambda d, n: d == array.ndim - 1 - dim))
    for one in found:
        for dim in range(one.ndim):
            yield changed(
                sample,
                lambda array, one=one, dim=dim: (
                    emptied(array, lambda d, n: d == dim) if array is one else array
                ),
            )


def grown(sample: Sample) -> Iterator[Sample]:
    """The sample with one size made GROWTH times as large wherever it occurs; floats become ones."""
    found = arrays(sample)
    for size in sorted({n for array in found for n in array.shape if n > 0}):

        def grow(array: np.ndarray, size: int = size) -> np.ndarray:
            times = [GROWTH if n == size else 1 for n in array.shape]
            if array.size * int(np.prod(times)) > MOST:
                raise OverflowError
            larger = np.tile(array, times)
            return np.ones_like(larger) if larger.dtype == np.float64 else larger

        try:
            yield changed(sample, grow)
        except OverflowError:
            continue
