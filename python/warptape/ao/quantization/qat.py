"""Linear layers that train with the codes that they will have, as torchao.quantization.qat."""

from __future__ import annotations

from typing import Any

from warptape import core as wt
from warptape import nn

from ...core.coded import QuantizedTensor


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    """Puts a module in the place of another.

    Args:
        model: changed.
        path: of the module.
        module: what is put there.
    """
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def round_input(x: wt.Tensor, group: int) -> wt.Tensor:
    """What the kernels take for x [*, I]: 8 bits by row and group, the greatest magnitude being 127. The
    gradient passes as if nothing was done."""
    with wt.no_grad():
        inputs, size = x.shape[-1], group or 128
        padded = nn.functional.pad(x.detach().float(), (0, -inputs % size))
        groups = padded.reshape(*x.shape[:-1], -1, size)
        most = groups.abs().amax(dim=-1, keepdim=True)
        scale = wt.where(most < 1e-30, wt.ones_like(most), most / 127)
        rounded = (wt.round(groups / scale) * scale).reshape(padded.shape)[..., :inputs].to(x.dtype)
    return x + (rounded - x).detach()


class FakeQuantizedLinear(nn.Linear):
    """A linear layer that multiplies with the weight that its codes will stand for, and with its input as the
    kernels round it; gradients pass straight through both ("Estimating or Propagating Gradients Through
    Stochastic Neurons", Bengio et al. 2013)."""

    config: Any

    @classmethod
    def from_linear(cls, linear: nn.Module, config: Any) -> FakeQuantizedLinear:
        """The layer with the same parameters.

        Args:
            linear: the plain layer.
            config: how its weight is rounded.
        """
        layer = cls.__new__(cls)
        layer.__dict__.update(linear.__dict__)
        layer.config = config
        return layer

    def to_linear(self) -> nn.Linear:
        """The plain layer with the same parameters."""
        layer = nn.Linear.__new__(nn.Linear)
        layer.__dict__.update({k: v for k, v in self.__dict__.items() if k != "config"})
        return layer

    def forward(self, input: wt.Tensor) -> wt.Tensor:
        with wt.no_grad():
            coded = self.config.make(self.weight)
            codes = coded.dequantize().to(self.weight.dtype)
        weight = self.weight + (codes - self.weight).detach()
        group = coded.group if isinstance(coded, QuantizedTensor) else 0
        return nn.functional.linear(round_input(input, group), weight, self.bias)
