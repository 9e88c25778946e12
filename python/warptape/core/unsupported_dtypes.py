"""Dtypes of PyTorch that no tensor has here: names to compare dtypes with, as libraries' tables do."""

from __future__ import annotations

from enum import Enum


class UnsupportedDtype(Enum):
    """Is equal to no dtype. An op that gets one as `dtype` raises TypeError.

    Programs may name such dtypes, as in tables.
    """

    complex32 = "torch.complex32"
    qint32 = "torch.qint32"
    quint4x2 = "torch.quint4x2"
    quint2x4 = "torch.quint2x4"
    float4_e2m1fn_x2 = "torch.float4_e2m1fn_x2"
    int1 = "torch.int1"
    int2 = "torch.int2"
    int3 = "torch.int3"
    int4 = "torch.int4"
    int5 = "torch.int5"
    int6 = "torch.int6"
    int7 = "torch.int7"
    uint1 = "torch.uint1"
    uint2 = "torch.uint2"
    uint3 = "torch.uint3"
    uint4 = "torch.uint4"
    uint5 = "torch.uint5"
    uint6 = "torch.uint6"
    uint7 = "torch.uint7"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__

    @property
    def is_complex(self) -> bool:
        """Whether its values are complex."""
        return self is UnsupportedDtype.complex32

    @property
    def is_floating_point(self) -> bool:
        """Whether its values are floating-point numbers."""
        return self is UnsupportedDtype.float4_e2m1fn_x2

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 4 if self in (UnsupportedDtype.complex32, UnsupportedDtype.qint32) else 1

    @property
    def is_signed(self) -> bool:
        """Whether it has negative values."""
        return not self.name.startswith(("uint", "quint")) and not self.is_complex


chalf = UnsupportedDtype.complex32
globals().update(UnsupportedDtype.__members__)
