"""Folders whose matrices are quantised as GPTQ (AutoGPTQ, GPTQModel) or AWQ (AutoAWQ) write them.

Both keep, for each group of inputs of an output, a float16 scale and an integer zero: w = scale * (q - zero).
I inputs, O outputs, G groups, n numbers in one int32.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import warptape

from .._tensor import Tensor
from ..distributed.checkpoint import CheckpointException, NameMap
from ..utils.safetensors import SafetensorError, load_sharded
from ._sources import Codes, Coding

# Which of eight neighbouring columns the nibbles of an AWQ int32 are, from the lowest on.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_PARTS = ("qweight", "qzeros", "scales", "g_idx")


def _unpack(packed: Tensor, bits: int, dim: int) -> Tensor:
    """The numbers in int32s, lowest bits first, next to each other along dim."""
    shifts = warptape.arange(0, 32, bits, dtype=warptape.int32)
    if dim == 0:
        apart = (packed.unsqueeze(1) >> shifts.unsqueeze(-1)) & (2**bits - 1)
        return apart.reshape(-1, packed.shape[1])
    return ((packed.unsqueeze(-1) >> shifts) & (2**bits - 1)).reshape(packed.shape[0], -1)


def gptq_weight(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor, bits: int = 4, *, zero_offset: int = 1
) -> Tensor:
    """The float32 matrix [O, I] of a GPTQ layer.

    Args:
        qweight: int32 [I / n, O]; qzeros: int32 [G, O / n]; scales: [G, O].
        g_idx: int32 [I], the group of each input.
        zero_offset: what is added to stored zeros: 1, or 0 in the format "gptq_v2".
    """
    group = g_idx.long()
    zeros = (_unpack(qzeros, bits, 1) + zero_offset)[group]  # [I, O]
    return ((_unpack(qweight, bits, 0) - zeros).float() * scales.float()[group]).t().contiguous()


def _awq_columns(packed: Tensor) -> Tensor:
    """The numbers in AWQ's int32s, in the order of the columns."""
    place = warptape.tensor([AWQ_ORDER.index(i) for i in range(8)])
    return _unpack(packed, 4, 1).reshape(packed.shape[0], -1, 8)[:, :, place].reshape(packed.shape[0], -1)


def awq_weight(qweight: Tensor, qzeros: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """The float32 matrix [O, I] of an AWQ layer of the version "gemm", 4 bits.

    Args:
        qweight: int32 [I, O / 8]; qzeros: int32 [G, O / 8]; scales: [G, O].
    """
    group = warptape.arange(qweight.shape[0]) // group_size
    zeros, scale = _awq_columns(qzeros)[group], scales.float()[group]
    return ((_awq_columns(qweight) - zeros).float() * scale).t().contiguous()


class QuantizedFolder:
    """A folder of GPTQ's or AWQ's, as a source of float tensors: `X.weight` for each `X.qweight`.

    Args:
        settings: `quantization_config` of its config.json.

    Raises: ValueError for settings that are not supported, CheckpointException for missing and damaged files
    and for parts of a matrix that do not fit together; it names them.
    """

    names: NameMap | None = None

    def __init__(self, folder: Any, settings: Any) -> None:
        self.path = os.fspath(folder)
        if not isinstance(settings, Mapping) or settings.get("quant_method") not in ("gptq", "awq"):
            got = settings.get("quant_method") if isinstance(settings, Mapping) else settings
            raise ValueError(f"quantization_config: expected quant_method gptq or awq, got {got!r:.40}")
        self._awq = settings["quant_method"] == "awq"
        self._bits: Any = settings.get("bits")
        self._group: Any = settings.get("group_size", 128)
        self._offset = 0 if settings.get("checkpoint_format") == "gptq_v2" else 1
        if self._bits not in ((4,) if self._awq else (2, 4, 8)) or type(self._group) is not int:
            raise ValueError(
                f"quantization_config: expected bits of {'4' if self._awq else '2, 4 or 8'} and a "
                f"group_size, got {self._bits!r:.40} and {self._group!r:.40}"
            )
        if self._awq and str(settings.get("version", "gemm")).lower() != "gemm":
            raise ValueError(
                f"quantization_config: version {settings['version']!r:.40} of AWQ is not supported: only gemm"
            )
        try:
            self._tensors = load_sharded(self.path)
        except SafetensorError as error:
            raise CheckpointException(str(error)) from error
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, x in self._tensors.items():
            stem, _, part = name.rpartition(".")
            if part == "qweight":
                self.shapes[f"{stem}.weight"] = self._shape_of(stem)
            elif part not in _PARTS:
                self.shapes[name] = tuple(x.shape)

    def _shape_of(self, stem: str) -> tuple[int, int]:
        """[O, I] of a matrix whose parts fit together."""
        wanted = _PARTS[:3] if self._awq or f"{stem}.g_idx" not in self._tensors else _PARTS
        absent = [f"{stem}.{part}" for part in wanted if f"{stem}.{part}" not in self._tensors]
        if absent:
            raise CheckpointException(f"{self.path}: {', '.join(absent)} is missing there")
        n = 32 // self._bits
        parts = [self._tensors[f"{stem}.{part}"] for part in wanted]
        rows, columns = parts[0].shape if parts[0].ndim == 2 else (0, 0)
        inputs, outputs = (rows, columns * n) if self._awq else (rows * n, columns)
        size = self._group if self._group > 0 else inputs
        groups = -(-inputs // max(size, 1))
        expected = [(rows, columns), (groups, outputs // n), (groups, outputs), (inputs,)]
        kinds = [warptape.int32, warptape.int32, None, warptape.int32]
        for part, x, shape, kind in zip(wanted, parts, expected, kinds):
            if tuple(x.shape) != shape or (x.dtype != kind if kind else not x.dtype.is_floating_point):
                raise CheckpointException(
                    f"{self.path}: {stem}.{part} is {x.dtype} {list(x.shape)}, which does not fit qweight "
                    f"{list(parts[0].shape)} of {self._bits} bits in groups of {size}"
                )
        return outputs, inputs

    def _zeros(self, stem: str) -> Tensor:
        """int32 [G, O]."""
        packed = self._tensors[f"{stem}.qzeros"]
        return _awq_columns(packed) if self._awq else _unpack(packed, self._bits, 1) + self._offset

    def coding(self, name: str) -> Coding | None:
        """How a matrix is stored."""
        if name in self._tensors:
            return None
        stem, inputs = name.removesuffix(".weight"), self.shapes[name][1]
        size = self._group if self._group > 0 else inputs
        of_input, even, ordered = self._tensors.get(f"{stem}.g_idx"), inputs % size == 0, False
        neighbours = warptape.arange(inputs) // size
        if of_input is not None and not warptape.equal(of_input.long(), neighbours):
            ordered = warptape.equal(of_input.long().sort()[0], neighbours)
            even = even and ordered
        size = size if even else 0
        return Coding(self._bits, size, bool((self._zeros(stem) == 1 << self._bits - 1).all()), ordered)

    def codes(self, name: str) -> Codes:
        """A matrix as it is stored. In the layout of GPTQ's desc_act an input's group is in g_idx: the inputs
        of a group become neighbours."""
        stem, coding = name.removesuffix(".weight"), self.coding(name)
        assert coding is not None, name
        packed, scales = self._tensors[f"{stem}.qweight"], self._tensors[f"{stem}.scales"].float().t()
        codes = _awq_columns(packed) if self._awq else _unpack(packed, self._bits, 0)
        minima = None if coding.symmetric else (-scales * self._zeros(stem).t()).contiguous()
        order = None
        if coding.ordered:
            order = self._tensors[f"{stem}.g_idx"].long().argsort(stable=True)
            codes = codes[order]
        codes = codes.t().to(warptape.uint8).contiguous()
        return Codes(self._bits, codes, scales.contiguous(), minima, order=order)

    def read(self, name: str) -> Tensor:
        """A tensor, matrices as float32."""
        if name in self._tensors:
            return self._tensors[name]
        stem = name.removesuffix(".weight")
        qweight, qzeros, scales = (self._tensors[f"{stem}.{part}"] for part in _PARTS[:3])
        inputs = self.shapes[name][1]
        size = self._group if self._group > 0 else inputs
        if self._awq:
            return awq_weight(qweight, qzeros, scales, size)
        group = self._tensors.get(f"{stem}.g_idx", warptape.arange(inputs, dtype=warptape.int32) // size)
        if not bool(((group >= 0) & (group < scales.shape[0])).all()):
            raise CheckpointException(f"{self.path}: {stem}.g_idx names groups that there are not")
        return gptq_weight(qweight, qzeros, scales, group, self._bits, zero_offset=self._offset)
