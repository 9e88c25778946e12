"""Modules that see values pass and say by which scale and zero point they are best rounded, as
torch.ao.quantization.observer.

An observer returns its input as it is. `calculate_qparams` gives scale and zero_point: a value is scale *
(code - zero_point), codes are quant_min .. quant_max: 0 .. 255 of quint8, -128 .. 127 of qint8. Values that
are not finite are a ValueError and change nothing; parameters before any values are one, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from warptape import core as wt
from warptape import nn
from warptape.core import Tensor

from ._schemes import (
    per_channel_symmetric,
    per_tensor_affine,
    per_tensor_symmetric,
    qint8,
    quint8,
    range_of,
)

_EPS = float(np.finfo(np.float32).eps)


class _Partial:
    """A class with some arguments given: what QConfig holds, for each layer has an observer of its own."""

    def __init__(self, made: Any) -> None:
        self.p = made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.p(*args, **kwargs)

    def with_args(self, **kwargs: Any) -> _Partial:
        """With more arguments given.

        Args:
            **kwargs: of the class.
        """
        return _Partial(functools.partial(self.p, **kwargs))

    def __repr__(self) -> str:
        return repr(self.p)


class ObserverBase(nn.Module):
    """What observers and FakeQuantize share.

    Args:
        dtype: of the codes, quint8 or qint8.
        qscheme: per tensor or per channel, affine or symmetric (the code of zero is the middle one).
        reduce_range: 7 bits instead of 8, for kernels that could overflow; those here cannot.
        quant_min, quant_max: the codes, where not all of dtype's.
        eps: the least scale.
    """

    ch_axis = 0

    def __init__(
        self,
        dtype: object = quint8,
        qscheme: object = per_tensor_affine,
        reduce_range: bool = False,
        quant_min: int | None = None,
        quant_max: int | None = None,
        eps: float = _EPS,
        **unused: Any,
    ) -> None:
        super().__init__()
        low, high = range_of(dtype, reduce_range)
        self.dtype, self.qscheme, self.eps = dtype, qscheme, eps
        self.quant_min = low if quant_min is None else quant_min
        self.quant_max = high if quant_max is None else quant_max
        if self.quant_min >= self.quant_max:
            raise ValueError(
                f"{type(self).__name__}: quant_min must be below quant_max, got {self.quant_min} and "
                f"{self.quant_max}"
            )

    with_args: Callable[..., _Partial] = classmethod(lambda cls, **kw: _Partial(cls).with_args(**kw))  # type: ignore[assignment]

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale, of float32, and zero_point, of int32: of one element, or one a channel.

        The integer of a value x is round(x / scale) + zero_point.
        """
        raise NotImplementedError

    def _checked(self, x: Tensor) -> Tensor:
        values = x.detach().float()
        if not bool(wt.isfinite(values).all()):
            raise ValueError(
                f"{type(self).__name__}: the values to observe hold NaN or infinity; leave such batches "
                "out of the calibration data"
            )
        return values

    def _params_of(self, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        if least.numel() == 0 or bool((least > most).any()):
            raise ValueError(
                f"{type(self).__name__}: no values were observed; run the prepared model on calibration data "
                "before it is converted"
            )
        least, most = least.clamp(max=0.0), most.clamp(min=0.0)
        low, high = self.quant_min, self.quant_max
        if self.qscheme in (per_tensor_symmetric, per_channel_symmetric):
            scale = (wt.maximum(-least, most) / ((high - low) / 2)).clamp(min=self.eps)
            middle = 0 if low < 0 else (low + high + 1) // 2
            return scale, wt.full_like(scale, middle).to(wt.int32)
        scale = ((most - least) / float(high - low)).clamp(min=self.eps)
        zero = (low - wt.round(least / scale)).clamp(low, high)
        return scale, zero.to(wt.int32)


class MinMaxObserver(ObserverBase):
    """By the least and the greatest value of all batches.

    Args:
        dtype: of the integers.
        qscheme: symmetric or affine.
        **settings: of ObserverBase.

    >>> observer = torch.ao.quantization.MinMaxObserver()
    >>> observed = observer(torch.tensor([0.0, 2.55]))
    >>> observer.calculate_qparams()[0]
    tensor(0.0100)
    """

    min_val: Tensor
    max_val: Tensor

    def __init__(self, dtype: object = quint8, qscheme: object = per_tensor_affine, **settings: Any) -> None:
        super().__init__(dtype, qscheme, **settings)
        self.register_buffer("min_val", wt.tensor(float("inf")))
        self.register_buffer("max_val", wt.tensor(float("-inf")))

    def _ends(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values.amin(), values.amax()

    def _joined(self, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        return wt.minimum(self.min_val, least), wt.maximum(self.max_val, most)

    def forward(self, x: Tensor) -> Tensor:
        if x.numel():
            with wt.no_grad():
                least, most = self._ends(self._checked(x))
                first = self.min_val.shape != least.shape or bool((self.min_val > self.max_val).any())
                self.min_val, self.max_val = (least, most) if first else self._joined(least, most)
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero_point; see ObserverBase."""
        return self._params_of(self.min_val, self.max_val)

    def reset_min_max_vals(self) -> None:
        """Forgets what was seen."""
        self.min_val = wt.tensor(float("inf"))
        self.max_val = wt.tensor(float("-inf"))

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class MovingAverageMinMaxObserver(MinMaxObserver):
    """By the means of each batch's least and greatest value, in which newer batches count more:
    mean += averaging_constant * (value - mean)."""

    def __init__(self, averaging_constant: float = 0.01, **settings: Any) -> None:
        super().__init__(**settings)
        self.averaging_constant = averaging_constant

    def _joined(self, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        c = self.averaging_constant
        return self.min_val + c * (least - self.min_val), self.max_val + c * (most - self.max_val)


class PerChannelMinMaxObserver(MinMaxObserver):
    """As MinMaxObserver, for each place along ch_axis.

    Args:
        ch_axis: the channels' dim.
        dtype: of the integers.
        qscheme: symmetric or affine.
        **settings: of ObserverBase.
    """

    def __init__(
        self,
        ch_axis: int = 0,
        dtype: object = qint8,
        qscheme: object = per_channel_symmetric,
        **settings: Any,
    ) -> None:
        super().__init__(dtype, qscheme, **settings)
        self.ch_axis = ch_axis

    def _ends(self, values: Tensor) -> tuple[Tensor, Tensor]:
        rows = values.movedim(self.ch_axis, 0).flatten(1) if values.ndim > 1 else values.unsqueeze(1)
        return rows.amin(1), rows.amax(1)


class MovingAveragePerChannelMinMaxObserver(PerChannelMinMaxObserver):
    """As MovingAverageMinMaxObserver, for each place along ch_axis.

    Args:
        averaging_constant: a batch's share in the new average.
        **settings: of PerChannelMinMaxObserver.
    """

    def __init__(self, averaging_constant: float = 0.01, **settings: Any) -> None:
        super().__init__(**settings)
        self.averaging_constant = averaging_constant

    _joined = MovingAverageMinMaxObserver._joined  # type: ignore[assignment]


class HistogramObserver(ObserverBase):
    """By a histogram of all values: the range, within that of the values, which loses least when they are
    rounded to codes.

    Args:
        bins: of the histogram; where later batches are wider, counts move to the bins of their middles.
        method: "mse", the mean squared error, or "kl", the Kullback-Leibler divergence of the rounded
            histogram from the histogram ("8-bit Inference with TensorRT", Migacz 2017).
        candidates: ranges that are tried, from the whole to a 50th of it.
    """

    def __init__(self, bins: int = 2048, method: str = "mse", candidates: int = 128, **settings: Any) -> None:
        super().__init__(**settings)
        if method not in ("mse", "kl"):
            raise ValueError(f'HistogramObserver: method must be "mse" or "kl", got {method!r}')
        self.bins, self.method, self.candidates = bins, method, candidates
        self.register_buffer("histogram", wt.zeros(bins))
        self.register_buffer("min_val", wt.tensor(float("inf")))
        self.register_buffer("max_val", wt.tensor(float("-inf")))

    histogram: Tensor
    min_val: Tensor
    max_val: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if x.numel():
            values = self._checked(x).cpu().numpy().ravel()
            before = self.histogram.numpy().astype(np.float64)
            low, high = float(values.min()), float(values.max())
            if before.any():
                low, high = min(low, float(self.min_val)), max(high, float(self.max_val))
            span = (low, high if high > low else low + _EPS)
            counts = np.histogram(values, self.bins, span)[0].astype(np.float64)
            if before.any():
                counts += np.histogram(self._middles(), self.bins, span, weights=before)[0]
            self.histogram = wt.from_numpy(counts.astype(np.float32))
            self.min_val, self.max_val = wt.tensor(span[0]), wt.tensor(span[1])
        return x

    def _middles(self) -> Any:
        low, high = float(self.min_val), float(self.max_val)
        return low + (np.arange(self.bins) + 0.5) * ((high - low) / self.bins)

    def _loss(self, least: float, most: float) -> float:
        """What rounding loses with codes for [least, most]."""
        scale, zero = (float(v) for v in self._params_of(wt.tensor(least), wt.tensor(most)))
        middles, counts = self._middles(), self.histogram.numpy().astype(np.float64)
        codes = np.clip(np.round(middles / scale) + zero, self.quant_min, self.quant_max)
        if self.method == "mse":
            return float((counts * (middles - (codes - zero) * scale) ** 2).sum() / counts.sum())
        return divergence(counts, codes.astype(np.int64) - self.quant_min, middles, least, most)

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero_point; see ObserverBase."""
        least, most = self.min_val.clamp(max=0.0), self.max_val.clamp(min=0.0)
        if bool(self.min_val > self.max_val):
            return self._params_of(self.min_val, self.max_val)
        shares = np.linspace(1, 0.02, self.candidates)
        losses = [self._loss(float(least) * share, float(most) * share) for share in shares]
        share = float(shares[int(np.argmin(losses))])
        return self._params_of(least * share, most * share)


def divergence(counts: Tensor, codes: Tensor, middles: Tensor, least: float, most: float) -> float:
    """KL(P || Q): P the histogram with what lies outside of [least, most] put at its ends, Q the histogram in
    which the bins within the range that share a code, and are not empty, share their counts evenly."""
    inside = (middles >= least) & (middles <= most)
    if not inside.any():
        return float("inf")
    p = np.where(inside, counts, 0.0)
    where = np.flatnonzero(inside)
    p[where[0]] += counts[: where[0]].sum()
    p[where[-1]] += counts[where[-1] + 1 :].sum()
    filled = inside & (p > 0)
    levels = int(codes.max()) + 1
    sums = np.bincount(codes[filled], weights=np.where(inside, counts, 0.0)[filled], minlength=levels)
    share = np.bincount(codes[filled], minlength=levels)
    q = np.where(filled, (sums / np.maximum(share, 1))[codes], 0.0)
    if q.sum() == 0:
        return float("inf")
    p, q = p[filled] / p.sum(), q[filled] / q.sum()
    return float((p * np.log(p / np.maximum(q, 1e-12))).sum())


class PercentileObserver(HistogramObserver):
    """By the values below and above which a share of all lies: `percentile` percent are within, as far as
    one of the 2,048 bins tells."""

    def __init__(self, percentile: float = 99.99, **settings: Any) -> None:
        super().__init__(**settings)
        if not 50 < percentile <= 100:
            raise ValueError(
                f"PercentileObserver: percentile must be above 50 and at most 100, got {percentile}"
            )
        self.percentile = percentile

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero_point; see ObserverBase."""
        counts = self.histogram.numpy().astype(np.float64)
        if not counts.any():
            return self._params_of(self.min_val, self.max_val)
        share, below = self.percentile / 100, np.cumsum(counts) / counts.sum()
        low, high = float(self.min_val), float(self.max_val)
        width = (high - low) / self.bins
        upper = low + (int(np.searchsorted(below, share)) + 1) * width
        lower = low + int(np.searchsorted(below, 1 - share, side="right")) * width
        if share == 1:
            lower, upper = low, high
        return self._params_of(wt.tensor(lower), wt.tensor(upper))


class PlaceholderObserver(ObserverBase):
    """Observes nothing: stands for activations that are rounded while the model runs."""

    def forward(self, x: Tensor) -> Tensor:
        return x


default_observer = MinMaxObserver.with_args()
default_weight_observer = MinMaxObserver.with_args(dtype=qint8, qscheme=per_tensor_symmetric)
default_per_channel_weight_observer = PerChannelMinMaxObserver.with_args()
default_histogram_observer = HistogramObserver.with_args()
default_placeholder_observer = PlaceholderObserver.with_args()
per_channel_weight_observer_range_neg_127_to_127 = PerChannelMinMaxObserver.with_args(
    quant_min=-127, quant_max=127
)
