"""GGUF files, llama.cpp's: read, dequantised, and made configs of.

The format: ggml-org/ggml docs/gguf.md, versions 2 and 3, little-endian. Quantised blocks: ggml's
ggml-common.h and dequantize_row_* of ggml-quants.c.

Why not the package `gguf`, which tests compare with: its reader makes an array of every string. A file with
128,000 tokens and 256,000 merges took it 8.9 s of CPU time and 580 MiB, and 0.33 s and 36 MiB here. The
kernels want codes and scales as they are stored (`codes`), which the package does not give; floats follow
from them in a few lines.
"""

from __future__ import annotations

import math
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from warptape import core as wt

from ..core import Tensor
from ..distributed.checkpoint import CheckpointException
from ..serialization.files import Mapped
from ._sources import Codes, Coding
from .gguf_kinds import KINDS, OTHERS, Blocks, Kind, dequantize

_NUMBERS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_AT_ONCE = 1 << 17  # elements that a thread dequantises at once, within its cache


class _KindError(ValueError):
    """A type of tensors that is not supported: the file is whole."""


class _Cursor:
    """Reads values one after the other. ValueError where the file ends before one."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise ValueError("it ends within its header; is it truncated?")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        return bytes(self.take(self.number("<Q"))).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and depth < 4:
            inner, count = self.number("<I"), self.number("<Q")
            if form := _NUMBERS.get(inner):
                return np.frombuffer(self.take(count * struct.calcsize(form)), form).tolist()
            if count > len(self.data) - self.at:
                raise ValueError(f"an array of {count} values is not within it")
            return [self.value(inner, depth + 1) for _ in range(count)]
        if kind not in _NUMBERS:
            raise ValueError(f"a value of type {kind}, which GGUF has not")
        return self.number(_NUMBERS[kind])


class GGUFFile:
    """A file's metadata and tensors.

    Attributes:
        metadata: its keys and values.
        kinds: the name of each tensor's type: "Q4_0" ..
        shapes: of the tensors, rows first: the reverse of how the file has them.

    Raises: FileNotFoundError, and CheckpointException for a file that is none, is truncated or damaged, is
    big-endian, or has types of tensors that are not supported; it says which are.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.metadata: dict[str, Any] = {}
        self.kinds: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, tuple[int, int]] = {}  # kind, first byte
        with open(self.path, "rb") as file:
            try:
                if os.fstat(file.fileno()).st_size < 24:
                    raise ValueError("it is too short")
                self._mapped = Mapped(file)
                self._read(_Cursor(memoryview(self._mapped.map)))
            except _KindError as error:
                raise CheckpointException(f"{self.path}: {error}") from error
            except ValueError as error:
                raise CheckpointException(
                    f"{self.path} is no GGUF file, or a damaged one: {error}"
                ) from error

    def _read(self, cursor: _Cursor) -> None:
        if bytes(cursor.take(4)) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = cursor.number("<I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not supported, only 2 and 3, little-endian")
        tensors, values = cursor.number("<Q"), cursor.number("<Q")
        for _ in range(values):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.number("<I"))
        entries = [self._entry(cursor) for _ in range(tensors)]
        unit = self.metadata.get("general.alignment", 32)
        if type(unit) is not int or unit < 8 or unit % 8:
            raise ValueError(f"general.alignment is {unit!r:.40}, not a multiple of 8")
        begin = -(-cursor.at // unit) * unit
        for name, kind, shape, offset in entries:
            title, elements, size, *_ = KINDS[kind]
            if shape[-1] % elements or offset % unit or name in self.shapes:
                raise ValueError(
                    f"{name!r:.80} is there twice, or has sizes or a place that {title} cannot have"
                )
            end = begin + offset + math.prod(shape) // elements * size
            if end > len(cursor.data):
                raise ValueError(
                    f"{name!r:.80} ends at byte {end}, the file at {len(cursor.data)}; is it truncated?"
                )
            self.shapes[name], self.kinds[name] = shape, title
            self._places[name] = kind, begin + offset

    @staticmethod
    def _entry(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
        name, dims = cursor.string(), cursor.number("<I")
        if not 1 <= dims <= 4:
            raise ValueError(f"{name!r:.80} has {dims} dims")
        shape = tuple(cursor.number("<Q") for _ in range(dims))[::-1]
        kind, offset = cursor.number("<I"), cursor.number("<Q")
        if 0 in shape:
            raise ValueError(f"{name!r:.80} has the shape {shape}")
        if kind not in KINDS:
            known = ", ".join(title for title, *_ in KINDS.values())
            title = OTHERS.get(kind, "unknown")
            raise _KindError(
                f"{name!r:.80} has type {kind} ({title}), supported are {known}: convert the file to one"
            )
        return name, kind, shape, offset

    def slice(self, name: str) -> list[str]:
        """Makes tensors `name[i]` of the slices of a tensor's first dim, in its place.

        Args:
            name: of a tensor with at least two dims.
        """
        (count, *inner), title = self.shapes.pop(name), self.kinds.pop(name)
        number, at = self._places.pop(name)
        _, elements, size, *_ = KINDS[number]
        names = [f"{name}[{i}]" for i in range(count)]
        for i, each in enumerate(names):
            self.shapes[each], self.kinds[each] = tuple(inner), title
            self._places[each] = number, at + i * math.prod(inner) // elements * size
        return names

    def _blocks(self, name: str) -> tuple[Kind, Blocks]:
        number, at = self._places[name]
        kind = KINDS[number]
        count = math.prod(self.shapes[name]) // kind.elements
        return kind, self._mapped.tensor(at, wt.uint8, (count, kind.bytes)).numpy()

    def read(self, name: str) -> Tensor:
        """A tensor: as it is stored, in the mapped file, or dequantised to float32.

        Args:
            name: of the tensor.
        """
        number, at = self._places[name]
        kind, shape = KINDS[number], self.shapes[name]
        if kind.parts is None or kind.coding is None:
            return self._mapped.tensor(at, kind.dtype, shape)
        blocks = self._blocks(name)[1]
        out = np.empty((len(blocks), kind.elements // kind.coding.group, kind.coding.group), np.float32)
        step = _AT_ONCE // kind.elements
        with ThreadPoolExecutor(wt.get_num_threads()) as pool:  # NumPy lets other threads run meanwhile
            for _ in pool.map(
                lambda i: dequantize(kind, blocks[i : i + step], out[i : i + step]),
                range(0, len(blocks), step),
            ):
                pass
        return wt.from_numpy(out.reshape(shape))

    def coding(self, name: str) -> Coding | None:
        """How a matrix is stored.

        Args:
            name: of the tensor.
        """
        return KINDS[self._places[name][0]].coding

    def codes(self, name: str) -> Codes:
        """A quantised matrix as it is stored.

        Args:
            name: of the tensor.
        """
        kind, blocks = self._blocks(name)
        assert kind.parts is not None and kind.coding is not None, name
        rows = self.shapes[name][0]
        parts = (None if x is None else wt.from_numpy(x.reshape(rows, -1)) for x in kind.parts(blocks))
        codes, scales, minima = parts
        assert codes is not None and scales is not None, name
        return Codes(kind.coding.bits, codes, scales, minima, kind.half)
