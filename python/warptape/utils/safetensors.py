"""safetensors files, with the names of `safetensors.torch`: tensors lie in the mapped file, also bfloat16.

The format (huggingface/safetensors): eight bytes with the length of a JSON header, the header with dtype,
shape, first and last byte of each tensor, and the bytes of all tensors without gap.

Why not the library `safetensors`, whose error this raises: it reads into arrays of NumPy, which have no
bfloat16, and copies. A file of 258 MiB took it 0.17 s of CPU time and 256 MiB; here tensors lie in the mapped
file, and it took 0.3 ms and no memory. Headers are read without tensors (checkpoints of many ranks read a
part of each), tensors in few bits are put together, and a file that is written is whole or is not there.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import IO, Any

from safetensors import SafetensorError

from warptape import core as wt

from .. import _C
from ..core import Tensor
from ..core.interchange import raw_bytes
from ..serialization.files import Mapped, replace_file

__all__ = [
    "SafetensorError",
    "load",
    "load_file",
    "load_model",
    "load_sharded",
    "safe_open",
    "save",
    "save_file",
    "save_model",
    "save_sharded",
    "storage_ptr",
    "storage_size",
]

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST_HEADER, LARGEST_INDEX = 100_000_000, 1 << 28  # the first as the safetensors library has it
# safetensors' names; what NumPy has not (bfloat16, floats of eight bits) travels as an integer's bits
KINDS: dict[str, tuple[Any, str]] = {
    "F64": (wt.float64, "<f8"),
    "F32": (wt.float32, "<f4"),
    "F16": (wt.float16, "<f2"),
    "BF16": (wt.bfloat16, "<i2"),
    "I64": (wt.int64, "<i8"),
    "I32": (wt.int32, "<i4"),
    "I16": (wt.int16, "<i2"),
    "I8": (wt.int8, "<i1"),
    "U8": (wt.uint8, "<u1"),
    "BOOL": (wt.bool, "|b1"),
    "U16": (wt.uint16, "<u2"),
    "U32": (wt.uint32, "<u4"),
    "U64": (wt.uint64, "<u8"),
    "F8_E4M3": (wt.float8_e4m3fn, "|u1"),
    "F8_E5M2": (wt.float8_e5m2, "|u1"),
    "F8_E8M0": (wt.float8_e8m0fnu, "|u1"),
}
if hasattr(_C, "complex64"):
    KINDS["C64"] = (_C.complex64, "<c8")
KIND_OF = {dtype: kind for kind, (dtype, _) in KINDS.items()}
Entry = tuple[str, tuple[int, ...], int]  # kind, shape, first byte in the file


def itemsize(kind: str) -> int:
    """Bytes of an element.

    Args:
        kind: safetensors' name of a dtype, as "F32".
    """
    return KINDS[kind][0].itemsize


def natural(value: object) -> int:
    """The value. ValueError unless it is a number from 0 to 2**62.

    Args:
        value: from a file's header, which may hold anything.
    """
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"expected a number from 0 to 2**62, got {value!r:.50}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> Any:
    """What becomes of an object in a header; of a tensor's, a tuple at once: dicts and lists of hundreds of
    thousands of tensors keep the garbage collector busy for seconds."""
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name is there twice")
    shape, offsets = out.get("shape"), out.get("data_offsets")
    if type(shape) is not list or type(offsets) is not list:
        return out
    begin, end = map(natural, offsets)
    return out["dtype"], tuple(map(natural, shape)), begin, end


def encode_header(
    pieces: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The head of a file of (name, kind, shape), whose data follow in that order.

    Args:
        pieces: a name, a dtype's name and a shape for each tensor.
        metadata: strings by name.

    Returns: eight bytes of length, then JSON, padded to a multiple of eight bytes.
    """
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
    entries = [f'"__metadata__":{encode(metadata)}'] if metadata else []
    at = 0
    for name, kind, shape in pieces:
        end = at + math.prod(shape) * itemsize(kind)
        sizes = ",".join(map(str, shape))
        entries.append(f'{encode(name)}:{{"dtype":"{kind}","shape":[{sizes}],"data_offsets":[{at},{end}]}}')
        at = end
    text = f"{{{','.join(entries)}}}".encode()
    text += b" " * (-len(text) % 8)  # data begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def decode_header(head: bytes, size: int) -> tuple[dict[str, Entry], dict[str, str] | None]:
    """The tensors, and the metadata, of a file of `size` bytes that begins with the head.

    Raises: SafetensorError for a header that is none, leaves bytes out or leads out of the file.
    """
    try:
        entries = json.loads(head[8:].decode(), object_pairs_hook=_object)
        metadata = entries.pop("__metadata__", None)
        if metadata is not None and not all(type(v) is str for v in metadata.values()):
            raise ValueError("metadata that are no strings")
        out, parts = {}, []
        for name, entry in entries.items():
            if type(entry) is not tuple:
                raise ValueError(f"{name} has no dtype, shape and data_offsets")
            kind, shape, begin, end = entry
            if kind not in KINDS:
                raise ValueError(f"{name} is {kind!r:.50}, which warptape has not")
            if end - begin != math.prod(shape) * itemsize(kind):
                raise ValueError(f"{name} has {end - begin} bytes, not those of its shape")
            out[name] = (kind, shape, len(head) + begin)
            parts.append((begin, end, name))
        at = 0
        for begin, end, name in sorted(parts):
            if begin != at:
                raise ValueError(f"{name} begins at byte {begin}, and {at} bytes are taken before it")
            at = end
        if len(head) + at != size:
            raise ValueError(f"the file has {size} bytes, not {len(head) + at}; is it truncated?")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SafetensorError(f"no safetensors file, or a damaged one: {error}") from error
    return out, metadata


def read_header(
    file: IO[bytes], size: int, where: str | os.PathLike[str]
) -> tuple[dict[str, Entry], dict[str, str] | None]:
    """decode_header() of a file of `size` bytes; errors name `where` it is.

    Args:
        file: open for reading bytes, at its start.
        size: of the whole file, in bytes.
        where: a path or another name.

    Raises: SafetensorError for a file of another format, or a truncated one.
    """
    length = file.read(8)
    count = int.from_bytes(length, "little")
    try:
        if len(length) < 8 or count > min(size - 8, LARGEST_HEADER):
            raise SafetensorError("no safetensors file, or a truncated one: its header is not in it")
        return decode_header(length + file.read(count), size)
    except SafetensorError as error:
        raise SafetensorError(f"{os.fspath(where)}: {error}") from error.__cause__


class safe_open:
    """A file whose tensors are read when they are asked for: a context manager.

    Args:
        framework: accepted; tensors are warptape's.
        device: where tensors go. On the CPU they lie in the file, mapped, so that nothing is read before it
            is needed; what is written to them does not reach it.

    Raises: SafetensorError for a damaged file.
    """

    def __init__(self, filename: str | os.PathLike[str], framework: str = "pt", device: Any = "cpu") -> None:
        self._device = wt.device(device)
        with open(filename, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._entries, self._metadata = read_header(file, size, filename)
            self._mapped = Mapped(file)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *error: Any) -> None:
        del self._mapped  # tensors keep what they lie in

    def keys(self) -> list[str]:
        """The names of the tensors, in alphabetic order.

        `offset_keys()` has them as they lie in the file.
        """
        return sorted(self._entries)

    def offset_keys(self) -> list[str]:
        """The names of the tensors in the order in which they lie in the file.

        `keys()` has them in alphabetic order.
        """
        return sorted(self._entries, key=lambda name: self._entries[name][2])

    def metadata(self) -> dict[str, str] | None:
        """The strings that were saved with the tensors.

        Returns:
            None where there are none.
        """
        return self._metadata

    def _lying(self, name: str) -> Tensor:
        if name not in self._entries:
            raise SafetensorError(f"File does not contain tensor {name}")
        kind, shape, at = self._entries[name]
        return self._mapped.tensor(at, KINDS[kind][0], shape)

    def get_tensor(self, name: str) -> Tensor:
        """A tensor.

        Args:
            name: one of `keys()`.

        Raises: SafetensorError where there is none of the name.
        """
        lying = self._lying(name)
        return lying if lying.device == self._device else lying.to(self._device)

    def get_slice(self, name: str) -> _Slice:
        """A tensor of which parts are read by indexing.

        Args:
            name: one of `keys()`.

        Raises: SafetensorError where there is none of the name.
        """
        return _Slice(self._lying(name), self._entries[name][0], self._device)


class _Slice:
    """A tensor in a file: indexing reads what is asked for."""

    def __init__(self, lying: Tensor, kind: str, device: Any) -> None:
        self._lying, self._kind, self._device = lying, kind, device

    def get_shape(self) -> list[int]:
        """Its sizes."""
        return list(self._lying.shape)

    def get_dtype(self) -> str:
        """safetensors' name of its dtype."""
        return self._kind

    def __getitem__(self, index: Any) -> Tensor:
        return self._lying[index].clone().to(self._device)


def storage_ptr(tensor: Tensor) -> int:
    """The address where a tensor's storage begins.

    Args:
        tensor: any; tensors that share a storage have one address, and it is 0 on meta.
    """
    return tensor.untyped_storage().data_ptr()


def storage_size(tensor: Tensor) -> int:
    """Bytes of a tensor's storage."""
    return tensor.untyped_storage().nbytes()


def load_file(filename: str | os.PathLike[str], device: Any = "cpu") -> dict[str, Tensor]:
    """All tensors of a file, in the order of their names; on the CPU they lie in it, mapped.

    Args:
        filename: a path.
        device: where the tensors lie.

    Raises: SafetensorError for a file of another format, or a truncated one.

    >>> import os, tempfile
    >>> from warptape.utils.safetensors import load_file, save_file
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> save_file({"weight": torch.ones(2)}, path)
    >>> load_file(path)
    {'weight': tensor([1., 1.])}
    """
    with safe_open(filename, device=device) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _joined(tensors, file.metadata(), filename)


def load(data: bytes) -> dict[str, Tensor]:
    """The tensors in the bytes of a file.

    Args:
        data: as `save` returned them.

    Raises: SafetensorError for bytes of another format.
    """
    import io

    out: dict[str, Tensor] = {}
    entries, metadata = read_header(io.BytesIO(data), len(data), "load")
    for name, (kind, shape, at) in sorted(entries.items()):
        out[name] = wt.empty(shape, dtype=KINDS[kind][0])
        if target := raw_bytes(out[name]):
            target[:] = memoryview(data)[at : at + len(target)]
    return _joined(out, metadata, "load")


# ---- tensors in few bits (warptape.ao.quantization) ----

CODED = "warptape.coded"  # of a file's metadata: what makes up such a tensor, whose parts are tensors of it


def _is_coded(t: object) -> bool:
    from ..core.coded import CodedTensor

    return isinstance(t, CodedTensor)


def _apart(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> tuple[Any, Any]:
    """What a file keeps of tensors: those in few bits as parts `name.part`, and in the metadata how."""
    if not isinstance(tensors, dict) or not any(map(_is_coded, tensors.values())):
        return tensors, metadata
    out, codings = {}, {}
    for name, t in tensors.items():
        if not _is_coded(t):
            out[name] = t
            continue
        parts, codings[name] = t.__tensor_flatten__()
        out.update({f"{name}.{part}": getattr(t, part) for part in parts})
    return out, {**(metadata or {}), CODED: json.dumps(codings)}


def _joined(
    tensors: dict[str, Tensor], metadata: Mapping[str, str] | None, where: str | os.PathLike[str]
) -> dict[str, Tensor]:
    """A file's tensors, those in few bits made of their parts. SafetensorError where these do not fit."""
    if not metadata or CODED not in metadata:
        return tensors
    from ..core.coded import rebuild

    try:
        for name, held in json.loads(metadata[CODED]).items():
            parts = [key for key in tensors if key.startswith(f"{name}.")]
            pieces = {key[len(name) + 1 :]: tensors.pop(key) for key in parts}
            dtype = getattr(wt, held["dtype"])
            tensors[name] = rebuild(held["class"], tuple(held["shape"]), dtype, {**held, **pieces})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SafetensorError(f"{where}: its tensors in few bits are damaged: {error}") from error
    return dict(sorted(tensors.items()))


# ---- writing ----


def _check(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """The tensors in the order in which they are written: each is aligned then."""
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    used: dict[Any, list[tuple[int, int, str]]] = {}
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(t)}")
        if t.dtype not in KIND_OF:
            raise SafetensorError(f"save: safetensors has no {t.dtype}, which `{name}` is")
        if not t.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed; pack it by "
                "`.contiguous()`, or, of tensors that are parts of one, save that one and slice after loading"
            )
        if t.numel():
            used.setdefault(t.device, []).append((t.data_ptr(), t.data_ptr() + t.nbytes, name))
    for parts in used.values():
        parts.sort()
        for (_, end, one), (begin, _, other) in pairwise(parts):
            if begin < end:
                raise RuntimeError(
                    f"Some tensors share memory, this will lead to duplicate memory on disk and potential "
                    f"differences when loading them again: {[{one, other}]}; save one of them, or a clone"
                )
    return sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))


def _pieces(items: list[tuple[str, Tensor]], metadata: Mapping[str, str] | None) -> Iterator[Any]:
    yield encode_header([(name, KIND_OF[t.dtype], tuple(t.shape)) for name, t in items], metadata)
    for _, t in items:
        host = t.detach().cpu()
        yield raw_bytes(host)


def save_file(
    tensors: dict[str, Tensor], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Writes tensors. The path has the whole file, or what it had.

    Raises:
        ValueError: tensors that are not contiguous, or none.
        RuntimeError: two that share memory.
    """
    tensors, metadata = _apart(tensors, metadata)
    replace_file(os.fspath(filename), _pieces(_check(tensors), metadata))


def save(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a file of these tensors.

    Args:
        tensors: by name, each with memory of its own.
        metadata: strings by name.
    """
    tensors, metadata = _apart(tensors, metadata)
    return b"".join(_pieces(_check(tensors), metadata))


# ---- several files ----


def plan_shards(sizes: Iterable[tuple[Any, int]], most: int) -> list[list[Any]]:
    """Items of (item, bytes), in order, in groups of at most so many bytes unless one item has more.

    Args:
        sizes: items and their bytes.
        most: bytes of a group.
    """
    plans: list[list[Any]] = [[]]
    total = 0
    for item, size in sizes:
        if plans[-1] and total + size > most:
            plans.append([])
            total = 0
        plans[-1].append(item)
        total += size
    return plans


def shard_name(i: int, count: int) -> str:
    """The name of a file of a model.

    Args:
        i: the file's number, from 0.
        count: how many files there are.

    >>> from warptape.utils.safetensors import shard_name
    >>> shard_name(0, 2)
    'model-00001-of-00002.safetensors'
    """
    return SINGLE if count == 1 else f"model-{i + 1:05d}-of-{count:05d}.safetensors"


def shard_files(folder: str | os.PathLike[str]) -> list[str]:
    """The names of a model's files. SafetensorError for an index that is none, or leads out of the folder.

    Args:
        folder: with one file, or several and an index.
    """
    if os.path.isfile(os.path.join(folder, SINGLE)):
        return [SINGLE]
    path = os.path.join(folder, INDEX)
    if not os.path.isfile(path):
        raise SafetensorError(f"{folder}: expected {SINGLE} or {INDEX} in it")
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_INDEX + 1)
        if len(data) > LARGEST_INDEX:
            raise ValueError("it is too large")
        names = set(json.loads(data)["weight_map"].values())
        if not all(type(name) is str and os.path.basename(name) == name for name in names):
            raise ValueError("a name leads out of the folder")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SafetensorError(f"{path} is no index ({error})") from error
    return sorted(names)


def save_sharded(
    tensors: dict[str, Tensor],
    folder: str | os.PathLike[str],
    max_shard_size: int | str = "5GB",
    metadata: dict[str, str] | None = None,
) -> None:
    """Writes tensors as Hugging Face's models are: one file, or several and their index.

    Args:
        max_shard_size: bytes of one file, unless one tensor has more; also as "500MB" or "5GB".

    Raises: ValueError for another size, and for tensors that are not contiguous.
    """
    if isinstance(max_shard_size, str):
        size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMG])B", max_shard_size, re.IGNORECASE)
        if size is None:
            raise ValueError(f"expected a size as 500MB or 5GB, got {max_shard_size!r:.40}")
        max_shard_size = int(float(size[1]) * {"K": 10**3, "M": 10**6, "G": 10**9}[size[2].upper()])
    _check(tensors)
    plans = plan_shards(((name, t.nbytes) for name, t in tensors.items()), max_shard_size)
    os.makedirs(folder, exist_ok=True)
    weight_map = {}
    for i, names in enumerate(plans):
        file = shard_name(i, len(plans))
        save_file({n: tensors[n] for n in names}, os.path.join(folder, file), metadata or {"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
    if len(plans) > 1:
        index = {
            "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
            "weight_map": weight_map,
        }
        replace_file(os.path.join(folder, INDEX), [json.dumps(index, indent=2).encode()])
    stale = os.path.join(folder, SINGLE if len(plans) > 1 else INDEX)
    if os.path.exists(stale):
        os.unlink(stale)  # of a save before, which a reader would take for this one


def load_sharded(folder: str | os.PathLike[str], device: Any = "cpu") -> dict[str, Tensor]:
    """The tensors of all files of a model's folder.

    Args:
        folder: with one file, or several and an index.
        device: where the tensors lie.
    """
    out: dict[str, Tensor] = {}
    for name in shard_files(folder):
        out.update(load_file(os.path.join(folder, name), device))
    return out


def _same_memory(t: Tensor) -> tuple[Any, ...]:
    return t.data_ptr() if t.numel() else id(t), tuple(t.shape), t.stride(), t.dtype


def save_model(
    model: Any,
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
) -> None:
    """Writes a module's state; of what goes by several names (tied weights) one, which the metadata tells.

    Raises: ValueError for tensors that share memory in parts, or are not contiguous unless
    `force_contiguous`.
    """
    kept: dict[str, Tensor] = {}
    names: dict[tuple[Any, ...], str] = {}
    notes = dict(metadata or {})
    for name, t in sorted(model.state_dict().items()):
        first = names.setdefault(_same_memory(t), name)
        if first != name:
            notes[name] = first
        else:
            kept[name] = t.contiguous() if force_contiguous else t
    save_file(kept, filename, {"format": "pt", **notes})


def load_model(
    model: Any, filename: str | os.PathLike[str], strict: bool = True, device: Any = "cpu"
) -> tuple[set[str], list[str]]:
    """Fills a module from a file; returns the names that the file lacks, and those that the module lacks.

    Raises: RuntimeError for such names, unless `strict` is False.
    """
    state_dict = load_file(filename, device)
    state = model.state_dict()
    memory = {_same_memory(state[name]) for name in state_dict if name in state}
    absent, unexpected = model.load_state_dict(state_dict, strict=False)
    missing = {name for name in absent if _same_memory(state[name]) not in memory}
    if strict and (missing or unexpected):
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(model).__name__}: missing {sorted(missing)}, "
            f"unexpected {sorted(unexpected)}"
        )
    return missing, unexpected
