"""Messages between the front and its workers: a JSON header and raw buffers behind it, with lengths before.

    header bytes u32 | number of buffers u32 | size of each u64 ... | header, JSON in UTF-8 | buffers ...

All little-endian. Nothing is evaluated: a peer can send wrong values, never code.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

MOST_FRAME_BYTES = 1 << 30  # of header and buffers together
MOST_BUFFERS = 1 << 16
_PREFIX = struct.Struct("<II")
_LENGTH = struct.Struct("<I")

BF16 = np.dtype([("bfloat16", "<u2")])  # NumPy has no bfloat16: its bits, under a name of their own

# KServe's names of dtypes. BYTES are arrays of objects, each of them bytes.
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{8 * n}": np.dtype(f"<u{n}") for n in (1, 2, 4, 8)},
    **{f"INT{8 * n}": np.dtype(f"<i{n}") for n in (1, 2, 4, 8)},
    **{f"FP{8 * n}": np.dtype(f"<f{n}") for n in (2, 4, 8)},
    "BF16": BF16,
    "BYTES": np.dtype(object),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Buffer = bytes | bytearray | memoryview


class FrameError(ValueError):
    """A frame that is none, or one beyond the limit. What follows it on the socket means nothing."""


def encode_frame(
    header: Mapping[str, Any], buffers: Iterable[Buffer] = (), most: int = MOST_FRAME_BYTES
) -> list[Buffer]:
    """A frame as parts to be written one after the other; the buffers are not copied.

    Raises: FrameError for more than `most` bytes.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    views = [memoryview(each).cast("B") if memoryview(each).nbytes else memoryview(b"") for each in buffers]
    sizes = [view.nbytes for view in views]
    if len(text) + sum(sizes) > most or len(sizes) > MOST_BUFFERS:
        raise FrameError(
            f"a frame of {len(text) + sum(sizes)} bytes in {len(sizes)} buffers is more than {most} bytes or "
            f"{MOST_BUFFERS} buffers"
        )
    start = _PREFIX.pack(len(text), len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
    return [start + text, *(view for view in views if view.nbytes)]


def _sizes_of(raw: bytes | bytearray, header: int, most: int) -> list[int]:
    sizes = list(struct.unpack(f"<{len(raw) // 8}Q", raw))
    if header + sum(sizes) > most:
        raise FrameError(f"a frame of {header + sum(sizes)} bytes is more than {most}")
    return sizes


def _header_of(text: bytes | bytearray) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise FrameError(f"a frame's header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise FrameError(f"a frame's header must be an object, got {header!r:.100}")
    return header


def _counts_of(prefix: bytes | bytearray, most: int) -> tuple[int, int]:
    header, count = _PREFIX.unpack(prefix)
    if header > most or count > MOST_BUFFERS:
        raise FrameError(f"a frame with a header of {header} bytes and {count} buffers is beyond the limits")
    return header, count


async def read_frame(
    reader: asyncio.StreamReader, most: int = MOST_FRAME_BYTES
) -> tuple[dict[str, Any], list[memoryview]]:
    """The next frame: its header and buffers.

    Raises: FrameError; asyncio.IncompleteReadError at the end of the stream.
    """
    header, count = _counts_of(await reader.readexactly(_PREFIX.size), most)
    sizes = _sizes_of(await reader.readexactly(8 * count), header, most) if count else []
    text = await reader.readexactly(header)
    return _header_of(text), [memoryview(await reader.readexactly(size)) for size in sizes]


class FrameSocket:
    """The worker's end: blocking; one thread receives, any may send.

    Args:
        connection: a connected stream socket, which is its own from now on.
    """

    def __init__(self, connection: socket.socket, most: int = MOST_FRAME_BYTES) -> None:
        self._socket, self._most = connection, most
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """For select()."""
        return self._socket.fileno()

    def send(self, header: Mapping[str, Any], buffers: Iterable[Buffer] = ()) -> None:
        """Writes a frame. Raises: FrameError, and OSError where the peer is gone.

        Args:
            header: becomes JSON.
            buffers: arrays or bytes.
        """
        parts = encode_frame(header, buffers, self._most)
        if sum(map(len, parts)) < 1 << 16:
            parts = [b"".join(parts)]
        with self._lock:
            for part in parts:
                self._socket.sendall(part)

    def receive(self) -> tuple[dict[str, Any], list[memoryview]]:
        """The next frame. Raises: FrameError; EOFError where the peer is gone."""
        header, count = _counts_of(self._exactly(_PREFIX.size), self._most)
        sizes = _sizes_of(self._exactly(8 * count), header, self._most)
        text = self._exactly(header)
        return _header_of(text), [memoryview(self._exactly(size)) for size in sizes]

    def _exactly(self, size: int) -> bytearray:
        out = bytearray(size)
        view, at = memoryview(out), 0
        while at < size:
            count = self._socket.recv_into(view[at:])
            if count == 0:
                raise EOFError("the front is gone")
            at += count
        return out

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


# ---- tensors ----


def dtype_name(array: np.ndarray[Any, Any]) -> str:
    """KServe's name of an array's dtype. TypeError for one that it has not.

    Args:
        array: of numpy.

    >>> import numpy
    >>> from warptape.serve.frames import dtype_name
    >>> dtype_name(numpy.zeros(2, numpy.float32))
    'FP32'
    """
    dtype = array.dtype.newbyteorder("<") if array.dtype != BF16 else BF16
    if dtype not in _NAMES:
        raise TypeError(f"dtype {array.dtype} has no name in KServe; known are {', '.join(DTYPES)}")
    return _NAMES[dtype]


def encode_bytes_tensor(array: np.ndarray[Any, Any]) -> bytes:
    """An array of bytes objects as KServe sends it: a length of 4 bytes before each element.

    Raises: TypeError for elements that are neither bytes nor text.
    """
    parts = []
    for item in array.ravel():
        if isinstance(item, str):
            item = item.encode()
        if not isinstance(item, bytes):
            raise TypeError(f"a BYTES tensor has bytes, got {type(item).__name__}")
        parts += [_LENGTH.pack(len(item)), item]
    return b"".join(parts)


def decode_bytes_tensor(raw: Buffer, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """What `encode_bytes_tensor` wrote. ValueError where the lengths do not fit.

    Args:
        raw: lengths and bytes.
        shape: of the result.
    """
    view, items, at = memoryview(raw), [], 0
    while at < len(view):
        if at + 4 > len(view):
            raise ValueError("a BYTES tensor ends within a length")
        (length,) = _LENGTH.unpack_from(view, at)
        at += 4 + length
        if at > len(view):
            raise ValueError("a BYTES tensor ends within an element")
        items.append(bytes(view[at - length : at]))
    count = element_count(shape)
    if len(items) != count:
        raise ValueError(f"a BYTES tensor of shape {list(shape)} needs {count} elements, got {len(items)}")
    out = np.empty(len(items), dtype=object)
    out[:] = items
    return out.reshape(tuple(shape))


def element_count(shape: Sequence[int]) -> int:
    """Of a tensor. ValueError for what is no shape.

    Args:
        shape: sizes.

    >>> from warptape.serve.frames import element_count
    >>> element_count([2, 3])
    6
    """
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise ValueError(f"a shape must be a list of numbers that are not negative, got {shape!r:.100}")
        count *= size
    return count


def array_of(dtype: str, shape: Sequence[int], raw: Buffer) -> np.ndarray[Any, Any]:
    """The array [shape] in a buffer, which it shares. ValueError where they do not fit.

    Args:
        dtype: KServe's name.
        shape: sizes.
        raw: little-endian, row after row.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r:.50} is not known; known are {', '.join(DTYPES)}")
    if dtype == "BYTES":
        return decode_bytes_tensor(raw, shape)
    expected, got = element_count(shape) * DTYPES[dtype].itemsize, memoryview(raw).nbytes
    if expected != got:
        raise ValueError(f"a {dtype} tensor of shape {list(shape)} has {expected} bytes, got {got}")
    return np.frombuffer(raw, DTYPES[dtype]).reshape(tuple(shape))


def tensors_to_frame(arrays: Mapping[str, np.ndarray[Any, Any]]) -> tuple[list[Any], list[Buffer]]:
    """Named arrays as what a header says of them, and buffers.

    Raises: TypeError for dtypes that KServe has not.
    """
    described, buffers = [], []
    for name, array in arrays.items():
        dtype = dtype_name(array)
        described.append({"name": name, "dtype": dtype, "shape": list(array.shape)})
        if dtype == "BYTES":
            buffers.append(memoryview(encode_bytes_tensor(array)))
        else:
            contiguous = np.ascontiguousarray(array, DTYPES[dtype])
            buffers.append(contiguous.reshape(-1).view(np.uint8).data)
    return described, list(buffers)


def tensors_from_frame(described: Any, buffers: Sequence[Buffer]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of `tensors_to_frame`. Raises: FrameError where the two do not fit.

    Args:
        described: name, dtype and shape of each.
        buffers: one for each.
    """
    try:
        if len(described) != len(buffers):
            raise ValueError(f"{len(described)} tensors in {len(buffers)} buffers")
        return {
            each["name"]: array_of(each["dtype"], each["shape"], raw) for each, raw in zip(described, buffers)
        }
    except (KeyError, TypeError, ValueError) as error:
        raise FrameError(f"a frame's tensors do not fit its header: {error}") from error
