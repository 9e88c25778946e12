"""Tensors to and from other array libraries: DLPack and __cuda_array_interface__, with their streams.

A producer that is told the consumer's stream makes it wait for the work that the data still depends on; a
consumer that is told the producer's stream does the same on its own.
"""

from __future__ import annotations

import builtins
import warnings
from enum import IntEnum
from typing import Any

from .. import _C
from .registry import offered
from .tensor_class import Tensor


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, where they are (keep the tensor); also of bfloat16.

    Args:
        tensor: contiguous, in host memory.
    """
    import ctypes

    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


class DLDeviceType(IntEnum):
    """Kinds of devices, as DLPack numbers them.

    The numbers are those of dlpack.h.
    """

    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLCUDAManaged = 13


_TYPES = {
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
}
# What both protocols call the default stream and the calling thread's; 0 would be ambiguous.
_LEGACY, _PER_THREAD = 1, 2


def dlpack_device(t: Tensor) -> tuple[DLDeviceType, int]:
    """The kind and number of t's device, as DLPack has them.

    Args:
        t: any tensor.

    Raises: ValueError for one on the meta device.
    """
    if t.is_cuda:
        return DLDeviceType.kDLCUDA, t.device.index
    if t.is_meta:
        raise ValueError(f"Unknown device type {t.device.type} for Dlpack")
    return DLDeviceType.kDLCPU, 0


def _wait_for_current(t: Tensor, stream: int | None) -> None:
    """Makes another library's stream wait for what t's device has been given so far on ours."""
    if stream == 0:
        raise ValueError(
            "__dlpack__: stream 0 is ambiguous; pass 1 for the default stream or 2 for the thread's own"
        )
    cuda, index = offered("cuda"), t.device.index
    current = cuda.current_stream(index)
    foreign = cuda.default_stream(index) if stream in (None, _LEGACY) else cuda.ExternalStream(stream, index)
    if foreign != current:
        foreign.wait_stream(current)


def frombuffer(
    buffer: Any, *, dtype: _C.dtype, count: int = -1, offset: int = 0, requires_grad: builtins.bool = False
) -> Tensor:
    """A tensor of one dim on the memory of an object with Python's buffer protocol.

    Args:
        count: elements; all that follow when negative.
        offset: bytes before the first element.

    Raises:
        ValueError: no elements, or too few bytes for them; no such object.
    """
    import numpy as np

    try:
        view = memoryview(buffer)
    except TypeError:
        raise ValueError("object does not implement Python buffer protocol.") from None
    if view.readonly:
        warnings.warn(
            "The given buffer is not writable, which tensors cannot be: writing to this one is undefined.",
            stacklevel=2,
        )
    data = np.frombuffer(view.cast("B"), np.uint8)
    size = data.size - offset
    if not data.size or not count:
        raise ValueError(f"both buffer length ({data.size}) and count ({count}) must not be 0")
    if not 0 <= offset < data.size:
        raise ValueError(
            f"offset ({offset} bytes) must be non-negative and no greater than buffer length ({data.size} "
            "bytes) minus 1"
        )
    if count < 0 and size % dtype.itemsize:
        raise ValueError(
            f"buffer length ({size} bytes) after offset ({offset} bytes) must be a multiple of element size "
            f"({dtype.itemsize})"
        )
    count = size // dtype.itemsize if count < 0 else count
    if count * dtype.itemsize > size:
        raise ValueError(
            f"requested buffer length ({count} * {dtype.itemsize} bytes) after offset ({offset} bytes) must "
            f"not be greater than actual buffer length ({data.size} bytes)"
        )
    tensor = _C._from_memory(data, data.ctypes.data + offset, dtype, (count,), None, "cpu")
    return tensor.requires_grad_(requires_grad)


def to_dlpack(
    t: Tensor,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A DLPack capsule on t's memory.

    Args:
        stream: the consumer's, as the array API standard numbers them; None for the default one, -1 to
            leave out the wait.
        max_version: accepted; the capsule has the layout that every version reads.
        dl_device: must be t's own device.
        copy: True for memory of its own.

    Raises:
        BufferError: a device that would need a copy.
        RuntimeError: t requires a gradient.
        TypeError: a stream that is no int.
    """
    if stream is not None and (not isinstance(stream, int) or isinstance(stream, bool)):
        raise TypeError("stream must be ``int`` or ``none``")
    if dl_device is not None and tuple(dl_device) != tuple(dlpack_device(t)):
        raise BufferError(f"__dlpack__: the data is on {t.device}; move it there with .to() first")
    if not t.is_cuda and stream not in (None, -1):
        raise AssertionError("stream should be None on cpu.")
    t = t.clone() if copy else t
    if t.is_cuda and stream != -1:
        _wait_for_current(t, stream)
    return _C._to_dlpack(t)


def from_dlpack(ext: Any, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of an object with `__dlpack__`, or of a DLPack capsule.

    Args:
        device: where the tensor shall be; the data is copied if it lies elsewhere, unless copy is False.
        copy: True for memory of its own, None where needed.

    Raises:
        BufferError: the data would have to be copied and copy is False.
    """
    t = _imported(ext)
    there = t.device if device is None else _C._resolve_device(device)
    if there != t.device:
        if copy is False:
            raise BufferError(f"from_dlpack: the data is on {t.device}, a copy to {there} is needed")
        return t.to(there)
    return t.clone() if copy else t


def _imported(ext: Any) -> Tensor:
    if not hasattr(ext, "__dlpack__"):
        return _C._from_dlpack(ext)
    where = ext.__dlpack_device__() if hasattr(ext, "__dlpack_device__") else (DLDeviceType.kDLCPU, 0)
    if where[0] not in (DLDeviceType.kDLCUDA, DLDeviceType.kDLCUDAManaged):
        return _C._from_dlpack(ext.__dlpack__())
    cuda = offered("cuda")
    with cuda.device(where[1]):
        stream = cuda.current_stream().cuda_stream
        return _C._from_dlpack(ext.__dlpack__(stream=stream or _LEGACY))


def cuda_array_interface(t: Tensor) -> dict[str, Any]:
    """The description of t's memory by version 3 of the protocol.

    Raises:
        AttributeError: t is not on a CUDA device.
        RuntimeError: t requires a gradient.
        TypeError: a dtype that NumPy lacks.
    """
    if not t.is_cuda:
        raise AttributeError(
            f"Can't get __cuda_array_interface__ on non-CUDA tensor type: {t.type()} "
            "If CUDA data is required use tensor.cuda() to copy tensor to device memory."
        )
    if t.requires_grad:
        raise RuntimeError(
            "Can't get __cuda_array_interface__ on Variable that requires grad. "
            "If gradients aren't required, use var.detach() to get Variable that doesn't require grad."
        )
    name = t.dtype.__name__
    if name not in _TYPES:
        raise TypeError(f"__cuda_array_interface__: {t.dtype} has no type string; convert with .float()")
    strides = None if t.is_contiguous() else tuple(t.stride(d) * t.itemsize for d in range(t.ndim))
    return {
        "typestr": _TYPES[name],
        "shape": tuple(t.shape),
        "strides": strides,
        "data": (t.data_ptr() if t.numel() else 0, False),
        "version": 3,
        "stream": offered("cuda").current_stream(t.device.index).cuda_stream or _LEGACY,
    }


def from_cuda_array(obj: Any) -> Tensor:
    """A tensor on the memory of an object with `__cuda_array_interface__`, on the current device.

    Raises:
        TypeError: a type string without a dtype here.
        ValueError: masked or overlapping data, or strides that are no multiples of the element.
    """
    described = obj.__cuda_array_interface__
    kinds = {v[1:]: k for k, v in _TYPES.items()}
    text = described["typestr"]
    if text[1:] not in kinds or text[0] == ">":
        raise TypeError(f"__cuda_array_interface__: no dtype for the type string {text!r}")
    if described.get("mask") is not None:
        raise ValueError("__cuda_array_interface__: masked arrays are not supported")
    dtype = getattr(_C, kinds[text[1:]])
    shape = tuple(described["shape"])
    strides = described.get("strides")
    if strides is not None:
        if any(s < 0 or s % dtype.itemsize for s in strides):
            raise ValueError(
                f"__cuda_array_interface__: expected strides of at least 0 in multiples of {dtype.itemsize} "
                f"bytes, got {strides}; copy the array first"
            )
        strides = tuple(s // dtype.itemsize for s in strides)
    cuda = offered("cuda")
    index = cuda.current_device()
    stream = described.get("stream")
    if stream is not None:
        foreign = cuda.default_stream(index) if stream == _LEGACY else cuda.ExternalStream(stream, index)
        current = cuda.current_stream(index)
        if foreign != current:
            current.wait_stream(foreign)
    return _C._from_memory(obj, described["data"][0], dtype, shape, strides, _C.device("cuda", index))


_PLAIN = {list, tuple, int, float, builtins.bool}


def has_cuda_array(data: object) -> builtins.bool:
    """Whether data is memory of a device that another library describes.

    Args:
        data: of any class.
    """
    if type(data) in _PLAIN:
        return False
    return hasattr(data, "__cuda_array_interface__") and not isinstance(data, _C.TensorBase)
