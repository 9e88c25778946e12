"""Observers and fake quantisation against plain float64."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as wt
from warptape.ao import quantization as q


def affine(low, high, least=0, most=255):
    """Scale and zero point for [low, high], which holds zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / (most - least)
    return scale, int(np.clip(least - round(low / scale), least, most))


def seen(observer, *batches):
    for batch in batches:
        assert observer(wt.from_numpy(batch)) is not None
    scale, zero = observer.calculate_qparams()
    return np.asarray(scale.numpy(), np.float64), zero.numpy()


BATCHES = [np.random.default_rng(i).normal(i, 1 + i, (8, 5)).astype(np.float32) for i in range(3)]


def test_min_max():
    scale, zero = seen(q.MinMaxObserver(), *BATCHES)
    expected = affine(min(b.min() for b in BATCHES), max(b.max() for b in BATCHES))
    assert scale == pytest.approx(expected[0], rel=1e-6) and zero == expected[1]
    scale, zero = seen(q.MinMaxObserver(dtype=q.qint8, qscheme=q.per_tensor_symmetric), *BATCHES)
    assert scale == pytest.approx(max(abs(b).max() for b in BATCHES) / 127.5, rel=1e-6) and zero == 0


def test_moving_average():
    low, high = float(BATCHES[0].min()), float(BATCHES[0].max())
    for batch in BATCHES[1:]:
        low, high = low + 0.1 * (batch.min() - low), high + 0.1 * (batch.max() - high)
    scale, zero = seen(q.MovingAverageMinMaxObserver(averaging_constant=0.1), *BATCHES)
    assert scale == pytest.approx(affine(low, high)[0], rel=1e-5) and zero == affine(low, high)[1]


@pytest.mark.parametrize("axis", [0, 1])
def test_per_channel(axis):
    scale, zero = seen(q.PerChannelMinMaxObserver(ch_axis=axis), *BATCHES)
    most = np.max([np.abs(b).max(axis=1 - axis) for b in BATCHES], axis=0)
    assert np.allclose(scale, most / 127.5, rtol=1e-6) and (zero == 0).all()


def best_range(values, loss, levels):
    """The range, of those that the observer tries, whose codes lose least of the values themselves."""
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    tried = [(low * share, high * share) for share in np.linspace(1, 0.02, 128)]
    return tried, [loss(values, *affine(*ends, 0, levels)) for ends in tried]


def squared(values, scale, zero):
    codes = np.clip(np.round(values / scale) + zero, 0, 15)
    return np.mean((values - (codes - zero) * scale) ** 2)


def test_histogram_by_mean_squared_error():
    values = np.random.default_rng(0).laplace(0, 1, 20000).astype(np.float32)
    scale, zero = seen(q.HistogramObserver(quant_max=15), values[:9000], values[9000:])
    _, losses = best_range(values.astype(np.float64), squared, 15)
    assert min(losses) < losses[0] / 2  # the whole range is no good choice here
    assert squared(values.astype(np.float64), float(scale), int(zero)) <= 1.1 * min(losses)


def divergence(counts, middles, high):
    """KL(P || Q) of the paper for codes 0 .. 255 of [0, high], bin by bin."""
    scale, inside = high / 255, middles <= high
    p = np.where(inside, counts, 0.0)
    p[np.flatnonzero(inside)[-1]] += counts[~inside].sum()
    groups: dict[int, list[int]] = {}
    for i in np.flatnonzero(inside):
        if p[i] > 0:
            groups.setdefault(min(round(middles[i] / scale), 255), []).append(i)
    expanded = np.zeros_like(p)
    for members in groups.values():
        for i in members:
            expanded[i] = sum(counts[j] for j in members) / len(members)
    p, expanded = p / p.sum(), expanded / expanded.sum()
    return sum(a * np.log(a / max(b, 1e-12)) for a, b in zip(p, expanded) if a > 0)


def test_histogram_by_divergence():
    values = np.abs(np.random.default_rng(0).standard_t(2, 20000)).astype(np.float32)
    observer = q.HistogramObserver(method="kl")
    scale, zero = seen(observer, values)
    low, high = float(values.min()), float(values.max())
    counts, edges = np.histogram(values, 2048, (low, high))
    middles = (edges[:-1] + edges[1:]) / 2
    losses = [divergence(counts.astype(float), middles, high * s) for s in np.linspace(1, 0.02, 128)]
    best = high * np.linspace(1, 0.02, 128)[int(np.argmin(losses))]
    assert zero == 0 and best < high
    chosen = divergence(counts.astype(float), middles, float(scale) * 255)
    assert chosen <= 1.05 * min(losses) + 1e-9


def test_percentile():
    values = np.random.default_rng(0).uniform(-1, 3, 100000).astype(np.float32)
    values[:3] = (50, -50, 70)
    scale, zero = seen(q.PercentileObserver(percentile=99.9, bins=8192), values)
    expected = affine(*np.percentile(values, [0.1, 99.9]))
    assert float(scale) == pytest.approx(expected[0], rel=0.02) and abs(int(zero) - expected[1]) <= 1


@pytest.mark.parametrize(
    "kind", [q.MinMaxObserver, q.PerChannelMinMaxObserver, q.HistogramObserver, q.PercentileObserver]
)
def test_bad_data_change_nothing(kind):
    observer = kind()
    with pytest.raises(ValueError, match="no values were observed"):
        observer.calculate_qparams()
    observer(wt.from_numpy(BATCHES[0]))
    before = [t.clone() for t in observer.buffers()]
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="NaN or infinity"):
            observer(wt.tensor([[1.0, bad]]))
    assert all(wt.equal(a, b) for a, b in zip(before, observer.buffers()))
    with pytest.raises(ValueError, match="quant_min must be below"):
        kind(quant_min=3, quant_max=3)


def test_the_gradient_of_fake_quantisation_passes_where_nothing_is_clamped():
    x = wt.tensor([-3.0, -0.26, 0.0, 0.49, 1.26, 9.0], requires_grad=True)
    out = wt.fake_quantize_per_tensor_affine(x, 0.5, 2, 0, 4)
    assert out.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0, 1.0]
    (out * wt.arange(1.0, 7.0)).sum().backward()
    assert x.grad.tolist() == [0.0, 2.0, 3.0, 4.0, 0.0, 0.0]  # code of 1.26 is 5: clamped
    x = wt.tensor([[0.3, 5.0], [0.3, 5.0]], requires_grad=True)
    scale, zero = wt.tensor([0.5, 4.0]), wt.tensor([0, 0], dtype=wt.int32)
    out = wt.fake_quantize_per_channel_affine(x, scale, zero, 0, 0, 7)
    assert out.tolist() == [[0.5, 3.5], [0.0, 4.0]]
    out.sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_fake_quantize_follows_its_observer():
    fake = q.FakeQuantize(averaging_constant=1.0)
    x = wt.linspace(-1, 1, 11)
    assert float((fake(x) - x).abs().max()) <= 1 / 255 + 1e-6
    fake.disable_observer()
    assert float(fake(10 * x).abs().max()) < 1.01
    fake.disable_fake_quant()
    assert wt.equal(fake(10 * x), 10 * x)
