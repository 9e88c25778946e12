"""Marks of where values become bytes and floats again, as torch.ao.quantization.stubs. convert() finds these
places by itself, so here they pass values as they are."""

from __future__ import annotations

from typing import Any

from warptape import nn
from warptape.core import Tensor


class QuantStub(nn.Module):
    """Where values become bytes.

    Args:
        qconfig: of this place; None takes the model's.
    """

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        if qconfig is not None:
            self.qconfig = qconfig

    def forward(self, x: Tensor) -> Tensor:
        return x


class DeQuantStub(QuantStub):
    """Where bytes become values.

    It returns its input until the model is converted.
    """


class QuantWrapper(nn.Module):
    """A module between a QuantStub and a DeQuantStub.

    Args:
        module: what is wrapped.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.quant, self.dequant, self.module = QuantStub(), DeQuantStub(), module

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dequant(self.module(self.quant(x)))
        return out
