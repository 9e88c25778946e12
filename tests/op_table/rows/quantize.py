"""Fake quantisation. Its gradient is no derivative of what it computes: tests/python/ao has that."""

from __future__ import annotations

import numpy as np

from ..table import E, Op, S

WIDE = ("float64", "float32")


def rounded(x, scale, zero_point, quant_min, quant_max):
    """Scales are powers of two, which both dtypes divide by without an error; Rng stays clear of halves."""
    codes = np.clip(np.round(x / scale) + zero_point, quant_min, quant_max)
    return (codes - zero_point) * scale


def rounded_by_channel(x, scale, zero_point, axis, quant_min, quant_max):
    spread = [-1 if i == axis else 1 for i in range(x.ndim)]
    return rounded(x, scale.reshape(spread), zero_point.reshape(spread), quant_min, quant_max)


ROWS = [
    Op(
        "fake_quantize_per_tensor_affine",
        lambda r: [
            S(r(3, 37, low=-4, high=4), 1.0, 3, 0, 7),
            S(r(), 2.0, 0, -8, 7),
            S(r(0, 3), 1.0, 0, 0, 255),
        ],
        rounded,
        dtypes=WIDE,
        grad=False,
        errors=(E("ValueError", np.ones(1), 1.0, 9, 0, 7), E("ValueError", np.ones(1), 1.0, 0, 7, 0)),
    ),
    Op(
        "fake_quantize_per_tensor_affine",
        lambda r: [S(r(3, 7, low=-4, high=4), np.array([1.0]), np.array([2]), 0, 7)],
        rounded,
        label="fake_quantize_per_tensor_affine by tensors",
        dtypes=WIDE,
        grad=False,
        errors=(E("ShapeError", np.ones(1), np.ones(2), np.array([0]), 0, 7),),
    ),
    Op(
        "fake_quantize_per_channel_affine",
        lambda r: [
            S(r(2, 3, 5, low=-4, high=4), np.array([1.0, 2.0, 0.5]), np.array([0, 3, 7], np.int32), 1, 0, 7),
            S(r(2, 3, low=-4, high=4), np.array([1.0, 2.0]), np.array([0, 0], np.int32), 0, -8, 7),
        ],
        rounded_by_channel,
        dtypes=WIDE,
        grad=False,
        errors=(
            E("ShapeError", np.ones((1, 2)), np.ones(1), np.array([0], np.int32), 1, 0, 7),
            E("IndexError", np.ones((1, 2)), np.ones(1), np.array([0], np.int32), 2, 0, 7),
        ),
    ),
]
