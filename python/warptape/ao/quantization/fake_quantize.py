"""Modules that round values to what codes can stand for while a model trains, as
torch.ao.quantization.fake_quantize. The gradient passes where nothing was clamped."""

from __future__ import annotations

from typing import Any

from warptape import core as wt
from warptape import nn

from ._schemes import per_channel_affine, per_channel_symmetric, per_tensor_symmetric, qint8
from .observer import (
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    ObserverBase,
    _Partial,
)


class FakeQuantizeBase(nn.Module):
    """What the modules have in common that round in training: their names in libraries' isinstance()."""


class FakeQuantize(FakeQuantizeBase):
    """Observes, then rounds by the scale and zero point of what was observed so far.

    Args:
        observer: a class of observer.py; settings: its arguments.

    `enable_observer(on)` and `enable_fake_quant(on)` (and `disable_...`) switch the two parts.
    """

    scale: wt.Tensor
    zero_point: wt.Tensor

    def __init__(self, observer: Any = MovingAverageMinMaxObserver, **settings: Any) -> None:
        super().__init__()
        self.activation_post_process: ObserverBase = observer(**settings)
        own = self.activation_post_process
        self.quant_min, self.quant_max, self.ch_axis = own.quant_min, own.quant_max, own.ch_axis
        self.dtype, self.qscheme = own.dtype, own.qscheme
        self.observes = self.rounds = True
        self.register_buffer("scale", wt.ones(1))
        self.register_buffer("zero_point", wt.zeros(1, dtype=wt.int32))

    @classmethod
    def with_args(cls, **settings: Any) -> _Partial:
        """A factory, as QConfig holds it.

        Args:
            **settings: of the constructor.
        """
        return _Partial(cls).with_args(**settings)

    def enable_observer(self, enabled: bool = True) -> FakeQuantize:
        """Whether scale and zero point follow the values.

        Args:
            enabled: whether they do.
        """
        self.observes = bool(enabled)
        return self

    def disable_observer(self) -> FakeQuantize:
        """Keeps scale and zero point."""
        return self.enable_observer(False)

    def enable_fake_quant(self, enabled: bool = True) -> FakeQuantize:
        """Whether values are rounded.

        Args:
            enabled: whether they are.
        """
        self.rounds = bool(enabled)
        return self

    def disable_fake_quant(self) -> FakeQuantize:
        """Passes values as they are."""
        return self.enable_fake_quant(False)

    def calculate_qparams(self) -> tuple[wt.Tensor, wt.Tensor]:
        """Scale and zero_point of what was observed."""
        return self.activation_post_process.calculate_qparams()

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        if self.observes:
            self.activation_post_process(x.detach())
            with wt.no_grad():
                scale, zero = self.calculate_qparams()
                self.scale, self.zero_point = scale.reshape(-1), zero.reshape(-1)
        if not self.rounds:
            return x
        if self.qscheme in (per_channel_affine, per_channel_symmetric):
            return wt.fake_quantize_per_channel_affine(
                x, self.scale, self.zero_point, self.ch_axis, self.quant_min, self.quant_max
            )
        return wt.fake_quantize_per_tensor_affine(
            x, self.scale, self.zero_point, self.quant_min, self.quant_max
        )


def _all(model: nn.Module, call: str) -> None:
    for module in model.modules():
        if isinstance(module, FakeQuantize):
            getattr(module, call)()


def enable_observer(model: nn.Module) -> None:
    """Of every FakeQuantize in the model.

    Args:
        model: scale and zero point follow the values from now on.
    """
    _all(model, "enable_observer")


def disable_observer(model: nn.Module) -> None:
    """Of every FakeQuantize in the model.

    Args:
        model: scale and zero point stay from now on.
    """
    _all(model, "disable_observer")


def enable_fake_quant(model: nn.Module) -> None:
    """Of every FakeQuantize in the model.

    Args:
        model: values are rounded from now on.
    """
    _all(model, "enable_fake_quant")


def disable_fake_quant(model: nn.Module) -> None:
    """Of every FakeQuantize in the model.

    Args:
        model: values pass from now on.
    """
    _all(model, "disable_fake_quant")


default_fake_quant = FakeQuantize.with_args()
default_weight_fake_quant = FakeQuantize.with_args(dtype=qint8, qscheme=per_tensor_symmetric)
default_per_channel_weight_fake_quant = FakeQuantize.with_args(
    observer=MovingAveragePerChannelMinMaxObserver, averaging_constant=1.0
)
