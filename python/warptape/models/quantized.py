"""Folders whose matrices are stored in few bits, as GPTQ (AutoGPTQ, GPTQModel), AWQ (AutoAWQ), DeepSeek,
compressed-tensors, bitsandbytes and gpt-oss write them.

GPTQ and AWQ keep, for each group of inputs of an output, a float16 scale and an integer zero: w = scale *
(q - zero).
I inputs, O outputs, G groups, n numbers in one int32.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from warptape import core as wt

from ..core import Tensor
from ..distributed.checkpoint import CheckpointException, NameMap
from ..utils.safetensors import SafetensorError, load_sharded
from ._sources import Codes, Coding, Source
from .stored_matrices import MXFP4 as MXFP4Matrix
from .stored_matrices import Matrix, float8_of, looked_up_of, packed_of, unpacked

# Which of eight neighbouring columns the nibbles of an AWQ int32 are, from the lowest on.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_PARTS = ("qweight", "qzeros", "scales", "g_idx")


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
    zeros = (unpacked(qzeros, bits, 1) + zero_offset)[group]  # [I, O]
    return ((unpacked(qweight, bits, 0) - zeros).float() * scales.float()[group]).t().contiguous()


def _awq_columns(packed: Tensor) -> Tensor:
    """The numbers in AWQ's int32s, in the order of the columns."""
    place = wt.tensor([AWQ_ORDER.index(i) for i in range(8)])
    return unpacked(packed, 4, 1).reshape(packed.shape[0], -1, 8)[:, :, place].reshape(packed.shape[0], -1)


def awq_weight(qweight: Tensor, qzeros: Tensor, scales: Tensor, group_size: int) -> Tensor:
    """The float32 matrix [O, I] of an AWQ layer of the version "gemm", 4 bits.

    Args:
        qweight: int32 [I, O / 8]; qzeros: int32 [G, O / 8]; scales: [G, O].
    """
    group = wt.arange(qweight.shape[0]) // group_size
    zeros, scale = _awq_columns(qzeros)[group], scales.float()[group]
    return ((_awq_columns(qweight) - zeros).float() * scale).t().contiguous()


class GroupedFolder:
    """A folder of GPTQ's or AWQ's, as a source of float tensors: `X.weight` for each `X.qweight`.

    Args:
        settings: `quantization_config` of its config.json.

    Raises: ValueError for settings that are not supported, CheckpointException for missing and damaged files
    and for parts of a matrix that do not fit together; it names them.
    """

    names: NameMap | None = None

    def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        self.path = os.fspath(folder)
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
        kinds = [wt.int32, wt.int32, None, wt.int32]
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
        return _awq_columns(packed) if self._awq else unpacked(packed, self._bits, 1) + self._offset

    def coding(self, name: str) -> Coding | None:
        """How a matrix is stored.

        Args:
            name: of the tensor.
        """
        if name in self._tensors:
            return None
        stem, inputs = name.removesuffix(".weight"), self.shapes[name][1]
        size = self._group if self._group > 0 else inputs
        of_input, even, ordered = self._tensors.get(f"{stem}.g_idx"), inputs % size == 0, False
        neighbours = wt.arange(inputs) // size
        if of_input is not None and not wt.equal(of_input.long(), neighbours):
            ordered = wt.equal(of_input.long().sort()[0], neighbours)
            even = even and ordered
        size = size if even else 0
        return Coding(self._bits, size, bool((self._zeros(stem) == 1 << self._bits - 1).all()), ordered)

    def codes(self, name: str) -> Codes:
        """A matrix as it is stored. In the layout of GPTQ's desc_act an input's group is in g_idx: the inputs
        of a group become neighbours."""
        stem, coding = name.removesuffix(".weight"), self.coding(name)
        assert coding is not None, name
        packed, scales = self._tensors[f"{stem}.qweight"], self._tensors[f"{stem}.scales"].float().t()
        codes = _awq_columns(packed) if self._awq else unpacked(packed, self._bits, 0)
        minima = None if coding.symmetric else (-scales * self._zeros(stem).t()).contiguous()
        order = None
        if coding.ordered:
            order = self._tensors[f"{stem}.g_idx"].long().argsort(stable=True)
            codes = codes[order]
        codes = codes.t().to(wt.uint8).contiguous()
        return Codes(self._bits, codes, scales.contiguous(), minima, order=order)

    def read(self, name: str) -> Tensor:
        """A tensor, matrices as float32.

        Args:
            name: of the tensor.
        """
        if name in self._tensors:
            return self._tensors[name]
        stem = name.removesuffix(".weight")
        qweight, qzeros, scales = (self._tensors[f"{stem}.{part}"] for part in _PARTS[:3])
        inputs = self.shapes[name][1]
        size = self._group if self._group > 0 else inputs
        if self._awq:
            return awq_weight(qweight, qzeros, scales, size)
        group = self._tensors.get(f"{stem}.g_idx", wt.arange(inputs, dtype=wt.int32) // size)
        if not bool(((group >= 0) & (group < scales.shape[0])).all()):
            raise CheckpointException(f"{self.path}: {stem}.g_idx names groups that there are not")
        return gptq_weight(qweight, qzeros, scales, group, self._bits, zero_offset=self._offset)


_OTHERS = ("fp8", "compressed-tensors", "bitsandbytes", "mxfp4")
# Beside a matrix in few bits; what belongs to activations is not looked at: they are not rounded here.
_BESIDE = (
    *("weight_scale_inv", "weight_scale", "SCB", "weight_format", "input_scale", "input_zero_point"),
    *("weight_packed", "weight_shape", "weight_zero_point", "weight_g_idx", "k_scale", "v_scale"),
    *("input_global_scale", "output_scale"),
)
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense", None)


class StoredFolder:
    """A folder of matrices in 8 bits with scales (DeepSeek's float8, compressed-tensors, bitsandbytes' int8),
    in 4 bits of int32s (compressed-tensors), in NF4 and FP4 (bitsandbytes) or in MXFP4 (gpt-oss), as a source
    of float tensors; what each is its parts say.

    Args:
        settings: `quantization_config` of its config.json.

    Raises: ValueError for settings that are not supported, CheckpointException for missing and damaged files
    and for parts of a matrix that do not fit together; it names them.
    """

    names: NameMap | None = None

    def __init__(self, folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> None:
        self.path = os.fspath(folder)
        if settings["quant_method"] == "compressed-tensors" and settings.get("format") not in _FORMATS:
            known = ", ".join(each for each in _FORMATS if each)
            raise ValueError(
                f"quantization_config: format {settings['format']!r:.40} of compressed-tensors is not "
                f"supported, only {known}"
            )
        self._block = settings.get("weight_block_size")
        try:
            self._tensors = load_sharded(self.path)
            self._matrices = self._found()
        except (SafetensorError, CheckpointException) as error:
            raise CheckpointException(f"{self.path}: {error}") from error
        self.shapes = {name: tuple(x.shape) for name, x in self._matrices.items()}
        for name, x in self._tensors.items():
            beside = name.rpartition(".")[2] in _BESIDE or ".weight." in name or _is_mxfp4(name)
            if name not in self.shapes and not beside:
                self.shapes[name] = tuple(x.shape)

    def _found(self) -> dict[str, Matrix]:
        matrices: dict[str, Matrix] = {}
        for name, x in self._tensors.items():
            stem, _, last = name.rpartition(".")
            if last == "weight_packed":
                matrices[f"{stem}.weight"] = packed_of(stem, self._tensors)
            elif ".weight.quant_state.bitsandbytes__" in name:
                stem, kind = name.split(".weight.quant_state.bitsandbytes__")
                matrices[f"{stem}.weight"] = looked_up_of(stem, kind, self._tensors)
            elif last == "weight" and (matrix := float8_of(stem, self._tensors, self._block)) is not None:
                matrices[name] = matrix
            elif name.endswith("_blocks"):
                stem = name.removesuffix("_blocks")
                exponents = self._tensors.get(f"{stem}_scales")
                if exponents is None or x.ndim != 4 or x.shape[:3] != exponents.shape or x.shape[3] != 16:
                    raise CheckpointException(f"{name} {list(x.shape)} and its scales do not fit together")
                for i in range(x.shape[0]):
                    matrices[f"{stem}[{i}]"] = MXFP4Matrix(x[i], exponents[i])
        return matrices

    def coding(self, name: str) -> Coding | None:
        """How a matrix is stored.

        Args:
            name: of the tensor.
        """
        return self._matrices[name].coding() if name in self._matrices else None

    def codes(self, name: str) -> Codes:
        """A matrix as it is stored.

        Args:
            name: of the tensor.
        """
        return self._matrices[name].codes()

    def read(self, name: str) -> Tensor:
        """A tensor, matrices as float32.

        Args:
            name: of the tensor.
        """
        return self._matrices[name].read() if name in self._matrices else self._tensors[name]


def _is_mxfp4(name: str) -> bool:
    return name.endswith(("_blocks", "_scales"))


def source_of(folder: str | os.PathLike[str], settings: Any) -> Source:
    """The source of a folder's weights by `quantization_config` of its config.json.

    Args:
        folder: with safetensors files.
        settings: says by what method.

    Raises: ValueError for other methods and what is not supported of them, CheckpointException.
    """
    method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
    if method in ("gptq", "awq"):
        return GroupedFolder(folder, settings)
    if method in _OTHERS:
        return StoredFolder(folder, settings)
    known = ", ".join(("gptq", "awq", *_OTHERS))
    raise ValueError(f"quantization_config: expected quant_method to be one of {known}, got {method!r:.40}")
