"""Where weights come from that are not stored as a model has them: a source, and how a model is filled."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from warptape import core as wt

from .. import nn
from ..core import Tensor
from ..distributed.checkpoint import CheckpointException, NameMap
from ..distributed.checkpoint.names import sliced


class Coding(NamedTuple):
    """How a matrix is stored: bits of a code, how many inputs share a scale (0: not as many everywhere),
    whether codes are about zero, and whether those that share a scale are neighbours only in the order of
    Codes.order."""

    bits: int
    group: int
    symmetric: bool
    ordered: bool = False


class Codes(NamedTuple):
    """A matrix [O, I] in few bits, with scales and minima for G groups of inputs: scale * code + minimum, or
    where there are no minima scale * (code - 2 ** (bits - 1)).

    Args:
        codes: uint8 [O, I]; scales, minima: float32 [O, G].
        half: 0; else codes of 4 bits are [O, I / 2] bytes, in blocks of 2 * half: the first half of a block
            in the low halves of its bytes, the second in the high ones.
        order: int64 [I], which input each column of the codes is for; None: they are in order.
    """

    bits: int
    codes: Tensor
    scales: Tensor
    minima: Tensor | None
    half: int = 0
    order: Tensor | None = None

    def in_groups(self, group: int) -> Codes:
        """The same with the scales of larger groups repeated."""
        inputs = self.codes.shape[1] * (2 if self.half else 1)
        times = inputs // group // self.scales.shape[1]
        if times == 1:
            return self
        minima = None if self.minima is None else self.minima.repeat_interleave(times, 1)
        return self._replace(scales=self.scales.repeat_interleave(times, 1), minima=minima)

    def in_8_bits(self) -> Codes:
        """The same numbers, where codes have fewer bits."""
        if self.bits == 8:
            return self
        zero = 0 if self.minima is not None else 128 - (1 << self.bits - 1)
        return self.plain()._replace(bits=8, codes=self.plain().codes + zero)

    def plain(self) -> Codes:
        """With a byte for each code."""
        if self.half == 0:
            return self
        packed = self.codes.reshape(self.codes.shape[0], -1, self.half)
        codes = wt.cat([packed & 15, packed >> 4], -1).reshape(self.codes.shape[0], -1)
        return self._replace(codes=codes, half=0)


class Source(Protocol):
    """A file or folder: names and shapes of its tensors, each of which is made when it is read; `names` from
    a model's, None for those of Hugging Face."""

    path: str
    names: NameMap | None
    shapes: dict[str, tuple[int, ...]]

    def read(self, name: str) -> Tensor:
        """A tensor, on the CPU."""

    def coding(self, name: str) -> Coding | None:
        """How a matrix is stored; None for tensors that are not in few bits."""

    def codes(self, name: str) -> Codes:
        """A matrix as it is stored."""


Places = dict[str, list[str]]  # our name of a parameter -> theirs of what makes it up, in order
Make = Callable[[Codes, Tensor | None, wt.dtype], nn.Module]


def find(model: nn.Module, names: NameMap, source: Source) -> Places:
    """Where a model's parameters are.

    Raises: CheckpointException for missing and for unknown names, and other shapes.
    """
    there, used, faults, places = dict(source.shapes), set[str](), [], Places()
    own = dict(model.named_parameters())
    for name, p in model.named_parameters(remove_duplicate=False):
        names_there = []
        for bare in names.theirs(name):
            for n in names.candidates(bare):
                stem, index = sliced(n)
                shape = there.get(stem, ())
                if index is not None and n not in there and len(shape) > 1 and index < shape[0]:
                    there[n] = shape[1:]
                    used.add(stem)
            names_there.append(next((n for n in names.candidates(bare) if n in there), bare))
        used.update(names_there)
        absent = [n for n in names_there if n not in there]
        if name not in own and absent:
            continue  # a second name of a parameter
        shapes = [there[n] for n in names_there if n in there]
        whole = (sum(shape[0] for shape in shapes), *shapes[0][1:]) if not absent and all(shapes) else None
        if absent:
            faults.append(f"{', '.join(absent)} is missing there, for {name}")
        elif whole != tuple(p.shape) or len({shape[1:] for shape in shapes}) != 1:
            found_shapes = ", ".join(f"{n} {list(there[n])}" for n in names_there)
            faults.append(f"{name} is {list(p.shape)} here, and there {found_shapes}")
        places[name] = names_there
    extra = [n for n in there if n not in used and not names.ignored(n)]
    faults += [f"nothing here is called {n}" for n in extra]
    if faults:
        raise CheckpointException(f"{source.path}: {'; '.join(faults[:8])}")
    return places


def _read(source: Source, name: str) -> Tensor:
    """A tensor, or a slice of one, `name[i]`."""
    stem, index = sliced(name)
    return source.read(name) if index is None or name in source.shapes else source.read(stem)[index]


def fill(model: nn.Module, places: Places, source: Source) -> None:
    """Reads a model's parameters, in place, one tensor after the other."""
    with wt.no_grad():
        for name, p in model.named_parameters():
            start = 0
            for each in places[name] if not p.is_meta else []:
                part = _read(source, each)
                p[start : start + part.shape[0]].copy_(part)
                start += part.shape[0]


def rounded(weight: Tensor, group: int = 32) -> Codes:
    """A matrix [O, I] to the nearest codes of 8 bits about zero; scales are numbers that float16 has."""
    outputs, inputs = weight.shape
    grouped = nn.functional.pad(weight.float(), (0, -inputs % group)).reshape(outputs, -1, group)
    scales = (grouped.abs().amax(-1) / 127).to(wt.float16).float()
    steps = (grouped / scales.clamp_min(2.0**-24).unsqueeze(-1)).round().clamp(-127, 127)
    codes = (steps + 128).to(wt.uint8).reshape(outputs, -1)
    return Codes(8, codes[:, :inputs].contiguous(), scales, None)


class CodedLayers:
    """A model's linear layers whose matrices are stored in few bits: taken out of it before it has memory,
    and put back as what `make` makes of their codes, one after the other.

    Codes in 4 to 8 bits for groups of 32 or a multiple of it stay what they are, in 4 or 8 bits. Others, and
    those of layers whose matrices are not stored alike, are rounded to 8 bits in groups of 32. The head stays
    floating: its errors are those of the result. So do matrices whose inputs are no multiple of 32.
    """

    def __init__(self, model: nn.Module, places: Places, source: Source, make: Make) -> None:
        self._model, self._places, self._source, self._make = model, places, source, make
        self._dtypes: dict[str, wt.dtype] = {}
        for name, layer in list(model.named_modules()):
            if type(layer) is not nn.Linear or name.endswith("lm_head") or layer.in_features % 32:
                continue
            if all(source.coding(each) for each in places[f"{name}.weight"]):
                self._dtypes[name] = layer.weight.dtype
                self._set(name, nn.Identity())

    def _set(self, name: str, layer: nn.Module) -> None:
        parent, _, last = name.rpartition(".")
        setattr(self._model.get_submodule(parent), last, layer)

    def _codes(self, parts: list[str]) -> Codes:
        each = self._stored(parts) or [rounded(self._source.read(n)) for n in parts]
        if len({x.half for x in each}) > 1:
            each = [x.plain() for x in each]
        minima = [x.minima for x in each if x.minima is not None]
        codes, scales = wt.cat([x.codes for x in each]), wt.cat([x.scales for x in each])
        joined = wt.cat(minima) if minima else None
        return Codes(each[0].bits, codes, scales, joined, each[0].half, each[0].order)

    def _stored(self, parts: list[str]) -> list[Codes] | None:
        """The parts of a layer as they are stored; None where a layer cannot hold these codes."""
        kinds = {self._source.coding(each) for each in parts}
        kind = kinds.pop()
        if kinds or kind is None or kind.bits < 4:
            return None
        group = next((size for size in (128, 64, 32) if kind.group and kind.group % size == 0), 0)
        if group == 0:
            return None
        each = [self._source.codes(n).in_groups(group) for n in parts]
        each = each if kind.bits == 4 else [x.in_8_bits() for x in each]
        orders = [x.order for x in each if x.order is not None]
        return each if all(wt.equal(order, orders[0]) for order in orders) else None

    def put_back(self) -> None:
        """Makes the layers."""
        for name, dtype in self._dtypes.items():
            bias = [_read(self._source, n) for n in self._places.get(f"{name}.bias", [])]
            codes = self._codes(self._places[f"{name}.weight"])
            self._set(name, self._make(codes, wt.cat(bias) if bias else None, dtype))
