"""Dtypes of PyTorch that no tensor has here: names to compare dtypes with, as libraries' tables do."""

from __future__ import annotations

from enum import Enum


class UnsupportedDtype(Enum):
    """Is equal to no dtype. An op that gets one as `dtype` raises TypeError."""

    complex32 = "torch.complex32"
    qint32 = "torch.qint32"
    quint4x2 = "torch.quint4x2"
    quint2x4 = "torch.quint2x4"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__

    @property
    def is_complex(self) -> bool:
        """Whether its values are complex."""
        return self is UnsupportedDtype.complex32

    @property
    def is_floating_point(self) -> bool:
        """Whether its values are floating-point numbers: of none."""
        return False

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 1 if self.name.startswith("quint") else 4


chalf = complex32 = UnsupportedDtype.complex32
qint32, quint4x2, quint2x4 = UnsupportedDtype.qint32, UnsupportedDtype.quint4x2, UnsupportedDtype.quint2x4
