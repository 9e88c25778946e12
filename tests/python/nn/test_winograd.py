"""Kernels of 3 x 3 with stride 1 by F(2 x 2, 3 x 3) against the convolution's formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as wt
from warptape.nn import functional as F

# Input [N, C, H, W], outputs, padding, groups: odd and even sizes, rows of less than a vector and of several,
# blocks within an image and over several images, channels that fill no vector.
SIZES = {
    "even": ((2, 16, 16, 16), 16, 1, 1),
    "odd": ((3, 19, 13, 15), 37, 1, 1),
    "no_padding": ((2, 24, 33, 31), 40, 0, 1),
    "much_padding": ((2, 16, 11, 12), 18, 2, 1),
    "sides_differ": ((2, 17, 18, 12), 16, (0, 2), 1),
    "short_rows": ((2, 32, 40, 2), 32, 1, 1),
    "one_row": ((2, 32, 1, 90), 24, 1, 1),
    "many_images": ((21, 16, 12, 12), 16, 1, 1),
    "wide": ((1, 16, 5, 300), 16, 1, 1),
    "groups": ((2, 48, 14, 14), 96, 1, 3),
    "deep": ((1, 400, 12, 13), 64, 1, 1),
    "many_outputs": ((1, 16, 14, 14), 300, 1, 1),
}


def tensors(size):
    (n, channels, height, width), outputs, _, groups = SIZES[size]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, channels, height, width))
    weight = rng.standard_normal((outputs, channels // groups, 3, 3))
    return x.astype(np.float32), weight.astype(np.float32), rng.standard_normal(outputs).astype(np.float32)


def by_formula(x, weight, gradient, padding, groups):
    """The convolution and its gradients by the input and the weight, as sums over the nine taps."""
    top, left = (padding, padding) if isinstance(padding, int) else padding
    n, channels, height, width = x.shape
    outputs = weight.shape[0]
    down, along = height + 2 * top - 2, width + 2 * left - 2
    around = ((0, 0), (0, 0), (top, top), (left, left))
    padded = np.pad(x.astype(np.float64), around).reshape(n, groups, channels // groups, height + 2 * top, -1)
    kernels = weight.astype(np.float64).reshape(groups, outputs // groups, channels // groups, 3, 3)
    y = np.zeros((n, groups, outputs // groups, down, along))
    g = gradient.astype(np.float64).reshape(y.shape) if gradient is not None else y
    to_x, to_weight = np.zeros_like(padded), np.zeros_like(kernels)
    for i in range(3):
        for j in range(3):
            seen = padded[..., i : i + down, j : j + along]
            y += np.einsum("goc,ngcyx->ngoyx", kernels[..., i, j], seen)
            to_x[..., i : i + down, j : j + along] += np.einsum("goc,ngoyx->ngcyx", kernels[..., i, j], g)
            to_weight[..., i, j] = np.einsum("ngoyx,ngcyx->goc", g, seen)
    inner = to_x.reshape(n, channels, height + 2 * top, -1)[:, :, top : top + height, left : left + width]
    return y.reshape(n, outputs, down, along), inner, to_weight.reshape(weight.shape)


def close(result, expected, terms):
    """Whether the largest error is one of float32 sums of so many terms."""
    return np.abs(result.numpy() - expected).max() < 5e-6 * np.sqrt(terms)


@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_the_formula(size):
    x, weight, bias = tensors(size)
    _, _, padding, groups = SIZES[size]
    shape = by_formula(x, weight, None, padding, groups)[0].shape
    gradient = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    y, to_x, to_weight = by_formula(x, weight, gradient, padding, groups)
    inputs = [wt.tensor(a, requires_grad=True) for a in (x, weight, bias)]
    result = F.conv2d(*inputs, padding=padding, groups=groups)
    assert close(result.detach(), y + bias[:, None, None], weight[0].size)
    result.backward(wt.tensor(gradient))
    assert close(inputs[0].grad, to_x, 9 * weight.shape[0] / groups)
    assert close(inputs[1].grad, to_weight, shape[0] * shape[2] * shape[3])
    assert close(inputs[2].grad, gradient.sum((0, 2, 3), dtype=np.float64), shape[0] * shape[2] * shape[3])


def test_integers_are_exact():
    rng = np.random.default_rng(0)
    x, weight = (rng.integers(-8, 9, s).astype(np.float32) for s in ((2, 32, 17, 14), (20, 32, 3, 3)))
    expected = by_formula(x, weight, None, 1, 1)[0]
    assert np.array_equal(F.conv2d(wt.tensor(x), wt.tensor(weight), padding=1).numpy(), expected)


@pytest.mark.parametrize("size", ["odd", "many_images", "deep", "groups"])
def test_threads_and_other_images_do_not_matter(size):
    x, weight, bias = (wt.tensor(a) for a in tensors(size))
    how = {"padding": SIZES[size][2], "groups": SIZES[size][3]}
    x.requires_grad_(), weight.requires_grad_()
    results, before = [], wt.get_num_threads()
    for threads in (1, 3, 8):
        wt.set_num_threads(threads)
        y = F.conv2d(x, weight, bias, **how)
        results.append([y, *wt.autograd.grad(y, (x, weight), y.detach() * 0.5)])
    wt.set_num_threads(before)
    for other in results[1:]:
        assert all(wt.equal(a, b) for a, b in zip(results[0], other, strict=True))
    alone = wt.cat([F.conv2d(image, weight, bias, **how) for image in x.split(1)])
    assert wt.equal(results[0][0], alone)


def test_not_a_number_stays_near():
    x = wt.zeros(1, 16, 20, 20)
    x[0, 3, 9, 9] = float("nan")
    result = F.conv2d(x, wt.ones(16, 16, 3, 3), padding=1)
    rows = result[0, 0].isnan().any(1).nonzero().flatten().tolist()
    assert set(range(8, 11)) <= set(rows) <= set(range(7, 12))
    assert result[0].isnan().sum() <= 16 * 16
