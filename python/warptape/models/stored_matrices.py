"""Matrices of folders as other programs store them in few bits, and what their numbers mean.

O outputs, I inputs, G groups of inputs that share a scale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from warptape import core as wt

from ..core import Tensor
from ..distributed.checkpoint import CheckpointException
from ._sources import Codes, Coding
from .gguf_kinds import TWICE_FLOAT4

Tensors = Mapping[str, Tensor]


class Matrix(Protocol):
    """A matrix: its shape [O, I], its values in float32, and where codes and scales say them, these."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[O, I]"""

    def read(self) -> Tensor:
        """[O, I]"""

    def coding(self) -> Coding | None:
        """How it is stored; None where codes and scales do not say it."""

    def codes(self) -> Codes:
        """As it is stored."""


def unpacked(packed: Tensor, bits: int, dim: int) -> Tensor:
    """The numbers in int32s, lowest bits first, next to each other along dim.

    Args:
        packed: int32, two dims.
        bits: of a number.
        dim: 0 or 1.
    """
    shifts = wt.arange(0, 32, bits, dtype=wt.int32)
    if dim == 0:
        apart = (packed.unsqueeze(1) >> shifts.unsqueeze(-1)) & (2**bits - 1)
        return apart.reshape(-1, packed.shape[1])
    return ((packed.unsqueeze(-1) >> shifts) & (2**bits - 1)).reshape(packed.shape[0], -1)


@dataclass(frozen=True)
class Scaled:
    """Numbers of 8 bits, float8 or int8, of which blocks share a scale: [O, I] and [O / a, I / b]; or one
    scale for all, or one for each output. `block` is (a, b); None: sizes divide."""

    numbers: Tensor
    scales: Tensor
    block: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """[O, I]"""
        return tuple(self.numbers.shape)

    def _of_rows(self) -> Tensor:
        """[O, blocks of inputs] or [1, ..]"""
        scales = self.scales.float().reshape(1, 1) if self.scales.numel() == 1 else self.scales.float()
        return scales.unsqueeze(1) if scales.ndim == 1 else scales

    def read(self) -> Tensor:
        """[O, I]"""
        outputs, inputs = self.shape
        scales = self._of_rows()
        for dim, size in ((0, outputs), (1, inputs)):
            if scales.shape[dim] not in (1, size):
                each = size // scales.shape[dim] if self.block is None else self.block[dim]
                scales = scales.repeat_interleave(each, dim).narrow(dim, 0, size)
        return self.numbers.float() * scales

    def coding(self) -> Coding | None:
        """Of int8 with a scale for each output."""
        per_row = self.numbers.dtype == wt.int8 and self._of_rows().shape[1] == 1
        return Coding(8, self.shape[1], True) if per_row else None

    def codes(self) -> Codes:
        """As it is stored."""
        scales = self._of_rows().expand(self.shape[0], 1).contiguous()
        return Codes(8, (self.numbers.to(wt.int16) + 128).to(wt.uint8), scales, None)


@dataclass(frozen=True)
class Packed:
    """compressed-tensors' integers of 2, 4 or 8 bits in int32s [O, I / n], about 2 ** (bits - 1), with scales
    [O, G] and zeros [O / n, G], which are absent where they are 0."""

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    shape: tuple[int, int]
    order: Tensor | None = None

    @property
    def bits(self) -> int:
        """Of a number."""
        return 32 * self.packed.shape[1] // self.shape[1]

    def _minima(self) -> Tensor | None:
        """What is added to scale * number, [O, G]."""
        if self.zeros is None:
            return None
        zeros = unpacked(self.zeros, self.bits, 0)[: self.shape[0]]
        return -self.scales.float() * zeros

    def coding(self) -> Coding | None:
        """How it is stored."""
        groups = self.scales.shape[1]
        even = self.shape[1] % groups == 0
        return Coding(self.bits, self.shape[1] // groups if even else 0, self.zeros is None, False)

    def codes(self) -> Codes:
        """As it is stored."""
        numbers = unpacked(self.packed, self.bits, 1)[:, : self.shape[1]].to(wt.uint8).contiguous()
        return Codes(self.bits, numbers, self.scales.float().contiguous(), self._minima())

    def read(self) -> Tensor:
        """[O, I]"""
        codes, minima = self.codes(), self._minima()
        size = -(-self.shape[1] // self.scales.shape[1])
        of_input = wt.arange(self.shape[1]) // size if self.order is None else self.order.long()
        scales, numbers = codes.scales[:, of_input], codes.codes.float()
        if minima is None:
            return (numbers - (1 << self.bits - 1)) * scales
        return numbers * scales + minima[:, of_input]


@dataclass(frozen=True)
class MXFP4:
    """float4_e2m1fn in blocks of 32 inputs with a power of two each (OCP Microscaling Formats, 1.0): bytes of
    two numbers, the lower one first, [O, G, 16], and exponents [O, G]."""

    blocks: Tensor
    exponents: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """[O, I]"""
        outputs, groups, size = self.blocks.shape
        return outputs, groups * size * 2

    def coding(self) -> Coding:
        """Its numbers times two are whole, so that codes of 8 bits say them."""
        return Coding(8, 32, True)

    def codes(self) -> Codes:
        """As it is stored."""
        numbers = wt.stack([self.blocks & 15, self.blocks >> 4], -1).reshape(self.shape)
        table = wt.from_numpy(TWICE_FLOAT4 + 128).to(wt.uint8)
        scales = (self.exponents.float() - 128).exp2()
        return Codes(8, table[numbers.long()], scales, None)

    def read(self) -> Tensor:
        """[O, I]"""
        x = self.codes()
        return (x.codes.float() - 128) * x.scales.repeat_interleave(32, 1)


@dataclass(frozen=True)
class Looked:
    """bitsandbytes' four bits: places in a table of 16 numbers, of which blocks in the order of memory share
    a scale; the higher half of a byte comes first. (NF4: QLoRA, arXiv:2305.14314, section 3.)"""

    packed: Tensor
    table: Tensor
    scales: Tensor
    shape: tuple[int, ...]
    block: int

    def read(self) -> Tensor:
        """[O, I]"""
        count = self.shape[0] * self.shape[1]
        bytes_ = self.packed.reshape(-1)
        places = wt.stack([bytes_ >> 4, bytes_ & 15], -1).reshape(-1)[:count]
        of_block = self.scales.float().repeat_interleave(self.block)[:count]
        return (self.table.float()[places.long()] * of_block).reshape(self.shape)

    def coding(self) -> Coding | None:
        """None: steps between its numbers differ."""
        return None

    def codes(self) -> Codes:
        """None there are."""
        raise AssertionError("coding() is None")


# ---- what a folder's tensors are ----

_STATE = "weight.quant_state.bitsandbytes__"


def float8_of(stem: str, tensors: Tensors, block: Any = None) -> Matrix | None:
    """The matrix `stem.weight` of float8 or int8, with its scales by any of their names.

    Args:
        stem: before `.weight`.
        tensors: of the folder.
        block: [a, b] of what shares a scale; None: what the scales' shape says.
    """
    names = ("weight_scale_inv", "weight_scale", "SCB")
    numbers = tensors[f"{stem}.weight"]
    scale = next((tensors[f"{stem}.{name}"] for name in names if f"{stem}.{name}" in tensors), None)
    if scale is None or numbers.ndim != 2 or numbers.element_size() != 1:
        return None
    if f"{stem}.SCB" in tensors:
        scale = scale.float() / 127
    rows = scale.reshape(-1, 1) if scale.ndim == 1 and scale.numel() > 1 else scale
    sizes = block if isinstance(block, list) and len(block) == 2 else None
    blocks = (
        numbers.shape if sizes is None else [-(-n // max(int(b), 1)) for n, b in zip(numbers.shape, sizes)]
    )
    fits = rows.ndim == 2 and all(
        n in (1, w) or (sizes is None and w % n == 0) for n, w in zip(rows.shape, blocks)
    )
    if scale.numel() != 1 and not fits:
        raise CheckpointException(f"{stem}: scales {list(scale.shape)} of a matrix {list(numbers.shape)}")
    return Scaled(numbers, rows, None if sizes is None else (int(sizes[0]), int(sizes[1])))


def packed_of(stem: str, tensors: Tensors) -> Matrix:
    """The matrix of `stem.weight_packed`.

    Args:
        stem: before it.
        tensors: of the folder.
    """
    packed, scales = (tensors.get(f"{stem}.{name}") for name in ("weight_packed", "weight_scale"))
    shape = tensors.get(f"{stem}.weight_shape")
    if packed is None or scales is None or shape is None or shape.numel() != 2:
        raise CheckpointException(f"{stem}: expected weight_packed, weight_scale and weight_shape")
    outputs, inputs = (int(n) for n in shape)
    bits = 32 * packed.shape[1] // max(inputs, 1) if packed.ndim == 2 else 0
    scales = scales.unsqueeze(1) if scales.ndim == 1 else scales
    zeros = tensors.get(f"{stem}.weight_zero_point")
    fits = packed.dtype == wt.int32 and bits in (2, 4, 8) and -(-inputs * bits // 32) == packed.shape[1]
    fits = fits and packed.shape[0] == scales.shape[0] == outputs and 0 < scales.shape[1] <= inputs
    if zeros is not None:
        fits = fits and tuple(zeros.shape) == (-(-outputs * bits // 32), scales.shape[1])
    if not fits:
        raise CheckpointException(
            f"{stem}.weight_packed {list(packed.shape)}, weight_scale {list(scales.shape)} and weight_shape "
            f"{[outputs, inputs]} do not fit together"
        )
    return Packed(packed, scales, zeros, (outputs, inputs), tensors.get(f"{stem}.weight_g_idx"))


def looked_up_of(stem: str, kind: str, tensors: Tensors) -> Matrix:
    """bitsandbytes' matrix of four bits `stem.weight`, whose state is of that kind.

    Args:
        stem: before `.weight`.
        kind: "nf4" or "fp4".
        tensors: of the folder.
    """
    try:
        text = bytes(tensors[f"{stem}.{_STATE}{kind}"].tolist())
        state: dict[str, Any] = json.loads(text)
        shape, block = tuple(int(n) for n in state["shape"]), int(state["blocksize"])
        packed, table = tensors[f"{stem}.weight"], tensors[f"{stem}.weight.quant_map"]
        scales = tensors[f"{stem}.weight.absmax"]
        if f"{stem}.weight.nested_absmax" in tensors:
            nested = tensors[f"{stem}.weight.nested_absmax"].float()
            of_block = nested.repeat_interleave(int(state["nested_blocksize"]))[: scales.numel()]
            places = tensors[f"{stem}.weight.nested_quant_map"].float()
            scales = places[scales.long()] * of_block + float(state["nested_offset"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointException(f"{stem}.weight: its quant_state is damaged: {error!r}") from error
    count = shape[0] * shape[1] if len(shape) == 2 else 0
    if block < 1 or count < 1 or packed.numel() * 2 < count or table.numel() != 16:
        raise CheckpointException(f"{stem}.weight: its parts do not fit its shape {list(shape)}")
    if scales.numel() * block < count:
        raise CheckpointException(f"{stem}.weight: {scales.numel()} scales of {block} for {list(shape)}")
    return Looked(packed, table, scales, shape, block)
