"""How the sequences of a nested tensor lie in its values: starts, lengths, the symbol of the ragged size."""

from __future__ import annotations

import functools
import itertools
import weakref
from typing import Any, NoReturn

from warptape import _C
from warptape import core as wt

from ...core import Tensor

_ops: Any = _C._functions
_symbols: dict[int, NestedInt] = {}  # by the id of the tensor of offsets or lengths, while it lives
_numbers = itertools.count(1)
_BASE = 1 << 40


class NestedInt(int):
    """The size of a ragged dim: equal to itself alone, printed as "j1" or, times a number, as "2*j1".

    As a plain int it is negative, so that no dense tensor can be made of it.
    """

    _number: int
    _factor: int

    def __new__(cls, number: int, factor: int = 1) -> NestedInt:
        """The symbol of this number."""
        size = super().__new__(cls, -(_BASE + number) * factor)
        size._number, size._factor = number, factor
        return size

    def __repr__(self) -> str:
        return f"j{self._number}" if self._factor == 1 else f"{self._factor}*j{self._number}"

    __str__ = __repr__

    def __mul__(self, other: Any) -> Any:
        return NestedInt(self._number, self._factor * int(other))

    __rmul__ = __mul__

    def __ge__(self, other: Any) -> bool:
        if self == other or (not isinstance(other, NestedInt) and other <= 2):
            return True
        raise ValueError("ge: relation is indeterminate")

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __le__(self, other: Any) -> bool:
        if self == other:
            return True
        if not isinstance(other, NestedInt) and other < 2:
            return False
        raise ValueError("le: relation is indeterminate")

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def _unknown(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{self}: the size of a ragged dim is no number; offsets().diff() has those of the sequences"
        )

    __int__ = __add__ = __radd__ = __sub__ = __rsub__ = _unknown  # type: ignore[assignment]
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = _unknown  # type: ignore[assignment]


def _symbol_of(source: Tensor, symbol: NestedInt | None = None) -> NestedInt:
    """The ragged size that a tensor of offsets or lengths stands for: the one given, or its own."""
    key = id(source)
    if key not in _symbols:
        _symbols[key] = symbol or NestedInt(next(_numbers))
        weakref.finalize(source, _symbols.pop, key, None).atexit = False
    return _symbols[key]


class Ragged:
    """The structure that nested tensors share: which rows of the values are whose.

    Attributes:
        offsets: [B + 1], where the sequences begin, and the last ends.
        lengths: [B], or None where each goes on to the next.
        symbol: the ragged size, the same for all that were made of these offsets or lengths.
    """

    def __init__(
        self, offsets: Tensor, lengths: Tensor | None, least: int | None = None, most: int | None = None
    ) -> None:
        self.offsets, self.lengths = offsets, lengths
        self._least, self._most = least, most
        self.symbol = _symbol_of(offsets if lengths is None else lengths)

    @property
    def count(self) -> int:
        """How many sequences there are."""
        return self.offsets.size(0) - 1

    def to(self, device: Any) -> Ragged:
        """The same structure, with its symbol, on another device."""
        if self.offsets.device == device:
            return self
        offsets = self.offsets.to(device)
        lengths = None if self.lengths is None else self.lengths.to(device)
        _symbol_of(offsets if lengths is None else lengths, self.symbol)
        return Ragged(offsets, lengths, self._least, self._most)

    @functools.cached_property
    def each_length(self) -> Tensor:
        """[B]."""
        return _ops.diff(self.offsets) if self.lengths is None else self.lengths

    @functools.cached_property
    def length_list(self) -> list[int]:
        """The lengths as numbers, for which a device is waited for."""
        return self.each_length.tolist()  # type: ignore[no-any-return]

    @property
    def most(self) -> int:
        """The longest sequence's length."""
        if self._most is None:
            self._most = max(self.length_list, default=0)
        return self._most  # type: ignore[no-any-return]

    @property
    def least(self) -> int:
        """The shortest sequence's length."""
        if self._least is None:
            self._least = min(self.length_list, default=0)
        return self._least  # type: ignore[no-any-return]

    @functools.cached_property
    def owner(self) -> Tensor:
        """Of each row that is in a sequence, one sequence after the other, which it is."""
        batch = wt.arange(self.count, device=self.offsets.device)
        return _ops.repeat_interleave(batch, self.each_length)  # type: ignore[no-any-return]

    @functools.cached_property
    def place(self) -> Tensor:
        """And the how manieth it is there."""
        lengths = self.each_length
        starts = _ops.cumsum(lengths, 0) - lengths
        rows = wt.arange(self.owner.size(0), device=self.offsets.device)
        return rows - starts.index_select(0, self.owner)

    @functools.cached_property
    def row(self) -> Tensor | None:
        """And which row of the values; None where the rows are all of the values, in this order."""
        first_is_0 = self.lengths is None and int(self.offsets[0]) == 0
        return None if first_is_0 else self.offsets.index_select(0, self.owner) + self.place

    def packed_rows(self, values: Tensor, dim: int) -> Tensor:
        """The values whose `dim` has the rows of the sequences alone, one behind the other."""
        if self.row is not None:
            return values.index_select(dim, self.row)
        total = self.owner.size(0)
        return values if values.size(dim) == total else values.narrow(dim, 0, total)

    def to_padded(self, values: Tensor, dim: int, padding: float, most: int) -> Tensor:
        """Values [.., rows, ..] as [B, .., most, ..]."""
        rows = self.packed_rows(values, dim).movedim(dim, 0)
        padded = rows.new_full((self.count * most, *rows.shape[1:]), padding)
        padded = padded.index_copy(0, self.owner * most + self.place, rows)
        return padded.unflatten(0, (self.count, most)).movedim(1, dim + 1)

    def from_padded(self, padded: Tensor, dim: int) -> Tensor:
        """[B, .., n, ..], with n at `dim`, as packed values."""
        rows = padded.movedim(dim, 1)
        if rows.size(1) == 1:
            taken = rows[:, 0].index_select(0, self.owner)
        else:
            taken = rows.flatten(0, 1).index_select(0, self.owner * rows.size(1) + self.place)
        return taken.movedim(0, dim - 1)
