"""KServe v2's requests and responses as bytes: JSON, and JSON with raw tensors behind it.

What a client sent wrong is a RequestError that says where; nothing of a body is evaluated.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .frames import BF16, DTYPES, array_of, dtype_name, encode_bytes_tensor
from .limits import MOST_JSON, SLICE, loads
from .workers import RequestError

Arrays = dict[str, np.ndarray]
MOST_DIMS = 16
MOST_SIZE = 1 << 40  # of one dim: products stay far from what an array's size can be
MOST_TENSORS = 1024
HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass
class InferRequest:
    """A request, whichever way it came.

    Attributes:
        outputs: the names asked for, in order; None: all.
        binary: by output, whether its data go behind the JSON; `binary_default` for the others.
        priority: 0 where none is named.
        timeout: seconds, or None.
    """

    inputs: Arrays
    outputs: tuple[str, ...] | None = None
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    binary: dict[str, bool] = field(default_factory=dict)
    binary_default: bool = False

    @property
    def priority(self) -> int:
        """Of the parameters. Raises: RequestError."""
        return whole_number(self.parameters.get("priority", 0), "parameters.priority", 0, (1 << 64) - 1)

    @property
    def timeout(self) -> float | None:
        """Seconds, of the parameters' microseconds. Raises: RequestError."""
        value = whole_number(self.parameters.get("timeout", 0), "parameters.timeout", 0, (1 << 64) - 1)
        return value / 1e6 if value else None


def whole_number(value: object, where: str, low: int, high: int) -> int:
    """An integer in a request. Raises: RequestError.

    Args:
        value: of JSON.
        where: names it in the error.
        low, high: both are allowed.
    """
    if type(value) is not int or not low <= value <= high:
        raise RequestError(f"{where} must be an integer from {low} to {high}, got {value!r:.100}")
    return value


def check_shape(shape: object, where: str) -> tuple[int, ...]:
    """A shape in a request. Raises: RequestError.

    Args:
        shape: of JSON.
        where: names it in the error.
    """
    if not isinstance(shape, (list, tuple)) or len(shape) > MOST_DIMS:
        raise RequestError(f"{where}.shape must be a list of at most {MOST_DIMS} sizes, got {shape!r:.100}")
    for size in shape:
        if type(size) is not int or not 0 <= size <= MOST_SIZE:
            raise RequestError(f"{where}.shape must have sizes from 0 to {MOST_SIZE}, got {size!r:.100}")
    return tuple(shape)


def check_datatype(datatype: object, where: str) -> str:
    """A datatype in a request. Raises: RequestError.

    Args:
        datatype: of JSON.
        where: names it in the error.
    """
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise RequestError(f"{where}.datatype must be one of {', '.join(DTYPES)}, got {datatype!r:.100}")
    return datatype


def raw_array(datatype: str, shape: tuple[int, ...], raw: bytes | memoryview, where: str) -> np.ndarray:
    """The tensor in raw bytes, which it shares. Raises: RequestError.

    Args:
        datatype: KServe's name.
        shape: sizes.
        raw: little-endian.
        where: names it in the error.
    """
    try:
        array = array_of(datatype, shape, raw)
    except ValueError as error:
        raise RequestError(f"{where}: {error}") from None
    if datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        raise RequestError(f"{where}: bytes of BOOL must be 0 or 1")
    return array


def to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest bfloat16, ties to even; NaN stays NaN.

    Args:
        values: any shape.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16).view(BF16)


def from_bf16(values: np.ndarray) -> np.ndarray:
    """bfloat16 as float32, exactly.

    Args:
        values: any shape.
    """
    return (np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


_KINDS: dict[str, tuple[set[type], str]] = {
    "b": ({bool}, "booleans"),
    "O": ({str}, "strings"),
    "f": ({int, float}, "numbers"),
}


def array_of_list(datatype: str, shape: tuple[int, ...], data: object, where: str) -> np.ndarray:
    """The tensor of JSON's data, flat or nested in row-major order. Raises: RequestError.

    Args:
        datatype: KServe's name.
        shape: sizes.
        data: of JSON.
        where: names it in the error.
    """
    if not isinstance(data, list):
        raise RequestError(f"{where}.data must be a list, got {type(data).__name__}")
    for _ in range(MOST_DIMS):
        if not data or type(data[0]) is not list:
            break
        if not all(type(row) is list for row in data):
            raise RequestError(f"{where}.data mixes lists and values")
        data = list(itertools.chain.from_iterable(data))
    expected = int(np.prod(shape, dtype=object)) if shape else 1
    if len(data) != expected:
        raise RequestError(f"{where}.data: shape {list(shape)} needs {expected} values, got {len(data)}")
    dtype = DTYPES[datatype]
    kinds, name = _KINDS.get("f" if datatype == "BF16" else dtype.kind, ({int}, "integers"))
    types = set(map(type, data))
    if not types <= kinds:
        other = next(iter(types - kinds)).__name__
        raise RequestError(f"{where}.data: {datatype} takes {name}, got {other}")
    try:
        return _made(datatype, dtype, data).reshape(shape)
    except (OverflowError, UnicodeEncodeError, ValueError) as error:
        raise RequestError(f"{where}.data: a value is none of {datatype}: {error}") from None


def _made(datatype: str, dtype: np.dtype[Any], data: list[Any]) -> np.ndarray:
    if datatype == "BYTES":
        array = np.empty(len(data), object)
        array[:] = [text.encode() for text in data]
        return array
    if datatype == "BF16":
        with np.errstate(over="ignore"):
            return to_bf16(np.array(data, np.float64).astype(np.float32))
    if dtype.kind in "iu":
        wide = np.array(data, np.int64 if dtype.kind == "i" else np.uint64)
        if dtype.kind == "u" and data and min(data) < 0:
            raise OverflowError("it is negative")
        limits = np.iinfo(dtype)
        if wide.size and (wide.min() < limits.min or wide.max() > limits.max):
            raise OverflowError(f"it is not from {limits.min} to {limits.max}")
        return wide.astype(dtype)
    with np.errstate(over="ignore"):
        return np.array(data, dtype)


def decompressed(body: bytes, encoding: str, most: int) -> bytes:
    """The body of a request with a Content-Encoding. Raises: RequestError.

    Args:
        body: as it came.
        encoding: "gzip", "deflate" or "identity".
        most: bytes of the result.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise RequestError(f"Content-Encoding must be gzip or deflate, got {encoding!r:.50}")
    machine = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = machine.decompress(body, most)
    except zlib.error as error:
        raise RequestError(f"the body is no {encoding}: {error}") from None
    if not machine.eof:
        raise RequestError(f"the body has no end, or more than {most} bytes when unpacked")
    return plain


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{where} must be an object, got {type(value).__name__}")
    return value


def _name(each: dict[str, Any], where: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    name = each.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.name must be a string, got {name!r:.100}")
    if name in known:
        raise RequestError(f"{where}.name: {name!r:.100} comes twice")
    return name


def _refuse_shared_memory(parameters: dict[str, Any], where: str) -> None:
    for key in parameters:
        if key.startswith("shared_memory"):
            raise RequestError(f"{where}.parameters.{key:.60}: shared memory is not supported; send the data")


def parse_infer(body: bytes, header_length: str | None, most: int = MOST_JSON) -> InferRequest:
    """A request of a body.

    Args:
        header_length: of the header `Inference-Header-Content-Length`: how much of the body is JSON.
        most: bytes of JSON.

    Raises: RequestError.
    """
    view = memoryview(body)
    end = len(view)
    if header_length is not None:
        if not header_length.isascii() or not header_length.isdigit() or len(header_length) > 12:
            raise RequestError(f"{HEADER_LENGTH} must be a number, got {header_length!r:.100}")
        end = int(header_length)
        if end > len(view):
            raise RequestError(f"{HEADER_LENGTH} is {end}, the body has {len(view)} bytes")
    try:
        data = loads(body if end == len(view) else bytes(view[:end]), most)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {error!s:.200}") from None
    data = _object(data, "the body")
    request_id = data.get("id", "")
    if not isinstance(request_id, str):
        raise RequestError(f"id must be a string, got {request_id!r:.100}")
    parameters = _object(data.get("parameters", {}), "parameters")
    listed = data.get("inputs")
    if not isinstance(listed, list) or len(listed) > MOST_TENSORS:
        raise RequestError(f"inputs must be a list of at most {MOST_TENSORS} tensors")
    inputs, rest = _inputs(listed, view[end:])
    if len(rest):
        raise RequestError(f"{len(rest)} bytes behind the last tensor that has a binary_data_size")
    default = parameters.get("binary_data_output", False)
    if type(default) is not bool:
        raise RequestError(f"parameters.binary_data_output must be true or false, got {default!r:.100}")
    request = InferRequest(inputs, None, request_id, parameters, binary_default=default)
    if data.get("outputs") is not None:
        _outputs(data["outputs"], request)
    return request


def _inputs(listed: list[Any], rest: memoryview) -> tuple[Arrays, memoryview]:
    inputs: Arrays = {}
    for i, each in enumerate(listed):
        where = f"inputs[{i}]"
        each = _object(each, where)
        name = _name(each, where, inputs)
        where = f"inputs[{i}] ({name:.100})"
        datatype, shape = check_datatype(each.get("datatype"), where), check_shape(each.get("shape"), where)
        parameters = each.get("parameters")
        if parameters:
            parameters = _object(parameters, f"{where}.parameters")
            _refuse_shared_memory(parameters, where)
        size = parameters.get("binary_data_size") if parameters else None
        if size is None:
            inputs[name] = array_of_list(datatype, shape, each.get("data"), where)
            continue
        size = whole_number(size, f"{where}.parameters.binary_data_size", 0, len(rest))
        if "data" in each:
            raise RequestError(f"{where} has data and a binary_data_size; send one of them")
        inputs[name] = raw_array(datatype, shape, rest[:size], where)
        rest = rest[size:]
    return inputs, rest


def _outputs(listed: object, made: InferRequest) -> None:
    if not isinstance(listed, list) or len(listed) > MOST_TENSORS:
        raise RequestError(f"outputs must be a list of at most {MOST_TENSORS} objects")
    names: list[str] = []
    for i, each in enumerate(listed):
        where = f"outputs[{i}]"
        each = _object(each, where)
        names.append(_name(each, where, names))
        parameters = _object(each.get("parameters", {}), f"{where}.parameters")
        _refuse_shared_memory(parameters, where)
        if parameters.get("classification"):
            raise RequestError(f"{where}.parameters.classification is not supported; ask for the tensor")
        binary = parameters.get("binary_data", made.binary_default)
        if type(binary) is not bool:
            raise RequestError(f"{where}.parameters.binary_data must be true or false, got {binary!r:.100}")
        made.binary[names[-1]] = binary
    made.outputs = tuple(names) or None


def list_of_array(array: np.ndarray) -> list[Any]:
    """A tensor as JSON's flat list. BYTES that are no UTF-8 raise RequestError: ask for them as binary.

    Args:
        array: any shape.
    """
    if array.dtype == BF16:
        array = from_bf16(array)
    if array.dtype == object:
        try:
            return [v.decode() if isinstance(v, bytes) else v for v in array.ravel()]
        except UnicodeDecodeError:
            raise RequestError("an output of BYTES is no UTF-8: ask for it with binary_data") from None
    return array.ravel().tolist()


def raw_of_array(array: np.ndarray) -> bytes | memoryview:
    """A tensor as raw bytes; not copied where it lies in one piece.

    Args:
        array: any shape.
    """
    if array.dtype == object:
        return encode_bytes_tensor(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _data_of(array: np.ndarray) -> str:
    """A tensor as JSON, in slices: other threads have their turn between two of them."""
    flat = array.reshape(-1)
    slices = (_dumped(list_of_array(flat[at : at + SLICE])) for at in range(0, flat.size, SLICE))
    return f"[{','.join(each[1:-1] for each in slices)}]"


def encode_response(
    request: InferRequest, model: str, version: int, outputs: Arrays
) -> tuple[bytes, int | None]:
    """The body of a response and, where tensors lie behind it, the length of its JSON.

    Raises: RequestError.
    """
    listed, pieces = [], []
    for name, array in outputs.items():
        each: dict[str, Any] = {"name": name, "datatype": dtype_name(array), "shape": list(array.shape)}
        if request.binary.get(name, request.binary_default):
            raw = raw_of_array(array)
            each["parameters"] = {"binary_data_size": len(raw)}
            pieces.append(raw)
        else:
            listed.append(f'{_dumped(each)[:-1]},"data":{_data_of(array)}}}')
            continue
        listed.append(_dumped(each))
    head: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if request.id:
        head["id"] = request.id
    text = f'{_dumped(head)[:-1]},"outputs":[{",".join(listed)}]}}'.encode()
    if not pieces:
        return text, None
    return b"".join((text, *pieces)), len(text)
