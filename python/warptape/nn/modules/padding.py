"""Padding of the last dimensions, of one size or (before, after) of each dimension, the last one first."""

from __future__ import annotations

from collections.abc import Sequence

from warptape.core import Tensor

from .. import functional as F
from ._sizes import each
from .module import Module

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class _Pad(Module):
    """Pads the last `_n` dimensions in the manner `_mode`."""

    _n: int
    _mode: str

    def __init__(self, padding: int | Sequence[int]) -> None:
        """A layer that pads both ends of each dimension of space.

        Args:
            padding: elements at each end, one number for all; or (before, after) of each dimension, the last
                one first. Negative numbers cut off.
        """
        super().__init__()
        self.padding = each(padding, 2 * self._n)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPadNd(_Pad):
    _mode = "constant"
    extra_repr = Module.extra_repr
    _shown = ("padding", "value")

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        """A layer that pads both ends of each dimension of space.

        Args:
            padding: elements at each end, one number for all; or (before, after) of each dimension, the last
                one first. Negative numbers cut off.
            value: what is put there.
        """
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)


class _ZeroPad(_ConstantPadNd):
    extra_repr = _Pad.extra_repr

    def __init__(self, padding: int | Sequence[int]) -> None:
        """A layer that pads both ends of each dimension of space.

        Args:
            padding: elements at each end, one number for all; or (before, after) of each dimension, the last
                one first. Negative numbers cut off.
        """
        super().__init__(padding, 0.0)


_DOC = """{space} padded with {what}.

`padding` is a number of elements for both ends of each dimension of space, or (before, after) of each, the
last one first.

>>> nn.{name}({arguments})(torch.ones({shape})).shape
torch.Size({padded})
"""


def _family(base: type, name: str, what: str) -> list[type]:
    """The classes for one, two and three dimensions of space."""
    spaces = ("[*, L]", "[*, H, W]", "[*, D, H, W]")
    arguments = "1, 0.5" if base is _ConstantPadNd else "1"
    return [
        type(
            f"{name}{n}d",
            (base,),
            {
                "_n": n,
                "__module__": __name__,
                "__doc__": _DOC.format(
                    space=space,
                    what=what,
                    name=f"{name}{n}d",
                    arguments=arguments,
                    shape=", ".join(["1, 2", *["4"] * n]),
                    padded=[1, 2, *[6] * n],
                ),
            },
        )
        for n, space in enumerate(spaces, start=1)
    ]


class _ReflectionPadNd(_Pad):
    _mode = "reflect"


class _ReplicationPadNd(_Pad):
    _mode = "replicate"


class _CircularPadNd(_Pad):
    _mode = "circular"

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() not in (self._n + 1, self._n + 2):
            raise ValueError(f"expected {self._n + 1}D or {self._n + 2}D input (got {input.dim()}D input)")
        return super().forward(input)


ConstantPad1d, ConstantPad2d, ConstantPad3d = _family(_ConstantPadNd, "ConstantPad", "`value`")
ZeroPad1d, ZeroPad2d, ZeroPad3d = _family(_ZeroPad, "ZeroPad", "zeros")
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = _family(
    _ReflectionPadNd, "ReflectionPad", "its mirror image"
)
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = _family(
    _ReplicationPadNd, "ReplicationPad", "its border values"
)
CircularPad1d, CircularPad2d, CircularPad3d = _family(
    _CircularPadNd, "CircularPad", "what stands at its other end"
)
