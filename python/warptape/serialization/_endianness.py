"""Which byte comes first in the numbers of a file that does not say it."""

from __future__ import annotations

import sys
from enum import Enum


class LoadEndianness(Enum):
    """The order of a number's bytes: this machine's, low byte first, or high byte first."""

    NATIVE = 1
    LITTLE = 2
    BIG = 3


_default: LoadEndianness | None = None


def get_default_load_endianness() -> LoadEndianness | None:
    """What load() takes for files without a record of it; None, as at the start, is LITTLE."""
    return _default


def set_default_load_endianness(endianness: LoadEndianness | None) -> None:
    """Sets what load() takes for files without a record of their byte order.

    Raises:
        TypeError: neither a LoadEndianness nor None.
    """
    global _default
    if not isinstance(endianness, LoadEndianness) and endianness is not None:
        raise TypeError("Invalid argument type in function set_default_load_endianness")
    _default = endianness


def default_order() -> str:
    """ "little" or "big"."""
    if _default is LoadEndianness.NATIVE:
        return sys.byteorder
    return "big" if _default is LoadEndianness.BIG else "little"
